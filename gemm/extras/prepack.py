"""Right-hand sides that are packed once for many products: `gemm.prepare`.

Packing reads and writes all of b; for a device, b is also transferred. In a product with many rows, the arithmetic
takes much longer than packing. A product with few rows spends more time on packing than on arithmetic. An example is a
layer of a network that is applied to one input after another. (MKL offers packed operands as cblas_?gemm_pack.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from gemm import execute
from gemm.backends import registry
from gemm.catalog import BY_NAME, Backend
from gemm.core import VERSION, operands
from gemm.core.backend import Kept, Launch
from gemm.core.epilogue import Finishing
from gemm.core.errors import BackendUnavailable, KernelFailed, delivering
from gemm.core.problem import ALL, HYBRID, NARROW, PRECISIONS, DeviceView, Operand, Plan, Precision, Problem
from gemm.frontend import interop, plan_cache
from gemm.frontend.arguments import Call, Given, Options, Trans, normalise, transposes
from gemm.select import candidates, verification

_ROWS = 64
"""The number of rows that later products are assumed to have when a kernel of a device is chosen for b."""


class Prepared:
    """A matrix that is packed for one kernel; pass it to `gemm` or `matmul` as b.

    The object contains a packed copy of the matrix: later changes of the original array have no effect (for CUDA, see
    `prepare`). The object is immutable; copy.copy and copy.deepcopy return the object itself. A matrix packed
    for the CPU can be pickled. Unpickling requires the same version of gemm and a CPU that can run the kernel. A matrix
    in a device's memory cannot be pickled.

    Attributes:
        shape: (k, n), the shape of op(b).
        dtype: the dtype of the products.
        nbytes: the size of the packed copy in bytes.
        kernel, device: the names of the kernel and the device for which the matrix is packed.
    """

    def __init__(self, kept: DeviceView, plan: Plan) -> None:
        self.shape: tuple[int, int] = (kept.shape[0], kept.shape[1])
        self.dtype = kept.dtype
        self._plan, self._kept = plan, kept
        memory = kept.owner.memory
        # In the plan cache, `_repeated` replaces b. For products on the CPU, `_repeated` is the packed array. For
        # products on a device, it is None, because the cached launches already contain the packed matrix.
        self._repeated = memory if isinstance(memory, np.ndarray) else None
        # This array replaces b in the checks of shapes. It has one element in memory and keeps no large array alive.
        self._shape_of_b = np.broadcast_to(np.zeros((), kept.dtype), kept.shape)
        self._caches: dict[object, plan_cache.PlanCache] = {}

    @property
    def kernel(self) -> str:
        return self._plan.kernel.name

    @property
    def device(self) -> str:
        return self._plan.device.key

    @property
    def nbytes(self) -> int:
        return int(self._kept.owner.memory.nbytes)

    ndim = 2

    def __repr__(self) -> str:
        k, n = self.shape
        return f"<{k} × {n} {self.dtype} prepared for {self.kernel} on {self.device}, {self.nbytes} bytes>"

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            "a prepared matrix is packed for products and is not an array; keep the array from which it was made"
        )

    def __copy__(self, *_: Any) -> Prepared:
        return self

    __deepcopy__ = __copy__

    def __reduce__(self) -> tuple[Any, ...]:
        if self._repeated is None:
            raise TypeError(
                f"a prepared matrix in the memory of {self.device} cannot be pickled; pickle the matrix that it was "
                "made from, and prepare the matrix again"
            )
        row = self._plan.kernel
        params = {**row.params, **registry.backend(row.backend).packing(row, self.shape)}
        kernel = VERSION, row.name, tuple(sorted(params.items()))
        return _unpickled, (kernel, self._plan.problem, self.shape, self.dtype, self._repeated)

    def product(self, given: Given, options: Options) -> Any:
        """Return alpha · op(a) · self + beta · c.

        `given` and `options` have the arguments of `gemm.gemm`; b in `given` is this object.
        """
        used = (given.a, self._repeated, *given[2:])
        began, cache = plan_cache.begin(options, self._caches)
        if cache is not None and (result := cache.repeat(used)) is not None:
            return result
        self._check(options)
        call = self._call(given, options)
        if not call.out.size:
            return call.finish()
        if call.problem.k == 0:  # alpha = 0: the kernel does not read b
            call.run()
            return call.finish()
        call = replace(call, b=operands.broadcast(self._kept, call.b.shape))
        launch = self._launched(call)
        if cache is not None:
            cache.learn_product(began, launch, call, used)
        return call.finish()

    def _check(self, options: Options) -> None:
        """Raise ValueError if the matrix was not prepared for these options."""
        if options.trans_b not in (False, "N", "n"):
            raise ValueError("pass trans_b to prepare(b, trans_b=...): gemm does not transpose a prepared b")
        backend, kernel, row = options.backend, options.kernel, self._plan.kernel
        if backend not in ("auto", row.backend, row.target, self.device) or kernel not in (None, row.name):
            candidates.check_names(backend, kernel)
            raise ValueError(f"b was prepared for {row.name}; prepare it for backend={backend!r}, kernel={kernel!r}")
        asked = options.precision
        if asked in PRECISIONS[: PRECISIONS.index(row.precision)]:
            raise ValueError(
                f"b was prepared for precision={row.precision!r}, not {asked!r}; pass the same precision to prepare"
            )

    def _call(self, given: Given, options: Options) -> Call:
        """Check the arguments and return the Call. If a is in host memory, the Call's b has the right shape and dtype,
        but arbitrary elements.
        """
        there = isinstance(interop.wrap(given.a, "a"), DeviceView)
        given = given._replace(b=self._kept if there else self._shape_of_b)
        call = normalise(given, options._replace(trans_b=False))
        if call.problem.dtype != self.dtype.name:
            raise TypeError(
                f"b was prepared for {self.dtype}, but the product is of {call.problem.dtype}: pass "
                f"dtype={call.problem.dtype!r} to prepare, or dtype={self.dtype.name!r} to the product"
            )
        if call.problem.fused and (there or self.dtype.name in NARROW):
            what = "an array on a device" if there else f"a {self.dtype} result"
            raise TypeError(f"{what} cannot have a bias or an activation with a prepared b; pass the matrix itself")
        return call

    def _launched(self, call: Call) -> Launch:
        """Launch `call`, whose b is the packed matrix. Return the launch, which can be repeated for other operands."""
        made, ordered = self._plan, self._plan.problem.reproducible
        alike = made.kernel.ordered and registry.backend(made.kernel.backend).keeps_alike
        if call.problem.reproducible and not (ordered or alike):
            raise ValueError("b was not prepared for reproducible=True; pass reproducible=True to prepare as well")
        if cause := verification.failed(made.kernel, made.device):
            raise BackendUnavailable(made.kernel.name, cause)
        problem = replace(call.problem.unfused, reproducible=ordered or call.problem.reproducible)
        with delivering(made.kernel.name):
            try:
                launch = execute.launcher(replace(made, problem=problem))
                more: tuple[Any, ...] = ()
                if call.problem.fused:
                    launch, more = Finishing(launch, call.problem), (call.bias,)
                launch(call.a, call.b, call.c, call.out, call.alpha, call.beta, *more)
            except KernelFailed as error:  # no other kernel can read the packed matrix
                verification.demote(made.kernel, made.device, error)
                raise
        return launch


def product(given: Given, options: Options) -> Any:
    """`gemm.gemm` with a prepared b."""
    return given.b.product(given, options)


def plan() -> NoReturn:
    """Called by `gemm.plan` with a prepared b. Always raises TypeError."""
    raise TypeError("b is already prepared: pass b to gemm.gemm, which needs no plan for a prepared b")


def _unpickled(
    kernel: tuple[str, str, tuple[tuple[str, int], ...]], problem: Problem, shape: tuple[int, int], dtype: Any,
    packed: np.ndarray,
) -> Prepared:  # fmt: skip
    """Restore the matrix that Prepared.__reduce__ describes. Raises BackendUnavailable if this version of gemm or this
    machine does not have the kernel that reads the packed matrix.
    """
    made_by, name, params = kernel
    remedy = "Pickle the matrix that it was made from, and prepare that here"
    if made_by != VERSION:
        raise BackendUnavailable(name, f"a matrix was prepared by gemm {made_by}, but this is gemm {VERSION}", remedy)
    if name not in BY_NAME:
        raise BackendUnavailable(name, "a matrix was prepared for a kernel that is not known here", remedy)
    row = replace(BY_NAME[name], params=dict(params))
    device = registry.backend(row.backend).devices()[0]
    if cause := candidates.unavailable(row, device):
        raise BackendUnavailable(name, f"a matrix was prepared for a kernel that {cause}", remedy)
    own = operands.aligned(packed.nbytes)
    own[...] = packed
    strides = (shape[1] * dtype.itemsize, dtype.itemsize)
    kept = DeviceView(Kept(own), own.ctypes.data, 0, shape, strides, dtype, device, readonly=True)
    return Prepared(kept, Plan(problem, row, device, 0.0, "as it was pickled"))


def prepare(
    b: Any, *, trans_b: Trans = False, dtype: DTypeLike | None = None, precision: Precision = "highest",
    reproducible: bool = False, backend: Backend = "auto", kernel: str | None = None,
) -> Prepared:  # fmt: skip
    """Pack `b` for repeated products gemm(a, prepared), on the CPU or in the memory of a device.

    Args:
        b: (k, n) array, or (n, k) with trans_b, in host memory; or on a device, for products with arrays on that
            device. CUDA kernels read most matrices without packing. A CUDA array that needs no packing is not copied,
            and later changes of the array affect the products.
        trans_b: False or "N": as given. True or "T": transposed. "C": transposed and conjugated.
        dtype: the dtype of the products. Default: b's dtype.
        precision: the strictest precision that a product with this matrix will request.
        reproducible: True: all products are reproducible. False: on the CPU, a single product may still request
            reproducible=True.
        backend, kernel: as for `gemm`. "auto" selects the CPU, or the device that contains b.

    Raises:
        ValueError, TypeError: an argument is wrong.
        BackendUnavailable: the backend, device or kernel that was named cannot run here.
        MemoryError: there is not enough memory for the packed copy.
    """
    return _packed(b, Options(False, trans_b, dtype, precision, reproducible, backend, kernel))


def _packed(b: Any, options: Options) -> Prepared:
    backend, kernel = options.backend, options.kernel
    if backend in (HYBRID, *ALL):
        raise ValueError(f"backend={backend!r}: a prepared b is packed for one device; name one device")
    plan_cache.settle()  # b may be the result of a pending product
    matrix = interop.wrap(b, "b")
    if matrix.ndim != 2:
        raise ValueError(f"b must be a matrix with 2 axes; its number of axes is {matrix.ndim}")
    transposed, _ = transposes("b", options.trans_b)
    row = (1, matrix.shape[transposed])
    left: Operand = np.broadcast_to(np.zeros((), matrix.dtype), row)
    holder = None
    if isinstance(matrix, DeviceView):
        left, holder = operands.nothing_of(matrix, *row), matrix.device
    call = normalise(Given(left, matrix), options)
    if not call.b.size:
        raise ValueError(f"b of shape {matrix.shape} has no elements; there is nothing to prepare")
    asked = "cpu" if (backend, holder, kernel) == ("auto", None, None) else backend
    # The number of rows of later products is unknown. The type of a is unknown, too; b is therefore converted to the
    # type in which the kernel computes.
    problem = replace(call.problem, m=1 if asked == "cpu" else _ROWS, inputs=())
    right = call.b
    if isinstance(right, np.ndarray):
        right = right.astype(problem.dtype, copy=False)
    made: list[Prepared] = []

    def attempt(plan: Plan) -> None:
        if not plan.kernel.prepares:  # only if the caller named the row or its target
            raise ValueError(f"{plan.kernel.name} multiplies no prepared matrix; name another kernel or backend")
        backend = registry.backend(plan.kernel.backend)
        kept = backend.keep(plan.kernel, plan.device, right, reproducible=plan.problem.reproducible)
        made.append(Prepared(kept, plan))

    execute.deliver(problem, asked, kernel, holder, attempt)
    return made[0]
