"""The GPUs of the CUDA backend: finds GPUs, holds their contexts and memory pools, and loads kernels."""

from __future__ import annotations

import ctypes
import os
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

from gemm.backends.cuda.api import NO_DEVICE, THREAD_STREAM, cuda
from gemm.backends.cuda.compiler import Compiler, Form, compiler, compilers, image
from gemm.catalog import Kernel
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Device
from gemm.core.threads import lock, once

_INSTALL = 'pip install "gemm[cuda]"'
_DRIVER = "install or update the NVIDIA driver (nvidia-smi must list the GPU)"

_CAPABILITIES = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)

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
        alone: bytes of shared memory. If every thread block requests so much, no multiprocessor can hold two of them.
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
            raise KernelFailed("CUDA was in use when this process was forked, and does not survive that", lost=True)
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

    def allocate(self, size: int, stream: int = THREAD_STREAM) -> int:
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

    def free(self, address: int, stream: int = THREAD_STREAM) -> None:
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


def find_devices() -> tuple[Device, ...]:
    """Return every GPU, in CUDA's order. Raises BackendUnavailable."""
    try:
        driver = cuda()
    except OSError as error:
        raise BackendUnavailable("cuda", f"the driver does not load ({error})", _DRIVER) from error
    try:
        driver.cuInit(0)
        if not compilers():
            raise BackendUnavailable("cuda", "no NVRTC was found, which compiles the kernels", _INSTALL)
        version = int(driver.cuDriverGetVersion())
        oldest = min(found.major for found in compilers())
        if version // 1000 < oldest:
            raise BackendUnavailable(
                "cuda", f"the driver is made for CUDA {_dotted(version)}, NVRTC for {oldest}",
                f'update the driver, or pip install "nvidia-cuda-nvrtc-cu{version // 1000}"',
            )  # fmt: skip
        devices = tuple(_describe(ordinal, version) for ordinal in range(int(driver.cuDeviceGetCount())))
    except KernelFailed as error:
        if f"error {NO_DEVICE}" in str(error) or "NO_DEVICE" in str(error):
            cause = "there is no CUDA device"
            raise BackendUnavailable("cuda", cause, f"{_DRIVER}; see also $CUDA_VISIBLE_DEVICES") from error
        raise BackendUnavailable("cuda", str(error), _DRIVER) from error
    if not devices:
        raise BackendUnavailable("cuda", "there is no CUDA device", _DRIVER)
    return devices


def _describe(ordinal: int, version: int) -> Device:
    driver, gpu = cuda(), Gpu(ordinal)
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, 256, gpu.id)
    capability, facts = gpu.capability, gpu.facts
    return Device(
        backend="cuda",
        key=f"cuda:{ordinal}",
        name=name.value.decode(errors="replace").strip(),
        platform="CUDA",
        driver=f"{_kernel_module()} (CUDA {_dotted(version)})".lstrip(),
        kind="gpu",
        features=frozenset(_features(capability)),
        limits={
            "compute_capability": capability,
            "sm_count": gpu.units,
            "block_threads": facts["block_threads"],
            "shared_memory": facts["shared_memory"],
            "shared_memory_optin": facts["shared_memory_optin"] or facts["shared_memory"],
            "clock_mhz": facts["clock_khz"] // 1000,
            "memory_gbs": facts["memory_khz"] * facts["memory_bits"] // 4_000_000,
            "fp64_ratio": facts["fp64_ratio"],
            "memory_bytes": int(driver.cuDeviceTotalMem(gpu.id)),
            "l2_bytes": facts["l2_bytes"],
        },
        handle=gpu,
    )


def _features(capability: int) -> set[str]:
    """Return the features of a GPU that kernels can require.

    A feature such as "sm_80" means compute capability 8.0 or newer. "sm_90a" means exactly 9.0.
    """
    found = {"fp64", f"sm_{capability}"} | {f"sm_{least}" for least in _CAPABILITIES if least <= capability}
    return found | ({f"sm_{capability}a"} if capability >= 90 else set())


def _kernel_module() -> str:
    """Return the driver's release, such as 580.159.03, or "" if the system does not report it.

    One CUDA version covers many releases of the driver.
    """
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"\d+\.\d+(\.\d+)?", text)
    return found[0] if found else ""


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
