"""DLPack for CUDA arrays, versions 0 and 1: imports other libraries' arrays and exports gemm's own.

A DLPack capsule contains a struct that describes memory, and a function that releases the memory (the deleter). A
consumer that takes over the memory renames the capsule. If no consumer did so, the capsule's destructor releases the
memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

from gemm.backends.cuda.api import LEGACY_STREAM

CUDA, MANAGED = 2, 13  # kDLCUDA, kDLCUDAManaged
_READ_ONLY = 1  # a bit of DLManagedTensorVersioned.flags
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"

_CODES = {
    "int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6, "float8_e4m3fn": 10, "float8_e5m2": 12,
}  # fmt: skip
"""{name of the type without its bits: DLDataTypeCode}."""
_NAMES = {code: name for name, code in _CODES.items()}


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


def _capsules(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(ctypes.pythonapi, f"PyCapsule_{name}")
    function.restype, function.argtypes = result, arguments
    return function


_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_pointer = _capsules("GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_is_valid = _capsules("IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)  # takes the capsule as an address: Python must not create references to a capsule that is being destroyed
_raw_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_new = _capsules("New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)


class Taken(NamedTuple):
    """The description of an array in a capsule, which keeps the memory alive.

    `strides` are in elements; None means C order.
    """

    capsule: Any
    address: int
    offset: int
    device: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    readonly: bool


def take(array: Any) -> Taken:
    """Import `array` through `array.__dlpack__`. The array is ready for work on the legacy stream.

    Raises TypeError if gemm does not support the array's dtype or its version of DLPack.
    """
    try:
        capsule = array.__dlpack__(stream=LEGACY_STREAM, max_version=(1, 0))
    except TypeError:  # a producer of version 0 does not know max_version
        capsule = array.__dlpack__(stream=LEGACY_STREAM)
    flags = 0
    if _is_valid(capsule, _VERSIONED):
        managed = _Versioned.from_address(_pointer(capsule, _VERSIONED))
        if managed.major != 1:
            raise TypeError(f"DLPack version {managed.major}.{managed.minor} is not known, only 1 and 0")
        tensor, flags = managed.tensor, managed.flags
    else:
        tensor = _Tensor.from_address(_pointer(capsule, _PLAIN))
    name = _NAMES.get(tensor.code)
    if name is None or tensor.lanes != 1:
        raise TypeError(f"DLPack type {tensor.code} of {tensor.bits} bits and {tensor.lanes} lanes is not supported")
    dtype = name if "8_" in name or name == "bool" else f"{name}{tensor.bits}"
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    readonly = bool(flags & _READ_ONLY)
    return Taken(capsule, tensor.data or 0, tensor.byte_offset, tensor.device_id, shape, strides, dtype, readonly)


_exported: dict[int, Any] = {}
"""{address of an exported struct: the objects that must live as long as the struct}."""


def _forget(address: int) -> None:
    _exported.pop(address, None)


def _destroyed(capsule: int) -> None:
    for name in (_PLAIN, _VERSIONED):
        if _raw_is_valid(capsule, name):  # not renamed: no consumer took over the memory
            _forget(_raw_pointer(capsule, name))


_delete, _destroy = _Deleter(_forget), _Destructor(_destroyed)


def give(owner: Any, address: int, device: int, shape: tuple[int, ...], dtype: str, *, version: Any) -> Any:
    """Return a capsule for C-ordered memory that `owner` keeps alive.

    `version` is the newest version of DLPack that the consumer knows. None means version 0.
    """
    name = dtype.rstrip("0123456789") if "8_" not in dtype else dtype
    bits = 8 if name in ("bool", dtype) else int(dtype[len(name) :])
    sizes, steps = (ctypes.c_int64 * len(shape))(*shape), (ctypes.c_int64 * len(shape))()
    step = 1
    for axis in range(len(shape) - 1, -1, -1):
        steps[axis] = step
        step *= max(1, shape[axis])
    tensor = _Tensor(address, CUDA, device, len(shape), _CODES[name], bits, 1, sizes, steps, 0)
    managed: Any
    if version is not None and version[0] >= 1:
        managed, label = _Versioned(1, 0, None, _delete, 0, tensor), _VERSIONED
    else:
        managed, label = _Managed(tensor, None, _delete), _PLAIN
    place = ctypes.addressof(managed)
    _exported[place] = owner, managed, sizes, steps
    return _new(place, label, _destroy)


def make_ready(stream: int | None, wait: Callable[[int], None]) -> None:
    """Call `wait(stream)` if the consumer's stream must wait for pending work on the array.

    `stream` is the argument of __dlpack__. The legacy stream and -1 ("do not synchronise") need no wait. Raises
    ValueError for streams that DLPack forbids.
    """
    if stream == 0 or (stream is not None and stream < -1):
        raise ValueError(f"stream = {stream} is none of CUDA's in DLPack: pass -1, 1, 2 or a stream's handle")
    if stream not in (None, -1, LEGACY_STREAM):
        wait(int(stream or 0))
