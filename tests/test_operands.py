"""What gemm.core.operands says of memory, against every byte: overlap, identity, elements that share memory."""

from itertools import product

import numpy as np
import pytest

import gemm
from gemm.core import operands
from gemm.core.problem import Device, DeviceView

GPU = Device("cuda", "cuda:0", "a GPU", kind="gpu")
F32 = np.dtype("float32")
VIEWS = [((3,), (4,)), ((3,), (-4,)), ((2, 3), (12, 4)), ((2, 3), (-12, 4)), ((2, 2), (4, -20)), ((1,), (4,))]


def view(shape, strides, start):
    return DeviceView(None, start, 0, shape, strides, F32, GPU)


def touched(x):
    """The bytes of its elements."""
    starts = [sum(i * s for i, s in zip(at, x.strides, strict=True)) for at in np.ndindex(x.shape)]
    return {x.data + start + byte for start in starts for byte in range(4)}


@pytest.mark.parametrize(("here", "there"), list(product(VIEWS, VIEWS)))
def test_views_that_share_an_element_overlap(here, there):
    """On a device, where bounds tell: shifted through each other element by element, also as they touch."""
    x = view(*here, 4000)
    mine = touched(x)
    for shift in range(-80, 81, 4):
        y = view(*there, 4000 + shift)
        other = touched(y)
        if mine and other:
            bounds = min(mine) <= max(other) and min(other) <= max(mine)
            assert operands.overlap(x, y) == bounds
            assert bounds or not mine & other


def test_distinct_is_what_counting_says():
    """No array whose elements share memory passes for one whose elements do not."""
    for shape in ((2, 2), (2, 3), (3, 2), (2, 2, 2)):
        for strides in product((-8, -4, 0, 2, 4, 6, 8, 10, 12), repeat=len(shape)):
            x = view(shape, strides, 4000)
            elements = [sum(i * s for i, s in zip(at, strides, strict=True)) for at in np.ndindex(shape)]
            gaps = np.diff(sorted(elements))
            if operands.distinct(x):
                assert (gaps >= 4).all(), (shape, strides)
    assert operands.distinct(view((2, 3), (12, 4), 4000))
    assert operands.distinct(view((3, 2), (4, 12), 4000))


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
