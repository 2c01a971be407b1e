"""Through the public face: forks and pools of processes and threads, interrupts, and memory that is not to be had."""

import itertools
import multiprocessing
import os
import sys
import textwrap
import threading

import helpers
import numpy as np
import pytest
from helpers import ROOT, at_once, rand, run

import gemm

posix = pytest.mark.skipif(os.name != "posix", reason="POSIX only")

WORKERS = """
import multiprocessing, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import gemm
def operands(seed=0, n=260):
    return np.random.default_rng(seed).standard_normal((2, n, n))
def product(seed=0):
    a, b = operands(seed)
    return gemm.matmul(a, b, backend="cpu").tobytes()
def products(seed):
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(product, [seed] * 8))
    assert len(found) == 1
    return found.pop()
gemm.set_num_threads(4)
"""


def python(code, folder, **environment):
    """Runs WORKERS (a module that children import, too) and `code` in a new interpreter, which must end well."""
    (folder / "workers.py").write_text(WORKERS)
    script = folder / "script.py"
    body = textwrap.indent(textwrap.dedent(code), "    ")
    script.write_text(f"from workers import *\nif __name__ == '__main__':\n{body}")
    return run(script, PYTHONPATH=os.pathsep.join([str(ROOT), str(folder)]), OPENBLAS_NUM_THREADS=1, **environment)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("used", [False, True])
def test_pools_of_processes(method, used, tmp_path):
    """Children that start before or after the parent's first product; both go on, and so do children's children."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"{method} is not offered here")
    python(
        f"""
        expected = product() if {used} else None
        context = multiprocessing.get_context("{method}")
        with context.Pool(2) as pool:
            first = pool.map(product, range(4))
            assert product() == first[0] and expected in (None, first[0])
            assert pool.map(products, range(4)) == first
            assert [product(seed) for seed in range(4)] == first
        one = context.Process(target=products, args=(0,))
        one.start(); one.join(100)
        assert one.exitcode == 0
        """,
        tmp_path,
    )


@posix
def test_forks_while_others_multiply(tmp_path):
    """The child of a fork goes on though the parent's other threads were in the middle of a product."""
    python(
        """
        expected, stop = product(), threading.Event()
        def busy():
            while not stop.is_set():
                assert product() == expected
        threads = [threading.Thread(target=busy) for _ in range(3)]
        for thread in threads: thread.start()
        try:
            for turn in range(15):
                if (pid := os.fork()) == 0:
                    os._exit(0 if product() == expected and products(0) == expected else 1)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, turn
        finally:
            stop.set()
            for thread in threads: thread.join()
        assert product() == expected
        """,
        tmp_path,
    )


def test_nested_pools_of_joblib(tmp_path):
    """loky's processes, each with threads of joblib, each product with threads of its own."""
    pytest.importorskip("joblib")
    python(
        """
        from joblib import Parallel, delayed
        from workers import product
        def nested(seed):
            return Parallel(2, backend="threading")(delayed(product)(seed) for _ in range(3))
        expected = [product(seed) for seed in range(4)]
        for backend in ("loky", "threading", "multiprocessing"):
            found = Parallel(2, backend=backend)(delayed(nested)(seed) for seed in range(4))
            assert found == [[one] * 3 for one in expected], backend
        """,
        tmp_path,
    )


@pytest.mark.parametrize("backend", ["cpu", "auto"])
def test_sixty_four_threads_at_once(backend):
    """Each with products of its own, of all sizes, by calls and by one plan that all share; every bit as alone."""
    cases = []
    for m, n, k, dtype in itertools.product((1, 8, 97), (8, 101, 900), (8, 190), ("float32", "float64")):
        a, b = rand(m, k, dtype=dtype), rand(k, n, dtype=dtype)
        cases.append((a, b, gemm.plan(a, b, backend="cpu"), gemm.matmul(a, b, backend="cpu")))
    start = threading.Barrier(64)

    def work(seed):
        start.wait()
        for turn in range(12):
            a, b, plan, expected = cases[(seed + turn) % len(cases)]
            out = np.full_like(expected, np.nan)
            result = plan(a, b, out=out) if turn % 3 else gemm.gemm(a, b, out=out, backend=backend)
            if turn % 3 or backend == "cpu":
                assert result.tobytes() == expected.tobytes()
            else:
                np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3)

    gemm.set_num_threads(4)
    try:
        at_once(work, range(64))
    finally:
        gemm.set_num_threads(None)


@posix
def test_interrupts_leave_a_usable_library(tmp_path):
    """KeyboardInterrupt comes when the product that runs is done; what follows is right."""
    python(
        """
        expected = product()
        a, b = operands(1, 700)
        whole = gemm.matmul(a, b, backend="cpu").tobytes()
        interrupts = 0
        for delay in (0.001, 0.003, 0.01, 0.02):
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)  # on a busy machine it may come at once
                while True:
                    assert gemm.matmul(a, b, backend="cpu").tobytes() == whole
            except KeyboardInterrupt:
                interrupts += 1
            assert product() == expected and products(0) == expected
        assert interrupts == 4
        """,
        tmp_path,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS binds on Linux")
def test_no_memory_for_packing(tmp_path):
    """MemoryError, `out` (also where it is c) as it was, the next product right."""
    python(
        """
        import mmap, resource
        gemm.set_num_threads(1)
        wide = operands(0, 2400)[:, ::2, ::2]  # strides that must be packed
        name = gemm.plan(*wide, backend="cpu").kernel  # by name: no other way may stand in
        expected, small = gemm.gemm(*wide, kernel=name).tobytes(), product()
        out = np.full((1200, 1200), 5.0)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        kept = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 16), kept[1]))
        held = []
        try:
            while True: held.append(bytearray(1 << 16))  # what the allocator still has
        except MemoryError:
            pass
        try:
            mmap.mmap(-1, 1 << 20)
        except OSError:
            pass
        else:
            print("skip: RLIMIT_AS does not bind here"); sys.exit(0)
        refused = 0
        for _ in range(3):
            for options in ({}, {"c": out, "beta": 1.0}):
                try:
                    gemm.gemm(*wide, out=out, kernel=name, **options)
                except MemoryError:
                    refused += 1
        resource.setrlimit(resource.RLIMIT_AS, kept)
        held.clear()
        assert refused == 6, refused
        assert (out == 5).all()
        assert gemm.gemm(*wide, out=out, kernel=name).tobytes() == expected and product() == small
        """,
        tmp_path,
        MALLOC_ARENA_MAX="1",
    )


FORKED = """
import os, signal, sys, logging
import numpy as np
import gemm
from gemm.backends import registry
from gemm.core.errors import BackendUnavailable
try:
    device = registry.backend("opencl").devices()[0]
except BackendUnavailable as error:
    print("skip:", error)
    sys.exit(0)
import pyopencl.array as cla
a = np.ones((40, 40), np.float32)
resident = cla.to_device(device.handle.queue, a)
mapped = gemm.empty((300, 300), np.float32, device.key)
plan, prepared = gemm.plan(a, a, backend="opencl"), gemm.prepare(a, backend="opencl")
for _ in range(3):  # the later ones are repeated
    plan(a, a), gemm.gemm(a, prepared), gemm.gemm(a, a, backend="opencl"), gemm.gemm(resident, resident)
def raised(call):
    try:
        call()
    except BackendUnavailable as error:
        return "forked" in str(error)
calls = {
    "named": lambda: gemm.gemm(a, a, backend="opencl"), "plan": lambda: plan(a, a),
    "prepared": lambda: gemm.gemm(a, prepared), "resident": lambda: gemm.gemm(resident, resident),
    "empty": lambda: gemm.empty((300, 300), np.float32, device.key),
    "prepare": lambda: gemm.prepare(a, backend="opencl"),
}
if (pid := os.fork()) == 0:
    signal.alarm(60)
    wrong = [name for name, call in calls.items() if not raised(call)]
    assert (gemm.gemm(a, a) == 40).all()
    print(wrong, file=sys.stderr)
    del mapped
    os._exit(bool(wrong))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert (gemm.gemm(a, a, backend="opencl") == 40).all()
"""


@posix
def test_opencl_in_a_child_of_a_process_that_used_it_is_unavailable_at_once(tmp_path):
    """By name; `auto` computes on the CPU. The parent goes on."""
    helpers.python(FORKED)
