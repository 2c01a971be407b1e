"""The public functions gemm, matmul, plan and explain."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from numpy.typing import DTypeLike

from gemm import execute
from gemm.catalog import Kernel
from gemm.core.errors import KernelFailed
from gemm.core.plan import Candidate, Plan, Split
from gemm.core.problem import DeviceView, Problem
from gemm.frontend import interop, plan_cache
from gemm.frontend.arguments import Given, Options, Scalar
from gemm.frontend.call import Call, normalise
from gemm.select import background, candidates, choice


@plan_cache.quick
def gemm(
    a: Any, b: Any, c: Any = None, *, alpha: Scalar = 1.0, beta: Scalar = 0.0,
    trans_a: bool | str = False, trans_b: bool | str = False, out: Any = None, dtype: DTypeLike | None = None,
    precision: str = "highest", reproducible: bool = False, backend: str = "auto", kernel: str | None = None,
    bias: Any = None, activation: str | None = None,
) -> Any:  # fmt: skip
    """activation(alpha · op(a) · op(b) + beta · c + bias), computed on the device with the least predicted time.

    Operands are NumPy arrays, array-likes, host arrays of other libraries, pyopencl Arrays or CUDA arrays (CuPy,
    PyTorch, `__cuda_array_interface__`, DLPack). All operands are on the host, or all are on one device. Their strides
    are arbitrary. If an operand is a dask array, the result is a dask array: `gemm.dask.gemm`.

    A product of device arrays is enqueued, and the call returns before the result is ready. A product of pyopencl
    Arrays is enqueued on the queue of out (without out, on the queue of a), after all events of the operands. The
    result carries the product's event.

    Args:
        a: (..., m, k) array, or (..., k, m) with trans_a. A vector (k,) is a single row, and the result has no row
            axis.
        b: (..., k, n) array, or (..., n, k) with trans_b. A vector (k,) is a single column, and the result has no
            column axis. Leading axes of a and b are batch axes and broadcast as in np.matmul. b may also be a matrix
            packed by `prepare`.
        c: array that broadcasts to the shape of the result. gemm reads c only if beta != 0, and writes to c only if c
            is `out`.
        alpha, beta: scalars, rounded to the result's dtype. With alpha = 0, gemm does not read a and b.
        trans_a, trans_b: False or "N": as given. True or "T": the last two axes are exchanged. "C": the last two axes
            are exchanged and the elements are conjugated.
        out: array that receives the result; it has exactly the result's shape and may overlap a, b and c. Default: a
            new array.
        dtype: the dtype of the arithmetic and of the result. Default: NumPy's promotion of the operands' dtypes, in
            which fp8 operands (float8_e4m3fn and float8_e5m2 of ml_dtypes or PyTorch) count as bfloat16. A result is
            never fp8.
        precision: the error bound of each element. u is the dtype's unit roundoff; for float16 and bfloat16, u is
            float32's, 2⁻²⁴, and the result is rounded once.
            "highest": the error is at most (k + 2)·u·(|alpha|·|a|·|b| + |beta·c|).
            "high" also allows bfloat16 instructions that treat products and sums below the smallest normal float32 as
            zero. For float32 on CUDA, it also allows sums of several products of narrower numbers on tensor cores. The
            bound then has (k + 48)·u, and elements below 2⁻¹⁷ times the largest element of their row of a (column of b)
            may lose 2⁻³⁹ of that largest element.
            "medium" also allows three kinds of arithmetic, with other factors in place of (k + 2)·u: TF32 for float32
            on CUDA, 2⁻¹⁰ + (k + 2)·2⁻²²; the tensor cores' own sums of fp8, 2⁻⁵ + (k + 2)·2⁻²⁴; and sums of float16 in
            float16, u = 2⁻¹¹, while no sum exceeds 65504.
        reproducible: True: the result has the same bits on every device. Each element is one chain of fused
            multiply-adds in the order of k.
        backend: "auto"; a backend "cpu", "opencl", "cuda" or "numpy"; a target such as "neon" or "adreno"; or a device
            such as "opencl:1". Arrays on a device are always multiplied on that device.
            "hybrid": the CPU and the fastest other device share a large product of host arrays.
            "cuda:all": all GPUs share the product.
            With "hybrid" and "cuda:all", each device computes a rectangle of the result, in proportion to its predicted
            rate. One device computes the whole result where more devices would not save time. Except with
            reproducible=True, devices may round elements differently.
        kernel: the name of one kernel (`gemm.kernels()`), for tests and comparisons.
        bias: (n,) or (1, n): added to each row of the result. (m, 1), or (m,) where b is a vector: added to each
            column. The bias is rounded to the result's dtype and is the same for all products of a batch.
        activation: None; "relu": max(x, 0); "gelu": x·Φ(x), computed with the error function; "gelu_tanh": the
            approximation of gelu with tanh. Results must be real. CUDA kernels apply bias and activation in their
            epilogue. For other kernels, gemm applies them in a separate pass over the result, in host memory only. Each
            step is rounded to the result's dtype. For float16 and bfloat16 results, the steps are rounded to float32
            and the result is rounded once, at the end.

    Returns:
        `out`, or a new array of the operands' library on the operands' device.

    Raises:
        ValueError, TypeError: an argument is wrong. The message names the argument, and nothing was written.
        BackendUnavailable: the backend, device or kernel that was named cannot run here.
        MemoryError: no device had enough memory for the product.
    """
    key = (
        trans_a, trans_b, dtype, precision, reproducible, backend, kernel, activation,
        trans_a.__class__, trans_b.__class__,
    )  # fmt: skip
    since, operands = plan_cache.since(), (a, b, c, out, bias, alpha, beta)
    plan_cache.settle()
    options, given = Options._make(key), Given._make(operands)
    cache = plan_cache.plan_cache(options, plan_cache.memos)
    if cache is not None and (result := cache.devices.run(given)) is not None:
        return result
    if made_by := interop.maker("product", a.__class__, b.__class__, c.__class__, bias.__class__):
        return made_by(given, options)
    call = normalise(given, options)
    if not call.out.size:
        candidates.check_names(backend, kernel)
        return call.finish()
    chosen = execute.run(
        call.problem, backend, kernel, (call.a, call.b, call.c, call.out, call.alpha, call.beta, call.bias)
    )
    if chosen is not None and cache is not None:
        merged = chosen.kernel.backend != "numpy"  # NumPy's bits may differ between a stack and single products
        cache.learn_product(since, execute.launcher(chosen), call, given, merged=merged)
    return call.finish()


at_once = plan_cache.at_once(gemm)


def matmul(
    x1: Any, x2: Any, /, *, out: Any = None, dtype: DTypeLike | None = None, precision: str = "highest",
    reproducible: bool = False, backend: str = "auto", kernel: str | None = None,
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
        lies = getattr(launch, "lies", None)
        self.operands: dict[str, str] = lies(example.a, example.b, example.c, example.out) if lies else {}
        self._launch, self._plan = launch, chosen
        self._sides = chosen.sides if isinstance(chosen, Split) else (chosen,)

    kernel = property(lambda self: " + ".join(side.kernel.name for side in self._sides))
    device = property(lambda self: " + ".join(side.device.key for side in self._sides))
    seconds = property(lambda self: self._plan.seconds)
    reason = property(lambda self: self._plan.reason)

    @property
    def candidates(self) -> list[Candidate]:
        return choice.candidates(self._problem, self._options.backend, self._options.kernel, self._holder)

    def __call__(self, a: Any, b: Any, c: Any = None, *, out: Any = None, bias: Any = None) -> Any:
        """The product of these operands. Raises ValueError if the operands make a problem that differs from the plan's
        problem.
        """
        given = a, b, c, out, bias, *self._scales
        since = plan_cache.since()
        result = self._cache.run(*given)
        if result is None:
            plan_cache.settle()
            result = self._cache.devices.run(given)
        return self._delivered(since, Given._make(given)) if result is None else result

    def _delivered(self, since: object, given: Given) -> Any:
        """Compute a product that the plan cache does not know, and add the product to the plan cache."""
        call = normalise(given, self._options)
        if call.problem != self._problem and replace(call.problem, places=self._problem.places) != self._problem:
            raise ValueError(f"this plan is for {self._problem}, the operands make {call.problem}; make a new plan")
        delivered = execute.run(
            call.problem, self._options.backend, self._options.kernel,
            (call.a, call.b, call.c, call.out, call.alpha, call.beta, call.bias), first=(self._plan, self._launch),
        )  # fmt: skip
        if delivered is None:  # a later call may run on another device
            return call.finish()
        if delivered is not self._plan:
            with suppress(KernelFailed):  # the result is complete; the next product reports the failure
                self._take(delivered, call)
        self._cache.learn_product(since, self._launch, call, given)
        return call.finish()

    def _repr_html_(self) -> str:
        """The text of `explain` as HTML, for notebooks."""
        import html

        return f"<pre>{html.escape(describe(self))}</pre>"

    def __repr__(self) -> str:
        return f"<GemmPlan {self.kernel} on {self.device}, about {self.seconds:.3g} s: {self.reason}>"


def plan(
    a: Any, b: Any, c: Any = None, *, alpha: Scalar = 1.0, beta: Scalar = 0.0,
    trans_a: bool | str = False, trans_b: bool | str = False, out: Any = None, dtype: DTypeLike | None = None,
    precision: str = "highest", reproducible: bool = False, backend: str = "auto", kernel: str | None = None,
    bias: Any = None, activation: str | None = None,
) -> GemmPlan:  # fmt: skip
    """A `GemmPlan` for repeated products like this one; computes no product. Arguments and errors are as for `gemm`."""
    refuse = interop.maker("plan", a.__class__, b.__class__)
    if refuse is not None:
        refuse()
    options = Options(
        trans_a, trans_b, dtype, precision, reproducible, backend, kernel, activation,
        trans_a.__class__, trans_b.__class__,
    )  # fmt: skip
    call = normalise(Given(a, b, c, out, bias, alpha, beta), options)
    if not call.out.size:
        raise ValueError(f"the result of shape {call.out.shape} has no elements; there is nothing to plan")
    return GemmPlan(options, (alpha, beta), call)


def explain(a: Any, b: Any, c: Any = None, **options: Any) -> None:
    """Print the kernel that `gemm` would choose for these arguments, the predicted times of all candidates, and the
    reason. Arguments and errors are those of `gemm`.
    """
    with background.waiting():
        chosen = plan(a, b, c, **options)
    print(describe(chosen))


def describe(chosen: GemmPlan) -> str:
    """The text that `explain` prints for a plan."""
    problem: Problem = chosen._problem
    batch = f"{problem.batch} × " if problem.batch > 1 else ""
    lines = [f"{batch}{problem.m} × {problem.n} × {problem.k} {problem.dtype}, operands on {problem.device}"]

    def fits(c: Candidate) -> bool:
        return c.kernel.multiplies(problem.dtype, problem.inputs)

    used = {(side.kernel.name, side.device.key) for side in chosen._sides}
    able = sorted((c for c in chosen.candidates if c.seconds is not None), key=lambda c: c.seconds or 0)
    for c in able:
        terms = f"launch {_time(c.launch)} + transfer {_time(c.transfer)} + compute {_time(c.compute)}"
        mark = "→" if (c.kernel.name, c.device.key) in used else " "
        corrected = [f"× {c.factor:.2f} as such products were measured"] if c.factor != 1 else []
        tuned = ", ".join([c.basis, *corrected, *([f"{_parameters(c.kernel)} {c.origin}"] if c.origin else [])])
        lines.append(f"{mark} {c.kernel.name:34} {c.device.key:9} {_time(c.seconds or 0)}  = {terms} ({tuned})")
    lines += [
        f"  {c.kernel.name:34} {c.device.key:9} no: {c.why_not}" for c in chosen.candidates if c.why_not and fits(c)
    ]
    if chosen.operands:
        lines.append(f"operands: {', '.join(f'{name} is {how}' for name, how in chosen.operands.items())}")
    return "\n".join([*lines, f"chosen: {chosen.kernel} on {chosen.device}: {chosen.reason}"])


def _parameters(kernel: Kernel) -> str:
    """The tunable parameters of a kernel with their values, as text."""
    return " ".join(f"{name}={kernel.params[name]}" for name in kernel.space)


def _time(seconds: float) -> str:
    for unit, scale in (("s ", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:7.2f} {unit}"
    return f"{seconds / 1e-6:7.2f} µs"
