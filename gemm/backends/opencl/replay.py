"""Repeated products: the commands of an earlier product of similar arrays, enqueued again for other arrays.

This saves the time to check the arguments, choose a kernel, cut the product and set the kernel's arguments, which
together take longer than a small product runs. Device operands with equal shapes, strides, types, alignment and queue
need the same kernels with other buffers and offsets (`Replay`). Host operands with equal shapes, strides and types need
the same copies to staging memory and the same kernels (`HostReplay`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from gemm.backends.opencl.context import Handle, Memory, unmapped
from gemm.backends.opencl.layout import ALIGNED, MOST
from gemm.backends.opencl.staging import Copied, Traffic, fill
from gemm.core import threads
from gemm.core.errors import KernelFailed
from gemm.core.operands import span
from gemm.core.problem import WRAPPED_FROM, Ints, place_of

MOST_COMMANDS = 5
"""The maximum number of commands of a product that can be repeated: three that pack operands, the kernel itself, and
one that adds up the parts of k."""


class _Scales:
    """alpha and beta as arguments of the kernels of a repeated product.

    Args:
        convert: converts alpha and beta to the kernels' argument.
    """

    def __init__(self, convert: Callable[[Any, Any], np.ndarray]) -> None:
        self._convert = convert
        self.places: list[tuple[Any, int]] = []  # (kernel, index of the argument)
        self._last: tuple[Any, ...] = ()  # alpha and beta that were set last

    def set(self, scalars: tuple[Any, Any]) -> None:
        if scalars != self._last:
            scale, self._last = self._convert(*scalars), ()
            for kernel, at in self.places:
                kernel.set_arg(at, scale)
            self._last = scalars


def _kernels(handle: Handle, traffic: Traffic, own: dict[int, Any], scales: _Scales) -> list[tuple[Any, Ints, Any]]:
    """Return (kernel, extent, group) of each command of `traffic`: new kernel objects with their arguments.

    `own` has the memory that replaces the memory of `traffic`: {id of a buffer or image: its replacement}.
    """
    found = []
    for command in traffic.commands:
        kernel = handle.fresh(*command.program)
        for at, arg in enumerate(command.args):
            kernel.set_arg(at, own.get(id(arg), arg))
        if command.scale is not None:
            scales.places.append((kernel, command.scale))
        found.append((kernel, command.extent, command.group))
    return found


class Replay:
    """The commands of a product of pyopencl Arrays. The thread that made a Replay can repeat them for similar Arrays.

    A Replay has its own kernel objects, so that their arguments stay set. It also has its own memory for packed
    operands and partial sums, which only its commands use.

    Why reuse is safe:

    - The first command waits for all events of the operands and of `out`. It also waits for the last command of the
      previous call, because this call overwrites memory that the previous call reads.
    - Each later command waits for the command before it.
    - The driver copies a kernel's arguments when the kernel is enqueued, and no other thread sets them.

    Args:
        traffic: the commands of the product.
        scale: converts alpha and beta to the kernel's argument.
        arrays: a, b, c and out of the product. c is None if it is not read. b is None if it is prepacked; every
            call then uses the same prepacked b.
    """

    def __init__(
        self, handle: Handle, traffic: Traffic, scale: Callable[[Any, Any], np.ndarray], arrays: tuple[Any, ...]
    ) -> None:
        import pyopencl as cl

        out = arrays[-1]
        self._queue, self._shape, self._dtype = out.queue, out.shape, out.dtype
        buffers = [None if array is None else array.base_data for array in arrays]
        # (kernel, index of the buffer's argument, index in `buffers`, the next argument: strides, and the offset less
        # that of the array)
        self._takers: list[tuple[Any, int, int, np.ndarray]] = []
        self._itemsizes = [1 if array is None else array.dtype.itemsize for array in arrays]
        self._offsets = [0 if array is None else array.offset for array in arrays]  # in bytes, as they were set last
        # Up to this offset, in bytes, layout.fits surely decides as it does for small offsets.
        self._farthest = MOST - max(span(x.shape, x.strides, x.dtype.itemsize)[1] for x in arrays if x is not None)
        self._scales = _Scales(scale)
        self._last: Any = None  # the event of the last command
        self._in_order = not self._queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        self._handle, self._packs = handle, sum(command.packs for command in traffic.commands)
        # `_own` keeps the memory alive: a kernel's arguments do not. (A prepacked b is not in `_own`. Its owner keeps
        # the memory alive, and also owns the Replays of products with this b.)
        own = {id(memory.data): handle.allocate(memory) for memory in traffic.reserved}
        self._own: dict[int, Any] | None = own
        self._commands = _kernels(handle, traffic, own, self._scales)
        for (kernel, *_), command in zip(self._commands, traffic.commands, strict=True):
            for at, arg in enumerate(command.args):
                which = next((i for i, buffer in enumerate(buffers) if buffer is not None and buffer is arg), None)
                if which is not None:
                    place = command.args[at + 1].copy()
                    place[0] -= self._offsets[which] // self._itemsizes[which]
                    self._takers.append((kernel, at, which, place))
        if traffic.nbytes:
            handle.charge(self, traffic.nbytes)

    def drop(self) -> None:
        """Free the memory for packed operands and partial sums. From then on, a call of the Replay returns None."""
        self._own = None

    def __call__(self, a: Any, b: Any | None, c: Any, out: Any, *scalars: Any) -> Any:
        """Enqueue the product. Return `out`, or a new Array if `out` is None.

        `scalars` are alpha, beta and possibly the bias. The bias is always None, because no OpenCL kernel adds a bias.
        Returns None if the caller must compute the product without the Replay: with a check of the arguments, a choice
        of a kernel and new commands.
        """
        import pyopencl as cl

        own = self._own  # keeps the memory alive until the commands are enqueued, even if `drop` is called
        if own is None or self._handle.inherited:
            return None
        try:
            return self._enqueue(a, b, c, out, scalars)
        except (cl.Error, MemoryError):
            return None  # the caller computes the product without the Replay, meets the same error and handles it

    def _move(self, offsets: list[int]) -> None:
        """Set the arrays' offsets in their buffers (bytes)."""
        self._offsets = []  # if the driver refuses an offset, the next call sets all of them
        for kernel, at, which, place in self._takers:
            moved = place.copy()
            moved[0] += offsets[which] // self._itemsizes[which]
            kernel.set_arg(at + 1, moved)
        self._offsets = offsets

    def _enqueue(self, a: Any, b: Any, c: Any, out: Any, scalars: tuple[Any, ...]) -> Any:
        import pyopencl as cl

        if out is None:
            out = type(a)(self._queue, self._shape, self._dtype, allocator=a.allocator)
        offsets = [0 if array is None else array.offset for array in (a, b, c, out)]
        if offsets != self._offsets and max(*offsets, *self._offsets) > self._farthest:
            return None
        pending = out.events
        after = [*a.events] if b is None else [*a.events, *b.events]
        # An in-order queue waits for its own last command anyway.
        if not (self._in_order and len(pending) == 1 and pending[0] is self._last):
            after += [*pending, *([] if self._last is None else [self._last])]
        if c is not None and c is not out:
            after += c.events
        arrays = a, b, c, out
        for kernel, at, which, _ in self._takers:
            kernel.set_arg(at, arrays[which].base_data)
        if offsets != self._offsets:
            self._move(offsets)
        self._scales.set(scalars[:2])
        for kernel, extent, group in self._commands:
            self._last = cl.enqueue_nd_range_kernel(self._queue, kernel, extent, group, wait_for=after)
            after = [self._last]
        if self._packs:
            self._handle.count("packed", self._packs)
        # The new commands wait for all earlier events of out, so the last event replaces them.
        pending[:] = after
        try:
            self._queue.flush()  # starts the commands: if another queue waits for them, that does not start them
        except cl.Error as error:
            if c is not out:
                raise
            raise KernelFailed(f"the queue cannot be flushed: {error}", spoilt=True) from error
        return out


HOST_BYTES = 16 << 20
"""The maximum size of the staging memory of a HostReplay. Copies of larger operands take far longer than the checks."""


class HostReplay:
    """The copies and commands of a product of NumPy arrays. A call repeats them and waits for the result.

    A HostReplay has its own kernel objects and staging memory. No command waits for an event, because all of them are
    in one in-order queue, and each call waits for its result. Operands may overlap `out`: a call copies all operands
    before it writes `out`.

    Args:
        traffic: the copies and commands of the product. The last copy is that of out.
        scale: converts alpha and beta to the kernel's argument.
        out: the result of the product.
        places: for each copy, the index of its array in (a, b, c, out).
    """

    def __init__(
        self, handle: Handle, traffic: Traffic, scale: Callable[[Any, Any], np.ndarray], out: np.ndarray, places: Ints
    ) -> None:
        self._handle, self._queue, self._shape, self._dtype = handle, traffic.queue, out.shape, out.dtype
        self._lock = threads.lock()  # a signal handler may interrupt a call, and compute a product like it
        self._scales = _Scales(scale)
        own = {id(memory.data): replace(memory, data=handle.allocate(memory)) for memory in traffic.reserved}
        self._commands = _kernels(handle, traffic, {at: memory.data for at, memory in own.items()}, self._scales)
        copies = [(at, copy, own[id(copy.memory.data)]) for at, copy in zip(places, traffic.copies, strict=True)]
        self._own: tuple[Any, Any] | None = copies, own  # keeps the memory alive: a kernel's arguments do not
        handle.charge(self, traffic.nbytes)

    def drop(self) -> None:
        """Free the staging memory. From then on, a call of the HostReplay returns None."""
        self._own = None

    def __call__(self, a: np.ndarray, b: np.ndarray | None, c: Any, out: Any, *scalars: Any) -> np.ndarray | None:
        """Compute the product. Return `out`, or a new array if `out` is None.

        `scalars` are alpha, beta and the bias, which is always None. Returns None, without having written `out`, if the
        caller must compute the product without the HostReplay.
        """
        import pyopencl as cl

        own = self._own  # keeps the memory alive, even if `drop` is called
        if own is None or self._handle.inherited or not self._lock.acquire(blocking=False):
            return None
        try:
            result: np.ndarray = np.empty(self._shape, self._dtype) if out is None else out
            self._run(own[0], (a, b, c, result), scalars)
            return result
        except (cl.Error, MemoryError):
            return None  # the caller computes the product without the HostReplay, meets the same error and handles it
        finally:
            self._lock.release()

    def _run(self, copies: list[tuple[int, Copied, Memory]], arrays: tuple[Any, ...], scalars: tuple[Any, ...]) -> None:
        import pyopencl as cl

        *filled, (_, last, memory) = copies
        for at, copy, target in filled:
            fill(self._handle, self._queue, _viewed(arrays[at], copy), target, copy.layout)
        self._scales.set(scalars[:2])
        for kernel, extent, group in self._commands:
            cl.enqueue_nd_range_kernel(self._queue, kernel, extent, group)
        goal, read = _viewed(arrays[3], last), cl.map_flags.READ
        mapped, _ = cl.enqueue_map_buffer(self._queue, memory.data, read, 0, goal.shape, goal.dtype, is_blocking=True)
        try:
            goal[...] = mapped
            self._handle.count("fetched", goal.nbytes)
        finally:
            with suppress(cl.Error):  # the result is complete; the next product reports the error
                unmapped(mapped.base, self._queue)


def _viewed(x: np.ndarray, copy: Copied) -> np.ndarray:
    """Return the view of `x` with the shape and strides of `copy`."""
    if copy.shape == (1, *x.shape) and copy.strides[1:] == x.strides:
        return x[None]
    return np.lib.stride_tricks.as_strided(x, copy.shape, copy.strides)


def _host_signature(a: Any, b: Any, c: Any, out: Any, bias: Any) -> tuple[Any, ...] | None:
    """Return the signature of a product of NumPy arrays: everything that determines its commands and its copies.

    Returns None if an array is in memory from `gemm.empty`, which the device uses in place, or if `out` is read-only.
    """
    key: list[Any] = []
    for x in (a, b, c, out):
        if x is None:
            key.append(None)
            continue
        place = "" if x.base is None and x.nbytes < WRAPPED_FROM else place_of(x)
        if ":" in place:  # the key of a device
            return None
        key += (x.shape, x.strides, x.dtype, x.dtype.num, place)  # int32 has two type numbers on some systems
    # No OpenCL kernel adds a bias.
    return None if bias is not None or (out is not None and not out.flags.writeable) else tuple(key)


def signature(a: Any, b: Any, c: Any, out: Any, bias: Any = None) -> tuple[Any, ...] | None:
    """Return the signature of a product: everything that determines its commands, except the buffers and the offsets.

    The signature contains the alignment of each offset and, for operands that share a buffer, their distance, or both
    offsets if their elements differ in size.

    Returns None if such products cannot be repeated: if `out` shares its buffer with an operand other than c, or if the
    Arrays have no queue or different queues.

    If b is prepacked, the argument b is None, and every call uses the same prepacked b. The signature also says which
    operands share a buffer, because a Replay identifies its arguments by their buffers.

    The operands are pyopencl Arrays or NumPy arrays: see `_host_signature`.
    """
    if a.__class__ is np.ndarray:
        return _host_signature(a, b, c, out, bias)
    queue, buffers = a.queue, []
    key: list[Any] = [queue]
    for x in (a, b, c, out):
        if x is None:
            key.append(None)
        elif x.queue is not queue:
            return None
        else:
            buffers.append(x.base_data)
            key += (x.shape, x.strides, x.offset % ALIGNED, x.dtype)
    shared = list(map(buffers.index, buffers))
    if shared != [*range(len(buffers))]:  # a Replay moves all operands in one buffer by one number of elements
        arrays = [x for x in (a, b, c, out) if x is not None]
        for x, first in zip(arrays, map(arrays.__getitem__, shared), strict=True):
            alike = x.dtype.itemsize == first.dtype.itemsize
            key.append(x.offset - first.offset if alike else (x.offset, first.offset))
    if out is not None:
        others = buffers[: -2 if c is out else -1]
        if buffers[-1] in others or hasattr(buffers[-1], "svm_ptr"):  # SVM pointers may overlap without being equal
            return None
    # No OpenCL kernel adds a bias.
    return None if queue is None or bias is not None else (*key, *shared)
