"""Checks of a kernel in its process: many threads at once, operands spread over more than 2³² bytes, published bits."""

from __future__ import annotations

import hashlib
import mmap
import sys
import threading

import numpy as np

from conformance.arena import equal
from conformance.chain import chain_check
from conformance.checks import check, random
from conformance.subject import Subject, integers, normal
from gemm.verify import ORDERED, ordered_case

NO_RESERVE = 0x4000 if sys.platform == "linux" else 0


@check
def concurrent(s: Subject) -> None:
    """Eight threads with different products at once each get their own, bit for bit."""
    rng = random(30)
    work = []
    sizes = (
        (5, 7, 9),
        (64, 64, 64),
        (33, 65, 129),
        (150, 130, 110),
        (1, 300, 40),
        (300, 2, 40),
        (90, 90, 3),
        (8, 8, 800),
    )
    for m, n, k in sizes:
        a, b, c = normal(rng, s.dtype, m, k), normal(rng, s.dtype, k, n), normal(rng, s.dtype, m, n)
        work.append((a, b, c, s.call(a, b, c, alpha=0.5, beta=-1.0).tobytes()))
    wrong: list[str] = []
    start = threading.Barrier(len(work))

    def run(first: int) -> None:
        try:
            start.wait()
            for turn in range(s.pick(4, 40)):
                a, b, c, expected = work[(first + turn) % len(work)]
                out = np.full(c.shape, np.nan, s.dtype)
                s.call(a, b, c, alpha=0.5, beta=-1.0, out=out)
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
def far_strides(s: Subject) -> None:
    """Rows more than 2³¹ elements apart: offsets and strides are 64-bit. The memory is only promised, not used."""
    step = 2**31 + 1
    try:
        memory = mmap.mmap(-1, (step + 64) * s.dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    except (AttributeError, OSError, OverflowError):
        return  # Windows, or a system that promises no memory it may not have; test_mutants.py shows that others run it
    line = np.frombuffer(memory, s.dtype)
    rng = random(31)
    for n, k in ((3, 5), (40, 33)):
        b = integers(rng, s.dtype, k, n)
        far = np.ndarray((2, max(n, k)), s.dtype, line, 0, (step * s.dtype.itemsize, s.dtype.itemsize))
        a = far[:, :k]
        a[...] = integers(rng, s.dtype, 2, k)
        near = a.copy()
        equal(s.call(a, b), near @ b, "a")
        equal(s.call(a[::-1], b), near[::-1] @ b, "a reversed")
        equal(s.call(b.T, a, trans_b=True), b.T @ near.T, "b")
        out = far[:, :n]
        s.call(near, b, out=out)
        equal(out, near @ b, "out")
        s.call(near, b, out, beta=1.0, out=out)
        equal(out, 2 * (near @ b), "c")


@chain_check
def published_bits(s: Subject) -> None:
    """The hash that `gemm verify` prints for every kernel and device."""
    a, b, c = ordered_case(s.dtype.name)
    result = s(a, b, c, alpha=0.75, beta=-1.25, reproducible=True)
    found = hashlib.sha256(result.astype(s.dtype.newbyteorder("<")).tobytes()).hexdigest()
    if found != ORDERED[s.dtype.name]:
        raise AssertionError(f"the ordered bits hash to {found}, must be {ORDERED[s.dtype.name]}")
