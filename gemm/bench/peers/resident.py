"""Peers that multiply on a device: CLBlast, and cuBLAS through CuPy and PyTorch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from gemm.core.problem import Device

from .base import Absent, Unable
from .clblast import CLBlast
from .modules import module


class DevicePeer(ABC):
    """A library on a device. Its constructor loads the library and raises an exception if that fails.

    Attributes:
        name: as in tables and JSON.
        about: library and version.
        device: the device that multiplies.
    """

    name: str
    about: str
    device: Device

    @abstractmethod
    def send(self, array: np.ndarray) -> Any:
        """A copy of `array` on the device."""

    @abstractmethod
    def multiply(self, a: Any, b: Any, out: Any) -> None:
        """Enqueue out = a · b for arrays that `send` returned. Raises Unable if there is no such function."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all enqueued work has finished."""

    @abstractmethod
    def fetch(self, array: Any, out: np.ndarray) -> None:
        """Copy `array` into `out` after all enqueued work."""


class ClBlastOn(DevicePeer):
    """CLBlast with the parameters of its database."""

    name = "clblast"

    def __init__(self, device: Device, library: str = "libclblast.so.1") -> None:
        self.device, self._queue = device, device.handle.queue
        self._clblast = CLBlast(library, device.handle.cl_device, self._queue)
        self.about = f"CLBlast ({library}), parameters of its database"

    def send(self, array: np.ndarray) -> Any:
        import pyopencl.array as cla

        return cla.to_device(self._queue, array)

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        if out.ndim != 2:
            raise Unable("stacks of products")
        self._clblast.multiply(a, b, out)

    def finish(self) -> None:
        self._queue.finish()

    def fetch(self, array: Any, out: np.ndarray) -> None:
        array.get(self._queue, out)


class CuPyOn(DevicePeer):
    """cupy.matmul(out=)."""

    name = "cupy"

    def __init__(self, device: Device) -> None:
        self.device, self._cupy = device, module("cupy")
        self._cupy.cuda.Device(int(device.key.partition(":")[2])).use()
        self.about = f"cuBLAS by CuPy {self._cupy.__version__}"

    def send(self, array: np.ndarray) -> Any:
        return self._cupy.asarray(array)

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        self._cupy.matmul(a, b, out=out)

    def finish(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()

    def fetch(self, array: Any, out: np.ndarray) -> None:
        array.get(out=out)


class TorchOn(DevicePeer):
    """torch.matmul(out=) on CUDA tensors."""

    name = "torch-cuda"

    def __init__(self, device: Device) -> None:
        self.device, self._torch = device, module("torch")
        if not self._torch.cuda.is_available():
            raise Absent("this PyTorch has no CUDA")
        self._torch.set_grad_enabled(False)
        self.about = f"cuBLAS by PyTorch {self._torch.__version__}"

    def send(self, array: np.ndarray) -> Any:
        return self._torch.from_numpy(array).to(self.device.key)

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        self._torch.matmul(a, b, out=out)

    def finish(self) -> None:
        self._torch.cuda.synchronize(self.device.key)

    def fetch(self, array: Any, out: np.ndarray) -> None:
        self._torch.from_numpy(out).copy_(array)
