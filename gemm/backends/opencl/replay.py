"""Repeated products of device arrays: enqueues the commands of an earlier product with other buffers.

Checking the arguments, choosing a kernel, cutting the product and setting the kernel's arguments takes longer than a
small product. Most products need one or two kernels, and up to three more that pack operands. Operands with equal
shapes, strides, offsets, types and queue need the same kernels with other buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemm.backends.opencl.context import Handle
from gemm.backends.opencl.staging import Traffic

MOST_COMMANDS = 5
"""The most commands of a product that can be repeated: three that pack operands, the kernel itself, and one that adds
up the parts of k."""


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
        self._takers: list[tuple[Any, int, int]] = []  # (kernel, index of the argument, index in `buffers`)
        self._commands = []
        self._scale, self._scales = scale, []  # (kernel, argument index) of alpha and beta
        self._scaled = b""  # the bytes of alpha and beta that were set last
        self._last: Any = None  # the event of the last command
        self._in_order = not self._queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        self._handle, self._packs = handle, sum(command.packs for command in traffic.commands)
        # `_own` keeps the memory alive: a kernel's arguments do not. (A prepacked b is not in `_own`. Its owner keeps
        # the memory alive, and also owns the Replays of products with this b.)
        own = {id(memory.data): handle.allocate(memory) for memory in traffic.reserved}
        self._own: dict[int, Any] | None = own
        for command in traffic.commands:
            kernel = handle.fresh(*command.program)
            for at, arg in enumerate(command.args):
                kernel.set_arg(at, own.get(id(arg), arg))
                which = next((i for i, buffer in enumerate(buffers) if buffer is not None and buffer is arg), None)
                if which is not None:
                    self._takers.append((kernel, at, which))
            if command.scale is not None:
                self._scales.append((kernel, command.scale))
            self._commands.append((kernel, command.extent, command.group))
        if nbytes := sum(memory.nbytes for memory in traffic.reserved):
            handle.hold(self, nbytes)

    def drop(self) -> None:
        """Free the memory. The Replay cannot be used after that."""
        self._own = None

    def __call__(self, a: Any, b: Any | None, c: Any, out: Any, *scalars: Any) -> Any:
        """Enqueue the product. Return `out`, or a new Array if `out` is None.

        `scalars` are alpha, beta and possibly the bias. The bias is always None, because no OpenCL kernel adds a bias.
        Returns None if the product must take the full path.
        """
        import pyopencl as cl

        own = self._own  # keeps the memory alive until the commands are enqueued, even if `drop` is called
        if own is None or self._handle.inherited:
            return None
        try:
            return self._enqueue(a, b, c, out, self._scale(*scalars[:2]))
        except (cl.Error, MemoryError):
            return None  # the full path meets the same error and handles it

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
        arrays = a, b, c, out
        for kernel, at, which in self._takers:
            kernel.set_arg(at, arrays[which].base_data)
        if (scaled := scale.tobytes()) != self._scaled:
            self._scaled = b""
            for kernel, at in self._scales:
                kernel.set_arg(at, scale)
            self._scaled = scaled
        for kernel, extent, group in self._commands:
            event = cl.enqueue_nd_range_kernel(self._queue, kernel, extent, group, wait_for=after)
            after = [event]
        if self._packs:
            self._handle.count("packed", self._packs)
        # The new commands wait for all earlier events of out, so the last event replaces them.
        pending[:] = after
        self._last = event
        return out


def signature(a: Any, b: Any, c: Any, out: Any, bias: Any = None) -> tuple[Any, ...] | None:
    """Return the signature of a product: everything that determines its commands, except the buffers.

    Returns None if such products cannot be repeated: if `out` shares its buffer with an operand other than c, or if the
    Arrays have no queue or different queues.

    If b is prepacked, the argument b is None, and every call uses the same prepacked b. The signature also says which
    operands share a buffer, because a Replay identifies its arguments by their buffers.
    """
    queue, buffers = a.queue, []
    key: list[Any] = [queue]
    for x in (a, b, c, out):
        if x is None:
            key.append(None)
        elif x.queue is not queue:
            return None
        else:
            buffers.append(x.base_data)
            key += (x.shape, x.strides, x.offset, x.dtype)
    if out is not None:
        others = buffers[: -2 if c is out else -1]
        if buffers[-1] in others or hasattr(buffers[-1], "svm_ptr"):  # SVM pointers may overlap without being equal
            return None
    # No OpenCL kernel adds a bias.
    return None if queue is None or bias is not None else (*key, *map(buffers.index, buffers))
