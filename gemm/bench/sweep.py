"""Time a comparison's products: host to host, on resident operands, and with operands sent once for n products."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

from gemm.bench import contest
from gemm.bench.contest import OWN, Contestant, timed
from gemm.bench.families import Case
from gemm.bench.field import Field
from gemm.bench.peers.base import Unable
from gemm.bench.rest import WAKING
from gemm.bench.threshold import quartiles
from gemm.core.errors import BackendUnavailable, KernelFailed

REPEATS = (1, 8, 64)
"""Numbers of products for which operands are sent once."""
LOOSE = 4.0
"""Error bounds that a peer may err by before its result counts as wrong. Peers do not promise our bound."""
FAILURES = (KernelFailed, TypeError, ValueError, RuntimeError)
"""Exceptions that count as a failure of the contestant."""
_SPINNING = 0.12
"""Seconds per round to wait until another library's threads sleep."""
_LEAST = 5
"""The smallest number of rounds of a contest."""
_SLOW = 0.3
"""Calls of this many seconds or more are sampled once, outside the rounds. Their repeated products are extrapolated."""
Row = dict[str, Any]
COLUMNS = (
    "family", "name", "series", "size", "m", "n", "k", "batch", "contestant", "backend", "device", "kernel", "mode",
    "products", "measured", "seconds", "spread", "gflops", "percent_of_peak", "worst_error", "valid", "error",
)  # fmt: skip
"""Columns of a result except its samples. gemm.compare defines them."""


class Pace(NamedTuple):
    """Limits of a contest: the number of rounds, and the approximate time."""

    rounds: int
    seconds: float


PACES = {False: Pace(9, 4.0), True: Pace(5, 0.6)}
"""{quick: limits of a contest}."""


def compete(
    case: Case, field: Field, pace: Pace, dtype: str, peaks: dict[str, float], step: Callable[[str], None]
) -> list[Row]:
    """The results of one product.

    Args:
        peaks: {device key: GFLOP/s}.
        step: called with the name of the next contestant.

    Raises:
        MemoryError: there is not enough memory for the product.
    """
    shape = case.shape
    a, b = shape.operands(dtype)
    entered: dict[str, Contestant] = {}
    rows: list[Row] = []
    for name, enter in field.enter.items():
        step(f"{shape}: {name}")
        try:
            entered[name] = enter(shape, a, b)
        except Unable:
            continue
        except BackendUnavailable as error:
            field.absent[name] = str(error)
        except FAILURES as error:
            rows.append(_row(case, name, error=str(error) or type(error).__name__))
    once = {name: _offloads(one) for name, one in entered.items() if case.series and one.offload}
    everyone = [*entered.values(), *(each for some in once.values() for each in some.values())]
    _time(everyone, pace, lambda name: step(f"{shape}: {name}"))
    contest.check(list(entered.values()), shape, a, b)
    for name, one in entered.items():
        rows += _figures(case, name, one, once.get(name, {}), peaks.get(one.device.key))
    return rows


def _time(contestants: Sequence[Contestant], pace: Pace, step: Callable[[str], None]) -> None:
    """Sample the contestants in rounds. Slow contestants are sampled once, outside the rounds."""
    racing, per_round = [], 0.0
    for one in contestants:
        seconds = timed(one.call)
        if seconds >= _SLOW:
            one.host, one.resident = [seconds], [timed(one.launch)] if one.launch else []
        else:
            racing.append(one)
            per_round += 2 * seconds + (timed(one.launch) if one.launch else 0.0) + WAKING
            per_round += 0.0 if one.device.backend in OWN else _SPINNING
    if racing:
        rounds = max(_LEAST, min(pace.rounds, int(pace.seconds / per_round)))
        contest.compete(racing, rounds, 1, step)


def _offloads(one: Contestant) -> dict[int, Contestant]:
    """{n: `one` with operands sent once for n products}, for each n that does not take too long."""
    assert one.offload is not None
    assert one.launch is not None
    product = timed(one.launch)
    return {
        times: Contestant(one.device, f"{one.kernel}, {times} products", partial(one.offload, times), one.out)
        for times in REPEATS if times == 1 or times * product < _SLOW
    }  # fmt: skip


def _row(case: Case, contestant: str, **known: Any) -> Row:
    shape = asdict(case.shape)
    del shape["trans"]
    place = {"family": case.family, "name": case.name, "series": case.series, "size": case.size}
    return {**dict.fromkeys(COLUMNS), **place, **shape, "contestant": contestant, "samples_s": [], **known}


def _figures(case: Case, name: str, one: Contestant, once: dict[int, Contestant], peak: float | None) -> list[Row]:
    """A row for each mode. The samples are seconds per product."""
    samples: dict[tuple[str, int], tuple[list[float], bool]] = {("host", 1): (one.host, True)}
    if one.resident:
        samples["resident", 1] = one.resident, True
    if once:
        single = once[1].host
        for times in REPEATS:
            if times in once:
                taken, measured = [seconds / times for seconds in once[times].host], True
            else:
                more = (times - 1) * statistics.median(one.resident)
                taken, measured = [(seconds + more) / times for seconds in single], False
            samples["once", times] = taken, measured
    ours = one.device.backend in OWN
    valid = one.worst is not None and one.worst <= (1 if ours else LOOSE)
    worst = one.worst if one.worst != float("inf") else None
    rows = []
    for (mode, products), (taken, measured) in samples.items():
        low, middle, high = quartiles(taken)
        rate = case.shape.flops / middle / 1e9
        rows.append(_row(
            case, name, backend=one.device.backend, device=one.device.key, kernel=one.kernel, mode=mode,
            products=products, measured=measured, seconds=middle, spread=(high - low) / middle, gflops=rate,
            percent_of_peak=100 * rate / peak if peak else None, worst_error=worst, valid=valid, samples_s=taken,
        ))  # fmt: skip
    return rows


def find(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The rows that have times and whose columns have the values `wanted`."""
    return [row for row in rows if row["seconds"] and all(row[name] == value for name, value in wanted.items())]
