"""Products that each lie by themselves, as one launch: a table on the device has the addresses of their operands.

The table, a struct gemm_place of csrc/gemm.h a product, is written in page-locked memory and copied on the products'
stream, ahead of the launch that reads it. Kernels whose rows say `pointers` take one (POINTERS in gemm.cuh).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from gemm.backends.cuda.api import cuda
from gemm.backends.cuda.launch_graph import Launches
from gemm.backends.cuda.launch_plan import Layout
from gemm.backends.cuda.pinned import Ring, Slot
from gemm.core import threads
from gemm.core.errors import KernelFailed
from gemm.core.problem import DeviceView

MOST = 16384
"""Products of a table, as MOST_ALIKE in order.h."""
LEAST = 16
"""Products that a table is worth: it costs the host what some launches do."""
_PLACE, _C, _OUT = 32, 16, 24
"""Bytes a product, and where among them the addresses of c and out are."""


class Tables:
    """Page-locked memory of a GPU for tables, lent to one thread at a time."""

    def __init__(self) -> None:
        self._ring, self._lock = Ring(MOST * (_PLACE + _PLACE)), threads.lock()

    @contextmanager
    def one(self) -> Iterator[Slot]:
        """Memory for MOST products' places, and as much again behind it."""
        with self._lock:
            slot = self._ring.take()
            try:
                yield slot
            finally:
                self._ring.give(slot)


@cache
def tables(gpu: Any) -> Tables:
    """Those of `gpu`."""
    return Tables()


def room(slot: Slot) -> int:
    """Where the memory behind the places begins."""
    return slot.address + MOST * _PLACE


def capturing(stream: int) -> bool:
    """Whether what is enqueued on `stream` is recorded, to be done later: the table is others' by then."""
    try:
        return bool(cuda().cuStreamIsCapturing(stream))
    except KernelFailed:  # the legacy stream, which may not be asked while another one is
        return True


def rounded(count: int) -> int:
    """So many products or up to an eighth more, so that few sizes of tables need a choice and a launch of their own."""
    step = 1 << max(0, count.bit_length() - 4)
    return -(-count // step) * step


class Table(NamedTuple):
    """The first `many` products whose places are in a slot.

    Attributes:
        layout: of each of the products, except for alignment. bits: that their addresses have. in_place: c is out.
    """

    many: int
    layout: Layout
    bits: Sequence[int]
    in_place: bool = False


def launch(
    gpu: Any, launches: Callable[[Layout], Launches], slot: Slot, table: Table, scale: bytes, stream: int
) -> None:
    """Enqueue the products of a table by `launches(layout)`; what is behind their places in `slot` is overwritten.

    Raises KernelFailed; then nothing was computed.
    """
    count, layout, bits, in_place = table
    size = rounded(count)
    slot.holding((size, _PLACE), (_PLACE, 1), np.dtype(np.uint8))[count:] = 0  # no products
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
        ready.run(stream, at, at + 8, c, at + _OUT, 0, scale)
    except KernelFailed:
        with suppress(KernelFailed):  # the slot is to be free, whatever its event says
            cuda().cuStreamSynchronize(stream)
        raise
    finally:
        gpu.free(at, stream)


def spread(slot: Slot, views: Sequence[DeviceView | None], first: int, count: int) -> list[int]:
    """Write where items `first` to `first + count` of the stacks a, b, c and out lie; the bits that they have."""
    places = slot.holding((count, 4), (_PLACE, 8), np.dtype(np.uint64))
    found = []
    for operand, view in enumerate(views):
        if view is None:
            places[:, operand], bits = 0, 0
        else:
            start, number = np.full(count, view.data + view.offset), np.arange(first, first + count)
            for length, step in zip(view.shape[-3::-1], view.strides[-3::-1], strict=True):
                start, number = start + number % length * step, number // length
            places[:, operand] = start
            bits = int(np.bitwise_or.reduce(places[:, operand]))
        found.append(bits)
    return found
