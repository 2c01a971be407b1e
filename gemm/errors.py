"""The exceptions of the package; mistakes in a call raise ValueError or TypeError instead."""

from __future__ import annotations


class BackendUnavailable(RuntimeError):
    """A backend, target or kernel was asked for by name and cannot run here.

    Attributes:
        backend: what was asked for.
        cause: what is missing or what failed.
        remedy: how to get it, or "" when nothing helps on this machine.
    """

    def __init__(self, backend: str, cause: str, remedy: str = "") -> None:
        self.backend, self.cause, self.remedy = backend, cause, remedy
        super().__init__(f"{backend}: {cause}" + (f". {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.backend, self.cause, self.remedy)


class KernelFailed(RuntimeError):
    """A kernel did not build, launch or finish on its device.

    `choose` demotes the kernel on that device for the rest of the process. When `memory` is true only
    this call is retried elsewhere: the next, smaller product may fit.
    """

    def __init__(self, message: str, *, memory: bool = False) -> None:
        self.memory = memory
        super().__init__(message)
