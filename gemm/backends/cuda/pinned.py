"""Host memory that the GPU's copy engines reach by themselves, and the lanes that products of host operands travel on.

A copy from ordinary memory runs at less than half of the link's rate and keeps the caller waiting, because the driver
copies it through page-locked memory of its own, by one thread. So we do that ourselves: a `Ring` of a few page-locked
slots is filled by the threads of the C engine while the copy engine empties the slot before; a `Porter` has that done
while its lane's owner launches. Locking pages costs milliseconds: a `Lane` (streams, rings, porter) is kept for the
next product.
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
"""Bytes of a slot: at 55 GB/s the link takes 0.3 ms, many times what it costs the host to start a copy."""
DEPTH = 3
"""Slots of a ring: AHEAD with the porter, one that travels."""
AHEAD = 2
"""Copies that a porter is given at a time: one that runs, and the next, lest it waits for its lane's owner."""
_LANES = 4  # a GPU's; more products at a time wait for one: the link is shared anyway
_NON_BLOCKING, _DISABLE_TIMING = 1, 2
_THREADED_FROM = 1 << 16  # bytes whose copying is worth a call of the engine


def locked(nbytes: int) -> np.ndarray:
    """`nbytes` of page-locked memory, freed with the last array over it; ordinary memory where none can be had."""
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
    """Owns page-locked memory; arrays over it keep it alive by their `base`."""

    def __init__(self, address: int, nbytes: int) -> None:
        where = (address, False)
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (nbytes,), "data": where}
        weakref.finalize(self, _unlock, cuda().cuMemFreeHost, address).atexit = False  # the system has it then


def _unlock(free: Callable[[int], None], address: int) -> None:
    with suppress(KernelFailed):  # of a context that died
        free(address)


def copy(to: np.ndarray, source: np.ndarray, *, stream: bool = False) -> None:
    """to[...] = source, of one shape and element size and disjoint, by as many threads as pay.

    With `stream` past the caches, for what is not read again soon: out of slots nearly twice as fast as through them,
    by 16 threads of a Xeon. Into slots, which the copy engine reads at once, it is half as fast.
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
    """Makes copies one after the other, in a thread of its own; it knows neither the driver nor contexts.

    One at a time: each copy by itself uses all the engine's threads for copies, which a second caller would not get.
    """

    def __init__(self) -> None:
        self._given: SimpleQueue[_Task | None] = SimpleQueue()
        self._last: Future[None] = Future()
        self._last.set_result(None)
        self._runs = False

    def copy(self, to: np.ndarray, source: np.ndarray, *, stream: bool = False) -> Future[None]:
        """See `copy`; done once it is, and all before it are."""
        done: Future[None] = Future()
        if self._started():
            self._given.put((done, to, source, stream))
        else:
            copy(to, source, stream=stream)
            done.set_result(None)
        self._last = done
        return done

    def rest(self) -> None:
        """Wait until nothing is left to do, whether it succeeded or not."""
        wait((self._last,))

    def dismiss(self) -> None:
        """End the thread of a porter that rests."""
        if self._runs:
            self._given.put(None)
            self._runs = False

    def _started(self) -> bool:
        """Whether the thread runs. It does not keep the process alive, and the system may refuse it."""
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
        except BaseException as error:  # whoever waits for it has it
            failure = error.with_traceback(None)
        del task, to, source  # before anybody goes on: the last array over locked memory is to end with the caller
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)
        del done, failure


class Slot(NamedTuple):
    """Staging memory, and the event after which it is free again."""

    memory: np.ndarray
    event: int

    @property
    def address(self) -> int:
        return int(self.memory.__array_interface__["data"][0])

    def holding(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Its first bytes as an array."""
        held: np.ndarray = np.ndarray(shape, dtype, self.memory, 0, strides)
        return held


def happened(event: int) -> bool:
    """Whether all that was enqueued before `event` was recorded is done."""
    return bool(cuda().cuEventQuery(event))


class Ring:
    """Up to DEPTH slots of so many bytes in turn, made when they are first needed."""

    def __init__(self, nbytes: int = SLOT) -> None:
        self._nbytes = nbytes
        self._slots: deque[Slot] = deque()
        self._made = 0

    def take(self) -> Slot:
        """A slot that nothing uses any more; waits for one, if need be. No more than DEPTH are to be out at a time.

        The caller records its event after the last use that it enqueues, and gives it back.
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
        """Back, behind the others."""
        self._slots.append(slot)

    def destroy(self) -> None:
        """Of an idle ring."""
        for slot in self._slots:
            cuda().cuEventDestroy(slot.event)
        self._slots.clear()


class Lane:
    """What one product at a time travels on: a stream each way, two between them for neighbouring parts, rings and a
    porter."""

    def __init__(self) -> None:
        self.up, self.down, *runs = (cuda().cuStreamCreate(_NON_BLOCKING) for _ in range(4))
        self.runs = tuple(runs)
        self.sent, self.fetched, self.porter = Ring(), Ring(), Porter()
        self._spare: list[int] = []
        self._marks: list[int] = []
        self._small: np.ndarray | None = None

    def small(self, nbytes: int) -> tuple[np.ndarray, int]:
        """Staging memory for operands that travel together, and its address; between products nothing uses it."""
        if self._small is None:
            self._small = locked(nbytes)
        return self._small, int(self._small.__array_interface__["data"][0])

    def mark(self, stream: int) -> int:
        """An event that happens once `stream` is through with what it holds now; good until `rest`."""
        event = self._spare.pop() if self._spare else cuda().cuEventCreate(_DISABLE_TIMING)
        self._marks.append(event)
        cuda().cuEventRecord(event, stream)
        return int(event)

    def follow(self, stream: int, other: int) -> None:
        """Let what is enqueued on `stream` from now on wait for what `other` holds now."""
        cuda().cuStreamWaitEvent(stream, self.mark(other), 0)

    def settle(self) -> None:
        """Wait for all that was enqueued, whether it succeeded or not: memory that it touches may then be reused."""
        self.porter.rest()
        for stream in (self.up, *self.runs, self.down):
            with suppress(KernelFailed):  # what failed is raised by whoever waits for a result
                cuda().cuStreamSynchronize(stream)
        self.rest()

    def rest(self) -> None:
        """Of a lane whose work is done: its events may be used again."""
        self._spare += self._marks
        self._marks.clear()

    def destroy(self) -> None:
        """Of an idle lane."""
        self.porter.dismiss()
        with suppress(KernelFailed):  # of a context that died
            for ring in (self.sent, self.fetched):
                ring.destroy()
            for event in self._spare:
                cuda().cuEventDestroy(event)
            for stream in (self.up, *self.runs, self.down):
                cuda().cuStreamDestroy(stream)


class Lanes:
    """The lanes of one GPU, whose context must be current where they are used."""

    def __init__(self) -> None:
        self._idle: list[Lane] = []
        self._left = threading.BoundedSemaphore(_LANES)

    @contextmanager
    def one(self) -> Iterator[Lane]:
        """A lane of the caller's own; one on which something failed is not used again."""
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
        """Give back what idle lanes hold."""
        with suppress(IndexError):
            while True:
                self._idle.pop().destroy()


@cache
def lanes(gpu: Any) -> Lanes:
    """Those of `gpu`."""
    return Lanes()
