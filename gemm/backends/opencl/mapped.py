"""Zero copy: host arrays that a device reads and writes in place, for devices that share the host's memory.

The memory of an array from `gemm.empty` is a buffer of the driver (`Mapped`). Except while a product runs, the
buffer is mapped, and the host can use the array. `shared_views` unmaps the buffer for a product, and maps it again
before the call returns or raises. The host therefore accesses the memory only while it is mapped. Each buffer has a
lock: while a product uses the buffer, products in other threads that need the buffer wait.

Other large arrays are wrapped in a buffer for the duration of the call (USE_HOST_PTR). gemm does this only if a test
(`shared_from`) has shown that the driver does not copy such memory.
"""

from __future__ import annotations

import atexit
import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from gemm.backends.opencl.context import Handle, keep, unmapped
from gemm.backends.opencl.layout import HostMemory, Layout, fits
from gemm.core import threads
from gemm.core.errors import KernelFailed
from gemm.core.operands import aligned
from gemm.core.problem import LINE, PAGE, WRAPPED_FROM, Device, DeviceView, DType, Ints, Operand


class Mapped:
    """A buffer that the driver allocates, mapped for the host. Arrays in the buffer keep it alive through their `base`.

    The constructor raises cl.Error, or RuntimeError if the driver does not map the buffer to the same address again.
    """

    def __init__(self, device: Device, host: HostMemory, nbytes: int) -> None:
        import pyopencl as cl

        self.device_key, handle = device.key, device.handle  # gemm.core.problem.place_of reads device_key
        self.handle: Handle = handle
        self.host, self.nbytes = host, nbytes
        self.lock = threads.lock(threading.RLock)
        self.address = 0
        self._mapping: Any = None
        self.buffer = cl.Buffer(handle.context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, nbytes)
        self._remap()
        self._unmap()
        self._remap()  # checks that the driver maps the buffer to the same address again
        _claim(self, self.address, nbytes)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "typestr": "|u1", "shape": (self.nbytes,), "data": (self.address, False)}

    def unmap(self, stack: ExitStack) -> None:
        """Unmap the memory, so that the device can use it. When `stack` unwinds, the memory is mapped again.

        The caller must hold the lock. Raises RuntimeError if another product of this thread uses the memory.
        """
        if self._mapping is None:  # this call is in a signal handler that interrupted a product
            raise RuntimeError("an operand is in use by another product of this thread")
        stack.callback(self._remap)
        self._unmap()

    def __del__(self) -> None:
        with suppress(Exception):  # the device may be lost
            if self._mapping is not None and self.handle.inherited:
                keep(self._mapping)
            elif self._mapping is not None:
                self._unmap()

    def _unmap(self) -> None:
        unmapped(self._mapping, self.handle.queue)
        self._mapping = None

    def _remap(self) -> None:
        """Wait for the device and map the memory again. If an earlier command failed, raise its error (cl.Error).

        Raises KernelFailed with `spoilt` if the memory cannot be mapped.
        """
        import pyopencl as cl

        if self._mapping is None:
            try:
                self._enqueue()
            except cl.Error:
                try:
                    with self.handle.reported("the driver does not give an array's memory back"):
                        self._enqueue()  # the error may belong to the product's commands, not to this map: try again
                except KernelFailed as error:
                    error.memory, error.spoilt = False, True
                    raise
                raise

    def _enqueue(self) -> None:
        import pyopencl as cl

        flags = cl.map_flags.READ | cl.map_flags.WRITE
        array, _ = cl.enqueue_map_buffer(self.handle.queue, self.buffer, flags, 0, (self.nbytes,), np.uint8)
        address = array.__array_interface__["data"][0]
        if self.address not in (0, address):
            raise RuntimeError("the driver has mapped an array's memory to another address than before")
        self._mapping, self.address = array.base, address

    def view(self, array: np.ndarray, device: Device) -> DeviceView:
        offset = array.__array_interface__["data"][0] - self.address
        return DeviceView(self.host, self.buffer, offset, array.shape, array.strides, array.dtype, device)


_claims: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
"""{owner of a buffer: the range of host memory that belongs to the buffer}"""
_claiming = threads.lock()


def _claim(owner: Any, start: int, nbytes: int) -> bool:
    """Claim a range of host memory for the lifetime of `owner`. Return False if a part of it is already claimed.

    In OpenCL, overlapping buffers have undefined contents.
    """
    with _claiming:
        free = all(high <= start or start + nbytes <= low for low, high in list(_claims.values()))
        if free:
            _claims[owner] = start, start + nbytes
        return free


@atexit.register
def _leave() -> None:
    """Leave buffers mapped at exit. The system frees the memory, but unmapping fails if the device is lost."""
    with _claiming:
        owners = list(_claims)
    for owner in owners:
        if isinstance(owner, Mapped) and owner._mapping is not None:
            keep(owner._mapping)


def empty(shape: Ints, dtype: DType, device: Device) -> np.ndarray | None:
    """Return an array in memory that `device` shares with the host.

    The rows are padded so that kernels can read the array in place. Returns None if the device shares no memory with
    the host or has too little left, or if the array has fewer than two axes or no elements.
    """
    import pyopencl as cl

    handle: Handle = device.handle
    if not device.unified or len(shape) < 2 or math.prod(shape) == 0:
        return None
    rows, cols = shape[-2:]
    grain = max(128, 4 * handle.image_alignment[0])
    host = HostMemory(rows, cols, _padded(rows, 128), _padded(cols, grain))
    full = (*shape[:-2], host.tall, host.wide)
    try:
        memory = Mapped(device, host, math.prod(full) * dtype.itemsize)
    except (cl.Error, RuntimeError):
        return None
    whole = np.asarray(memory).view(dtype).reshape(full)
    whole[..., cols:] = -0.0
    whole[..., rows:, :] = 0.0
    return whole[..., :rows, :cols]


def _padded(length: int, most: int) -> int:
    """Round `length` up to a multiple of the largest power of two that is at most `length` / 8 and at most `most`."""
    grain = min(most, 1 << max(length // 8, 1).bit_length() - 1)
    return -(-length // grain) * grain


def owner(array: Any) -> Mapped | None:
    """Return the Mapped memory of which `array` is a view, or None."""
    while array is not None and not isinstance(array, Mapped):
        array = getattr(array, "base", None)
    return array


@contextmanager
def shared_views(device: Device, operands: Sequence[Any], layouts: Sequence[Layout]) -> Iterator[list[Any]]:
    """Yield `operands`. Each operand that `device` can use in place is replaced by a DeviceView of its memory.

    The kernel writes the last operand. After the `with` block, even if it raised an error, all commands have ended and
    the host can use the memory of the operands again.
    """
    handle: Handle = device.handle
    found = [owner(operand) if isinstance(operand, np.ndarray) else None for operand in operands]
    # All threads lock the buffers in the same order, so that there is no deadlock.
    memories = sorted({memory for memory in found if memory is not None}, key=id)
    views = list(operands)
    with ExitStack() as stack:
        for memory in memories:
            stack.enter_context(memory.lock)
        for memory in memories:
            if memory.handle is handle:
                memory.unmap(stack)
        wrapped: dict[tuple[int, int], DeviceView] = {}
        for at in reversed(range(len(views))):  # out comes first: if c is in the same memory, it shares out's buffer
            operand, mine = views[at], found[at]
            if not isinstance(operand, np.ndarray):
                continue
            if mine is not None and mine.handle is handle:
                views[at] = mine.view(operand, device)
            elif mine is None and operand.nbytes >= WRAPPED_FROM:
                views[at] = _wrap(device, operand, layouts[at], wrapped, stack, written=at == len(views) - 1)
        yield views


def _wrap(
    device: Device, operand: np.ndarray, layout: Layout, wrapped: dict[tuple[int, int], DeviceView],
    stack: ExitStack, *, written: bool,
) -> Operand:  # fmt: skip
    """Wrap the memory of `operand` in a buffer until `stack` unwinds, and return a view of the buffer.

    If this is not possible, return `operand` itself. `wrapped` has the views that this call has made so far, by
    (address, bytes): an operand in the same memory uses the same buffer.
    """
    import pyopencl as cl

    handle: Handle = device.handle
    start, whole = operand.__array_interface__["data"][0], operand
    while whole.ndim > 2 and whole.strides[0] == 0:  # all products of the batch use one matrix
        whole = whole[0]
    flat = next((x for x in (whole, whole.swapaxes(-1, -2)) if x.flags.c_contiguous), None)
    view = DeviceView(HostMemory(), None, 0, operand.shape, operand.strides, operand.dtype, device)
    if flat is None or not device.unified or not fits(view, layout) or flat.nbytes % LINE:
        return operand
    known = wrapped.get((start, flat.nbytes))
    if known is not None:
        return replace(view, owner=known.owner, data=known.data)
    alignment = shared_from(handle)
    if not alignment or start % alignment or not _claim(view.owner, start, flat.nbytes):
        return operand
    access = cl.mem_flags.READ_WRITE if written else cl.mem_flags.READ_ONLY
    try:
        buffer = cl.Buffer(handle.context, access | cl.mem_flags.USE_HOST_PTR, hostbuf=flat)
    except cl.Error:
        return operand
    stack.callback(_collect, handle, buffer)
    wrapped[start, flat.nbytes] = view = replace(view, data=buffer)
    return view


def _collect(handle: Handle, buffer: Any) -> None:
    """Wait for the device, and make its writes to the wrapped memory of `buffer` visible to the host."""
    import pyopencl as cl

    try:
        mapped, _ = cl.enqueue_map_buffer(handle.queue, buffer, cl.map_flags.READ, 0, (buffer.size,), np.uint8)
        unmapped(mapped.base, handle.queue)
    except cl.Error:
        with suppress(cl.Error):  # the device may be lost
            handle.queue.finish()  # the device must not write to the memory after the call
        raise


_alignments: weakref.WeakKeyDictionary[Handle, int] = weakref.WeakKeyDictionary()


def shared_from(handle: Handle) -> int:
    """Return the alignment in bytes that host memory needs so that the driver uses it in place.

    Returns 0 if the driver always copies host memory. OpenCL has no query for this, so gemm tests it: the writes of a
    command must be visible in the host memory before the buffer is mapped.
    """
    import pyopencl as cl

    if handle not in _alignments:
        _alignments[handle] = 0
        for alignment in (PAGE, LINE):
            block = aligned(PAGE + WRAPPED_FROM)[alignment % PAGE :][:WRAPPED_FROM]
            block[:] = 0
            try:
                buffer = cl.Buffer(handle.context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=block)
                cl.enqueue_fill_buffer(handle.queue, buffer, np.uint8(1), 0, block.nbytes).wait()
                shown = bool(block.all())
                _collect(handle, buffer)
            except cl.Error:
                break
            if not shown:
                break
            _alignments[handle] = alignment
    return _alignments[handle]
