"""Locks: the child of a fork finds each free, an interrupt leaves none held. All of the package's are found here."""

import ast
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers import python

import gemm
from gemm.core import disk_cache, threads

ROOT = Path(gemm.__file__).parent
posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX only")

MAKERS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "cached_property", "Queue"}
"""What holds a lock that a fork's child would find held; cached_property does before Python 3.12."""
ELSEWHERE = {
    ("core/threads.py", "Lock"), ("core/threads.py", "RLock"), ("core/threads.py", "cached_property"),  # the one place
    ("backends/cuda/pinned.py", "BoundedSemaphore"),  # of a GPU in use, which a fork's child does without
}  # fmt: skip


def test_locks_are_made_in_one_place():
    """By `threads.lock` and `threads.once`, which a fork's child finds free."""
    found = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            names = {getattr(called, "attr", None), getattr(called, "id", None)}
            if isinstance(node, ast.ImportFrom) and node.module in ("functools", "threading", "queue"):
                names |= {alias.name for alias in node.names}
            found |= {(path.relative_to(ROOT).as_posix(), name) for name in names & MAKERS}
    assert found <= ELSEWHERE


BEGIN = """
import gc, importlib, os, pkgutil, signal, sys, threading, warnings
import numpy as np
import gemm
from functools import cached_property
from gemm.core import threads
signal.alarm(150)  # what hangs is a failure
for module in pkgutil.walk_packages(gemm.__path__, "gemm."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError:
            pass  # of a package that is not installed
LOCKS = type(threading.Lock()), type(threading.RLock())
small, large, batch = np.ones((9, 9), np.float32), np.ones((300, 300), np.float32), gemm.batching()

def compute():
    assert (gemm.gemm(small, small) == 9).all() and (gemm.gemm(large, large, backend="cpu") == 300).all()
    gemm.plan(large, small[:1].repeat(300, 0)[:, :5])
    with batch:
        waits = gemm.gemm(small, small)
    assert (waits == 9).all()
    with gemm.use():
        assert (np.matmul(large, large) == 300).all()
    try:
        import dask.array
    except ImportError:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lazy = dask.array.ones((30, 30), chunks=10)
        assert (gemm.gemm(lazy, lazy).compute(scheduler="sync") == 30).all()

def kept():
    "All locks that modules of gemm, and objects of its classes, have."
    found = {}
    def note(where, value):
        for each in value if type(value) in (list, tuple) else value.values() if type(value) is dict else [value]:
            if isinstance(each, LOCKS):
                found[id(each)] = where
            elif isinstance(each, cached_property) and hasattr(each, "lock"):
                found[id(each.lock)] = where
    for thing in [*sys.modules.values(), *gc.get_objects()]:
        name = thing.__name__ if type(thing) is type(sys) else getattr(
            thing if isinstance(thing, type) else type(thing), "__module__", None)
        if str(name).partition(".")[0] != "gemm":
            continue
        try:
            values = dict(vars(thing))
        except TypeError:
            values = {}
        for kind in type(thing).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if hasattr(thing, slot):
                    values[slot] = getattr(thing, slot)
        for attribute, value in values.items():
            note(f"{name}: {attribute} of {type(thing).__name__}", value)
    return found

def hold():
    "Has another thread hold every lock; returns what has it release them."
    held, go = threading.Event(), threading.Event()
    def holder():
        mine = list(threads._locks)
        for lock in mine: lock.acquire()
        held.set()
        go.wait()
        for lock in mine: lock.release()
    thread = threading.Thread(target=holder)
    thread.start()
    assert held.wait(20)
    return lambda: (go.set(), thread.join())

def child(work):
    "Forks; the child's work must end well."
    if (pid := os.fork()) == 0:
        try:
            signal.alarm(60)
            work()
        except BaseException:  # whatever it is: this process must not go on as the parent does
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@posix
def test_a_child_computes_though_another_thread_held_every_lock():
    """None that a module or an object of the package keeps is unknown to `threads`."""
    python(
        prelude=BEGIN,
        code="""
        compute()
        registered = {id(lock) for lock in threads._locks}
        strange = {where for lock, where in kept().items() if lock not in registered}
        assert not strange, strange
        assert len(registered) >= 6, registered
        go = hold()
        ended = child(lambda: ([lock.acquire() and lock.release() for lock in threads._locks], compute()))()
        go()
        assert ended == 0
        compute()
        """,
    )


@posix
def test_a_child_of_a_process_with_a_device_goes_on_though_every_lock_was_held():
    """With locks of contexts and of lent memory, too. By name the device is unavailable at once."""
    told = python(
        prelude=BEGIN,
        code="""
        from gemm.core.errors import BackendUnavailable
        try:
            lent = gemm.empty((300, 300), np.float32, "opencl")
        except BackendUnavailable as error:
            print("skip:", error)
            sys.exit(0)
        few = len(threads._locks)
        gemm.gemm(large, large, backend="opencl")
        def refused():
            compute()
            for call in (
                lambda: gemm.gemm(large, large, backend="opencl"), lambda: gemm.empty((3, 3), device="opencl"),
            ):
                try:
                    call()
                except BackendUnavailable as error:
                    assert "forked" in str(error), error
                else:
                    raise AssertionError(call)
        go = hold()
        ended = child(refused)()
        go()
        assert ended == 0
        assert (gemm.gemm(large, large, backend="opencl") == 300).all()
        """,
    )
    if told.startswith("skip: "):
        pytest.skip(told[6:].strip())


@posix
def test_a_file_is_unlocked_though_a_child_of_a_fork_has_it_open(tmp_path):
    import fcntl

    path = tmp_path / "lock"
    with disk_cache._locked(path):
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(write)
            os.read(read, 1)  # until the parent is done
            os._exit(0)
    try:
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(write)
        os.waitpid(pid, 0)
        os.close(read)


@posix
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_an_interrupt_leaves_no_lock_held(make):
    """Wherever in `with lock` it comes."""
    lock, interrupts = threads.lock(make), 0
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        while interrupts < 1500:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4)
                while True:
                    with lock:
                        pass
            except KeyboardInterrupt:
                interrupts += 1
            with ThreadPoolExecutor(1) as other:
                assert other.submit(lock.acquire, blocking=False).result(), interrupts
                other.submit(lock.release).result()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
