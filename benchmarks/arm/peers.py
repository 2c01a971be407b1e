"""OpenBLAS and BLIS for AArch64, as Debian compiles them, and their kernels by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .packages import unpack
from .tools import llvm, run

PACKAGES = ("libopenblas-pthread-dev", "libblis-pthread-dev")
KERNELS = {"OpenBLAS": r"{}gemm_kernel_(\w+)", "BLIS": r"bli_{}gemm_(armv8a_asm_\w+)"}
"""{library: pattern of its kernels' names, to be formatted with the letter of the type}."""
ARCHIVES = {"OpenBLAS": "openblas-pthread/libopenblas.a", "BLIS": "blis-pthread/libblis.a"}


def archive(library: str, cache: Path) -> Path:
    """The path of the library's static archive."""
    return unpack(PACKAGES, "arm64", cache) / "usr/lib/aarch64-linux-gnu" / ARCHIVES[library]


def kernels(library: str, letter: str, cache: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    """(name, object file) of each kernel of the library for a type, "s" or "d". The files are written to `scratch`."""
    path = archive(library, cache)
    symbols, _ = run([llvm("llvm-nm"), "-A", "--defined-only", path])
    pattern = re.compile(rf":([^:]+\.o): \w+ T {KERNELS[library].format(letter)}$")
    for line in symbols.splitlines():
        if match := pattern.search(line):
            run([llvm("llvm-ar"), "x", path, match[1]], cwd=scratch)
            yield match[2], scratch / match[1]
