"""Peers that multiply on a device: CLBlast, and cuBLAS through CuPy and PyTorch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gemm.bench.peers import Absent, Unable, made, module, unloadable
from gemm.core.problem import Device

_ROW_MAJOR, _NO = 101, 111
_TYPES = {"float32": ("S", ctypes.c_float), "float64": ("D", ctypes.c_double)}
_CUBLAS = ("float16", "float32", "float64", "complex64", "complex128")
"""Types that cuBLAS multiplies and that NumPy, CuPy and PyTorch have in common."""


@dataclass(frozen=True)
class DevicePeer:
    """A library on a device.

    Attributes:
        name: its name in tables and JSON.
        about: library and version.
        device: the device that multiplies.
        send: send(array) copies an array to the device.
        multiply: multiply(a, b, out) enqueues a product of arrays that `send` returned. It raises Unable if the library
            has no function for the product.
        finish: wait until all enqueued work has finished.
        fetch: fetch(array, out) waits for all enqueued work and copies a device array into the host array `out`.
        dtypes: the types that the library multiplies; operands and result have the same type.
    """

    name: str
    about: str
    device: Device
    send: Callable[[np.ndarray], Any]
    multiply: Callable[[Any, Any, Any], object]
    finish: Callable[[], object]
    fetch: Callable[[Any, np.ndarray], object]
    dtypes: Collection[str] = tuple(_TYPES)


class CLBlast:
    """CLBlast's GEMM on a pyopencl queue, through CLBlast's C interface. Raises Absent if the library is missing."""

    def __init__(self, path: str, queue: Any) -> None:
        try:
            self.library = ctypes.CDLL(path)
        except OSError as error:
            raise unloadable(path, error) from None
        self._queue = ctypes.c_void_p(queue.int_ptr)

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        """Enqueue out = a · b for row-major pyopencl Arrays.

        Raises Unable for stacks of matrices, and RuntimeError with CLBlast's status if CLBlast fails.
        """
        if out.ndim != 2:
            raise Unable("stacks of products")
        letter, scalar = _TYPES[a.dtype.name]
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        (m, k), n = a.shape, b.shape[1]
        left, right, result = ((pointer(x.base_data.int_ptr), size(0), size(x.shape[1])) for x in (a, b, out))
        status = getattr(self.library, f"CLBlast{letter}gemm")(
            _ROW_MAJOR, _NO, _NO, size(m), size(n), size(k), scalar(1.0), *left, *right, scalar(0.0), *result,
            ctypes.byref(self._queue), None,
        )  # fmt: skip
        if status:
            raise RuntimeError(f"CLBlast{letter}gemm: status {status}")


def clblast(device: Device, path: str = "libclblast.so.1") -> DevicePeer:
    """CLBlast with the parameters of its database. Raises Absent if CLBlast or pyopencl cannot be loaded."""
    queue = device.handle.queue
    multiply, arrays = CLBlast(path, queue).multiply, module("pyopencl.array")
    return DevicePeer(
        "clblast", f"CLBlast ({path}), parameters of its database", device, send=partial(arrays.to_device, queue),
        multiply=multiply, finish=queue.finish, fetch=lambda array, out: array.get(queue, out),
    )  # fmt: skip


def cupy(device: Device) -> DevicePeer:
    """cuBLAS, called by cupy.matmul(a, b, out=out). Raises Absent if CuPy cannot be imported."""
    cupy = module("cupy")
    cupy.cuda.Device(int(device.key.partition(":")[2])).use()
    return DevicePeer(
        "cupy", f"cuBLAS by CuPy {cupy.__version__}", device, send=cupy.asarray,
        multiply=lambda a, b, out: cupy.matmul(a, b, out=out),
        finish=lambda: cupy.cuda.get_current_stream().synchronize(), fetch=lambda array, out: array.get(out=out),
        dtypes=_CUBLAS,
    )  # fmt: skip


def torch(device: Device) -> DevicePeer:
    """cuBLAS, called by torch.matmul(a, b, out=out). Raises Absent if PyTorch is missing or finds no CUDA."""
    torch = module("torch")
    if not torch.cuda.is_available():
        raise Absent("this PyTorch has no CUDA")
    torch.set_grad_enabled(False)
    return DevicePeer(
        "torch-cuda", f"cuBLAS by PyTorch {torch.__version__}", device,
        send=lambda array: torch.from_numpy(array).to(device.key),
        multiply=lambda a, b, out: torch.matmul(a, b, out=out), finish=lambda: torch.cuda.synchronize(device.key),
        fetch=lambda array, out: torch.from_numpy(out).copy_(array), dtypes=_CUBLAS,
    )  # fmt: skip


DEVICE_PEERS: dict[str, tuple[str, Callable[[Device], DevicePeer]]] = {
    "clblast": ("opencl", clblast), "cupy": ("cuda", cupy), "torch-cuda": ("cuda", torch)
}  # fmt: skip
"""{name: (backend whose devices the peer runs on, function that loads the peer)}."""


def load_on(names: Collection[str], devices: Iterable[Device]) -> tuple[list[DevicePeer], dict[str, str]]:
    """Load the device peers in `names` for those of `devices` that they support.

    Returns:
        The loaded peers, and {name: why it is missing}. A peer that supports none of the devices is not missing.
    """
    return made(
        (name, partial(make, device))
        for device in devices
        for name, (backend, make) in DEVICE_PEERS.items() if name in names and backend == device.backend
    )  # fmt: skip
