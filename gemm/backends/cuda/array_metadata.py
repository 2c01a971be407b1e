"""How arrays of one library are read, as quickly as that library allows: for products like others before."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

from gemm.backends.cuda.api import LEGACY_STREAM
from gemm.backends.cuda.arrays import DeviceArray
from gemm.core.operands import item

Columns = tuple[Any, Any, Any, Any]
"""Of a, b, c and out: a list or tuple of arrays, one array for all products, or None."""


class Reader(NamedTuple):
    """Of one library.

    Attributes:
        facts: what decides a product's launches but for addresses. address: of the first element.
        stream: the one that work on an array belongs on. empty(array)(): a new array like it; several(array)(count): so
            many, which may be slices of one. native: gemm._memo reads them by itself.
    """

    facts: Callable[[Any], Any]
    address: Callable[[Any], int]
    stream: Callable[[Any], int]
    empty: Callable[[Any], Callable[[], Any]]
    several: Callable[[Any], Callable[[int], Any]]
    native: bool = False

    def read(self, columns: Columns, start: int, count: int, place: int) -> tuple[int, tuple[int, ...]]:
        """How many products from number `start` on, at most `count`, have operands like the first, and the bits that
        the addresses of their a, b, c and out have. The addresses go to `place`, a struct gemm_place a product."""
        given = [(operand, column) for operand, column in enumerate(columns) if column is not None]
        to = (ctypes.c_uint64 * (4 * count)).from_address(place)
        before: list[Any] = [None] * 4
        first: list[Any] = [None] * 4
        at, bits, done = [0] * 4, [0] * 4, 0
        kind = in_place = None
        try:
            for done in range(count):
                found = [(operand, item(column, start + done)) for operand, column in given]
                role = columns[2] is not None and columns[3] is not None and found[-1][1] is found[-2][1]
                if kind is None:
                    kind, in_place = found[0][1].__class__, role
                if role != in_place:
                    return done, tuple(bits)
                for operand, x in found:
                    if x is before[operand]:
                        continue
                    if x.__class__ is not kind:
                        return done, tuple(bits)
                    facts = self.facts(x)
                    if first[operand] is None:
                        first[operand] = facts
                    elif facts != first[operand]:
                        return done, tuple(bits)
                    before[operand], at[operand] = x, self.address(x)
                for operand, _ in given:
                    to[4 * done + operand] = at[operand]
                    bits[operand] |= at[operand]
        except Exception:  # of an array that is none: the long way tells what it is
            return done, tuple(bits)
        return count, tuple(bits)


@cache
def module() -> Any:
    """gemm._memo, or None where it was not built."""
    try:
        return importlib.import_module("gemm._memo")
    except ImportError:
        return None


def _exchanged(kind: type) -> bool:
    """Whether gemm._memo reads arrays of this class from now on, by their library's functions in C."""
    exchange = getattr(kind, "__dlpack_c_exchange_api__", None)
    if exchange is None or module() is None:
        return False
    try:
        module().reads(kind, exchange)
    except ValueError:  # another version of the exchange than ours
        return False
    return True


def _torch() -> Reader:
    torch = sys.modules["torch"]
    current = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def facts(x: Any) -> Any:
        return x.shape, x.stride(), x.dtype, x.get_device(), x.is_neg(), x.is_conj()

    def stream(x: Any) -> int:
        return current(x.get_device()) or LEGACY_STREAM  # type: ignore[misc]

    def slow_stream(x: Any) -> int:
        return torch.cuda.current_stream(x.device).cuda_stream or LEGACY_STREAM

    def empty(x: Any) -> Callable[[], Any]:
        return partial(torch.empty, tuple(x.shape), dtype=x.dtype, device=x.device)

    def several(x: Any) -> Callable[[int], Any]:
        rows, *rest = x.shape
        make = partial(torch.empty, dtype=x.dtype, device=x.device)
        return lambda count: make((count * rows, *rest)).unsafe_split(rows)  # to autograd arrays of their own

    used = slow_stream if current is None else stream
    return Reader(facts, torch.Tensor.data_ptr, used, empty, several, _exchanged(torch.Tensor))


def _cupy() -> Reader:
    cupy = sys.modules["cupy"]

    def facts(x: Any) -> Any:
        return x.shape, x.strides, x.dtype, x.device.id

    def stream(x: Any) -> int:
        return cupy.cuda.get_current_stream(x.device.id).ptr or LEGACY_STREAM

    def empty(x: Any) -> Callable[[], Any]:
        def made() -> Any:
            with cupy.cuda.Device(x_device):
                return cupy.empty(shape, dtype)

        x_device, shape, dtype = x.device.id, x.shape, x.dtype
        return made

    def several(x: Any) -> Callable[[int], Any]:
        def made(count: int) -> Any:
            with cupy.cuda.Device(x_device):
                return list(cupy.empty((count, *shape), dtype))

        x_device, shape, dtype = x.device.id, x.shape, x.dtype
        return made

    return Reader(facts, lambda x: int(x.data.ptr), stream, empty, several)


def _own() -> Reader:
    def empty(x: DeviceArray) -> Callable[[], Any]:
        return partial(DeviceArray, x.shape, x.dtype, x.device)

    def several(x: DeviceArray) -> Callable[[int], Any]:
        make = empty(x)
        return lambda count: [make() for _ in range(count)]

    return Reader(
        lambda x: (x.shape, x.dtype, x.device.key), lambda x: int(x._address), lambda x: LEGACY_STREAM, empty, several,
    )  # fmt: skip


known: dict[type, Reader | None] = {}


def reader(kind: type) -> Reader | None:
    """For arrays of just that class; None: they go the long way."""
    if kind not in known:
        makers = {("torch", "Tensor"): _torch, ("cupy", "ndarray"): _cupy}
        make = makers.get((kind.__module__.partition(".")[0], kind.__name__), _own if kind is DeviceArray else None)
        known[kind] = make() if make else None
    return known[kind]
