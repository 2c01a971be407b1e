"""NVRTC: compiles kernels of the catalog at run time, for any architecture. No GPU is necessary.

The library libnvrtc comes with the package nvidia-cuda-nvrtc (for GPUs older than sm_75: nvidia-cuda-nvrtc-cu12), with
conda or with a CUDA toolkit. $GEMM_LIBNVRTC overrides the file. gemm finds the library by its file name and loads it
only to compile. A process that finds all its kernels in the disk cache never loads it.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from gemm.catalog import Kernel
from gemm.core import disk_cache, threads
from gemm.core.errors import KernelFailed

log = logging.getLogger("gemm")

Form = Mapping[str, object]
"""{name of a macro: value} for a form, which is a compiled variant of a kernel. These macros select types and layouts.
NVRTC also gets a macro for each upper-case parameter of the kernel (Kernel.params)."""

OLD = 75
"""The oldest compute capability that NVRTC 13 supports."""

_VERSION = re.compile(r"(?:\.so\.|nvrtc64_)(\d+)")
_MINOR = re.compile(r"builtins(?:\.so\.|64_)(\d\d)\.?(\d+)")


class Compiler:
    """One libnvrtc.

    Attributes:
        path: the library's file.
        major: the major CUDA version, or 0 if the file's name does not contain it.
        minor: the minor CUDA version, from the name of the library of builtins next to it; 0 if there is none.
        identity: name, size and modification time of the file. They identify the library before it is loaded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        real = path.resolve()
        found = _VERSION.search(real.name)
        number = int(found[1]) if found else 0
        self.major = number // 10 if number >= 100 else number  # 130 in nvrtc64_130_0.dll (Windows) is 13.0
        names = (_MINOR.search(file.name) for file in real.parent.glob("*nvrtc-builtins*"))
        self.minor = max((int(each[2]) for each in names if each and int(each[1]) == self.major), default=0)
        status = real.stat()
        self.identity = f"{real.name} {status.st_size} {status.st_mtime_ns}"

    @threads.once
    def _library(self) -> Any:
        for part in sorted(self.path.parent.glob("libnvrtc-builtins.so*")):
            with suppress(OSError):
                ctypes.CDLL(str(part))  # load it here: libnvrtc would search only the system's folders
        try:
            library = getattr(ctypes, "WinDLL" if sys.platform == "win32" else "CDLL")(str(self.path))
        except OSError as error:
            raise KernelFailed(f"NVRTC does not load: {error}") from error
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return library

    def _call(self, name: str, *arguments: Any) -> int:
        """Call a function of libnvrtc and return its status: 0, or 6 if the compilation failed.

        Raises KernelFailed for every other error.
        """
        status = int(getattr(self._library, name)(*arguments))
        if status not in (0, 6):
            raise KernelFailed(f"{name}: {self._library.nvrtcGetErrorString(status).decode(errors='replace')}")
        return status

    @threads.once
    def version(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    @threads.once
    def supported(self) -> tuple[int, ...]:
        """The compute capabilities, such as 53 or 90, for which this NVRTC compiles."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", found)
        return tuple(sorted(found))

    def architecture(self, kernel: Kernel, capability: int) -> str:
        """Return the architecture for which to compile `kernel`.

        The result is the GPU's own architecture, such as "sm_90". If the GPU is newer than NVRTC, the result is PTX of
        the nearest older architecture, such as "compute_90". Raises KernelFailed if the GPU is too old for this NVRTC.
        """
        if capability in self.supported:
            return f"sm_{capability}" + ("a" if f"sm_{capability}a" in kernel.needs else "")
        older = [known for known in self.supported if known <= capability]
        if not older:
            major, minor = self.version
            raise KernelFailed(
                f"NVRTC {major}.{minor} does not compile for sm_{capability}: also install an older NVRTC, "
                f'pip install "nvidia-cuda-nvrtc-cu12==12.*"'
            )
        return f"compute_{older[-1]}"

    def compile(self, kernel: Kernel, arch: str, form: Form) -> tuple[bytes, str]:
        """Return the cubin ("sm_90", "sm_90a") or PTX ("compute_90") of `kernel`, and the compiler's log.

        Raises KernelFailed with the log if the kernel does not compile.
        """
        name = kernel.source.rpartition("/")[2].encode()
        included = disk_cache.headers(kernel.source)
        names = (ctypes.c_char_p * len(included))(*(name.encode() for name in included))
        texts = (ctypes.c_char_p * len(included))(*(text.encode() for text in included.values()))
        program = ctypes.c_void_p()
        text = disk_cache.read(kernel).encode()
        self._call("nvrtcCreateProgram", ctypes.byref(program), text, name, len(included), texts, names)
        try:
            flags = [option.encode() for option in options(kernel, arch, form)]
            status = self._call("nvrtcCompileProgram", program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
            report = self._fill("nvrtcGetProgramLog", program).rstrip(b"\0").decode(errors="replace").strip()
            if status:
                raise KernelFailed(f"{kernel.name} does not compile for {arch}:\n{report}")
            kind = "CUBIN" if arch.startswith("sm_") else "PTX"
            return self._fill(f"nvrtcGet{kind}", program), report
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def refused(self, cause: KernelFailed, driver: int) -> KernelFailed:
        """Return the error to raise if the driver does not load an image (a cubin or PTX) of this NVRTC.

        A cubin loads on every driver of NVRTC's major version, but PTX only on drivers that are not older than NVRTC.
        If the driver is older, the result says what to install. Otherwise, and after a lack of memory or the loss of
        the device, the result is `cause`.

        Args:
            cause: the driver's error.
            driver: the driver's CUDA version; 13000 is 13.0.
        """
        newest = driver // 1000, driver % 1000 // 10
        if cause.memory or cause.lost or self.version <= newest:
            return cause
        package = "nvidia-cuda-nvrtc" + f"-cu{newest[0]}" * (newest[0] < 13)
        return KernelFailed(
            f"{cause}: the driver is made for CUDA {newest[0]}.{newest[1]}, NVRTC for {self.version[0]}."
            f'{self.version[1]}; update the driver, or pip install "{package}=={newest[0]}.{newest[1]}.*"'
        )

    def _fill(self, name: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{name}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(name, program, buffer)
        return buffer.raw


@cache
def compilers() -> tuple[Compiler, ...]:
    """Return every libnvrtc that gemm finds, the newest CUDA version first."""
    given = os.environ.get("GEMM_LIBNVRTC")
    if given:
        return (Compiler(Path(given)),)
    found = {path.resolve(): Compiler(path) for path in _libraries()}
    return tuple(sorted(found.values(), key=lambda compiler: -compiler.major))


def _libraries() -> Iterator[Path]:
    """Yield the libnvrtc files in Python packages, conda, CUDA toolkits and the system's library folders."""
    windows = sys.platform == "win32"
    pattern = "nvrtc64_*.dll" if windows else "libnvrtc.so*"
    folders: list[Path] = []
    for entry in sys.path:
        folders += sorted(Path(entry or ".", "nvidia").glob("*/bin/**" if windows else "*/lib"))
    folders += [Path(sys.prefix, "Library/bin" if windows else "lib")]
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), None if windows else "/usr/local/cuda"]
    folders += [Path(home, part) for home in homes if home for part in ("lib64", "bin", "bin/x64")]
    if not windows:
        folders += [Path("/usr/lib", f"{os.uname().machine}-linux-gnu"), Path("/usr/lib64"), Path("/usr/lib")]
    for folder in folders:
        yield from (path for path in sorted(folder.glob(pattern)) if "builtins" not in path.name)


@lru_cache(64)
def compiler(capability: int = 90, driver: int = 0) -> Compiler:
    """Return the newest NVRTC that compiles for the compute capability, and whose code the driver can load.

    Args:
        capability: the GPU's compute capability, such as 90.
        driver: the driver's CUDA version, such as 13000 for 13.0; 0 means any.

    Raises KernelFailed if there is no such NVRTC.
    """
    # A driver loads cubins of every NVRTC whose major CUDA version is not newer than the driver's. It loads PTX only of
    # an NVRTC that is not newer than the driver itself. Such an NVRTC is preferred to others of the same major version.
    newest, minor = driver // 1000, driver % 1000 // 10
    fit = [c for c in compilers() if (not driver or c.major <= newest) and (capability >= OLD or c.major < 13)]
    if not fit:
        wanted = newest if capability >= OLD else 12
        package = "nvidia-cuda-nvrtc" + f"-cu{wanted}" * (0 < wanted < 13)
        versions = ", ".join(str(c.major) for c in compilers())
        found = f"only NVRTC of CUDA {versions}" if versions else "no NVRTC"
        fits = f" for a driver of CUDA {newest}" * bool(driver) + f" and sm_{capability}" * (capability < OLD)
        raise KernelFailed(f'{found} was found{fits}: pip install "{package}"')
    return min(fit, key=lambda c: (-c.major, c.major == newest and c.minor > minor))


def options(kernel: Kernel, arch: str, form: Form) -> tuple[str, ...]:
    """Return NVRTC's options. They define a macro for each upper-case parameter of the kernel and for each entry of
    `form`, and they require strict arithmetic.

    -use_fast_math and the options that it implies are not used. They flush denormals and contract alpha * acc to a
    fused multiply-add, which gemm's numerical contract does not allow.
    """
    macros = {**{name: value for name, value in kernel.params.items() if name.isupper()}, **form}
    level = kernel.params.get("ptxas", 3)
    return (
        f"--gpu-architecture={arch}", "-std=c++17", *(f"-D{name}={value}" for name, value in macros.items()),
        "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--ptxas-options=-v",
        f"--ptxas-options=-O{level}",
    )  # fmt: skip


def cache_entry(kernel: Kernel, capability: int, form: Form, made_by: Compiler) -> str:
    """Return the name of a kernel's image (cubin or PTX) in the disk cache.

    The name contains a hash of everything that determines the image. The image does not depend on the driver.
    """
    texts = [disk_cache.read(kernel), *disk_cache.headers(kernel.source).values()]
    facts = (*options(kernel, str(capability), form), *kernel.needs, made_by.identity)
    key = hashlib.sha256("\0".join((*texts, *facts)).encode())
    return f"cuda-{kernel.name}-sm_{capability}-{key.hexdigest()[:24]}.bin"


def image(kernel: Kernel, capability: int, form: Form, made_by: Compiler, *, anew: bool = False) -> bytes:
    """Return the image that the driver loads (cubin or PTX).

    The image comes from the disk cache. If the cache does not have it, or with `anew`, gemm compiles the kernel and
    stores the image in the cache. Raises KernelFailed.
    """
    entry = cache_entry(kernel, capability, form, made_by)
    found = None if anew else disk_cache.load(entry)
    if found is None:
        found, _ = made_by.compile(kernel, made_by.architecture(kernel, capability), form)
        disk_cache.store(entry, found)
    return found
