"""Convert the arrays of any library to operands of backends, and results back to the caller's library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gemm.backends import registry
from gemm.catalog import HOLDING
from gemm.core.errors import delivering, link
from gemm.core.operands import extra, overlap
from gemm.core.problem import EXTRA, DeviceView, Operand


class Kind(NamedTuple):
    """A class of arrays, and how gemm handles its instances.

    Attributes:
        library, name: the module and the name of the class. gemm looks the class up only if the module is loaded.
        read: read(array, name) returns the array as an operand; `name` is for errors.
        maker: maker() returns the module that computes products of such arrays. The module may have the functions
            `product`, `tensordot` and `plan`. gemm.gemm, gemm.tensordot and gemm.plan call them for such arrays. None:
            gemm itself multiplies the operand that `read` returns.
        only_b: True: `maker` applies only if b is such an array.
    """

    library: str
    name: str
    read: Callable[[Any, str], Operand]
    maker: Callable[[], Any] | None = None
    only_b: bool = False

    def has(self, kind: type) -> bool:
        # While another thread is importing the library, the module may not have the class yet.
        own = getattr(sys.modules.get(self.library), self.name, None)
        return isinstance(own, type) and issubclass(kind, own)


def read_any(array: Any, name: str) -> Operand:
    """`array` as a DeviceView if it is in a device's memory; else as a NumPy array, which is a view of `array` where
    possible.
    """
    view = _on_device(array, name)
    return _on_host(array, name) if view is None else view


def _masked(_: Any, name: str) -> Operand:
    raise TypeError(f"{name} is a masked array, whose mask a product would lose; pass {name}.filled(value)")


def _tensor(array: Any, name: str) -> Operand:
    """A PyTorch tensor as an operand. A tensor of a type in EXTRA becomes an array of ml_dtypes' type, with the same
    bits.
    """
    if rules := sys.modules.get("torch._dynamo.trace_rules"):
        _untraced(rules)
    torch = sys.modules["torch"]
    if array.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            f"{name} requires a gradient, which gemm does not record; pass {name}.detach(), or call gemm in a "
            f"torch.autograd.Function: {link('gradients')}"
        )
    view = _on_device(array, name)
    if view is not None:
        return view
    kind = str(array.dtype).partition(".")[2]
    if kind not in EXTRA:
        return _on_host(array, name)
    bits = extra(kind, name)
    return np.asarray(array.view(getattr(torch, f"int{8 * bits.itemsize}"))).view(bits)


@lru_cache(1)
def _untraced(rules: Any) -> None:
    """Make torch.compile run gemm's Python functions as they are. Tracing them fails, for example at cffi's objects.

    `rules` is the module torch._dynamo.trace_rules, which is loaded only in programs that use torch.compile.
    """
    with suppress(AttributeError):  # the function is not part of PyTorch's public interface
        rules.add("gemm")


KINDS = [
    Kind("gemm.core.problem", "DeviceView", lambda array, _: array),
    Kind("numpy.ma", "MaskedArray", _masked),
    Kind("torch", "Tensor", _tensor),
]
"""The classes that need more than `read_any`. The first entry that matches an array's class is used. gemm/__init__.py
adds the classes whose products are computed by modules in higher layers.
"""


@lru_cache(256)
def _reader(kind: type) -> Callable[[Any, str], Operand]:
    return next((row.read for row in KINDS if row.has(kind)), read_any)


@lru_cache(256)
def maker(function: str, *kinds: type) -> Any:
    """Look up `function` ("product", "tensordot" or "plan") in the module that handles operands of these classes.

    `kinds` are the classes of a, b, ...; KINDS has the modules. Returns None if there is no such module, or if the
    module lacks the function; gemm itself then handles the operands.
    """
    for row in KINDS:
        if row.maker is not None and any(map(row.has, kinds[1:2] if row.only_b else kinds)):
            made_by = getattr(row.maker(), function, None)
            if made_by is not None:
                return made_by
    return None


def wrap(array: Any, name: str) -> Operand:
    """`array` as a host ndarray (a view where possible) or a DeviceView. `name` is the operand's name in errors.

    Host memory of other libraries (torch CPU tensors, ...) is shared and not copied. Lists and scalars become arrays.
    """
    kind: type = type(array)
    operand: Operand = array if kind is np.ndarray else _reader(kind)(array, name)
    return operand


def _on_device(array: Any, name: str) -> DeviceView | None:
    """`array` as a DeviceView, made by the backend that owns the array's memory; None if no backend owns it.

    Loads no array library.
    """
    # DLPack comes first: the CUDA Array Interface of a tensor that requires a gradient raises an error.
    try:
        where = int(array.__dlpack_device__()[0])
    except (AttributeError, TypeError, ValueError, BufferError):
        where = None
    for backend, (types, attributes) in HOLDING.items():
        if where in types or (where is None and any(hasattr(array, each) for each in attributes)):
            with delivering(backend):
                view = registry.backend(backend).view(array, name)
            if view is not None:
                return view
    return None


def _on_host(array: Any, name: str) -> np.ndarray:
    if array is None:
        raise TypeError(f"{name} is None, not an array")
    try:
        return np.asarray(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} of type {type(array).__name__} is not an array: {error}") from error


def wrap_output(array: Any) -> Operand:
    """`wrap` for out. Raises an error if out is read-only, is broadcast, or would be a copy of the caller's array."""
    operand = wrap(array, "out")
    if isinstance(operand, DeviceView):
        readonly = operand.readonly
    else:
        # `array` is wrapped twice. If the two results overlap, they are views of the caller's array, not copies. Empty
        # results never overlap. If the result is empty, any object with a shape is therefore accepted.
        shared = overlap(operand, wrap(array, "out")) if operand.size else hasattr(array, "shape")
        if operand is not array and not shared:
            raise TypeError(f"out must be an array to write to, not {type(array).__name__}")
        readonly = not operand.flags.writeable
    if readonly:
        raise ValueError("out is read-only; pass a writeable array")
    if operand.size and any(s == 0 and n > 1 for s, n in zip(operand.strides, operand.shape, strict=True)):
        raise ValueError("out is broadcast: several elements share an address; pass an array that is not broadcast")
    return operand


def like(result: Operand, *operands: Any) -> Any:
    """`result` as an array of the operands' library: the library of the first operand that is not a NumPy array.

    A DeviceView becomes an array of the library that owns its memory. A host array becomes an array that shares its
    memory.
    """
    example = operands[0]
    for x in reversed(operands):
        if x is not None and type(x) is not np.ndarray:
            example = x
    if isinstance(result, DeviceView):
        with delivering(result.device.key):
            return registry.backend(result.device.backend).returned(result, example)
    if isinstance(example, np.ndarray) or not hasattr(example, "__dlpack__"):
        # As in np.matmul, the product of two vectors is a scalar.
        return result if result.ndim else result[()]
    if hasattr(example, "__array_namespace__"):
        library = example.__array_namespace__()
    else:
        library = sys.modules[type(example).__module__.partition(".")[0]]
    # NumPy cannot export bfloat16 through DLPack.
    if result.dtype.name == "bfloat16":
        return library.from_dlpack(result.view(np.int16)).view(library.bfloat16)
    return library.from_dlpack(result)


def conjugated(x: Operand) -> Operand:
    """A conjugated copy of a complex array. Raises TypeError if the array is on a device that cannot conjugate."""
    if isinstance(x, DeviceView):
        with delivering(x.device.key):
            return registry.backend(x.device.backend).conjugated(x)
    conjugate: np.ndarray = x.conj()
    return conjugate
