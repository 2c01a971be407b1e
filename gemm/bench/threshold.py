"""The offload threshold: the smallest size from which a device stays faster than the CPU.

The definition follows GPU-BLOB, the GPU BLAS Offload Benchmark of the University of Bristol's HPC group (UoB-HPC,
GPU-BLAS-Offload-Benchmark): the smallest size of a series such that offloading pays at this size and at all larger
sizes. GPU-BLOB distinguishes two ways to transfer data. *Transfer-Always* sends each product from host to host,
independent of the number of products. *Transfer-Once* sends the operands once, computes n products and fetches the
result once. Unlike GPU-BLOB, differences within the noise of the measurement count for neither side.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Verdict = Literal["ahead", "even", "behind"]


class Threshold(NamedTuple):
    """The size from which a device stays ahead.

    Attributes:
        size: the smallest such size; None if the device is not ahead at the largest size.
        below: the next smaller size that was measured; None if there is none, or if `size` is None.
    """

    size: int | None
    below: int | None


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """The quartiles of the samples, extremes included in the population. One sample suffices."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high


def ratios(host: Sequence[float], device: Sequence[float]) -> list[float]:
    """The host's time ÷ the device's time, round by round, because a disturbance of a round affects both samples.

    If the two were not measured in the same rounds, the result is the single ratio of their medians.
    """
    if len(host) != len(device):
        return [statistics.median(host) / statistics.median(device)]
    return [theirs / own for theirs, own in zip(host, device, strict=True)]


def verdict(ratios: Sequence[float]) -> Verdict:
    """Whether a device is ahead of the host, if `ratios` are the host's times ÷ the device's. Both quartiles decide."""
    low, _, high = quartiles(ratios)
    return "ahead" if low > 1 else "behind" if high < 1 else "even"


def threshold(points: Iterable[tuple[int, Sequence[float]]]) -> Threshold:
    """The threshold of a series.

    The device must be ahead at the largest size. Going down from there, the lead continues until the first size at
    which the device is behind. The threshold is the smallest size in this range at which the device is ahead. Sizes
    at which neither is ahead, for example because of noise, do not end the range.

    Args:
        points: (size, ratios as `verdict` takes them), in any order.
    """
    ordered = sorted(points)
    verdicts = [verdict(ratios) for _, ratios in ordered]
    if not verdicts or verdicts[-1] != "ahead":
        return Threshold(None, None)
    first = len(verdicts) - verdicts[::-1].index("behind") if "behind" in verdicts else 0
    at = verdicts.index("ahead", first)
    return Threshold(ordered[at][0], ordered[at - 1][0] if at else None)
