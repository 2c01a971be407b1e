"""Background work, for which a product need not wait: a search for devices, or the verification of a kernel.

A `Task` is one piece of background work. It has a key and a thread. Several callers that ask for the same key share
one task while it runs. The command line, and calls that name a device, wait for the task. After `PATIENCE` seconds a
log line says that they wait. Other calls do not wait: they choose a kernel by what is known so far.

No lock is held while a task runs. After a fork the child process forgets its parent's tasks, because their threads
do not exist in the child.
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

PATIENCE = 1.0
"""Seconds of waiting after which a log line says what the caller waits for."""
finished: list[Callable[[], None]] = []
"""Functions to call when a task has ended, because cached choices may be out of date."""

_lock = threads.lock()
_running: dict[object, Task] = {}


class _Thread(threading.local):
    """Data of each thread. `waits` is the number of nested `waiting` blocks that the thread is in."""

    waits = 0


this_thread = _Thread()
"""If `this_thread.waits` is not 0, products of this thread wait for tasks even if the call names no device."""


class Task:
    """A piece of background work that runs or has ended.

    Attributes:
        child: the worker (child process) that does the work.
        stopped: this process is ending; the work must stop.
        leave: called when this process ends, to store what has been found so far.
    """

    def __init__(self, key: object, what: str, work: Callable[[Task], None], child: Child) -> None:
        self.child, self.stopped = child, False
        self.leave: Callable[[], None] = lambda: None
        self._key, self._what, self._work = key, what, work
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._begun = True

    def start(self) -> None:
        """Start the work in a thread. If the system can start no thread, `wait` does the work."""
        try:
            threading.Thread(target=self._run, name="gemm-task", daemon=True).start()
        except RuntimeError:
            self._begun = False
            _running.pop(self._key, None)

    def wait(self) -> None:
        """Wait until the work is done. Raises the exception that the work raised."""
        if not self._begun:
            self._begun = True
            self._run()
        if not self._done.wait(PATIENCE):
            log.warning("gemm waits: it %s, once for this machine's drivers; that may take a minute", self._what)
            self._done.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop the work because this process is ending."""
        self.stopped = True
        self.leave()
        self.child.close(patience=0.5)

    def _run(self) -> None:
        try:
            with self.child:
                self._work(self)
        except BaseException as error:  # `wait` raises the error again
            self._error = error
            if not self.stopped:
                log.warning("gemm gave up when it %s: %s", self._what, error)
        finally:
            _running.pop(self._key, None)
            try:
                for callback in () if self.stopped else finished:
                    callback()
            finally:
                self._done.set()


def begin(key: object, what: str, work: Callable[[Task], None]) -> Task:
    """Return the running task with the key `key`. If there is none, start a new task.

    Args:
        what: a description for log lines, such as "verifies ...".
        work: does the work. It must store its result where callers look before they begin a task.
    """
    from gemm.select.worker import Child, timeout

    timeout()  # raises in the caller's thread if the setting is not valid
    with _lock:
        task = _running.get(key)
        if task is None:
            task = _running[key] = Task(key, what, work, Child("gemm.select.probe"))
            task.start()
    return task


@contextmanager
def waiting() -> Iterator[None]:
    """Make this thread's products wait for tasks inside the `with` block, for explanations and measurements."""
    this_thread.waits += 1
    try:
        yield
    finally:
        this_thread.waits -= 1


def _stop() -> None:
    for task in list(_running.values()):
        task.stop()


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)
