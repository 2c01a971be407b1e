"""Transfers blocks of host operands to a GPU and back, piece by piece, through the page-locked slots of a Lane."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gemm.backends.cuda.api import LEGACY_STREAM, cuda
from gemm.backends.cuda.host_blocks import Block, Piece, block, pieces
from gemm.backends.cuda.pinned import AHEAD, DEPTH, SLOT, Lane, Slot, happened, lanes
from gemm.core.operands import Cut

HOST, DEVICE = 1, 2  # CU_MEMORYTYPE_*


class Rows2D(ctypes.Structure):
    """The C struct CUDA_MEMCPY2D."""

    _fields_ = (
        ("from_x", ctypes.c_size_t), ("from_y", ctypes.c_size_t), ("from_kind", ctypes.c_uint),
        ("from_host", ctypes.c_void_p), ("from_device", ctypes.c_void_p), ("from_array", ctypes.c_void_p),
        ("from_pitch", ctypes.c_size_t),
        ("to_x", ctypes.c_size_t), ("to_y", ctypes.c_size_t), ("to_kind", ctypes.c_uint),
        ("to_host", ctypes.c_void_p), ("to_device", ctypes.c_void_p), ("to_array", ctypes.c_void_p),
        ("to_pitch", ctypes.c_size_t), ("width", ctypes.c_size_t), ("rows", ctypes.c_size_t),
    )  # fmt: skip


class _Awaited(NamedTuple):
    """A piece of out to fetch to `target` after `event`. 0 means that the previous piece's event suffices."""

    piece: Piece
    target: np.ndarray
    address: int
    event: int


class Travel:
    """The transfers of one product on its lane.

    The lane's copy thread copies between arrays and slots. This object queues the driver calls that must follow each
    copy. The caller can therefore give the thread its next copy before the current one ends.

    Attributes:
        wrote: whether an element of out may have changed.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._due: deque[tuple[Future[None] | None, Callable[[], None]]] = deque()  # (copy to wait for or None, call)
        self._filling = 0  # number of slots in `_due` that are being filled
        self._waiting: deque[_Awaited] = deque()
        self._coming: deque[tuple[Slot, np.ndarray, np.ndarray]] = deque()  # slot, array in the slot, target
        self._landing: deque[tuple[Slot, Future[None]]] = deque()
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
            slot = self._lane.sent.take()
            source = host[piece.place]
            filled = self._lane.porter.copy(slot.holding(source.shape, piece.strides, source.dtype), source)
            self._filling += 1
            self._due.append((filled, partial(self._depart, piece, slot, address)))

    def then(self, enqueue: Callable[[], None]) -> None:
        """Queue a call of `enqueue` behind all copies that were sent before. The next `send` or `catch_up` makes it."""
        self._due.append((None, enqueue))

    def catch_up(self, filling: int = 0) -> None:
        """Make the driver calls that are ready, and wait until at most `filling` slots are being filled.

        With 0, wait until all queued driver calls are made.
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
        _transfer(piece, slot.address, address, self._lane.up, to_host=False)
        cuda().cuEventRecord(slot.event, self._lane.up)
        self._lane.sent.give(slot)

    def fetch(self, array: np.ndarray, of: Block, cut: Cut, address: int, stream: int) -> None:
        """Queue the copy of the part `cut` of the block at `address` to `array`, after the work now on `stream`.

        `advance` runs the queued copies.
        """
        event = self._lane.mark(stream)
        host = of.on_host(array)
        for piece in pieces(of, of.ranges(cut), SLOT):
            self._waiting.append(_Awaited(piece, host[piece.place], address, event))
            event = 0

    def advance(self, *, wait: bool = False) -> None:
        """Copy results that have arrived in slots to their arrays, and start more copies from the device.

        With `wait`, continue until all results are in their arrays.
        """
        ring, down = self._lane.fetched, self._lane.down
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
                held = slot.holding(awaited.target.shape, awaited.piece.strides, awaited.target.dtype)
                self._coming.append((slot, held, awaited.target))
            if self._coming and (happened(self._coming[0][0].event) or wait):
                slot, held, target = self._coming.popleft()
                cuda().cuEventSynchronize(slot.event)
                self.wrote = True
                self._landing.append((slot, self._lane.porter.copy(target, held, stream=True)))
            elif not wait:
                return
            elif self._landing:
                self._landing[0][1].result()


def send(gpu: Any, array: np.ndarray, address: int) -> None:
    """Copy the one-dimensional byte array to the device after pending work on the legacy stream, and wait."""
    with lanes(gpu).one() as lane:
        lane.follow(lane.up, LEGACY_STREAM)
        travel = Travel(lane)
        travel.send(array, block(array), {}, address, advance=False)
        travel.catch_up()
        cuda().cuStreamSynchronize(lane.up)
        lane.rest()


def fetch(gpu: Any, array: np.ndarray, address: int) -> None:
    """Copy device memory to the one-dimensional byte array after pending work on the legacy stream, and wait."""
    with lanes(gpu).one() as lane:
        travel = Travel(lane)
        travel.fetch(array, block(array), {}, address, LEGACY_STREAM)
        travel.advance(wait=True)
        lane.rest()


def _transfer(piece: Piece, host: int, base: int, stream: int, *, to_host: bool) -> None:
    """Enqueue the copy of `piece` between staging memory (at `host`) and the device (block at `base`)."""
    device = base + piece.offset
    if piece.rows == 1:
        if to_host:
            cuda().cuMemcpyDtoHAsync(host, device, piece.width, stream)
        else:
            cuda().cuMemcpyHtoDAsync(device, host, piece.width, stream)
        return
    here: dict[str, Any] = {"kind": HOST, "host": host, "pitch": piece.width}
    there: dict[str, Any] = {"kind": DEVICE, "device": device, "pitch": piece.pitch}
    source, target = (there, here) if to_host else (here, there)
    ends = {f"from_{key}": value for key, value in source.items()} | {f"to_{k}": v for k, v in target.items()}
    rows = Rows2D(width=piece.width, rows=piece.rows, **ends)
    cuda().cuMemcpy2DAsync(ctypes.addressof(rows), stream)
