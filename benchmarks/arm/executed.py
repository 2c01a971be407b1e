"""Count the instructions of a whole product, with packing and all loops, in QEMU with the plugin count.c."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from .packages import unpack
from .peers import archive
from .tools import Failed, run

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden")
"""Compiler flags that build.py uses, too."""
CC = "aarch64-linux-gnu-gcc"
TYPES = {"s": ("float", 4), "d": ("double", 2)}
"""{letter: (C type, lanes of a 128-bit vector)}."""
CORE = "NEOVERSEN1"
"""The core whose kernels OpenBLAS must use, because OpenBLAS does not recognise QEMU's CPU."""


class Emulator:
    """QEMU with the counting plugin. QEMU is unpacked into `cache` if it is not installed."""

    def __init__(self, cache: Path, scratch: Path) -> None:
        self._plugin = scratch / "count.so"
        run(["gcc", "-O2", "-shared", "-fPIC", "-o", self._plugin, HERE / "count.c"])
        self._qemu, self._environment = shutil.which("qemu-aarch64") or "", {"OPENBLAS_CORETYPE": CORE}
        if not self._qemu:  # Debian's qemu-user-static is not used, because static builds cannot load plugins
            root = unpack(("qemu-user", "libcapstone4", "liburing2"), "amd64", cache)
            self._qemu = str(root / "usr/bin/qemu-aarch64")
            self._environment["LD_LIBRARY_PATH"] = str(root / "usr/lib/x86_64-linux-gnu")
        self._environment |= {"OPENBLAS_NUM_THREADS": "1", "BLIS_NUM_THREADS": "1"}

    def count(self, program: Path, n: int) -> int:
        """The number of instructions of one product of n × n matrices."""
        command = [self._qemu, "-cpu", "cortex-a76", "-plugin", self._plugin, "-d", "plugin", program, str(n)]
        match = re.search(r"executed (\d+)", "".join(run(command, environment=self._environment)))
        if not match or match[1] == "0":
            raise Failed(f"{program.name}: nothing was counted")
        return int(match[1])


def compile_kernel(source: Path, to: Path, compiler: tuple[str, ...] = (CC,)) -> Path:
    """Compile one of this project's kernels to an object file."""
    run([*compiler, *FLAGS, "-I", CSRC, "-c", source, "-o", to])
    return to


CACHES = "64/4,1024,8192"
"""A server core's L1 (KiB/ways), L2 (KiB) and share of L3 (KiB), written as for GEMM_CPU_CACHES."""


def ours(kernel: str, source: Path, scratch: Path) -> Path:
    """Compile a program that multiplies with one kernel of this project and the complete driver."""
    program = scratch / f"product-{kernel}"
    defines = [f"-DT={TYPES[kernel[0]][0]}", f"-DKERNEL={kernel}", f'-DCACHES="{CACHES}"']
    sources = [*sorted((CSRC / "driver").glob("*.c")), source, HERE / "product.c"]
    run([CC, *FLAGS, *defines, "-static", "-I", CSRC, *sources, "-o", program, "-lm", "-lpthread"])
    return program


def theirs(library: str, letter: str, cache: Path, scratch: Path) -> Path:
    """Compile a program that multiplies with another library."""
    program = scratch / f"product-{library}-{letter}"
    defines = [f"-DT={TYPES[letter][0]}", f"-DCBLAS=cblas_{letter}gemm"]
    sources = [HERE / "product.c", archive(library, cache)]
    run([CC, "-O2", *defines, "-static", *sources, "-o", program, "-lm", "-lpthread"])
    return program
