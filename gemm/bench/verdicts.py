"""Judge the results of benchmarks: which contestant is faster, offload thresholds, and products that became slower.

# Ratios

The ratio of two contestants is the median over the rounds of (time of the one ÷ time of the other in the same round).
There is no ratio (`compared`) if there are fewer than ENOUGH rounds or if the middle half of the rounds spreads too
widely, and none is worth quoting if the machine was not quiet (gemm.bench.contest.Watch).

# Offload thresholds

The offload threshold is the smallest size from which a device stays faster than the CPU. The definition follows
GPU-BLOB, the GPU BLAS Offload Benchmark of the University of Bristol's HPC group (UoB-HPC, GPU-BLAS-Offload-Benchmark):
the smallest size of a series such that offloading pays at this size and at all larger sizes. GPU-BLOB distinguishes two
ways to transfer data. *Transfer-Always* sends each product from host to host, independent of the number of products.
*Transfer-Once* sends the operands once, computes n products and fetches the result once. In contrast to GPU-BLOB,
differences within the noise of the measurement count here for neither side.

# Slower products

The samples of one run of a benchmark vary less than the medians of different runs, because a run takes its samples
within about a second. An experiment compared runs of the same code on two virtual cores, of which a hypervisor withheld
up to 14 %.
Between two runs, one median in seven was slower by more than 5 %, with disjoint interquartile ranges of the samples.
Some medians were slower by 50 %.

NumPy and the other libraries, which are timed in the same rounds, have not changed. Their changes show how much of the
variation comes from the machine. Therefore one of our times counts as changed only if it moved by more than any other
library's time did (`noise`), and does so again in each of the AGAIN further measurements of the product. On a quiet
machine the other libraries' times move little, and then the tolerance of 5 % applies.

Five runs of the experiment were arranged in different orders: one as the earlier comparison, one as the new comparison,
and the others as second and third measurements. All five are runs of the same code, so every report is false:

    rule                                             share of the orders without a report
    the rule above                                       99 %
    only disjoint samples and 5 %, measured twice         7 %

One process measures all of its times on the same cores and memory pages, so repeated measurements do not reveal the
influence of cores and pages. The influence matters for products of a few microseconds. SLACK exempts such short
products; benchmarks/cpu_vs_peers.py measures them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from gemm.bench.contest import ENOUGH, OWN
from gemm.core import text

Row = dict[str, Any]
"""A result of a comparison. gemm.compare defines its columns."""
Document = dict[str, Any]
"""A comparison, as its JSON file has it."""
Verdict = Literal["ahead", "even", "behind"]
TOLERANCE = 0.05
"""The smallest tolerance. A median that differs from that of the earlier comparison by at most this fraction is never
reported, because memory pages and clock rates differ between processes."""
MOST = 1.0
"""The largest result of `noise`. Spinning threads may slow down another library by more than this fraction."""
SLACK = 5e-6
"""A difference of at most this many seconds is never reported: the core's clock rate alone can turn one or two
microseconds into five."""
WIDE = 0.1
"""The widest interquartile range ÷ median of the rounds' ratios for which there is a ratio."""
RATIO = "n times as fast: the median over the rounds of the ratio of both times in a round; in brackets its quartiles."
ADVICE = (
    "Close other programs, or pin this command to cores that nothing else uses (Linux: taskset -c 2,3 gemm ...), and "
    "measure for longer (--seconds 60); on a virtual machine, use one that shares no cores."
)
AGAIN = 2
"""How often a slower product is measured again. It must be slower each time."""
_KEY = ("family", "name", "m", "n", "k", "batch", "contestant", "mode", "products")


def find(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows that have times and whose columns have the values `wanted`."""
    return [row for row in rows if row["seconds"] and all(row[name] == value for name, value in wanted.items())]


def offloaded(rows: Iterable[Row]) -> list[str]:
    """The contestants on devices with memory of their own."""
    return list(dict.fromkeys(row["contestant"] for row in find(rows, mode="resident")))


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """The first quartile, the median and the third quartile, interpolated linearly. One sample suffices."""
    low, middle, high = np.quantile(samples, (0.25, 0.5, 0.75)).tolist()
    return low, middle, high


def spread(samples: Sequence[float]) -> float:
    """The interquartile range of the samples ÷ their median."""
    low, middle, high = quartiles(samples)
    return (high - low) / middle


def known_spread(samples: Sequence[float]) -> float | None:
    """`spread`, but None for fewer than ENOUGH samples."""
    return spread(samples) if len(samples) >= ENOUGH else None


def ratios(host: Sequence[float], device: Sequence[float]) -> list[float]:
    """The host's time ÷ the device's time, one ratio for each round.

    A disturbance of a round affects both times, so it hardly changes their ratio. A slow contestant takes part only in
    the first rounds; later samples of the other contestant are ignored. If a contestant has only one sample, which was
    taken outside the rounds, the result is one ratio: that of the medians.
    """
    if 1 in (len(host), len(device)):
        return [statistics.median(host) / statistics.median(device)]
    return [theirs / own for theirs, own in zip(host, device, strict=False)]


def spreads(rows: Iterable[Row]) -> list[float]:
    """The spread of the rounds' ratios for each product and each contestant except cpu:0, from host to host.

    The ratios are cpu:0's times ÷ the contestant's times. Pairs with fewer than ENOUGH rounds are left out.
    """
    hosted = find(rows, mode="host")
    ours = {(row["family"], row["name"]): row["samples_s"] for row in find(hosted, contestant="cpu:0")}
    found = (
        known_spread(ratios(ours[row["family"], row["name"]], row["samples_s"]))
        for row in hosted if row["contestant"] != "cpu:0" and (row["family"], row["name"]) in ours
    )  # fmt: skip
    return [each for each in found if each is not None]


class Threshold(NamedTuple):
    """The size from which a device stays ahead.

    Attributes:
        size: the smallest such size; None if the device is not ahead at the largest size.
        below: the next smaller size that was measured; None if there is none, or if `size` is None.
    """

    size: int | None
    below: int | None


def verdict(ratios: Sequence[float]) -> Verdict:
    """Compare a device with the host. `ratios` are the host's times ÷ the device's times.

    "ahead": both quartiles are above 1. "behind": both quartiles are below 1. "even": neither.
    """
    low, _, high = quartiles(ratios)
    return "ahead" if low > 1 else "behind" if high < 1 else "even"


def compared(ratios: Sequence[float], name: str, host: str) -> str:
    """A phrase that says which of two contestants is faster, and how much. `ratios` are `host`'s times ÷ `name`'s."""
    if len(ratios) < ENOUGH:
        return f"no ratio between {name} and {host}: measured {'once' if len(ratios) == 1 else 'twice'}"
    low, middle, high = quartiles(ratios)
    if high - low > WIDE * middle:
        return f"no ratio between {name} and {host}, because half of the rounds are outside {low:.3g} to {high:.3g}"
    if verdict(ratios) == "even":
        return f"{name} and {host} are equally fast"
    if middle < 1:
        name, host, low, middle, high = host, name, 1 / high, 1 / middle, 1 / low
    return f"{name} is {text.faster(middle)} {host} ({low:.3g} to {high:.3g})"


def threshold(points: Iterable[tuple[int, Sequence[float]]]) -> Threshold:
    """The threshold of a series.

    The device must be ahead at the largest size. The range of the device's lead extends down from the largest size, and
    ends before the first size at which the device is behind. The threshold is the smallest size in this range at which
    the device is ahead. Sizes at which neither is ahead, for example because of noise, do not end the range.

    Args:
        points: (size, ratios as `verdict` takes them), in any order.
    """
    size = below = smaller = None
    found: Verdict = "behind"
    for at, ratios in sorted(points):
        found = verdict(ratios)
        if found == "behind":
            size = below = None
        elif found == "ahead" and size is None:
            size, below = at, smaller
        smaller = at
    return Threshold(size, below) if found == "ahead" else Threshold(None, None)


def thresholds(rows: Sequence[Row]) -> list[Row]:
    """The offload thresholds: one for each series, mode, and contestant on a device with its own memory."""
    found = []
    with_memory = offloaded(rows)
    kinds = {(r["series"], r["contestant"], r["mode"], r["products"]): None for r in find(rows) if r["series"]}
    for series, contestant, mode, products in kinds:
        ours = {row["size"]: row["samples_s"] for row in find(rows, series=series, contestant="cpu:0", mode="host")}
        own = find(rows, series=series, contestant=contestant, mode=mode, products=products)
        rounds = ((r["size"], ratios(ours[r["size"]], r["samples_s"])) for r in own if r["size"] in ours)
        points = sorted(each for each in rounds if len(each[1]) >= ENOUGH)
        if points and contestant in with_memory:
            found.append({
                "series": series, "contestant": contestant, "mode": mode, "products": products,
                **threshold(points)._asdict(), "sizes": [size for size, _ in points],
                "verdicts": [verdict(samples) for _, samples in points],
                "ratios": [statistics.median(samples) for _, samples in points],
            })  # fmt: skip
    return found


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
    """The product, contestant and mode of a result. Results with the same key are comparable."""
    return tuple(row[name] for name in _KEY)


def check(old: Document, machine: dict[str, Any], devices: Iterable[dict[str, Any]]) -> None:
    """Raise ValueError unless the document `old` was recorded on this machine's CPU and devices."""
    for what in ("cpu", "cpus"):
        if old["machine"][what] != machine[what]:
            raise ValueError(
                f"it was made on another machine: {what} was {old['machine'][what]}, and is {machine[what]} here"
            )
    here = {device["key"]: device["name"] for device in devices}
    for device in old["devices"]:
        name = here.get(device["key"])
        if device["backend"] != "numpy" and name != device["name"]:
            raise ValueError(
                f"its {device['key']} was {device['name']}; on this machine {device['key']} is {name or 'absent'}"
            )


def changes(old: Iterable[Row], new: Iterable[Row], tolerance: float = TOLERANCE) -> list[Change]:
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


def noise(old: Iterable[Row], new: Iterable[Row]) -> float:
    """The argument `tolerance` for `changes`, a fraction of at least TOLERANCE and at most MOST.

    The result is the largest change of another library's time. The machine must have caused such a change.
    """
    moved = [each.ratio for each in changes(old, new) if not each.ours and each.verdict != "same"]
    return min(MOST, max([TOLERANCE, *(max(ratio, 1 / ratio) - 1 for ratio in moved)]))


def regressions(found: Iterable[Change]) -> list[Change]:
    """Our times that became slower, the worst first."""
    return sorted((each for each in found if each.ours and each.verdict == "slower"), key=lambda each: each.ratio)


def confirmed(first: Iterable[Change], again: Iterable[Change]) -> list[Change]:
    """The changes of `first` that another measurement found as well."""
    both = {key(each.row) for each in again}
    return [each for each in first if key(each.row) in both]
