"""Page-locked host memory, which the GPU's copy engines access directly, and the resources to transfer host operands.

The driver copies ordinary memory through its own page-locked memory, with one thread. Such a copy runs at less than
half of the link's rate, and the caller must wait for its end. gemm therefore stages the data itself:

- `Ring`: a few page-locked slots. The C engine's threads fill a slot while the copy engine empties the previous slot.
- `CopyThread`: runs the copies between arrays and slots while the caller's thread launches kernels.
- `Channel`: the streams, rings and copy thread of one product. Locking pages takes milliseconds, so gemm keeps channels
  for later products.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import cache
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from gemm.backends.cuda.driver import Driver, cuda
from gemm.core import engine
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.operands import aligned
from gemm.core.problem import Ints

SLOT = 16 << 20
"""Bytes of a slot. At 55 GB/s, the link needs 0.3 ms for a slot, many times the time to start a copy."""
SMALL = 4 << 20
"""Operands of at most this many bytes in total are sent together, in one slot of staging memory. Panels would hide at
most half of the copy time, that is, about 0.05 ms at 40 GB/s. The threads and driver calls for panels would take as
much time."""
DEPTH = 3
"""Number of slots of a ring: AHEAD slots for the copy thread, and one for the copy engine."""
AHEAD = 2
"""Number of copies in the copy thread's queue: the running copy and the next one, so that the thread never idles."""
_CHANNELS = 4
"""Number of channels of a GPU. If all are in use, a product waits. More channels would not help: all share the link."""
_NON_BLOCKING, _DISABLE_TIMING = 1, 2
_THREADED_FROM = 1 << 16  # copies of at least this many bytes use the C engine's threads


def locked(nbytes: int) -> np.ndarray:
    """Return an array of `nbytes` of page-locked memory. The memory is freed with the last array that uses it.

    A context must be current. Another context, or none, may be current when the memory is freed: after a failure, the
    traceback of the exception may hold the last array.

    If the driver has no page-locked memory left, return ordinary memory.
    """
    try:
        address = cuda().cuMemHostAlloc(nbytes, 1)  # CU_MEMHOSTALLOC_PORTABLE: locked for every context
    except KernelFailed as error:
        if not error.memory:
            raise
        try:
            return aligned(nbytes)
        except MemoryError:
            raise error from None
    memory: Any = (ctypes.c_ubyte * nbytes).from_address(address)
    # At exit, the finalizer is not called: the system frees the memory.
    weakref.finalize(memory, _unlock, cuda(), cuda().cuCtxGetCurrent(), address).atexit = False
    return np.asarray(memory)


def _unlock(driver: Driver, context: int, address: int) -> None:
    with suppress(KernelFailed):  # the context may be lost
        driver.cuCtxPushCurrent(context)
        try:
            driver.cuMemFreeHost(address)
        finally:
            driver.cuCtxPopCurrent()


def copy(to: np.ndarray, source: np.ndarray, *, stream: bool = False) -> None:
    """Copy: to[...] = source, with as many threads as are useful.

    The arrays must have the same shape and element size, and must not overlap.

    With `stream`, the stores bypass the caches. Set `stream` for data that is not read again soon: copies out of
    slots are then nearly twice as fast (16 threads of a Xeon). Do not set it for copies into slots: these would be half
    as fast, because the copy engine reads the slots immediately.
    """
    if source.nbytes >= _THREADED_FROM:
        with suppress(BackendUnavailable):
            ffi, lib = (module := engine.engine()).ffi, module.lib
            order = sorted(range(to.ndim), key=lambda axis: -abs(to.strides[axis]))
            shape, strides, steps = ([x[axis] for axis in order] for x in (to.shape, to.strides, source.strides))
            places = [ffi.cast("char *", x.__array_interface__["data"][0]) for x in (to, source)]
            lib.gemm_copy(*places, to.ndim, shape, strides, steps, to.itemsize, stream)
            return
    np.copyto(to, source)


_Task = tuple[Future[None], list[np.ndarray], bool]


class CopyThread:
    """A thread that runs copies one after the other. The thread does not call the driver.

    Only one copy runs at a time, because a copy already uses all of the C engine's copy threads. The thread is a daemon
    thread of its own, not one of concurrent.futures: the threads of that module take no work once the main thread has
    ended, but other threads may still multiply then.
    """

    def __init__(self) -> None:
        self._given: SimpleQueue[_Task | None] = SimpleQueue()
        self._last: Future[None] = Future()
        self._last.set_result(None)
        self._runs = False

    def copy(self, to: np.ndarray, source: np.ndarray, *, stream: bool = False) -> Future[None]:
        """Queue a copy (see the function `copy`). The future is done after this copy and all earlier ones."""
        if not self._started():  # the thread could never be started: this call copies, as all earlier calls did
            copy(to, source, stream=stream)
            return self._last
        done: Future[None] = Future()
        self._given.put((done, [to, source], stream))
        self._last = done
        return done

    def wait(self) -> None:
        """Wait until all copies have ended, successfully or not."""
        wait((self._last,))

    def end(self) -> None:
        """End the thread. All copies must have ended."""
        if self._runs:
            self._given.put(None)
            self._runs = False

    def _started(self) -> bool:
        """Start the thread if necessary. Return whether it runs: the system may refuse to create a thread."""
        if not self._runs:
            with suppress(RuntimeError):
                threading.Thread(target=_serve, args=(self._given,), name="gemm-copy", daemon=True).start()
                self._runs = True
        return self._runs


def _serve(given: SimpleQueue[_Task | None]) -> None:
    while (task := given.get()) is not None:
        done, arrays, stream = task
        try:
            _copy_once(arrays, stream)
        except BaseException as error:  # raised in the thread that waits for the copy
            done.set_exception(error.with_traceback(None))
        else:
            done.set_result(None)


def _copy_once(arrays: list[np.ndarray], stream: bool) -> None:
    """Copy between the two arrays, and empty the list.

    The copy thread keeps the list until after the future is done. The copy thread must not keep the arrays that long,
    because the thread that waits for the future must hold the last references to the arrays.
    """
    to, source = arrays
    arrays.clear()
    copy(to, source, stream=stream)


class Slot(NamedTuple):
    """A piece of staging memory. The memory is free again when `event` has completed."""

    memory: np.ndarray
    event: int

    @property
    def address(self) -> int:
        return int(self.memory.__array_interface__["data"][0])

    def array(self, shape: Ints, strides: Ints, dtype: np.dtype[Any], offset: int = 0) -> np.ndarray:
        """Return an array in the slot. The array begins `offset` bytes after the beginning of the slot."""
        array: np.ndarray = np.ndarray(shape, dtype, self.memory, offset, strides)
        return array


class Ring:
    """Up to DEPTH slots of `nbytes` bytes, used in turn. Each slot is created when it is first needed."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._made: list[Slot] = []
        self._slots: deque[Slot] = deque()  # slots that no caller holds, in the order of `give`

    def take(self) -> Slot:
        """Return a free slot. If necessary, wait until a slot is free. The caller must not hold more than DEPTH slots
        at a time.

        The caller records the slot's event after the last use that it enqueues, then returns the slot with `give`.
        """
        if self._slots and cuda().cuEventQuery(self._slots[0].event):
            return self._slots.popleft()
        if len(self._made) < DEPTH:
            self._made.append(Slot(locked(self._nbytes), cuda().cuEventCreate(_DISABLE_TIMING)))
            return self._made[-1]
        cuda().cuEventSynchronize(self._slots[0].event)
        return self._slots.popleft()

    def give(self, slot: Slot) -> None:
        """Return a slot to the ring, behind the others."""
        self._slots.append(slot)

    def destroy(self) -> None:
        """Destroy the events of all slots, also of those that a failed product did not return."""
        for slot in self._made:
            cuda().cuEventDestroy(slot.event)


class Channel:
    """The resources to transfer the operands of one product at a time.

    Attributes:
        up: the stream for copies to the device.
        down: the stream for copies back to the host.
        runs: two streams for kernels, used in turn, so that the kernels of consecutive parts of out can overlap in
            time.
        small: the ring for products whose operands are sent together. Such a product uses one slot.
        sent: the ring for copies to the device.
        fetched: the ring for copies back to the host.
        thread: the copy thread.
    """

    def __init__(self) -> None:
        self.small, self.sent, self.fetched = Ring(SMALL), Ring(SLOT), Ring(SLOT)
        self.thread = CopyThread()
        self._marks: list[int] = []
        self._streams: list[int] = []
        try:
            for _ in range(4):
                self._streams.append(cuda().cuStreamCreate(_NON_BLOCKING))
        except KernelFailed:
            self.destroy()
            raise
        self.up, self.down, *self.runs = self._streams

    def mark(self, stream: int) -> int:
        """Record and return an event that completes after the work now on `stream`. The event is valid until `rest`."""
        event = cuda().cuEventCreate(_DISABLE_TIMING)
        self._marks.append(event)
        cuda().cuEventRecord(event, stream)
        return int(event)

    def settle(self) -> None:
        """Wait until all enqueued work has ended, successfully or not. The memory that it used is then free."""
        self.thread.wait()
        for stream in self._streams:
            with suppress(KernelFailed):  # the call that waits for a result raises the error
                cuda().cuStreamSynchronize(stream)

    def rest(self) -> None:
        """Destroy the events of `mark`. All work on the channel must be complete."""
        while self._marks:
            cuda().cuEventDestroy(self._marks.pop())

    def destroy(self) -> None:
        """End the copy thread and destroy the events and streams. The channel must be idle."""
        self.thread.end()
        with suppress(KernelFailed):  # the context may be lost
            for ring in (self.small, self.sent, self.fetched):
                ring.destroy()
            self.rest()
            for stream in self._streams:
                cuda().cuStreamDestroy(stream)


class Channels:
    """The channels of one GPU. The GPU's context must be current when the channels are used."""

    def __init__(self) -> None:
        self._idle: list[Channel] = []
        self._left = threading.BoundedSemaphore(_CHANNELS)

    @contextmanager
    def one(self) -> Iterator[Channel]:
        """Acquire a channel for one product, whose work must end in the `with` block.

        A channel on which an error occurred is destroyed, not reused.
        """
        with self._left:
            try:
                channel = self._idle.pop()
            except IndexError:
                channel = Channel()
            try:
                yield channel
            except BaseException:
                channel.settle()
                channel.destroy()
                raise
            channel.rest()
            self._idle.append(channel)

    def trim(self) -> None:
        """Free the resources of idle channels."""
        with suppress(IndexError):
            while True:
                self._idle.pop().destroy()


@cache
def channels(gpu: Any) -> Channels:
    """Return the channels of `gpu`."""
    return Channels()
