"""The exceptions of the package; mistakes in a call raise ValueError or TypeError instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

PAGES = {
    "cpu": "doctor.md#engine", "opencl": "devices.md#getting-a-device-to-work", "cuda": "devices.md#nvidia",
    "misbehaving": "devices.md#when-a-driver-misbehaves", "cache": "doctor.md#cache",
    "variables": "doctor.md#variables", "threads": "doctor.md#threads", "versions": "doctor.md#versions",
    "engine": "doctor.md#engine", "permissions": "doctor.md#permissions", "drivers": "doctor.md#drivers",
    "android": "devices.md#android-snapdragon-mali-in-termux", "cpus": "devices.md#cpus-through-opencl",
}  # fmt: skip
"""{what something is about, a backend for one: the page and section of the documentation that says more}."""


def link(about: str) -> str:
    """Where the documentation says more of a key of PAGES (others: of devices): its address, or its file in docs/."""
    return f"{_documentation()}/{PAGES.get(about, PAGES['opencl'])}"


@cache
def _documentation() -> str:
    """The address of the documentation in the project's metadata (project.urls); docs where it has none."""
    from importlib import metadata

    try:
        urls = metadata.metadata("gemm").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        urls = []
    named = dict(url.split(", ", 1) for url in urls)
    return str(named.get("Documentation", "docs")).rstrip("/")


class BackendUnavailable(RuntimeError):
    """A backend, target or kernel was asked for by name and cannot run here.

    Attributes:
        backend: what was asked for.
        cause: what is missing or what failed.
        remedy: how to get it, or "" when nothing helps on this machine.
        told: all of that in a line; the error's text has the page of the documentation, too.
    """

    def __init__(self, backend: str, cause: str, remedy: str = "") -> None:
        self.backend, self.cause, self.remedy = backend, cause, remedy
        self.told = f"{backend}: {cause}" + (f". {remedy}" if remedy else "")
        super().__init__(self.told)

    def __str__(self) -> str:
        return f"{self.told} ({link(self.backend.partition(':')[0])})"

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.backend, self.cause, self.remedy)


class KernelFailed(RuntimeError):
    """A kernel did not build, launch or finish on its device; backends turn the errors of their drivers into it.

    Attributes:
        memory: there was no room. Only this call is retried elsewhere: the next, smaller product may fit. Any other
            failure demotes the kernel on that device for the rest of the process.
        lost: the device no longer works: nothing more is tried on it in this process.
        spoilt: an operand is no longer what it was: no other kernel can make up for the failure.
    """

    def __init__(self, message: str, *, memory: bool = False, lost: bool = False, spoilt: bool = False) -> None:
        self.memory, self.lost, self.spoilt = memory, lost, spoilt
        super().__init__(message)

    @classmethod
    def of(cls, error: KernelFailed | MemoryError) -> KernelFailed:
        """What a launch may raise, as one class."""
        return error if isinstance(error, KernelFailed) else cls(str(error) or "out of host memory", memory=True)


@contextmanager
def delivering(name: str) -> Iterator[None]:
    """Turns a failure of `name`, which no other kernel can make up for, into what `gemm` raises."""
    try:
        yield
    except KernelFailed as error:
        if error.spoilt:
            raise RuntimeError(f"{error} ({link('misbehaving')})") from error
        raise MemoryError(str(error)) if error.memory else BackendUnavailable(name, str(error)) from error
