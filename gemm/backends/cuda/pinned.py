"""Page-locked host memory, which the GPU's copy engines access directly, and the resources to transfer host operands.

A copy from ordinary memory runs at less than half of the link's rate, and the caller must wait for it: the driver
copies the data through its own page-locked memory, with one thread. gemm therefore stages the data itself:

- `Ring`: a few page-locked slots. The C engine's threads fill a slot while the copy engine empties the previous one.
- `Porter`: a copy thread, which runs these copies while the caller's thread launches kernels.
- `Lane`: the streams, rings and copy thread of one product. Locking pages takes milliseconds, so gemm keeps a lane for
  later products.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import cache
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from gemm.backends.cuda.api import cuda
from gemm.core import engine
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.operands import aligned

SLOT = 16 << 20
"""Bytes of a slot. At 55 GB/s, the link needs 0.3 ms for a slot, many times what the host needs to start a copy."""
DEPTH = 3
"""Slots of a ring: AHEAD slots for the copy thread, and one for the copy engine."""
AHEAD = 2
"""Copies that the copy thread has at a time: the running one, and the next one, so that the thread never idles."""
_LANES = 4  # of a GPU. Further products wait for a free lane; more lanes would not help, because all share the link
_NON_BLOCKING, _DISABLE_TIMING = 1, 2
_THREADED_FROM = 1 << 16  # copies of at least this many bytes use the C engine's threads


def locked(nbytes: int) -> np.ndarray:
    """Return `nbytes` of page-locked memory, which is freed with the last array that uses it.

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
    return np.asarray(_Locked(address, nbytes))


class _Locked:
    """Owns page-locked memory. Arrays that use the memory keep this object alive through their `base`."""

    def __init__(self, address: int, nbytes: int) -> None:
        where = (address, False)
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (nbytes,), "data": where}
        # At exit, the system frees the memory.
        weakref.finalize(self, _unlock, cuda().cuMemFreeHost, address).atexit = False


def _unlock(free: Callable[[int], None], address: int) -> None:
    with suppress(KernelFailed):  # the context may be lost
        free(address)


def copy(to: np.ndarray, source: np.ndarray, *, stream: bool = False) -> None:
    """Copy: to[...] = source, with as many threads as are useful.

    The arrays must have the same shape and element size, and must not overlap.

    With `stream`, the stores bypass the caches. Set it for data that is not read again soon: copies out of slots are
    nearly twice as fast (16 threads of a Xeon). Copies into slots would be half as fast, because the copy engine reads
    the slots immediately.
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


_Task = tuple[Future[None], np.ndarray, np.ndarray, bool]


class Porter:
    """A copy thread, which runs copies one after the other. The thread does not call the driver.

    Only one copy runs at a time, because a copy already uses all of the C engine's copy threads.
    """

    def __init__(self) -> None:
        self._given: SimpleQueue[_Task | None] = SimpleQueue()
        self._last: Future[None] = Future()
        self._last.set_result(None)
        self._runs = False

    def copy(self, to: np.ndarray, source: np.ndarray, *, stream: bool = False) -> Future[None]:
        """Queue a copy (see `copy`). The future is done after this copy and all earlier ones."""
        done: Future[None] = Future()
        if self._started():
            self._given.put((done, to, source, stream))
        else:
            copy(to, source, stream=stream)
            done.set_result(None)
        self._last = done
        return done

    def rest(self) -> None:
        """Wait until all copies have ended, successfully or not."""
        wait((self._last,))

    def dismiss(self) -> None:
        """End the thread. No copies may be pending."""
        if self._runs:
            self._given.put(None)
            self._runs = False

    def _started(self) -> bool:
        """Start the thread if necessary, and return whether it runs. The system may refuse to create a thread.

        The thread is a daemon thread: it does not keep the process alive.
        """
        if not self._runs:
            with suppress(RuntimeError):
                threading.Thread(target=_carry, args=(self._given,), name="gemm-porter", daemon=True).start()
                self._runs = True
        return self._runs


def _carry(given: SimpleQueue[_Task | None]) -> None:
    while (task := given.get()) is not None:
        done, to, source, stream = task
        failure = None
        try:
            copy(to, source, stream=stream)
        except BaseException as error:  # raised in the thread that waits for the copy
            failure = error.with_traceback(None)
        del task, to, source  # before the waiting thread continues, because that thread must hold the last reference
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)
        del done, failure


class Slot(NamedTuple):
    """A piece of staging memory, and the event after which the slot is free again."""

    memory: np.ndarray
    event: int

    @property
    def address(self) -> int:
        return int(self.memory.__array_interface__["data"][0])

    def holding(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return the first bytes of the slot as an array."""
        held: np.ndarray = np.ndarray(shape, dtype, self.memory, 0, strides)
        return held


def happened(event: int) -> bool:
    """Return whether all work that was enqueued before `event` was recorded is complete."""
    return bool(cuda().cuEventQuery(event))


class Ring:
    """Up to DEPTH slots of `nbytes` bytes, used in turn. Each slot is created when it is first needed."""

    def __init__(self, nbytes: int = SLOT) -> None:
        self._nbytes = nbytes
        self._slots: deque[Slot] = deque()
        self._made = 0

    def take(self) -> Slot:
        """Return a free slot. Wait for one if necessary. The caller must not hold more than DEPTH slots at a time.

        The caller records the slot's event after the last use that it enqueues, then returns the slot with `give`.
        """
        if self._slots and happened(self._slots[0].event):
            return self._slots.popleft()
        if self._made < DEPTH:
            slot = Slot(locked(self._nbytes), cuda().cuEventCreate(_DISABLE_TIMING))
            self._made += 1
            return slot
        cuda().cuEventSynchronize(self._slots[0].event)
        return self._slots.popleft()

    def give(self, slot: Slot) -> None:
        """Return a slot to the ring, behind the others."""
        self._slots.append(slot)

    def destroy(self) -> None:
        """Destroy the slots' events. The ring must be idle."""
        for slot in self._slots:
            cuda().cuEventDestroy(slot.event)
        self._slots.clear()


class Lane:
    """The resources to transfer the operands of one product at a time.

    Attributes:
        up: the stream for copies to the device.
        down: the stream for copies back to the host.
        runs: two streams for kernels, used in turn, so that consecutive parts of out can overlap.
        sent: the ring for copies to the device.
        fetched: the ring for copies back to the host.
        porter: the copy thread.
    """

    def __init__(self) -> None:
        self.up, self.down, *runs = (cuda().cuStreamCreate(_NON_BLOCKING) for _ in range(4))
        self.runs = tuple(runs)
        self.sent, self.fetched, self.porter = Ring(), Ring(), Porter()
        self._spare: list[int] = []
        self._marks: list[int] = []
        self._small: np.ndarray | None = None

    def small(self, nbytes: int) -> tuple[np.ndarray, int]:
        """Return the staging memory for operands that are sent in one copy, and its address.

        The memory is unused between products.
        """
        if self._small is None:
            self._small = locked(nbytes)
        return self._small, int(self._small.__array_interface__["data"][0])

    def mark(self, stream: int) -> int:
        """Record and return an event that completes after the work now on `stream`. The event is valid until `rest`."""
        event = self._spare.pop() if self._spare else cuda().cuEventCreate(_DISABLE_TIMING)
        self._marks.append(event)
        cuda().cuEventRecord(event, stream)
        return int(event)

    def follow(self, stream: int, other: int) -> None:
        """Make future work on `stream` wait for the work that is now enqueued on the stream `other`."""
        cuda().cuStreamWaitEvent(stream, self.mark(other), 0)

    def settle(self) -> None:
        """Wait until all enqueued work has ended, successfully or not. Its memory may be reused after that."""
        self.porter.rest()
        for stream in (self.up, *self.runs, self.down):
            with suppress(KernelFailed):  # the error is raised where a result is waited for
                cuda().cuStreamSynchronize(stream)
        self.rest()

    def rest(self) -> None:
        """Make the events of `mark` available again. All work on the lane must be complete."""
        self._spare += self._marks
        self._marks.clear()

    def destroy(self) -> None:
        """End the copy thread and destroy the events and streams. The lane must be idle."""
        self.porter.dismiss()
        with suppress(KernelFailed):  # the context may be lost
            for ring in (self.sent, self.fetched):
                ring.destroy()
            for event in self._spare:
                cuda().cuEventDestroy(event)
            for stream in (self.up, *self.runs, self.down):
                cuda().cuStreamDestroy(stream)


class Lanes:
    """The lanes of one GPU. The GPU's context must be current when they are used."""

    def __init__(self) -> None:
        self._idle: list[Lane] = []
        self._left = threading.BoundedSemaphore(_LANES)

    @contextmanager
    def one(self) -> Iterator[Lane]:
        """Acquire a lane for one product. A lane on which an error occurred is destroyed, not reused."""
        with self._left:
            try:
                lane = self._idle.pop()
            except IndexError:
                lane = Lane()
            try:
                yield lane
            except BaseException:
                lane.settle()
                lane.destroy()
                raise
            self._idle.append(lane)

    def trim(self) -> None:
        """Free the resources of idle lanes."""
        with suppress(IndexError):
            while True:
                self._idle.pop().destroy()


@cache
def lanes(gpu: Any) -> Lanes:
    """Return the lanes of `gpu`."""
    return Lanes()
