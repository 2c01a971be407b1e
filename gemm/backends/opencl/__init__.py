"""The OpenCL backend: runs the OpenCL kernels of the catalog through pyopencl. Its class is in backend.py."""

import logging
import os
import site
import sys
from pathlib import Path

from gemm.core import disk_cache

log = logging.getLogger("gemm")

VENDORS = Path("/etc/OpenCL/vendors")
"""The folder whose .icd files name the OpenCL drivers of a Linux machine."""


def add_intel_runtime() -> None:
    """Let OpenCL find Intel's runtime for CPUs, if pip installed it in this environment (the extra opencl-intel-cpu).

    The .icd file of Intel's package names a folder of the machine that built the package. This function therefore sets
    OCL_ICD_VENDORS to a folder in gemm's cache that contains copies of the machine's .icd files, and one with the right
    path. OpenCL reads the variable when a process first asks for the platforms. The function does nothing if the
    variable is set, if the machine registers Intel's runtime itself, or if there is no cache folder.
    """
    library = intel_library()
    cache = disk_cache.cache_dir() if library and not os.environ.get("OCL_ICD_VENDORS") else None
    if library is None or cache is None:
        return
    files = {file.name: file.read_text(errors="replace") for file in VENDORS.glob("*.icd") if os.access(file, os.R_OK)}
    if any(library.name in text for text in files.values()):
        return
    files["gemm-intel-cpu.icd"] = f"{library}\n"
    folder = cache / f"opencl-vendors-{disk_cache.digest(repr(sorted(files.items())).encode()).hex()[:16]}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, text in files.items():
            if not (folder / name).is_file():
                temporary = folder / f".{name}.{os.getpid()}"
                temporary.write_text(text)
                temporary.replace(folder / name)
    except OSError as error:
        log.warning("gemm does without Intel's OpenCL runtime: %s", error)
    else:
        os.environ["OCL_ICD_VENDORS"] = str(folder)


def intel_library() -> Path | None:
    """The library of Intel's runtime that pip installed for Linux in this environment or for this user, or None."""
    if sys.platform != "linux":
        return None
    roots = [sys.prefix, *([site.getuserbase()] if site.ENABLE_USER_SITE else [])]
    return next((at for root in roots if (at := Path(root, "lib", "libintelocl.so")).is_file()), None)
