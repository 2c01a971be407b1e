"""NVRTC: kernels of the catalog compiled at run time, for any architecture and without a GPU.

cuda-bindings is imported on first use only. It finds libnvrtc by itself, through cuda-pathfinder: the nvidia-cuda-nvrtc
wheel in site-packages first, then a conda environment, the system's library path and $CUDA_HOME or $CUDA_PATH.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from functools import cache
from typing import Any

from gemm import sources
from gemm.catalog import Kernel
from gemm.errors import KernelFailed


@cache
def bindings(module: str) -> Any:
    """cuda.bindings.`module` ("driver" or "nvrtc")."""
    return importlib.import_module(f"cuda.bindings.{module}")


def _nvrtc(function: Any, *arguments: Any) -> Any:
    status, *result = function(*arguments)
    if status:
        raise KernelFailed(f"{function.__name__}: {getattr(status, 'name', status)}")
    return result[0] if len(result) == 1 else result


@cache
def compiler_version() -> tuple[int, int]:
    """NVRTC's. Raises ImportError without cuda-bindings, RuntimeError without libnvrtc."""
    major, minor = _nvrtc(bindings("nvrtc").nvrtcVersion)
    return int(major), int(minor)


@cache
def supported() -> tuple[int, ...]:
    """The compute capabilities, such as 53 or 90, that the present NVRTC compiles for."""
    return tuple(sorted(_nvrtc(bindings("nvrtc").nvrtcGetSupportedArchs)))


def architecture(kernel: Kernel, capability: int) -> str:
    """What to compile `kernel` for: the very chip, or for one newer than NVRTC the nearest PTX.

    Raises KernelFailed for a chip that this NVRTC no longer knows.
    """
    if capability in supported():
        return f"sm_{capability}" + ("a" if f"sm_{capability}a" in kernel.needs else "")
    older = [known for known in supported() if known <= capability]
    if not older:
        major, minor = compiler_version()
        raise KernelFailed(
            f"NVRTC {major}.{minor} does not compile for sm_{capability}: install an older CUDA major, "
            f'pip install "cuda-bindings==12.*" "nvidia-cuda-nvrtc-cu12==12.*"'
        )
    return f"compute_{older[-1]}"


def options(kernel: Kernel, arch: str) -> tuple[str, ...]:
    """NVRTC's options: the row's parameters as macros, and arithmetic that nothing may relax.

    -use_fast_math and its parts stay away: they flush denormals and contract alpha * acc, against the contract.
    """
    real = {"float32": "float", "float64": "double"}[kernel.dtype]
    macros = [f"-D{name}={value}" for name, value in kernel.params.items() if name.isupper()]
    return (
        f"--gpu-architecture={arch}", f"-DREAL={real}", *macros, "--fmad=false", "--ftz=false", "--ptxas-options=-v",
    )  # fmt: skip


def compile_source(kernel: Kernel, arch: str) -> tuple[bytes, str]:
    """The cubin ("sm_90", "sm_90a") or PTX ("compute_90") of `kernel`, and the compiler's log. Needs no GPU.

    Raises KernelFailed with the log.
    """
    nvrtc = bindings("nvrtc")
    text, name = sources.read(kernel).encode(), kernel.source.rpartition("/")[2].encode()
    program = _nvrtc(nvrtc.nvrtcCreateProgram, text, name, 0, [], [])
    try:
        flags = [option.encode() for option in options(kernel, arch)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        raw = _fill(nvrtc.nvrtcGetProgramLog, program, _nvrtc(nvrtc.nvrtcGetProgramLogSize, program))
        log = raw.rstrip(b"\0").decode(errors="replace").strip()
        if status:
            raise KernelFailed(f"{kernel.name} does not compile for {arch}: {getattr(status, 'name', status)}\n{log}")
        kind = "CUBIN" if arch.startswith("sm_") else "PTX"
        size = _nvrtc(getattr(nvrtc, f"nvrtcGet{kind}Size"), program)
        return _fill(getattr(nvrtc, f"nvrtcGet{kind}"), program, size), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _fill(function: Any, program: Any, size: int) -> bytes:
    buffer = b"\0" * size  # cuda-bindings writes into the bytes object
    _nvrtc(function, program, buffer)
    return buffer


def resources(log: str) -> dict[str, int]:
    """Registers a thread, bytes of shared memory a block and bytes spilled, from the log of a compilation to a cubin.

    Raises ValueError when the log has no such line: "no spills" must never be a misreading.
    """
    used = re.search(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
    if not used or not spills:
        raise ValueError(f"no ptxas report in the log:\n{log}")
    shared = re.search(r"(\d+) bytes smem", log)
    return {
        "registers": int(used[1]), "shared": int(shared[1]) if shared else 0, "spills": sum(map(int, spills)),
    }  # fmt: skip


def cache_entry(kernel: Kernel, arch: str) -> str:
    """The name in the disk cache: all that the image depends on. Images do not depend on the driver."""
    key = "\0".join((sources.read(kernel), *options(kernel, arch), str(compiler_version())))
    return f"cuda-{kernel.name}-{arch}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.bin"
