"""The exceptions of the package; mistakes in a call raise ValueError or TypeError instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
            raise RuntimeError(str(error)) from error
        raise MemoryError(str(error)) if error.memory else BackendUnavailable(name, str(error)) from error
