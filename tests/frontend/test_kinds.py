"""The arguments of a product: the options, spelt out once, and the table of what an operand's class says of it."""

import inspect
import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import gemm
from gemm.core.problem import DeviceView
from gemm.frontend import interop
from gemm.frontend.arguments import DEFAULTS, Given, Options, named


@pytest.mark.parametrize("function", [gemm.gemm, gemm.plan])
def test_the_options_are_those_of_the_public_functions(function):
    """The C front fills in DEFAULTS where nothing is given."""
    parameters = inspect.signature(function).parameters
    assert {*parameters} == {*Given._fields, *DEFAULTS}
    assert {name: parameters[name].default for name in DEFAULTS} == DEFAULTS
    given = {name: parameters[name].default for name in Given._fields if name not in ("a", "b")}
    assert given == Given._field_defaults


def test_named_options_are_arguments_again():
    options = Options(trans_b="T", precision="high", class_b=str)
    assert named(options, 2, 3) == {**DEFAULTS, "alpha": 2, "beta": 3, "trans_b": "T", "precision": "high"}


def test_the_first_row_that_has_a_class_reads_it():
    readers = {row.name: row.read for row in interop.KINDS}
    assert interop._reader(DeviceView) is readers["DeviceView"]
    assert interop._reader(np.ma.MaskedArray) is readers["MaskedArray"]
    for kind in (list, float, np.matrix, gemm.Array, gemm.Prepared):
        assert interop._reader(kind) is interop.read_any


@pytest.mark.parametrize(("name", "bits"), [("bfloat16", 0x3F80), ("float32", None)])
def test_a_tensor_of_a_type_that_numpy_lacks_is_read_by_its_bits(monkeypatch, name, bits):
    if bits is not None:
        pytest.importorskip("ml_dtypes")

    class Tensor:
        dtype, requires_grad = f"torch.{name}", False

        def view(self, kind):
            return np.array([bits], kind)

        def __array__(self, *_, **__):
            return np.ones(1, np.float32)

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor, int16=np.int16))
    operand = interop.wrap(Tensor(), "a")
    assert operand.dtype.name == name
    assert float(operand[0]) == 1


def test_a_tensor_that_requires_a_gradient_is_refused(monkeypatch):
    class Tensor:
        dtype, requires_grad = "torch.float32", True

        def __array__(self, *_, **__):
            return np.ones((2, 2), np.float32)

    torch = SimpleNamespace(Tensor=Tensor, is_grad_enabled=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(TypeError, match=r"b requires a gradient.*pass b\.detach\(\).*use\.md#gradients"):
        gemm.gemm(np.eye(2), Tensor())
    torch.is_grad_enabled = lambda: False
    assert (interop.wrap(Tensor(), "a") == 1).all()


def test_products_of_a_prepared_b_are_made_elsewhere():
    made_by = interop.maker("product", np.ndarray, gemm.Prepared, type(None), type(None))
    assert made_by is sys.modules["gemm.extras.prepack"].product
    assert interop.maker("product", gemm.Prepared, np.ndarray) is None, "a is an operand like others"
    assert interop.maker("tensordot", np.ndarray, gemm.Prepared) is None
    assert interop.maker("product", np.ndarray, np.ndarray) is None


def test_a_library_that_is_none_has_no_kinds(monkeypatch):
    """Tests of other programs put a mock in its place."""

    class Rows(list[Any]):
        pass

    monkeypatch.setitem(sys.modules, "torch", mock.MagicMock())
    interop._reader.cache_clear()
    interop.maker.cache_clear()
    np.testing.assert_array_equal(gemm.gemm(Rows([[1.0, 2.0], [3.0, 4.0]]), np.eye(2)), [[1, 2], [3, 4]])
    interop._reader.cache_clear()
    interop.maker.cache_clear()
