"""Work that a product need not wait for: a search for devices, the verification of a kernel.

An errand has a key and a thread of its own, and runs once at a time, whoever asks for it. Whoever named a device, or
runs the command line, waits for it, and is told so; other products are computed by what is known meanwhile. No lock is
held while one runs. A fork's child has none of its parent's errands: it waits for nothing that it inherited.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gemm.core import threads

if TYPE_CHECKING:
    from gemm.select.worker import Child

log = logging.getLogger("gemm")

PATIENCE = 2.0
"""Seconds of waiting after which a line says what for."""
finished: list[Callable[[], None]] = []
"""What is to be called when an errand has ended: choices may have changed."""

_lock = threads.lock()
_running: dict[object, Errand] = {}
_patient = threading.local()


class Errand:
    """Work that runs, or has run.

    Attributes:
        child: a child process that does it.
        stopped: the process ends; nothing more is to be done.
        leave: called then, to keep what has been found so far.
    """

    def __init__(self, key: object, what: str, work: Callable[[Errand], None], child: Child) -> None:
        self.child, self.stopped = child, False
        self.leave: Callable[[], None] = lambda: None
        self._key, self._what, self._work = key, what, work
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._begun = True

    def start(self) -> None:
        """Begin in a thread; where the system has no more of them, `wait` does the work."""
        try:
            threading.Thread(target=self._run, name="gemm-errand", daemon=True).start()
        except RuntimeError:
            self._begun = False
            _running.pop(self._key, None)

    def wait(self) -> None:
        """Wait until it is done. Raises what the work has raised."""
        if not self._begun:
            self._begun = True
            self._run()
        if not self._done.wait(PATIENCE):
            log.warning("gemm waits: it %s, once for this machine's drivers", self._what)
            self._done.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End it with this process."""
        self.stopped = True
        self.leave()
        self.child.close(patience=0.5)

    def _run(self) -> None:
        try:
            with self.child:
                self._work(self)
        except BaseException as error:  # the one who waits is to have it
            self._error = error
            if not self.stopped:
                log.warning("gemm gave up when it %s: %s", self._what, error)
        finally:
            _running.pop(self._key, None)
            try:
                for told in () if self.stopped else finished:
                    told()
            finally:
                self._done.set()


def begin(key: object, what: str, work: Callable[[Errand], None]) -> Errand:
    """The errand `key`: the one that runs, or a new one.

    Args:
        what: "verifies ...", for people.
        work: does it, and keeps what it finds where others look before they begin one.
    """
    from gemm.select.worker import Child, timeout

    timeout()  # the one who asks hears of a setting that is wrong
    with _lock:
        errand = _running.get(key)
        if errand is None:
            errand = _running[key] = Errand(key, what, work, Child("gemm.select.probe"))
            errand.start()
    return errand


def patient() -> bool:
    """Whether this thread's products wait for errands, though no device is named."""
    return getattr(_patient, "count", 0) > 0


@contextmanager
def waiting() -> Iterator[None]:
    """Have this thread's products wait for errands, as who asks for an explanation or a measurement wants."""
    _patient.count = getattr(_patient, "count", 0) + 1
    try:
        yield
    finally:
        _patient.count -= 1


def _stop() -> None:
    for errand in list(_running.values()):
        errand.stop()


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)
