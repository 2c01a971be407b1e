"""Staging: brings operands into the layouts that OpenCL kernels require.

NumPy copies a host operand once into mapped memory. This copy handles transposes, strides and broadcasts, and adds
padding. The driver allocates the memory, so that mapping does not copy. A device operand is used in place if the kernel
can read it; otherwise a small kernel packs it.

A `Traffic` contains the commands of one call. The classes of the module `replay` repeat them for other arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gemm.backends.opencl.context import Handle, Memory, unmapped
from gemm.backends.opencl.layout import PACKED, Layout, Staged, in_place
from gemm.core import backend, disk_cache
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


class Copied(NamedTuple):
    """A copy between a host operand and staging memory.

    Attributes:
        name: the name under which the memory was reserved: "a", "b", "c" or "out".
        address, shape, strides: of the operand, with the axes (batch, rows, cols).
        layout: the layout of the operand in `memory`.
    """

    name: str
    address: int
    shape: Ints
    strides: Ints
    memory: Memory
    layout: Layout


class Traffic:
    """The commands of one call, the operands that are staged, and the events for which the next command waits."""

    def __init__(self, handle: Handle, queue: Any, after: list[Any]) -> None:
        self.handle, self.queue, self.after = handle, queue, after
        self._held: dict[str, tuple[Any, Staged, Memory]] = {}
        self.commands: list[Command] = []
        self.reserved: list[Memory] = []
        self.copies: list[Copied] = []  # of host operands, and of out at the end
        self.repeatable = True  # whether the commands, and all copies before and after them, can be repeated
        self.writes = 0  # the number of commands and copies that may have changed out

    @property
    def nbytes(self) -> int:
        """The bytes of staging memory that the commands use."""
        return sum(memory.nbytes for memory in self.reserved)

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
            if not isinstance(operand, DeviceView):
                self._copied(name, operand, memory, layout)
        return staged

    def _copied(self, name: str, operand: np.ndarray, memory: Memory, layout: Layout) -> None:
        """Record a copy. Only copies of operands before the first command, and one copy of out, can be repeated."""
        fetched = any(copy.name == "out" for copy in self.copies)
        self.repeatable &= not fetched and bool(self.commands) == (name == "out")
        address = operand.__array_interface__["data"][0]
        self.copies.append(Copied(name, address, operand.shape, operand.strides, memory, layout))

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
        self._copied(name, out, memory, PACKED)

    def run(self, command: Command) -> None:
        """Enqueue `command` after all earlier commands of this call."""
        import pyopencl as cl

        # Do not call kernel(queue, ...): pyopencl then unpickles code from the user's cache folder.
        kernels, program = self.handle.kernels, command.program
        kernel = kernels.pop(program, None) or self.handle.fresh(*program)
        for position, arg in enumerate(command.args):
            kernel.set_arg(position, arg)
        self.after = [
            cl.enqueue_nd_range_kernel(self.queue, kernel, command.extent, command.group, wait_for=self.after)
        ]
        kernels[program] = kernel
        self.commands.append(command)

    def _write(self, operand: Operand, memory: Memory, layout: Layout) -> None:
        if isinstance(operand, DeviceView):
            self._pack(operand, memory, layout)
        else:
            self.after = [fill(self.handle, self.queue, operand, memory, layout, self.after)]

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


def fill(
    handle: Handle, queue: Any, operand: np.ndarray, memory: Memory, layout: Layout, after: Sequence[Any] = ()
) -> Any:
    """Copy a host operand (batch, rows, cols) into `memory` in `layout`. Return the event of the last command."""
    import pyopencl as cl

    batch, rows, cols = operand.shape
    tall, wide = layout.padded(rows, cols)
    write, dtype, depth = cl.map_flags.WRITE_INVALIDATE_REGION, operand.dtype, layout.depth
    width = layout.panel or wide
    shape = batch, wide // width, tall // depth, width, depth
    if layout.channels:
        texels = (wide // layout.channels, batch * tall)
        mapped, _, pitch, _ = cl.enqueue_map_image(
            queue, memory.data, write, (0, 0), texels, (batch * tall, wide), dtype, wait_for=after
        )
        strides = (tall * pitch, 0, pitch, dtype.itemsize, 0)  # the pitch is known only after mapping
        panels = np.lib.stride_tricks.as_strided(mapped, shape, strides)
    else:
        panels = mapped = cl.enqueue_map_buffer(queue, memory.data, write, 0, shape, dtype, wait_for=after)[0]
    try:
        _spread(operand, panels, layout.pad)
        handle.count("filled", operand.nbytes)
    finally:
        event = unmapped(mapped.base, queue)
    return event


def _spread(operand: np.ndarray, panels: np.ndarray, pad: float) -> None:
    """Copy `operand` into `panels`, with the axes (batch, panel, row / depth, column, depth), and write the padding."""
    batch, rows, cols = operand.shape
    _, count, _, width, depth = panels.shape
    whole = cols // width if depth == 1 else 0  # NumPy copies these panels together
    if whole:
        target, here = panels[:, :whole, :, :, 0], operand[:, :, : whole * width]
        target[:, :, :rows] = here.reshape(batch, rows, whole, width).swapaxes(1, 2)
        if target.shape[2] > rows:
            target[:, :, rows:] = pad
    for at, first in product(range(whole, count), range(depth)):
        target, here = panels[:, at, :, :, first], operand[:, first::depth, at * width : (at + 1) * width]
        height, across = here.shape[1:]
        target[:, :height, :across] = here
        target[:, height:] = pad
        target[:, :height, across:] = pad
