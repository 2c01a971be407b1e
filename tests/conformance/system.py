"""Checks of a kernel in its process: many threads at once, operands spread over more than 2³² bytes, published bits."""

import mmap
import sys
import threading
from itertools import product

import numpy as np

from conformance.arena import case, equal
from conformance.checks import random, times
from conformance.subject import chain_check, check
from gemm.select.verify.single import ORDERED, bits_hash, ordered_case

NO_RESERVE = 0x4000 if sys.platform == "linux" else 0


@check
def concurrent(s):
    """Eight threads with different products at once each get their own, bit for bit."""
    rng = random(30)
    work = []
    small, large = (
        [(5, 7, 9), (64, 64, 64), (90, 90, 3)],
        [(150, 130, 110), (90, 100, 120), (3, 700, 300), (700, 3, 300)],
    )
    for m, n, k in (*small, *large, (130, 140, 90)):
        a, b, c = s.operands(s.normal, rng, m, n, k)
        work.append((a, b, c, s.call(a, b, c, alpha=s.factor(0.5), beta=-1.0).tobytes()))
    wrong = []
    start = threading.Barrier(len(work))

    def run(first):
        try:
            start.wait()
            for turn in range(s.pick(4, 12, 40)):
                a, b, c, expected = work[(first + turn) % len(work)]
                out = s.blank(c.shape)
                s.call(a, b, c, alpha=s.factor(0.5), beta=-1.0, out=out)
                if out.tobytes() != expected:
                    wrong.append(f"{a.shape} · {b.shape} came out with other bits in thread {first}, turn {turn}")
        except Exception as error:  # anything that a thread raises is the check's to report
            wrong.append(f"{type(error).__name__} in thread {first}: {error}")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise AssertionError(f"{len(wrong)} failures; {wrong[0]}")


@check
def far_strides(s):
    """Elements along each axis more than 2³¹ apart, in one step or in several: offsets and strides are 64-bit."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    try:  # memory that is only promised: what is not touched is not there
        memory = mmap.mmap(-1, 12 * 2**28 * s.dtype.itemsize, private)
    except (AttributeError, OSError, OverflowError):
        return  # Windows, or a system that promises no more than it has; test_mutants.py shows that others run this
    line = np.frombuffer(memory, s.dtype)
    rng = random(31)
    for axis, (count, step) in product(range(3), ((2, 2**31 + 1), (12, 2**28 + 1))):
        shape = [1, 40, 33]
        shape[axis] = count
        near = s.integers(rng, *shape)
        strides = [shape[1] * shape[2], shape[2], 1]
        strides[axis] = step
        far = np.ndarray(near.shape, s.dtype, line, 0, [n * s.dtype.itemsize for n in strides])
        far[...] = near
        b, c = s.integers(rng, 1, shape[2], 5), s.integers(rng, *shape)
        with case(axis=axis, step=step):
            equal(s.call(far, b), times(near, b), "a")
            equal(s.call(far[::-1, ::-1], b), times(near[::-1, ::-1], b), "a reversed")
            equal(s.call(b, far, trans_a=True, trans_b=True), times(near, b).swapaxes(1, 2), "b")
            eye = np.eye(shape[2], dtype=s.dtype)
            equal(s.call(near, eye, far, beta=2.0), 3 * near, "c")
            s.call(c, eye, out=far)
            equal(far, c, "out")
            s.call(near, eye, far, beta=1.0, out=far)
            equal(far, near + c, "in place")


@chain_check
def published_bits(s):
    """The hash that `gemm verify` prints for every kernel and device."""
    a, b, c = ordered_case(s.dtype.name)
    result = s(a, b, c, alpha=0.75, beta=-1.25, reproducible=True)
    found = bits_hash(result)
    if found != ORDERED[s.dtype.name]:
        raise AssertionError(f"the ordered bits hash to {found}, must be {ORDERED[s.dtype.name]}")
