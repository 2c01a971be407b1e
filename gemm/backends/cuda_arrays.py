"""CUDA arrays of any library as DeviceViews, without importing the library, and a minimal array of our own."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gemm.backends.cuda_api import LEGACY_STREAM, cuda
from gemm.problem import Device, DeviceView

Devices = Callable[[], tuple[Device, ...]]

_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged
_DLPACK_KINDS = {0: "i", 1: "u", 2: "f", 5: "c"}


class DeviceArray:
    """A C-ordered array in the memory of one GPU, freed with the object.

    For results whose inputs' library is not known, and for resident timings. Any library that reads
    `__cuda_array_interface__` can wrap it; `copy_to_host` brings it back.

    Attributes:
        shape, dtype, nbytes: as in NumPy.
        device: where it lives.
    """

    def __init__(self, shape: Sequence[int], dtype: Any, device: Device) -> None:
        self.shape = tuple(int(length) for length in shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        self.device = device
        self._address = 0
        if self.nbytes:
            with device.handle:
                self._address = int(cuda().cuMemAlloc(self.nbytes))

    def __del__(self) -> None:
        address = getattr(self, "_address", 0)
        if address and not sys.is_finalizing():  # the driver may be gone by then, and its memory with it
            with self.device.handle:
                cuda().cuMemFree(address)  # waits for work that uses it; a dead context frees by itself

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device.key!r})"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self._address, False), "strides": None,
            "stream": LEGACY_STREAM, "version": 3,
        }  # fmt: skip

    def view(self) -> DeviceView:
        """The whole array."""
        strides = _packed(self.shape, self.dtype.itemsize)
        return DeviceView(self, self._address, 0, self.shape, strides, self.dtype, self.device)

    def copy_from_host(self, array: np.ndarray) -> None:
        """Overwrite it with `array`, of the same shape and dtype."""
        block = np.ascontiguousarray(array, self.dtype)
        if block.nbytes != self.nbytes:
            raise ValueError(f"array has shape {array.shape}, must have {self.shape}")
        if self.nbytes:
            with self.device.handle:
                cuda().cuMemcpyHtoD(self._address, block.ctypes.data, self.nbytes)

    def copy_to_host(self) -> np.ndarray:
        """A NumPy copy, after all work that was enqueued on the device before."""
        return to_host(self.view())


def view(array: Any, name: str, devices: Devices) -> DeviceView | None:
    """`array` as a DeviceView if it lies in CUDA memory, else None.

    A PyTorch tensor stands for its data, as if detached: no gradient flows through a product.

    Raises:
        TypeError: for a CUDA array that no product can take (mask, dtype, layout), with `name`.
        BackendUnavailable: for a CUDA array where the backend cannot run.
    """
    if isinstance(array, np.ndarray):
        return None
    if isinstance(array, DeviceArray):
        return array.view()
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if isinstance(array, getattr(torch, "Tensor", ())):
        return _torch(torch, array, name, devices)
    if isinstance(array, getattr(cupy, "ndarray", ())):
        return _cupy(cupy, array, name, devices)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _interface(array, interface, name, devices)
    where = getattr(array, "__dlpack_device__", None)
    if where is not None and int(where()[0]) in _DLPACK_CUDA:
        return _dlpack(array, name, devices)
    return None


def empty(shape: tuple[int, ...], like: DeviceView) -> Any:
    """An uninitialised array on `like`'s device and of its dtype, by the library of its owner if that is known."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if isinstance(like.owner, getattr(torch, "Tensor", ())):
        return torch.empty(shape, dtype=like.owner.dtype, device=like.owner.device)  # type: ignore[union-attr]
    if isinstance(like.owner, getattr(cupy, "ndarray", ())):
        with cupy.cuda.Device(like.owner.device.id):  # type: ignore[union-attr]
            return cupy.empty(shape, like.dtype)  # type: ignore[union-attr]
    return DeviceArray(shape, like.dtype, like.device)


def to_host(source: DeviceView) -> np.ndarray:
    """A copy of `source` on the host, after all work that was enqueued on its device before."""
    low = high = 0  # bytes around the first element that the view spans
    for length, stride in zip(source.shape, source.strides, strict=True):
        low, high = low + min(0, (length - 1) * stride), high + max(0, (length - 1) * stride)
    if not source.size:
        return np.empty(source.shape, source.dtype)
    span = np.empty(high - low + source.dtype.itemsize, np.uint8)
    with source.device.handle:
        cuda().cuCtxSynchronize()
        cuda().cuMemcpyDtoH(span.ctypes.data, source.data + source.offset + low, span.nbytes)
    strided: np.ndarray = np.ndarray(source.shape, source.dtype, span, -low, source.strides)
    copy: np.ndarray = strided.copy()
    return copy


def _torch(torch: Any, tensor: Any, name: str, devices: Devices) -> DeviceView | None:
    if not tensor.is_cuda or torch.version.cuda is None:  # ROCm builds call their GPUs "cuda" too
        return None
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} has the layout {tensor.layout}, must be strided: use .to_dense()")
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError(f"{name} is a lazily conjugated or negated tensor: use .resolve_conj().resolve_neg()")
    dtype = _dtype(str(tensor.dtype).removeprefix("torch."), name)
    strides = tuple(step * dtype.itemsize for step in tensor.stride())
    device = devices()[tensor.device.index]
    stream = torch.cuda.current_stream(tensor.device).cuda_stream or LEGACY_STREAM
    return DeviceView(tensor, tensor.data_ptr(), 0, tuple(tensor.shape), strides, dtype, device, stream)


def _cupy(cupy: Any, array: Any, name: str, devices: Devices) -> DeviceView | None:
    if cupy.cuda.runtime.is_hip:
        return None
    device = devices()[array.device.id]
    stream = cupy.cuda.get_current_stream(array.device.id).ptr or LEGACY_STREAM
    dtype = _dtype(array.dtype, name)
    found = DeviceView(array, int(array.data.ptr), 0, array.shape, array.strides, dtype, device, stream)
    return _checked(found, name)


def _interface(array: Any, interface: dict[str, Any], name: str, devices: Devices) -> DeviceView:
    """The CUDA Array Interface. Its stream is where the array's pending work is; None: there is none."""
    if interface.get("mask") is not None:
        raise TypeError(f"{name} has a mask, which no product can take")
    stream = interface.get("stream")
    if stream == 0:
        raise TypeError(f"{name} exports the stream 0, which the CUDA Array Interface forbids as ambiguous")
    dtype = _dtype(interface["typestr"], name)
    address, shape, readonly = int(interface["data"][0]), tuple(interface["shape"]), bool(interface["data"][1])
    strides = interface.get("strides")
    strides = _packed(shape, dtype.itemsize) if strides is None else tuple(strides)
    device = devices()[_ordinal(address)] if address else devices()[0]
    return _checked(DeviceView(array, address, 0, shape, strides, dtype, device, stream, readonly), name)


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class Exported:
    """An array that only speaks DLPack, with the capsule that keeps its memory exported."""

    def __init__(self, array: Any, capsule: Any) -> None:
        self.array, self.capsule = array, capsule


def _dlpack(array: Any, name: str, devices: Devices) -> DeviceView:
    capsule = array.__dlpack__(stream=LEGACY_STREAM)  # the producer makes the array ready on that stream
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    # A capsule that nobody takes over frees the export when it dies, so keeping it is all there is to do.
    tensor = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    if tensor.code not in _DLPACK_KINDS or tensor.lanes != 1:
        spelled = {4: "bfloat", 6: "bool"}.get(tensor.code, f"DLPack type {tensor.code}, bits ")
        raise TypeError(f"{name} has dtype {spelled}{tensor.bits}, lanes {tensor.lanes}, which is not supported")
    dtype = _dtype(f"{_DLPACK_KINDS[tensor.code]}{tensor.bits // 8}", name)
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = _packed(shape, dtype.itemsize)
    if tensor.strides:
        strides = tuple(step * dtype.itemsize for step in tensor.strides[: tensor.ndim])
    device = devices()[tensor.device_id]
    owner, address = Exported(array, capsule), tensor.data or 0
    found = DeviceView(owner, address, int(tensor.byte_offset), shape, strides, dtype, device, LEGACY_STREAM)
    return _checked(found, name)


def _dtype(spelled: Any, name: str) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(spelled)
    except TypeError as error:
        raise TypeError(f"{name} has dtype {spelled}, which is not supported on a GPU") from error
    if dtype.kind not in "biufc":  # such as bfloat16 where ml_dtypes has registered it
        raise TypeError(f"{name} has dtype {spelled}, which is not supported on a GPU")
    if not dtype.isnative:
        raise TypeError(f"{name} has dtype {dtype.str} of foreign byte order, which is not supported on a GPU")
    return dtype


def _packed(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The byte strides of a C-ordered array."""
    strides = [itemsize]
    for length in shape[:0:-1]:
        strides.append(strides[-1] * max(1, length))
    return tuple(reversed(strides[: len(shape)]))


def _checked(found: DeviceView, name: str) -> DeviceView:
    """`found`, whose elements are aligned: a misaligned access would end the process's use of the device."""
    steps = [stride for length, stride in zip(found.shape, found.strides, strict=True) if length > 1]
    if any(place % found.dtype.alignment for place in (found.data + found.offset, *steps)):
        raise TypeError(f"{name} is not aligned to its dtype {found.dtype}: copy it first")
    return found


def _ordinal(address: int) -> int:
    """The number of the GPU that holds `address`."""
    ordinal = ctypes.c_int()
    cuda().cuPointerGetAttribute(ctypes.addressof(ordinal), 9, address)  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return ordinal.value
