"""From whatever the caller holds to operands that backends take, and back to the caller's library."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gemm.backends.base import LINE, PAGE, WRAPPED_FROM, Backend
from gemm.dispatch import registry
from gemm.problem import EXTRA, DeviceView, Operand


def wrap(array: Any, name: str) -> Operand:
    """`array` as a host ndarray (a view where possible) or a DeviceView; `name` is for errors.

    Host memory of other libraries (torch CPU tensors, ...) is shared, not copied; lists and scalars become arrays.
    """
    if type(array) is np.ndarray or isinstance(array, DeviceView):
        return array
    for backend in _with_memory(array):
        view = backend.view(array, name)
        if view is not None:
            return view
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask a product would lose; pass {name}.filled(value)")
    library, _, kind = str(getattr(array, "dtype", "")).partition(".")
    if library == "torch" and kind in EXTRA:  # no type of NumPy's own: its bits are read
        bits = extra(kind, f"{name} is a {kind} tensor")
        return np.asarray(array.view(getattr(sys.modules["torch"], f"int{8 * bits.itemsize}"))).view(bits)
    try:
        return np.asarray(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} of type {type(array).__name__} is no array: {error}") from error


def lazy(*arrays: Any) -> bool:
    """Whether one of them is dask's, whose products gemm.dask makes; judged without loading it."""
    library = sys.modules.get("dask.array")
    kind = getattr(library, "Array", ())  # () while another thread imports it
    return any(isinstance(array, kind) for array in arrays)


def wrap_output(array: Any, name: str = "out") -> Operand:
    """Like `wrap`, for memory that will be written: refuses what is read-only or would be a copy."""
    operand = wrap(array, name)
    if isinstance(operand, DeviceView):
        if operand.readonly:
            raise ValueError(f"{name} is read-only; pass a writeable array")
        _refuse_broadcast(operand, name)
        return operand
    if operand is not array and not overlap(operand, wrap(array, name)):
        raise TypeError(f"{name} must be an array to write to, not {type(array).__name__}")
    if not operand.flags.writeable:
        raise ValueError(f"{name} is read-only; pass a writeable array")
    _refuse_broadcast(operand, name)
    return operand


def extra(name: str, why: str) -> np.dtype[Any]:
    """NumPy's type for `name` of EXTRA. `why` begins the message of the TypeError without ml_dtypes."""
    try:
        found: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except ImportError as error:
        raise TypeError(f"{why}, which NumPy knows by the package ml_dtypes; pip install ml_dtypes") from error
    return found


def bfloat16(why: str) -> np.dtype[Any]:
    """`extra` of bfloat16."""
    return extra("bfloat16", why)


def named(name: str, why: str) -> np.dtype[Any]:
    """NumPy's type called `name`, also of EXTRA."""
    return extra(name, why) if name in EXTRA else np.dtype(name)


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether elements of `dtype` can be multiplied: booleans, integers, real and complex numbers, those of EXTRA."""
    return dtype.name in EXTRA or (dtype.kind in "biufc" and not dtype.name.startswith("float8"))


def _refuse_broadcast(operand: Operand, name: str) -> None:
    if operand.size and any(s == 0 and n > 1 for s, n in zip(operand.strides, operand.shape, strict=True)):
        raise ValueError(f"{name} is broadcast: several of its elements are one; pass an array of its own")


def _with_memory(array: Any) -> Iterator[Backend]:
    """The backends whose memory `array` may lie in, judged without loading any library."""
    if "pyopencl" in sys.modules and (hasattr(array, "base_data") or hasattr(array, "int_ptr")):
        yield registry.backend("opencl")
    if _on_cuda(array):
        yield registry.backend("cuda")


_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged


def _on_cuda(array: Any) -> bool:
    # DLPack first: reading the interface of a tensor that requires a gradient raises.
    try:
        return int(array.__dlpack_device__()[0]) in _DLPACK_CUDA
    except (AttributeError, TypeError, ValueError, BufferError):
        return hasattr(array, "__cuda_array_interface__")


def like(result: Operand, example: Any) -> Any:
    """`result` in `example`'s library: the owner of a device view, or a host array shared with that library."""
    if isinstance(result, DeviceView):
        return registry.backend(result.device.backend).returned(result, example)
    if isinstance(example, np.ndarray) or not hasattr(example, "__dlpack__"):
        return result if result.ndim else result[()]  # as np.matmul: the product of two vectors is a scalar
    if hasattr(example, "__array_namespace__"):
        library = example.__array_namespace__()
    else:
        library = sys.modules[type(example).__module__.partition(".")[0]]
    if result.dtype.name == "bfloat16":  # which NumPy does not pass on
        return library.from_dlpack(result.view(np.int16)).view(library.bfloat16)
    return library.from_dlpack(result)


def overlap(x: Operand, y: Operand) -> bool:
    """Whether the two may share an element: by the bounds of their memory, so True is not certain."""
    if isinstance(x, DeviceView) and isinstance(y, DeviceView):
        (space, x_start), (other, y_start) = _place(x), _place(y)
        x_low, x_high = _extent(x)
        y_low, y_high = _extent(y)
        return bool(space == other) and x_start + x_low < y_start + y_high and y_start + y_low < x_start + x_high
    return isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and np.may_share_memory(x, y)


def _place(x: DeviceView) -> tuple[Any, int]:
    """Where x's first element lies: a space of addresses and one of them.

    CUDA's views and those of shared virtual memory lie in one space; an OpenCL buffer is a space of its own.
    """
    start = x.data if isinstance(x.data, int) else getattr(x.data, "svm_ptr", None)
    return (x.data, x.offset) if start is None else (None, start + x.offset)


def _extent(view: DeviceView) -> tuple[int, int]:
    """Bytes from the first element to the lowest one's beginning and to the highest one's end."""
    if view.size == 0:
        return 0, 0
    spans = [(length - 1) * step for length, step in zip(view.shape, view.strides, strict=True)]
    low = sum(span for span in spans if span < 0)
    return low, sum(span for span in spans if span > 0) + view.dtype.itemsize


def identical(x: Operand, y: Operand) -> bool:
    """Whether the two are the very same elements in the same order."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    here, there = (_place(o) if isinstance(o, DeviceView) else (None, o.__array_interface__["data"][0]) for o in (x, y))
    steps = all(p == q or length == 1 for p, q, length in zip(x.strides, y.strides, x.shape, strict=True))
    return bool(here == there) and steps


def distinct(x: Operand) -> bool:
    """Whether no two elements of `x` share memory, as far as its strides prove it."""
    if x.size == 0:
        return True
    reach = x.dtype.itemsize
    for step, length in sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1):
        if step < reach:
            return False
        reach = step * (length - 1) + reach
    return True


def kernel_ready(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """`array` in native, aligned `dtype` with strides of whole elements; itself when it is so already."""
    if array.dtype != dtype or not array.dtype.isnative or not array.flags.aligned:
        array = array.astype(dtype)
    elif any(stride % dtype.itemsize for stride in array.strides):
        array = array.copy()
    return array


def transposed(x: Operand) -> Operand:
    """`x` with its last two axes exchanged, as a view."""
    return x.mT if isinstance(x, DeviceView) else x.swapaxes(-1, -2)


def conjugated(x: Operand) -> Operand:
    """A conjugated copy of an array of complex numbers. Raises TypeError for one on a device that has no way."""
    return registry.backend(x.device.backend).conjugated(x) if isinstance(x, DeviceView) else x.conj()


def expanded(x: Operand, axis: int) -> Operand:
    """`x` with a new axis of length 1 at `axis` (0, or counted from the end), as a view."""
    return x.insert_axis(axis) if isinstance(x, DeviceView) else np.expand_dims(x, axis)


def broadcast(x: Operand, shape: Sequence[int]) -> Operand:
    """`x` with zero strides where it repeats, as a view."""
    if x.shape == tuple(shape):
        return x
    return x.broadcast_to(shape) if isinstance(x, DeviceView) else np.broadcast_to(x, shape)


def layout(x: Operand) -> str:
    """ "N" for unit stride along rows, "T" along columns, "S" for neither."""
    rows, columns = x.shape[-2:]
    row_step, column_step = x.strides[-2:]
    if column_step == x.dtype.itemsize or columns == 1:
        return "N"
    return "T" if row_step == x.dtype.itemsize or rows == 1 else "S"


def place(x: Operand | None) -> str:
    """Where host memory lies, as Problem.places has it: "" too for what is small or in no matrix's order."""
    if not isinstance(x, np.ndarray):
        return ""
    base = x.base
    while isinstance(base, np.ndarray):
        base = base.base
    if key := getattr(base, "device_key", ""):
        return str(key)
    if (
        x.nbytes < WRAPPED_FROM
        or x.nbytes % LINE
        or not (x.flags.c_contiguous or x.swapaxes(-1, -2).flags.c_contiguous)
    ):
        return ""
    address = x.__array_interface__["data"][0]
    return next((str(step) for step in (PAGE, LINE) if address % step == 0), "")


def nothing_of(x: DeviceView, *shape: int) -> DeviceView:
    """A stand-in of `shape`, of no elements, for operands that a k = 0 launch does not read."""
    return replace(x, shape=shape, strides=(0,) * len(shape))
