"""Right-hand sides packed once for many products: `gemm.prepare`.

Packing costs a pass over b. A product of many rows earns it back; one of few rows, such as a layer of a network applied
to one input after another, spends more on it than on its arithmetic. (MKL offers the same as cblas_?gemm_pack.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gemm import dispatch, operands, repeat
from gemm.backends.cpu import CpuLaunch, pack
from gemm.call import Call, normalise
from gemm.engine import engine
from gemm.problem import DeviceView, Problem

KINDS = 16
"""How many kinds of products are remembered for each set of options."""


class Prepared:
    """A matrix packed for the kernel that multiplies by it; pass it to `gemm` or `matmul` as b.

    It holds a packed copy: later changes of the array that it was made from do not show.

    Attributes:
        shape: (k, n), as it is multiplied. dtype: of the products. nbytes: of the packed copy.
        kernel, device: names of what it was packed for.
    """

    def __init__(self, b: np.ndarray, plan: dispatch.Plan) -> None:
        self.shape: tuple[int, int] = (b.shape[0], b.shape[1])
        self.dtype = b.dtype
        self._plan = plan
        self._packed = pack(plan.kernel, b)
        # Stands for b where shapes are checked; a single element, so that nothing is kept alive.
        self._shape_of_b = np.broadcast_to(np.zeros((), b.dtype), b.shape)
        self._memos: dict[object, Any] = {}

    kernel = property(lambda self: self._plan.kernel.name)
    device = property(lambda self: self._plan.device.key)
    nbytes = property(lambda self: self._packed.nbytes)
    ndim = 2

    def __repr__(self) -> str:
        k, n = self.shape
        return f"<{k} × {n} {self.dtype} prepared for {self.kernel} on {self.device}, {self.nbytes} bytes>"

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            "a prepared matrix is packed for products and is no array; keep the array that it was made from"
        )

    def product(self, a: Any, c: Any, out: Any, options: dict[str, Any]) -> Any:
        """alpha · op(a) · self + beta · c; `options` as `gemm.gemm` takes them."""
        if options.pop("trans_b") not in (False, "N", "n"):
            raise ValueError("trans_b belongs to prepare(b, trans_b=...): a prepared b is as it is multiplied")
        backend, kernel = options.pop("backend"), options.pop("kernel")
        row = self._plan.kernel
        if backend not in ("auto", row.backend, row.target, self.device) or kernel not in (None, row.name):
            dispatch.check_names(backend, kernel)
            raise ValueError(f"b was prepared for {row.name}; prepare it for backend={backend!r}, kernel={kernel!r}")
        if options["dtype"] is None:
            options["dtype"] = self.dtype
        known: object = tuple((key, value, value.__class__) for key, value in options.items())
        try:
            memo = self._memos.get(known)
        except TypeError:  # an option without a hash
            memo, known = None, None
        if memo is not None:
            result = memo.run(a, self._packed, c, out)
            if result is not None:
                return result
        call = normalise(a, self._shape_of_b, c, out=out, trans_b=False, **options)
        if call.problem.dtype != self.dtype.name:
            raise TypeError(
                f"b was prepared for {self.dtype}, the product is of {call.problem.dtype}; prepare it for that"
            )
        if not call.out.size:
            return call.finish()
        if call.problem.k == 0:  # alpha = 0: b is not read
            dispatch.run(call.problem, backend, kernel, call.a, call.b, call.c, call.out, call.alpha, call.beta)
            return call.finish()
        launch = CpuLaunch(engine(), row, call.problem, self._packed)
        launch(call.a, call.b, call.c, call.out, call.alpha, call.beta)
        if known is not None:
            self._learn(known, launch, call, a, c, out)
        return call.finish()

    def _learn(self, known: object, launch: CpuLaunch, call: Call, a: Any, c: Any, out: Any) -> None:
        if known not in self._memos:
            if len(self._memos) >= repeat.OPTIONS:
                self._memos.clear()
            self._memos[known] = repeat.new(KINDS)
        if self._memos[known] is not None:
            repeat.learn_native(self._memos[known], launch, call, a, self._packed, c, out)


def prepare(
    b: Any, *, trans_b: bool | str = False, dtype: DTypeLike | None = None, backend: str = "auto",
    kernel: str | None = None,
) -> Prepared:  # fmt: skip
    """Pack `b` for repeated products gemm(a, prepared) on the CPU.

    Args:
        b: (k, n) array in host memory, or (n, k) with trans_b.
        trans_b: False or "N"; True or "T": transposed; "C": and conjugated.
        dtype: of the products; default: b's.
        backend, kernel: as for `gemm`, of the CPU.

    Raises:
        ValueError, TypeError: an argument is wrong. BackendUnavailable: what was named cannot run here.
        MemoryError: there is no room for the packed copy.
    """
    matrix = operands.wrap(b, "b")
    if isinstance(matrix, DeviceView):
        raise TypeError(f"b lies on {matrix.device.key}; prepare takes host arrays")
    if matrix.ndim != 2:
        raise ValueError(f"b has {matrix.ndim} axes; a prepared b is one matrix, of two")
    left = np.broadcast_to(np.zeros((), matrix.dtype), (1, matrix.shape[1 if trans_b not in (False, "N", "n") else 0]))
    call = normalise(left, matrix, None, alpha=1, beta=0, trans_a=False, trans_b=trans_b, out=None, dtype=dtype,
                     precision="highest", reproducible=False)  # fmt: skip
    if not call.b.size:
        raise ValueError(f"b of shape {matrix.shape} has no elements; there is nothing to prepare")
    k, n = call.problem.k, call.problem.n
    plan = dispatch.choose(Problem(call.problem.dtype, 1, n, k), "cpu" if backend == "auto" else backend, kernel)
    if plan.kernel.backend != "cpu":
        raise TypeError(f"{plan.kernel.name}, the kernel for {call.problem.dtype}, takes no prepared b")
    assert isinstance(call.b, np.ndarray)
    return Prepared(call.b, plan)
