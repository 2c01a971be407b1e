"""Blocks of host operands on their way to a GPU and back, piece by piece through the rings of a lane."""

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
    """CUDA_MEMCPY2D."""

    _fields_ = (
        ("from_x", ctypes.c_size_t), ("from_y", ctypes.c_size_t), ("from_kind", ctypes.c_uint),
        ("from_host", ctypes.c_void_p), ("from_device", ctypes.c_void_p), ("from_array", ctypes.c_void_p),
        ("from_pitch", ctypes.c_size_t),
        ("to_x", ctypes.c_size_t), ("to_y", ctypes.c_size_t), ("to_kind", ctypes.c_uint),
        ("to_host", ctypes.c_void_p), ("to_device", ctypes.c_void_p), ("to_array", ctypes.c_void_p),
        ("to_pitch", ctypes.c_size_t), ("width", ctypes.c_size_t), ("rows", ctypes.c_size_t),
    )  # fmt: skip


class _Awaited(NamedTuple):
    """A piece of out to be fetched to `target`, after `event` (0: after those before it)."""

    piece: Piece
    target: np.ndarray
    address: int
    event: int


class Travel:
    """The copies of one product on its lane.

    The lane's porter copies between arrays and slots. What is to be enqueued after that waits its turn here, so that
    the porter has the next copy before it is through with one.

    Attributes:
        wrote: whether an element of out may have changed.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._due: deque[tuple[Future[None] | None, Callable[[], None]]] = deque()  # after a copy, or at once
        self._filling = 0  # of them, slots
        self._waiting: deque[_Awaited] = deque()
        self._coming: deque[tuple[Slot, np.ndarray, np.ndarray]] = deque()  # slot, what it will hold, target
        self._landing: deque[tuple[Slot, Future[None]]] = deque()
        self.wrote = False

    def send(self, array: np.ndarray, of: Block, cut: Cut, address: int, *, advance: bool) -> None:
        """The part `cut` of `array` to its block at `address`; with `advance` results are taken in meanwhile."""
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
        """Call `enqueue` when all that was sent before is on its way, which the next `send` or `catch_up` sees to."""
        self._due.append((None, enqueue))

    def catch_up(self, filling: int = 0) -> None:
        """Enqueue what is ready, and wait until no more than `filling` slots are being filled; 0: for everything."""
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
        """The part `cut` of the block at `address` to `array`, once `stream` has computed it. `advance` does it."""
        event = self._lane.mark(stream)
        host = of.on_host(array)
        for piece in pieces(of, of.ranges(cut), SLOT):
            self._waiting.append(_Awaited(piece, host[piece.place], address, event))
            event = 0

    def advance(self, *, wait: bool = False) -> None:
        """Have copied what has come to where it belongs and let more come; with `wait` until everything has."""
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
    """Copy the bytes `array` (one axis) to the device, in order on the legacy stream; waits."""
    with lanes(gpu).one() as lane:
        lane.follow(lane.up, LEGACY_STREAM)
        travel = Travel(lane)
        travel.send(array, block(array), {}, address, advance=False)
        travel.catch_up()
        cuda().cuStreamSynchronize(lane.up)
        lane.rest()


def fetch(gpu: Any, array: np.ndarray, address: int) -> None:
    """Copy bytes of the device to `array` (one axis), in order on the legacy stream; waits."""
    with lanes(gpu).one() as lane:
        travel = Travel(lane)
        travel.fetch(array, block(array), {}, address, LEGACY_STREAM)
        travel.advance(wait=True)
        lane.rest()


def _transfer(piece: Piece, host: int, base: int, stream: int, *, to_host: bool) -> None:
    """Enqueue the copy of `piece` between staging memory and the device."""
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
