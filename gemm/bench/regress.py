"""What has become slower since an earlier comparison, beyond what the machine itself varies by.

The samples of a run are taken within a second or so and vary less than runs do: between two runs of the same code on
two virtual cores, of which a hypervisor withheld up to 14 %, one median in seven was slower by more than 5 % with the
middle halves of their samples apart, some by half. What has not changed tells how much of that is the machine's: NumPy
and the other libraries, which are timed in the same rounds. So a time of ours counts if it moved by more than any of
theirs did (`noise`), and goes on doing so when its product is measured AGAIN. Of five such runs, each against each
other with the rest as second and third measurements, 99 % report nothing; by the samples and 5 % alone, measured twice,
7 % did. On a quiet machine theirs move by little, and 5 % it is.

A process takes all of its times on the same cores and pages, and does not see by measuring again what those do to it.
That shows in products of some microseconds, which SLACK leaves to benchmarks/cpu_vs_peers.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gemm.bench.comparison import Comparison
from gemm.bench.contest import OWN
from gemm.bench.sweep import Row, find
from gemm.bench.threshold import quartiles

TOLERANCE = 0.05
"""Share by which a median may differ whatever the samples say: another process has other pages and other clocks."""
MOST = 1.0
"""Share that is never put down to the machine: threads of others' libraries, which spin, may fall far behind alone."""
SLACK = 5e-6
"""Seconds by which it may differ, too: of a product of a microsecond or two the clock of a core makes five."""
AGAIN = 2
"""How often what is slower is measured again; it must be slower each time."""
_KEY = ("family", "name", "m", "n", "k", "batch", "contestant", "mode", "products")


class Change(NamedTuple):
    """A time then and now.

    Attributes:
        row: the result now. before: seconds then. ratio: how many times as fast it is now.
        verdict: "slower", "faster" or "same". ours: of this package; others' show what the machine does.
    """

    row: Row
    before: float
    ratio: float
    verdict: str
    ours: bool


def key(row: Row) -> tuple[Any, ...]:
    """What a result is of."""
    return tuple(row[name] for name in _KEY)


def check(old: Comparison, machine: dict[str, Any], devices: Iterable[dict[str, Any]]) -> None:
    """Raise ValueError unless `old` was made on this machine's CPU and devices, as the report tells of them."""
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
    """Each time that both have measured: slower or faster where the middle halves of the samples lie apart, and the
    medians by a share of more than `tolerance`, and by more than SLACK."""
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
    """The largest share by which a time of another library, which is slower or faster, has changed, between TOLERANCE
    and MOST: the `tolerance` for what the machine, not the package, has done."""
    moved = [each.ratio for each in changes(old, new) if not each.ours and each.verdict != "same"]
    return min(MOST, max([TOLERANCE, *(max(ratio, 1 / ratio) - 1 for ratio in moved)]))


def regressions(found: Iterable[Change]) -> list[Change]:
    """What of ours is slower, the worst first."""
    return sorted((each for each in found if each.ours and each.verdict == "slower"), key=lambda each: each.ratio)


def confirmed(first: Sequence[Change], again: Sequence[Change]) -> list[Change]:
    """Those of `first` that another measurement found, too."""
    both = {key(each.row) for each in again}
    return [each for each in first if key(each.row) in both]
