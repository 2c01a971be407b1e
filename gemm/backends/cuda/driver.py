"""The CUDA driver (libcuda): its functions, called through ctypes, and the GPUs that it drives.

The NVIDIA driver installs libcuda; no Python package contains it. $GEMM_LIBCUDA names another library, for tests.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from functools import cache
from typing import Any, NamedTuple

from gemm.backends.cuda.compiler import Compiler, Form, compiler, image
from gemm.catalog import Kernel
from gemm.core.errors import KernelFailed
from gemm.core.threads import lock, once

LEGACY_STREAM = 1
"""The explicit handle of the legacy default stream. The handle 0 is ambiguous: it means this stream or the default
stream of a thread, depending on how a library was compiled."""

OUT_OF_MEMORY, NO_DEVICE, NOT_READY = 2, 100, 600
LOST = frozenset({214, 220, 226, 700, 702, *range(709, 711), *range(713, 720), 999})
"""Errors that destroy the context. After one of them, every later CUDA call in the process fails, too."""


_TYPES = {
    "int": c_int, "uint": c_uint, "ulonglong": c_ulonglong, "float": c_float, "size": c_size_t, "text": c_char_p,
    "address": c_void_p, "stream": c_void_p, "event": c_void_p, "device": c_int,
}  # fmt: skip

_FUNCTIONS = {
    "cuInit": "uint",
    "cuDriverGetVersion": "*int",
    "cuDeviceGetCount": "*int",
    "cuDeviceGet": "*device int",
    "cuDeviceGetName": "text int device",
    "cuDeviceGetAttribute": "*int int device",
    "cuDeviceTotalMem_v2": "*size device",
    "cuDevicePrimaryCtxRetain": "*address device",
    "cuCtxPushCurrent_v2": "address",
    "cuCtxPopCurrent_v2": "*address",
    "cuCtxGetCurrent": "*address",
    "cuCtxSynchronize": "",
    "cuMemAlloc_v2": "*address size",
    "cuMemFree_v2": "address",
    "cuMemAllocFromPoolAsync": "*address size address stream",
    "cuMemFreeAsync": "address stream",
    "cuMemPoolCreate": "*address address",
    "cuMemPoolSetAttribute": "address int address",
    "cuMemPoolTrimTo": "address size",
    "cuMemHostAlloc": "*address size uint",
    "cuMemFreeHost": "address",
    "cuMemcpyHtoD_v2": "address address size",
    "cuMemcpyDtoH_v2": "address address size",
    "cuMemcpyHtoDAsync_v2": "address address size stream",
    "cuMemcpyDtoHAsync_v2": "address address size stream",
    "cuMemcpyDtoDAsync_v2": "address address size stream",
    "cuMemcpy2DAsync_v2": "address stream",
    "cuMemsetD32Async": "address uint size stream",
    "cuPointerGetAttribute": "address int address",
    "cuStreamCreate": "*stream uint",
    "cuStreamDestroy_v2": "stream",
    "cuStreamQuery": "stream",
    "cuStreamSynchronize": "stream",
    "cuStreamWaitEvent": "stream event uint",
    "cuStreamIsCapturing": "stream *int",
    "cuStreamBeginCapture_v2": "stream int",
    "cuStreamEndCapture": "stream *address",
    "cuGraphInstantiateWithFlags": "*address address ulonglong",
    "cuGraphLaunch": "address stream",
    "cuGraphDestroy": "address",
    "cuEventCreate": "*event uint",
    "cuEventDestroy_v2": "event",
    "cuEventRecord": "event stream",
    "cuEventSynchronize": "event",
    "cuEventQuery": "event",
    "cuEventElapsedTime": "*float event event",
    "cuModuleLoadData": "*address text",
    "cuModuleGetFunction": "*address address text",
    "cuFuncSetAttribute": "address int int",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": "*int address int size",
    "cuLaunchKernel": "address uint uint uint uint uint uint uint stream address address",
    "cuLaunchKernelEx": "address address address address",
    "cuTensorMapEncodeTiled": "address uint uint address address address address address uint uint uint uint",
}
"""{name in the library: parameters}. Callers omit the suffix _v2. `*` marks an output, which the method returns."""


class Driver:
    """The functions of libcuda as methods, without the suffix _v2. A method takes the inputs and returns the output.

    The methods raise KernelFailed with CUDA's name and description of the error. cuStreamQuery and cuEventQuery return
    True if all work is complete. The constructor raises OSError if libcuda does not load.
    """

    def __init__(self) -> None:
        name = os.environ.get("GEMM_LIBCUDA") or ("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        self._library: Any = getattr(ctypes, "WinDLL" if sys.platform == "win32" else "CDLL")(name)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("cu"):
            raise AttributeError(name)
        symbol = name if name in _FUNCTIONS else f"{name}_v2"
        parameters = _FUNCTIONS[symbol]
        native = getattr(self._library, symbol, None)
        if native is None:
            raise KernelFailed(f"this CUDA driver is too old: it has no {name}; update it")
        method = self.__dict__[name] = _method(self, name, native, parameters)
        return method

    def address(self, name: str) -> int:
        """Return the address of the function `name` for C code, or 0 if this driver does not have the function."""
        native = getattr(self._library, name, None)
        return 0 if native is None else int(ctypes.cast(native, c_void_p).value or 0)

    def failure(self, name: str, status: int) -> KernelFailed:
        """Return the error for a call of `name` that returned the CUresult `status`."""
        words = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            if getattr(self._library, function)(status, byref(text)) == 0 and text.value:
                words.append(text.value.decode(errors="replace"))
        cause = f"{words[0]} ({words[1]})" if len(words) == 2 else "".join(words) or f"error {status}"
        return KernelFailed(f"{name}: {cause}", memory=status == OUT_OF_MEMORY, lost=status in LOST)


def _method(driver: Driver, name: str, native: Any, parameters: str) -> Callable[..., Any]:
    words = parameters.split()
    kinds: list[Any] = [_TYPES[word.lstrip("*")] for word in words]
    place = next((at for at, word in enumerate(words) if word.startswith("*")), None)
    native.restype, native.argtypes = c_int, kinds
    if place is None:

        def called(*inputs: Any) -> bool:
            status = native(*inputs)
            if status not in (0, NOT_READY):  # only cuStreamQuery and cuEventQuery return NOT_READY
                raise driver.failure(name, status)
            return bool(status == 0)

        return called

    kind = kinds[place]
    native.argtypes = [*kinds[:place], POINTER(kind), *kinds[place + 1 :]]

    def returning(*inputs: Any) -> Any:
        result = kind()
        status = native(*inputs[:place], byref(result), *inputs[place:])
        if status:
            raise driver.failure(name, status)
        return result.value or 0

    return returning


@cache
def cuda() -> Driver:
    """Return the driver of this process. Raises OSError if libcuda does not load."""
    return Driver()


def follow(stream: int, other: int) -> None:
    """Make future work on `stream` wait for the work that is now enqueued on the stream `other`."""
    driver = cuda()
    event = driver.cuEventCreate(2)  # CU_EVENT_DISABLE_TIMING
    try:
        driver.cuEventRecord(event, other)
        driver.cuStreamWaitEvent(stream, event, 0)
    finally:
        driver.cuEventDestroy(event)  # CUDA destroys the event after it has completed


_ATTRIBUTES = {
    "block_threads": 1, "shared_memory": 8, "clock_khz": 13, "sm_count": 16, "memory_khz": 36, "memory_bits": 37,
    "l2_bytes": 38, "sm_threads": 39, "major": 75, "minor": 76, "sm_shared_memory": 81, "fp64_ratio": 87,
    "shared_memory_optin": 97, "memory_pools": 115,
}  # fmt: skip
"""{name in gemm: CUdevice_attribute}."""


def threads(kernel: Kernel) -> int:
    """Return the number of threads in a thread block of `kernel`."""
    p = kernel.params
    return p.get("THREADS") or p["BM"] * p["BN"]


class Function(NamedTuple):
    """A loaded kernel.

    Attributes:
        handle: the kernel's CUfunction.
        resident: the number of thread blocks of this kernel that run at the same time on a multiprocessor.
    """

    handle: int
    resident: int


class Gpu:
    """One GPU: its primary context, which all libraries in the process share, and its memory.

    `with gpu:` makes the context current on this thread, and restores the caller's context afterwards.

    Attributes:
        overlaps: whether a launch may start before the previous launch has ended (follow_launch in ptx.cuh).
        alone: bytes of shared memory. A multiprocessor cannot hold two thread blocks that request this much each.
    """

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.id = cuda().cuDeviceGet(ordinal)
        self._pool = 0
        self._process = os.getpid()
        self._lock = lock()
        self._functions: dict[Any, Function] = {}
        self.facts = {name: self._attribute(which) for name, which in _ATTRIBUTES.items()}
        self.capability = 10 * self.facts["major"] + self.facts["minor"]
        self.units = self.facts["sm_count"]
        self.pools = bool(self.facts["memory_pools"])
        self.alone = min(self.facts["shared_memory_optin"], self.facts["sm_shared_memory"] // 2)
        # Drivers older than CUDA 12.3 cannot capture overlapping launches into a graph.
        self.overlaps = self.capability >= 90 and int(cuda().cuDriverGetVersion()) >= 12030

    def _attribute(self, which: int) -> int:
        try:
            return int(cuda().cuDeviceGetAttribute(which, self.id))
        except KernelFailed:  # the driver is too old to know this attribute
            return 0

    @once
    def context(self) -> int:
        """The primary context. It is created on first use, because it costs time and device memory."""
        return int(cuda().cuDevicePrimaryCtxRetain(self.id))

    def __enter__(self) -> Gpu:
        if os.getpid() != self._process:
            raise KernelFailed("CUDA was in use when this process was forked, and does not survive a fork", lost=True)
        cuda().cuCtxPushCurrent(self.context)
        return self

    def __exit__(self, *_: object) -> None:
        cuda().cuCtxPopCurrent()

    # The methods below require that the GPU's context is current.

    @property
    def pool(self) -> int:
        """gemm's own CUmemoryPool, which keeps a part of the freed memory. 0 if the device does not support pools.

        The device's default pool releases all free memory each time a thread waits for the device. The release takes
        longer than most products.
        """
        if self.pools and not self._pool:
            with self._lock:
                if not self._pool:
                    # CUmemPoolProps: pinned, no handles, on this device
                    wanted = ctypes.create_string_buffer(struct.pack("4i72x", 1, 0, 1, self.id))
                    pool = cuda().cuMemPoolCreate(ctypes.addressof(wanted))
                    kept = ctypes.c_uint64(int(cuda().cuDeviceTotalMem(self.id)) // 32)
                    cuda().cuMemPoolSetAttribute(pool, 4, ctypes.addressof(kept))  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
                    self._pool = int(pool)
        return self._pool

    def allocate(self, size: int, stream: int) -> int:
        """Allocate `size` bytes for work on `stream` and return the address. Raises KernelFailed."""
        if not self.pools:
            return int(cuda().cuMemAlloc(size))
        try:
            return int(cuda().cuMemAllocFromPoolAsync(size, self.pool, stream))
        except KernelFailed as error:
            if not error.memory:
                raise
            self.trim()
            return int(cuda().cuMemAllocFromPoolAsync(size, self.pool, stream))

    def free(self, address: int, stream: int) -> None:
        """Free memory that `allocate` returned, as soon as the work that is now enqueued on `stream` has ended."""
        if self.pools:
            cuda().cuMemFreeAsync(address, stream)
        else:
            cuda().cuMemFree(address)  # waits for the device

    def trim(self) -> None:
        """Release the free memory of the pool to the device."""
        if self.pools:
            cuda().cuMemPoolTrimTo(self.pool, 0)

    @property
    def compiler(self) -> Compiler:
        """The NVRTC that compiles for this device. Raises KernelFailed if there is none."""
        return compiler(self.capability, int(cuda().cuDriverGetVersion()))

    def function(self, kernel: Kernel, form: Form) -> Function:
        """Return `kernel`, compiled in the variant `form` and loaded.

        gemm finds the compiled kernel in the disk cache or compiles it. Each variant is loaded once.
        Raises KernelFailed.
        """
        key = (kernel, *form.items())
        found = self._functions.get(key)
        if found is None:
            with self._lock:
                found = self._functions.get(key)
                if found is None:
                    found = self._functions[key] = self._load(kernel, form)
        return found

    def _load(self, kernel: Kernel, form: Form) -> Function:
        built = image(kernel, self.capability, form, self.compiler)
        try:
            return self._function(kernel, built)
        except KernelFailed as error:
            if error.memory or error.lost:
                raise
        # The driver rejects the image, which may be from the disk cache: compile the kernel again.
        try:
            return self._function(kernel, image(kernel, self.capability, form, self.compiler, anew=True))
        except KernelFailed as error:
            raise self.compiler.refused(error, int(cuda().cuDriverGetVersion())) from error

    def _function(self, kernel: Kernel, built: bytes) -> Function:
        driver = cuda()
        handle = int(driver.cuModuleGetFunction(driver.cuModuleLoadData(built), kernel.entry.encode()))
        shared, size = kernel.params.get("shared", 0), threads(kernel)
        if shared:  # without this attribute, the limit is 48 KB, static shared memory included
            most = max(shared, self.alone) if self.overlaps else shared
            driver.cuFuncSetAttribute(handle, 8, most)  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        resident = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(handle, size, shared)
        if not resident:
            raise KernelFailed(f"a block of {size} threads and {shared} bytes of shared memory does not fit")
        return Function(handle, int(resident))
