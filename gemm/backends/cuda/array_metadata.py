"""Converts arrays of PyTorch, CuPy and other libraries to DeviceViews, or reads only their metadata, which is faster.

A `Library` reads the arrays of PyTorch, CuPy or gemm. gemm never imports PyTorch or CuPy: if such an array exists,
its library is already loaded. Arrays of all other libraries are read through the CUDA Array Interface or DLPack.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, cast

import numpy as np

from gemm.backends.cuda.arrays import CUDA, MANAGED, DeviceArray, import_dlpack, packed
from gemm.backends.cuda.driver import LEGACY_STREAM, cuda
from gemm.core.operands import extra
from gemm.core.problem import EXTRA, Device, DeviceView, DType, Ints

Devices = Callable[[], tuple[Device, ...]]
Make = Callable[[Ints], Any]
"""make(shape) returns a new array."""


class Library:
    """The functions that read and make the arrays of one library. This class reads gemm's own arrays.

    Attributes:
        kind: the class of arrays. A product of arrays of a subclass never uses the plan cache: each call checks the
            arguments and plans the product anew.
        native: whether gemm._memo (C) reads the metadata of this library's arrays without calling these methods.
    """

    kind: type = DeviceArray

    def __init__(self) -> None:
        self.native = _read_in_c(self.kind, ("shape", "_strides", "dtype", None, "_address", "_ordinal"))

    def view(self, array: Any, name: str, devices: Devices) -> DeviceView | None:
        """Return `array` as a DeviceView, or None if it is not in CUDA memory."""
        return cast(DeviceView, array.view())

    def facts(self, x: Any) -> Any:
        """Return all metadata that determines the launches of a product, except the address."""
        return x.shape, x.dtype, x.device.key

    def address(self, x: Any) -> int:
        """Return the address of the first element."""
        return int(x._address)

    def stream(self, x: Any) -> int:
        """Return the stream on which work on the array must be enqueued."""
        return LEGACY_STREAM

    def maker(self, x: Any, dtype: DType | None = None) -> Make:
        """Return a function that makes arrays on the device of `x`, of type `dtype` (default: the dtype of `x`)."""
        return partial(DeviceArray, dtype=dtype or x.dtype, device=x.device)

    def several(self, make: Make, shape: Ints, count: int) -> Sequence[Any]:
        """Return `count` new arrays of this shape, made by `make`. They may be slices of one larger array."""
        return [make(shape) for _ in range(count)]


class _Torch(Library):
    """Reads and makes PyTorch's tensors. interop.py refuses tensors for which PyTorch would record a gradient."""

    def __init__(self) -> None:
        self._torch = torch = sys.modules["torch"]
        self.kind, exchange = torch.Tensor, getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        self._records = torch.is_grad_enabled
        self.native = exchange is not None and _read_in_c(torch.Tensor, exchange, records=self._records)
        self.address = torch.Tensor.data_ptr  # type: ignore[method-assign]
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # ten times as fast as the public API
        self._dtypes: dict[Any, DType] = {}

    def view(self, array: Any, name: str, devices: Devices) -> DeviceView | None:
        if not array.is_cuda or self._torch.version.cuda is None:  # ROCm builds call their GPUs "cuda" too
            return None
        if array.layout != self._torch.strided:
            raise TypeError(f"{name} has the layout {array.layout}, must be strided: use .to_dense()")
        if array.is_conj() or array.is_neg():
            if name == "out":
                raise TypeError(f"{name} is a lazily conjugated or negated tensor: pass an ordinary tensor")
            array = array.resolve_conj().resolve_neg()
        dtype = self._dtypes.get(array.dtype)
        if dtype is None:
            dtype = self._dtypes[array.dtype] = _dtype(str(array.dtype).removeprefix("torch."), name)
        strides = tuple([step * dtype.itemsize for step in array.stride()])
        place = array, array.data_ptr(), 0, tuple(array.shape), strides
        return DeviceView(*place, dtype, devices()[array.get_device()], self.stream(array))

    def facts(self, x: Any) -> Any:
        recorded = x.requires_grad and self._records()
        return x.shape, x.stride(), x.dtype, x.get_device(), x.is_neg(), x.is_conj(), recorded

    def stream(self, x: Any) -> int:
        if self._raw_stream is None:
            return self._torch.cuda.current_stream(x.device).cuda_stream or LEGACY_STREAM
        return self._raw_stream(x.get_device()) or LEGACY_STREAM

    def maker(self, x: Any, dtype: DType | None = None) -> Make:
        kind = x.dtype if dtype is None else getattr(self._torch, dtype.name)
        return partial(self._torch.empty, dtype=kind, device=x.device)

    def several(self, make: Make, shape: Ints, count: int) -> Sequence[Any]:
        rows, *rest = shape
        whole: Any = make((count * rows, *rest))
        return cast(Sequence[Any], whole.unsafe_split(rows))  # unlike with `split`, autograd sees independent arrays


class _CuPy(Library):
    """Reads and makes CuPy's arrays."""

    def __init__(self) -> None:
        self._cupy = cupy = sys.modules["cupy"]
        self.kind = cupy.ndarray

        def stream(device: int) -> int:
            return int(cupy.cuda.get_current_stream(device).ptr)

        self.native = _read_in_c(self.kind, ("shape", "strides", "dtype", "data", "ptr", "device_id"), stream)

    def view(self, array: Any, name: str, devices: Devices) -> DeviceView | None:
        if self._cupy.cuda.runtime.is_hip:
            return None
        place = array, self.address(array), 0, array.shape, array.strides
        device = devices()[array.device.id]
        return _checked(DeviceView(*place, _dtype(array.dtype, name), device, self.stream(array)), name)

    def facts(self, x: Any) -> Any:
        return x.shape, x.strides, x.dtype, x.device.id

    def address(self, x: Any) -> int:
        return int(x.data.ptr)

    def stream(self, x: Any) -> int:
        return self._cupy.cuda.get_current_stream(x.device.id).ptr or LEGACY_STREAM

    def maker(self, x: Any, dtype: DType | None = None) -> Make:
        def make(shape: Ints) -> Any:
            with self._cupy.cuda.Device(device):
                return self._cupy.empty(shape, kind)

        device, kind = x.device.id, dtype or x.dtype
        return make

    def several(self, make: Make, shape: Ints, count: int) -> Sequence[Any]:
        return list(make((count, *shape)))


@cache
def library(kind: type) -> Library | None:
    """Return the Library for arrays of class `kind`, or of a base class of `kind`.

    None: gemm can read such arrays only through the CUDA Array Interface or DLPack.
    """
    if issubclass(kind, DeviceArray):
        return Library()
    for module, known, made in (("torch", "Tensor", _Torch), ("cupy", "ndarray", _CuPy)):
        if issubclass(kind, getattr(sys.modules.get(module), known, ())):
            return made()
    return None


@cache
def repeatable(kind: type) -> Library | None:
    """Return the Library for arrays of exactly the class `kind`, whose products the plan cache can repeat.

    None: each call with such arrays checks the arguments and plans the product anew, without the plan cache.
    """
    found = library(kind)
    return found if found is not None and found.kind is kind else None


@cache
def module() -> Any:
    """Return the module gemm._memo, or None if it was not built."""
    try:
        return importlib.import_module("gemm._memo")
    except ImportError:
        return None


def _read_in_c(
    kind: type, source: Any, stream: Callable[[int], int] | None = None, records: Callable[[], bool] | None = None
) -> bool:
    """Make gemm._memo read arrays of the class `kind` (see gemm._memo.reads). Return whether gemm._memo can read them.

    Args:
        source: DLPack's exchange API of the array's library (a table of C functions), or the names of the array's
            attributes.
        stream: a function that takes a GPU's ordinal and returns that GPU's current stream. None: gemm uses the stream
            that the exchange API returns or, with attribute names, the legacy stream.
        records: with the exchange API, a function that returns whether the library records gradients now.
    """
    if module() is None:
        return False
    try:
        module().reads(kind, source, stream, records)
    except ValueError:  # gemm does not know this version of the exchange API
        return False
    return True


def view(array: Any, name: str, devices: Devices) -> DeviceView | None:
    """Return `array` as a DeviceView if the array is in CUDA memory, else None.

    If a PyTorch tensor is lazily conjugated or negated, the view is of a copy with that operation applied. `out` must
    not be such a tensor.

    Raises:
        TypeError: gemm cannot multiply this CUDA array, because of its mask, dtype or layout. The message contains
        `name`.
        BackendUnavailable: `array` is a CUDA array, but the CUDA backend cannot run.
    """
    if isinstance(array, np.ndarray):
        return None
    found = library(array.__class__)
    if found is not None:
        return found.view(array, name, devices)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _interface(array, interface, name, devices)
    where = getattr(array, "__dlpack_device__", None)
    if where is not None and int(where()[0]) in (CUDA, MANAGED):
        return _dlpack(array, name, devices)
    return None


def empty(shape: Ints, like: DeviceView) -> Any:
    """Return an uninitialised array with the dtype and on the device of `like`.

    The array is of PyTorch or CuPy if the owner of `like` is, else a DeviceArray. It is also a DeviceArray if CuPy does
    not have the dtype.
    """
    found = library(like.owner.__class__)
    if found is None or (isinstance(found, _CuPy) and like.dtype.name in EXTRA):
        return DeviceArray(shape, like.dtype, like.device)
    return found.maker(like.owner, like.dtype)(shape)


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
    """Return a conjugated copy of the whole array of which `found` is a view.

    Raises TypeError if the array's library is not PyTorch or CuPy.
    """
    owner = found.owner
    if not isinstance(library(owner.__class__), _Torch | _CuPy):
        raise TypeError(f'trans="C" of a complex {type(owner).__name__} on a GPU: pass its conjugate, transposed')
    return cast(DeviceView, view(owner.conj(), "conj", devices))


def _interface(array: Any, interface: dict[str, Any], name: str, devices: Devices) -> DeviceView:
    """Return a DeviceView of `array`, whose CUDA Array Interface is `interface`. Raises TypeError as `view` does.

    The interface's entry `stream` is the stream with pending work on the array. None means that no work is pending.
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
    strides = packed(shape, dtype.itemsize) if strides is None else tuple(strides)
    device = devices()[_ordinal(address)] if address else devices()[0]
    return _checked(DeviceView(array, address, 0, shape, strides, dtype, device, stream, readonly), name)


def _dlpack(array: Any, name: str, devices: Devices) -> DeviceView:
    try:
        imported = import_dlpack(array)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from error
    tensor, dtype = imported.tensor, _dtype(imported.dtype, name)
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = packed(shape, dtype.itemsize)
    if tensor.strides:
        strides = tuple(step * dtype.itemsize for step in tensor.strides[: tensor.ndim])
    place = imported, tensor.data or 0, tensor.byte_offset, shape, strides
    return _checked(DeviceView(*place, dtype, devices()[tensor.device_id], LEGACY_STREAM, imported.readonly), name)


def _dtype(spelled: Any, name: str) -> DType:
    if str(spelled) in EXTRA:
        return extra(str(spelled), name)
    try:
        dtype: DType = np.dtype(spelled)
    except TypeError as error:
        raise TypeError(f"{name} has dtype {spelled}, which is not supported on a GPU") from error
    if dtype.kind not in "biufc" or dtype.name.startswith("float8"):
        raise TypeError(f"{name} has dtype {spelled}, which is not supported on a GPU")
    if not dtype.isnative:
        raise TypeError(f"{name} has dtype {dtype.str} of foreign byte order, which is not supported on a GPU")
    return dtype


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
