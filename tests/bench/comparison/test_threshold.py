"""From which size on a device is ahead: verdicts on noisy series."""

import random

import pytest

from gemm.bench.verdicts import Threshold, quartiles, ratios, threshold, verdict


def points(*speeds, noise=0.0):
    """A series of doubling sizes with these ratios, each of nine noisy rounds."""
    rng = random.Random(5)
    return [(64 << at, [speed * (1 + rng.uniform(-noise, noise)) for _ in range(9)]) for at, speed in enumerate(speeds)]


@pytest.mark.parametrize(
    ("speeds", "noise", "found"),
    [
        ((0.1, 0.5, 0.9, 1.5, 4.0), 0.0, Threshold(512, 256)),
        ((0.1, 0.5, 0.9, 1.5, 4.0), 0.05, Threshold(512, 256)),
        ((0.1, 0.2, 0.3), 0.1, Threshold(None, None)),
        ((2.0, 3.0, 4.0), 0.1, Threshold(64, None)),
        ((1.0, 1.0, 1.0), 0.0, Threshold(None, None)),
        ((1.0, 1.0, 1.0), 0.1, Threshold(None, None)),
        ((0.5, 1.5, 0.5, 2.0), 0.1, Threshold(512, 256)),  # a lead that is lost again is none
        ((0.5, 1.5, 1.0, 2.0), 0.1, Threshold(128, 64)),  # noise in between ends nothing
        ((0.5, 1.0, 1.0, 2.0), 0.1, Threshold(512, 256)),
        ((2.0, 2.0, 1.0), 0.1, Threshold(None, None)),  # not ahead at the largest
        ((2.0,), 0.0, Threshold(64, None)),
        ((), 0.0, Threshold(None, None)),
    ],
)
def test_series(speeds, noise, found):
    assert threshold(points(*speeds, noise=noise)) == found
    assert threshold(reversed(points(*speeds, noise=noise))) == found


def test_verdicts_are_beyond_the_quartiles():
    assert verdict([1.1, 1.2, 1.3]) == "ahead"
    assert verdict([0.9, 1.2, 1.3, 1.4, 1.5]) == "ahead"  # one bad round
    assert verdict([0.9, 0.9, 1.3, 1.4]) == "even"
    assert verdict([0.7]) == "behind"
    assert quartiles([2.0]) == (2.0, 2.0, 2.0)


def test_ratios_are_those_of_rounds():
    assert ratios([2.0, 4.0], [1.0, 2.0]) == [2.0, 2.0]
    assert ratios([3.0, 1.0, 2.0], [1.0]) == [2.0]
    assert ratios([3.0, 1.0, 2.0, 9.0], [1.0, 1.0, 1.0]) == [3.0, 1.0, 2.0]
