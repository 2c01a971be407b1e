"""Compile native.c on demand: the loops that call C libraries, and the measurement of the machine's peaks."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np

from .base import Absent

_NAME = "_gemm_peers_native"
_FLAGS = ["-O3", "-ffp-contract=fast", "-Wno-psabi"]


@cache
def native() -> Any:
    """The compiled module, with `ffi` and `lib`. Raises Absent if it cannot be compiled."""
    source = Path(__file__).with_name("native.c").read_text(encoding="utf-8")
    try:
        from cffi import FFI

        builder = FFI()
        builder.cdef(_declarations(source))
        builder.set_source(_NAME, source, extra_compile_args=_FLAGS)
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            return _load(builder.compile(tmpdir=folder))
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
