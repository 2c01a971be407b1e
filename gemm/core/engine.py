"""The C engine gemm._cpu and its limit on threads, which applies to the whole process.

The limit is the number that `set_num_threads` or threadpoolctl has set. If neither has set a number, the limit is the
minimum of three numbers: the CPU quota of the control groups and GEMM_NUM_THREADS, both read when the package is
imported, and the number of CPUs on which the calling thread may run at the time of the product.
"""

from __future__ import annotations

import importlib
import operator
import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count, takewhile
from typing import Any

from gemm.core import VERSION, threads
from gemm.core.errors import BackendUnavailable

REMEDY = "Install the package and run outside of its checkout, or build it in place: pip install -e ."

limiting: list[Callable[[], None]] = []
"""Functions that `set_num_threads` calls after the result of `limited` has changed."""
_limit_set = False

_left = threading.local()
"""`_left.count` is the number of CPUs that the products of this thread leave to other work."""


def engine() -> Any:
    """The extension module, with `ffi` and `lib`. Raises BackendUnavailable if it cannot be imported."""
    try:
        return importlib.import_module("gemm._cpu")
    except ImportError as error:
        built = error.name != "gemm._cpu"
        cause = f"cannot be loaded ({error})" if built else "is not built"
        raise BackendUnavailable("cpu", f"the C extension gemm._cpu {cause}", REMEDY) from error


def identity() -> str:
    """An identifier of the extension module's file, different for each build. Does not load the module."""
    from importlib.util import find_spec

    try:
        found = find_spec("gemm._cpu")
        status = os.stat(str(found and found.origin))
    except (OSError, ValueError):  # the extension is not built
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def features() -> frozenset[str]:
    """The features of the CPU, including those that GEMM_CPU_ISA hides from the backend. Raises BackendUnavailable."""
    ffi, lib = engine().ffi, engine().lib
    names = takewhile(lambda name: name != ffi.NULL, map(lib.gemm_feature_names.__getitem__, count()))
    return frozenset(ffi.string(name).decode() for bit, name in enumerate(names) if lib.gemm_features() >> bit & 1)


def cpu_name() -> str:
    """The name of the CPU's model as the operating system reports it."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:  # the file has an entry for each CPU; use the first
            name, _, model = line.partition(":")
            if name.strip() in ("model name", "Hardware", "cpu model") and model.strip():
                return model.strip()
    return platform.processor() or platform.machine()


def get_num_threads() -> int:
    """The most threads, including the calling thread, that a CPU product of this thread may use now.

    Raises BackendUnavailable without the C extension.
    """
    return int(engine().lib.gemm_get_num_threads())


def set_num_threads(count: int | None) -> None:
    """Limit the number of threads of every CPU product of this process. The calling thread counts as one of them.

    The limit applies from the next product on, also to products of existing plans. It never changes a bit of a result.
    The limit may exceed the number of cores, up to 1024. Small products use fewer threads.

    Args:
        count: a positive number. None restores the default, which follows from affinity, control groups and
            GEMM_NUM_THREADS.

    Raises:
        TypeError, ValueError: `count` is not a positive integer.
        BackendUnavailable: there is no C extension.
    """
    if count is not None:
        try:
            count = operator.index(count)
        except TypeError:
            raise TypeError(f"count must be a positive integer or None, not {count!r}") from None
        if count < 1:
            raise ValueError(f"count must be a positive integer or None, not {count}")
    global _limit_set
    engine().lib.gemm_set_num_threads(min(count or 0, threads.MOST))
    limit_set = count not in (None, threads.cores())
    if _limit_set != limit_set:
        _limit_set = limit_set
        for notify in limiting:
            notify()


def limited() -> bool:
    """Whether the user has limited the threads: with `set_num_threads`, to a number other than the number of cores, or
    with GEMM_NUM_THREADS. Other libraries do not know this limit.
    """
    return _limit_set or bool(os.environ.get("GEMM_NUM_THREADS"))


@contextmanager
def leaving(count: int) -> Iterator[None]:
    """Inside the block, products of this thread leave `count` more CPUs to other work, but use at least one CPU.

    The limit of `set_num_threads` does not change.
    """
    lib, before = engine().lib, getattr(_left, "count", 0)
    _left.count = before + count
    lib.gemm_leave_threads(_left.count)
    try:
        yield
    finally:
        _left.count = before
        lib.gemm_leave_threads(before)


def start() -> None:
    """Load the engine if possible, tell it the granted number of threads, and register it with threadpoolctl.

    `import gemm` calls this function, because threadpoolctl only limits libraries that are already loaded.
    """
    with suppress(BackendUnavailable, ValueError):  # the first product that needs the engine reports these errors
        engine().lib.gemm_grant_threads(threads.granted())
        _register()


def _register() -> None:
    """Register the engine with threadpoolctl, if threadpoolctl is installed."""
    try:
        import threadpoolctl
    except ImportError:
        return
    if not hasattr(threadpoolctl, "register"):  # threadpoolctl older than 3.2
        return

    class GemmController(threadpoolctl.LibController):  # type: ignore[misc]  # Any if threadpoolctl is absent
        user_api = "blas"  # a program that limits the threads of all BLAS libraries then also limits this engine
        internal_api = "gemm"
        filename_prefixes = ("_cpu.",)
        check_symbols = ("gemm_get_num_threads",)

        def get_num_threads(self) -> int:
            return int(self.dynlib.gemm_get_num_threads())

        def set_num_threads(self, num_threads: int) -> None:
            self.dynlib.gemm_set_num_threads(num_threads)

        def get_version(self) -> str:
            return VERSION

    threadpoolctl.register(GemmController)
