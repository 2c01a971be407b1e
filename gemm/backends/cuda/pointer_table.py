"""Pointer batches: many separate products in one launch. A table on the device contains the operands' addresses.

The table has a struct gemm_place (csrc/gemm.h) for each product. gemm writes the table to page-locked memory, and
copies the table to the device on the products' stream, before the launch that reads it. Kernels with the parameter
`pointers` in the catalog can read such a table (POINTERS in gemm.cuh).
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from gemm.backends.cuda import array_metadata
from gemm.backends.cuda.array_metadata import Library
from gemm.backends.cuda.driver import cuda
from gemm.backends.cuda.launch_graph import Launches, Replay
from gemm.backends.cuda.launch_plan import Layout
from gemm.backends.cuda.pinned import Ring, Slot
from gemm.core import engine, threads
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.operands import item
from gemm.core.problem import DeviceView, Ints

Columns = tuple[Any, Any, Any, Any]
"""The operands a, b, c and out of several products. Each is a list or tuple with an array for each product, or one
array that all products use, or None."""
MOST = 16384
"""The maximum number of products in a table. MOST_ALIKE in order.h has the same value."""
LEAST = 16
"""The minimum number of products for which a table is worth its cost. To make a table, the host needs as much time as
for several launches."""
_PLACE, _C, _OUT = 32, 16, 24
"""Bytes of a gemm_place, and the offsets of the addresses of c and out in it."""


@cache
def _memory(gpu: Any) -> tuple[Ring, threading.Lock]:
    """Return the page-locked memory of `gpu` for tables, and the lock for it."""
    return Ring(MOST * (_PLACE + _PLACE)), threads.lock()


@contextmanager
def table_memory(gpu: Any) -> Iterator[Slot]:
    """Acquire page-locked memory for the entries of MOST products, followed by as many bytes of workspace.

    Only one thread at a time can have the memory.
    """
    ring, lock = _memory(gpu)
    with lock:
        slot = ring.take()
        try:
            yield slot
        finally:
            ring.give(slot)


def capturing(stream: int) -> bool:
    """Return whether `stream` is being captured into a CUDA graph.

    If so, gemm must not use a table: when the CUDA graph runs later, the table's memory has another use.
    """
    try:
        return bool(cuda().cuStreamIsCapturing(stream))
    except KernelFailed:  # the legacy stream must not be queried while another stream is captured
        return True


def rounded(count: int) -> int:
    """Round `count` up, by at most an eighth. This limits the number of launch plans: each size needs its own."""
    step = 1 << max(0, count.bit_length() - 4)
    return -(-count // step) * step


class Table(NamedTuple):
    """The description of a table of addresses in a slot.

    Attributes:
        many: the number of products.
        layout: the layout of each product, except for alignment.
        bits: the bitwise OR of the addresses, for each of a, b, c and out. The OR gives the common alignment.
        in_place: whether c is out.
        results: the new results, or None if the caller gave out.
    """

    many: int
    layout: Layout
    bits: Sequence[int]
    in_place: bool = False
    results: Any = None


def launch(
    gpu: Any, launches: Callable[[Layout], Launches], slot: Slot, table: Table, scale: bytes, stream: int
) -> None:
    """Enqueue the products of a table with the loaded launch plan that `launches(layout)` returns.

    The call pads the table to `rounded(count)` entries with zeros, which mean "no product". It therefore overwrites
    the memory in `slot` that follows the products' entries. If the call raises KernelFailed, nothing was computed.
    """
    count, layout, bits, in_place, _ = table
    size = rounded(count)
    slot.array((size, _PLACE), (_PLACE, 1), np.dtype(np.uint8))[count:] = 0  # the additional entries have no product
    aligned = [math.gcd(16, x) for x in bits]
    if in_place or not layout.reads_c:
        aligned[2] = aligned[3]
    ready = launches(layout._replace(
        shape=(size, *layout.shape), strides=tuple((_PLACE, *x) for x in layout.strides), aligned=tuple(aligned),
        apart=True,
    ))  # fmt: skip
    at = gpu.allocate(size * _PLACE, stream)
    try:
        cuda().cuMemcpyHtoDAsync(at, slot.address, size * _PLACE, stream)
        cuda().cuEventRecord(slot.event, stream)
        c = 0 if not layout.reads_c else at + (_OUT if in_place else _C)
        ready.run(stream, (at, at + 8, c, at + _OUT, 0), scale)
    except KernelFailed:
        with suppress(KernelFailed):  # wait: the slot must be free, even if its event was not recorded
            cuda().cuStreamSynchronize(stream)
        raise
    finally:
        gpu.free(at, stream)


def spread(slot: Slot, views: Sequence[DeviceView | None], first: int, count: int) -> list[int]:
    """Write the addresses of `count` matrices of each stack in `views` (a, b, c, out) to the table in `slot`.

    The matrices are those from number `first` on. A stack that is None has the addresses 0.

    Returns the bitwise OR of the addresses for each of a, b, c and out.
    """
    places = slot.array((count, 4), (_PLACE, 8), np.dtype(np.uint64))
    numbers = np.arange(first, first + count)
    for operand, view in enumerate(views):
        address: Any = 0
        if view is not None:
            index = np.unravel_index(numbers, (1, *view.shape[:-2]))[1:]
            address = view.data + view.offset + sum(i * step for i, step in zip(index, view.strides, strict=False))
        places[:, operand] = address
    return [int(bits) for bits in np.bitwise_or.reduce(places, axis=0)]


def collect(slot: Slot, replay: Replay, columns: Columns, start: int, count: int) -> Table | None:
    """Write the operand addresses of up to `count` products, from product `start` on, to the table in `slot`.

    All these products must have the same metadata as the product of `replay`, and no product may read or write the
    result of another. Returns None if there are fewer than LEAST such products.
    """
    if not array_metadata.module():
        return None
    reader, (*_, c, out), results = replay.reader, columns, None
    count, bits = read(reader, columns, start, min(count, MOST), slot.address)
    in_place = c is not None and out is not None and item(c, start) is item(out, start)
    if out is None and count >= LEAST:
        results = replay.results(count)
        readable, (*_, own) = read(reader, (None, None, None, results), 0, count, slot.address)
        count, bits = min(count, readable), (*bits[:3], own)
    own_c = replay.layout.reads_c and not in_place
    while results is None and count >= LEAST and not independent(slot, count, replay.spans, own_c):
        count //= 2
    return Table(count, replay.layout, bits, in_place, results) if count >= LEAST else None


def read(reader: Library, columns: Columns, start: int, count: int, address: int) -> tuple[int, Ints]:
    """Write the operand addresses of up to `count` products, from product `start` on, to the table at `address`.

    Reading stops at the first product whose metadata differ from those of product `start`.

    Returns:
        (number of products read, bitwise OR of the addresses for each of a, b, c and out).
    """
    given = [(operand, column) for operand, column in enumerate(columns) if column is not None]
    to = (ctypes.c_uint64 * (4 * count)).from_address(address)
    before: list[Any] = [None] * 4
    first: dict[int, Any] = {}
    at, bits, done = [0] * 4, [0] * 4, 0
    kind = in_place = None
    with suppress(Exception):  # an object that is not an array: the check of its product reports it
        while done < count:
            found = [(operand, item(column, start + done)) for operand, column in given]
            role = columns[2] is not None and columns[3] is not None and found[-1][1] is found[-2][1]
            if done == 0:
                kind, in_place = found[0][1].__class__, role
            if role != in_place:
                break
            for operand, x in found:
                if x is not before[operand]:
                    facts = reader.facts(x)
                    if x.__class__ is not kind or facts != first.setdefault(operand, facts):
                        return done, tuple(bits)
                    before[operand], at[operand] = x, reader.address(x)
            for operand, _ in given:
                to[4 * done + operand] = at[operand]
                bits[operand] |= at[operand]
            done += 1
    return done, tuple(bits)


@cache
def _share() -> int:
    """Return the address of the C engine's function gemm_share, which distributes work to threads.

    Returns 0 if the engine is missing. One thread then does all the work.
    """
    with suppress(BackendUnavailable):
        module = engine.engine()
        return int(module.ffi.cast("uintptr_t", module.ffi.addressof(module.lib, "gemm_share")))
    return 0


def independent(slot: Slot, count: int, spans: Sequence[tuple[int, int]], reads_c: bool) -> bool:
    """Return whether the first `count` products of the table in `slot` can be computed in any order.

    `spans` are those of a Replay. `reads_c`: whether c is read and is not out.
    """
    low, high = zip(*spans[:4], strict=True)
    workspace = slot.address + MOST * _PLACE  # 32 bytes for each product
    known = array_metadata.module().independent(slot.address, count, low, high, reads_c, workspace, _share())
    return bool(known)
