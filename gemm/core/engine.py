"""The C engine gemm._cpu and its limit of threads, which holds for the whole process.

The limit is a number that was set, by `set_num_threads` or through threadpoolctl, or else what is granted: the quota of
the control groups and GEMM_NUM_THREADS as they were when the package was imported, and the CPUs that the calling thread
may run on at the moment of the product.
"""

from __future__ import annotations

import importlib
import operator
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count, takewhile
from typing import Any

from gemm.core import threads
from gemm.core.errors import BackendUnavailable
from gemm.core.version import VERSION

REMEDY = "Install the package and run outside of its checkout, or build it in place: pip install -e ."

_left = threading.local()
"""count: how many CPUs this thread's products leave to others."""


def engine() -> Any:
    """The extension module, with `ffi` and `lib`. Raises BackendUnavailable if it is not there."""
    try:
        return importlib.import_module("gemm._cpu")
    except ImportError as error:
        built = error.name != "gemm._cpu"
        cause = f"cannot be loaded ({error})" if built else "is not built"
        raise BackendUnavailable("cpu", f"the C extension gemm._cpu {cause}", REMEDY) from error


def identity() -> str:
    """Of the extension module's file: every build has another one. Nothing is loaded."""
    from importlib.util import find_spec

    try:
        found = find_spec("gemm._cpu")
        status = os.stat(str(found and found.origin))
    except (OSError, ValueError):  # not built
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def features() -> frozenset[str]:
    """What the CPU can do, whatever GEMM_CPU_ISA lets the backend use of it. Raises BackendUnavailable."""
    ffi, lib = engine().ffi, engine().lib
    names = takewhile(lambda name: name != ffi.NULL, map(lib.gemm_feature_names.__getitem__, count()))
    return frozenset(ffi.string(name).decode() for bit, name in enumerate(names) if lib.gemm_features() >> bit & 1)


def get_num_threads() -> int:
    """The most threads that a product on the CPU may use if this thread calls for it now, the calling one included.

    Raises BackendUnavailable without the C extension.
    """
    return int(engine().lib.gemm_get_num_threads())


def set_num_threads(count: int | None) -> None:
    """Limit the threads of every product of this process on the CPU, the calling thread included.

    It takes effect with the next product, also of plans made before, and never changes a bit of a result. More than
    there are cores are allowed, up to 1024; small products use fewer.

    Args:
        count: a positive number, or None for what is granted: affinity, control groups and GEMM_NUM_THREADS.

    Raises:
        TypeError, ValueError: `count` is no positive integer. BackendUnavailable: there is no C extension.
    """
    if count is not None:
        try:
            count = operator.index(count)
        except TypeError:
            raise TypeError(f"count must be a positive integer or None, not {count!r}") from None
        if count < 1:
            raise ValueError(f"count must be a positive integer or None, not {count}")
    engine().lib.gemm_set_num_threads(min(count or 0, threads.MOST))


@contextmanager
def leaving(count: int) -> Iterator[None]:
    """Let the products of this thread leave `count` more of their threads' CPUs to others, but one; the limit stays."""
    lib, before = engine().lib, getattr(_left, "count", 0)
    _left.count = before + count
    lib.gemm_leave_threads(_left.count)
    try:
        yield
    finally:
        _left.count = before
        lib.gemm_leave_threads(before)


def start() -> None:
    """Load the engine, if it is there, with what is granted, and make it known to threadpoolctl.

    Done when the package is imported: limits that threadpoolctl sets hold for libraries that are loaded by then.
    """
    with suppress(BackendUnavailable, ValueError):  # said by the first product that needs the engine
        engine().lib.gemm_grant_threads(threads.granted())
        _register()


def _register() -> None:
    """Add the engine to what threadpoolctl controls, if that is installed."""
    try:
        import threadpoolctl
    except ImportError:
        return
    if not hasattr(threadpoolctl, "register"):  # older than 3.2
        return

    class GemmController(threadpoolctl.LibController):  # type: ignore[misc]  # Any where threadpoolctl is absent
        user_api = "blas"  # so that who limits BLAS around workers of his own limits this, too
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
