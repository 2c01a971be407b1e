"""The public functions gemm, matmul, plan and explain."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, NoReturn, overload

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
    Unpack,
    normalise,
)
from gemm.select import candidates, choice, probe, verification, worker


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
        a, b: (..., m, k) and (..., k, n) arrays. b may also be a matrix packed by `prepare`. A vector (k,) counts as
            one row (a) or as one column (b); the result then lacks this axis. Leading axes broadcast as in np.matmul.
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
        MemoryError: no device had enough memory. RuntimeError: `out` is c, and a failed kernel may have changed c.
    """
    named = trans_a, trans_b, dtype, precision, reproducible, backend, kernel, activation
    classes = type(trans_a), type(trans_b), type(reproducible)
    return _product(Given(a, b, c, out, bias, alpha, beta), Options(*named, *classes))


def _product(given: Given, options: Options) -> Any:
    """`gemm` for arguments that front.c has not found in a plan cache."""
    began, cache = plan_cache.begin(options, plan_cache.memos)
    a, b, c, _, bias, *_ = given
    repeats = cache.devices if cache is not None and a.__class__ in cache.devices.signatures else None
    if repeats and (result := repeats.run(given)) is not None:
        return result
    if made_by := interop.maker("product", a.__class__, b.__class__, c.__class__, bias.__class__):
        return made_by(given, options)
    call = normalise(given, options)
    if not call.out.size:
        candidates.check_names(options.backend, options.kernel)
        return call.finish()
    chosen = call.run()
    if chosen is not None and cache is not None:
        # gemm.batching may compute products as one stack. NumPy's bits may differ between a stack and single products.
        merged = chosen.kernel.backend != "numpy"
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

    A plan makes the choice and checks the options once, shows the kernel and the predicted time, and refuses operands
    that make a different problem. A plan does not make the product faster: `gemm` finds its own plan of a repeated
    product without Python code.

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
        self._options, self._problem, self._holder = options, example.problem, holder
        self._alpha, self._beta = scales
        asked = options.backend, options.kernel
        execute.deliver(example.problem, *asked, holder, lambda chosen: self._take(chosen, example))
        self._cache = plan_cache.PlanCache(4)
        self._run = self._cache.run  # looking up `_cache` and `run` in each call takes 5 % of a small product

    def _take(self, chosen: Plan, example: Call) -> None:
        """Use the plan `chosen` for products like `example`. Raises KernelFailed."""
        launch = execute.launcher(chosen)
        access = getattr(launch, "access", None)
        self.operands: dict[str, str] = access(example.a, example.b, example.c, example.out) if access else {}
        describe = getattr(launch, "blocking", None)
        self._blocking: str = describe(example.a, example.b, example.c, example.out) if describe else ""
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
        result = self._run(a, b, c, out, bias, self._alpha, self._beta)
        if result is not None:
            return result
        given, since = Given(a, b, c, out, bias, self._alpha, self._beta), plan_cache.since()
        result = self._cache.repeat_on_device(given)
        return self._delivered(since, given) if result is None else result

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

        able, excluded = _ranked(self)
        table = [_COLUMNS, *(_cells(self, c) for c in able)]
        table += [(c.kernel.name, c.device.key, _why_not(c), "", "", "", "") for c in excluded]
        cell = '<td style="text-align: left">{}</td>'.format
        rows = "".join(f"<tr>{''.join(cell(escape(text.strip())) for text in row)}</tr>" for row in table)
        first, *last = map(escape, [*_summary(self), *_remarks(self, able)])
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
        from gemm.core import text

        return f"<GemmPlan {self.kernel} on {self.device}, about {text.seconds(self.seconds)}: {self.reason}>"


def plan(
    a: Any, b: Any, c: Any = None, *, alpha: Scalar = 1.0, beta: Scalar = 0.0,
    trans_a: Trans = False, trans_b: Trans = False, out: Any = None, dtype: DTypeLike | None = None,
    precision: Precision = "highest", reproducible: bool = False, backend: Backend = "auto", kernel: str | None = None,
    bias: Any = None, activation: Activation | None = None,
) -> GemmPlan:  # fmt: skip
    """Return a `GemmPlan` for repeated products like this one. No product is computed.

    Arguments and errors are as for `gemm`.
    """
    if refuse := interop.maker("plan", a.__class__, b.__class__):
        refuse()
    options = Options(trans_a, trans_b, dtype, precision, reproducible, backend, kernel, activation)
    call = normalise(Given(a, b, c, out, bias, alpha, beta), options)
    if not call.out.size:
        raise ValueError(f"the result of shape {call.out.shape} has no elements; there is nothing to plan")
    return GemmPlan(options, (alpha, beta), call)


def explain(
    a: Any, b: Any, c: Any = None, *, out: Any = None, dtype: DTypeLike | None = None, **options: Unpack[Keywords]
) -> None:
    """Print the kernel that `gemm` would choose for these arguments, the predicted times of the fastest candidates, and
    the reason. Arguments and errors are those of `gemm`.
    """
    with worker.waiting():
        chosen = plan(a, b, c, out=out, dtype=dtype, **options)
    show(chosen)


MOST, LEFT_OUT = 10, 8
"""How many candidates, and how many reasons why others cannot run, fit on a screen."""
_COLUMNS = "kernel", "device", "predicted", "launch", "transfer", "compute", "basis"


def show(chosen: GemmPlan, *, every: bool = False) -> None:
    """Print a plan, as wide as the terminal permits: its candidates, why other kernels cannot run, and the choice.

    Args:
        every: True: print all candidates and all reasons. False: print as many as fit on a screen.
    """
    from gemm.core import text  # imported here because a product needs no text

    able, excluded = _ranked(chosen)
    shown = [c for at, c in enumerate(able) if every or at < MOST or _used(chosen, c)]
    title, *choice = _summary(chosen)
    rows = [_cells(chosen, c) for c in shown]
    text.table(_COLUMNS, rows, numbers=range(2, 6), title=title, spare=("basis", "launch", "transfer", "compute"))
    print()
    if len(shown) < len(able):
        print(f"Not listed: {text.counted(len(able) - len(shown), 'further candidate')}.")
    text.say(*_remarks(chosen, shown))
    if every:
        text.say("Not possible:", *(f"  {c.kernel.name} on {c.device.key}: {_why_not(c)}" for c in excluded))
    else:
        reasons = [text.shortened(reason, 2) for reason in _reasons(excluded)]
        text.bullets("Not possible (all candidates: gemm explain --all):", reasons)
    text.say(*choice)


def _summary(chosen: GemmPlan) -> list[str]:
    """Lines about a plan: the problem, what the device does with the operands, the sizes of blocks, and the choice.

    The lines about operands and blocks are absent if nothing is known about them.
    """
    problem: Problem = chosen._problem
    batch = f"{problem.batch} × " if problem.batch > 1 else ""
    lines = [f"{batch}{problem.m} × {problem.n} × {problem.k} {problem.dtype}, operands on {problem.device}"]
    if chosen.operands:
        lines.append(f"operands: {', '.join(f'{name} is {how}' for name, how in chosen.operands.items())}.")
    if chosen._blocking:
        lines.append(f"blocks: {chosen._blocking}.")
    return [*lines, f"chosen: {chosen.kernel} on {chosen.device}: {chosen.reason}."]


def _ranked(chosen: GemmPlan) -> tuple[list[Candidate], list[Candidate]]:
    """Return (able, excluded): the candidates of a plan that can run, and those that cannot run.

    `able` is in the order in which `auto` prefers the candidates, with the NumPy reference at the end. `excluded` has
    only kernels for the types of the plan, and begins with kernels that failed in this process.
    """
    found, problem = chosen.candidates, chosen._problem
    able = [c for c in found if c.seconds is not None]
    lead = {True: candidates.LEAD, False: 1.0}
    able.sort(key=lambda c: (c.kernel.dtype == "*", (c.seconds or 0.0) * lead[c.kernel.third_party]))
    excluded = [c for c in found if c.why_not and c.kernel.multiplies(problem.dtype, problem.inputs)]
    excluded.sort(key=lambda c: not verification.failed(c.kernel, c.device))
    return able, excluded


def _used(chosen: GemmPlan, c: Candidate) -> bool:
    return any((c.kernel.name, c.device.key) == (side.kernel.name, side.device.key) for side in chosen._sides)


def _cells(chosen: GemmPlan, c: Candidate) -> list[str]:
    """The texts of a candidate in the columns _COLUMNS. An arrow marks a kernel that the plan uses."""
    from gemm.core import text

    basis = [c.basis]
    if c.factor != 1:
        basis.append(f"× {c.factor:.2f} as such products were measured")
    if c.origin:
        basis.append(" ".join([*(f"{name}={c.kernel.params[name]}" for name in c.kernel.space), c.origin]))
    times = map(text.seconds, (c.seconds, c.launch, c.transfer, c.compute))
    return [f"{'→' if _used(chosen, c) else ' '} {c.kernel.name}", c.device.key, *times, ", ".join(basis)]


def _remarks(chosen: GemmPlan, able: list[Candidate]) -> list[str]:
    """A sentence for each rule, other than the least predicted time, that decides between these candidates.

    If the predictions are not reliable, the last sentence says why.
    """
    found = []
    if len(able) > 1 and able[-1].kernel.dtype == "*":
        found.append(f"{able[-1].kernel.name} is used only if no other kernel can compute the product.")
    if any(c.kernel.third_party and (c.seconds or 0.0) < chosen.seconds for c in able):
        found.append(f"NumPy's BLAS is chosen only if its predicted time × {candidates.LEAD:g} is the least.")
    if (disturbance := probe.disturbance()) and any(c.basis == "measured" for c in able):
        found.append(disturbance)
    return found


def _why_not(c: Candidate) -> str:
    return c.why_not.removeprefix(f"{c.device.key}: ")


def _reasons(excluded: list[Candidate]) -> list[str]:
    """At most LEFT_OUT lines that say why candidates cannot run.

    Kernels that are excluded on one device for the same reason share a line, which gives their number.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for c in excluded:
        groups.setdefault((c.device.key, _why_not(c).split(" (")[0].split(", which")[0]), []).append(c.kernel.name)
    return [
        f"{names[0] if len(names) == 1 else f'{len(names)} kernels'} on {key}: {why}"
        for (key, why), names in list(groups.items())[:LEFT_OUT]
    ]
