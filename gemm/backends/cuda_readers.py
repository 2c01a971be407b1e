"""How arrays of one library are read, as quickly as that library allows: for products like others before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gemm.backends import cuda_heads
from gemm.backends.cuda_api import LEGACY_STREAM
from gemm.backends.cuda_arrays import DeviceArray
from gemm.backends.cuda_heads import Columns, Read
from gemm.operands import item


class Reader(NamedTuple):
    """Of one library.

    Attributes:
        facts: what decides a product's launches but for addresses. address: of the first element.
        stream: the one that work on an array belongs on. empty(array)(): a new array like it; several(array)(count): so
            many, which may be slices of one. read: of many arrays at once; None: there is no way.
    """

    facts: Callable[[Any], Any]
    address: Callable[[Any], int]
    stream: Callable[[Any], int]
    empty: Callable[[Any], Callable[[], Any]]
    several: Callable[[Any], Callable[[int], Any]]
    read: Read | None


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
    return Reader(facts, torch.Tensor.data_ptr, used, empty, several, cuda_heads.tensors())


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

    return Reader(facts, lambda x: int(x.data.ptr), stream, empty, several, _cupy_heads())


def _cupy_heads() -> Read | None:
    facts = "shape", "dtype", "data.device_id"
    dense, strided = (cuda_heads.arrays((*facts, more), "data.ptr") for more in ("_c_contiguous", "strides"))
    if dense is None or strided is None:
        return None

    def read(columns: Columns, start: int, count: int, address: int) -> tuple[int, tuple[int, ...]]:
        first = [item(x, start) for x in columns if x is not None]
        whole = all(getattr(x, "_c_contiguous", False) for x in first)  # which is told sooner than strides
        return (dense if whole else strided)(columns, start, count, address)

    return read


def _own() -> Reader:
    def empty(x: DeviceArray) -> Callable[[], Any]:
        return partial(DeviceArray, x.shape, x.dtype, x.device)

    def several(x: DeviceArray) -> Callable[[int], Any]:
        make = empty(x)
        return lambda count: [make() for _ in range(count)]

    return Reader(
        lambda x: (x.shape, x.dtype, x.device.key), lambda x: int(x._address), lambda x: LEGACY_STREAM, empty, several,
        cuda_heads.arrays(("shape", "dtype", "device.key"), "_address"),
    )  # fmt: skip


known: dict[type, Reader | None] = {}


def reader(kind: type) -> Reader | None:
    """For arrays of just that class; None: they go the long way."""
    if kind not in known:
        makers = {("torch", "Tensor"): _torch, ("cupy", "ndarray"): _cupy}
        make = makers.get((kind.__module__.partition(".")[0], kind.__name__), _own if kind is DeviceArray else None)
        known[kind] = make() if make else None
    return known[kind]
