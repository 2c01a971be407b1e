"""Peers that are shared libraries with the C interface of BLAS, called through ctypes.

A ctypes call of fourteen arguments costs about 1.4 µs. They are converted beforehand, yet what is left outweighs the
product below about 32³; so `empty` gives the same call for a product of no elements, which the library leaves at once.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from ctypes import c_double, c_float, c_int, c_int64, c_void_p
from ctypes.util import find_library
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .base import Absent, Call, Peer

_ROW_MAJOR, _NO_TRANS = c_int(101), c_int(111)
_THREAD_SETTERS: tuple[tuple[str, Any], ...] = (
    ("MKL_Set_Num_Threads", c_int), ("bli_thread_set_num_threads", c_int64), ("openblas_set_num_threads", c_int),
    ("flexiblas_set_num_threads", c_int), ("armpl_set_num_threads", c_int), ("nvpl_blas_set_num_threads", c_int),
)  # fmt: skip
_MKL_LAYERS = {"INTEL": 0, "SEQUENTIAL": 1, "GNU": 3, "TBB": 4}
_VERSIONS = ("bli_info_get_version_str", "openblas_get_config")


class Cblas(Peer):
    """Any library with cblas_sgemm and cblas_dgemm of 32-bit integers."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        try:
            # RTLD_LOCAL, ctypes' default: several libraries here define the same symbols.
            # PyDLL keeps the GIL: there is no other Python thread to give it to, and giving it costs.
            self._library = ctypes.PyDLL(path)
            self._functions = {"float32": self._library.cblas_sgemm, "float64": self._library.cblas_dgemm}
        except (OSError, AttributeError) as error:
            raise Absent(f"{path}: {error}") from error
        strided: Iterator[Any] = (getattr(self._library, f"cblas_{letter}gemm_batch_strided", None) for letter in "sd")
        self._strided = dict(zip(("float32", "float64"), strided, strict=True))
        self.batches = None not in self._strided.values()
        setters = ((getattr(self._library, setter, None), kind) for setter, kind in _THREAD_SETTERS)
        self._one: dict[str, np.ndarray] = {}
        self._setter = next(((function, kind) for function, kind in setters if function is not None), None)
        if self._setter is None:
            self.most_threads = 1  # which the environment must have seen to; "cores" in the results shows it
        self.about = f"{self._version()} ({path})".strip()

    def _version(self) -> str:
        if hasattr(self._library, "mkl_get_version_string"):
            text = ctypes.create_string_buffer(200)
            self._library.mkl_get_version_string(text, c_int(len(text)))
            return text.value.decode(errors="replace").strip()
        for name in _VERSIONS:
            if hasattr(self._library, name):
                function = getattr(self._library, name)
                function.restype = ctypes.c_char_p
                return f"{name.partition('_')[0].replace('bli', 'BLIS')} {(function() or b'').decode()}"
        return ""

    def set_threads(self, count: int) -> None:
        if self._setter:
            function, kind = self._setter
            function(kind(count))

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Call:
        (m, k), n = a.shape[-2:], b.shape[-1]
        if a.ndim == 3:
            return partial(self._strided[a.dtype.name], *_arguments(m, n, k, (a, b, out), strided=True))
        return partial(self._functions[a.dtype.name], *_arguments(m, n, k, (a, b, out)))

    def empty(self, dtype: str) -> Call:
        one = self._one.setdefault(dtype, np.ones((1, 1), dtype))
        return partial(self._functions[dtype], *_arguments(0, 0, 0, (one, one, one)))


def _arguments(m: int, n: int, k: int, arrays: tuple[np.ndarray, ...], *, strided: bool = False) -> list[Any]:
    """What cblas_?gemm takes for row-major a, b, out, in ctypes' objects; or cblas_?gemm_batch_strided."""
    number = c_float if arrays[0].dtype == np.float32 else c_double
    operands = []
    for array, columns in zip(arrays, (k, n, n), strict=True):
        stride = [c_int(array[0].size)] if strided else []
        operands.append([c_void_p(array.ctypes.data), c_int(max(1, columns)), *stride])
    a, b, out = operands
    sizes = (_ROW_MAJOR, _NO_TRANS, _NO_TRANS, c_int(m), c_int(n), c_int(k))
    return [*sizes, number(1), *a, *b, number(0), *out, *([c_int(len(arrays[0]))] if strided else [])]


def mkl() -> Cblas:
    """MKL by its single dynamic library, from the mkl package of PyPI or the system.

    $MKL_THREADING_LAYER is INTEL by default, but GNU beside PyTorch, whose libgomp answers Intel's calls too: MKL on
    both gives WRONG results from two threads on. (It evades that itself, overriding the variable in silence.) So MKL
    on its own OpenMP is timed without PyTorch.
    """
    beside = "torch" in sys.modules
    layer = "GNU" if beside else "INTEL"
    asked = os.environ.get("MKL_THREADING_LAYER", layer)
    if asked not in _MKL_LAYERS:
        raise Absent(f"MKL_THREADING_LAYER must be one of {', '.join(_MKL_LAYERS)}, not {asked!r}")
    layer = layer if beside and asked == "INTEL" else asked
    folders = [Path(sys.prefix, "lib"), Path(sys.prefix, "Library", "bin")]
    for runtime in _in_folders(folders, "libiomp5.so", "libiomp5md.dll") if layer == "INTEL" else ():
        ctypes.CDLL(runtime)  # beside MKL, where the loader does not look by itself
    found = [*_in_folders(folders, "libmkl_rt.so*", "mkl_rt*.dll"), find_library("mkl_rt")]
    path = _first(found, "pip install mkl")
    try:
        ctypes.CDLL(path).MKL_Set_Threading_Layer(c_int(_MKL_LAYERS[layer]))  # before any other call, or too late
    except (OSError, AttributeError) as error:
        raise Absent(f"{path}: {error}") from error
    peer = Cblas("mkl", path)
    peer.about += f", threading layer {layer}{' for PyTorch; alone, INTEL' if beside and layer == 'GNU' else ''}"
    return peer


def blis() -> Cblas:
    """BLIS as the system's package installs it (Debian: libblis4-pthread)."""
    places = [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"), Path("/usr/lib64")]
    found = [*_in_folders([p / sub for p in places for sub in ("blis-pthread", "blis-openmp", "")], "libblis.so.4"),
             find_library("blis")]  # fmt: skip
    return Cblas("blis", _first(found, "apt-get install libblis4-pthread, or --library blis=PATH"))


def _in_folders(folders: list[Path], *patterns: str) -> list[str]:
    return [str(path) for folder in folders for pattern in patterns for path in sorted(folder.glob(pattern))]


def _first(paths: list[str | None], remedy: str) -> str:
    for path in paths:
        if path:
            return path
    raise Absent(f"not found; {remedy}")
