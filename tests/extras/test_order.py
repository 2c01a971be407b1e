"""What csrc/python/order.c says of pending products: independent only where none reads or writes what another writes.

Compiled by itself and asked directly, for a wrong answer shows in results only when threads happen to meet.
"""

import ctypes
import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN, MOST = 512, 16384  # products a job, and at most
SIZE = 64  # bytes of an operand
A, B, C, OUT = range(4)

compiler = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(
    not compiler or not Path(sysconfig.get_path("include"), "Python.h").exists(), reason="compiles a C file of its own"
)
SHARE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_double)
WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)


class Reach(ctypes.Structure):
    _fields_ = [("low", ctypes.c_ssize_t * 4), ("high", ctypes.c_ssize_t * 4), ("reads_c", ctypes.c_int)]


class Products(ctypes.Structure):
    _fields_ = [
        ("places", ctypes.c_void_p), ("reaches", ctypes.c_void_p), ("next_reach", ctypes.c_size_t),
        ("kinds", ctypes.c_void_p), ("next_kind", ctypes.c_size_t),
    ]  # fmt: skip


@SHARE
def in_turn(work, context, count, ns, more_ns):
    for index in range(count):
        WORK(work)(context, index, 0)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    made = tmp_path_factory.mktemp("order") / "order.so"
    include = f"-I{sysconfig.get_path('include')}"
    source = ROOT / "csrc/python/order.c"
    subprocess.run([str(compiler), "-O1", "-shared", "-fPIC", include, str(source), "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


@pytest.fixture(params=["c is read", "c is not read"])
def independent(request, library):
    """Asks of rows of addresses (a, b, c, out); of the product at `odd` also that it is of another kind."""

    def ask(places, start=0, odd=None):
        reads_c = request.param == "c is read"
        kinds = np.zeros(len(places), np.int32)
        if odd is not None:
            kinds[odd] = 1
        reach = Reach((0, 0, 0, 0), (SIZE,) * 4, reads_c)
        both = (Reach * 2)(reach, Reach((0, 0, 0, 0), (2 * SIZE,) * 4, reads_c))
        all_ = Products(places.ctypes.data, ctypes.addressof(both), ctypes.sizeof(Reach), kinds.ctypes.data, 4)
        room = np.empty((2 * len(places), 2), np.uintp)
        found = library.gemm_independent(ctypes.byref(all_), ctypes.c_int64(start), ctypes.c_int64(len(places)),
                                         room.ctypes.data_as(ctypes.c_void_p), in_turn, ctypes.c_double(0))  # fmt: skip
        assert bool(found) == by_definition(places[start:], kinds[start:], reads_c)
        return bool(found)

    return ask


def by_definition(places, kinds, reads_c):
    """Whether no out meets another out, or what any product reads: of all pairs, by counting what lies below."""
    sizes = (SIZE * (kinds + 1)).astype(np.int64)
    spans = places.astype(np.int64)
    low = spans[:, OUT]
    order = np.argsort(low, kind="stable")
    starts, ends = low[order], np.maximum.accumulate((low + sizes)[order])
    if (ends[:-1] > starts[1:]).any():
        return False
    for operand in (A, B, *((C,) if reads_c else ())):
        reads = spans[:, operand]
        at = np.searchsorted(starts, reads + sizes, "left") - 1
        if ((at >= 0) & (ends[np.maximum(at, 0)] > reads) & (reads != 0)).any():
            return False
    return True


def apart(count, step=SIZE):
    """Products whose operands are four arrays cut to pieces."""
    places = np.empty((count, 4), np.uintp)
    for operand in range(4):
        places[:, operand] = (operand + 1) * 10**9 + np.arange(count) * step
    return places


SEAMS = [1, RUN - 1, RUN, RUN + 1, 2 * RUN - 1, 2 * RUN, 2 * RUN + 1, 3 * RUN + 7]


@pytest.mark.parametrize("count", [1, 2, RUN, RUN + 1, 2 * RUN, 3 * RUN + 9, MOST])
def test_pieces_of_four_arrays_are_independent(independent, count):
    assert independent(apart(count))
    places = apart(count)
    places[:, OUT] = places[::-1, OUT]
    assert independent(places)


@pytest.mark.parametrize("at", SEAMS)
@pytest.mark.parametrize("shift", [-SIZE, -SIZE + 1, -1, 0, 1, SIZE - 1, SIZE, SIZE + 1])
def test_an_out_beside_the_one_before(independent, at, shift):
    """Touching is no overlap, one byte is; also where a job ends and the next one begins."""
    places = apart(3 * RUN + 9, 4 * SIZE)
    places[at, OUT] = int(places[at - 1, OUT]) + shift
    assert independent(places) == (abs(shift) >= SIZE)


@pytest.mark.parametrize("at", SEAMS)
@pytest.mark.parametrize("operand", [A, B, C])
@pytest.mark.parametrize("shift", [-SIZE, -SIZE + 1, -1, 0, 1, SIZE - 1, SIZE])
def test_what_another_writes_is_read(independent, at, operand, shift, request):
    """Before that or after it, and in other jobs."""
    for other in (0, at - 1, 3 * RUN + 8):
        places = apart(3 * RUN + 9, 4 * SIZE)
        places[at, operand] = int(places[other, OUT]) + shift
        found = independent(places)
        assert found == (abs(shift) >= SIZE or (operand == C and "not" in request.node.callspec.params["independent"]))


@pytest.mark.parametrize("at", SEAMS)
def test_kinds_of_other_sizes(independent, at):
    places = apart(3 * RUN + 9)
    assert not independent(places, odd=at)  # it reaches into the next one
    assert independent(apart(3 * RUN + 9, 2 * SIZE), odd=at)


@pytest.mark.parametrize("seed", range(40))
def test_by_chance(independent, seed):
    """Few or many overlaps, in any order, and the products from some number on."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 2500))
    room = int(10 ** rng.uniform(3, 9))
    places = apart(count)
    for operand in rng.permutation(4)[: rng.integers(1, 5)]:
        kind = rng.integers(3)
        some = rng.permutation(count)[: rng.integers(1, count + 1)]
        if kind == 0:
            places[some, operand] = 10**9 + rng.integers(0, room, len(some))
        elif kind == 1:
            places[:, operand] = rng.permutation(places[:, operand])
        else:
            places[some, operand] = places[rng.permutation(some), rng.integers(4)]
    independent(places, start=int(rng.integers(0, count)))
