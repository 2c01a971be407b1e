"""Transfers blocks of host operands to a GPU and back, piece by piece, through the page-locked slots of a Channel.

A host array of any strides becomes a `Block` in device memory. A Block keeps the array's own order of axes in memory,
so that copying reads host memory sequentially. Axes that repeat (stride 0) are transferred once. Rows are padded to
multiples of 16 bytes, because TMA, which loads tiles of operands into shared memory, requires this.
"""

from __future__ import annotations

import ctypes
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from gemm.backends.cuda.driver import LEGACY_STREAM, cuda, follow
from gemm.backends.cuda.pinned import AHEAD, DEPTH, SLOT, Channel, Slot, channels
from gemm.core.operands import Cut, Range
from gemm.core.problem import Ints

_MEMCPY2D = struct.Struct(2 * "2QI4x4Q" + "2Q")
"""struct CUDA_MEMCPY2D: x, y, memory type, host address, device address, array and pitch of the source; the same fields
of the target; the width; the number of rows."""
_HOST, _DEVICE = 1, 2  # CU_MEMORYTYPE_*
ALIGN = 256
"""The alignment of operands on the device, in bytes. cuMemAlloc has the same alignment."""
_ROW = 16  # rows are padded to a multiple of this many bytes
_PADDED_FROM = 16 * _ROW  # bytes; shorter rows are not padded, because padding could be most of their memory


@dataclass(frozen=True)
class Block:
    """The layout of an array in device memory. Offsets start at 0.

    Attributes:
        axes: the array's axes in memory order, outermost first, without axes that repeat or have length 1.
        shape: the lengths of `axes`.
        strides: the byte strides of `axes`. The innermost stride is the element size.
        whole: byte strides of all axes of the array: 0 for an axis that repeats, the block's size (rounded up to 16
            bytes) for an axis of length 1.
        nbytes: the size in bytes, padding included.
    """

    axes: Ints
    shape: Ints
    strides: Ints
    whole: Ints
    nbytes: int

    def on_host(self, array: np.ndarray) -> np.ndarray:
        """Return a view of `array` with the block's axes. `array` must have the shape for which the block was made."""
        left_out = [axis for axis in range(array.ndim) if axis not in self.axes]
        ordered = array.transpose(*left_out, *self.axes)
        found: np.ndarray = ordered[(0,) * len(left_out) + (Ellipsis,)]
        return found

    def ranges(self, cut: Cut) -> tuple[Range, ...]:
        """Return the index range of each of the block's axes for the part `cut` of the array."""
        return tuple(cut.get(axis, (0, n)) for axis, n in zip(self.axes, self.shape, strict=True))


def block(array: np.ndarray, *, padded: bool = True) -> Block:
    """Return the Block of `array`, which must have at least one element.

    A Block for results must not be `padded`: the copy to the host would read the padding, which is uninitialised.
    """
    return _block(array.shape, array.strides, array.dtype.itemsize, padded)


@lru_cache(1024)
def _block(sizes: Ints, along: Ints, itemsize: int, padded: bool) -> Block:
    """Return the Block of an array with the shape `sizes` and the strides `along`."""
    steps = [abs(step) if n > 1 else 0 for step, n in zip(along, sizes, strict=True)]
    axes = tuple(sorted((axis for axis, step in enumerate(steps) if step), key=lambda axis: -steps[axis]))
    shape = tuple(sizes[axis] for axis in axes)
    strides: list[int] = []
    step = itemsize
    for at in range(len(axes) - 1, -1, -1):
        strides.insert(0, step)
        step *= shape[at]
        if padded and at == len(axes) - 1 and at and step >= _PADDED_FROM:
            step = -(-step // _ROW) * _ROW
    of_axis = dict(zip(axes, strides, strict=True))
    single = -(-step // _ROW) * _ROW
    whole = tuple(of_axis.get(axis, 0 if n > 1 else single) for axis, n in enumerate(sizes))
    return Block(axes, shape, tuple(strides), whole, step)


class Piece(NamedTuple):
    """A part of a block that one copy transfers, through `width * rows` bytes of staging memory.

    Attributes:
        place: the index that selects the piece in the array returned by Block.on_host.
        strides: byte strides of the piece's elements in staging memory.
        offset: bytes from the beginning of the block to the piece.
        width: bytes of a row.
        rows: the number of rows.
        pitch: bytes from one row to the next on the device. In staging memory, rows follow each other without gaps.
    """

    place: tuple[Any, ...]
    strides: Ints
    offset: int
    width: int
    rows: int
    pitch: int


def pieces(of: Block, ranges: Sequence[Range], limit: int) -> Iterator[Piece]:
    """Yield the part `ranges` of a block in pieces of at most `limit` bytes.

    One axis is cut into ranges; it is chosen so that there are few pieces. A piece has one range of this axis, a single
    index along each outer axis, and all indices of the part along each inner axis.
    """
    if not of.shape:
        yield Piece((Ellipsis,), (), 0, of.nbytes, 1, of.nbytes)
        return
    lengths = [stop - start for start, stop in ranges]
    whole = [n == length for n, length in zip(of.shape, lengths, strict=True)]
    # `run` is the outermost axis along which the part is contiguous. A row of a copy has this axis and all inner axes.
    run = len(whole) - 1
    while run > 0 and whole[run]:
        run -= 1
    outermost = run  # the outermost axis of one copy, whose rows must be equidistant
    while outermost > 0 and (outermost == run or whole[outermost]):
        outermost -= 1
    strides = list(of.strides)  # in staging memory, without gaps between rows
    for axis in reversed(range(run)):
        strides[axis] = strides[axis + 1] * lengths[axis + 1]
    cut = next((axis for axis in range(outermost, len(strides)) if strides[axis] <= limit), len(strides) - 1)
    most = max(1, limit // strides[cut])
    inner = [slice(start, stop) for start, stop in ranges[cut + 1 :]]
    origin = sum(start * step for (start, _), step in zip(ranges[cut + 1 :], of.strides[cut + 1 :], strict=True))
    start, stop = ranges[cut]
    for outer in product(*(range(*r) for r in ranges[:cut])):
        base = origin + sum(i * step for i, step in zip(outer, of.strides, strict=False))
        for first in range(start, stop, most):
            count = min(most, stop - first)
            nbytes = count * strides[cut]
            width, pitch = (nbytes, nbytes) if cut >= run else (strides[run - 1], of.strides[run - 1])
            place = (*outer, slice(first, first + count), *inner, Ellipsis)
            yield Piece(place, tuple(strides[cut:]), base + first * of.strides[cut], width, nbytes // width, pitch)


class _Awaited(NamedTuple):
    """A piece of out that is copied from the device to `target` after `event`. If `event` is 0, the event of the
    previous piece suffices. `address` is the device address of the piece's block.
    """

    piece: Piece
    target: np.ndarray
    address: int
    event: int


class Transfers:
    """The transfers of one product on its channel.

    The channel's copy thread copies between arrays and slots. This object queues the driver calls that must follow each
    copy. The caller can therefore give the thread its next copy before the current copy ends.

    Attributes:
        wrote: whether an element of out may have changed.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._due: deque[tuple[Future[None] | None, Callable[[], None]]] = deque()  # (copy to wait for or None, call)
        self._filling = 0  # number of slots in `_due` that are being filled
        self._waiting: deque[_Awaited] = deque()  # pieces whose copy from the device is not enqueued yet
        self._coming: deque[tuple[Slot, np.ndarray, np.ndarray]] = deque()  # slot, array in the slot, target
        self._landing: deque[tuple[Slot, Future[None]]] = deque()  # slot, copy from the slot to its target
        self.wrote = False

    def send(self, array: np.ndarray, of: Block, cut: Cut, address: int, *, advance: bool) -> None:
        """Send the part `cut` of `array` to its block at the device address `address`.

        With `advance`, also handle results that have arrived in the meantime.
        """
        host = of.on_host(array)
        for piece in pieces(of, of.ranges(cut), SLOT):
            if advance:
                self.advance()
            self.catch_up(AHEAD - 1)
            slot = self._channel.sent.take()
            source = host[piece.place]
            filled = self._channel.thread.copy(slot.array(source.shape, piece.strides, source.dtype), source)
            self._filling += 1
            self._due.append((filled, partial(self._depart, piece, slot, address)))

    def then(self, enqueue: Callable[[], None]) -> None:
        """Queue a call of `enqueue` after all copies queued so far. A later `send` or `catch_up` makes the call."""
        self._due.append((None, enqueue))

    def catch_up(self, filling: int = 0) -> None:
        """Make the driver calls that are ready, and wait until at most `filling` slots are being filled.

        If `filling` is 0, wait until all queued driver calls are made.
        """
        while self._due:
            filled, enqueue = self._due[0]
            if filled is not None:
                if self._filling <= filling and not filled.done():
                    return
                filled.result()
                self._filling -= 1
            self._due.popleft()
            enqueue()

    def _depart(self, piece: Piece, slot: Slot, address: int) -> None:
        _transfer(piece, slot.address, address, self._channel.up, to_host=False)
        cuda().cuEventRecord(slot.event, self._channel.up)
        self._channel.sent.give(slot)

    def fetch(self, array: np.ndarray, of: Block, cut: Cut, address: int, stream: int) -> None:
        """Queue a copy from the device, after the work that is on `stream` now.

        The copy transfers the part `cut` of the block at the device address `address` to the same part of `array`.
        `of` is the block's layout. `advance` runs the queued copies.
        """
        event = self._channel.mark(stream)
        host = of.on_host(array)
        for piece in pieces(of, of.ranges(cut), SLOT):
            self._waiting.append(_Awaited(piece, host[piece.place], address, event))
            event = 0

    def advance(self, *, wait: bool = False) -> None:
        """Copy results that have arrived in slots to their arrays, and start more copies from the device.

        With `wait`, continue until all results are in their arrays.
        """
        ring, down = self._channel.fetched, self._channel.down
        while self._landing or self._coming or self._waiting:
            while self._landing and self._landing[0][1].done():
                slot, landed = self._landing.popleft()
                landed.result()
                ring.give(slot)
            while self._waiting and len(self._coming) + len(self._landing) < DEPTH:
                slot, awaited = ring.take(), self._waiting.popleft()
                if awaited.event:
                    cuda().cuStreamWaitEvent(down, awaited.event, 0)
                _transfer(awaited.piece, slot.address, awaited.address, down, to_host=True)
                cuda().cuEventRecord(slot.event, down)
                staged = slot.array(awaited.target.shape, awaited.piece.strides, awaited.target.dtype)
                self._coming.append((slot, staged, awaited.target))
            if self._coming and (cuda().cuEventQuery(self._coming[0][0].event) or wait):
                slot, staged, target = self._coming.popleft()
                cuda().cuEventSynchronize(slot.event)
                self.wrote = True
                self._landing.append((slot, self._channel.thread.copy(target, staged, stream=True)))
            elif not wait:
                return
            elif self._landing:
                self._landing[0][1].result()


def send(gpu: Any, array: np.ndarray, address: int) -> None:
    """Copy a one-dimensional byte array to the device, after pending work on the legacy stream. Wait for the end."""
    with channels(gpu).one() as channel:
        follow(channel.up, LEGACY_STREAM)
        transfers = Transfers(channel)
        transfers.send(array, block(array), {}, address, advance=False)
        transfers.catch_up()
        cuda().cuStreamSynchronize(channel.up)


def fetch(gpu: Any, array: np.ndarray, address: int) -> None:
    """Copy device memory to a one-dimensional byte array, after pending work on the legacy stream. Wait for the end."""
    with channels(gpu).one() as channel:
        transfers = Transfers(channel)
        transfers.fetch(array, block(array), {}, address, LEGACY_STREAM)
        transfers.advance(wait=True)


def _transfer(piece: Piece, host: int, base: int, stream: int, *, to_host: bool) -> None:
    """Enqueue the copy of `piece` between staging memory (at `host`) and the device (block at `base`)."""
    device = base + piece.offset
    if piece.rows == 1:
        if to_host:
            cuda().cuMemcpyDtoHAsync(host, device, piece.width, stream)
        else:
            cuda().cuMemcpyHtoDAsync(device, host, piece.width, stream)
        return
    ends = (0, 0, _HOST, host, 0, 0, piece.width), (0, 0, _DEVICE, 0, device, 0, piece.pitch)
    source, target = ends[::-1] if to_host else ends
    rows = ctypes.create_string_buffer(_MEMCPY2D.pack(*source, *target, piece.width, piece.rows))
    cuda().cuMemcpy2DAsync(ctypes.addressof(rows), stream)
