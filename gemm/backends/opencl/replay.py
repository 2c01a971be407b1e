"""Launches given again with other buffers: what a repeated product of device arrays costs.

Checking arguments, choosing, cutting and setting a kernel's arguments take longer than a small product. Most products
are a kernel or two, and up to three that pack operands; like operands (shapes, strides, offsets, types, queue) need the
same ones, with other buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemm.backends.opencl.context import Handle
from gemm.backends.opencl.staging import Traffic

Scale = Callable[[Any, Any], np.ndarray]

MOST = 5
"""Commands of a product that may be repeated: three that pack, a kernel, a sum of parts."""


class Replay:
    """The commands of a product of pyopencl Arrays, repeatable for Arrays like them in the thread that made it.

    They get kernel objects, and memory for packed operands and for parts of sums, of their own: arguments stay set, and
    only this replay's commands use that memory.

    Why reuse is safe: the first command waits for all that the operands and `out` wait for, and for the last command of
    the call before, which read the memory that this call writes. Each later command waits for the one before it. A
    driver copies a kernel's arguments when it is enqueued, and no other thread sets them.

    Args:
        traffic: the product's commands. arrays: its a, b, c and out; c is None where it is not read, b where it is a
            prepared one, which stays. scale: alpha and beta as kernels take them.
    """

    def __init__(self, handle: Handle, traffic: Traffic, scale: Scale, arrays: tuple[Any, Any, Any, Any]) -> None:
        import pyopencl as cl

        out = arrays[-1]
        self._queue, self._shape, self._dtype = out.queue, out.shape, out.dtype
        self._buffers = [None if array is None else array.base_data for array in arrays]
        self._sets: list[list[tuple[Any, int]]] = [[], [], [], []]  # (kernel, argument) of each array's buffer
        self._commands = []
        self._scale, self._scales = scale, []  # (kernel, argument) of alpha and beta
        self._scaled = b""  # these arguments' bytes, as they were set last
        self._last: Any = None  # the last command given
        self._in_order = not self._queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        self._handle = handle
        self._count, self._packs = handle.count, sum(command.packs for command in traffic.commands)
        # Arguments keep no memory alive. (Prepared matrices keep theirs, and the replays of their products.)
        own = {id(memory.data): handle.allocate(memory) for memory in traffic.reserved}
        self._own: dict[int, Any] | None = own
        for command in traffic.commands:
            kernel = handle.fresh(*command.program)
            for at, arg in enumerate(command.args):
                kernel.set_arg(at, own.get(id(arg), arg))
                which = next(
                    (i for i, buffer in enumerate(self._buffers) if buffer is not None and buffer is arg), None
                )
                if which is not None:
                    self._sets[which].append((kernel, at))
            if command.scale is not None:
                self._scales.append((kernel, command.scale))
            self._commands.append((kernel, command.extent, command.group))

    @classmethod
    def of(cls, handle: Handle, traffic: Traffic, scale: Scale, arrays: tuple[Any, Any, Any, Any]) -> Replay | None:
        """A replay, unless it would need too much memory, or commands cannot be repeated."""
        nbytes = sum(memory.nbytes for memory in traffic.reserved)
        if not traffic.repeatable or len(traffic.commands) > MOST or nbytes > handle.room:
            return None
        made = cls(handle, traffic, scale, arrays)
        if nbytes:
            handle.hold(made, nbytes)
        return made

    def drop(self) -> None:
        """Give its memory up, and with that the rest of its life."""
        self._own = None

    def __call__(self, a: Any, b: Any | None, c: Any, out: Any, alpha: Any, beta: Any, bias: None = None) -> Any:
        """`out`, or for None a new Array, which the commands just enqueued will write; None: the long way it is."""
        import pyopencl as cl

        own = self._own  # alive until the commands are enqueued, whoever drops it meanwhile
        if own is None or self._handle.inherited:
            return None
        try:
            return self._enqueue(a, b, c, out, self._scale(alpha, beta))
        except (cl.Error, MemoryError):
            return None  # the long way meets the same error, and knows what to do

    def _enqueue(self, a: Any, b: Any, c: Any, out: Any, scale: np.ndarray) -> Any:
        import pyopencl as cl

        if out is None:
            out = type(a)(self._queue, self._shape, self._dtype, allocator=a.allocator)
        pending = out.events
        after = [*a.events] if b is None else [*a.events, *b.events]
        # An in-order queue waits for its own last command anyway.
        if not (self._in_order and len(pending) == 1 and pending[0] is self._last):
            after += [*pending, *([] if self._last is None else [self._last])]
        if c is not None and c is not out:
            after += c.events
        for which, array in enumerate((a, b, c, out)):
            if array is not None and array.base_data is not self._buffers[which]:
                self._buffers[which] = array.base_data
                for kernel, at in self._sets[which]:
                    kernel.set_arg(at, array.base_data)
        if (scaled := scale.tobytes()) != self._scaled:
            self._scaled = b""
            for kernel, at in self._scales:
                kernel.set_arg(at, scale)
            self._scaled = scaled
        for kernel, extent, group in self._commands:
            event = cl.enqueue_nd_range_kernel(self._queue, kernel, extent, group, wait_for=after)
            after = [event]
        if self._packs:
            self._count("packed", self._packs)
        # What out waited for, the new command waited for, too: its event stands for all.
        pending[:] = after
        self._last = event
        return out


def signature(a: Any, b: Any, c: Any, out: Any, bias: Any = None) -> tuple[Any, ...] | None:
    """What decides the commands of a product of these pyopencl Arrays but for their buffers; None: they may not repeat.

    That is so where `out` shares its buffer with an operand other than c, and for Arrays of several queues or of none.
    b is None where it is a prepared one, always the same. What operands that share a buffer did, only such repeat: a
    replay knows its arguments by their buffers.
    """
    queue, own = a.queue, a.base_data
    if queue is None or (b is not None and b.queue is not queue):
        return None
    if bias is not None:  # no OpenCL kernel adds one
        return None
    key: tuple[Any, ...] = (queue, a.shape, a.strides, a.offset, a.dtype)
    if b is not None:
        key += (b.shape, b.strides, b.offset, b.dtype, b.base_data is own)
    if c is not None:
        if c.queue is not queue:
            return None
        alike = c.base_data is own, b is not None and c.base_data is b.base_data
        key += (c is out, c.shape, c.strides, c.offset, c.dtype, alike)
    if out is not None:
        data = out.base_data
        others = [x for x in (a, b, None if c is out else c) if x is not None]
        shared = any(data == x.base_data for x in others)
        if out.queue is not queue or shared or hasattr(data, "svm_ptr"):  # those overlap without being one
            return None
        key += (out.shape, out.strides, out.offset, out.dtype)
    return key
