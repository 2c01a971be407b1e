"""The CUDA backend: NVIDIA GPUs through the driver API. NVRTC compiles the kernels at run time; no toolkit is needed.

gemm copies host operands to the device and the result back. It multiplies device operands (PyTorch, CuPy, any array
with __cuda_array_interface__ or DLPack) in place, in order on their own stream.
"""

from __future__ import annotations

from typing import ClassVar, cast

import numpy as np

from gemm.backends.cuda import arrays, panels
from gemm.backends.cuda.api import cuda
from gemm.backends.cuda.driver import find_devices
from gemm.backends.cuda.launch import Launcher, keep
from gemm.backends.cuda.staging import TOGETHER
from gemm.catalog import Kernel
from gemm.core.backend import Backend, Drivers, Launch
from gemm.core.problem import Device, DeviceView, Operand, Problem


class CudaBackend(Backend):
    """NVIDIA GPUs."""

    name: ClassVar[str] = "cuda"
    overlaps: ClassVar[int] = TOGETHER + 1

    def __init__(self) -> None:
        self._drivers = Drivers("cuda", "CUDA", find_devices)

    def devices(self) -> tuple[Device, ...]:
        return self._drivers.devices()

    def launcher(self, kernel: Kernel, device: Device, problem: Problem) -> Launch:
        return Launcher(kernel, device, problem)

    def view(self, array: object, name: str) -> DeviceView | None:
        return arrays.view(array, name, self.devices)

    def empty(self, shape: tuple[int, ...], like: DeviceView) -> DeviceView:
        return cast(DeviceView, self.view(arrays.empty(shape, like), "out"))

    def returned(self, result: DeviceView, example: object) -> object:
        return arrays.returned(result.owner, example)

    def conjugated(self, view: DeviceView) -> DeviceView:
        return arrays.conjugated(view, self.devices)

    def keep(self, kernel: Kernel, device: Device, b: Operand, *, reproducible: bool) -> DeviceView:
        view = self.to_device(b, device) if isinstance(b, np.ndarray) else b
        return keep(kernel, device, view)

    def to_device(self, array: np.ndarray, device: Device) -> DeviceView:
        copy = arrays.DeviceArray(array.shape, array.dtype, device)
        copy.fill(array)
        return copy.view()

    def to_host(self, view: DeviceView) -> np.ndarray:
        return arrays.to_host(view)

    def synchronize(self, device: Device) -> None:
        with device.handle:
            cuda().cuCtxSynchronize()

    copying: ClassVar[float] = panels.HOST
