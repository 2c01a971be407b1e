"""The limit of threads: one for the process, in force at once, set by hand, environment, affinity or threadpoolctl."""

import os
import sys
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import helpers
import numpy as np
import pytest
from helpers import rand

import gemm
from gemm.frontend import plan_cache

ROOT = Path(__file__).resolve().parents[3]
linux = pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in Linux's /proc")

PRELUDE = """
import os, sys, threading, time
import numpy as np
import gemm
a = np.random.default_rng(0).standard_normal((400, 400)).astype(np.float32)
def product():
    return gemm.matmul(a, a, backend="cpu").tobytes()
def workers():
    before = len(os.listdir("/proc/self/task"))
    product()
    return len(os.listdir("/proc/self/task")) - before
"""


def python(code, prelude=PRELUDE, **environment):
    """What the tests are about is not inherited: the limits of threads."""
    helpers.python(code, prelude=prelude, **{"OPENBLAS_NUM_THREADS": 1, "GEMM_NUM_THREADS": None, **environment})


@pytest.fixture(autouse=True)
def restored():
    yield
    gemm.set_num_threads(None)


def test_set_and_back():
    granted = gemm.get_num_threads()
    assert 1 <= granted <= os.cpu_count()
    gemm.set_num_threads(np.int64(7))
    assert gemm.get_num_threads() == 7
    gemm.set_num_threads(10**30)
    assert gemm.get_num_threads() == 1024
    gemm.set_num_threads(None)
    assert gemm.get_num_threads() == granted


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2", (2,)])
def test_bad_numbers_change_nothing(bad):
    gemm.set_num_threads(3)
    with pytest.raises((ValueError, TypeError), match="count must be a positive integer"):
        gemm.set_num_threads(bad)
    assert gemm.get_num_threads() == 3


@linux
def test_limit_holds_for_what_was_made_before():
    """A plan, a repeated call and a launch that one thread was enough for take more when they may, and less again."""
    python("""
        gemm.set_num_threads(1)
        plan, out = gemm.plan(a, a, backend="cpu"), np.empty_like(a)
        ways = [product, lambda: plan(a, a), lambda: plan(a, a, out=out), lambda: gemm.gemm(a, a, backend="cpu")]
        for way in ways * 3: way()
        assert workers() == 0
        for most, way in enumerate(ways, start=2):
            before = len(os.listdir("/proc/self/task"))
            gemm.set_num_threads(most)
            way()
            assert len(os.listdir("/proc/self/task")) - before == 1, most
    """)


@linux
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2 if sys.platform == "linux" else True, reason="one CPU")
def test_environment_and_affinity():
    python("assert gemm.get_num_threads() == 1; assert workers() == 0", GEMM_NUM_THREADS="1")
    python("assert gemm.get_num_threads() == 2; assert workers() == 1", GEMM_NUM_THREADS="2")
    python("gemm.set_num_threads(3); assert workers() == 2", GEMM_NUM_THREADS="1")
    python("""
        some = os.sched_getaffinity(0)
        most = gemm.get_num_threads()
        os.sched_setaffinity(0, {min(some)})
        assert gemm.get_num_threads() == 1
        assert workers() == 0
        os.sched_setaffinity(0, some)
        assert gemm.get_num_threads() == most
    """)


def test_a_bad_variable_does_not_break_the_import():
    python(
        """
        try:
            product()
        except ValueError as error:
            assert "GEMM_NUM_THREADS" in str(error)
        else:
            raise AssertionError("'many' was taken for a number")
        """,
        GEMM_NUM_THREADS="many",
    )


@linux
def test_a_refused_thread_is_asked_for_again():
    python("""
        import resource
        gemm.set_num_threads(4)
        kept = resource.getrlimit(resource.RLIMIT_NPROC)
        try:
            os.setegid(65534); os.seteuid(65534)  # the limit does not bind root
            resource.setrlimit(resource.RLIMIT_NPROC, (1, kept[1]))
            threading.Thread(target=print).start()
        except RuntimeError:
            pass
        else:
            sys.exit(0)  # it does not bind here
        expected = product()
        assert workers() == 0
        resource.setrlimit(resource.RLIMIT_NPROC, kept)
        time.sleep(1.1)
        assert workers() == 3
        assert product() == expected
    """)


COPIES = (
    PRELUDE
    + """
from contextlib import nullcontext
from gemm.core import engine
from gemm.backends.cuda import pinned as cuda_pinned
source, to = np.random.default_rng(1).standard_normal((1024, 4096)), np.empty((1024, 4096))
def tasks():
    return len(os.listdir("/proc/self/task"))
def copiers():
    before = tasks()
    to[...] = 0
    cuda_pinned.copy(to, source)
    assert np.array_equal(to, source)
    return tasks() - before
"""
)


@linux
@pytest.mark.parametrize(("limit", "started"), [(6, 4), (3, 1), (2, 1), (1, 0)])
def test_copies_have_threads_of_their_own(limit, started):
    python(f"gemm.set_num_threads({limit}); assert (copiers(), copiers(), workers()) == ({started}, 0, {limit - 1})",
           COPIES)  # fmt: skip


@linux
@pytest.mark.parametrize(("limit", "left", "started"), [(8, 4, 2), (8, 2, 1), (8, 0, 0), (2, 1, 0)])
def test_copies_go_on_beside_a_product_by_the_threads_that_it_leaves(limit, left, started):
    python(f"""
        gemm.set_num_threads({limit})
        large = np.random.default_rng(0).standard_normal((3000, 3000))
        done = threading.Event()
        def multiply():
            with engine.leaving({left}):  # one product: between two, all threads would be free
                gemm.matmul(large, large, backend="cpu")
            done.set()
        before = tasks()
        thread = threading.Thread(target=multiply)
        thread.start()
        while {limit} - {left} > 1 and tasks() < before + {limit} - {left}:
            time.sleep(0.001)
        time.sleep(0.02)
        found = copiers()
        assert not done.is_set()
        thread.join()
        assert found == {started} or ({limit} - {left} < 2 and found <= 1), found
    """, COPIES)  # fmt: skip


@linux
def test_copies_in_the_child_of_a_fork():
    python(
        """
        gemm.set_num_threads(4)
        assert copiers() == 2
        if (pid := os.fork()) == 0:
            os._exit(0 if (copiers(), copiers(), workers()) == (2, 0, 3) else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert copiers() == 0
    """,
        COPIES,
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_for_any_number_of_threads(dtype):
    for m, n, k in ((1, 5000, 300), (16, 700, 300), (230, 240, 300), (700, 3, 300), (64, 64, 64)):
        a, b, c = (rand(*shape, dtype=dtype) for shape in ((m, k), (k, n), (m, n)))
        results = set()
        for threads in (1, 2, 3, 16):
            gemm.set_num_threads(threads)
            for beta, out in ((0, None), (0, np.empty((n, m), dtype).T), (0.5, None), (0.5, c.copy())):
                result = gemm.gemm(
                    a, b, out if beta and out is not None else c, alpha=0.3, beta=beta, out=out, backend="cpu"
                )
                results.add((beta, result.tobytes()))
        assert len(results) == 2, (m, n, k)  # one for each beta


def test_limit_changed_while_others_multiply():
    a = np.random.default_rng(2).standard_normal((150, 170))
    expected, stop, wrong = gemm.matmul(a, a.T, backend="cpu").tobytes(), threading.Event(), []

    def multiply():
        while not stop.is_set():
            if gemm.matmul(a, a.T, backend="cpu").tobytes() != expected:
                wrong.append(gemm.get_num_threads())

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(multiply) for _ in range(4)]
        try:
            for turn in range(300):
                gemm.set_num_threads(1 + turn * 7 % 16)
                gemm.matmul(a, a.T, backend="cpu")
        finally:
            stop.set()
        for one in running:
            one.result()
    assert not wrong


@pytest.mark.parametrize("order", ["gemm, threadpoolctl", "threadpoolctl, gemm"])
def test_threadpoolctl_limits_and_restores(order):
    pytest.importorskip("threadpoolctl")
    code = """
        def ours():
            one, = [x for x in threadpoolctl.threadpool_info() if x["internal_api"] == "gemm"]
            assert one["version"] == gemm.__version__ and one["user_api"] == "blas"
            return one["num_threads"]
        before = gemm.get_num_threads()
        assert ours() == before
        for limits in (1, {"blas": 1}):
            with threadpoolctl.threadpool_limits(limits):  # before the first product
                assert ours() == gemm.get_num_threads() == 1
                if sys.platform == "linux": assert workers() == 0
            assert ours() == gemm.get_num_threads() == before
        with threadpoolctl.threadpool_limits(5), threadpoolctl.threadpool_limits(3, user_api="blas"):
            assert ours() == 3
            if sys.platform == "linux": assert workers() == 2
        with threadpoolctl.threadpool_limits(1, user_api="openmp"):
            assert ours() == before
    """
    python(code, prelude=PRELUDE.replace("import gemm", f"import {order}"))


def test_repeated_calls_are_limited_by_what_is_in_force():
    """Through the memo: the same object, other limits, the same bits."""
    if not plan_cache.built:
        pytest.skip("gemm._memo is not built")
    a = np.random.default_rng(3).standard_normal((300, 300))
    results = set()
    for threads in (1, 2, 16, 1, 5):
        gemm.set_num_threads(threads)
        results |= {gemm.gemm(a, a, backend="cpu").tobytes() for _ in range(3)}
    assert len(results) == 1


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this CPython has a GIL")
def test_free_threaded_python_stays_so():
    python("product(); assert not sys._is_gil_enabled()")
