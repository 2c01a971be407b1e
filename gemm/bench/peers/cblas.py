"""Peers that are shared libraries with the C interface of BLAS, and the compiled loops of native.c that call them.

native.c, which is compiled when it is first needed, also measures the machine's peaks for benchmarks/cpu_vs_peers.py.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from ctypes import c_int, c_int64
from ctypes.util import find_library
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np

from gemm.bench.peers import Absent, Loop, Peer, Unable, unloadable

BUILT = ""
"""The path of the compiled module, if another process has compiled it."""
_NAME = "_gemm_peers_native"
_FLAGS = ["-O3", "-ffp-contract=fast", "-Wno-psabi"]
_OWN_SYMBOLS = ctypes.DEFAULT_MODE | getattr(os, "RTLD_DEEPBIND", 0)
"""The flags with which libraries are loaded. BLAS libraries define the same symbols, and MKL makes its symbols global.
Without RTLD_DEEPBIND, the cblas_sgemm of BLIS would call MKL's sgemm_."""
_LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
_BYTES = ("uint8", "int8", "int32")
"""The types of a, b and out of MKL's gemm_s8u8s32, which takes the unsigned matrix first if matrices are row-major."""
_THREAD_SETTERS: tuple[tuple[str, Any], ...] = (
    ("MKL_Set_Num_Threads", c_int), ("bli_thread_set_num_threads", c_int64), ("openblas_set_num_threads", c_int),
    ("flexiblas_set_num_threads", c_int), ("armpl_set_num_threads", c_int), ("nvpl_blas_set_num_threads", c_int),
)  # fmt: skip
_MKL_LAYERS = {"INTEL": 0, "SEQUENTIAL": 1, "GNU": 3, "TBB": 4}
_VERSIONS = ("bli_info_get_version_str", "openblas_get_config")


@cache
def native() -> Any:
    """The compiled module, with `ffi` and `lib`. Raises Absent if it cannot be compiled."""
    if BUILT:
        return _load(BUILT)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return _load(build(folder))


def build(folder: str) -> str:
    """Compile native.c in `folder`, and return the path of the module. Raises Absent."""
    source = Path(__file__).with_name("native.c").read_text(encoding="utf-8")
    try:
        from cffi import FFI

        builder = FFI()
        builder.cdef(_declarations(source))
        builder.set_source(_NAME, source, extra_compile_args=_FLAGS)
        return str(builder.compile(tmpdir=folder))
    except Exception as error:  # the errors of setuptools, the compiler and the loader have no common class
        raise Absent(f"native.c does not compile here: {type(error).__name__}: {error}") from error


def _declarations(source: str) -> str:
    """Declarations of native.c's public items: its struct, the loops made by LOOP, and its non-static functions."""
    struct = re.search(r"typedef struct \{.*?\} product;", source, re.S)
    loops = re.findall(r"^(?:LOOP\(|void (?=cblas_\w+\())(\w+)", source, re.M)
    functions = re.findall(r"^(?:int|int64_t) \w+\([^{]*\)(?= \{)", source, re.M)
    lines = [struct.group() if struct else "", *(f"void {name}(const product *, int64_t);" for name in loops)]
    return "\n".join([*lines, *(f"{function};" for function in functions)])


def _load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def address(array: np.ndarray) -> Any:
    """The address of the array's first element as a void pointer of cffi."""
    return native().ffi.cast("void *", array.ctypes.data)


class Cblas(Peer):
    """A library with cblas_sgemm and possibly other functions of the C interface (cblas_dgemm, ...).

    symbol: the format of the functions' names. wide: True if the library's integers have 64 bits, False if 32.
    """

    compiled = True

    def __init__(self, name: str, path: str, symbol: str = "cblas_{}", *, wide: bool = False) -> None:
        self.name, self._symbol, self._bits = name, symbol, 64 if wide else 32
        native()
        try:
            self._library = ctypes.CDLL(path, _OWN_SYMBOLS)
        except OSError as error:
            raise unloadable(path, error) from error
        if not self._function("sgemm"):
            raise Absent(f"{path} lacks {symbol.format('sgemm')}")
        self.batches = bool(self._function("sgemm_batch_strided"))
        setters = ((getattr(self._library, setter, None), kind) for setter, kind in _THREAD_SETTERS)
        self._setter = next(((function, kind) for function, kind in setters if function is not None), None)
        if self._setter is None:
            # The user must limit the library to one thread in the environment. The column "cores" of
            # benchmarks/cpu_vs_peers.py shows if the user forgot.
            self.most_threads = 1
        self.about = f"{self._version()} ({Path(path).name})".strip()

    def _function(self, name: str) -> int | None:
        function = getattr(self._library, self._symbol.format(name), None)
        return function and ctypes.cast(function, ctypes.c_void_p).value

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

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        types = tuple(x.dtype.name for x in (a, b, out))
        letter = _LETTERS.get(types[0], "") if len(set(types)) == 1 else ""
        name = f"{letter}gemm" if letter else "gemm_s8u8s32" if types == _BYTES else "?"
        function = self._function(name + "_batch_strided" * (a.ndim == 3))
        if not function:
            raise Unable("no such function")
        loop = f"cblas_{letter}{self._bits}" if letter else "cblas_u8s8"
        (m, k), n = a.shape[-2:], b.shape[-1]
        (trans_a, lda), (trans_b, ldb), (_, ldc) = map(_layout, (a, b, out))
        steps = [x.strides[0] // x.itemsize if x.ndim == 3 else 0 for x in (a, b, out)]
        compiled = native()
        batch = len(a) if a.ndim == 3 else 0
        sizes = trans_a, trans_b, m, n, k, lda, ldb, ldc
        what = (compiled.ffi.cast("void *", function), *sizes, *steps, batch, *map(address, (a, b, out)))
        return partial(getattr(compiled.lib, loop), compiled.ffi.new("product *", what))


def _layout(x: np.ndarray) -> tuple[int, int]:
    """(CBLAS_TRANSPOSE, leading dimension in elements) of a matrix, or of each matrix of a stack.

    Raises Unable if neither of the last two axes has a stride of one element.
    """
    (rows, columns), (down, right) = x.shape[-2:], (stride // x.itemsize for stride in x.strides[-2:])
    # A matrix of one row may have any row stride, but BLAS demands a leading dimension of at least the row length.
    if right == 1:
        return 111, max(down, columns)
    if down == 1:
        return 112, max(right, rows)
    raise Unable("no axis has stride 1")


def mkl() -> Cblas:
    """MKL from its single dynamic library, in the mkl package of PyPI or in the system.

    $MKL_THREADING_LAYER names the library for MKL's threads. The default is INTEL, or GNU if PyTorch is loaded. PyTorch
    loads libgomp, which also exports the functions of Intel's OpenMP. On the layer INTEL, MKL would then run on both
    runtimes and give WRONG results with two or more threads. If PyTorch is loaded, this function therefore replaces
    INTEL by GNU. (MKL itself also overrides the variable silently.) To time MKL on its own OpenMP, run without PyTorch.

    Raises Absent if MKL cannot be loaded, or if $MKL_THREADING_LAYER has another value than the keys of _MKL_LAYERS.
    """
    with_torch = "torch" in sys.modules
    layer = "GNU" if with_torch else "INTEL"
    asked = os.environ.get("MKL_THREADING_LAYER", layer)
    if asked not in _MKL_LAYERS:
        raise Absent(f"MKL_THREADING_LAYER must be one of {', '.join(_MKL_LAYERS)}, not {asked!r}")
    layer = layer if with_torch and asked == "INTEL" else asked
    folders = [Path(sys.prefix, "lib"), Path(sys.prefix, "Library", "bin")]
    if layer == "INTEL":
        for runtime in _files(folders, "libiomp5.so", "libiomp5md.dll"):
            ctypes.CDLL(runtime)  # MKL needs this runtime, but the loader does not search the runtime's folder
    path = _path(folders, ("libmkl_rt.so*", "mkl_rt*.dll"), "mkl_rt", "pip install mkl")
    try:
        ctypes.CDLL(path).MKL_Set_Threading_Layer(c_int(_MKL_LAYERS[layer]))  # must be the first call of MKL
    except (OSError, AttributeError) as error:
        raise unloadable(path, error) from error
    peer = Cblas("mkl", path)
    peer.about += f", threading layer {layer}{' for PyTorch; alone, INTEL' if with_torch and layer == 'GNU' else ''}"
    return peer


def blis() -> Cblas:
    """BLIS from the system's package (Debian: libblis4-pthread)."""
    places = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
    folders = [Path(place, sub) for place in places for sub in ("blis-pthread", "blis-openmp", "")]
    return Cblas("blis", _path(folders, ("libblis.so.4",), "blis", "apt-get install libblis4-pthread"))


def _files(folders: Iterable[Path], *patterns: str) -> list[str]:
    return [str(path) for folder in folders for pattern in patterns for path in sorted(folder.glob(pattern))]


def _path(folders: Iterable[Path], patterns: Iterable[str], name: str, remedy: str) -> str:
    """The first file in `folders` that matches one of `patterns`, else the library that the loader finds for `name`.

    Raises Absent, with `remedy` in its text, if there is no such library.
    """
    for path in (*_files(folders, *patterns), find_library(name)):
        if path:
            return path
    raise Absent(f"not found; {remedy}")
