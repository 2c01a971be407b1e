"""cublasLt through ctypes: the algorithms that its heuristics propose for the products of the comparison."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from ctypes import c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from gemm.backends.cuda.arrays import DeviceArray

from .products import Family

_TYPES = {"float32": 0, "float64": 1, "float16": 2, "int8": 3, "int32": 10, "bfloat16": 14, "float8_e4m3fn": 28}
"""Values of cudaDataType_t."""
_COMPUTE = {"float32": 68, "float64": 70, "int32": 72, "tf32": 77}
"""Values of cublasComputeType_t by the type of the sums. "tf32" stands for float32 sums of factors rounded to TF32."""
_OFFERS = 16
_WORKSPACE = 64 << 20


class _Offer(ctypes.Structure):
    """The C struct cublasLtMatmulHeuristicResult_t."""

    _fields_ = (("algorithm", c_uint64 * 8), ("workspace", c_size_t), ("state", c_int), ("waves", c_float),
                ("reserved", c_int * 4))  # fmt: skip


class Absent(Exception):
    """The library is missing, or lacks this product. The text says why."""


def _find() -> Any:
    folders = [Path(entry, "nvidia") for entry in sys.path]
    files = [file for folder in folders for file in sorted(folder.glob("*/lib/libcublasLt.so.*"))]
    for name in [*map(str, files), "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise Absent("libcublasLt is not here: pip install nvidia-cublas")


class CublasLt:
    """A cublasLt handle and workspace on a device."""

    def __init__(self, device: Any) -> None:
        self._library = _find()
        self._handle = c_void_p()
        with device.handle:
            self._call("Create", ctypes.byref(self._handle))
        self._library.cublasLtGetVersion.restype = c_size_t
        self.version = int(self._library.cublasLtGetVersion())
        self._workspace = DeviceArray((_WORKSPACE,), "uint8", device)
        self._one: dict[str, Any] = {}
        self._zero: dict[str, Any] = {}
        for kind, number in (("float32", c_float), ("float64", ctypes.c_double), ("int32", c_int)):
            self._one[kind], self._zero[kind] = number(1), number(0)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"cublasLt{name}")(*arguments)
        if status:
            raise Absent(f"cublasLt{name}: status {status}")

    def _layout(self, kind: str, rows: int, columns: int, batch: int) -> c_void_p:
        """The layout of contiguous column-major matrices."""
        layout = c_void_p()
        self._call("MatrixLayoutCreate", ctypes.byref(layout), _TYPES[kind], c_uint64(rows), c_uint64(columns),
                   c_int64(rows))  # fmt: skip
        if batch:
            self._set("MatrixLayout", layout, 5, c_int(batch))
            self._set("MatrixLayout", layout, 6, c_int64(rows * columns))
        return layout

    def _set(self, what: str, handle: c_void_p, attribute: int, value: Any) -> None:
        self._call(f"{what}SetAttribute", handle, attribute, ctypes.byref(value), c_size_t(ctypes.sizeof(value)))

    def offers(
        self, family: Family, product: tuple[int, int, int, int], a: Any, b: Any, out: Any, stream: int
    ) -> list[Callable[[], None]]:
        """Functions that enqueue out = a·b, one for each algorithm, the most promising first.

        Raises Absent if cublasLt has no algorithm for this product.

        A row-major matrix is the transpose of a column-major matrix. Hence cublasLt computes outᵀ = bᵀ·aᵀ, with b as
        the first operand.
        """
        batch, m, n, k = product
        sums = "float32" if family.out in ("bfloat16", "float16") else family.out
        description, preference = c_void_p(), c_void_p()
        compute = _COMPUTE[family.peer or sums]
        self._call("MatmulDescCreate", ctypes.byref(description), compute, _TYPES[sums])
        if family.turned:
            self._set("MatmulDesc", description, 3, c_int(1))  # transpose the first operand, which is b
        shape = (k, n) if family.turned else (n, k)
        layouts = [self._layout(family.dtype, *shape, batch), self._layout(family.dtype, k, m, batch),
                   self._layout(family.out, n, m, batch)]  # fmt: skip
        self._call("MatmulPreferenceCreate", ctypes.byref(preference))
        self._set("MatmulPreference", preference, 1, c_uint64(_WORKSPACE))
        found, count = (_Offer * _OFFERS)(), c_int()
        self._call("MatmulAlgoGetHeuristic", self._handle, description, *layouts, layouts[2], preference, _OFFERS,
                   found, ctypes.byref(count))  # fmt: skip
        if not count.value:
            raise Absent("cublasLt offers nothing for this product")
        addresses = [c_void_p(x.__cuda_array_interface__["data"][0]) for x in (b, a, out, self._workspace)]
        one, zero = (ctypes.byref(x[sums]) for x in (self._one, self._zero))

        def way(offer: _Offer) -> Callable[[], None]:
            def enqueue() -> None:
                self._call(
                    "Matmul", self._handle, description, one, addresses[0], layouts[0], addresses[1], layouts[1],
                    zero, addresses[2], layouts[2], addresses[2], layouts[2], ctypes.byref(offer.algorithm),
                    addresses[3], c_size_t(_WORKSPACE), c_void_p(stream),
                )  # fmt: skip

            return enqueue

        return [way(offer) for offer in found[: count.value] if not offer.state]
