"""Time a comparison's products: host to host, on resident operands, and with operands sent once for n products."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from gemm.bench import contest
from gemm.bench.contest import OWN, Contestant, Pace, timed
from gemm.bench.contestants import Field
from gemm.bench.peers import Unable
from gemm.bench.products import FLOAT32, Arithmetic, Case
from gemm.bench.verdicts import Row, known_spread
from gemm.core.errors import BackendUnavailable, KernelFailed

REPEATS = (1, 8, 64)
"""Numbers of products for which operands are sent once."""
LOOSE = 4.0
"""The largest allowed error of a peer, in units of our error bound. Peers do not promise our bound."""
FAILURES = (KernelFailed, TypeError, ValueError, RuntimeError)
"""Exceptions that count as a failure of the contestant."""
COLUMNS = (
    "family", "name", "series", "size", "m", "n", "k", "batch", "contestant", "backend", "device", "kernel", "mode",
    "products", "measured", "seconds", "spread", "unsettled", "gflops", "percent_of_peak", "worst_error", "valid",
    "error",
)  # fmt: skip
"""The columns of a result, without its samples. The docstring of gemm.compare describes them."""


PACES = {False: Pace(9, 4.0), True: Pace(5, 0.6)}
"""{whether the comparison is quick: the limits of each product's rounds}."""


@dataclass(frozen=True)
class Sweep:
    """How the products of a comparison are timed.

    Attributes:
        peaks: {device key: GFLOP/s}.
        step: called with the name of the product and of the contestant that is timed next.
    """

    contestants: Field
    pace: Pace
    arithmetic: Arithmetic = FLOAT32
    peaks: dict[str, float] = field(default_factory=dict)
    step: Callable[[str], None] = lambda text: None

    def run(self, cases: Iterable[Case], done: Callable[[Case], None]) -> tuple[list[Row], list[str]]:
        """The results of all products, and a line for each product for which there was not enough memory.

        `done` is called after each product.
        """
        rows: list[Row] = []
        left_out = []
        for case in cases:
            try:
                rows += self.compete(case)
            except MemoryError:
                left_out.append(f"{case.name} ({case.family}): not enough memory")
            done(case)
        return rows, left_out

    def compete(self, case: Case) -> list[Row]:
        """The results of one product. Raises MemoryError if there is not enough memory for the product."""
        shape = case.shape
        a, b = shape.operands(*self.arithmetic.types)
        entered: dict[str, Contestant] = {}
        rows: list[Row] = []
        for name, enter in self.contestants.enter.items():
            self.step(f"{shape}: {name}")
            try:
                entered[name] = enter(shape, a, b)
            except Unable as error:
                self.contestants.unable[name] = str(error)
            except BackendUnavailable as error:
                self.contestants.absent[name] = str(error)
            except FAILURES as error:
                rows.append(_row(case, name, error=str(error) or type(error).__name__))
        once = {name: _offloads(one) if case.series else {} for name, one in entered.items()}
        everyone = [*entered.values(), *(each for some in once.values() for each in some.values())]
        contest.compete(everyone, self.pace, 1, lambda name: self.step(f"{shape}: {name}"))
        contest.check(list(entered.values()), shape, a, b, self.arithmetic)
        for name, one in entered.items():
            rows += _rows(case, name, one, once[name], self.peaks.get(one.device.key))
        return rows


def _offloads(one: Contestant) -> dict[int, Contestant]:
    """{n: a contestant whose call sends the operands once for n products of `one`}.

    n is 1, or a number of REPEATS whose products take less than contest.SLOW seconds.
    """
    if not (one.offload and one.launch):
        return {}
    product = timed(one.launch)
    return {
        times: Contestant(one.device, f"{one.kernel}, {times} products", partial(one.offload, times), one.out)
        for times in REPEATS if times == 1 or times * product < contest.SLOW
    }  # fmt: skip


def _row(case: Case, contestant: str, **known: Any) -> Row:
    product = asdict(case)
    shape = product.pop("shape")
    del shape["trans"]
    return {**dict.fromkeys(COLUMNS), **product, **shape, "contestant": contestant, "samples_s": [], **known}


def _rows(case: Case, name: str, one: Contestant, once: dict[int, Contestant], peak: float | None) -> list[Row]:
    """The results of one contestant for one product: a row for each mode (host, resident, once).

    Args:
        once: the contestants that `_offloads` made of `one`.
        peak: GFLOP/s of the device, or None if unknown.
    """
    valid = one.worst is not None and one.worst <= (1 if one.device.backend in OWN else LOOSE)
    rows = []
    for mode, products, measured, samples in _samples(one, once):
        middle = statistics.median(samples)
        rate = case.shape.flops / middle / 1e9
        rows.append(_row(
            case, name, backend=one.device.backend, device=one.device.key, kernel=one.kernel, mode=mode,
            products=products, measured=measured, seconds=middle, spread=known_spread(samples), gflops=rate,
            unsettled=one.unsettled if mode == "resident" else None,
            percent_of_peak=100 * rate / peak if peak else None,
            worst_error=one.worst if one.worst != float("inf") else None, valid=valid, samples_s=samples,
        ))  # fmt: skip
    return rows


def _samples(one: Contestant, once: dict[int, Contestant]) -> Iterable[tuple[str, int, bool, Sequence[float]]]:
    """(mode, number of products, whether they were measured, seconds per product) for each mode."""
    yield "host", 1, True, one.host
    if one.resident:
        yield "resident", 1, True, one.resident
    for times in REPEATS if once else ():
        if times in once:
            yield "once", times, True, [seconds / times for seconds in once[times].host]
        else:
            more = (times - 1) * statistics.median(one.resident)
            yield "once", times, False, [(seconds + more) / times for seconds in once[1].host]
