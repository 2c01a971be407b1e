"""From whatever the caller holds to operands that backends take, and back to the caller's library."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gemm.backends.base import Backend
from gemm.catalog import HOLDING
from gemm.dispatch import registry
from gemm.errors import delivering
from gemm.operands import extra, overlap
from gemm.problem import EXTRA, DeviceView, Operand


def wrap(array: Any, name: str) -> Operand:
    """`array` as a host ndarray (a view where possible) or a DeviceView; `name` is for errors.

    Host memory of other libraries (torch CPU tensors, ...) is shared, not copied; lists and scalars become arrays.
    """
    if type(array) is np.ndarray or isinstance(array, DeviceView):
        return array
    for backend in _with_memory(array):
        with delivering(backend.name):
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


makers: dict[tuple[str, str], Callable[[], Any]] = {}
"""{(library, class of its arrays): loads the module that makes products of those}, which the public face fills in."""


def maker(*arrays: Any) -> Any:
    """The module that makes products of one of the arrays, with `gemm` and `tensordot`; None: gemm itself does.

    It is judged without loading the array's library.
    """
    for (library, name), load in makers.items():
        kind = getattr(sys.modules.get(library), name, ())  # () while another thread imports it
        if any(isinstance(array, kind) for array in arrays):
            return load()
    return None


def wrap_output(array: Any) -> Operand:
    """Like `wrap`, for out, which will be written: refuses what is read-only or would be a copy."""
    operand = wrap(array, "out")
    if isinstance(operand, DeviceView):
        if operand.readonly:
            raise ValueError("out is read-only; pass a writeable array")
        _refuse_broadcast(operand)
        return operand
    # Two views of no elements share nothing to tell by; what has a shape is an array of some library.
    shared = overlap(operand, wrap(array, "out")) if operand.size else hasattr(array, "shape")
    if operand is not array and not shared:
        raise TypeError(f"out must be an array to write to, not {type(array).__name__}")
    if not operand.flags.writeable:
        raise ValueError("out is read-only; pass a writeable array")
    _refuse_broadcast(operand)
    return operand


def _refuse_broadcast(operand: Operand) -> None:
    if operand.size and any(s == 0 and n > 1 for s, n in zip(operand.strides, operand.shape, strict=True)):
        raise ValueError("out is broadcast: several of its elements are one; pass an array of its own")


def _with_memory(array: Any) -> Iterator[Backend]:
    """The backends whose memory `array` may lie in, judged without loading any library."""
    try:  # DLPack first: reading the CUDA Array Interface of a tensor that requires a gradient raises
        where = int(array.__dlpack_device__()[0])
    except (AttributeError, TypeError, ValueError, BufferError):
        where = None
    for name, (types, attributes) in HOLDING.items():
        if where in types or (where is None and any(hasattr(array, each) for each in attributes)):
            yield registry.backend(name)


def like(result: Operand, example: Any) -> Any:
    """`result` in `example`'s library: the owner of a device view, or a host array shared with that library."""
    if isinstance(result, DeviceView):
        with delivering(result.device.key):
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


def conjugated(x: Operand) -> Operand:
    """A conjugated copy of an array of complex numbers. Raises TypeError for one on a device that has no way."""
    if isinstance(x, DeviceView):
        with delivering(x.device.key):
            return registry.backend(x.device.backend).conjugated(x)
    conjugate: np.ndarray = x.conj()
    return conjugate
