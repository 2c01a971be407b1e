"""The CUDA driver underneath the backend: finding GPUs, their contexts and memory, loading kernels."""

from __future__ import annotations

import re
import threading
from functools import cache
from pathlib import Path
from typing import Any

from gemm import sources
from gemm.backends.cuda_compiler import architecture, bindings, cache_entry, compile_source, compiler_version
from gemm.catalog import Kernel
from gemm.errors import BackendUnavailable, KernelFailed
from gemm.problem import Device

LEGACY_STREAM, THREAD_STREAM = 1, 2
"""The default streams by their explicit handles: 0 would mean either, by how a library was built."""

_OUT_OF_MEMORY = 2
_NO_DEVICE = 100
_INSTALL = 'pip install "gemm[cuda]"'
_DRIVER = "install or update the NVIDIA driver (nvidia-smi must list the GPU)"


def call(function: Any, *arguments: Any) -> Any:
    """Call a driver function; its result, if any, or KernelFailed with CUDA's own name and words for the error."""
    status, *result = function(*arguments)
    if status:
        raise KernelFailed(f"{function.__name__}: {describe(status)}", memory=int(status) == _OUT_OF_MEMORY)
    return result[0] if result else None


def describe(status: Any) -> str:
    """A CUresult in words."""
    unknown, text = bindings("driver").cuGetErrorString(status)
    name = getattr(status, "name", str(status))
    return name if unknown or not text else f"{name} ({text.decode()})"


class Gpu:
    """One device: its primary context, which every library in the process shares, and its memory.

    `with gpu:` makes the context current on this thread and restores the caller's afterwards.
    """

    def __init__(self, ordinal: int) -> None:
        driver = bindings("driver")
        self.ordinal = ordinal
        self.id = call(driver.cuDeviceGet, ordinal)
        self._context: Any = None
        self._lock = threading.Lock()
        self.pools = bool(self.attribute("MEMORY_POOLS_SUPPORTED"))

    def attribute(self, name: str) -> int:
        """CU_DEVICE_ATTRIBUTE_`name`."""
        driver = bindings("driver")
        which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call(driver.cuDeviceGetAttribute, which, self.id))

    def __enter__(self) -> Gpu:
        driver = bindings("driver")
        if self._context is None:  # costs time and memory on the card: only for devices that are used
            with self._lock:
                if self._context is None:
                    self._context = call(driver.cuDevicePrimaryCtxRetain, self.id)
        call(driver.cuCtxPushCurrent, self._context)
        return self

    def __exit__(self, *_: object) -> None:
        bindings("driver").cuCtxPopCurrent()

    # The rest wants the context current.

    def allocate(self, size: int) -> int:
        """Address of `size` bytes, for work on THREAD_STREAM."""
        driver = bindings("driver")
        if self.pools:
            return int(call(driver.cuMemAllocAsync, size, THREAD_STREAM))
        return int(call(driver.cuMemAlloc, size))

    def free(self, address: int) -> None:
        """Give back what `allocate` returned, once the work on THREAD_STREAM is through with it."""
        driver = bindings("driver")
        if self.pools:
            call(driver.cuMemFreeAsync, address, THREAD_STREAM)
        else:
            call(driver.cuMemFree, address)


def find_devices() -> tuple[Device, ...]:
    """Every GPU, in CUDA's order. Raises BackendUnavailable."""
    try:
        driver = bindings("driver")
        toolkit = compiler_version()
    except ImportError as error:
        raise BackendUnavailable("cuda", f"cuda-bindings is not installed ({error})", _INSTALL) from error
    except RuntimeError as error:
        raise BackendUnavailable("cuda", f"NVRTC does not load ({_first_line(error)})", _INSTALL) from error
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:  # how cuda-bindings reports a libcuda that is absent or lacks a function
        raise BackendUnavailable("cuda", f"the driver does not load ({_first_line(error)})", _DRIVER) from error
    if int(status) == _NO_DEVICE:
        raise BackendUnavailable("cuda", "there is no CUDA device", f"{_DRIVER}; see also $CUDA_VISIBLE_DEVICES")
    if status:
        raise BackendUnavailable("cuda", f"cuInit: {describe(status)}", _DRIVER)
    try:
        version = int(call(driver.cuDriverGetVersion))
        needed = max(int(driver.CUDA_VERSION) // 1000, toolkit[0])
        if version // 1000 < needed:
            raise BackendUnavailable(
                "cuda",
                f"the driver is made for CUDA {_dotted(version)}, cuda-bindings and NVRTC for {needed}",
                f'update the driver, or pip install "cuda-bindings=={version // 1000}.*" and its NVRTC',
            )
        count = int(call(driver.cuDeviceGetCount))
        devices = tuple(_describe_device(ordinal, version) for ordinal in range(count))
    except KernelFailed as error:
        raise BackendUnavailable("cuda", str(error), _DRIVER) from error
    if not devices:
        raise BackendUnavailable("cuda", "there is no CUDA device", _DRIVER)
    return devices


def _describe_device(ordinal: int, version: int) -> Device:
    driver = bindings("driver")
    gpu = Gpu(ordinal)
    capability = 10 * gpu.attribute("COMPUTE_CAPABILITY_MAJOR") + gpu.attribute("COMPUTE_CAPABILITY_MINOR")
    features = {"fp64", f"sm_{capability}"} | ({f"sm_{capability}a"} if capability >= 90 else set())
    return Device(
        backend="cuda",
        key=f"cuda:{ordinal}",
        name=call(driver.cuDeviceGetName, 256, gpu.id).decode().strip("\0 "),
        platform="CUDA",
        driver=f"{_kernel_module()} (CUDA {_dotted(version)})".lstrip(),
        kind="gpu",
        features=frozenset(features),
        limits={
            "compute_capability": capability,
            "sm_count": gpu.attribute("MULTIPROCESSOR_COUNT"),
            "block_threads": gpu.attribute("MAX_THREADS_PER_BLOCK"),
            "shared_memory": gpu.attribute("MAX_SHARED_MEMORY_PER_BLOCK"),
            "shared_memory_optin": gpu.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            "clock_mhz": gpu.attribute("CLOCK_RATE") // 1000,
            "memory_bytes": int(call(driver.cuDeviceTotalMem, gpu.id)),
            "l2_bytes": gpu.attribute("L2_CACHE_SIZE"),
        },
        handle=gpu,
    )


def _kernel_module() -> str:
    """The driver's release, such as 580.159.03, where the system tells; a CUDA version spans many of them."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"\d+\.\d+(\.\d+)?", text)
    return found[0] if found else ""


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


@cache
def load(kernel: Kernel, gpu: Gpu) -> Any:
    """`kernel` as a CUfunction of `gpu`, from the disk cache or compiled. Raises KernelFailed."""
    capability = 10 * gpu.attribute("COMPUTE_CAPABILITY_MAJOR") + gpu.attribute("COMPUTE_CAPABILITY_MINOR")
    arch = architecture(kernel, capability)
    entry = cache_entry(kernel, arch)
    cached = sources.load(entry)
    with gpu:
        if cached is not None:
            try:
                return _function(kernel, cached)
            except KernelFailed as error:
                if error.memory:
                    raise
        image, _ = compile_source(kernel, arch)
        function = _function(kernel, image)
    sources.store(entry, image)
    return function


def _function(kernel: Kernel, image: bytes) -> Any:
    driver = bindings("driver")
    module = call(driver.cuModuleLoadData, image)
    return call(driver.cuModuleGetFunction, module, kernel.entry.encode())
