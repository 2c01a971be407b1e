"""Find products that became slower since an earlier comparison, beyond the variation of the machine itself.

The samples of one run vary less than runs do, because a run takes its samples within about a second. An experiment
compared runs of the same code on two virtual cores, of which a hypervisor withheld up to 14 %. Between two runs, one
median in seven was slower by more than 5 %, with disjoint interquartile ranges of the samples. Some were slower by
50 %.

NumPy and the other libraries, which are timed in the same rounds, have not changed. Their changes show how much of the
variation comes from the machine. Therefore one of our times counts as changed only if it moved by more than every time
of another library (`noise`), and does so again in each of the AGAIN further measurements of the product. On a quiet
machine the other libraries' times move little, and then the tolerance of 5 % applies.

Five runs of the experiment were compared with each other, with the remaining runs as second and third measurements:

    rule                                             orders of the five runs in which nothing was reported falsely
    as above                                             99 %
    only disjoint samples and 5 %, measured twice         7 %

One process measures all of its times on the same cores and memory pages, so repeated measurements do not reveal the
influence of cores and pages. The influence matters for products of a few microseconds. SLACK exempts such short
products; benchmarks/cpu_vs_peers.py measures them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gemm.bench.comparison import Comparison
from gemm.bench.contest import OWN
from gemm.bench.sweep import Row, find
from gemm.bench.threshold import quartiles

TOLERANCE = 0.05
"""Fraction by which a median may always differ, because another process has other memory pages and clock rates."""
MOST = 1.0
"""The largest fraction attributed to the machine. Spinning threads of other libraries may slow those down by more."""
SLACK = 5e-6
"""Seconds by which a time may always differ: the core's clock rate alone can turn one or two microseconds into five."""
AGAIN = 2
"""How often a slower product is measured again. It must be slower each time."""
_KEY = ("family", "name", "m", "n", "k", "batch", "contestant", "mode", "products")


class Change(NamedTuple):
    """An earlier time and the present time of one product.

    Attributes:
        row: the present result.
        before: the earlier time in seconds.
        ratio: the earlier time ÷ the present time.
        verdict: "slower", "faster" or "same".
        ours: whether the contestant is a backend of this package. Other contestants show the machine's variation.
    """

    row: Row
    before: float
    ratio: float
    verdict: str
    ours: bool


def key(row: Row) -> tuple[Any, ...]:
    """The identity of a result: contestants, products and modes with the same key are comparable."""
    return tuple(row[name] for name in _KEY)


def check(old: Comparison, machine: dict[str, Any], devices: Iterable[dict[str, Any]]) -> None:
    """Raise ValueError unless `old` was recorded on this machine's CPU and devices."""
    then = old.document["machine"]
    for what in ("cpu", "cpus"):
        if then[what] != machine[what]:
            raise ValueError(f"it was made on another machine: {what} {then[what]}, here {machine[what]}")
    here = {device["key"]: device["name"] for device in devices}
    for device in old.document["devices"]:
        name = here.get(device["key"])
        if device["backend"] != "numpy" and name != device["name"]:
            raise ValueError(f"its {device['key']} was {device['name']}, here it is {name or 'absent'}")


def changes(old: Sequence[Row], new: Sequence[Row], tolerance: float = TOLERANCE) -> list[Change]:
    """The changes of all times that both comparisons measured.

    A time is slower or faster if three conditions hold: the interquartile ranges of the samples are disjoint, the
    medians differ by a fraction above `tolerance`, and they differ by more than SLACK.
    """
    before = {key(row): row for row in find(old, measured=True)}
    found = []
    for row in find(new, measured=True):
        then = before.get(key(row))
        if then is None:
            continue
        ratio = then["seconds"] / row["seconds"]
        (fast, _, slow), (least, _, most) = quartiles(then["samples_s"]), quartiles(row["samples_s"])
        verdict = "same"
        if abs(then["seconds"] - row["seconds"]) > SLACK:
            if ratio < 1 / (1 + tolerance) and slow < least:
                verdict = "slower"
            elif ratio > 1 + tolerance and most < fast:
                verdict = "faster"
        found.append(Change(row, then["seconds"], ratio, verdict, row["backend"] in OWN))
    return found


def noise(old: Sequence[Row], new: Sequence[Row]) -> float:
    """The `tolerance` that covers what the machine did: the largest change of another library's time.

    The result is at least TOLERANCE and at most MOST.
    """
    moved = [each.ratio for each in changes(old, new) if not each.ours and each.verdict != "same"]
    return min(MOST, max([TOLERANCE, *(max(ratio, 1 / ratio) - 1 for ratio in moved)]))


def regressions(found: Iterable[Change]) -> list[Change]:
    """Our times that became slower, the worst first."""
    return sorted((each for each in found if each.ours and each.verdict == "slower"), key=lambda each: each.ratio)


def confirmed(first: Sequence[Change], again: Sequence[Change]) -> list[Change]:
    """The changes of `first` that another measurement found as well."""
    both = {key(each.row) for each in again}
    return [each for each in first if key(each.row) in both]
