"""Conversion of CUDA arrays of any library to DeviceViews, without importing the library; gemm's own `DeviceArray`."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from gemm.backends.cuda import dlpack
from gemm.backends.cuda.api import LEGACY_STREAM, cuda, follow
from gemm.backends.cuda.transfer import fetch, send
from gemm.core.errors import KernelFailed, delivering
from gemm.core.operands import extent, extra
from gemm.core.problem import EXTRA, Device, DeviceView

Devices = Callable[[], tuple[Device, ...]]

_STAGED_FROM = 1 << 20  # copies of at least this many bytes go through page-locked memory


class DeviceArray:
    """A C-ordered array in the memory of one GPU. The memory is freed with the object.

    gemm returns a DeviceArray as a result if it does not know the library of the inputs, and uses DeviceArrays to time
    kernels with operands on the device. Work on a DeviceArray must be enqueued on the legacy stream. Any library that
    reads `__cuda_array_interface__` or DLPack can wrap a DeviceArray; `copy_to_host` returns a NumPy copy.

    Attributes:
        shape, dtype, nbytes: as in NumPy.
        device: the device whose memory contains the array.
    """

    def __init__(self, shape: Sequence[int], dtype: Any, device: Device) -> None:
        self.shape = tuple(int(length) for length in shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        self.device = device
        self._lent = False  # whether the array was exported: then others may use it on streams unknown to gemm
        self._address = 0
        if self.nbytes:
            with device.handle as gpu:
                self._address = int(gpu.allocate(self.nbytes, LEGACY_STREAM))
        strides = _packed(self.shape, self.dtype.itemsize)
        self._view = self._address, 0, self.shape, strides, self.dtype, device, LEGACY_STREAM

    def __del__(self) -> None:
        address = getattr(self, "_address", 0)
        if not address or sys.is_finalizing():  # the driver may already be unloaded, with all memory freed
            return
        with suppress(KernelFailed), self.device.handle as gpu:  # the context was lost, or this is the child of a fork
            if self._lent:
                cuda().cuMemFree(address)  # waits for all work on the device
            else:
                gpu.free(address, LEGACY_STREAM)

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device.key!r})"

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a DeviceArray lies on a GPU; copy_to_host() copies it")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self._lent = True
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self._address, False), "strides": None,
            "stream": LEGACY_STREAM, "version": 3,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device.handle.ordinal

    def __dlpack__(
        self, *, stream: int | None = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """Return a DLPack capsule that keeps the array's memory alive. The array API standard defines the arguments."""
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"a DeviceArray is only exported where it lies, {self.__dlpack_device__()}")
        self._lent = True
        with delivering(self.device.key), self.device.handle:
            dlpack.make_ready(stream, lambda theirs: follow(theirs, LEGACY_STREAM))
        place = self._address, self.device.handle.ordinal
        return dlpack.give(self, *place, self.shape, self.dtype.name, version=max_version)

    def view(self) -> DeviceView:
        """Return a DeviceView of the whole array."""
        return DeviceView(self, *self._view)

    def copy_from_host(self, array: np.ndarray) -> None:
        """Overwrite this array with `array`, which must have the same shape and dtype."""
        with delivering(self.device.key):
            self.fill(array)

    def fill(self, array: np.ndarray) -> None:
        """Do the same as `copy_from_host`, but raise KernelFailed for errors. For callers inside gemm."""
        block = np.ascontiguousarray(array, self.dtype)
        if block.nbytes != self.nbytes:
            raise ValueError(f"array has shape {array.shape}, must have {self.shape}")
        if self.nbytes >= _STAGED_FROM:
            with self.device.handle as gpu:
                send(gpu, block.reshape(-1).view(np.uint8), self._address)
        elif self.nbytes:
            with self.device.handle:
                cuda().cuMemcpyHtoD(self._address, block.ctypes.data, self.nbytes)

    def copy_to_host(self) -> np.ndarray:
        """Wait for all work that is enqueued on the device, then return a NumPy copy."""
        with delivering(self.device.key):
            return to_host(self.view())


def view(array: Any, name: str, devices: Devices) -> DeviceView | None:
    """Return `array` as a DeviceView if the array is in CUDA memory, else None.

    A PyTorch tensor is used as if it were detached: no gradient flows through a product. If a tensor is lazily
    conjugated or negated, the view is of a copy with that operation applied. `out` must not be such a tensor.

    Raises:
        TypeError: gemm cannot multiply this CUDA array (mask, dtype, layout). The message contains `name`.
        BackendUnavailable: `array` is a CUDA array, but the CUDA backend cannot run.
    """
    return _reader(array.__class__)(array, name, devices)


@cache
def _reader(kind: type) -> Callable[[Any, str, Devices], DeviceView | None]:
    """Return the function that converts arrays of the class `kind` to DeviceViews."""
    if issubclass(kind, np.ndarray):
        return lambda array, name, devices: None
    if issubclass(kind, DeviceArray):
        return lambda array, name, devices: array.view()
    for module, known, reader in (("torch", "Tensor", _torch), ("cupy", "ndarray", _cupy)):
        if issubclass(kind, getattr(sys.modules.get(module), known, ())):
            return reader
    return _foreign


def _foreign(array: Any, name: str, devices: Devices) -> DeviceView | None:
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _interface(array, interface, name, devices)
    where = getattr(array, "__dlpack_device__", None)
    if where is not None and int(where()[0]) in (dlpack.CUDA, dlpack.MANAGED):
        return _dlpack(array, name, devices)
    return None


def empty(shape: tuple[int, ...], like: DeviceView) -> Any:
    """Return an uninitialised array with the dtype and on the device of `like`.

    The array is of the same library as the owner of `like` if that is PyTorch or CuPy, else a DeviceArray.
    """
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if isinstance(like.owner, getattr(torch, "Tensor", ())):
        return torch.empty(shape, dtype=getattr(torch, like.dtype.name), device=like.owner.device)  # type: ignore[union-attr]
    if isinstance(like.owner, getattr(cupy, "ndarray", ())) and like.dtype.name not in EXTRA:
        with cupy.cuda.Device(like.owner.device.id):  # type: ignore[union-attr]
            return cupy.empty(shape, like.dtype)  # type: ignore[union-attr]
    return DeviceArray(shape, like.dtype, like.device)


def returned(owner: Any, example: Any) -> Any:
    """Return the result `owner` as an array of the library of `example` if that library can import it, else `owner`."""
    if owner.__class__ is not DeviceArray or example.__class__ is DeviceArray:
        return owner
    numba = sys.modules.get("numba.cuda")
    # The import fails if the library does not know the dtype, for example.
    with suppress(TypeError, ValueError, BufferError, NotImplementedError, RuntimeError):
        if example.__class__.__module__.startswith("numba.") and numba is not None:
            return numba.as_cuda_array(owner)
        if hasattr(example, "__array_namespace__"):
            return example.__array_namespace__().from_dlpack(owner)
    return owner


def conjugated(found: DeviceView, devices: Devices) -> DeviceView:
    """Return a conjugated copy of a whole array. Raises TypeError if the array's library is not PyTorch or CuPy."""
    owner = found.owner
    if _reader(owner.__class__) not in (_torch, _cupy):
        raise TypeError(f'trans="C" of a complex {type(owner).__name__} on a GPU: pass its conjugate, transposed')
    copy = view(owner.conj(), "conj", devices)
    assert copy is not None
    return copy


def to_host(source: DeviceView) -> np.ndarray:
    """Wait for all work that is enqueued on the device of `source`, then return a copy of `source` on the host."""
    if not source.size:
        return np.empty(source.shape, source.dtype)
    low, high = extent(source)
    span = np.empty(high - low, np.uint8)
    address = source.data + source.offset + low
    with source.device.handle as gpu:
        cuda().cuCtxSynchronize()
        if span.nbytes >= _STAGED_FROM:
            fetch(gpu, span, address)
        else:
            cuda().cuMemcpyDtoH(span.ctypes.data, address, span.nbytes)
    strided: np.ndarray = np.ndarray(source.shape, source.dtype, span, -low, source.strides)
    copy: np.ndarray = strided.copy()
    return copy


@cache
def _torch_facts(torch: Any) -> tuple[Any, Any, Any, dict[Any, np.dtype[Any]]]:
    """Return facts about this PyTorch that do not change.

    Returns:
        (the layout of strided tensors, whether PyTorch was built for CUDA, a function from the GPU's ordinal to the
        handle of its current stream, an empty cache from PyTorch's dtypes to NumPy's).
    """
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # ten times as fast as the public API
    stream = raw or (lambda ordinal: torch.cuda.current_stream(ordinal).cuda_stream)
    return torch.strided, torch.version.cuda is not None, stream, {}  # ROCm builds call their GPUs "cuda" too


def _torch(tensor: Any, name: str, devices: Devices) -> DeviceView | None:
    strided, is_cuda, current, dtypes = _torch_facts(sys.modules["torch"])
    if not tensor.is_cuda or not is_cuda:
        return None
    if tensor.layout != strided:
        raise TypeError(f"{name} has the layout {tensor.layout}, must be strided: use .to_dense()")
    if tensor.is_conj() or tensor.is_neg():
        if name == "out":
            raise TypeError(f"{name} is a lazily conjugated or negated tensor: pass one that is not")
        tensor = tensor.resolve_conj().resolve_neg()
    dtype = dtypes.get(tensor.dtype)
    if dtype is None:
        dtype = dtypes[tensor.dtype] = _dtype(str(tensor.dtype).removeprefix("torch."), name)
    size, ordinal = dtype.itemsize, tensor.get_device()
    strides = tuple([step * size for step in tensor.stride()])
    stream = current(ordinal) or LEGACY_STREAM
    return DeviceView(tensor, tensor.data_ptr(), 0, tuple(tensor.shape), strides, dtype, devices()[ordinal], stream)


def _cupy(array: Any, name: str, devices: Devices) -> DeviceView | None:
    cupy = sys.modules["cupy"]
    if cupy.cuda.runtime.is_hip:
        return None
    ordinal = array.device.id
    stream = cupy.cuda.get_current_stream(ordinal).ptr or LEGACY_STREAM
    place = array, int(array.data.ptr), 0, array.shape, array.strides
    return _checked(DeviceView(*place, _dtype(array.dtype, name), devices()[ordinal], stream), name)


def _interface(array: Any, interface: dict[str, Any], name: str, devices: Devices) -> DeviceView:
    """Convert an array that exports the CUDA Array Interface.

    `stream` in the interface is the stream with pending work on the array. None means that no work is pending.
    """
    if interface.get("mask") is not None:
        raise TypeError(f"{name} has a mask, which no product can take")
    stream = interface.get("stream")
    if stream == 0:
        raise TypeError(f"{name} exports the stream 0, which the CUDA Array Interface forbids as ambiguous")
    spelled = interface["typestr"]
    if spelled[1:2] == "V":  # the interface describes the dtypes of ml_dtypes as void
        spelled = getattr(array, "dtype", spelled)
    dtype = _dtype(spelled, name)
    address, shape, readonly = int(interface["data"][0]), tuple(interface["shape"]), bool(interface["data"][1])
    strides = interface.get("strides")
    strides = _packed(shape, dtype.itemsize) if strides is None else tuple(strides)
    device = devices()[_ordinal(address)] if address else devices()[0]
    return _checked(DeviceView(array, address, 0, shape, strides, dtype, device, stream, readonly), name)


class Exported:
    """An array that exports only DLPack, with the capsule that keeps its memory exported."""

    def __init__(self, array: Any, capsule: Any) -> None:
        self.array, self.capsule = array, capsule


def _dlpack(array: Any, name: str, devices: Devices) -> DeviceView:
    try:
        taken = dlpack.take(array)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from error
    dtype = _dtype(taken.dtype, name)
    strides = _packed(taken.shape, dtype.itemsize)
    if taken.strides is not None:
        strides = tuple(step * dtype.itemsize for step in taken.strides)
    owner, device = Exported(array, taken.capsule), devices()[taken.device]
    place = owner, taken.address, taken.offset, taken.shape, strides
    return _checked(DeviceView(*place, dtype, device, LEGACY_STREAM, taken.readonly), name)


def _dtype(spelled: Any, name: str) -> np.dtype[Any]:
    if str(spelled) in EXTRA:
        return extra(str(spelled), f"{name} has dtype {spelled}")
    try:
        dtype: np.dtype[Any] = np.dtype(spelled)
    except TypeError as error:
        raise TypeError(f"{name} has dtype {spelled}, which is not supported on a GPU") from error
    if dtype.kind not in "biufc" or dtype.name.startswith("float8"):
        raise TypeError(f"{name} has dtype {spelled}, which is not supported on a GPU")
    if not dtype.isnative:
        raise TypeError(f"{name} has dtype {dtype.str} of foreign byte order, which is not supported on a GPU")
    return dtype


def _packed(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the byte strides of a C-ordered array."""
    strides = [itemsize]
    for length in shape[:0:-1]:
        strides.append(strides[-1] * max(1, length))
    return tuple(reversed(strides[: len(shape)]))


def _checked(found: DeviceView, name: str) -> DeviceView:
    """Return `found` if its elements are aligned, else raise TypeError.

    A misaligned access on the device would destroy the CUDA context of the process.
    """
    steps = [stride for length, stride in zip(found.shape, found.strides, strict=True) if length > 1]
    unit = found.dtype.itemsize
    if any(place % unit for place in steps) or (found.data + found.offset) % min(unit, 16):
        raise TypeError(f"{name} is not aligned to its dtype {found.dtype}: copy it first")
    return found


def _ordinal(address: int) -> int:
    """Return the ordinal of the GPU whose memory contains `address`."""
    ordinal = ctypes.c_int()
    cuda().cuPointerGetAttribute(ctypes.addressof(ordinal), 9, address)  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return ordinal.value
