"""Launches given again for other addresses: what a repeated product of device arrays costs.

Checking arguments, choosing and laying out a product take longer than a small one runs. Like operands (library, types,
shapes, strides, device) need the same launches, if their addresses are aligned as well and out overlaps no input.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gemm.backends import cuda_heads
from gemm.backends.cuda_api import LEGACY_STREAM
from gemm.backends.cuda_arrays import DeviceArray
from gemm.backends.cuda_heads import Columns, Read
from gemm.backends.cuda_recipe import Layout
from gemm.backends.cuda_sequence import Launches
from gemm.backends.cuda_table import LEAST, MOST
from gemm.errors import KernelFailed


class _Reader(NamedTuple):
    """How arrays of one library are read, as quickly as that library allows.

    Attributes:
        facts: what decides a product's launches but for addresses. address: of the first element.
        stream: the one that work on an array belongs on. empty(array)(): a new array like it; several(array)(count): so
            many, which may be slices of one. read: of many arrays at once; None: there is no way.
    """

    facts: Callable[[Any], Any]
    address: Callable[[Any], int]
    stream: Callable[[Any], int]
    empty: Callable[[Any], Callable[[], Any]]
    several: Callable[[Any], Callable[[int], Any]]
    read: Read | None


def _torch() -> _Reader:
    torch = sys.modules["torch"]
    current = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def facts(x: Any) -> Any:
        return x.shape, x.stride(), x.dtype, x.get_device(), x.is_neg(), x.is_conj()

    def stream(x: Any) -> int:
        return current(x.get_device()) or LEGACY_STREAM  # type: ignore[misc]

    def slow_stream(x: Any) -> int:
        return torch.cuda.current_stream(x.device).cuda_stream or LEGACY_STREAM

    def empty(x: Any) -> Callable[[], Any]:
        return partial(torch.empty, tuple(x.shape), dtype=x.dtype, device=x.device)

    def several(x: Any) -> Callable[[int], Any]:
        rows, *rest = x.shape
        make = partial(torch.empty, dtype=x.dtype, device=x.device)
        return lambda count: make((count * rows, *rest)).unsafe_split(rows)  # to autograd arrays of their own

    used = slow_stream if current is None else stream
    return _Reader(facts, torch.Tensor.data_ptr, used, empty, several, cuda_heads.tensors())


def _cupy() -> _Reader:
    cupy = sys.modules["cupy"]

    def facts(x: Any) -> Any:
        return x.shape, x.strides, x.dtype, x.device.id

    def stream(x: Any) -> int:
        return cupy.cuda.get_current_stream(x.device.id).ptr or LEGACY_STREAM

    def empty(x: Any) -> Callable[[], Any]:
        def made() -> Any:
            with cupy.cuda.Device(x_device):
                return cupy.empty(shape, dtype)

        x_device, shape, dtype = x.device.id, x.shape, x.dtype
        return made

    def several(x: Any) -> Callable[[int], Any]:
        def made(count: int) -> Any:
            with cupy.cuda.Device(x_device):
                return list(cupy.empty((count, *shape), dtype))

        x_device, shape, dtype = x.device.id, x.shape, x.dtype
        return made

    read = cuda_heads.arrays(("shape", "strides", "dtype", "data.device_id"), "data.ptr")
    return _Reader(facts, lambda x: int(x.data.ptr), stream, empty, several, read)


def _own() -> _Reader:
    return _Reader(
        lambda x: (x.shape, x.dtype, x.device.key), lambda x: int(x._address),
        lambda x: LEGACY_STREAM, lambda x: partial(DeviceArray, x.shape, x.dtype, x.device),
        lambda x: lambda count: [DeviceArray(x.shape, x.dtype, x.device) for _ in range(count)],
        cuda_heads.arrays(("shape", "dtype", "device.key"), "_address"),
    )  # fmt: skip


_readers: dict[type, _Reader | None] = {}


def _reader(kind: type) -> _Reader | None:
    """For arrays of just that class; None: they go the long way."""
    if kind not in _readers:
        makers = {("torch", "Tensor"): _torch, ("cupy", "ndarray"): _cupy}
        make = makers.get((kind.__module__.partition(".")[0], kind.__name__), _own if kind is DeviceArray else None)
        _readers[kind] = make() if make else None
    return _readers[kind]


def signature(a: Any, b: Any, c: Any, out: Any, bias: Any = None) -> tuple[Any, ...] | None:
    """What decides the launches of a product of these arrays of one class but for their addresses.

    b is None where it is a prepared one, always the same; c and out where there is none. None: they may not repeat.
    """
    reader = _readers.get(a.__class__)
    if reader is None:
        return None
    facts = reader.facts
    return (
        facts(a), None if b is None else facts(b), None if c is None else c is out or facts(c),
        None if out is None else facts(out), None if bias is None else facts(bias),
    )  # fmt: skip


class Ready(NamedTuple):
    """Products whose places are written.

    Attributes:
        bits: that the addresses of a, b, c and out have. in_place: each c is its out. made: the results, if out is new.
    """

    count: int
    bits: tuple[int, ...]
    in_place: bool
    made: Any


class Replay:
    """A product of device arrays, repeatable for arrays like them in any thread.

    Attributes:
        layout, scale: what was launched, and its alpha and beta.
    """

    def __init__(
        self, launches: Launches, layout: Layout, scale: bytes, kept: int, reader: _Reader, arrays: tuple[Any, ...]
    ) -> None:
        self._launches, self._run, self.scale = launches, launches.run, scale
        self.layout = layout
        self._reader, self._address, self._stream = reader, reader.address, reader.stream
        self._empty, self._several = reader.empty(arrays[3]), reader.several(arrays[3])
        self._kept = kept  # b's address where it is prepared
        self._reads_c = layout.reads_c
        # Low bits that addresses must not have.
        self._masks = [least - 1 for least in layout.aligned]
        matrices = (*layout.shape[:-2],)
        m, n = layout.shape[-2:]
        shapes = ((*matrices, m, layout.k), (*matrices, layout.k, n), layout.shape, layout.shape)
        sizes = [16 if x is None else _itemsize(x) for x in arrays[:4]]
        self._spans = [_span(*each) for each in zip(shapes, layout.strides, sizes, strict=True)]
        if layout.bias is not None:
            size = _itemsize(arrays[4])
            self._spans.append(_span((m, n), tuple(size * step for step in layout.bias), size))

    @classmethod
    def of(cls, given: tuple[Launches, Layout, bytes, tuple[int, ...]], arrays: tuple[Any, ...]) -> Replay | None:
        """A replay, if the arrays' library can be read quickly and they are what was launched, not copied before.

        Args:
            given: what was launched, and the addresses of a, b, c, out and bias. arrays: these.
        """
        launches, layout, scale, addresses = given
        reader = _reader(arrays[0].__class__)
        if reader is None or any(
            x is not None and reader.address(x) != address for x, address in zip(arrays, addresses, strict=True)
        ):
            return None
        return cls(launches, layout, scale, addresses[1], reader, arrays)

    def taught(self, memo: Any, a: Any, b: Any, c: Any, out: Any, kinds: int) -> Any:
        """`memo`, or a new gemm._cuda.Memo, that repeats this product without Python; None for other libraries.

        The arrays are the caller's: b is None where it is a prepared one, out where a new array is wanted.
        """
        kind = a.__class__
        exchange = getattr(kind, "__dlpack_c_exchange_api__", None)
        if exchange is None or self._launches.native is None:
            return None
        spans = tuple(limit for span in self._spans for limit in span)
        aligned = tuple(mask + 1 for mask in self._masks)
        lesson = (a, b, c, out, self._empty, self._launches.native, self.scale, self._kept, self._reads_c, aligned,
                  spans)  # fmt: skip
        if memo is None or not memo.learn(*lesson):
            try:
                memo = importlib.import_module("gemm._cuda").Memo(kind, exchange, kinds)
            except ValueError:  # another version of the exchange than ours
                return None
            memo.learn(*lesson)
        return memo

    def stream(self, column: Any, number: int) -> int:
        """The one that a product belongs on whose a the column has."""
        return self._stream(_item(column, number))

    def places(self, columns: Columns, start: int, count: int, address: int, room: int) -> Ready | None:
        """Write to `address` where those of `count` products lie that are like this one, and of which none reads or
        writes what another writes; None: they are too few.

        Args:
            start: the number of the first of them. room: as for `cuda_heads.independent`.
        """
        read, (a, b, c, out), made = self._reader.read, columns, None
        if read is None:
            return None
        count, bits = read(columns, start, min(count, MOST), address)
        in_place = c is not None and out is not None and _item(c, start) is _item(out, start)
        if out is None and count >= LEAST:
            made = self._several(count)
            read_again, (*_, own) = read((None, None, None, made), 0, count, address)
            count, bits = min(count, read_again), (*bits[:3], own)
        own_c = self._reads_c and not in_place
        while made is None and count >= LEAST:
            if cuda_heads.independent(address, count, self._spans[:4], own_c, room):
                break
            count //= 2
        return Ready(count, bits, in_place, made) if count >= LEAST else None

    def __call__(self, a: Any, b: Any | None, c: Any, out: Any, bias: Any = None) -> Any:
        """`out`, or for None a new array, which the launches just enqueued will write; None: the long way it is."""
        address, masks = self._address, self._masks
        x, y = address(a), self._kept if b is None else address(b)
        new = out is None
        if new:
            out = self._empty()
        goal = address(out)
        z = 0 if c is None or not self._reads_c else goal if c is out else address(c)
        w = 0 if bias is None else address(bias)
        if x & masks[0] or y & masks[1] or z & masks[2] or goal & masks[3]:
            return None
        if not new:
            spans = self._spans
            low, high = goal + spans[3][0], goal + spans[3][1]
            if (x + spans[0][0] < high and low < x + spans[0][1]) or (y + spans[1][0] < high and low < y + spans[1][1]):
                return None
            if z and c is not out and z + spans[2][0] < high and low < z + spans[2][1]:
                return None
            if w and w + spans[4][0] < high and low < w + spans[4][1]:
                return None
        try:
            self._run(self._stream(out), x, y, z, goal, w, self.scale)
        except KernelFailed:
            return None  # the long way meets the same error, and knows what to do
        return out


def _item(column: Any, number: int) -> Any:
    """A product's operand in a column."""
    return column[number] if isinstance(column, list | tuple) else column


def _itemsize(x: Any) -> int:
    """Bytes of an element of an array of any library."""
    return int(x.element_size() if hasattr(x, "element_size") else x.dtype.itemsize)


def _span(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple[int, int]:
    """Bytes from the first element to the lowest one and to the end of the highest one, exactly.

    Allocators lay arrays side by side: with a byte more, neighbours would seem to overlap, and would not be repeated.
    """
    steps = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True) if length]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + size
