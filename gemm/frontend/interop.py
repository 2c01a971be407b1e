"""From whatever the caller holds to operands that backends take, and back to the caller's library."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gemm.backends import registry
from gemm.catalog import HOLDING
from gemm.core.backend import Backend
from gemm.core.errors import delivering
from gemm.core.operands import extra, overlap
from gemm.core.problem import EXTRA, DeviceView, Operand


class Kind(NamedTuple):
    """A class of arrays, and what becomes of its instances.

    Attributes:
        library, name: the class, which is looked for only where its library is loaded.
        read: makes an operand of an array and its name in errors.
        maker: loads the module that makes products of such arrays: its `product` is called for `gemm.gemm`, its
            `tensordot`, if it has one, for `gemm.tensordot`. None: these make them of what `read` returns.
        only_b: which are made elsewhere only if it is b.
    """

    library: str
    name: str
    read: Callable[[Any, str], Operand]
    maker: Callable[[], Any] | None = None
    only_b: bool = False

    def has(self, kind: type) -> bool:
        own = getattr(sys.modules.get(self.library), self.name, None)  # None while another thread imports it
        return isinstance(own, type) and issubclass(kind, own)


def read_any(array: Any, name: str) -> Operand:
    """A view of an array in memory of a backend's own, or an array of NumPy that shares host memory where it can."""
    view = _on_device(array, name)
    return _on_host(array, name) if view is None else view


def _as_it_is(array: Any, _: str) -> Operand:
    operand: Operand = array
    return operand


def _masked(_: Any, name: str) -> Operand:
    raise TypeError(f"{name} is a masked array, whose mask a product would lose; pass {name}.filled(value)")


def _tensor(array: Any, name: str) -> Operand:
    """A tensor of PyTorch; of types that NumPy has not, the bits are read."""
    view = _on_device(array, name)
    if view is not None:
        return view
    kind = str(array.dtype).partition(".")[2]
    if kind not in EXTRA:
        return _on_host(array, name)
    bits = extra(kind, f"{name} is a {kind} tensor")
    return np.asarray(array.view(getattr(sys.modules["torch"], f"int{8 * bits.itemsize}"))).view(bits)


KINDS = [
    Kind("gemm.core.problem", "DeviceView", _as_it_is),
    Kind("numpy.ma", "MaskedArray", _masked),
    Kind("torch", "Tensor", _tensor),
]
"""The classes that need more than `read_any`; the first one that has an array's is taken. The public face adds those
whose products are made by modules above this one."""


@lru_cache(maxsize=256)
def _reader(kind: type) -> Callable[[Any, str], Operand]:
    return next((row.read for row in KINDS if row.has(kind)), read_any)


@lru_cache(maxsize=256)
def maker(function: str, *kinds: type) -> Any:
    """What makes products of operands of these classes, a, b, ...; `function` says which ones. None: gemm itself."""
    for row in KINDS:
        if row.maker is not None and any(map(row.has, kinds[1:2] if row.only_b else kinds)):
            made_by = getattr(row.maker(), function, None)
            if made_by is not None:
                return made_by
    return None


def wrap(array: Any, name: str) -> Operand:
    """`array` as a host ndarray (a view where possible) or a DeviceView; `name` is for errors.

    Host memory of other libraries (torch CPU tensors, ...) is shared, not copied; lists and scalars become arrays.
    """
    kind: type = type(array)
    operand: Operand = array if kind is np.ndarray else _reader(kind)(array, name)
    return operand


def _on_device(array: Any, name: str) -> DeviceView | None:
    for backend in _with_memory(array):
        with delivering(backend.name):
            view = backend.view(array, name)
        if view is not None:
            return view
    return None


def _on_host(array: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} of type {type(array).__name__} is no array: {error}") from error


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
