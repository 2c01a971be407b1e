"""Host arrays that a device reads and writes where they lie, for devices that share the host's memory.

An array of `gemm.empty` lies in a buffer of the driver (`Mapped`), which is mapped, so that the array can be used,
except while a product runs: `lent` unmaps it, and maps it again before the call returns or raises, so that whoever
holds the array only ever touches mapped memory. A lock per buffer keeps a second thread's product waiting. Other large
arrays are wrapped in a buffer for the call where this driver was seen not to copy them (USE_HOST_PTR).
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
from gemm.backends.opencl.layout import Layout, Loan, fits
from gemm.core import threads
from gemm.core.errors import KernelFailed
from gemm.core.operands import LINE, PAGE, WRAPPED_FROM, aligned
from gemm.core.problem import Device, DeviceView, Operand


class Mapped:
    """A buffer of the driver's, mapped; the arrays over it keep it alive by their `base`.

    Raises cl.Error, or RuntimeError where the driver maps a buffer to another address each time.
    """

    def __init__(self, device: Device, loan: Loan, nbytes: int) -> None:
        import pyopencl as cl

        self.device_key, handle = device.key, device.handle  # the first one for gemm.core.operands.place
        self.handle: Handle = handle
        self.loan, self.nbytes = loan, nbytes
        self.lock = threads.lock(threading.RLock)
        self.address = 0
        self._map: Any = None
        self.buffer = cl.Buffer(handle.context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, nbytes)
        self._take()
        self._give()
        self._take()  # at the same address
        _claims.add(self, self.address, nbytes)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "typestr": "|u1", "shape": (self.nbytes,), "data": (self.address, False)}

    def lend(self, stack: ExitStack) -> None:
        """Give the memory to the device until `stack` unwinds. The caller holds the lock until then."""
        if self._map is None:  # a signal handler's product within a product of its thread
            raise RuntimeError("an operand is in use by another product of this thread")
        stack.callback(self._take)
        self._give()

    def __del__(self) -> None:
        with suppress(Exception):  # of a lost device
            if self._map is not None and self.handle.inherited:
                keep(self._map)
            elif self._map is not None:
                self._give()

    def _give(self) -> None:
        unmapped(self._map, self.handle.queue)
        self._map = None

    def _take(self) -> None:
        """Wait for the device and map the memory again. Raises what made a command before fail."""
        import pyopencl as cl

        if self._map is None:
            try:
                self._enqueue()
            except cl.Error:
                try:
                    with self.handle.reported("the driver does not give an array's memory back"):
                        self._enqueue()  # it may have been the product that failed, not this
                except KernelFailed as error:
                    raise KernelFailed(str(error), lost=error.lost, spoilt=True) from error
                raise

    def _enqueue(self) -> None:
        import pyopencl as cl

        flags = cl.map_flags.READ | cl.map_flags.WRITE
        array, _ = cl.enqueue_map_buffer(self.handle.queue, self.buffer, flags, 0, (self.nbytes,), np.uint8)
        address = array.__array_interface__["data"][0]
        if self.address not in (0, address):
            raise RuntimeError("the driver has mapped an array's memory to another address than before")
        self._map, self.address = array.base, address

    def view(self, array: np.ndarray, device: Device) -> DeviceView:
        offset = array.__array_interface__["data"][0] - self.address
        return DeviceView(self.loan, self.buffer, offset, array.shape, array.strides, array.dtype, device)


class _Claims:
    """Ranges of host memory that buffers stand for: the same bytes in two buffers would be undefined."""

    def __init__(self) -> None:
        self._ranges: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._lock = threads.lock()

    def add(self, owner: Any, start: int, nbytes: int) -> bool:
        """Claim the range while `owner` lives; False if some of it is claimed."""
        with self._lock:
            ranges = list(self._ranges.values())
            if any(start < high and low < start + nbytes for low, high in ranges):
                return False
            self._ranges[owner] = start, start + nbytes
            return True

    def owners(self) -> list[Any]:
        with self._lock:
            return list(self._ranges)


_claims = _Claims()


@atexit.register
def _leave() -> None:
    """Leave mapped what is mapped: a process that ends gives its memory back by itself, a lost device does not."""
    for owner in _claims.owners():
        if isinstance(owner, Mapped) and owner._map is not None:
            keep(owner._map)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], device: Device) -> np.ndarray | None:
    """An array in memory that `device` shares with the host, its rows padded so that kernels read it where it lies.

    None where the device shares none, or has none left.
    """
    import pyopencl as cl

    handle: Handle = device.handle
    if not device.unified or len(shape) < 2 or math.prod(shape) == 0:
        return None
    rows, cols = shape[-2:]
    grain = max(128, 4 * handle.image_alignment[0])
    loan = Loan(rows, cols, _padded(rows, 128), _padded(cols, grain))
    full = (*shape[:-2], loan.tall, loan.wide)
    try:
        memory = Mapped(device, loan, math.prod(full) * dtype.itemsize)
    except (cl.Error, RuntimeError):
        return None
    whole = np.asarray(memory).view(dtype).reshape(full)
    whole[..., cols:] = -0.0
    whole[..., rows:, :] = 0.0
    return whole[..., :rows, :cols]


def _padded(length: int, most: int) -> int:
    """`length` as a multiple of a power of two up to `most`, by which it grows by an eighth at the most."""
    grain = min(most, 1 << max(length // 8, 1).bit_length() - 1)
    return -(-length // grain) * grain


def owner(array: Any) -> Mapped | None:
    """The memory of `empty` that `array` is a view of, if any."""
    while array is not None and not isinstance(array, Mapped):
        array = getattr(array, "base", None)
    return array


@contextmanager
def lent(device: Device, operands: Sequence[Any], layouts: Sequence[Layout]) -> Iterator[list[Any]]:
    """`operands` (the last one is written) with views of device memory for those that `device` can use in place.

    Whatever happens inside, the commands have finished and host memory is the host's again when it is left.
    """
    handle: Handle = device.handle
    found = [owner(operand) if isinstance(operand, np.ndarray) else None for operand in operands]
    memories = sorted({memory for memory in found if memory is not None}, key=id)  # one order: no deadlock
    views = list(operands)
    with ExitStack() as stack:
        for memory in memories:
            stack.enter_context(memory.lock)
        for memory in memories:
            if memory.handle is handle:
                memory.lend(stack)
        wrapped: dict[tuple[int, int], DeviceView] = {}
        for at in reversed(range(len(views))):  # what is written first: c may be the same memory
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
    """A view of a buffer over `operand`'s own memory until `stack` unwinds; `operand` itself if that would not do."""
    import pyopencl as cl

    handle: Handle = device.handle
    start, whole = operand.__array_interface__["data"][0], operand
    while whole.ndim > 2 and whole.strides[0] == 0:  # one matrix for a whole batch
        whole = whole[0]
    flat = next((x for x in (whole, whole.swapaxes(-1, -2)) if x.flags.c_contiguous), None)
    view = DeviceView(Loan(), None, 0, operand.shape, operand.strides, operand.dtype, device)
    if flat is None or not device.unified or not fits(view, layout) or flat.nbytes % LINE:
        return operand
    known = wrapped.get((start, flat.nbytes))
    if known is not None:
        return replace(view, owner=known.owner, data=known.data)
    alignment = shared_from(handle)
    if not alignment or start % alignment or not _claims.add(view.owner, start, flat.nbytes):
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
    """Wait for the device, and let the host see what it has written to memory that `buffer` wraps."""
    import pyopencl as cl

    try:
        mapped, _ = cl.enqueue_map_buffer(handle.queue, buffer, cl.map_flags.READ, 0, (buffer.size,), np.uint8)
        unmapped(mapped.base, handle.queue)
    except cl.Error:
        with suppress(cl.Error):  # from a device that is gone
            handle.queue.finish()  # it must not go on writing there
        raise


_alignments: weakref.WeakKeyDictionary[Handle, int] = weakref.WeakKeyDictionary()


def shared_from(handle: Handle) -> int:
    """The alignment from which the driver works in memory that it is given instead of copying it; 0 if it never does.

    Seen, not asked for: no query tells. What a command writes must show in the memory before anything is mapped.
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
