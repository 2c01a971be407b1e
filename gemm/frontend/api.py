"""The public functions gemm, matmul, plan and explain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NoReturn, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gemm import execute
from gemm.catalog import Backend
from gemm.core.errors import KernelFailed
from gemm.core.problem import Activation, Candidate, DeviceView, Plan, Precision, Problem, Split
from gemm.frontend import interop, plan_cache
from gemm.frontend.arguments import (
    Arithmetic,
    Call,
    Given,
    Host,
    Keywords,
    Options,
    Packed,
    Scalar,
    Trans,
    normalise,
)
from gemm.select import candidates, choice, worker

if TYPE_CHECKING:
    from typing_extensions import Unpack


@overload
def gemm(
    a: Host, b: Host | Packed, c: Host | None = None, *, out: np.ndarray | None = None,
    dtype: DTypeLike | None = None, **options: Unpack[Keywords],
) -> NDArray[Any]: ...  # fmt: skip
@overload
def gemm(
    a: Any, b: Any, c: Any = None, *, out: Any = None, dtype: DTypeLike | None = None, **options: Unpack[Keywords]
) -> Any: ...
@plan_cache.front
def gemm(
    a: Any, b: Any, c: Any = None, *, alpha: Scalar = 1.0, beta: Scalar = 0.0,
    trans_a: Trans = False, trans_b: Trans = False, out: Any = None, dtype: DTypeLike | None = None,
    precision: Precision = "highest", reproducible: bool = False, backend: Backend = "auto", kernel: str | None = None,
    bias: Any = None, activation: Activation | None = None,
) -> Any:  # fmt: skip
    """activation(alpha · op(a) · op(b) + beta · c + bias), computed on the device with the least predicted time.

    Operands are array-likes, host arrays of any library, pyopencl Arrays or CUDA arrays (`__cuda_array_interface__`,
    DLPack), all on the host or all on one device, with any strides. A product of device arrays is enqueued (pyopencl:
    on the queue of out, or on the queue of a if out is None). With dask arrays, the result is a dask array: see
    `gemm.dask.gemm`.

    Args:
        a, b: (..., m, k) and (..., k, n) arrays, or b a matrix packed by `prepare`. A vector (k,) counts as one row (a)
            or one column (b), which the result lacks. Leading axes broadcast as in np.matmul.
        c: array that broadcasts to the shape of the result. Read only if beta != 0, written only if it is `out`.
        alpha, beta: scalars, rounded to the result's dtype. With alpha = 0, gemm does not read a and b.
        trans_a, trans_b: False or "N": as given. True or "T": last two axes exchanged. "C": also conjugated.
        out: array of exactly the result's shape for the result, which may overlap a, b and c. Default: a new array.
        dtype: of the arithmetic and the result. Default: NumPy's promotion, in which fp8 counts as bfloat16.
        precision: "highest", "high" or "medium": the error bound of each element (docs/contract.md).
        reproducible: True: the same bits on every device, by one chain of fused multiply-adds in the order of k.
        backend: "auto", "cpu", "opencl", "cuda", "numpy"; a target such as "neon"; a device such as "opencl:1";
            "hybrid": the CPU and the fastest other device share the product; "cuda:all": all GPUs share it.
        kernel: the name of one kernel (`gemm.kernels()`), for tests and comparisons.
        bias: (n,) or (1, n), added to each row; (m, 1), or (m,) where b is a vector, added to each column.
        activation: for real results. "relu": max(x, 0); "gelu": x·Φ(x); "gelu_tanh": the tanh approximation of gelu.

    Returns:
        `out`, or a new array of the operands' library on the operands' device.

    Raises:
        ValueError, TypeError: an argument is wrong. The message names the argument, and nothing was written.
        BackendUnavailable: the backend, device or kernel that was named cannot run here.
        MemoryError: no device had enough memory for the product.
    """
    named = trans_a, trans_b, dtype, precision, reproducible, backend, kernel, activation
    classes = type(trans_a), type(trans_b), type(reproducible)
    return _product(Given(a, b, c, out, bias, alpha, beta), Options(*named, *classes))


def _product(given: Given, options: Options) -> Any:
    """`gemm` for arguments that front.c has not found in a plan cache."""
    began, cache = plan_cache.begin(options, plan_cache.memos)
    a, b, c, _, bias, *_ = given
    if cache is not None and type(a) is not np.ndarray and (result := cache.devices.run(given)) is not None:
        return result
    if made_by := interop.maker("product", a.__class__, b.__class__, c.__class__, bias.__class__):
        return made_by(given, options)
    call = normalise(given, options)
    if not call.out.size:
        candidates.check_names(options.backend, options.kernel)
        return call.finish()
    chosen = call.run()
    if chosen is not None and cache is not None:
        merged = chosen.kernel.backend != "numpy"  # NumPy's bits may differ between a stack and single products
        cache.learn_product(began, execute.launcher(chosen), call, given, merged=merged)
    return call.finish()


at_once = plan_cache.at_once(gemm)


@overload
def matmul(
    x1: Host, x2: Host | Packed, /, *, out: np.ndarray | None = None, dtype: DTypeLike | None = None,
    **options: Unpack[Arithmetic],
) -> NDArray[Any]: ...  # fmt: skip
@overload
def matmul(
    x1: Any, x2: Any, /, *, out: Any = None, dtype: DTypeLike | None = None, **options: Unpack[Arithmetic]
) -> Any: ...
def matmul(
    x1: Any, x2: Any, /, *, out: Any = None, dtype: DTypeLike | None = None, precision: Precision = "highest",
    reproducible: bool = False, backend: Backend = "auto", kernel: str | None = None,
) -> Any:  # fmt: skip
    """The matrix product of x1 and x2, with the shape rules of np.matmul. `gemm` documents the arguments, results and
    errors.
    """
    return gemm(
        x1, x2, out=out, dtype=dtype, precision=precision, reproducible=reproducible, backend=backend, kernel=kernel
    )


class GemmPlan:
    """A product with checked arguments and a chosen kernel. Call the plan with operands like those of `gemm.plan`.

    Attributes:
        kernel, device: the names of the kernel and the device, joined by " + " if several devices share the product.
        seconds: the predicted time of the product, in seconds.
        reason: why this kernel was chosen.
        candidates: all candidates, each with its predicted time or the reason why it cannot run.
        operands: {operand's name: what the device does with it}: "used in place", "packed on the device" or "copied".
            Empty for kernels that compute in host memory.
    """

    def __init__(self, options: Options, scales: tuple[Scalar, Scalar], example: Call) -> None:
        holder = example.out.device if isinstance(example.out, DeviceView) else None
        self._options, self._scales, self._problem, self._holder = options, scales, example.problem, holder
        asked = options.backend, options.kernel
        execute.deliver(example.problem, *asked, holder, lambda chosen: self._take(chosen, example))
        self._cache = plan_cache.PlanCache(4)

    def _take(self, chosen: Plan, example: Call) -> None:
        """Use the plan `chosen` for products like `example`. Raises KernelFailed."""
        launch = execute.launcher(chosen)
        access = getattr(launch, "access", None)
        self.operands: dict[str, str] = access(example.a, example.b, example.c, example.out) if access else {}
        self._launch, self._plan = launch, chosen
        self._sides = chosen.sides if isinstance(chosen, Split) else (chosen,)

    @property
    def kernel(self) -> str:
        return " + ".join(side.kernel.name for side in self._sides)

    @property
    def device(self) -> str:
        return " + ".join(side.device.key for side in self._sides)

    @property
    def seconds(self) -> float:
        return self._plan.seconds

    @property
    def reason(self) -> str:
        return self._plan.reason

    @property
    def candidates(self) -> list[Candidate]:
        return choice.candidates(self._problem, self._options.backend, self._options.kernel, self._holder)

    @overload
    def __call__(
        self, a: Host, b: Host, c: Host | None = None, *, out: np.ndarray | None = None, bias: Any = None
    ) -> NDArray[Any]: ...
    @overload
    def __call__(self, a: Any, b: Any, c: Any = None, *, out: Any = None, bias: Any = None) -> Any: ...
    def __call__(self, a: Any, b: Any, c: Any = None, *, out: Any = None, bias: Any = None) -> Any:
        """The product of these operands. Raises ValueError if the operands make a problem that differs from the plan's
        problem.
        """
        given = a, b, c, out, bias, *self._scales
        since = plan_cache.since()
        result = self._cache.run(*given)  # PlanCache.repeat written out: calling it takes 7 % of a small product
        if result is None:
            result = self._cache.repeat_on_device(given)
        return self._delivered(since, Given._make(given)) if result is None else result

    def _delivered(self, since: object, given: Given) -> Any:
        """Compute a product that the plan cache does not know, and add the product to the plan cache."""
        call = normalise(given, self._options)
        if call.problem != self._problem and replace(call.problem, places=self._problem.places) != self._problem:
            pairs = ((f.name, getattr(self._problem, f.name), getattr(call.problem, f.name)) for f in fields(Problem))
            differences = [
                f"{name}={old!r}, not {new!r}" for name, old, new in pairs if name != "places" and old != new
            ]
            raise ValueError(f"this plan is for products with {'; '.join(differences)}: make a new plan")
        delivered = call.run((self._plan, self._launch))
        if delivered is None:  # the next product may need another plan
            return call.finish()
        if delivered is not self._plan:
            with suppress(KernelFailed):  # the result is complete; the next product reports the failure
                self._take(delivered, call)
        self._cache.learn_product(since, self._launch, call, given)
        return call.finish()

    def _repr_html_(self) -> str:
        """What `explain` prints, as an HTML table, for notebooks."""
        from html import escape

        table = [("", "kernel", "device", "time", "terms"), *_rows(self)]
        cell = '<td style="text-align: left">{}</td>'.format
        rows = "".join(f"<tr>{''.join(cell(escape(text.strip())) for text in row)}</tr>" for row in table)
        first, *last = map(escape, _summary(self))
        return f"<p>{first}</p><table>{rows}</table><p>{'<br>'.join(last)}</p>"

    def __copy__(self, *_: Any) -> GemmPlan:
        return self

    __deepcopy__ = __copy__

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a plan cannot be pickled: it has a kernel of this process; pickle the arguments of gemm.plan instead, and "
            "call gemm.plan where the plan is needed"
        )

    def __repr__(self) -> str:
        return f"<GemmPlan {self.kernel} on {self.device}, about {_time(self.seconds).strip()}: {self.reason}>"


def plan(
    a: Any, b: Any, c: Any = None, *, alpha: Scalar = 1.0, beta: Scalar = 0.0,
    trans_a: Trans = False, trans_b: Trans = False, out: Any = None, dtype: DTypeLike | None = None,
    precision: Precision = "highest", reproducible: bool = False, backend: Backend = "auto", kernel: str | None = None,
    bias: Any = None, activation: Activation | None = None,
) -> GemmPlan:  # fmt: skip
    """A `GemmPlan` for repeated products like this one; computes no product. Arguments and errors are as for `gemm`."""
    if refuse := interop.maker("plan", a.__class__, b.__class__):
        refuse()
    options = Options(
        trans_a, trans_b, dtype, precision, reproducible, backend, kernel, activation, type(trans_a), type(trans_b),
        type(reproducible),
    )  # fmt: skip
    call = normalise(Given(a, b, c, out, bias, alpha, beta), options)
    if not call.out.size:
        raise ValueError(f"the result of shape {call.out.shape} has no elements; there is nothing to plan")
    return GemmPlan(options, (alpha, beta), call)


def explain(
    a: Any, b: Any, c: Any = None, *, out: Any = None, dtype: DTypeLike | None = None, **options: Unpack[Keywords]
) -> None:
    """Print the kernel that `gemm` would choose for these arguments, the predicted times of all candidates, and the
    reason. Arguments and errors are those of `gemm`.
    """
    with worker.waiting():
        chosen = plan(a, b, c, out=out, dtype=dtype, **options)
    print(describe(chosen))


def describe(chosen: GemmPlan) -> str:
    """The text that `explain` prints for a plan."""
    first, *last = _summary(chosen)
    lines = [f"{mark} {kernel:34} {device:9} {time}{rest}" for mark, kernel, device, time, rest in _rows(chosen)]
    return "\n".join([first, *lines, *last])


def _summary(chosen: GemmPlan) -> list[str]:
    """The problem of a plan, what the device does with the operands (if anything), and the choice."""
    problem: Problem = chosen._problem
    batch = f"{problem.batch} × " if problem.batch > 1 else ""
    lines = [f"{batch}{problem.m} × {problem.n} × {problem.k} {problem.dtype}, operands on {problem.device}"]
    if chosen.operands:
        lines.append(f"operands: {', '.join(f'{name} is {how}' for name, how in chosen.operands.items())}")
    return [*lines, f"chosen: {chosen.kernel} on {chosen.device}: {chosen.reason}"]


def _rows(chosen: GemmPlan) -> Iterator[tuple[str, str, str, str, str]]:
    """For each candidate of a plan: "→" if it is chosen, the kernel, the device, the predicted time, and its terms.

    Kernels that cannot run come last; their time is "no: ", followed by the reason.
    """
    used = {(side.kernel.name, side.device.key) for side in chosen._sides}
    candidates, problem = chosen.candidates, chosen._problem
    for c in sorted((c for c in candidates if c.seconds is not None), key=lambda c: c.seconds or 0):
        terms = f"launch {_time(c.launch)} + transfer {_time(c.transfer)} + compute {_time(c.compute)}"
        mark = "→" if (c.kernel.name, c.device.key) in used else " "
        basis = [c.basis]
        if c.factor != 1:
            basis.append(f"× {c.factor:.2f} as such products were measured")
        if c.origin:
            basis.append(" ".join([*(f"{name}={c.kernel.params[name]}" for name in c.kernel.space), c.origin]))
        yield mark, c.kernel.name, c.device.key, _time(c.seconds or 0), f"  = {terms} ({', '.join(basis)})"
    for c in candidates:
        if c.why_not and c.kernel.multiplies(problem.dtype, problem.inputs):
            yield " ", c.kernel.name, c.device.key, "no: ", c.why_not.removeprefix(f"{c.device.key}: ")


def _time(seconds: float) -> str:
    unit, scale = ("s ", 1.0) if seconds >= 1 else ("ms", 1e-3) if seconds >= 1e-3 else ("µs", 1e-6)
    return f"{seconds / scale:7.2f} {unit}"
