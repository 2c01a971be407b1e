"""gemm, matmul, plan and explain."""

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
from gemm.select import background


@plan_cache.quick
def gemm(
    a: Any, b: Any, c: Any = None, *, alpha: Scalar = 1.0, beta: Scalar = 0.0,
    trans_a: bool | str = False, trans_b: bool | str = False, out: Any = None, dtype: DTypeLike | None = None,
    precision: str = "highest", reproducible: bool = False, backend: str = "auto", kernel: str | None = None,
    bias: Any = None, activation: str | None = None,
) -> Any:  # fmt: skip
    """activation(alpha · op(a) · op(b) + beta · c + bias), computed by the best device of the machine.

    Args:
        a: (..., m, k) array, or (..., k, m) with trans_a; (k,) is a row that is dropped from the result.
        b: (..., k, n) array, or (..., n, k) with trans_b; (k,) is a column that is dropped from the result.
            Leading axes are batches and broadcast as in np.matmul. Any strides. NumPy arrays, array-likes, host arrays
            of other libraries, pyopencl Arrays and CUDA arrays (CuPy, PyTorch, `__cuda_array_interface__`, DLPack), all
            in one place; or what `prepare` made of b. Of dask arrays the result is one, too: `gemm.dask.gemm`. Products
            of device arrays are enqueued, not waited for: of pyopencl Arrays on the queue of out, else of a, behind all
            of their events; the result has the product's.
        c: array that broadcasts to the result; read only if beta != 0, written only if it is `out`.
        alpha, beta: scalars, rounded to the result's dtype. With alpha = 0, a and b are not read.
        trans_a, trans_b: False or "N"; True or "T": last two axes exchanged; "C": and conjugated.
        out: where the result goes, of exactly its shape; may overlap a, b and c. Default: a new array.
        dtype: of arithmetic and result; default: NumPy's promotion of the operands' dtypes. fp8 operands (ml_dtypes'
            or PyTorch's float8_e4m3fn and float8_e5m2) count as bfloat16 there; no result is fp8.
        precision: "highest": every element within (k + 2)·u·(|alpha|·|a|·|b| + |beta·c|), u the dtype's unit roundoff;
            of float16 and bfloat16 u is float32's, 2⁻²⁴, and the result is rounded once. "high" allows besides
            bfloat16 instructions by which products and sums below the smallest normal float32 count as zero; and
            float32 by several products of narrower numbers on CUDA's tensor cores: within (k + 48)·u, where elements
            below 2⁻¹⁷ of the largest of their row of a (column of b) may lose 2⁻³⁹ of that. "medium" allows besides
            TF32 for float32 on CUDA, 2⁻¹⁰ + (k + 2)·2⁻²² for (k + 2)·u; the tensor cores' own sums of fp8, 2⁻⁵ +
            (k + 2)·2⁻²⁴; and sums of float16 in float16, u = 2⁻¹¹, as long as none exceeds 65504.
        reproducible: the same bits on every device: each element is the chain of fused multiply-adds over k in order.
        backend: "auto"; "cpu", "opencl", "cuda", "numpy"; a target such as "neon" or "adreno"; or a device, "opencl:1".
            "hybrid": large products of host arrays by the CPU and the fastest other device at once. "cuda:all": by all
            GPUs at once. Each device computes a rectangle of the result; one computes all of it where more gain
            nothing. The shares follow predicted times. Except with reproducible=True, devices may round elements
            differently. Arrays on a device are multiplied there.
        kernel: the name of one kernel (`gemm.kernels()`), for tests and comparisons.
        bias: (n,) or (1, n): added to each row of the result; (m, 1): to each column ((m,) where b is a column). It is
            rounded to the result's dtype and the same for all of a batch.
        activation: None; "relu", max(x, 0); "gelu", x·Φ(x) by the error function; "gelu_tanh", its approximation by
            tanh. Of real results. CUDA's kernels apply bias and activation as they store, for others they are a pass
            over the result, in host memory only. Each step is rounded to the result's dtype; of float16 and bfloat16
            results it is float32's, and they are rounded once, at the end.

    Returns:
        `out`, or a new array of the operands' library on their device.

    Raises:
        ValueError, TypeError: an argument is wrong; the message names it. Nothing was written.
        BackendUnavailable: what was asked for by name cannot run here.
        MemoryError: no device had room for the product.
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
        execute.check_names(backend, kernel)
        return call.finish()
    chosen = execute.run(
        call.problem, backend, kernel, call.a, call.b, call.c, call.out, call.alpha, call.beta, call.bias
    )
    if chosen is not None and cache is not None:
        merged = chosen.kernel.backend != "numpy"  # whose bits are not a stack's
        cache.learn_product(since, execute.launcher(chosen), call, given, merged=merged)
    return call.finish()


at_once = plan_cache.at_once(gemm)


def matmul(
    x1: Any, x2: Any, /, *, out: Any = None, dtype: DTypeLike | None = None, precision: str = "highest",
    reproducible: bool = False, backend: str = "auto", kernel: str | None = None,
) -> Any:  # fmt: skip
    """The matrix product of x1 and x2 with np.matmul's rules for shapes; see `gemm` for the arguments."""
    return gemm(
        x1, x2, out=out, dtype=dtype, precision=precision, reproducible=reproducible, backend=backend, kernel=kernel
    )


class GemmPlan:
    """A product whose checks and choice are done: call it on operands like those it was made for.

    Attributes:
        kernel, device: names of what will run, joined by " + " where several devices do. seconds: its predicted time.
        reason: why it was chosen.
        candidates: all that were weighed, with their predicted times or why they cannot run.
        operands: {name: what a device does with it}, "used in place", "packed on the device" or "copied"; empty for
            kernels that compute in host memory.
    """

    def __init__(self, options: Options, scales: tuple[Scalar, Scalar], example: Call) -> None:
        held_by = example.out.device if isinstance(example.out, DeviceView) else None
        self._options, self._scales, self._problem, self._held_by = options, scales, example.problem, held_by
        asked = options.backend, options.kernel
        execute.deliver(example.problem, *asked, held_by, lambda chosen: self._take(chosen, example))
        self._cache = plan_cache.PlanCache(4)

    def _take(self, chosen: Plan, example: Call) -> None:
        """Make `chosen` the plan, for products like `example`. Raises KernelFailed."""
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
        return execute.candidates(self._problem, self._options.backend, self._options.kernel, self._held_by)

    def __call__(self, a: Any, b: Any, c: Any = None, *, out: Any = None, bias: Any = None) -> Any:
        """The product of these operands. Raises ValueError if they make another problem than the plan's."""
        given = a, b, c, out, bias, *self._scales
        since = plan_cache.since()
        result = self._cache.run(*given)
        if result is None:
            plan_cache.settle()
            result = self._cache.devices.run(given)
        return self._delivered(since, Given._make(given)) if result is None else result

    def _delivered(self, since: object, given: Given) -> Any:
        """The product of operands that were not known; it is learned."""
        call = normalise(given, self._options)
        if call.problem != self._problem and replace(call.problem, places=self._problem.places) != self._problem:
            raise ValueError(f"this plan is for {self._problem}, the operands make {call.problem}; make a new plan")
        delivered = execute.run(
            call.problem, self._options.backend, self._options.kernel, call.a, call.b, call.c, call.out, call.alpha,
            call.beta, call.bias, first=(self._plan, self._launch),
        )  # fmt: skip
        if delivered is None:  # the next one may be given to another
            return call.finish()
        if delivered is not self._plan:
            with suppress(KernelFailed):  # this product is delivered; what is wrong shows in the next one
                self._take(delivered, call)
        self._cache.learn_product(since, self._launch, call, given)
        return call.finish()

    def _repr_html_(self) -> str:
        """For notebooks: the candidates, as `explain` prints them."""
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
    """A handle for repeated products like this one; arguments and errors as for `gemm`. Computes nothing yet."""
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
    """Print which kernel `gemm` would choose for these arguments, the candidates' predicted times, and why."""
    with background.waiting():
        chosen = plan(a, b, c, **options)
    print(describe(chosen))


def describe(chosen: GemmPlan) -> str:
    """The text that `explain` prints."""
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
    """The values of the parameters that can be tuned."""
    return " ".join(f"{name}={kernel.params[name]}" for name in kernel.space)


def _time(seconds: float) -> str:
    for unit, scale in (("s ", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:7.2f} {unit}"
    return f"{seconds / 1e-6:7.2f} µs"
