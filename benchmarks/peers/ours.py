"""Ways to call this package's CPU backend, as peers: the engine's C function, a plan, gemm.gemm, packed operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import count, product
from typing import Any

import numpy as np

import gemm
from gemm.bench.peers import Loop, Peer, Unable, looped
from gemm.bench.peers.cblas import address, native

from .duel import Entry


class Call(Peer):
    """A loop over calls of this package."""

    about = "calls of gemm"

    def __init__(self, name: str, loop: Loop) -> None:
        self.name, self._loop = name, loop

    def set_threads(self, count: int) -> None:
        gemm.set_num_threads(count)

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        return self._loop


def entered(name: str, loop: Loop, out: np.ndarray) -> Entry:
    """Make a contestant of `loop`, a loop over calls of this package.

    Two products are computed. The time of the second one becomes `first`.
    """
    entry = Entry(name, Call(name, loop), loop, out, gemm.get_num_threads(), 0.0)
    entry.loop(1)
    entry.first = entry.timed()
    return entry


class Plan(Peer):
    """gemm.plan on the cpu backend, called from Python."""

    name = "plan"
    how = "plan(a, b, out=out)"
    batches = True

    def __init__(self, precision: str = "highest") -> None:
        self.about = f"gemm {gemm.__version__}, {self.how}, backend cpu, precision {precision}"
        self.precision = precision

    def set_threads(self, count: int) -> None:
        gemm.set_num_threads(count)

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        return looped(partial(self.plan(a, b, out), a, b, out=out))

    def plan(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Any:
        """The plan for these operands. Its attribute `kernel` names the kernel."""
        return gemm.plan(a, b, out=out, dtype=out.dtype, backend="cpu", precision=self.precision)


class Engine(Plan):
    """gemm_run of the same plan, called from a compiled loop like the functions of the C libraries."""

    name = "gemm"
    how = "gemm_run(plan, a, b, out)"
    compiled = True

    def __init__(self, precision: str = "highest") -> None:
        super().__init__(precision)
        native()

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        engine, compiled = import_module("gemm._cpu"), native()
        every = [np.broadcast_to(x, (*out.shape[:-2], *x.shape[-2:])) for x in (a, b)]
        native_plan = getattr(self.plan(a, b, out)._launch, "native", None)
        if native_plan is None or (ready := native_plan(*every, None, out)) is None:
            raise Unable("the engine takes no such operands")
        one, zero = (engine.ffi.new("gemm_scalar *", {"re": x, "integer": x}) for x in (1, 0))
        pointers = engine.ffi.addressof(engine.lib, "gemm_run"), one, zero
        run, alpha, beta = (compiled.ffi.cast("void *", int(engine.ffi.cast("uintptr_t", x))) for x in pointers)
        plan, operands = compiled.ffi.cast("void *", ready[0]), [address(x) for x in (a, b, out)]
        owners = ready, one, zero

        def loop(times: int, _owners: object = owners) -> None:
            if failed := compiled.lib.gemm_loop(run, times, plan, *operands, alpha, beta):
                raise RuntimeError(f"gemm_run returned {failed}")

        return loop


class PlainCall(Plan):
    """gemm.gemm as users write it. Arguments are checked and a kernel is chosen once for each kind of product."""

    name = "gemm()"
    how = "gemm(a, b, out=out)"

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        if self._options:
            return looped(partial(gemm.gemm, a, b, out=out, **self._options))
        # Not a partial: gemm.gemm recognises repeated calls by the calling line of Python code, which a partial lacks.
        return looped(lambda: gemm.gemm(a, b, out=out))


class NewResult(Plan):
    """gemm.gemm without out=."""

    name = "gemm(), new"
    how = "gemm(a, b)"

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        gemm.gemm(a, b, out=out)
        return looped(partial(gemm.gemm, a, b))


class Prepared(Plan):
    """gemm.gemm with a right-hand side packed beforehand."""

    name = "prepared"
    how = "gemm(a, prepare(b), out=out)"

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        if not hasattr(gemm, "prepare"):
            raise Unable("absent: this gemm has no prepare")
        return looped(partial(gemm.gemm, a, gemm.prepare(b), out=out, backend="cpu"))


class Rotation(Plan):
    """gemm.gemm, called by one line of a program with the shapes from 1 × 1 × 1 to m × n × k in turn.

    A pass through all shapes counts as one product.
    """

    name = "gemm(), rotation"
    how = "gemm(a, b, out=out) of a new shape each call"

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        return rotation(gemm.gemm, a, b, out)


class NewAlpha(Plan):
    """gemm.gemm with a new alpha in each call.

    m·n·k calls count as one product. The last of them has an alpha of 1, so that `out` can be checked.
    """

    name = "gemm(), alphas"
    how = "gemm(a, b, out=out, alpha=a new one)"

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        calls, alphas = out.size * a.shape[1] - 1, count(2)

        def loop(times: int) -> None:
            for _ in range(times):
                for _ in range(calls):
                    gemm.gemm(a, b, out=out, alpha=next(alphas) / 1024)
                gemm.gemm(a, b, out=out, alpha=1.0)

        return loop


def rotation(multiply: Callable[..., Any], a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
    """A loop over the products of all leading parts of a and b, the largest one last."""
    sizes = product(*(range(1, size + 1) for size in (*out.shape, a.shape[1])))
    parts = [(a[:m, :k], b[:k, :n], out[:m, :n]) for m, n, k in sizes]

    def loop(times: int) -> None:
        for _ in range(times):
            for x, y, z in parts:
                multiply(x, y, out=z)

    return loop


def makers(precision: str) -> dict[str, Callable[[], Peer]]:
    """{name: function that makes a peer of a way to call this package}."""
    precise = {kind.name: partial(kind, precision) for kind in (Engine, Plan)}
    others = {kind.name: kind for kind in (PlainCall, NewResult, Prepared, Rotation, NewAlpha)}
    return {**precise, **others, "gemm(), cpu": partial(PlainCall, backend="cpu")}
