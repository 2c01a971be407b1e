"""Fast access to array metadata: type, shape, strides and address of a library's arrays, for repeated products.

A `Reader` reads the metadata of one library's arrays.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

from gemm.backends.cuda.api import LEGACY_STREAM
from gemm.backends.cuda.arrays import DeviceArray


class Reader(NamedTuple):
    """The functions that read array metadata of one library.

    Attributes:
        facts: facts(array) returns all metadata that determines the launches of a product, except the address.
        address: address(array) returns the address of the first element.
        stream: stream(array) returns the stream on which work on the array must be enqueued.
        empty: empty(array)() returns a new array with the type, shape and device of `array`.
        several: several(array)(count) returns `count` such arrays, which may be slices of one array.
        native: whether gemm._memo (C) reads this library's metadata without these functions.
    """

    facts: Callable[[Any], Any]
    address: Callable[[Any], int]
    stream: Callable[[Any], int]
    empty: Callable[[Any], Callable[[], Any]]
    several: Callable[[Any], Callable[[int], Any]]
    native: bool = False


@cache
def module() -> Any:
    """Return the module gemm._memo, or None if it was not built."""
    try:
        return importlib.import_module("gemm._memo")
    except ImportError:
        return None


def _exchanged(kind: type) -> bool:
    """Make gemm._memo read arrays of this class through their library's C functions (DLPack's exchange API).

    Return False if this is not possible.
    """
    exchange = getattr(kind, "__dlpack_c_exchange_api__", None)
    if exchange is None or module() is None:
        return False
    try:
        module().reads(kind, exchange)
    except ValueError:  # gemm does not know this version of the exchange API
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
        return lambda count: make((count * rows, *rest)).unsafe_split(rows)  # autograd sees independent arrays

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
    """Return the Reader for arrays of exactly this class. None: products of such arrays always take the full path."""
    if kind not in known:
        makers = {("torch", "Tensor"): _torch, ("cupy", "ndarray"): _cupy}
        make = makers.get((kind.__module__.partition(".")[0], kind.__name__), _own if kind is DeviceArray else None)
        known[kind] = make() if make else None
    return known[kind]
