"""NumPy's own thread pool beside ours, in threads and in forks: nothing hangs, and no threads are added for good."""

from pathlib import Path

import pytest
from helpers import run

CODE = """
import os, threading, time
import numpy as np
import gemm

a = np.ones((300, 300), np.float32)

def both(times):
    for _ in range(times):
        assert (a @ a == 300).all()
        assert (gemm.gemm(a, a, backend="cpu") == 300).all()

def crowd():
    threads = [threading.Thread(target=both, args=(10,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

def count():
    return len(os.listdir("/proc/self/task"))

def grown(most):
    for _ in range(500):  # a thread that was joined may be on its way out still
        if count() <= most:
            return False
        time.sleep(0.01)
    return True

def warm():
    crowd()
    both(3)
    time.sleep(0.2)
    return count()

before = warm()
for _ in range(5):
    crowd()
assert not grown(before), (before, count())
for _ in range(4):
    child = os.fork()
    if not child:
        try:
            first = warm()
            crowd()
            os._exit(2 if grown(first) else 0)
        except BaseException:
            os._exit(1)
    both(3)  # while the child computes
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
crowd()
assert not grown(before), (before, count())
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted as Linux lists them")
@pytest.mark.parametrize("threads", ["1", "4"])
def test_threads_and_forks_with_both_pools(threads):
    run("-W", "ignore", "-c", CODE, GEMM_NUM_THREADS=threads, OPENBLAS_NUM_THREADS=threads, OMP_NUM_THREADS=threads)
