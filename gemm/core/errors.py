"""The exceptions of the package. Wrong arguments raise ValueError or TypeError instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

PAGES = {
    "cpu": "doctor.md#engine", "opencl": "devices.md#getting-a-device-to-work", "cuda": "devices.md#nvidia",
    "misbehaving": "devices.md#when-a-driver-misbehaves", "cache": "doctor.md#cache",
    "variables": "doctor.md#variables", "threads": "doctor.md#threads", "versions": "doctor.md#versions",
    "engine": "doctor.md#engine", "permissions": "doctor.md#permissions", "drivers": "doctor.md#drivers",
    "android": "devices.md#android-snapdragon-mali-in-termux", "cpus": "devices.md#cpus-through-opencl",
    "gradients": "use.md#gradients",
}  # fmt: skip
"""{topic, e.g. a backend: page#section of the documentation on this topic}."""


def link(about: str) -> str:
    """A link to the documentation on the topic `about`: a URL, or a path in docs/.

    For a topic that is not in PAGES, the link leads to the section on devices.
    """
    return f"{_documentation()}/{PAGES.get(about, PAGES['opencl'])}"


@cache
def _documentation() -> str:
    """The URL of the documentation from the project's metadata (project.urls), or "docs" if the metadata has none."""
    from importlib import metadata

    try:
        urls = metadata.metadata("gemm").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        urls = []
    named = dict(url.split(", ", 1) for url in urls)
    return str(named.get("Documentation", "docs")).rstrip("/")


_MEANT = {"gpu": ("cuda", "opencl")}
"""{a name that users try: the names that they may mean}."""


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """One line that says that `name` is not known, and which names the user may mean.

    These are the most similar names. If no name is similar, they are up to 3 names that contain `name`, else all names
    if there are at most 20. Upper and lower case count as the same.
    """
    import difflib

    asked, names = str(name).lower(), {each.lower(): each for each in known}
    close = [each for each in _MEANT.get(asked, ()) if each in names]
    for cutoff in (0.8, 0.6):
        close = close or difflib.get_close_matches(asked, names, 3, cutoff)
    close = close or [each for each in names if asked in each][:3]
    close = [names[each] for each in close]
    if not close:
        return f"{what} {name!r} is not known" + (f"; use {_either(list(names.values()))}" if len(names) <= 20 else "")
    return f"{what} {name!r} is not known: did you mean {_either(close)}?"


def _either(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


class BackendUnavailable(RuntimeError):
    """A backend, target or kernel was requested by name and cannot run here.

    Attributes:
        backend: the requested name.
        cause: what is missing or what failed.
        remedy: what the user can do, or "" if nothing helps on this machine.
        told: backend, cause and remedy in one line. str(error) also has the link to the documentation.
    """

    def __init__(self, backend: str, cause: str, remedy: str = "") -> None:
        cause = cause.removeprefix(f"{backend}: ")  # another exception of this class may be the cause
        self.backend, self.cause, self.remedy = backend, cause, remedy
        self.told = f"{backend}: {cause}" + (f". {remedy}" if remedy else "")
        super().__init__(self.told)

    def __str__(self) -> str:
        return f"{self.told} ({link(self.backend.partition(':')[0])})"

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.backend, self.cause, self.remedy)


class KernelFailed(RuntimeError):
    """A kernel failed to build, launch or finish on its device. Backends convert the errors of their drivers to this
    class.

    Attributes:
        memory: True: there was too little memory. Other kernels are tried for this product. Later products may still
            use the failed kernel, because they may be smaller. After any other failure, this process does not choose
            the kernel on that device again.
        lost: True: the device no longer works. This process does not use the device again.
        spoilt: True: the failure has changed an operand, so no other kernel can compute the product.
    """

    def __init__(self, message: str, *, memory: bool = False, lost: bool = False, spoilt: bool = False) -> None:
        self.memory, self.lost, self.spoilt = memory, lost, spoilt
        super().__init__(message)

    @classmethod
    def of(cls, error: KernelFailed | MemoryError, *, spoilt: bool = False) -> KernelFailed:
        """Return `error`, which a launch has raised, as a KernelFailed.

        A MemoryError becomes a new KernelFailed with `memory` set. If `spoilt` is true, the result has `spoilt` set.
        """
        found = error if isinstance(error, KernelFailed) else cls(str(error) or "out of host memory", memory=True)
        found.spoilt |= spoilt
        return found


@contextmanager
def delivering(name: str) -> Iterator[None]:
    """Convert a KernelFailed that leaves the block into the exception that `gemm` raises.

    That exception is RuntimeError if an operand was changed, MemoryError if there was too little memory, else
    BackendUnavailable. This is for places where no other kernel can compute the product. `name` is the kernel or
    device, for the message.
    """
    try:
        yield
    except KernelFailed as error:
        if error.spoilt:
            raise RuntimeError(f"{error} ({link('misbehaving')})") from error
        raise MemoryError(str(error)) if error.memory else BackendUnavailable(name, str(error)) from error
