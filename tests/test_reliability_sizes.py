"""An axis beyond 2**31 (offsets beyond: conformance/ has them for each kernel), and no leak over many calls."""

import gc
import mmap
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import gemm
from gemm import execute
from gemm.frontend import plan_cache
from gemm.select import probe

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's promised memory and its /proc")
FAR = 2**31


def small_integers(seed, *shape):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def test_an_axis_beyond():
    """k and A's elements are more than 2**31, all the same eight bytes; an exact sum tells how many were added."""
    k, one = FAR + 9, np.ones((1, 1))
    result = gemm.gemm(np.broadcast_to(one, (1, k)), np.broadcast_to(one, (k, 1)), one, beta=2.0, backend="cpu")
    assert result.item() == k + 2.0


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def growth(work, count):
    """Bytes and objects that `count` calls of `work` leave behind; the first tenth may fill caches."""
    for _ in range(count // 10):
        work()
    objects_before, bytes_before = tracked(), resident()
    for _ in range(count):
        work()
    objects = tracked() - objects_before
    return resident() - bytes_before, objects


def tracked():
    """How many objects the collector tracks. It lets go of tuples within tuples one level a collection."""
    for _ in range(4):
        gc.collect()
    return len(gc.get_objects())


MIB = 1 << 20


@pytest.mark.slow
@linux
@pytest.mark.skipif(not plan_cache.built, reason="gemm._memo is not built")
def test_a_million_repeated_calls_leave_nothing():
    a, b = small_integers(6, 4, 4), small_integers(7, 4, 4)
    out = np.empty((4, 4), np.float32)
    left, objects = growth(lambda: gemm.gemm(a, b, out=out), 900_000)
    assert left < 2 * MIB
    assert objects < 100
    left, objects = growth(lambda: gemm.gemm(a, b), 100_000)
    assert left < 2 * MIB
    assert objects < 100


RNG = np.random.default_rng(8)


def calls():
    """One of each kind that takes the long way: new shapes, plans, sizes that need workspaces, refusals."""
    m, n, k = RNG.integers(1, 40, 3).tolist()
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    gemm.gemm(a, b, alpha=float(m))
    gemm.plan(a, b)(a, b)
    with pytest.raises(ValueError, match="columns of a"):
        gemm.gemm(a, np.ones((k + 1, n), np.float32))
    x = np.ones((int(RNG.integers(90, 100)), 70))
    gemm.matmul(x, x.T, backend="cpu")


@pytest.mark.slow
@linux
def test_thousands_of_other_calls_leave_little():
    """What is remembered of products has its limits: 64 sets of options, 4096 choices and launches.

    All of it is full before anything is counted. The search for devices has ended: its end empties it.
    """
    probe.facts()
    for _ in range(6000):
        calls()
    assert execute.launcher.cache_info().currsize == execute.launcher.cache_info().maxsize
    left, objects = growth(calls, 2500)
    assert left < 8 * MIB
    assert objects < 500


@linux
def test_threads_that_come_and_go_leave_nothing():
    a = np.random.default_rng(9).standard_normal((120, 120))
    gemm.set_num_threads(4)
    try:

        def work():
            thread = threading.Thread(target=gemm.matmul, args=(a, a), kwargs={"backend": "cpu"})
            thread.start()
            thread.join()

        left, objects = growth(work, 1500)
    finally:
        gemm.set_num_threads(None)
    assert left < 4 * MIB
    assert objects < 200
