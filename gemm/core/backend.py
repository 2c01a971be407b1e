"""The interface between the backends and the rest of the package. gemm.select and gemm.execute decide which backend
computes a product.
"""

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
from gemm.core.problem import Device, DeviceView, DType, Ints, Operand, Problem

Launch = Callable[..., None]
"""launch(a, b, c, out, alpha, beta) computes out = alpha·a·b + beta·c. c may be None; alpha and beta are numbers.

a is (*batch, m, k), b (*batch, k, n), c and out (*batch, m, n). c is None exactly when beta = 0. c and out have the
kernel's dtype. a and b have the types kernel.inputs if these are set, else the kernel's dtype. Strides may have any
value, negative and zero included (out never has a zero stride over an axis longer than 1). m, n and batch are at least
1; k may be 0. out overlaps neither a nor b; c either does not overlap out, or has exactly the same elements. With host
operands (ndarray), out is complete when the launch returns. With device operands, the launch enqueues the work in order
on the operands' queue.

A launch raises KernelFailed, or MemoryError if the host has too little memory. out is then undefined, and the inputs
are unchanged, unless c is out and KernelFailed.spoilt is set. Other exceptions (e.g. from a signal handler) are not
failures of the kernel and reach the caller.

If `problem.fused` is true, the call is launch(a, b, c, out, alpha, beta, bias); only kernels with Kernel.fuses get such
problems. The launch then computes activation(alpha·a·b + beta·c + bias), with problem.activation, and rounds each step
as gemm.core.epilogue documents. bias has the result's type and shape (1, n) or (m, 1); it is None if problem.bias is
false. bias does not overlap out.
"""


class Converting:
    """A launch that first converts a and b from narrower types to `wide`.

    Attributes:
        native: `launch.native`, for gemm.frontend.plan_cache; None if `launch` has no such attribute.
        wide: the type to which a and b are converted.
    """

    def __init__(self, launch: Launch, dtype: str) -> None:
        self._launch, self.wide = launch, dtype
        self.native = getattr(launch, "native", None)

    def __call__(self, a: Any, b: Any, *rest: Any) -> None:
        self._launch(converted_once(a, self.wide), converted_once(b, self.wide), *rest)


def converted_once(x: np.ndarray, dtype: str) -> np.ndarray:
    """`x` converted to `dtype`. Elements that zero strides repeat are converted once and repeated in the result."""
    once = x[tuple(slice(None) if step else slice(1) for step in x.strides)]
    return np.broadcast_to(once.astype(dtype), x.shape)


@dataclass(frozen=True, eq=False)
class Kept:
    """The owner (DeviceView.owner) of a matrix that `Backend.keep` returned.

    Attributes:
        memory: the array that holds the matrix; an ndarray if the matrix is in host memory. It may be the caller's own
            array.
    """

    memory: Any


class Drivers:
    """The devices of a backend whose drivers do not survive a fork.

    The devices are found once per process. In a process that was forked after its parent had used the drivers, the
    devices are unavailable.

    Args:
        name: name of the backend.
        what: the name of the drivers in messages.
        find: finds the devices or raises BackendUnavailable.
    """

    def __init__(self, name: str, what: str, find: Callable[[], tuple[Device, ...]]) -> None:
        self.name, self._what, self._find = name, what, find
        self._lock = threads.lock()
        self._found: tuple[Device, ...] | BackendUnavailable | None = None
        self._process = 0  # id of the process that first used the drivers; 0: none yet

    def devices(self) -> tuple[Device, ...]:
        """The devices, looked for on the first call.

        Raises BackendUnavailable if there are none, or if this process was forked after its parent had used the
        drivers.
        """
        if self._found is None or self._process != os.getpid():
            with self._lock:
                if not isinstance(self._found, BackendUnavailable):
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
        """The devices that an earlier call of `devices` has found, else (). This does not look for devices."""
        return self._found if isinstance(self._found, tuple) else ()

    def use(self) -> None:
        """Record that this process uses the drivers. Callers must do so before they use the drivers.

        Raises BackendUnavailable if this process was forked after its parent had used the drivers.
        """
        self._process = self._process or os.getpid()
        if self._process != os.getpid():
            raise BackendUnavailable(
                self.name, f"{self._what} was in use when this process was forked, and does not survive a fork",
                'Start processes with multiprocessing.set_start_method("spawn")',
            )  # fmt: skip


class Backend(ABC):
    """A way to run kernels: finds devices, prepares kernels, and recognises arrays in the devices' memory."""

    name: ClassVar[str]
    left_out: Mapping[str, str] = MappingProxyType({})
    """{key of a device that exists but cannot be used: the reason}."""

    @abstractmethod
    def devices(self) -> tuple[Device, ...]:
        """The devices, found once per process. Raises BackendUnavailable with cause and remedy."""

    @abstractmethod
    def launcher(self, kernel: Kernel, device: Device, problem: Problem) -> Launch:
        """Compile or load `kernel` for `device`, and return its launch for `problem`. The caller caches the launch.

        Raises KernelFailed.
        """

    def broken(self) -> list[str]:
        """Texts for users: each names a driver that is installed but cannot be loaded, and the reason."""
        return []

    keeps_alike: ClassVar[bool] = False
    """Whether `keep` packs b in the same way for launches with and without reproducible=True."""

    def keep(self, kernel: Kernel, device: Device, b: Operand, *, reproducible: bool) -> DeviceView:
        """Prepack the matrix `b` for `kernel`, store the result on the device, and return a view of the result.

        Launches of `kernel` accept the view as b. The owner of the view is a Kept. Raises KernelFailed, MemoryError, or
        TypeError if the kernel does not accept a prepacked b.
        """
        raise TypeError(f"{kernel.name}, the kernel for {b.dtype}, does not accept a prepared b")

    def packing(self, kernel: Kernel, shape: tuple[int, int]) -> dict[str, int]:
        """The parameters with which `keep` packs a matrix of `shape` on this machine, in addition to kernel.params.

        With these parameters, the kernel can read the packed matrix on another machine, too.
        """
        return {}

    # Only backends whose devices have memory of their own (catalog.HOLDING) implement the following members.

    overlaps: ClassVar[int] = 0
    """If the host operands and the result of a product have together at least this many bytes, their transfers overlap
    with the arithmetic. 0: transfers and arithmetic never overlap.
    """

    def view(self, array: Any, name: str) -> DeviceView | None:
        """`array` as a DeviceView if its memory belongs to this backend, else None. `name` is for errors.

        This method must not import a device library: if the array belongs to one, that library is already loaded.
        """
        return None

    def empty(self, shape: Ints, like: DeviceView) -> DeviceView:
        """A view of a new, uninitialised, C-ordered array with the dtype and on the device of `like`.

        If possible, the new array is of the same library as the owner of `like`.
        """
        raise TypeError(f"{self.name} has no device memory")

    def returned(self, result: DeviceView, example: Any) -> Any:
        """Return the array of `result`, a view that `empty` made, if possible as an array of `example`'s library."""
        return result.owner

    def conjugated(self, view: DeviceView) -> DeviceView:
        """A conjugated copy of a complex array that `view` covers completely. Raises TypeError if the backend cannot
        conjugate.
        """
        raise TypeError(f'{self.name} cannot compute trans="C"; pass the conjugate, transposed')

    def shared(self, shape: Ints, dtype: DType, device: Device) -> np.ndarray | None:
        """A new host array in memory that `device` uses in place; None if there is no such memory. See `gemm.empty`."""
        return None

    def wraps(self, device: Device) -> int:
        """The alignment in bytes that host arrays need so that `device` uses them in place; 0: `device` always copies
        host arrays.
        """
        return 0

    def copied(self) -> dict[str, dict[str, int]]:
        """Bytes of operands copied in this process: {device key: {kind of copy: bytes}}. See `gemm.copied`."""
        return {}

    def to_device(self, array: np.ndarray, device: Device) -> DeviceView:
        """A C-ordered copy of `array` in device memory, for tests and for timings with device operands."""
        raise TypeError(f"{self.name} has no device memory")

    def to_host(self, view: DeviceView) -> np.ndarray:
        """A copy of `view` on the host, made after all previously enqueued work has finished."""
        raise TypeError(f"{self.name} has no device memory")

    def copies(self, device: Device, nbytes: int) -> list[Callable[[], object]]:
        """Four functions for measurements. Each copies `nbytes` bytes and waits for the end of the copy.

        The copies are, in this order: from ordinary host memory to the device, from the device to ordinary host memory,
        from page-locked host memory to the device, from the device to page-locked host memory.
        """
        raise TypeError(f"{self.name} has no device memory")

    def synchronize(self, device: Device) -> None:
        """Wait until all work that was enqueued on `device` is complete."""
        return  # work in host memory is complete when a launch returns

    # Only backends that can compute one product on several of their devices (catalog.SPREADING) set the following
    # member.

    copying: ClassVar[float] = 0.0
    """Bytes per second that the host's threads can copy between host operands and all devices together."""
