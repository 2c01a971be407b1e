"""Launches given again for other addresses: what a repeated product of device arrays costs.

Checking arguments, choosing and laying out a product take longer than a small one runs. Like operands (library, types,
shapes, strides, device) need the same launches, if their addresses are aligned as well and out overlaps no input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from gemm.backends.cuda import array_metadata
from gemm.backends.cuda.array_metadata import Columns, Reader
from gemm.backends.cuda.launch_graph import Launches
from gemm.backends.cuda.launch_plan import Layout
from gemm.backends.cuda.pointer_table import LEAST, MOST
from gemm.core import engine
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.operands import item


def signature(a: Any, b: Any, c: Any, out: Any, bias: Any = None) -> tuple[Any, ...] | None:
    """What decides the launches of a product of these arrays of one class but for their addresses.

    b is None where it is a prepared one, always the same; c and out where there is none. None: they may not repeat.
    """
    reader = array_metadata.known.get(a.__class__)
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
        many: how many. bits: that the addresses of a, b, c and out have. in_place: each c is its out.
        made: the results, if out is new.
    """

    many: int
    bits: tuple[int, ...]
    in_place: bool
    made: Any


class Replay:
    """A product of device arrays, repeatable for arrays like them in any thread.

    Attributes:
        layout: what was launched.
    """

    def __init__(
        self, launches: Launches, layout: Layout, scale: Callable[[Any, Any], bytes], form: str, kept: int,
        reader: Reader, arrays: tuple[Any, ...],
    ) -> None:  # fmt: skip
        self._launches, self._run, self._scale, self._form = launches, launches.run, scale, form
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
    def of(
        cls, given: tuple[Launches, Layout, tuple[int, ...]], scale: Callable[[Any, Any], bytes], form: str,
        arrays: tuple[Any, ...],
    ) -> Replay | None:  # fmt: skip
        """A replay, if the arrays' library can be read quickly and they are what was launched, not copied before.

        Args:
            given: what was launched, and the addresses of a, b, c, out and bias. arrays: these.
            scale: alpha and beta as they are launched, which struct has as `form` each.
        """
        launches, layout, addresses = given
        reader = array_metadata.reader(arrays[0].__class__)
        if reader is None or any(
            x is not None and reader.address(x) != address for x, address in zip(arrays, addresses, strict=True)
        ):
            return None
        return cls(launches, layout, scale, form, addresses[1], reader, arrays)

    @property
    def native(self) -> tuple[Any, ...] | None:
        """What makes a new result, the gemm._memo.Sequence that a Memo launches by itself, and what that is to know
        besides; None: it cannot."""
        if not self._reader.native or self._launches.native is None:
            return None
        return self._empty, self._launches.native, (self._form, self._kept, *self._spans[1], *self._masks)

    def stream(self, column: Any, number: int) -> int:
        """The one that a product belongs on whose a the column has."""
        return self._stream(item(column, number))

    def places(self, columns: Columns, start: int, count: int, address: int, room: int) -> Ready | None:
        """Write to `address` where those of `count` products lie that are like this one, and of which none reads or
        writes what another writes; None: they are too few.

        Args:
            start: the number of the first of them. room: as for `_independent`.
        """
        read, (*_, c, out), made = self._reader.read, columns, None
        if not array_metadata.module():
            return None
        count, bits = read(columns, start, min(count, MOST), address)
        in_place = c is not None and out is not None and item(c, start) is item(out, start)
        if out is None and count >= LEAST:
            made = self._several(count)
            read_again, (*_, own) = read((None, None, None, made), 0, count, address)
            count, bits = min(count, read_again), (*bits[:3], own)
        own_c = self._reads_c and not in_place
        while made is None and count >= LEAST:
            if _independent(address, count, self._spans[:4], own_c, room):
                break
            count //= 2
        return Ready(count, bits, in_place, made) if count >= LEAST else None

    def __call__(self, a: Any, b: Any | None, c: Any, out: Any, alpha: Any, beta: Any, bias: Any = None) -> Any:
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
            self._run(self._stream(out), x, y, z, goal, w, self._scale(alpha, beta))
        except KernelFailed:
            return None  # the long way meets the same error, and knows what to do
        return out


@cache
def _share() -> int:
    """Where the engine's gemm_share is; 0: there is none, and nobody shares."""
    with suppress(BackendUnavailable):
        module = engine.engine()
        return int(module.ffi.cast("uintptr_t", module.ffi.addressof(module.lib, "gemm_share")))
    return 0


def _independent(address: int, count: int, spans: Sequence[tuple[int, int]], reads_c: bool, room: int) -> bool:
    """Whether so many products may be computed in any order, whose places are at `address`.

    Args:
        spans: bytes before and after the first element that a, b, c and out lie at. reads_c: c, where it is not out.
        room: the address of 32 bytes a product to write to.
    """
    low, high = zip(*spans, strict=True)
    return bool(array_metadata.module().independent(address, count, low, high, reads_c, room, _share()))


def _itemsize(x: Any) -> int:
    """Bytes of an element of an array of any library."""
    return int(x.element_size() if hasattr(x, "element_size") else x.dtype.itemsize)


def _span(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple[int, int]:
    """Bytes from the first element to the lowest one and to the end of the highest one, exactly.

    Allocators lay arrays side by side: with a byte more, neighbours would seem to overlap, and would not be repeated.
    """
    steps = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True) if length]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + size
