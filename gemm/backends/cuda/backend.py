"""The CUDA backend: NVIDIA GPUs through the driver API. NVRTC compiles the kernels at run time; no toolkit is needed.

gemm copies host operands to the device and the result back. It multiplies device operands (PyTorch, CuPy, any array
with __cuda_array_interface__ or DLPack) in place. The product is enqueued on the operands' own stream and runs in order
with the other work on this stream.
"""

from __future__ import annotations

import ctypes
import math
import re
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from gemm.backends.cuda import array_metadata, arrays, operand_layout, panels, pointer_table, staging
from gemm.backends.cuda.compiler import compilers
from gemm.backends.cuda.driver import LEGACY_STREAM, NO_DEVICE, Gpu, cuda, follow
from gemm.backends.cuda.launch_graph import Launched, Launches, Replay, Scale, signature
from gemm.backends.cuda.launch_plan import Chip, Layout, Recipe, recipe, types
from gemm.backends.cuda.pinned import SMALL, locked
from gemm.catalog import Kernel
from gemm.core.backend import Backend, Drivers, Kept, Launch
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.operands import Work, item
from gemm.core.problem import ACTIVATIONS, Device, DeviceView, Ints, Operand, Problem

_INSTALL = "Install NVRTC: pip install nvidia-cuda-nvrtc (for drivers of CUDA 12: nvidia-cuda-nvrtc-cu12)"
_DRIVER = "Install or update the NVIDIA driver (nvidia-smi must list the GPU)"

_CAPABILITIES = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)

_KINDS = 256
"""The maximum number of layouts for which a Launcher caches its `Launches`."""


@dataclass(frozen=True, eq=False)
class Planes(Kept):
    """Owns a prepacked matrix that is split into `planes` planes (arrays of narrower numbers, one after another in
    memory). A product must use the whole matrix, not a part of it.
    """

    planes: int


class Launcher:
    """Launches `kernel` on `device`, for products of any size and strides (see gemm.core.backend.Launch)."""

    signature = staticmethod(signature)

    def __init__(self, kernel: Kernel, device: Device, problem: Problem) -> None:
        self.kernel, self.device = kernel, device
        self.gpu: Gpu = device.handle
        self.ordered = problem.reproducible
        self.scale = Scale(kernel.dtype)
        self._chip = Chip(self.gpu.capability, self.gpu.units)
        self._launches = lru_cache(_KINDS)(lambda layout: Launches(self.gpu, recipe(kernel, self._chip, layout)))
        self._last = threading.local()
        itemsize = np.dtype(problem.dtype).itemsize
        # If sums have a wider type than out, they must be rounded only once, at the end. In this case staging
        # must not cut k, because it would round the sums of each part of k to out's type.
        whole = self.scale.form not in "IQ" and itemsize < struct.calcsize(self.scale.form)
        self._cuts_k = not (self.ordered or problem.fused or whole)
        self._activation, self._apart = ACTIVATIONS.index(problem.activation), problem.apart

    def __call__(self, *given: Any) -> None:
        """Compute a product. `given` are a, b, c, out, alpha, beta and possibly bias, as in the class `Work`."""
        work = Work(*given)
        out = work.out
        if isinstance(out, np.ndarray):
            with self.gpu:
                staging.stage(self.gpu, self.enqueue, work, cuts_k=self._cuts_k)
            return
        views: list[DeviceView] = [x for x in work if isinstance(x, DeviceView)]
        for view in views:
            if view.device.handle is not self.gpu:  # the kernel would fault, which destroys the context
                raise ValueError(f"operands are on {view.device.key} and {self.device.key}: move them to one device")
        queues = {view.queue for view in views if view.queue is not None}
        stream = min(queues, default=LEGACY_STREAM) if out.queue is None else out.queue
        others = queues - {stream}
        with self.gpu:
            for other in others:
                follow(stream, other)
            self.enqueue(work, stream)
            for other in others:  # `other` waits for `stream`: later work on `other` may overwrite an operand
                follow(other, stream)

    def enqueue(self, work: Work, stream: int) -> None:
        """Launch `work` on `stream` without waiting for the result. All operands are views of this GPU's memory.

        The operands may have shapes, strides and alignments that differ from those of the Problem. c may be out. b may
        be a matrix that was prepacked for this kernel. Raises KernelFailed.
        """
        a, b, c, out, alpha, beta, bias = work
        layout, scale = layout_of(work, ordered=self.ordered, activation=self._activation), self.scale(alpha, beta)
        if self._apart:
            self._enqueue_apart(layout, (a, b, c, out), scale, stream)
            return
        addresses = tuple(0 if view is None else view.data + view.offset for view in (a, b, c, out, bias))
        launched = Launched(self._launches(layout), layout, addresses)
        try:
            launched.launches.run(stream, addresses, scale)
        except KernelFailed as error:
            error.spoilt = not error.memory and launched.overwrites_c
            raise
        self._last.launched = launched

    def _enqueue_apart(self, layout: Layout, views: tuple[DeviceView | None, ...], scale: bytes, stream: int) -> None:
        """Launch a stack of products as a pointer batch: through a table with each product's operand addresses."""
        *batch, m, n = layout.shape
        one = layout._replace(shape=(m, n), strides=tuple(x[-2:] for x in layout.strides))
        count = math.prod(batch)
        with self.gpu as gpu, pointer_table.table_memory(gpu) as slot:
            for first in range(0, count, pointer_table.MOST):
                some = min(pointer_table.MOST, count - first)
                bits = pointer_table.spread(slot, views, first, some)
                pointer_table.launch(gpu, self._launches, slot, pointer_table.Table(some, one, bits), scale, stream)
                if first + some < count:
                    cuda().cuEventSynchronize(slot.event)

    def together(
        self, replay: Replay, columns: pointer_table.Columns, start: int, count: int, alpha: Any, beta: Any
    ) -> tuple[int, Any]:
        """Compute many products in one launch (a pointer batch).

        The launch takes at most `count` products, from product `start` on. All of them have the same metadata as the
        product that `replay` repeats, and no product depends on the result of another.

        Returns:
            (count, results): the number of products computed, and their new results. `results` is None if `columns`
            contains out. `count` is 0 if too few products are alike and independent.
        """
        stream = replay.reader.stream(item(columns[0], start))
        with self.gpu as gpu:
            if not pointer_table.capturing(stream):
                with pointer_table.table_memory(gpu) as slot:
                    table = pointer_table.collect(slot, replay, columns, start, count)
                    if table is not None:
                        pointer_table.launch(gpu, self._launches, slot, table, self.scale(alpha, beta), stream)
                        return table.many, table.results
        return 0, None

    def access(self, a: Operand, b: Operand, c: Operand | None, out: Operand) -> dict[str, str]:
        """Return what a launch does with each operand: {name: "used in place", "packed on the device" or "copied"}."""
        given = {name: x for name, x in (("a", a), ("b", b), ("c", c), ("out", out)) if x is not None}
        if not isinstance(out, DeviceView):
            return dict.fromkeys(given, "copied")
        layout = layout_of(Work(a, b, c, out, 1, int(c is not None)), ordered=self.ordered)
        packed = recipe(self.kernel, self._chip, layout).copied
        return {name: "packed on the device" if name in packed else "used in place" for name in given}

    def replay(self, a: Any, b: Any, c: Any, out: Any, bias: Any = None) -> Replay | None:
        """Return a Replay that repeats this thread's last launch, or None if the launch cannot be repeated.

        The arguments are the device arrays of that launch. c is None if the launch does not read c.
        """
        launched, self._last.launched = getattr(self._last, "launched", None), None
        operands, known = (a, b, c, out, bias), array_metadata.repeatable(a.__class__)
        if launched is None or known is None or launched.overwrites_c:
            return None
        # If an address differs, the launch read a copy instead of the array.
        if any(x is not None and known.address(x) != at for x, at in zip(operands, launched.addresses, strict=True)):
            return None
        return Replay(launched, self.scale, known, operands)


def layout_of(work: Work, *, ordered: bool = False, activation: int = 0) -> Layout:
    """Return the Layout of operands that are DeviceViews. The Layout contains all that determines the launch plan."""
    a, b, c, out, _, _, bias = work
    views = (a, b, out if c is None else c, out)
    aligned = tuple(math.gcd(16, x.data + x.offset) for x in views)
    steps = None
    if bias is not None:
        steps = tuple(
            stride // bias.dtype.itemsize if length > 1 else 0
            for length, stride in zip(bias.shape[-2:], bias.strides[-2:], strict=True)
        )
    return Layout(
        out.shape, a.shape[-1], tuple(x.strides for x in views), aligned, c is not None, ordered, steps, activation,
        kept=isinstance(b.owner, Planes) and a.shape[-1] > 0,
    )  # fmt: skip


def keep(row: Kernel, device: Device, b: DeviceView) -> DeviceView:
    """Prepack the (k, n) matrix `b` on the device for the kernel `row`, and return a view of the prepacked matrix.

    If the kernel can read `b` in place, or needs `b` itself, the result is a view of `b` itself. Raises KernelFailed,
    or TypeError if the kernel has the parameter `widen`.
    """
    k, n = b.shape
    size = b.dtype.itemsize
    along, across = b.strides[0] // size, b.strides[1] // size
    aligned = math.gcd(16, b.data + b.offset)
    x = operand_layout.Operand("b", operand_layout.A, 0, types(row)[1], n, k, 1, along, across, 0, aligned)
    planes = row.params.get("planes", 0)
    if row.params.get("widen"):
        raise TypeError(f"{row.name} does not accept a prepared b")
    # gemm_cuda_combine may read b itself. Therefore b is kept, and each product computes its residues again.
    if row.params.get("MODULI") or (not planes and operand_layout.in_place(row, x) is not None):
        return DeviceView(Kept(b.owner), b.data, b.offset, b.shape, b.strides, b.dtype, device, readonly=True)
    y, step, nbytes = operand_layout.prepared(row, x, operand_layout.BIAS, 0)
    memory = arrays.DeviceArray((nbytes,), "uint8", device)
    launches = Launches(device.handle, Recipe((step,), 0, (0, 0), "b"))
    stream = LEGACY_STREAM if b.queue is None else b.queue
    with device.handle:
        follow(stream, LEGACY_STREAM)  # earlier work on the legacy stream may still use `memory`
        launches.run(stream, (b.data + b.offset, 0, 0, 0, memory.view().data), bytes(32))
        cuda().cuStreamSynchronize(stream)  # later products may use any stream
    memory._lent = True  # freeing the memory then waits for products that still use it
    owner = Planes(memory, planes) if planes else Kept(memory)
    strides = (y.along * size, y.across * size)
    if planes:  # a matrix of several planes has no strides: these only tell readers which axis is contiguous
        strides = (max(n, 2) * size, size) if y.transposed else (size, max(k, 2) * size)
    return DeviceView(owner, memory.view().data, 0, b.shape, strides, b.dtype, device, readonly=True)


def find_devices() -> tuple[Device, ...]:
    """Return every GPU, in CUDA's order. Raises BackendUnavailable."""
    try:
        driver = cuda()
    except OSError as error:
        raise BackendUnavailable("cuda", f"the driver does not load ({error})", _DRIVER) from error
    try:
        driver.cuInit(0)
        if not compilers():
            raise BackendUnavailable("cuda", "no NVRTC was found; it compiles the kernels", _INSTALL)
        version = int(driver.cuDriverGetVersion())
        oldest = min(found.major for found in compilers())
        if version // 1000 < oldest:
            raise BackendUnavailable(
                "cuda", f"the driver is made for CUDA {_dotted(version)}, NVRTC for {oldest}",
                f"Update the driver, or pip install nvidia-cuda-nvrtc-cu{version // 1000}",
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

    The CUDA version does not identify the driver, because many releases of the driver have the same CUDA version.
    """
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"\d+\.\d+(\.\d+)?", text)
    return found[0] if found else ""


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


class CudaBackend(Backend):
    """The backend for NVIDIA GPUs. gemm.core.backend.Backend documents the methods."""

    name: ClassVar[str] = "cuda"
    copying: ClassVar[float] = panels.HOST
    overlaps: ClassVar[int] = SMALL + 1

    def __init__(self) -> None:
        self._drivers = Drivers("cuda", "CUDA", find_devices)

    def devices(self) -> tuple[Device, ...]:
        return self._drivers.devices()

    def launcher(self, kernel: Kernel, device: Device, problem: Problem) -> Launch:
        return Launcher(kernel, device, problem)

    def view(self, array: object, name: str) -> DeviceView | None:
        return array_metadata.view(array, name, self.devices)

    def empty(self, shape: Ints, like: DeviceView) -> DeviceView:
        return cast(DeviceView, self.view(array_metadata.empty(shape, like), "out"))

    def returned(self, result: DeviceView, example: object) -> object:
        return array_metadata.returned(result.owner, example)

    def conjugated(self, view: DeviceView) -> DeviceView:
        return array_metadata.conjugated(view, self.devices)

    def keep(self, kernel: Kernel, device: Device, b: Operand, *, reproducible: bool) -> DeviceView:
        view = self.to_device(b, device) if isinstance(b, np.ndarray) else b
        return keep(kernel, device, view)

    def to_device(self, array: np.ndarray, device: Device) -> DeviceView:
        copy = arrays.DeviceArray(array.shape, array.dtype, device)
        copy.fill(array)
        return copy.view()

    def to_host(self, view: DeviceView) -> np.ndarray:
        return arrays.to_host(view)

    def copies(self, device: Device, nbytes: int) -> list[Callable[[], object]]:
        array = arrays.DeviceArray((nbytes,), np.uint8, device)

        def copy(host: np.ndarray, back: bool) -> None:
            here, there = host.ctypes.data, array.view().data
            with device.handle:
                cuda().cuMemcpyDtoH(here, there, nbytes) if back else cuda().cuMemcpyHtoD(there, here, nbytes)

        with device.handle:
            memories = np.ones(nbytes, np.uint8), locked(nbytes)
        return [partial(copy, memory, back) for memory in memories for back in (False, True)]

    def synchronize(self, device: Device) -> None:
        with device.handle:
            cuda().cuCtxSynchronize()
