"""Staging: brings operands into the layouts that OpenCL kernels require.

NumPy copies a host operand once into mapped memory. This copy handles transposes, strides and broadcasts, and adds
padding. The driver allocates the memory, so that mapping does not copy. A device operand is used in place if the kernel
can read it; otherwise a small kernel packs it.

A `Traffic` contains the commands of one call. A `Replay` enqueues the commands again for other device arrays. This
saves the time to check the arguments, choose a kernel, cut the product and set the kernel's arguments, which together
take longer than a small product runs. Operands with equal shapes, strides, types, alignment and queue need the same
kernels with other buffers and offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from gemm.backends.opencl.context import Handle, Memory, unmapped
from gemm.backends.opencl.layout import ALIGNED, MOST, Layout, Staged, in_place
from gemm.core import backend, disk_cache
from gemm.core.errors import KernelFailed
from gemm.core.operands import span
from gemm.core.problem import DeviceView, DType, Ints, Operand

_SQUARE = (32, 8, 1)
"""The work-group size for packing with TURN (see pack_operand.cl). Such a work-group packs 32 x 32 elements, and each
of its work-items packs 4 elements of a column."""


@dataclass(frozen=True, eq=False)
class Kept(backend.Kept):
    """The owner of a prepacked matrix, whose memory has the layout that a kernel reads.

    `events` is empty, because the packing has ended before the matrix is kept.
    """

    staged: Staged
    events: tuple[()] = ()


@dataclass(frozen=True, eq=False)
class Command:
    """A kernel with its arguments, as it was enqueued.

    Attributes:
        program: (source, options, name of the entry function).
        extent: the number of work-items along each axis.
        group: the number of work-items of a work-group along each axis. None: the driver chooses.
        packs: if the kernel packs an operand, the bytes of the operand, else 0.
        scale: the index in `args` of alpha and beta, or None.
    """

    program: tuple[str, str, str]
    extent: Ints
    group: Ints | None
    args: tuple[Any, ...]
    packs: int = 0
    scale: int | None = None


class Traffic:
    """The commands of one call, the operands that are staged, and the events for which the next command waits."""

    def __init__(self, handle: Handle, queue: Any, after: list[Any]) -> None:
        self.handle, self.queue, self.after = handle, queue, after
        self._held: dict[str, tuple[Any, Staged, Memory]] = {}
        self.commands: list[Command] = []
        self.reserved: list[Memory] = []
        self.repeatable = True  # whether a Replay can repeat the commands with other buffers
        self.writes = 0  # the number of commands and copies that may have changed out

    def load(self, name: str, operand: Operand, layout: Layout, *, copy: bool = False) -> Staged:
        """Return `operand`, with the axes (batch, rows, cols), in `layout`.

        If the memory reserved under `name` already contains this operand, the operand is not copied again. With `copy`,
        a device operand is copied even if the kernel could read it in place.
        """
        if isinstance(operand, DeviceView):
            if isinstance(operand.owner, Kept):
                return operand.owner.staged
            at = None if copy else in_place(self.handle, operand, layout)
            if at is not None:
                # An image was created over this operand's buffer. A Replay can pass other buffers to a kernel, but it
                # cannot put another buffer under the image.
                self.repeatable &= not at.image
                return at
            place: Any = operand.offset
        else:
            place = operand.__array_interface__["data"][0]
        key = (place, operand.shape, operand.strides)
        held = self._held.get(name)
        if held is not None and held[0] == key:
            return held[1]
        staged, memory = self.reserve(name, operand.shape, operand.dtype, layout, not isinstance(operand, DeviceView))
        self._held[name] = key, staged, memory
        if operand.size:
            self._write(operand, memory, layout)
        return staged

    def reserve(self, name: str, shape: Ints, dtype: DType, layout: Layout, host: bool) -> tuple[Staged, Memory]:
        """Reserve memory for (batch, rows, cols) elements in `layout`, and return (Staged, Memory).

        The memory is kept under `name` until `release(name)`, the next `reserve` of `name` or the end of the product's
        call. With `host`, the host can map the memory.
        """
        self.release(name)
        batch, (rows, cols) = shape[0], layout.padded(*shape[1:])
        if layout.channels:
            width, height = max(1, cols // layout.channels), max(1, batch * rows)
            strides = (rows if batch > 1 else 0, 0, 0)
        else:
            width, height = max(1, batch * rows * cols) * dtype.itemsize, 1
            strides = (rows * cols if batch > 1 else 0, layout.panel or cols, 1)
        texel = (layout.channels, dtype.itemsize, layout.bits) if layout.channels else (0, 0, False)
        need = Memory(None, (*texel, host), width, height)
        with self.handle.reported(f"no room for {need.nbytes} bytes of {name}"):
            memory = self.handle.take(need)
        self.after = [*self.after, *memory.after]
        staged = Staged(memory.data, bool(layout.channels), 0, strides)
        self._held[name] = None, staged, memory
        self.reserved.append(memory)
        return staged, memory

    def release(self, *names: str) -> None:
        """Return the memory of `names`, or all memory if no names are given, to the device's pool.

        Commands that still run may use the memory: the pool records the events after which the memory is free.
        """
        for name in names or list(self._held):
            held = self._held.pop(name, None)
            if held is not None:
                self.handle.give(held[2], self.after)

    def keep(self, operand: Operand, layout: Layout) -> Kept:
        """Prepack `operand` (batch, rows, cols) in `layout` into memory of its own. Wait for the result."""
        staged, memory = self.reserve("kept", operand.shape, operand.dtype, layout, host=False)
        self._write(operand, memory, layout)
        del self._held["kept"]
        self.after[-1].wait()
        return Kept(memory, staged)

    def fetch(self, name: str, out: np.ndarray) -> None:
        """Copy the buffer `name`, whose layout must be PACKED, to `out`. Wait for the copy."""
        import pyopencl as cl

        memory = self._held[name][2]
        mapped, _ = cl.enqueue_map_buffer(
            self.queue, memory.data, cl.map_flags.READ, 0, out.shape, out.dtype, wait_for=self.after, is_blocking=True
        )
        try:
            self.writes += 1
            np.copyto(out, mapped)
            self.handle.count("fetched", out.nbytes)
        finally:
            self.after = [unmapped(mapped.base, self.queue)]

    def run(self, command: Command) -> None:
        """Enqueue `command` after all earlier commands of this call."""
        import pyopencl as cl

        # Do not call kernel(queue, ...): pyopencl then unpickles code from the user's cache folder.
        kernel = self.handle.kernel(*command.program)
        for position, arg in enumerate(command.args):
            kernel.set_arg(position, arg)
        self.after = [
            cl.enqueue_nd_range_kernel(self.queue, kernel, command.extent, command.group, wait_for=self.after)
        ]
        self.commands.append(command)

    def _write(self, operand: Operand, memory: Memory, layout: Layout) -> None:
        if isinstance(operand, DeviceView):
            self._pack(operand, memory, layout)
        else:
            self.repeatable = False
            self._fill(operand, memory, layout)

    def _fill(self, operand: np.ndarray, memory: Memory, layout: Layout) -> None:
        import pyopencl as cl

        batch, rows, cols = operand.shape
        tall, wide = layout.padded(rows, cols)
        write, dtype = cl.map_flags.WRITE_INVALIDATE_REGION, operand.dtype
        if layout.channels:
            texels = (wide // layout.channels, batch * tall)
            mapped, _, pitch, _ = cl.enqueue_map_image(
                self.queue, memory.data, write, (0, 0), texels, (batch * tall, wide), dtype, wait_for=self.after
            )
        else:
            mapped, _ = cl.enqueue_map_buffer(
                self.queue, memory.data, write, 0, (batch * tall, wide), dtype, wait_for=self.after
            )
            pitch = wide * dtype.itemsize
        try:
            # The pitch is known only after mapping.
            width = layout.panel or wide
            row = width * dtype.itemsize if layout.panel else pitch
            depth, size = layout.depth, dtype.itemsize
            strides = (tall * pitch, width * tall * size, size, row * depth, size * depth)
            shape = batch, wide // width, depth, tall // depth, width
            panels = np.lib.stride_tricks.as_strided(mapped, shape, strides)
            for at, first in product(range(wide // width), range(depth)):
                target, here = panels[:, at, first], operand[:, first::depth, at * width : (at + 1) * width]
                height, across = here.shape[1:]
                target[:, :height, :across] = here
                target[:, height:] = layout.pad
                target[:, :height, across:] = layout.pad
            self.handle.count("filled", operand.nbytes)
        finally:
            self.after = [unmapped(mapped.base, self.queue)]

    def _pack(self, view: DeviceView, memory: Memory, layout: Layout) -> None:
        batch, rows, cols = view.shape
        tall, wide = layout.padded(rows, cols)
        itemsize, wide_units = view.dtype.itemsize, wide // (layout.channels or 1)
        group, block = self._division(view, layout)
        defines = {
            "PRECISION": 8 * itemsize,
            "CHANNELS": layout.channels,
            "BITS": int(layout.bits),
            "PANEL": layout.panel,
            "DEPTH": layout.depth,
            "TALL": block[0],
            "WIDE": block[1],
            "TURN": int(group == _SQUARE),
        }
        options = " ".join(f"-D {name}={value}" for name, value in defines.items())
        program = disk_cache.read("kernels/opencl/pack/pack_operand.cl"), options, "pack_operand"
        places = np.array((view.offset, view.strides[1], view.strides[2], view.strides[0]), np.int64) // itemsize
        sizes, pad = np.array((rows, cols, tall, wide), np.int32), np.array(layout.pad, view.dtype)
        args = (view.data, places, memory.data, sizes, pad.view(f"u{itemsize}"))
        self.handle.count("packed", view.size * itemsize)
        across, down, _ = group or (1, 1, 1)
        items = -(-wide_units // block[1]), -(-tall // block[0])
        extent = -(-items[0] // across) * across, -(-items[1] // down) * down, batch
        self.run(Command(program, extent, group, args, packs=view.size * itemsize))

    def _division(self, view: DeviceView, layout: Layout) -> tuple[tuple[int, int, int] | None, tuple[int, int]]:
        """Return the size of the work-groups that pack `view` (None: the driver chooses), and the numbers of rows and
        columns that each work-item writes. For an image, a column is a texel.
        """
        if self.handle.runs_on_cpu:
            return (1, 1, 1), (32, layout.panel or 256)
        transposed = view.strides[1] == view.dtype.itemsize != view.strides[2]
        square = transposed and not layout.channels and not layout.panel and min(view.shape[1:]) >= _SQUARE[0]
        if square and self.handle.cl_device.max_work_group_size >= prod(_SQUARE):
            return _SQUARE, (4, 1)
        return None, (layout.depth, layout.panel or 1)


MOST_COMMANDS = 5
"""The maximum number of commands of a product that can be repeated: three that pack operands, the kernel itself, and
one that adds up the parts of k."""


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
                    place = command.args[at + 1].copy()
                    place[0] -= self._offsets[which] // self._itemsizes[which]
                    self._takers.append((kernel, at, which, place))
            if command.scale is not None:
                self._scales.append((kernel, command.scale))
            self._commands.append((kernel, command.extent, command.group))
        if nbytes := sum(memory.nbytes for memory in traffic.reserved):
            handle.charge(self, nbytes)

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
            return self._enqueue(a, b, c, out, self._scale(*scalars[:2]))
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

    def _enqueue(self, a: Any, b: Any, c: Any, out: Any, scale: np.ndarray) -> Any:
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
        if (scaled := scale.tobytes()) != self._scaled:
            self._scaled = b""
            for kernel, at in self._scales:
                kernel.set_arg(at, scale)
            self._scaled = scaled
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


def signature(a: Any, b: Any, c: Any, out: Any, bias: Any = None) -> tuple[Any, ...] | None:
    """Return the signature of a product: everything that determines its commands, except the buffers and the offsets.

    The signature contains the alignment of each offset and, for operands that share a buffer, their distance, or both
    offsets if their elements differ in size.

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
