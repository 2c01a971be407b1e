"""The array API's namespace beside array_api_strict, which implements the standard and nothing else."""

import inspect

import array_api_strict as strict
import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import gemm

pytestmark = pytest.mark.skipif(not hasattr(np, "vecdot"), reason="NumPy follows the standard from 2.0 on")
xp = gemm.array([]).__array_namespace__()

NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32", "float64", "complex64",
           "complex128")  # fmt: skip
ITS_OWN = {"Device", "ArrayAPIStrictFlags", *(f"{do}_array_api_strict_flags" for do in ("set", "get", "reset"))}
STANDARD = sorted({*strict.__all__} - ITS_OWN)
PRODUCTS = ("matmul", "tensordot", "vecdot", "matrix_transpose")


def filled(shape, dtype, start):
    """Small integers, whose products are exact in every type."""
    return ((np.arange(np.prod(shape, dtype=int)) + start) % 5).reshape(shape).astype(dtype)


def same(name, *operands, **options):
    """xp's function does what the standard's does: its result, or an error where that has one."""
    try:
        expected = getattr(strict, name)(*map(strict.asarray, operands), **options)
    except (TypeError, ValueError, IndexError):
        with pytest.raises((TypeError, ValueError, IndexError)):
            getattr(xp, name)(*map(xp.asarray, operands), **options)
        return
    result = getattr(xp, name)(*map(xp.asarray, operands), **options)
    assert (result.shape, str(result.dtype)) == (expected.shape, str(np.asarray(expected).dtype))
    np.testing.assert_array_equal(np.asarray(result), np.asarray(expected))


def two(data):
    """Types that the standard promotes: of one kind, or a real and a complex one."""
    kinds = data.draw(st.sampled_from([NUMBERS[:4], NUMBERS[4:7], NUMBERS[7:9], NUMBERS[7:]]))
    return data.draw(st.sampled_from(kinds)), data.draw(st.sampled_from(kinds))


@pytest.mark.parametrize("name", STANDARD)
def test_the_standards_names(name):
    assert hasattr(xp, name)
    assert name in dir(xp)


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("module", ["", "linalg"])
def test_signatures(name, module):
    ours, theirs = (getattr(getattr(space, module) if module else space, name) for space in (xp, strict))

    def shape(function):
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    assert shape(ours) == shape(theirs)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_matmul(data):
    signature = data.draw(st.sampled_from(["(m,k),(k,n)->(m,n)", "(k),(k,n)->(n)", "(m,k),(k)->(m)", "(k),(k)->()"]))
    shapes = data.draw(arrays.mutually_broadcastable_shapes(signature=signature, max_dims=2, max_side=4, min_side=0))
    same("matmul", *map(filled, shapes.input_shapes, two(data), (0, 1)))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_two_shapes(data):
    operands = [
        filled(data.draw(arrays.array_shapes(min_dims=0, max_dims=3, max_side=3)), "float64", i) for i in (0, 1)
    ]
    same("matmul", *operands)
    if all(x.ndim for x in operands):  # the standard has vectors, which array_api_strict makes of numbers, too
        same("vecdot", *operands)
    same("tensordot", *operands, axes=data.draw(st.integers(0, 2)))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_vecdot(data):
    shapes = data.draw(arrays.mutually_broadcastable_shapes(signature="(k),(k)->()", max_dims=2, max_side=4))
    same("vecdot", *map(filled, shapes.input_shapes, two(data), (0, 1)))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_tensordot(data):
    shared = data.draw(arrays.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    before, after = (data.draw(arrays.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)) for _ in "ab")
    left, right = two(data)
    a, b = filled((*before, *shared), left, 1), filled((*shared, *after), right, 2)
    same("tensordot", a, b, axes=len(shared))
    pairs = tuple(range(len(before), a.ndim)), tuple(range(len(shared)))
    same("tensordot", a, b, axes=pairs)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0, 3)])
def test_matrix_transpose(shape):
    same("matrix_transpose", filled(shape, "float32", 0))


MADE = {
    "arange": (3,), "asarray": ([1.0, 2.0],), "empty": ((2, 3),), "eye": (3,), "full": ((2,), 5), "linspace": (0, 1, 3),
    "ones": ((2, 2),), "zeros": (2,), "from_dlpack": (np.ones(3),), "meshgrid": (gemm.array([1, 2]),),
    "empty_like": (gemm.array([1, 2]),), "tril": (gemm.array([[1, 2]]),),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_is_an_array_of_gemm(name):
    made = getattr(xp, name)(*MADE[name])
    for array in made if isinstance(made, list | tuple) else [made]:
        assert type(array) is gemm.Array
        assert array.__array_namespace__() is xp


def test_asarray_keeps_options_and_copies_as_it_is_told():
    x = gemm.array(np.ones((2, 2), np.float32), backend="cpu")
    assert xp.asarray(x) is x
    assert xp.asarray(x, dtype=xp.float64).options == {"backend": "cpu"}
    copy = xp.asarray(x, copy=True)
    copy[0, 0] = 5
    assert (x[0, 0], type(copy)) == (1, gemm.Array)
    plain = np.ones(3)
    assert np.shares_memory(xp.asarray(plain), plain)
