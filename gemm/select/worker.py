"""Background work, for which a product need not wait, and the child processes that do it.

A `Task` is one piece of background work: a search for devices, or the verification of a kernel. Each task has a key and
a thread. Several callers that ask for the same key share one task while it runs. The command line, and calls that name
a device, wait for the task. If they wait longer than `PATIENCE` seconds, a log line says so. Other calls do not wait:
they choose a kernel by what is known so far. No lock is held while a task runs. After a fork the child process forgets
its parent's tasks, because their threads do not exist in the child.

A worker is a child process that loads drivers, because a driver may abort, hang or compute garbage. The worker process
is `python -m MODULE` and calls `serve`, which answers each request on standard input with lines of JSON. The parent
process holds a `Child` and reads each answer under a time limit. If the worker process died or hung, the next request
starts a new one. A failure therefore costs only the step in which it occurs. The worker of a task that has ended waits
`LINGER` seconds for a further task: it has already loaded Python, the package and the drivers.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm.core import threads

if TYPE_CHECKING:
    import queue
    import subprocess

log = logging.getLogger("gemm")

PATIENCE = 1.0
"""Seconds of waiting after which a log line says what the caller waits for."""
LINGER = 2.0
"""Seconds for which the worker of a task that has ended waits for a further task. Then it is killed."""
finished: list[Callable[[], None]] = []
"""Functions to call when a task has ended, because cached choices may be out of date."""

_lock = threads.lock()
_running: dict[object, Task] = {}
_spare: list[Child] = []
"""The workers of tasks that have ended."""


class _Thread(threading.local):
    """Data of each thread. `waits` is the number of nested `waiting` blocks that the thread is in."""

    waits = 0


this_thread = _Thread()
"""If `this_thread.waits` is not 0, products of this thread wait for tasks even if the call names no device."""


class Task:
    """A piece of background work that runs or has ended.

    Attributes:
        child: the worker (child process) that does the work.
        stopped: whether this process is ending. If so, the work must stop.
        leave: a function that is called when this process ends, to store what the work has found so far.
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
            threading.Thread(target=self._run_and_linger, name="gemm-task", daemon=True).start()
        except RuntimeError:
            self._begun = False
            _running.pop(self._key, None)

    def wait(self) -> None:
        """Wait until the work is done. Raises the exception that the work raised."""
        if not self._begun:
            self._begun = True
            try:
                self._run()
            finally:
                _discard(self.child)
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

    def _run_and_linger(self) -> None:
        try:
            self._run()
        finally:
            time.sleep(LINGER)
            _discard(self.child)

    def _run(self) -> None:
        try:
            self._work(self)
        except BaseException as error:  # `wait` raises the error again
            self._error = error
            if not self.stopped:
                log.warning("gemm gave up when it %s: %s", self._what, error)
        finally:
            _running.pop(self._key, None)
            _spare.append(self.child)
            try:
                for callback in () if self.stopped else finished:
                    callback()
            finally:
                self._done.set()


def begin(key: object, what: str, work: Callable[[Task], None], *, reuse: bool = False) -> Task:
    """Return the running task with the key `key`. If there is none, start a new task.

    Args:
        what: a description for log lines, such as "verifies ...".
        work: the function that does the work. It must store its result where callers look before they begin a task.
        reuse: whether the worker of a task that has ended may do the work. A search for devices needs a new worker,
            because a process looks for devices only once.
    """
    timeout()  # raises in the caller's thread if the setting is not valid
    with _lock:
        task = _running.get(key)
        if task is None:
            task = _running[key] = Task(key, what, work, _spare_or_new() if reuse else Child("gemm.select.probe"))
            task.start()
    return task


def _spare_or_new() -> Child:
    """Return a spare worker that can be used, or a new one. The caller must hold the lock.

    This function does not kill a spare worker that cannot be used, because that may take seconds. The thread of its
    task kills it.
    """
    child = next((child for child in _spare if child.usable), None)
    if child is None:
        return Child("gemm.select.probe")
    _spare.remove(child)
    return child


def _discard(child: Child) -> None:
    """Kill the worker `child` unless another task has taken it."""
    with _lock:
        spare = child in _spare
        if spare:
            _spare.remove(child)
    if spare:
        child.close()


@contextmanager
def waiting() -> Iterator[None]:
    """Make this thread's products wait for tasks inside the `with` block, so that they use all results of the tasks."""
    this_thread.waits += 1
    try:
        yield
    finally:
        this_thread.waits -= 1


@atexit.register
def _stop() -> None:
    for task in list(_running.values()):
        task.stop()
    spare = list(_spare)
    for child in spare:
        child.kill()  # all of them, before the first wait
    for child in spare:
        child.close(patience=0.5)


def _forked() -> None:
    """Forget the parent's tasks and workers. Choices that would hold until a task ends are made again."""
    _spare.clear()
    if _running:
        _running.clear()
        for callback in finished:
            callback()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


Line = dict[str, Any]

_MARK = "gemm-child "
_READY: Line = {"step": "ready"}
_END: Line = {"step": "end"}
STARTING = 120.0
"""Time limit in seconds for Python and the package to load in the worker, before it loads any driver."""
_PACKAGES = Path(__file__).resolve().parents[2]


def timeout() -> float:
    """Return the seconds that a worker may spend in one step without output: $GEMM_PROBE_TIMEOUT or 60.

    Raises ValueError if the setting is not valid.
    """
    return float(threads.setting("GEMM_PROBE_TIMEOUT", "a positive number of seconds", _seconds, 60.0))


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= threading.TIMEOUT_MAX:  # rejects inf and nan, which are no time limits
        raise ValueError
    return seconds


class Child(contextlib.AbstractContextManager["Child"]):
    """The parent's handle of a worker process that answers requests.

    The first request starts the process. The end of the `with` block kills it, because a driver may hang at exit, too.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[str] | None = None
        self._environment: dict[str, str] = {}  # this process's, when it started the worker
        self._lines: queue.SimpleQueue[str | None]

    @property
    def usable(self) -> bool:
        """Whether the worker runs, with the present environment variables."""
        running = self._process is not None and self._process.poll() is None
        return running and self._environment == dict(os.environ)

    def ask(self, request: Any, limit: float) -> Iterator[Line]:
        """Yield the lines of the answer to `request`.

        If the process ends, or is silent for `limit` seconds, the last line is {"step": "died", "cause": ...}. If the
        operating system refuses to start the process, the only line is {"step": "refused", "cause": ...}.
        """
        import queue
        import subprocess

        patience = limit if self._process else max(limit, STARTING)
        try:
            process = self._process = self._process or self._start()
        except (OSError, RuntimeError) as error:  # the system grants no process or no thread
            yield {"step": "refused", "cause": f"did not start: {error}"}
            return
        lines, ended = self._lines, False
        assert process.stdin is not None
        try:
            with contextlib.suppress(OSError):  # the process is dead: reading its answer reports that
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            while True:
                try:
                    text = lines.get(timeout=patience)
                    cause = "" if text is not None else f"ended with status {process.wait(limit)}"
                except (queue.Empty, subprocess.TimeoutExpired):
                    text, cause = None, "hung"
                if text is None:
                    break
                line, patience = json.loads(text), limit
                if line == _END:
                    ended = True
                    return
                if line != _READY:
                    yield line
        finally:
            if not ended:  # the process died, or the caller stopped reading
                self.close()
        yield {"step": "died", "cause": cause}

    def kill(self) -> None:
        """Kill the process, if there is one. `close` waits for its end."""
        if self._process is not None:
            self._process.kill()

    def close(self, patience: float = 5.0) -> None:
        """Kill the process, if there is one, and wait at most `patience` seconds for its end.

        The next request starts a new process.
        """
        import subprocess

        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a hung driver may delay the end of a killed process
            process.wait(patience)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[str]:
        """Start the process. Raises OSError, RuntimeError."""
        import queue
        import subprocess

        if getattr(sys, "frozen", False) or not sys.executable:  # sys.executable would start the program again
            raise RuntimeError("a frozen program has no Python interpreter that could run a child process")
        # Relative entries of the path would load modules from the current folder, which another user may control. The
        # option "-m" adds that folder, too (CWE-427).
        inherited = filter(os.path.isabs, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        path = [str(_PACKAGES), *inherited]
        self._environment = dict(os.environ)
        process = subprocess.Popen(
            [sys.executable, "-c", _START, self._module], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env={**self._environment, "PYTHONPATH": os.pathsep.join(path)},
        )  # fmt: skip
        self._lines = queue.SimpleQueue()
        threading.Thread(target=_read, args=(process, self._lines), daemon=True).start()
        return process


_START = """\
import sys
sys.path[:] = [folder for folder in sys.path if folder]
import runpy
runpy.run_module(sys.argv[1], None, "__main__")
"""
"""A program that runs a module as "-m" does, but without the current folder in the path. The option "-P" would also
leave out that folder, but exists only since Python 3.11. Importing sys is safe because sys is built in."""


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    """Put each line of the worker's answers into `lines`, and None after the last line. Skip what drivers print."""
    assert process.stdout is not None
    with process.stdout as output:
        for text in output:
            _, mark, line = text.partition(_MARK)
            if mark and line.endswith("\n"):  # a killed process may leave half a line
                lines.put(line)
    lines.put(None)


def serve(answer: Callable[[Any], Iterable[Line]]) -> None:
    """Run in the worker process: answer each request on standard input, until the input ends."""

    def say(line: Line) -> None:
        print(_MARK + json.dumps(line), flush=True)

    say(_READY)
    for text in sys.stdin:
        for line in chain(answer(json.loads(text)), [_END]):
            say(line)
