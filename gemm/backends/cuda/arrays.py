"""gemm's own class `DeviceArray`, and the import and export of CUDA arrays through DLPack (versions 0 and 1).

A DLPack capsule contains a struct that describes memory, and a function that releases the memory (the deleter). A
consumer that takes over the memory renames the capsule. If no consumer has renamed the capsule, its destructor releases
the memory.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from gemm.backends.cuda.driver import LEGACY_STREAM, cuda, follow
from gemm.backends.cuda.transfer import fetch, send
from gemm.core.errors import KernelFailed, delivering
from gemm.core.operands import extent
from gemm.core.problem import Device, DeviceView, DType, Ints

CUDA, MANAGED = 2, 13  # kDLCUDA, kDLCUDAManaged
_READ_ONLY = 1  # a bit of DLManagedTensorVersioned.flags
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"

_TYPES = {
    **{f"{kind}{bits}": (code, bits) for kind, code in (("int", 0), ("uint", 1), ("float", 2), ("complex", 5))
       for bits in (8, 16, 32, 64, 128)},
    "bfloat16": (4, 16), "bool": (6, 8), "float8_e4m3fn": (10, 8), "float8_e5m2": (12, 8),
}  # fmt: skip
"""{name of the type: (DLDataTypeCode, bits)}."""
_NAMES = {code: name for name, code in _TYPES.items()}


class _Tensor(ctypes.Structure):
    """The C struct DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """The C struct DLManagedTensor (version 0)."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _Versioned(ctypes.Structure):
    """The C struct DLManagedTensorVersioned (version 1)."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", _Deleter),
        ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


def _capsule(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((f"PyCapsule_{name}", ctypes.pythonapi))


_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = _capsule("New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_pointer = _capsule("GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_is_valid = _capsule("IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
# These two functions take the address of a capsule: Python must not create references to a capsule that is being
# destroyed.
_raw_pointer = _capsule("GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_raw_is_valid = _capsule("IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)


class Import(NamedTuple):
    """An array that exports DLPack, and the capsule that keeps the array's memory alive.

    Attributes:
        tensor: the DLTensor in the capsule.
        dtype: the name of the array's type.
    """

    array: Any
    capsule: Any
    tensor: _Tensor
    dtype: str
    readonly: bool


def import_dlpack(array: Any) -> Import:
    """Import `array` through `array.__dlpack__`, for use on the legacy stream.

    Raises TypeError if gemm does not support the array's dtype or its version of DLPack.
    """
    try:
        capsule = array.__dlpack__(stream=LEGACY_STREAM, max_version=(1, 0))
    except TypeError:  # a producer of version 0 does not know max_version
        capsule = array.__dlpack__(stream=LEGACY_STREAM)
    readonly = False
    if _is_valid(capsule, _VERSIONED):
        managed = _Versioned.from_address(_pointer(capsule, _VERSIONED))
        if managed.major != 1:
            raise TypeError(f"DLPack version {managed.major}.{managed.minor} is not known, only 1 and 0")
        tensor, readonly = managed.tensor, bool(managed.flags & _READ_ONLY)
    else:
        tensor = _Tensor.from_address(_pointer(capsule, _PLAIN))
    name = _NAMES.get((tensor.code, tensor.bits))
    if name is None or tensor.lanes != 1:
        raise TypeError(f"DLPack type {tensor.code} of {tensor.bits} bits and {tensor.lanes} lanes is not supported")
    return Import(array, capsule, tensor, name, readonly)


_exported: dict[int, Any] = {}
"""{address of an exported struct: the objects that must live as long as the struct}."""


def _forget(address: int) -> None:
    _exported.pop(address, None)


def _destroyed(capsule: int) -> None:
    for name in (_PLAIN, _VERSIONED):
        if _raw_is_valid(capsule, name):  # not renamed: no consumer took over the memory
            _forget(_raw_pointer(capsule, name))


_delete, _destroy = _Deleter(_forget), _Destructor(_destroyed)


def export_dlpack(owner: Any, address: int, device: int, shape: Ints, dtype: str, *, version: Any) -> Any:
    """Return a DLPack capsule for the C-ordered array at `address`, in memory that `owner` keeps alive.

    `version` is the newest version of DLPack that the consumer knows, as (major, minor). None means version 0.
    """
    sizes, steps = (ctypes.c_int64 * len(shape))(*shape), (ctypes.c_int64 * len(shape))(*packed(shape, 1))
    tensor = _Tensor(address, CUDA, device, len(shape), *_TYPES[dtype], 1, sizes, steps, 0)
    managed: Any
    if version is not None and version[0] >= 1:
        managed, label = _Versioned(1, 0, None, _delete, 0, tensor), _VERSIONED
    else:
        managed, label = _Managed(tensor, None, _delete), _PLAIN
    place = ctypes.addressof(managed)
    _exported[place] = owner, managed, sizes, steps
    return _new(place, label, _destroy)


def packed(shape: Ints, itemsize: int) -> Ints:
    """Return the byte strides of a C-ordered array."""
    strides = [itemsize]
    for length in shape[:0:-1]:
        strides.append(strides[-1] * max(1, length))
    return tuple(reversed(strides[: len(shape)]))


_STAGED_FROM = 1 << 20  # copies of at least this many bytes go through page-locked memory


class DeviceArray:
    """A C-ordered array in the memory of one GPU. The memory is freed with the object.

    A result is a DeviceArray if gemm does not know the library of the inputs. gemm also uses DeviceArrays to time
    kernels with operands on the device. Work on a DeviceArray must be enqueued on the legacy stream. Any library that
    reads `__cuda_array_interface__` or DLPack can wrap a DeviceArray; `copy_to_host` returns a NumPy copy.

    Attributes:
        shape, dtype, nbytes: as in NumPy.
        device: the device whose memory contains the array.
    """

    def __init__(self, shape: Sequence[int], dtype: Any, device: Device) -> None:
        self.shape = tuple(int(length) for length in shape)
        self.dtype: DType = np.dtype(dtype)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        self.device = device
        self._lent = False  # whether the array was exported: other libraries may then use it on any stream
        self._address = 0
        if self.nbytes:
            with device.handle as gpu:
                self._address = int(gpu.allocate(self.nbytes, LEGACY_STREAM))
        self._ordinal, self._strides = device.handle.ordinal, packed(self.shape, self.dtype.itemsize)
        self._view = self._address, 0, self.shape, self._strides, self.dtype, device, LEGACY_STREAM

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
        raise TypeError("a DeviceArray is in a GPU's memory; copy_to_host() returns a NumPy array")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self._lent = True
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self._address, False), "strides": None,
            "stream": LEGACY_STREAM, "version": 3,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self._ordinal

    def __dlpack__(
        self, *, stream: int | None = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """Return a DLPack capsule that keeps the array's memory alive. The array API standard defines the arguments."""
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"a DeviceArray can only be exported on its own device, {self.__dlpack_device__()}")
        if stream == 0 or (stream is not None and stream < -1):
            raise ValueError(f"stream = {stream} is not a CUDA stream in DLPack: pass -1, 1, 2 or a stream's handle")
        self._lent = True
        with delivering(self.device.key), self.device.handle:
            if stream not in (None, -1, LEGACY_STREAM):  # None is the legacy stream; with -1, the caller synchronises
                follow(stream, LEGACY_STREAM)
        place = self._address, self._ordinal
        return export_dlpack(self, *place, self.shape, self.dtype.name, version=max_version)

    def view(self) -> DeviceView:
        """Return a DeviceView of the whole array."""
        return DeviceView(self, *self._view)

    def copy_from_host(self, array: np.ndarray) -> None:
        """Overwrite this array with `array`, which must have the same shape. The dtype is converted if necessary.

        Raises ValueError if the number of elements differs.
        """
        with delivering(self.device.key):
            self.fill(array)

    def fill(self, array: np.ndarray) -> None:
        """Do the same as `copy_from_host`, for callers inside gemm. Errors of the driver are raised as KernelFailed."""
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
