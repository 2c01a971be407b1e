"""What a backend offers to the rest of the package. Policy does not live here: see gemm.execute."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from gemm.catalog import Kernel
from gemm.core import threads
from gemm.core.errors import BackendUnavailable
from gemm.core.problem import Device, DeviceView, Operand, Problem

Launch = Callable[..., None]
"""launch(a, b, c, out, alpha, beta): out = alpha·a·b + beta·c, of operands, an operand or None, an operand and numbers.

a is (*batch, m, k), b (*batch, k, n), c and out (*batch, m, n); c is None exactly when beta = 0. All have the
kernel's dtype, any strides (negative and zero ones too; out never has zero strides over axes longer than 1),
m, n and batch ≥ 1; k may be 0. out overlaps neither a nor b; c is disjoint from out or the very same elements.
Host operands (ndarray) are complete in out when it returns; with device operands the work is enqueued in
order on the operands' queue. Raises KernelFailed, or MemoryError where the host has no room, leaving out undefined but
the inputs untouched. What else is raised, by a signal handler say, is no failure of the kernel: it reaches the caller.

Of a `problem.fused`, which only rows that fuse are given: launch(a, b, c, out, alpha, beta, bias) adds the bias, an
operand of the result's type, (1, n) or (m, 1), or None where problem.bias is false, and applies problem.activation:
activation(alpha·a·b + beta·c + bias), each step rounded as gemm.core.epilogue says. bias overlaps out nowhere.
"""


class Converting:
    """`launch` for a and b of narrower types than its `dtype`.

    Attributes:
        native: that of `launch`, for gemm.frontend.plan_cache; None where it has none.
        wide: what a and b are converted to.
    """

    def __init__(self, launch: Launch, dtype: str) -> None:
        self._launch, self.wide = launch, dtype
        self.native = getattr(launch, "native", None)

    def __call__(self, a: Any, b: Any, *rest: Any) -> None:
        self._launch(converted_once(a, self.wide), converted_once(b, self.wide), *rest)


def converted_once(x: np.ndarray, dtype: str) -> np.ndarray:
    """`x` in `dtype`; what it repeats is converted once, and repeated as before."""
    once = x[tuple(slice(None) if step else slice(1) for step in x.strides)]
    return np.broadcast_to(once.astype(dtype), x.shape)


@dataclass(frozen=True, eq=False)
class Kept:
    """What owns a matrix that `Backend.keep` made.

    Attributes:
        memory: the array that holds it, which may be the caller's own: in host memory an ndarray.
    """

    memory: Any


class Drivers:
    """The devices of a backend whose drivers do not survive a fork: found once, and no more in a fork's child.

    Args:
        name: the backend's. what: the drivers', for messages. find: finds them, or raises BackendUnavailable.
    """

    def __init__(self, name: str, what: str, find: Callable[[], tuple[Device, ...]]) -> None:
        self.name, self._what, self._find = name, what, find
        self._lock = threads.lock()
        self._found: tuple[Device, ...] | BackendUnavailable | None = None
        self._process = 0  # that began to use them

    def devices(self) -> tuple[Device, ...]:
        """Raises BackendUnavailable."""
        if self._found is None or self._process != os.getpid():
            with self._lock:
                if isinstance(self._found, BackendUnavailable):
                    raise BackendUnavailable(self._found.backend, self._found.cause, self._found.remedy)
                self.use()
                if self._found is None:
                    try:
                        self._found = self._find()
                    except BackendUnavailable as error:
                        self._found = error
        if isinstance(self._found, BackendUnavailable):
            raise BackendUnavailable(self._found.backend, self._found.cause, self._found.remedy)
        return self._found

    @property
    def known(self) -> tuple[Device, ...]:
        """Those that were found, if they were looked for."""
        return self._found if isinstance(self._found, tuple) else ()

    def use(self) -> None:
        """Before a call of the drivers. Raises BackendUnavailable in a child of a process that had used them."""
        self._process = self._process or os.getpid()
        if self._process != os.getpid():
            raise BackendUnavailable(
                self.name, f"{self._what} was in use when this process was forked, and does not survive that",
                'start it with multiprocessing.set_start_method("spawn")',
            )  # fmt: skip


class Backend(ABC):
    """One way of running kernels: finds devices, prepares kernels, recognises arrays that live there."""

    name: ClassVar[str]
    left_out: Mapping[str, str] = MappingProxyType({})
    """{key: why} of the devices that were found and cannot be used."""

    @abstractmethod
    def devices(self) -> tuple[Device, ...]:
        """The devices, found once a process. Raises BackendUnavailable with cause and remedy."""

    @abstractmethod
    def launcher(self, kernel: Kernel, device: Device, problem: Problem) -> Launch:
        """Compile or load `kernel` for `device`; the caller caches the result. Raises KernelFailed."""

    def broken(self) -> list[str]:
        """Drivers that are installed and do not load, each with why; for people."""
        return []

    keeps_alike: ClassVar[bool] = False
    """Whether `keep` makes the same of b for launches with reproducible=True and for others."""

    def keep(self, kernel: Kernel, device: Device, b: Operand, *, reproducible: bool) -> DeviceView:
        """The matrix `b` as `kernel` reads it, kept on the device; launches of `kernel` take it as b.

        Its owner is a Kept. Raises KernelFailed, MemoryError, TypeError where there is no such thing.
        """
        raise TypeError(f"{kernel.name}, the kernel for {b.dtype}, takes no prepared b")

    # The rest only concerns backends with memory of their own: catalog.HOLDING.

    overlaps: ClassVar[int] = 0
    """Bytes of host operands and result from which they are moved while others are multiplied; 0: never."""

    def view(self, array: Any, name: str) -> DeviceView | None:
        """`array` as a DeviceView if it lives on this backend, else None; `name` is for errors.

        Must not import a device library: an array of such a library means that it is loaded already.
        """
        return None

    def empty(self, shape: tuple[int, ...], like: DeviceView) -> DeviceView:
        """An uninitialised C-ordered array on `like`'s device; its owner is of `like`'s library."""
        raise TypeError(f"{self.name} has no device memory")

    def returned(self, result: DeviceView, example: Any) -> Any:
        """A result that `empty` made, as an array of `example`'s library where that is possible."""
        return result.owner

    def conjugated(self, view: DeviceView) -> DeviceView:
        """A conjugated copy of a whole array of complex numbers. Raises TypeError where there is no way."""
        raise TypeError(f"{self.name} does not conjugate; pass a conjugated array, transposed")

    def shared(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: Device) -> np.ndarray | None:
        """A new host array in memory that `device` uses in place; None where there is none. See `gemm.empty`."""
        return None

    def wraps(self, device: Device) -> int:
        """The alignment from which `device` uses arrays of the host where they lie; 0: it never does."""
        return 0

    def copied(self) -> dict[str, dict[str, int]]:
        """Bytes of operands copied in this process: {device: {how: bytes}}. See `gemm.copied`."""
        return {}

    def to_device(self, array: np.ndarray, device: Device) -> DeviceView:
        """A C-ordered copy of `array` in device memory, for resident timings and tests."""
        raise TypeError(f"{self.name} has no device memory")

    def to_host(self, view: DeviceView) -> np.ndarray:
        """A copy of `view` on the host, after all work that was enqueued before."""
        raise TypeError(f"{self.name} has no device memory")

    def synchronize(self, device: Device) -> None:
        """Wait until everything enqueued on `device` is done."""
        return  # nothing is ever pending in host memory

    # The rest only concerns backends that compute one product on several of their devices: catalog.SPREADING.

    copying: ClassVar[float] = 0.0
    """Bytes a second that the host's threads copy for all devices together, of operands in host memory."""
