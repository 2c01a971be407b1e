"""The OpenCL backend: finds devices, describes what they can do, and runs the kernels of kernels/opencl/ on them.

Features come from extensions and queries, never from the vendor id: two CPU runtimes report the id of a GPU maker.
All modules of this package import pyopencl inside functions only, so that importing gemm loads no driver.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Any, cast
from weakref import WeakValueDictionary

import numpy as np

from gemm.backends.opencl import VENDORS, add_intel_runtime
from gemm.backends.opencl.context import Handle, numbers
from gemm.backends.opencl.launch import Launcher
from gemm.backends.opencl.layout import MOST, layouts
from gemm.backends.opencl.mapped import empty, shared_from
from gemm.backends.opencl.staging import Traffic
from gemm.catalog import Kernel
from gemm.core import threads
from gemm.core.backend import Backend, Drivers, Launch
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.operands import expanded, extent
from gemm.core.problem import Device, DeviceView, DType, Ints, Operand, Problem

log = logging.getLogger("gemm")

_EXTENSIONS = {
    "cl_khr_fp64", "cl_khr_fp16", "cl_khr_subgroups", "cl_khr_integer_dot_product", "cl_intel_subgroups",
    "cl_intel_required_subgroup_size", "cl_intel_subgroup_2d_block_io",
}  # fmt: skip
"""The extensions that become features of a device. A feature's name is that of the extension without cl_ or cl_khr_."""
_RDNA = re.compile(r"gfx1[0-2][0-9a-f]{2}\b")
"""Matches AMD's names of its GPUs with RDNA."""
_WMMA = re.compile(r"gfx1(10|15|20)[0-9a-f]\b")
"""Matches AMD's names of its GPUs with matrix units: RDNA 3 (gfx110., gfx115.) and RDNA 4 (gfx120.)."""
_SUB_GROUP_SIZES = 0x4108  # CL_DEVICE_SUB_GROUP_SIZES_INTEL
_REMEDY = (
    'Install the OpenCL driver of the GPU, or a CPU runtime: pip install "pyopencl[pocl]"; on Termux (Adreno, Mali): '
    "pkg install ocl-icd, then export LD_LIBRARY_PATH=/vendor/lib64:$PREFIX/lib, where the phone's driver lies"
)

_NO_PYOPENCL = (
    "Install it: pip install pyopencl. Where PyPI has no wheel of it, such as for Windows on Arm, this compiles it: "
    "docs/install.md says what that needs"
)


def discover() -> list[Any]:
    """Return the OpenCL devices that can compile kernels: GPUs first, then accelerators, then CPUs.

    Raises BackendUnavailable if there are none.
    """
    add_intel_runtime()
    try:
        import pyopencl as cl
    except (ImportError, OSError) as error:  # OSError: a library of pyopencl does not load
        raise BackendUnavailable("opencl", f"pyopencl cannot be imported: {error}", _NO_PYOPENCL) from None
    found, left_out = list[Any](), list[str]()
    try:
        for platform in cl.get_platforms():
            try:
                for device in platform.get_devices():
                    if cause := _builds_nothing(device.version):
                        left_out.append(f"{device.name} ({platform.version}): {cause}")
                    else:
                        found.append((_rank(device), device))
            except cl.Error:  # this platform has no devices or is broken; others may have devices
                continue
    except cl.Error as error:
        raise BackendUnavailable("opencl", "; ".join([f"no OpenCL platform ({error})", *broken()]), _REMEDY) from None
    if not found:
        causes = [*left_out, *broken()]
        remedy = "Install a newer PoCL, or Intel's runtime: the extra opencl-intel-cpu" if left_out else _REMEDY
        raise BackendUnavailable("opencl", "; ".join(["no platform has a usable device", *causes]), remedy)
    return [device for _, device in sorted(found, key=itemgetter(0))]


def usable(found: list[Any], left_out: dict[str, str]) -> tuple[Device, ...]:
    """Return a Device for each pyopencl device in `found` that can be used.

    A device is unusable if, for example, the driver is out of memory or another process uses the device exclusively. An
    unusable device keeps its number, and {key: cause} is added to `left_out`. Raises BackendUnavailable if no device is
    usable.
    """
    import pyopencl as cl

    devices = []
    for at, cl_device in enumerate(found):
        try:
            devices.append(describe(cl_device, f"opencl:{at}", Handle(cl_device)))
        except (KernelFailed, cl.Error) as error:
            left_out[f"opencl:{at}"] = f"it cannot be used: {error}"
            log.warning("gemm does without opencl:%d: %s", at, error)
    if not devices:
        causes = "; ".join(f"{key}: {why}" for key, why in left_out.items())
        raise BackendUnavailable("opencl", causes, "See what else uses the device, or update its driver")
    return tuple(devices)


def _builds_nothing(version: str) -> str:
    """Return why a device with this CL_DEVICE_VERSION cannot compile any kernel, or "".

    PoCL's version contains the CPU for which PoCL compiles. If the CPU is newer than PoCL's LLVM, the version
    contains "generic". Clang does not know this name for x86-64, so each build fails with "unknown target CPU
    'generic'".
    """
    if "PoCL" in version and "x86_64" in version and version.endswith("-generic"):
        return "this CPU is newer than PoCL's compiler, which builds nothing for it"
    return ""


def _vector_width(reported: int, version: str) -> int:
    """Return the vector width, in float32 elements, for which the device's compiler generates code.

    PoCL reports 16 for every CPU with AVX-512. But PoCL's LLVM may treat the CPU as an older model without AVX-512
    (LLVM 14 treats a Zen 4 as a Zen 3). Compiling float16 arithmetic for 16 elements then aborts the compiler ("Cannot
    select ... fma"), and this process with it.

    Args:
        reported: the width that the device reports.
        version: the device's CL_DEVICE_VERSION.
    """
    target = version.rpartition("-gnu-")[2]
    old = "PoCL" in version and "x86_64" in version and not _AVX512.search(target)
    return min(reported, 8) if old else reported


def broken() -> list[str]:
    """Return the registered drivers that do not load, each with the cause. The OpenCL loader ignores them silently."""
    place = Path(os.environ.get("OCL_ICD_VENDORS") or VENDORS)
    found = []
    for file in [place] if place.suffix == ".icd" else sorted(place.glob("*.icd")):
        try:
            library = file.read_text(errors="replace").strip()
            ctypes.CDLL(library)
        except OSError as error:
            found.append(f"{file}: {error}")
    return found


_AVX512 = re.compile(
    r"avx512|^(cascade|cooper|cannon|tiger|rocket)lake|^icelake|rapids|^znver([4-9]|\d\d)|^kn[lm]$|-v4"
)
"""Matches LLVM's names of CPUs with AVX-512."""


def _rank(device: Any) -> tuple[int, bool]:
    """Return the position of a device among all: GPUs, accelerators, CPUs; PoCL, the slower runtime for CPUs, last."""
    import pyopencl as cl

    kinds = (cl.device_type.GPU, cl.device_type.ACCELERATOR)
    kind = next((rank for rank, kind in enumerate(kinds) if device.type & kind), len(kinds))
    return kind, "PoCL" in device.version


def describe(cl_device: Any, key: str, handle: Handle) -> Device:
    """Return `cl_device` as a Device, for gemm.select, the legality rules of kernels, and `gemm info`.

    The function creates a context (`handle.context`) only if the device supports images.
    """
    extensions = set(cl_device.extensions.split())
    features = {"unified"} if cl_device.host_unified_memory else set()
    features |= {extension.removeprefix("cl_").removeprefix("khr_") for extension in _EXTENSIONS & extensions}
    if (width := _vector_width(cl_device.native_vector_width_float, cl_device.version)) > 1:
        features.add(f"native_float{width}")  # selects tuned parameters in gemm/tuned/cpu.json
    features |= _arithmetic(cl_device) | _sub_groups(cl_device, extensions) | _amd(cl_device.name)
    if "adreno" in f"{cl_device.name} {cl_device.opencl_c_version}".lower():
        features.add("adreno")
    if cl_device.image_support and _image_formats(handle):
        features.add("image")
    return Device(
        backend="opencl",
        key=key,
        name=_name(cl_device),
        platform=cl_device.platform.name.strip(),
        driver=f"{cl_device.driver_version} ({cl_device.platform.version.strip()})",
        kind="cpu" if handle.runs_on_cpu else "gpu",
        unified="unified" in features,
        features=frozenset(features),
        limits={
            "image_width": cl_device.image2d_max_width if "image" in features else 0,
            "image_height": cl_device.image2d_max_height if "image" in features else 0,
            "local_memory": cl_device.local_mem_size,
            "global_memory": cl_device.global_mem_size,
            "max_alloc": cl_device.max_mem_alloc_size,
            "work_group": cl_device.max_work_group_size,
            "compute_units": cl_device.max_compute_units,
            "clock_mhz": cl_device.max_clock_frequency,
        },
        handle=handle,
    )


def _name(cl_device: Any) -> str:
    """Return the device's name with its model. Adreno drivers often give the model only in the OpenCL C version."""
    name, model = cl_device.name.strip(), cl_device.opencl_c_version.partition("Adreno(TM)")[2].strip()
    return f"{name} {model}" if model and model not in name else name


def _arithmetic(cl_device: Any) -> set[str]:
    """Return the arithmetic features of a device.

    "fma" means that the hardware has a fused multiply-add. Without it, the function fma() is correct, but may be slow.
    "slow_fma" means that fma() is slow nevertheless: PoCL's may be a function for older CPUs, which takes ten times as
    long as x * y + sum. PoCL's compiler fuses the latter.
    "denorms" means that float32 denormals are not flushed to zero.
    """
    import pyopencl as cl

    config = cl_device.single_fp_config
    bits = {"fma": cl.device_fp_config.FMA, "denorms": cl.device_fp_config.DENORM}
    slow = {"slow_fma"} if "PoCL" in cl_device.version else set[str]()
    return slow | {feature for feature, bit in bits.items() if config & bit}


def _sub_groups(cl_device: Any, extensions: set[str]) -> set[str]:
    """Return features: the sub-group sizes that a kernel may require, and the size for which there are matrix units.

    The functions of cl_intel_subgroup_matrix_multiply_accumulate are defined only for the smallest size.
    """
    if "cl_intel_required_subgroup_size" not in extensions:
        return set()
    sizes = numbers(cl_device, _SUB_GROUP_SIZES, ctypes.c_size_t)
    found = {f"subgroup_size_{size}" for size in sizes}
    if sizes and "cl_intel_subgroup_matrix_multiply_accumulate" in extensions:
        found.add(f"intel_dpas_{min(sizes)}")
    return found


def _amd(name: str) -> set[str]:
    """Return the features of an AMD GPU with this CL_DEVICE_NAME: its architecture, and its matrix units.

    No extension or query reports them. If the compiler does not know the matrix units, their kernels do not build, and
    fail their verification.
    """
    found = {"rdna"} if _RDNA.match(name) else set[str]()
    if _WMMA.match(name):
        found |= {"amd_wmma", *["amd_wmma_gfx12"] * name.startswith("gfx12")}
    return found


def _image_formats(handle: Handle) -> bool:
    """Return whether kernels can read and write R and RGBA images of float32 and of uint32 (the bits of float32)."""
    import pyopencl as cl

    kinds = (cl.channel_type.FLOAT, cl.channel_type.UNSIGNED_INT32)
    wanted = {(order, kind) for order in (cl.channel_order.R, cl.channel_order.RGBA) for kind in kinds}
    try:
        offered = cl.get_supported_image_formats(handle.context, cl.mem_flags.READ_WRITE, cl.mem_object_type.IMAGE2D)
    except cl.Error:
        return False
    return wanted <= {(image.channel_order, image.channel_data_type) for image in offered}


class OpenCLBackend(Backend):
    """The backend for GPUs, accelerators and CPUs through pyopencl. Device operands are pyopencl.array.Arrays."""

    name = "opencl"

    def __init__(self) -> None:
        self.left_out = left_out = dict[str, str]()
        self._drivers = Drivers("opencl", "OpenCL", lambda: usable(discover(), left_out))
        self._foreign: WeakValueDictionary[str, Device] = WeakValueDictionary()
        self._lock = threads.lock()

    def devices(self) -> tuple[Device, ...]:
        return self._drivers.devices()

    def broken(self) -> list[str]:
        return broken()

    def launcher(self, kernel: Kernel, device: Device, problem: Problem) -> Launch:
        return Launcher(kernel, device, problem)

    def view(self, array: Any, name: str) -> DeviceView | None:
        library = sys.modules.get("pyopencl.array")
        if library is None or not isinstance(array, library.Array):
            kind = type(array).__name__
            if hasattr(array, "get_sub_region"):
                raise TypeError(
                    f"{name} is a pyopencl {kind}, without a shape or dtype; pass a pyopencl.array.Array over it"
                )
            return None
        itemsize = array.dtype.itemsize
        if any(step % itemsize for step in (array.offset, *array.strides)):
            raise ValueError(
                f"{name} has offset {array.offset} and strides {array.strides}: "
                f"they must be whole elements of {itemsize} bytes; pass {name}.copy()"
            )
        device = self._device_of(array.context, array.queue)
        return DeviceView(
            owner=array, data=array.base_data, offset=array.offset, shape=tuple(array.shape),
            strides=tuple(array.strides), dtype=array.dtype, device=device, queue=array.queue,
        )  # fmt: skip

    def _device_of(self, context: Any, queue: Any) -> Device:
        """Return the Device for a context and queue.

        If gemm created `context`, the result is one of the backend's own devices. Otherwise it is a Device that keeps
        the caller's context alive.
        """
        self._drivers.use()
        for device in self._drivers.known:
            if device.handle.owns(context):
                return device
        members = context.devices
        cl_device = members[0] if queue is None else queue.device
        key = f"opencl:ctx{context.int_ptr}" + (f".{members.index(cl_device)}" if len(members) > 1 else "")
        with self._lock:
            known = self._foreign.get(key)
            if known is None:
                known = self._foreign[key] = describe(cl_device, key, Handle(cl_device, context))
            return known

    def empty(self, shape: Ints, like: DeviceView) -> DeviceView:
        import pyopencl.array as cla

        with like.device.handle.reported("no memory for a result"):
            queue = like.queue or like.device.handle.queue
            array = cla.Array(queue, shape, like.dtype, allocator=like.owner.allocator)
        if like.queue is None:
            array = array.with_queue(None)
        return cast(DeviceView, self.view(array, "out"))

    def shared(self, shape: Ints, dtype: DType, device: Device) -> np.ndarray | None:
        return empty(shape, dtype, device)

    def wraps(self, device: Device) -> int:
        return shared_from(device.handle) if device.unified else 0

    def copied(self) -> dict[str, dict[str, int]]:
        return {device.key: dict(device.handle.copied) for device in (*self._drivers.known, *self._foreign.values())}

    def keep(self, kernel: Kernel, device: Device, b: Operand, *, reproducible: bool) -> DeviceView:
        queue, events = (b.queue, b.owner.events) if isinstance(b, DeviceView) else (None, ())
        layout = layouts(kernel.params, reproducible)[1]
        if prod(layout.padded(*b.shape)) > MOST:
            raise KernelFailed(f"{kernel.name} cannot read a prepared b of more than {MOST} elements")
        with device.handle.reported(f"preparing b for {kernel.name} on {device.name}"):
            traffic = Traffic(device.handle, queue or device.handle.queue, list(events))
            kept = traffic.keep(expanded(b, 0), layout)
        strides = (b.shape[1] * b.dtype.itemsize, b.dtype.itemsize)
        return DeviceView(kept, kept.memory.data, 0, b.shape, strides, b.dtype, device, readonly=True)

    def to_device(self, array: np.ndarray, device: Device) -> DeviceView:
        import pyopencl.array as cla

        with device.handle.reported("no memory for an operand"):
            copy = cla.to_device(device.handle.queue, np.ascontiguousarray(array))
        return cast(DeviceView, self.view(copy, "array"))

    def to_host(self, view: DeviceView) -> np.ndarray:
        import pyopencl as cl

        result: np.ndarray = np.empty(view.shape, view.dtype)
        if view.size:
            low, high = extent(view)
            raw = np.empty(high - low, np.uint8)
            with view.device.handle.reported("reading from the device"):
                data = (
                    view.data if isinstance(view.data, cl.Buffer) else view.data.as_buffer(view.device.handle.context)
                )
                cl.enqueue_copy(
                    view.queue or view.device.handle.queue, raw, data, src_offset=view.offset + low,
                    wait_for=view.owner.events, is_blocking=True,
                )  # fmt: skip
            result[...] = np.ndarray(view.shape, view.dtype, raw, -low, view.strides)
        return result

    def copies(self, device: Device, nbytes: int) -> list[Callable[[], object]]:
        import pyopencl as cl

        context, queue, flags = device.handle.context, device.handle.queue, cl.mem_flags
        buffer, host = (cl.Buffer(context, flags.READ_WRITE | x, nbytes) for x in (0, flags.ALLOC_HOST_PTR))
        both = cl.map_flags.READ | cl.map_flags.WRITE
        locked, _ = cl.enqueue_map_buffer(queue, host, both, 0, nbytes, np.uint8, is_blocking=True)
        return [
            partial(cl.enqueue_copy, queue, to, source, is_blocking=True)
            for memory in (np.ones(nbytes, np.uint8), locked)
            for to, source in ((buffer, memory), (memory, buffer))
        ]

    def synchronize(self, device: Device) -> None:
        with device.handle.reported("waiting for the device"):
            device.handle.queue.finish()
