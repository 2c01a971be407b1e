"""Checks of the kernels of the C engine alone: packed tiles at every edge, and operands that end where memory does."""

import ctypes
import faulthandler
import mmap
import os
from itertools import product

import numpy as np

import gemm
from conformance.arena import POISON, case
from conformance.checks import random, times
from conformance.subject import check


@check
def packed_edges(s):
    """Every number of columns in the last packed tile, one row in it, k odd, and nothing written beside out.

    In one thread: the parts of several may be too small to be packed.
    """
    gemm.set_num_threads(1)
    try:
        _meet_packed_edges(s)
    finally:
        gemm.set_num_threads(None)


def _meet_packed_edges(s):
    rng = random(40)
    m, k, first, widest = 301, 601, 200, s.params["NR"]
    a, b = s.integers(rng, m, k), s.integers(rng, k, first + widest)
    expected = times(a, b).astype(s.dtype) if s.kind != "i" else times(a, b)
    memory = np.full((m + 2, first + widest + 18), POISON, np.uint8).repeat(s.dtype.itemsize, 1).view(s.dtype)
    quiet = memory.copy()
    for n in range(first, first + widest, s.pick(5, 1) if widest > 4 else 1):
        out = memory[1 : m + 1, 1 : n + 1]
        s.call(a, b[:, :n], out=out)
        with case(m=m, n=n, k=k):
            if not np.array_equal(out, expected[:, :n].astype(s.dtype)):
                raise AssertionError("the product is wrong")
            out[...] = quiet[1 : m + 1, 1 : n + 1]
            if memory.tobytes() != quiet.tobytes():
                beside = np.argwhere((memory.view(np.uint8) != POISON).reshape(*memory.shape, -1).any(-1))[0]
                raise AssertionError(f"element {tuple(beside - 1)}, beside out, was overwritten")


class _Fenced:
    """Memory between two pages that nobody may touch."""

    def __init__(self, nbytes):
        page = mmap.PAGESIZE
        self.size = -(-nbytes // page) * page
        self.memory = mmap.mmap(-1, self.size + 2 * page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        whole = np.frombuffer(self.memory, np.uint8)
        self.bytes = whole[page : page + self.size]
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        for fence in (whole.ctypes.data, whole.ctypes.data + page + self.size):
            if protect(fence, page, 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, x, at_end, order):
        """x there, its last byte or its first one at a fence."""
        lines = x if order == "C" else x.T
        start = self.size - x.nbytes if at_end else 0
        put = np.ndarray(lines.shape, x.dtype, self.bytes, start)
        put[...] = lines
        return put if order == "C" else put.T


@check
def page_ends(s):
    """Operands and results that begin or end at memory which nobody may touch: nothing beside them is read.

    In a child process, which such a read would end.
    """
    pipe, told = os.pipe()
    child = os.fork()
    if not child:
        faulthandler.disable()  # what it would print is expected
        status = 1
        try:
            _meet_page_ends(s, told)
            status = 0
        except BaseException as error:  # whatever it is, the parent tells it, and this process is no second pytest
            os.write(told, f" {type(error).__name__}: {error}".encode()[:1000])
        finally:
            os._exit(status)
    os.close(told)
    with os.fdopen(pipe, "rb") as file:
        last = file.read().decode().rpartition("\n")[2]
    _, status = os.waitpid(child, 0)
    if status:
        end = f"signal {os.WTERMSIG(status)} ended it" if os.WIFSIGNALED(status) else "it failed"
        raise AssertionError(f"{end}, at{last}")


def _meet_page_ends(s, told):
    rng = random(41)
    mr, nr = s.params["MR"], s.params["NR"]
    heights, widths = sorted({1, 2, mr, mr + 1, 2 * mr + 1, 41}), sorted({1, 3, nr - 1, nr + 1, 2 * nr + 3, 5 * nr + 1})
    depths = (1, 2, 7, 33, 70, 129)
    shapes = list(product(heights, widths, depths))[:: s.pick(3, 1)]
    shapes += [(300, 200 + nr - 1, 65), (1, 5, 1031)]
    most = max(max(m * k, k * n, m * n) for m, n, k in shapes) * s.dtype.itemsize
    room = [_Fenced(most) for _ in range(4)]
    for number, (m, n, k) in enumerate(shapes):
        a, b, c = s.operands(s.integers, rng, m, n, k)
        expected = times(a, b)
        a, b = (x.astype(name) for x, name in zip((a, b), s.inputs or (s.dtype, s.dtype), strict=True))
        for orders, at_end in product(("CCC", "CFC", "FCC", "FFF"), (True, False)):
            os.write(told, f"\n m={m} n={n} k={k} orders={orders} {'ends' if at_end else 'begins'} at a fence".encode())
            x, y, z = (place.place(v, at_end, way) for place, v, way in zip(room, (a, b, c), orders, strict=False))
            out = room[3].place(s.blank((m, n)), at_end, orders[2])
            s.call(x, y, out=out)
            assert np.array_equal(out, expected.astype(s.dtype)), "the product is wrong"
            if number % 3 == 0:
                s.call(x, y, z, beta=1.0, out=out)
                assert np.array_equal(out, (expected + c).astype(s.dtype)), "the sum is wrong"
