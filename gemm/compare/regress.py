"""What has become slower since an earlier comparison, beyond what its own samples vary by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gemm.compare.comparison import Comparison
from gemm.compare.sweep import Row, find
from gemm.compare.threshold import quartiles
from gemm.timing.contest import OWN

TOLERANCE = 0.05
"""Share by which a median may differ whatever the samples say: another process has other pages and other clocks."""
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
    """Raise ValueError unless `old` was made on this machine's CPU and devices, as gemm.report tells of them."""
    then = old.document["machine"]
    for what in ("cpu", "cpus"):
        if then[what] != machine[what]:
            raise ValueError(f"it was made on another machine: {what} {then[what]}, here {machine[what]}")
    here = {device["key"]: device["name"] for device in devices}
    for device in old.document["devices"]:
        name = here.get(device["key"])
        if device["backend"] != "numpy" and name != device["name"]:
            raise ValueError(f"its {device['key']} was {device['name']}, here it is {name or 'absent'}")


def changes(old: Sequence[Row], new: Sequence[Row]) -> list[Change]:
    """Each time that both have: slower or faster where the middle halves of the samples lie apart, and the medians by
    more than TOLERANCE."""
    before = {key(row): row for row in find(old)}
    found = []
    for row in find(new):
        then = before.get(key(row))
        if then is None:
            continue
        ratio = then["seconds"] / row["seconds"]
        (fast, _, slow), (least, _, most) = quartiles(then["samples_s"]), quartiles(row["samples_s"])
        verdict = "same"
        if ratio < 1 / (1 + TOLERANCE) and slow < least:
            verdict = "slower"
        elif ratio > 1 + TOLERANCE and most < fast:
            verdict = "faster"
        found.append(Change(row, then["seconds"], ratio, verdict, row["backend"] in OWN))
    return found


def regressions(found: Iterable[Change]) -> list[Change]:
    """What of ours is slower, the worst first."""
    return sorted((each for each in found if each.ours and each.verdict == "slower"), key=lambda each: each.ratio)


def confirmed(first: Sequence[Change], again: Sequence[Change]) -> list[Change]:
    """Those of `first` that a second measurement found, too."""
    twice = {key(each.row) for each in again}
    return [each for each in first if key(each.row) in twice]
