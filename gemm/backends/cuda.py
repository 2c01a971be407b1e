"""The CUDA backend: NVIDIA GPUs through the driver API, kernels compiled by NVRTC at run time (no nvcc, no toolkit).

Host operands are staged through device memory; device operands (PyTorch, CuPy, anything with
__cuda_array_interface__ or DLPack) are multiplied in place, in order on their own stream.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, product
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from gemm.backends import cuda_arrays
from gemm.backends.base import Backend, Launch
from gemm.backends.cuda_compiler import bindings
from gemm.backends.cuda_driver import LEGACY_STREAM, THREAD_STREAM, Gpu, call, find_devices, load
from gemm.catalog import Kernel
from gemm.errors import BackendUnavailable
from gemm.problem import Device, DeviceView, Operand, Problem, same_stack

_GRID_Y = 65535
_ALIGN = 256  # bytes: what cuMemAlloc aligns to


class CudaBackend(Backend):
    """NVIDIA GPUs."""

    name: ClassVar[str] = "cuda"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: tuple[Device, ...] | BackendUnavailable | None = None
        self._process = 0

    def devices(self) -> tuple[Device, ...]:
        with self._lock:
            if self._found is None:
                self._process = os.getpid()
                try:
                    self._found = find_devices()
                except BackendUnavailable as error:
                    self._found = error
            if isinstance(self._found, BackendUnavailable):
                raise BackendUnavailable(self._found.backend, self._found.cause, self._found.remedy)
            if self._process != os.getpid():
                raise BackendUnavailable(
                    "cuda", "CUDA was in use when this process was forked, and does not survive that",
                    'start it with multiprocessing.set_start_method("spawn")',
                )  # fmt: skip
            return self._found

    def launcher(self, kernel: Kernel, device: Device, problem: Problem) -> Launch:
        return TileLaunch(kernel, device.handle)

    def view(self, array: Any, name: str) -> DeviceView | None:
        return cuda_arrays.view(array, name, self.devices)

    def empty(self, shape: tuple[int, ...], like: DeviceView) -> DeviceView:
        return cast(DeviceView, self.view(cuda_arrays.empty(shape, like), "out"))

    def to_device(self, array: np.ndarray, device: Device) -> DeviceView:
        copy = cuda_arrays.DeviceArray(array.shape, array.dtype, device)
        copy.copy_from_host(array)
        return copy.view()

    def to_host(self, view: DeviceView) -> np.ndarray:
        return cuda_arrays.to_host(view)

    def synchronize(self, device: Device) -> None:
        with device.handle:
            call(bindings("driver").cuCtxSynchronize)


class Walk(NamedTuple):
    """How launches cover a stack of products; see `walk`."""

    swap: bool
    grid: int
    sizes: tuple[int, ...]
    launches: tuple[tuple[int, tuple[int, ...]], ...]


@lru_cache(maxsize=1024)
def walk(shape: tuple[int, ...], k: int, itemsize: int, bm: int, bn: int, *strides: tuple[int, ...]) -> Walk:
    """Plan the launches of out = a·b with `strides` in bytes, those of a, b, c and out.

    Returns:
        swap: out is nearer to column-major, so that out^T = b^T·a^T is computed instead: the same chain of
            operations an element, since fma(x, y, z) = fma(y, x, z), with neighbouring threads on neighbouring words.
        grid: tiles of one product. sizes: m, n, k and (row, column, batch) strides in elements, as the kernel takes.
        launches: (batch, byte offsets of a, b, c and out). One batch axis runs in the grid, the others here.
    """
    *batch, m, n = shape
    swap = abs(strides[3][-2]) < abs(strides[3][-1])
    if swap:
        m, n = n, m
        turned = [(*s[:-2], s[-1], s[-2]) for s in strides]
        strides = (turned[1], turned[0], turned[2], turned[3])
    axes = same_stack(batch, *(s[:-2] for s in strides))
    longest = max(axes, key=lambda axis: axis[0], default=(1, (0, 0, 0, 0)))
    if axes:
        axes.remove(longest)
    length, step = longest
    launches = []
    for index in product(*(range(count) for count, _ in axes)):
        start = [sum(i * axis[1][x] for i, axis in zip(index, axes, strict=True)) for x in range(4)]
        for first in range(0, length, _GRID_Y):
            offsets = tuple(s + first * t for s, t in zip(start, step, strict=True))
            launches.append((min(_GRID_Y, length - first), offsets))
    sizes = [m, n, k]
    for s, batch_step in zip(strides, step, strict=True):
        sizes += (s[-2] // itemsize, s[-1] // itemsize, batch_step // itemsize)
    return Walk(swap, -(-m // bm) * -(-n // bn), tuple(sizes), tuple(launches))


class TileLaunch:
    """A loaded kernel with the argument list of gemm_cuda_tile; a `Launch`."""

    def __init__(self, kernel: Kernel, gpu: Gpu) -> None:
        self._gpu = gpu
        self._function = load(kernel, gpu)
        self._bm, self._bn = kernel.params["BM"], kernel.params["BN"]
        self._itemsize = np.dtype(kernel.dtype).itemsize
        # The kernel's parameters lie in memory as those of a C function: packed at once, not one by one.
        self._parameters = struct.Struct("4P15q2" + {4: "f", 8: "d"}[self._itemsize])

    def __call__(self, a: Operand, b: Operand, c: Operand | None, out: Operand, alpha: float, beta: float) -> None:
        """See gemm.backends.base.Launch."""
        with self._gpu:
            if isinstance(out, np.ndarray):
                self._stage(cast(np.ndarray, a), cast(np.ndarray, b), cast("np.ndarray | None", c), out, alpha, beta)
            else:
                self._enqueue(cast(DeviceView, a), cast(DeviceView, b), cast("DeviceView | None", c), out, alpha, beta)

    def _enqueue(
        self, a: DeviceView, b: DeviceView, c: DeviceView | None, out: DeviceView, alpha: float, beta: float
    ) -> None:
        views = (a, b, out if c is None else c, out)
        for view in views:
            if view.device.handle is not self._gpu:  # or the kernel would fault, which kills the whole context
                raise ValueError(f"operands lie on {view.device.key} and {out.device.key}: move them to one device")
        queues = {view.queue for view in views if view.queue is not None}
        stream = out.queue if out.queue is not None else min(queues, default=LEGACY_STREAM)
        others = queues - {stream}
        for other in others:
            _follow(stream, other)
        pointers = [view.data + view.offset for view in views]
        strides = [view.strides for view in views]
        self._run(pointers, strides, out.shape, a.shape[-1], c is not None, alpha, beta, stream)
        for other in others:  # what comes next on an operand's stream may overwrite it
            _follow(other, stream)

    def _stage(
        self, a: np.ndarray, b: np.ndarray, c: np.ndarray | None, out: np.ndarray, alpha: float, beta: float
    ) -> None:
        driver = bindings("driver")
        inputs = [dense(operand) for operand in (a, b, c) if operand is not None]
        result, result_strides, target = dense(out, fill=False)
        blocks = [block for block, _, _ in inputs] + [result]
        *offsets, total = accumulate((-(-block.nbytes // _ALIGN) * _ALIGN for block in blocks), initial=0)
        strides = [stride for _, stride, _ in inputs] + [result_strides]
        base = self._gpu.allocate(total)
        try:
            for block, offset in zip(blocks[:-1], offsets, strict=False):
                if block.nbytes:
                    source = block.ctypes.data
                    call(driver.cuMemcpyHtoDAsync, base + offset, source, block.nbytes, THREAD_STREAM)
            pointers = [base + offset for offset in offsets]
            if c is None:
                pointers.insert(2, 0)
                strides.insert(2, result_strides)
            self._run(pointers, strides, out.shape, a.shape[-1], c is not None, alpha, beta, THREAD_STREAM)
            call(driver.cuMemcpyDtoHAsync, result.ctypes.data, base + offsets[-1], result.nbytes, THREAD_STREAM)
        finally:  # after a failure too: until then the copies may touch host memory
            self._gpu.free(base)
            call(driver.cuStreamSynchronize, THREAD_STREAM)
        if result is not target:
            target[...] = result

    def _run(
        self, pointers: list[int], strides: Sequence[tuple[int, ...]], shape: tuple[int, ...], k: int, reads_c: bool,
        alpha: float, beta: float, stream: int,
    ) -> None:  # fmt: skip
        plan = walk(shape, k, self._itemsize, self._bm, self._bn, *strides)
        a, b, c, out = pointers
        if plan.swap:
            a, b = b, a
        launch = bindings("driver").cuLaunchKernel
        for batch, (a_at, b_at, c_at, out_at) in plan.launches:
            addresses = (a + a_at, b + b_at, c + c_at if reads_c else 0, out + out_at)
            buffer = ctypes.create_string_buffer(self._parameters.pack(*addresses, *plan.sizes, alpha, beta))
            size = ctypes.c_size_t(self._parameters.size)
            # CU_LAUNCH_PARAM_BUFFER_POINTER, its value, CU_LAUNCH_PARAM_BUFFER_SIZE, its value, the end
            extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
            block = (self._bn, self._bm, 1)
            call(launch, self._function, plan.grid, batch, 1, *block, 0, stream, 0, ctypes.addressof(extra))


def dense(array: np.ndarray, fill: bool = True) -> tuple[np.ndarray, tuple[int, ...], np.ndarray]:
    """`array` as one block of memory without gaps or repetitions, in its own order of axes.

    Returns:
        the block, a view of `array` where that has no gaps, else a copy (without `fill` uninitialised);
        the byte strides of `array` over the block, zero along repeated axes;
        `array` itself with the block's shape, to copy back into.
    """
    once = array[tuple(slice(None) if stride else slice(0, 1) for stride in array.strides)]
    order = sorted(range(once.ndim), key=lambda axis: -abs(once.strides[axis]))
    turned = once.transpose(order)
    block = turned
    if not turned.flags.c_contiguous:
        block = np.ascontiguousarray(turned) if fill else np.empty(turned.shape, turned.dtype)
    strides = [0] * array.ndim
    for axis, stride in zip(order, block.strides, strict=True):
        strides[axis] = stride if array.strides[axis] else 0
    return block, tuple(strides), turned


def _follow(stream: int, other: int) -> None:
    """Let what is enqueued on `stream` from now on wait for what `other` holds now."""
    driver = bindings("driver")
    event = call(driver.cuEventCreate, 2)  # CU_EVENT_DISABLE_TIMING
    try:
        call(driver.cuEventRecord, event, other)
        call(driver.cuStreamWaitEvent, stream, event, 0)
    finally:
        call(driver.cuEventDestroy, event)  # takes effect once the event has happened
