"""The offload threshold: the smallest size from which a device stays ahead of the CPU.

After GPU-BLOB, the GPU BLAS Offload Benchmark of the University of Bristol's HPC group (UoB-HPC,
GPU-BLAS-Offload-Benchmark): the least size of a series at which, and at all larger ones, offloading pays. Its two ways
of moving data are told apart: *Transfer-Always*, each product from host to host, whatever the number of products; and
*Transfer-Once*, operands sent once, n products, the result fetched once. Unlike there, what is within the noise of
the measurement counts for neither side.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Verdict = Literal["ahead", "even", "behind"]


class Threshold(NamedTuple):
    """From which size on a device stays ahead.

    Attributes:
        size: the smallest such size; None if it is not ahead at the largest.
        below: the next smaller size that was measured; None if `size` is the smallest, or None.
    """

    size: int | None
    below: int | None


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """The quartiles of at least one sample, its extremes included."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high


def ratios(host: Sequence[float], device: Sequence[float]) -> list[float]:
    """How many times as fast the device was, round by round, since what disturbs a round disturbs both; by the medians
    where they were not in the same rounds."""
    if len(host) != len(device):
        return [statistics.median(host) / statistics.median(device)]
    return [theirs / own for theirs, own in zip(host, device, strict=True)]


def verdict(ratios: Sequence[float]) -> Verdict:
    """Whether a device of which `ratios` are the host's time ÷ its own is ahead: beyond both of their quartiles."""
    low, _, high = quartiles(ratios)
    return "ahead" if low > 1 else "behind" if high < 1 else "even"


def threshold(points: Iterable[tuple[int, Sequence[float]]]) -> Threshold:
    """The threshold of a series.

    Args:
        points: (size, ratios as `verdict` takes them), in any order.

    The device must be ahead at the largest size. From there down its lead lasts until it is behind; the threshold is
    the smallest size with a lead, so that an undecided point in between, which noise may make, ends nothing.
    """
    ordered = sorted(points)
    verdicts = [verdict(ratios) for _, ratios in ordered]
    if not verdicts or verdicts[-1] != "ahead":
        return Threshold(None, None)
    first = len(verdicts) - verdicts[::-1].index("behind") if "behind" in verdicts else 0
    at = verdicts.index("ahead", first)
    return Threshold(ordered[at][0], ordered[at - 1][0] if at else None)
