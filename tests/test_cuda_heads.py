"""Heads of many arrays read at once: of tensors by functions of C, as a library made up here has them, and PyTorch's
own where it is installed; of others by their attributes."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_bool, c_int, c_void_p
from typing import Any

import numpy as np
import pytest
from test_cuda_sequence import DLTensor, Exchange, capsule, current_stream

from gemm.backends import cuda_heads, cuda_readers
from gemm.catalog import KERNELS

native = pytest.importorskip("gemm._cuda")
COUNT = 300

IMAGE = struct.Struct("Qq3q3q4i?")
"""data, axes, shape, strides, (type, place, device, layout), negated"""
BEGINS = bytes.__basicsize__ - 1  # of what a bytes object holds, from its address


class Tensor:
    """A tensor, whose second word of its own points to where all about it is."""

    __slots__ = ("hooks", "impl")

    def __init__(
        self, data: int, *shape: int, strides: tuple[int, ...] = (), told: tuple[int, ...] = (6, 1, 0, 0),
        negated: bool = False,
    ) -> None:  # fmt: skip
        strides = strides or tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
        three = ((*values, 0, 0, 0)[:3] for values in (shape, strides))
        self.hooks = None
        self.impl = IMAGE.pack(data, len(shape), *next(three), *next(three), *told, negated)


def image_at(tensor: int) -> int:
    return int(c_void_p.from_address(tensor).value or 0) + BEGINS


def fields(tensor: int) -> tuple[Any, ...]:
    return IMAGE.unpack(ctypes.string_at(image_at(tensor), IMAGE.size))


def telling(kind: Any, value: Callable[[int], Any], refused: Callable[[int], bool] = lambda tensor: False) -> Any:
    """A function of C that puts what `value` says of a tensor where it is told to."""

    @CFUNCTYPE(c_int, c_void_p, c_void_p)
    def function(tensor: int, to: int) -> int:
        if refused(tensor):
            return 1
        kind.from_address(to).value = value(tensor)
        return 0

    return function


TOLD = (
    telling(c_void_p, lambda x: fields(x)[0], lambda x: fields(x)[0] == 0),
    telling(c_void_p, lambda x: image_at(x) + 16), telling(c_void_p, lambda x: image_at(x) + 40),
    telling(ctypes.c_int64, lambda x: fields(x)[1]),
    *(telling(ctypes.c_int32, lambda x, at=at: fields(x)[8 + at]) for at in range(4)),
    CFUNCTYPE(c_bool, c_void_p)(lambda x: fields(x)[12]),
)  # fmt: skip
FUNCTIONS = struct.pack("9P", *(ctypes.cast(function, c_void_p).value or 0 for function in TOLD))
AT = Tensor.impl.__offset__ if hasattr(Tensor.impl, "__offset__") else object.__basicsize__ + 8


@CFUNCTYPE(c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
def read_head(x: Any, out: Any) -> int:
    there = id(x.impl) + BEGINS
    data, axes, *_ = IMAGE.unpack(x.impl)
    out[0] = DLTensor(data, 2, 0, axes, 2, 32, 1, there + 16, there + 40, 0)
    return 0


EXCHANGE = Exchange(
    1, 3, None, None, None, None, *(ctypes.cast(f, c_void_p).value for f in (read_head, current_stream))
)


def places(count: int = COUNT) -> np.ndarray:
    return np.zeros((count, 4), np.uint64)


def read(to: np.ndarray, *columns: Any, start: int = 0, count: int | None = None) -> Any:
    return native.read_tensors(
        Tensor, AT, FUNCTIONS, columns, start, len(to) if count is None else count, to.ctypes.data, 0
    )


def column(base: int, **more: Any) -> list[Any]:
    return [Tensor(base + 0x100 * i, 4, 6, **more) for i in range(COUNT)]


def test_all_that_are_alike() -> None:
    a, b, c, out = (column(base) for base in (1 << 20, 1 << 21, 1 << 22, 1 << 23))
    to = places()
    assert read(to, a, tuple(b), c, out) == (COUNT, tuple((1 << bit) | 0x1FF00 for bit in (20, 21, 22, 23)))
    assert to[:, 3].tolist() == [(1 << 23) + 0x100 * i for i in range(COUNT)]
    assert to[7].tolist() == [(1 << bit) + 0x700 for bit in (20, 21, 22, 23)]
    to = places()
    assert read(to, a, b[3], None, out, start=200, count=100)[0] == 100
    assert to[5].tolist() == [(1 << 20) + 0x100 * 205, (1 << 21) + 0x300, 0, (1 << 23) + 0x100 * 205]
    assert not to[100:].any()


@pytest.mark.parametrize("operand", range(4))
@pytest.mark.parametrize(
    "other",
    [
        Tensor(1 << 20, 4, 7), Tensor(1 << 20, 4), Tensor(1 << 20, 4, 6, 1), Tensor(1 << 20, 4, 6, strides=(1, 4)),
        *(Tensor(1 << 20, 4, 6, told=tuple((6, 1, 0, 0)[i] + (i == at) for i in range(4))) for at in range(4)),
        Tensor(1 << 20, 4, 6, negated=True), Tensor(0, 4, 6), type("Other", (Tensor,), {})(1 << 20, 4, 6), None, 3.0,
    ],
)  # fmt: skip
@pytest.mark.parametrize("at", [1, 64, 299])
def test_one_that_is_not(operand: int, other: Any, at: int) -> None:
    columns = [column(base) for base in (1 << 20, 1 << 21, 1 << 22, 1 << 23)]
    columns[operand][at] = other
    assert read(places(), *columns)[0] == at


def test_a_first_one_that_is_no_plain_tensor() -> None:
    for first in (Tensor(1 << 20, 4, 6, negated=True), Tensor(1 << 20, 1, 1, 1), 3):
        axes = isinstance(first, Tensor) and IMAGE.unpack(first.impl)[1] == 3
        assert read(places(), [first] * COUNT, *[column(1 << 21)] * 3)[0] == (COUNT if axes else 0)
    four = Tensor(1 << 20, 4, 6)
    four.impl = IMAGE.pack(1 << 20, 4, 1, 1, 1, 1, 1, 1, 6, 1, 0, 0, False)
    assert read(places(), [four] * COUNT, *[column(1 << 21)] * 3)[0] == 0


def test_whether_c_is_out() -> None:
    a, b, c, out = (column(base) for base in (1 << 20, 1 << 21, 1 << 22, 1 << 23))
    mixed = [*out[:100], *c[100:]]
    assert read(places(), a, b, mixed, out)[0] == 100
    assert read(places(), a, b, [*c[:100], *out[100:]], out)[0] == 100
    assert read(places(), a, b, out, out)[0] == COUNT


def test_columns_that_end_are_refused() -> None:
    a, out = column(1 << 20), column(1 << 21)
    for columns, start, count in (
        ((a[:-1], a, None, out), 0, COUNT),
        ((a, a, None, out), 1, COUNT),
        ((a, a, None, out), 0, 0),
    ):
        with pytest.raises(IndexError, match="products"):
            read(places(), *columns, start=start, count=count)


def test_where_a_tensor_has_its_own() -> None:
    plain = Tensor(1 << 20, 4), Tensor(1 << 21, 4, 6), Tensor(1 << 22, 3, 2, 5, strides=(1, 3, 6))
    minus = Tensor(1 << 23, 2, 2, negated=True)
    assert native.handle_at(capsule(EXCHANGE), FUNCTIONS, plain, minus) == AT
    for tensors, negated in ((plain, plain[0]), ((minus, *plain), minus)):
        with pytest.raises(ValueError, match="do not tell"):
            native.handle_at(capsule(EXCHANGE), FUNCTIONS, tensors, negated)
    with pytest.raises(ValueError, match="one class"):
        native.handle_at(capsule(EXCHANGE), FUNCTIONS, (*plain, None), minus)
    with pytest.raises(ValueError, match="another version"):
        native.handle_at(capsule(Exchange(2, 0)), FUNCTIONS, plain, minus)


class Array:
    """An array that tells by attributes. `asked`: how often it was asked for its shape."""

    asked = 0

    def __init__(self, address: int, shape: tuple[int, ...] = (4, 6), device: int = 0) -> None:
        self._shape, self.data = shape, type("Pointer", (), {"ptr": address, "device_id": device})()

    @property
    def shape(self) -> tuple[int, ...]:
        Array.asked += 1
        if self._shape == ():
            raise RuntimeError("it was deleted")
        return self._shape


def test_arrays_by_their_attributes() -> None:
    reader = cuda_heads.arrays(("shape", "data.device_id"), "data.ptr")
    assert reader is not None
    a, b, out = ([Array(base + 64 * i) for i in range(COUNT)] for base in (1 << 20, 1 << 21, 1 << 22))
    to = places()
    assert reader((a, b[0], out, out), 0, COUNT, to.ctypes.data)[0] == COUNT
    assert to[9].tolist() == [(1 << 20) + 576, 1 << 21, (1 << 22) + 576, (1 << 22) + 576]
    for other in (Array(0, (4, 7)), Array(0, device=1), Array(0, ()), Array("no address"), 3, None, object()):  # type: ignore[arg-type]
        assert reader((a, [*b[:50], other, *b[51:]], None, out), 0, COUNT, to.ctypes.data)[0] == 50
        assert reader(([other, *a[1:]], b, None, out), 0, 1, to.ctypes.data)[0] in (0, 1)
    asked = Array.asked
    assert reader(([a[0]] * COUNT, b[0], None, out[:1]), 0, 1, to.ctypes.data)[0] == 1
    assert Array.asked > asked
    with pytest.raises(IndexError):
        reader((a, b, None, out), 1, COUNT, to.ctypes.data)


def test_a_column_that_becomes_shorter_meanwhile() -> None:
    """Attributes may be anybody's code."""
    reader = cuda_heads.arrays(("shape",), "data.ptr")
    assert reader is not None

    class Emptying(Array):
        @property
        def shape(self) -> tuple[int, ...]:
            b.clear()
            return super().shape

    a, out, to = [Emptying(64 * i) for i in range(COUNT)], [Array(64 * i) for i in range(COUNT)], places()
    b = [Emptying(64 * i) for i in range(COUNT)]
    assert reader((a, b, None, out), 0, COUNT, to.ctypes.data)[0] == 0


def test_no_row_whose_tensors_may_be_conjugated_lazily_takes_them_apart() -> None:
    apart = [row for row in KERNELS if row.apart]
    assert apart
    assert not [row.name for row in apart if "complex" in row.dtype]


class Dense(Array):
    """As CuPy has them. `told`: whether its strides were asked for."""

    dtype = np.dtype(np.float32)
    told = False

    def __init__(self, address: int, *, contiguous: bool = True) -> None:
        super().__init__(address)
        self._c_contiguous = contiguous

    @property
    def strides(self) -> tuple[int, ...]:
        Dense.told = True
        return (24, 4) if self._c_contiguous else (4, 16)


@pytest.mark.parametrize("contiguous", [True, False])
def test_arrays_of_cupy(contiguous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dense, "told", False)
    reader, to = cuda_readers._cupy_heads(), places()
    assert reader is not None
    a, b = ([Dense(base + 96 * i, contiguous=contiguous) for i in range(COUNT)] for base in (1 << 20, 1 << 21))
    assert reader((a, b, None, None), 0, COUNT, to.ctypes.data)[0] == COUNT
    assert to[3].tolist() == [(1 << 20) + 288, (1 << 21) + 288, 0, 0]
    assert Dense.told != contiguous
    b[50] = Dense(0, contiguous=not contiguous)
    assert reader((a, b, None, None), 0, COUNT, to.ctypes.data)[0] == 50


def test_independence() -> None:
    to, room = places(), np.zeros((COUNT, 4), np.uint64)
    to[:, :] = (1 << 20) + 1024 * np.arange(4 * COUNT).reshape(COUNT, 4)
    reach = ((0, 1024),) * 4

    def found(reads_c: bool = True) -> bool:
        return cuda_heads.independent(to.ctypes.data, COUNT, reach, reads_c, room.ctypes.data)

    assert found()
    kept = to[30, 2]
    to[30, 2] = to[200, 3] + 1020
    assert not found()
    assert found(reads_c=False)
    to[30, 2], to[30, 3] = kept, to[31, 3]
    assert not found()
    to[30, 3] = to[30, 0]
    assert not found(), "it overlaps its own operand"
    with pytest.raises(ValueError, match="at once"):
        native.independent(0, 1 << 20, (0,) * 4, (1,) * 4, False, 0, 0)


# PyTorch's own: that they lie on the host makes no difference here.


@pytest.fixture(scope="module")
def torch() -> Any:
    module = pytest.importorskip("torch")
    if not hasattr(module.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("a PyTorch without DLPack's exchange")
    return module


def test_tensors_of_pytorch(torch: Any) -> None:
    reader = cuda_heads.tensors()
    assert reader is not None
    a = [torch.zeros(4, 6) for _ in range(COUNT)]
    b = list(torch.zeros(COUNT, 8, 6).transpose(1, 2)[..., 1:])
    out = [torch.zeros(4, 7, requires_grad=True) for _ in range(COUNT)]
    to = places()
    assert reader((a, b, None, out), 0, COUNT, to.ctypes.data)[0] == COUNT
    for operand, tensors in ((0, a), (1, b), (3, out)):
        assert to[:, operand].tolist() == [x.data_ptr() for x in tensors]
    others = [
        torch.zeros(6, 4).T, torch.zeros(4, 6, dtype=torch.int32), torch.zeros(4, 6).to_sparse(), torch.zeros(24),
        torch._neg_view(torch.zeros(4, 6)), torch.complex(torch.zeros(4, 6), torch.zeros(4, 6)).conj().imag,
        torch.zeros(4, 6, device="meta"), torch.nn.Parameter(torch.zeros(4, 6)), np.zeros((4, 6)), None,
    ]  # fmt: skip
    for at, other in zip(range(40, 300, 13), others, strict=False):
        given = [*a[:at], other, *a[at + 1 :]]
        assert reader((given, b, None, out), 0, COUNT, to.ctypes.data)[0] == at, other


def test_tensors_that_threads_read(torch: Any) -> None:
    reader, many = cuda_heads.tensors(), 12_000
    assert reader is not None
    a, to = [torch.zeros(2, 2) for _ in range(many)], places(many)
    assert reader((a, a[0], None, a), 0, many, to.ctypes.data)[0] == many
    assert to[:, 0].tolist() == [x.data_ptr() for x in a]
    a[11_000] = a[11_000].to_sparse()  # whose strides PyTorch refuses to tell
    assert reader((a, a[0], None, a), 0, many, to.ctypes.data)[0] == 11_000


def test_without_what_pytorch_tells(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_heads.tensors.cache_clear()
    monkeypatch.setattr(cuda_heads, "_TENSOR", (*cuda_heads._TENSOR[:-1], "no_such_function"))
    assert cuda_heads.tensors() is None
    cuda_heads.tensors.cache_clear()
