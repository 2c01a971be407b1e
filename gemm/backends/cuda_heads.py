"""Where many device arrays lie, read at once by gemm._cuda (csrc/python/cuda_heads.c), for `gemm.gemm_many`."""

from __future__ import annotations

import ctypes
import importlib
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

from gemm import engine
from gemm.errors import BackendUnavailable

Columns = tuple[Any, Any, Any, Any]
"""Of a, b, c and out: a list or tuple of arrays, one array for all products, or None."""
Read = Callable[[Columns, int, int, int], tuple[int, tuple[int, ...]]]
"""read(columns, start, count, address): (how many products from number `start` on have operands like the first, the
bits that the addresses of their a, b, c and out have); the addresses go to that of a struct gemm_place a product."""

_TENSOR = (
    "aoti_torch_get_data_ptr", "aoti_torch_get_sizes", "aoti_torch_get_strides", "aoti_torch_get_dim",
    "aoti_torch_get_dtype", "aoti_torch_get_device_type", "aoti_torch_get_device_index", "aoti_torch_get_layout",
    "_ZN2at6native6is_negERKNS_6TensorE",
)  # fmt: skip
"""What PyTorch tells of a tensor: stable C functions, and at::native::is_neg as compilers but Microsoft's name it."""


@cache
def _native() -> Any:
    """gemm._cuda, or None where it was not built."""
    try:
        return importlib.import_module("gemm._cuda")
    except ImportError:
        return None


@cache
def _share() -> int:
    """Where the engine's gemm_share is; 0: there is none, and nobody shares."""
    with suppress(BackendUnavailable):
        module = engine.engine()
        return int(module.ffi.cast("uintptr_t", module.ffi.addressof(module.lib, "gemm_share")))
    return 0


@cache
def tensors() -> Read | None:
    """How torch.Tensors are read; None where this PyTorch does not tell of them so."""
    torch, native = sys.modules["torch"], _native()
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if native is None or exchange is None:
        return None
    try:
        library = ctypes.CDLL(torch._C.__file__)  # which also finds what the libraries that it needs have
        found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _TENSOR]
        functions = struct.pack(f"{len(found)}P", *found)
        make = partial(torch.zeros, device="cpu")
        plain = make(3), make(4, 6)[1:, ::2], make(2, 5, requires_grad=True), make(5, 3, 4).transpose(0, 2)
        at = native.handle_at(exchange, functions, plain, torch._neg_view(make(2, 2)))
    except (AttributeError, OSError, ValueError):
        return None

    def read(columns: Columns, start: int, count: int, address: int) -> tuple[int, tuple[int, ...]]:
        return native.read_tensors(torch.Tensor, at, functions, columns, start, count, address, _share())  # type: ignore[no-any-return]

    return read


def arrays(facts: Sequence[str], address: str) -> Read | None:
    """How arrays are read whose attributes `facts` say what they are, and whose attribute `address` says where.

    Attributes' attributes have dots between them.
    """
    native = _native()
    if native is None:
        return None
    paths = tuple(tuple(map(sys.intern, name.split("."))) for name in (*facts, address))

    def read(columns: Columns, start: int, count: int, place: int) -> tuple[int, tuple[int, ...]]:
        return native.read_arrays(paths[:-1], paths[-1], columns, start, count, place)  # type: ignore[no-any-return]

    return read


def independent(address: int, count: int, spans: Sequence[tuple[int, int]], reads_c: bool, room: int) -> bool:
    """Whether so many products may be computed in any order, whose places are at `address`.

    Args:
        spans: bytes before and after the first element that a, b, c and out lie at. reads_c: c, where it is not out.
        room: the address of 32 bytes a product to write to.
    """
    low, high = zip(*spans, strict=True)
    return bool(_native().independent(address, count, low, high, reads_c, room, _share()))
