"""Repeated products of device arrays: launches the graph of an earlier product with other addresses.

Checking the arguments, choosing a kernel and planning its launches takes longer than a small product runs. Operands
with equal library, types, shapes, strides and device need the same launches, if their addresses have at least the same
alignment and out overlaps no input.
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
    """Return the signature of a product: everything that determines its launches, except the addresses.

    All arrays must have the same class. b is None for a prepacked matrix, which is the same in each call. c or out is
    None if it is not given. Returns None if such products cannot be repeated.
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
    """Products of a pointer batch whose addresses are in the table.

    Attributes:
        many: the number of products.
        bits: the bitwise OR of the addresses, for each of a, b, c and out.
        in_place: whether each c is also the out of its product.
        made: the new results, or None if the caller gave out.
    """

    many: int
    bits: tuple[int, ...]
    in_place: bool
    made: Any


class Replay:
    """A product of device arrays that can be repeated, in any thread, for arrays with the same metadata.

    Attributes:
        layout: the layout of the product that was launched.
    """

    def __init__(
        self, launches: Launches, layout: Layout, scale: Callable[[Any, Any], bytes], form: str, kept: int,
        reader: Reader, arrays: tuple[Any, ...],
    ) -> None:  # fmt: skip
        self._launches, self._run, self._scale, self._form = launches, launches.run, scale, form
        self.layout = layout
        self._reader, self._address, self._stream = reader, reader.address, reader.stream
        self._empty, self._several = reader.empty(arrays[3]), reader.several(arrays[3])
        self._kept = kept  # b's address if b is prepacked
        self._reads_c = layout.reads_c
        # The low bits that must be 0 in the addresses.
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
        """Return a Replay of a launch, or None if the launch cannot be repeated.

        The launch can be repeated if there is a Reader for the arrays' library, and if the launch used the arrays
        themselves, not copies.

        Args:
            given: the launches, their layout, and the addresses of a, b, c, out and bias.
            scale: converts alpha and beta to the bytes that the kernel takes.
            form: the format (module struct) of each of these scalars.
            arrays: a, b, c, out and bias of the launch.
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
        """What gemm._memo needs to repeat the product in C, or None if it cannot.

        A tuple: the function that makes a new result, the gemm._memo.Sequence, and (format of the scalars, address of
        a prepacked b, b's span in bytes, the low bits that must be 0 in the addresses).
        """
        if not self._reader.native or self._launches.native is None:
            return None
        return self._empty, self._launches.native, (self._form, self._kept, *self._spans[1], *self._masks)

    def stream(self, column: Any, number: int) -> int:
        """Return the stream of product `number`, from its operand a in `column`."""
        return self._stream(item(column, number))

    def places(self, columns: Columns, start: int, count: int, address: int, room: int) -> Ready | None:
        """Write the operand addresses of products to the table at `address`.

        The table gets up to `count` products, from product `start` on, with the same metadata as the product of this
        Replay. No product may read or write the result of another.

        Args:
            room: the address of a workspace; see `_independent`.

        Returns None if there are fewer than LEAST such products.
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
        """Enqueue the product. Return `out`, or a new array if `out` is None.

        Returns None if the product must take the full path: because of alignment, overlap or an error.
        """
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
            return None  # the full path meets the same error and handles it
        return out


@cache
def _share() -> int:
    """Return the address of the C engine's gemm_share, which distributes work to threads.

    Returns 0 if the engine is missing. Then one thread does all the work.
    """
    with suppress(BackendUnavailable):
        module = engine.engine()
        return int(module.ffi.cast("uintptr_t", module.ffi.addressof(module.lib, "gemm_share")))
    return 0


def _independent(address: int, count: int, spans: Sequence[tuple[int, int]], reads_c: bool, room: int) -> bool:
    """Return whether the `count` products in the table at `address` can be computed in any order.

    Args:
        spans: for each of a, b, c and out, the bytes from the first element to the lowest one and to the end of the
            highest one.
        reads_c: whether c is read and is not out.
        room: the address of a workspace, 32 bytes for each product.
    """
    low, high = zip(*spans, strict=True)
    return bool(array_metadata.module().independent(address, count, low, high, reads_c, room, _share()))


def _itemsize(x: Any) -> int:
    """Return the bytes of an element of an array of any library."""
    return int(x.element_size() if hasattr(x, "element_size") else x.dtype.itemsize)


def _span(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple[int, int]:
    """Return the bytes from the first element to the lowest one, and to the end of the highest one.

    Both numbers must be exact. Allocators place arrays directly next to each other. If a span were too large,
    neighbouring arrays would seem to overlap, and the product would not be repeated.
    """
    steps = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True) if length]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + size
