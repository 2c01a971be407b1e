"""libgemm's products, called through ctypes: the bound, the bits, what is read and written, threads, far offsets."""

import ctypes
import itertools
import mmap
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from oracle.exact import check_close, exact
from oracle.ordered import check_same_bits, ordered

import gemm

ROW, COLUMN, PLAIN, TURNED, ADJOINT = 101, 102, 111, 112, 113
TYPES = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
POISON = -77

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="libgemm is built by compilers with GCC's options")


def numbers(rng, shape, letter):
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if letter in "cz" else x).astype(TYPES[letter])


def op(x, trans):
    """Its own inverse, too."""
    return {PLAIN: x, TURNED: x.T, ADJOINT: x.conj().T}[trans]


class Matrix:
    """`x` in memory of one layout, with a leading dimension above its size, between poison."""

    def __init__(self, x, layout, spare=3):
        lines = x if layout == ROW else x.T
        self.block = np.full((lines.shape[0] + 1, lines.shape[1] + spare), POISON, x.dtype)
        self.lines = self.block[: lines.shape[0], : lines.shape[1]]
        self.lines[...] = lines
        self.x = self.lines if layout == ROW else self.lines.T
        self.ld = self.block.shape[1]
        self.address = ctypes.c_void_p(self.block.ctypes.data)
        self.before = self.block.copy()

    def check_beside(self):
        """Nothing but the matrix was written."""
        self.lines[...] = self.before[: self.lines.shape[0], : self.lines.shape[1]]
        assert self.block.tobytes() == self.before.tobytes()


def scalar(letter, value):
    if letter in "cz":
        return np.array([value], TYPES[letter]).ctypes.data_as(ctypes.c_void_p)
    return (ctypes.c_float if letter == "s" else ctypes.c_double)(value.real)


@pytest.fixture(scope="module")
def blas():
    return ctypes.CDLL(gemm.get_library())


def call(blas, letter, layout, trans, alpha, a, b,
         beta, c, k):  # fmt: skip
    getattr(blas, f"cblas_{letter}gemm")(
        layout, *trans, *c.x.shape, k, scalar(letter, alpha), a.address, a.ld, b.address, b.ld, scalar(letter, beta),
        c.address, c.ld,
    )  # fmt: skip


SHAPES = [(1, 1, 1), (2, 3, 0), (7, 1, 40), (1, 33, 130), (13, 17, 19), (50, 65, 31), (70, 300, 520), (0, 4, 3)]


@pytest.mark.parametrize("layout", [ROW, COLUMN], ids=["row", "column"])
@pytest.mark.parametrize("letter", TYPES)
def test_products_are_within_the_bound(blas, letter, layout):
    rng = np.random.default_rng(layout)
    scalars = [(1, 0), (0.7, 1.3), (1, 1), (0, 0.5), (0, 0), (-1, 1)]
    if letter in "cz":
        scalars += [(0.7 - 0.9j, 1.3 - 1.1j), (1j, 0)]
    cases = itertools.product(SHAPES, itertools.product((PLAIN, TURNED, ADJOINT), repeat=2))
    for number, ((m, n, k), trans) in enumerate(cases):
        alpha, beta = scalars[(number + number // 9) % len(scalars)]  # each with each shape and each of the trans
        left, right, addend = (numbers(rng, shape, letter) for shape in ((m, k), (k, n), (m, n)))
        if alpha == 0:  # neither may be read
            left[...], right[...] = np.nan, np.inf
        reference = exact(left, right, addend, alpha, beta)
        if beta == 0:
            addend[...] = np.nan
        a, b = Matrix(op(left, trans[0]), layout), Matrix(op(right, trans[1]), layout)
        c = Matrix(addend, layout)
        call(blas, letter, layout, trans, alpha, a, b, beta, c, k)
        check_close(c.x.copy(), reference, f"{letter}gemm {m} x {n} x {k}, {trans}, {alpha}, {beta}")
        c.check_beside()
        assert a.block.tobytes() == a.before.tobytes()
        assert b.block.tobytes() == b.before.tobytes()


@pytest.mark.parametrize("letter", "sd")
def test_bits_are_the_chain_s_in_both_layouts_and_in_batches(blas, letter):
    rng = np.random.default_rng(1)
    m, n, k, count = 19, 37, 53, 150
    lefts, rights = numbers(rng, (count, m, k), letter), numbers(rng, (count, k, n), letter)
    expected = ordered(lefts, rights, None, 0.7)
    for layout in (ROW, COLUMN):
        a, b, c = Matrix(lefts[0], layout), Matrix(rights[0], layout), Matrix(expected[0] * np.nan, layout)
        call(blas, letter, layout, (PLAIN, PLAIN), 0.7, a, b, 0, c, k)
        check_same_bits(c.x, expected[0])
    out = np.full_like(expected, np.nan)
    a_, b_, c_ = (x.ctypes.data_as(ctypes.c_void_p) for x in (lefts, rights, out))
    one = scalar(letter, 0.7), scalar(letter, 0)
    getattr(blas, f"cblas_{letter}gemm_batch_strided")(
        ROW, PLAIN, PLAIN, m, n, k, one[0], a_, k, m * k, b_, n, k * n, one[1], c_, n, m * n, count)  # fmt: skip
    check_same_bits(out, expected)

    # Two groups: the second has one product less, which must stay as it is; and it takes op(B) = B of the transposes.
    out[...] = POISON
    turned = np.ascontiguousarray(rights.swapaxes(1, 2))
    half = count // 2
    lists = [[x[i].ctypes.data for i in range(count)] for x in (lefts, rights, out)]
    lists[1][half:] = [turned[i].ctypes.data for i in range(half, count)]
    pointers = [(ctypes.c_void_p * count)(*each) for each in lists]
    ints = lambda *values: (ctypes.c_int * len(values))(*values)  # noqa: E731
    alphas, betas = (np.full(2, value, TYPES[letter]).ctypes.data_as(ctypes.c_void_p) for value in (0.7, 0))
    getattr(blas, f"cblas_{letter}gemm_batch")(
        ROW, ints(PLAIN, PLAIN), ints(PLAIN, TURNED), ints(m, m), ints(n, n), ints(k, k), alphas, pointers[0],
        ints(k, k), pointers[1], ints(n, k), betas, pointers[2], ints(n, n), 2, ints(half, count - half - 1),
    )  # fmt: skip
    check_same_bits(out[:-1], expected[:-1])
    assert (out[-1] == POISON).all()


def test_what_infinite_scalars_and_quick_returns_do(blas):
    nothing, one, nan, infinity = np.zeros((1, 0)), *(np.full((1, 1), x) for x in (-0.0, np.nan, np.inf))
    for alpha, beta, k, left, right, want in (
        (np.inf, 2.0, 0, nothing, nothing.T, -0.0),  # of no terms, whatever alpha is
        (0.0, 1.0, 1, nan, nan, -0.0),  # C stays as it is, to the sign of its zero
        (1.0, 0.0, 1, infinity, one, np.nan),
        (np.nan, 0.0, 1, one, one, np.nan),
    ):
        a, b, c = Matrix(left, ROW), Matrix(right, ROW), Matrix(one, ROW)
        call(blas, "d", ROW, (PLAIN, PLAIN), alpha, a, b, beta, c, k)
        check_same_bits(c.x, np.array([[want]]), f"alpha {alpha}, beta {beta}, k {k}")


def test_complex_numbers_are_aligned_as_their_parts(blas):
    rng = np.random.default_rng(5)
    m, n, k = 23, 41, 35
    left, right = numbers(rng, (m, k), "c"), numbers(rng, (k, n), "c")
    shifted = [np.empty(2 * x.size + 1, np.float32)[1:].view(x.dtype) for x in (left, right, left[:, :1] @ right[:1])]
    shifted[0][:], shifted[1][:] = left.ravel(), right.ravel()
    assert all(x.ctypes.data % 8 == 4 for x in shifted)
    a, b, c = (ctypes.c_void_p(x.ctypes.data) for x in shifted)
    blas.cblas_cgemm(ROW, PLAIN, PLAIN, m, n, k, scalar("c", 1), a, k, b, n, scalar("c", 0), c, n)
    check_close(shifted[2].reshape(m, n), exact(left, right))


def test_threads_with_products_of_their_own(blas):
    """Each thread remembers its latest kind of product, and all share the engine's threads."""

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(60):
            m, n, k = rng.integers(2, 40, 3).tolist()
            left, right = numbers(rng, (m, k), "s"), numbers(rng, (k, n), "s")
            want = ordered(left, right)
            for layout in (ROW, ROW, COLUMN):
                c = Matrix(want * np.nan, layout)
                call(blas, "s", layout, (PLAIN, PLAIN), 1, Matrix(left, layout), Matrix(right, layout), 0, c, k)
                check_same_bits(c.x, want)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's promised memory")
@pytest.mark.parametrize("layout", [ROW, COLUMN], ids=["row", "column"])
def test_offsets_beyond_32_bits(blas, layout):
    m, n, k, ld = 5, 5, 5, 2**29 + 7  # the last line begins beyond 2**31 elements

    def far(x):
        try:
            room = mmap.mmap(-1, (4 * ld + 8) * 4, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
        except (OSError, OverflowError):
            pytest.skip("the system promises no more memory than it has")
        flat = np.frombuffer(room, np.float32)
        lines = np.lib.stride_tricks.as_strided(flat, x.shape, (4 * ld, 4))
        lines[...] = x if layout == ROW else x.T
        return lines, ctypes.c_void_p(flat.ctypes.data)

    rng = np.random.default_rng(3)
    left, right = numbers(rng, (m, k), "s"), numbers(rng, (k, n), "s")
    (_a, at_a), (_b, at_b), (c, at_c) = far(left), far(right), far(np.zeros((m, n)))
    one, none = ctypes.c_float(1), ctypes.c_float(0)
    blas.cblas_sgemm(layout, PLAIN, PLAIN, m, n, k, one, at_a, ld, at_b, ld, none, at_c, ld)
    check_same_bits(c if layout == ROW else c.T, ordered(left, right))
    blas.cblas_sgemm_batch_strided(ROW, PLAIN, PLAIN, 1, n, 1, one, at_a, 1, ld, at_b, n, 0, none, at_c, n, ld, 5)
    check_same_bits(c, np.ascontiguousarray(_a[:, :1] * _b[:1]))
