"""What this installation offers: the kernels that can run here, the backends, and libgemm (docs/c-api.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gemm.catalog import BACKENDS, KERNELS, Kernel
from gemm.core.errors import BackendUnavailable
from gemm.select import candidates, probe, verification


@dataclass(frozen=True)
class KernelStatus:
    """The status of a catalog row on this machine.

    Attributes:
        available: whether at least one device of this machine can run the kernel.
        reason: why no device can run the kernel, or "".
        devices: the keys of the devices that can run the kernel.
        untrusted: {device that can run the kernel: why gemm does not choose the kernel there unless it is named}.
            Contains only what is known so far.
    """

    name: str
    backend: str
    target: str
    dtype: str
    available: bool
    reason: str
    devices: tuple[str, ...]
    row: Kernel
    untrusted: Mapping[str, str]


def kernels() -> list[KernelStatus]:
    """The status of each kernel of the catalog on this machine. Loads every backend."""
    found = []
    for row in KERNELS:
        able, reasons, untrusted = [], [], {}
        try:
            for device in probe.devices(row.backend):
                if reason := candidates.unavailable(row, device):
                    reasons.append(reason)
                    continue
                able.append(device.key)
                if cause := verification.known_to_fail(row, device):
                    untrusted[device.key] = cause
        except BackendUnavailable as error:
            reasons.append(error.told)
        reason = "" if able else "; ".join(dict.fromkeys(reasons))
        names = row.name, row.backend, row.target, row.dtype
        found.append(KernelStatus(*names, bool(able), reason, tuple(able), row, untrusted))
    return found


def backends() -> dict[str, str]:
    """{backend: "" if the backend can be used here, else the cause and the remedy}. Loads every backend.

    "hybrid" is not in the result: backend="hybrid" can be used if any backend except "cpu" and "numpy" can be used.
    """
    found = {}
    for name in BACKENDS:
        try:
            probe.devices(name)
            found[name] = ""
        except BackendUnavailable as error:
            found[name] = str(error)
    return found


_PACKAGE = Path(__file__).resolve().parents[1]


def get_include() -> str:
    """The folder of `gemm_cblas.h`, for the option -I of a C compiler."""
    return str(_PACKAGE / "include")


def get_library() -> str:
    """The path of the shared library libgemm, for a C compiler or a loader.

    Raises FileNotFoundError if the package was built without libgemm.
    """
    library = _PACKAGE / "lib" / "libgemm.so"
    if not library.is_file():
        raise FileNotFoundError(f"{library} is not there: build it with `python build.py` in a checkout of gemm")
    return str(library)


def compiler_words() -> str:
    """The options of a C compiler that compile and link a program with libgemm.

    The options include the library's present folder as run path, where the program finds libgemm when it starts.
    """
    import shlex

    folder = str(Path(get_library()).parent)
    return shlex.join([f"-I{get_include()}", f"-L{folder}", f"-Wl,-rpath,{folder}", "-lgemm"])
