"""What gemm.core.operands says of memory, against every byte: overlap, identity, elements that share memory."""

from itertools import product

import numpy as np
import pytest

import gemm
from gemm.core import operands
from gemm.core.problem import Device, DeviceView

GPU = Device("cuda", "cuda:0", "a GPU", kind="gpu")
VIEWS = [((3, 4), (4, 1)), ((3, 4), (1, 3)), ((3, 4), (-4, 1)), ((3, 4), (4, -1)), ((3, 4), (-4, -1)), ((4,), (1,)),
         ((4,), (-1,)), ((2, 3, 4), (12, 4, 1)), ((3, 4), (0, 1)), ((1, 4), (99, 1)), ((3, 1), (1, 99)),
         ((2, 2), (1, -5))]  # fmt: skip
"""Shapes, and strides in elements."""


def view(shape, strides, start=0, size=4):
    return DeviceView(None, 1 << 20, start, shape, strides, np.dtype(f"f{size}"), GPU)


def places(x):
    """Where each element starts."""
    return [x.offset + sum(i * s for i, s in zip(at, x.strides, strict=True)) for at in np.ndindex(x.shape)]


@pytest.mark.parametrize(("here", "there"), [*product(VIEWS, VIEWS)])
def test_views_that_share_an_element_overlap(here, there):
    """On a device, where bounds tell: shifted through each other element by element, also as they touch."""
    for size in (4, 8):
        (x, mine), (y, other) = (
            (found, places(found))
            for found in (view(shape, tuple(size * s for s in steps), 0, size) for shape, steps in (here, there))
        )
        for shift in range(-40 * size, 41 * size, size):
            moved = view(y.shape, y.strides, shift, size)
            meet = min(mine) < max(other) + shift + size and min(other) + shift < max(mine) + size
            assert operands.overlap(x, moved) == operands.overlap(moved, x) == meet
        assert not operands.overlap(x, view((0, 4), (16, 4)))


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 2), (1, 4), (4, 1), (2,), (0, 3)])
def test_distinct_is_what_counting_says(shape):
    """All arrays are distinct whose axes nest, up to the element where they touch, and no others."""
    for strides in product((-28, -8, -4, 0, 2, 4, 6, 8, 10, 12, 16, 24, 48), repeat=len(shape)):
        x = view(shape, strides)
        if operands.distinct(x):
            assert (np.diff(sorted(places(x))) >= 4).all(), strides
        ordered = sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1)
        nested = all(s >= 4 + sum(t * (m - 1) for t, m in ordered[:i]) for i, (s, _) in enumerate(ordered))
        assert operands.distinct(x) == (nested or 0 in shape), strides


def test_identical_is_of_one_type():
    x = np.zeros((3, 4), np.float32)
    assert operands.identical(x, x[:])
    assert not operands.identical(x, x.view(np.int32))
    assert not operands.identical(x, x[::-1])
    assert not operands.identical(x[:1], x[1:2])


@pytest.mark.parametrize("strides", [(8, 4), (4, 4), (12, 8), (4, 8), (64, 4)])
def test_an_out_that_overlaps_itself(strides):
    """Its elements are those of the product as if assigned in order, as NumPy's are, whatever the kernel's order."""
    rng, shape = np.random.default_rng(1), (40, 300)
    a, b = rng.integers(-8, 9, (40, 5)).astype(np.float32), rng.integers(-8, 9, (5, 300)).astype(np.float32)
    memory, expected = (np.zeros(4096, np.float32) for _ in range(2))
    gemm.gemm(a, b, out=np.lib.stride_tricks.as_strided(memory, shape, strides), backend="cpu")
    np.copyto(np.lib.stride_tricks.as_strided(expected, shape, strides), a @ b)
    np.testing.assert_array_equal(memory, expected)


def test_an_out_that_is_the_bias():
    a, b = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(9, dtype=np.float32).reshape(3, 3)
    out = np.arange(12, dtype=np.float32).reshape(4, 3)
    expected = a @ b + out[1]
    np.testing.assert_array_equal(gemm.gemm(a, b, bias=out[1], out=out), expected)
