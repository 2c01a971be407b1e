"""An emulated CUDA machine: a libcuda and a libnvrtc that run CUDA kernels on the CPU, to test them without a GPU.

    eval "$(python -m tests.cuda_machine)"     # in a shell: what follows finds an emulated GPU

See README.md beside this.
"""

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
_PARTS = ("run", "asynchronous", "tensor", "races", "driver", "streams")
_HEADERS = ("machine.h", "kernel.h", "ptx.h")


def build():
    """The folder with libcuda.so.1 and libnvrtc.so.12, made if need be. Raises CalledProcessError, OSError."""
    texts = [path.read_bytes() for path in sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h")])]
    digest = hashlib.sha256(b"\0".join([*texts, Path(__file__).read_bytes()])).hexdigest()
    root = Path(os.environ.get("CUDA_MACHINE_BUILD") or Path(tempfile.gettempdir(), f"cuda-machine-{os.getuid()}"))
    folder = root / digest[:16]
    if (folder / "libnvrtc.so.12").exists():
        return folder
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix="new-") as scratch:
        new = Path(scratch, "made")
        new.mkdir()
        for name in _HEADERS:
            (new / name).write_bytes((HERE / name).read_bytes())
        objects = []
        for part in _PARTS:
            level = ["-O3", "-fno-math-errno", "-fno-trapping-math"] if part == "tensor" else ["-O2"]
            level += ["-mavx2", "-mfma"] if _has_fma() else []
            objects.append(Path(scratch, f"{part}.o"))
            _compile(*level, "-c", HERE / f"{part}.cpp", "-o", objects[-1])
        _compile("-shared", "-Wl,-soname,libcuda-machine.so.1", *objects, "-o", new / "libcuda.so.1", "-ldl")
        compiler = new / "libnvrtc.so.12"
        _compile("-O1", "-shared", HERE / "compiler.cpp", "-o", compiler, "-ldl")
        os.utime(compiler, ns=(0, int(digest[:15], 16) // 1000))  # part of the package's cache keys
        try:
            new.rename(folder)
        except OSError:  # another process was faster
            if not folder.exists():
                raise
    return folder


def environment(capability="9.0", **settings):
    """The variables with which a process finds the emulated GPU: `settings` are those of README.md, sms=2 and so on."""
    folder = build()
    found = {"GEMM_LIBCUDA": folder / "libcuda.so.1", "GEMM_LIBNVRTC": folder / "libnvrtc.so.12"}
    found["CUDA_MACHINE_CAPABILITY"] = capability
    found |= {f"CUDA_MACHINE_{name.upper()}": value for name, value in settings.items()}
    return {name: str(value) for name, value in found.items()}


def _compile(*arguments):
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
    subprocess.run([*command, *map(str, arguments)], check=True)


def _has_fma():
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return " fma " in flags and " avx2 " in flags
