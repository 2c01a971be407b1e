"""The CPU engine by itself: paths of its driver (blocks, stripes, strides, threads) that few products take, against the
ORDERED chain; and its pool under forks and limits. What every kernel owes, at edges, with special numbers and from many
threads, is conformance/'s business."""

import ctypes
import itertools
import os
import platform
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from helpers import python, rand, whole
from oracle import check_same_bits, fma, ordered

import gemm
from gemm.backends.cpu import CpuBackend, CpuLaunch
from gemm.catalog import BY_NAME, KERNELS
from gemm.core import threads as granting
from gemm.core.engine import engine
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.operands import aligned
from gemm.core.problem import Problem

ROWS = [row for row in KERNELS if row.backend == "cpu" and row.dtype in ("float32", "float64")]
COMPLEX = [row for row in KERNELS if row.backend == "cpu" and row.dtype.startswith("complex")]
REST = [row for row in KERNELS if row.backend == "cpu" and row not in (*ROWS, *COMPLEX)]
NARROW = [row for row in REST if row.precision == "highest"]
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX only")


@pytest.fixture(autouse=True)
def limit_of_threads():
    yield
    gemm.set_num_threads(None)


@pytest.fixture(params=ROWS, ids=lambda row: row.name)
def row(request):
    return available(request.param)


def available(row):
    missing = set(row.needs) - CpuBackend().devices()[0].features
    if missing:
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")
    return row


def small_blocks(row):
    """The kernel with blocks of two tiles and five k: small products go through all loops."""
    blocks = {"MC": 2 * row.params["MR"], "NC": 2 * row.params["NR"], "KC": 5}
    return replace(row, params={**row.params, **blocks})


def run(row, a, b, out, *, c=None, alpha=1.0, beta=0.0, reproducible=True):
    backend = CpuBackend()
    batch = int(np.prod(out.shape[:-2]))
    problem = Problem(row.dtype, *out.shape[-2:], a.shape[-1], batch, reproducible=reproducible)
    backend.launcher(row, backend.devices()[0], problem)(a, b, c, out, alpha, beta)
    return out


def operands(row, m, n, k):
    """a, b and c."""
    return [rand(*shape, dtype=row.dtype, seed=i) for i, shape in enumerate(((m, k), (k, n), (m, n)))]


def guarded(shape, dtype):
    """An array of NaN inside a larger one, and a function that checks the rest of that."""
    around = np.full((shape[0] + 4, shape[1] + 4), 7, dtype)
    inside = around[2:-2, 2:-2]
    inside[...] = np.nan if around.dtype.kind in "fc" else 99

    def check():
        frame = np.ones(around.shape, bool)
        frame[2:-2, 2:-2] = False
        assert (around[frame] == 7).all()

    return inside, check


@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (1, 1), (-1, 0), (0.3, 0), (0.3, -1.7), (1, 0.1), (0.7, 1)])
@pytest.mark.parametrize("k", [5, 13])
def test_blocks_and_epilogue(row, k, alpha, beta):
    """Raw sums of earlier k go through out, or through the workspace when out is c."""
    row = small_blocks(row)
    m, n = 5 * row.params["MR"] + 1, 4 * row.params["NR"] + 3
    real = np.dtype(row.dtype).type
    alpha, beta = float(real(alpha)), float(real(beta))
    a, b, c = operands(row, m, n, k)
    want = ordered(a, b, c if beta else None, alpha, beta)
    out, check = guarded((m, n), row.dtype)
    check_same_bits(run(row, a, b, out, c=c if beta else None, alpha=alpha, beta=beta), want)
    check()
    if beta:
        for flip in (False, True):  # also with rows adjacent, i.e. transposed inside
            out, check = guarded((n, m) if flip else (m, n), row.dtype)
            out = out.T if flip else out
            out[...] = c
            check_same_bits(run(row, a, b, out, c=out, alpha=alpha, beta=beta), want)
            check()


@pytest.mark.parametrize("m", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(("n", "k"), [(1, 17), (5, 40), (19, 41), (35, 16), (40, 3), (29, 1024), (300, 90), (700, 100)])
def test_few_rows(row, m, n, k):
    """Few rows, and few columns, have loops of their own, one for each layout of the other matrix. No sum is split.

    k = 1024: columns of b that lie a multiple of 4 KiB apart."""
    for a, b, c in (operands(row, m, n, k), operands(row, n, m, k)):
        want = ordered(a, b, c, 0.5, -2.0)
        for left, right in itertools.product((a, np.asfortranarray(a)), (b, np.asfortranarray(b))):
            for flip in (False, True):  # also an out of adjacent columns
                out, check = guarded(c.T.shape if flip else c.shape, row.dtype)
                out = out.T if flip else out
                run(row, left, right, out, c=c, alpha=0.5, beta=-2.0)
                check()
                check_same_bits(out, want)


@pytest.mark.parametrize("k", [1, 3, 16])
def test_short_k(row, k):
    """A short k computes C by rows: whole tiles, last columns and rows; b packed or in place, for k = 16 also a."""
    mr, nr = row.params["MR"], row.params["NR"]
    gemm.set_num_threads(1)  # a job of few rows does not pack a
    for m, n in [(1, 2 * nr), (mr, 2 * nr + 1), (2 * mr + 1, 3 * nr - 1), (70 * mr + 1, 5 * nr + 3), (mr + 1, 40 * nr)]:
        a, b, c = operands(row, m, n, k)
        want = ordered(a, b, c, 0.5, -2.0)
        for left, right in itertools.product((a, np.asfortranarray(a)), (b, np.asfortranarray(b))):
            out, check = guarded(c.shape, row.dtype)
            run(row, left, right, out, c=c, alpha=0.5, beta=-2.0)
            check()
            check_same_bits(out, want)


IN_PLACE = [*ROWS, *COMPLEX, *(x for x in REST if x.dtype in ("float16", "int32", "int64") and not x.inputs)]


@pytest.mark.parametrize("row", IN_PLACE, ids=lambda row: row.name)
@pytest.mark.parametrize("m", [1, 4, 7, 25])
def test_rows_of_b_that_begin_within_a_cache_line(row, m):
    """The columns before the next line are a tile of their own, if all rows of b begin at the same position in their
    lines. With k = 900, some kernels cut k into pieces. The numbers are whole, so the sums are exact."""
    row = available(row)
    line, nr = 64 // np.dtype(row.dtype).itemsize, row.params["NR"]
    n = 6 * nr + 5
    width = (n + 2 * line) // line * line
    for k, begins in itertools.product((17, 900), (1, line // 2 + 1, line - 1)):
        a, values, c = (whole(*shape, dtype=row.dtype, seed=i) for i, shape in enumerate(((m, k), (k, n), (m, n))))
        exact = values.astype("complex128" if values.dtype.kind == "c" else "float64")
        want = (2 * (a.astype(exact.dtype) @ exact) - 3 * c.astype(exact.dtype)).astype(row.dtype)
        b = aligned(k * width * values.itemsize).view(row.dtype).reshape(k, width)[:, begins : begins + n]
        assert b.ctypes.data % 64 == begins * b.itemsize
        assert b.strides[0] % 64 == 0
        b[...] = values
        out, check = guarded(c.shape, row.dtype)
        np.testing.assert_array_equal(run(row, a, b, out, c=c, alpha=2, beta=-3), want)
        check()
        out[...] = c
        np.testing.assert_array_equal(run(row, a, b, out, c=out, alpha=2, beta=-3), want)
        check()


@pytest.mark.parametrize("packed", ["nothing", "a", "b", "a and b"])
def test_packing(row, packed):
    """The height and the width of a tile depend on what is packed. Without packing, a long k is cut into pieces."""
    if "sme" in row.needs and packed != "a and b":
        pytest.skip("this kernel reads only panels")
    size = np.dtype(row.dtype).itemsize
    shapes = {
        "nothing": [(41, 700, 900, "C"), (10, 4096 // size, 900, "C")],
        "a": [(340, 208, 880 // size, "C"), (8, 200, 4000, "F")],  # also fewer rows than a tile has, stored by columns
        "b": [(90, 4096 // size, 150, "C")],
        "a and b": [(230, 500, 400, "C")],
    }
    gemm.set_num_threads(1)
    for m, n, k, order in shapes[packed]:
        a, b, c = operands(row, m, n, k)
        a = np.asarray(a, order=order)
        want = ordered(a, b, c, 0.5, -2.0)
        problem = Problem(row.dtype, m, n, k, 1, reproducible=True)
        launch = CpuBackend().launcher(row, CpuBackend().devices()[0], problem)
        out, check = guarded(c.shape, row.dtype)
        assert f"packs {packed};" in launch.blocking(a, b, c, out)
        launch(a, b, c, out, 0.5, -2.0)
        check()
        check_same_bits(out, want)
        out[...] = c
        launch(a, b, out, out, 0.5, -2.0)
        check()
        check_same_bits(out, want)


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_a_row_does_not_depend_on_the_jobs(row, threads):
    """Not reproducible, a product of several rows has the same bits for any number of threads, also where the last job
    has a single row: only a product of one row may split its sums."""
    mr = row.params["MR"]
    for m, n, k in [(mr + 1, 2, 512), (2 * mr + 1, 2, 512), (2 * mr + 1, 1, 700), (5, 3, 300)]:
        a = rand(4, m, k, dtype=row.dtype)
        b = rand(4, n, k, dtype=row.dtype, seed=1).transpose(0, 2, 1)
        gemm.set_num_threads(1)
        want = run(row, a, b, np.empty((4, m, n), row.dtype), reproducible=False)
        gemm.set_num_threads(threads)
        for _ in range(20):
            check_same_bits(run(row, a, b, np.empty((4, m, n), row.dtype), reproducible=False), want)


def test_stripes_when_out_is_c(row):
    """Many row blocks with raw sums in the workspace: b is packed anew for each stripe."""
    row = small_blocks(row)
    m, n, k = 40 * row.params["MR"] + 1, row.params["NR"] + 1, 11
    a, b, c = operands(row, m, n, k)
    want = ordered(a, b, c, beta=1.0)
    for laid in (b, np.asfortranarray(b)):  # which is packed by every kernel
        out = c.copy()
        check_same_bits(run(row, a, laid, out, c=out, beta=1.0), want)


LAYOUTS = {
    "rows": lambda x: np.ascontiguousarray(x),
    "columns": lambda x: np.asfortranarray(x),
    "backwards": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "backward rows": lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
    "spread": lambda x: spread(x, 3, 2),
    "spread columns": lambda x: spread(x.T, 2, 5).T,
    "unaligned": lambda x: field(x),
}


def spread(x, by_row, by_column):
    wide = np.full((x.shape[0] * by_row, x.shape[1] * by_column), np.nan, x.dtype)
    wide[::by_row, ::by_column] = x
    return wide[::by_row, ::by_column]


def field(x):
    """x as a field of packed records: neither aligned nor a whole number of elements apart."""
    records = np.zeros(x.shape, np.dtype([("tag", "u1"), ("x", x.dtype)]))
    records["x"] = x
    return records["x"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operand", ["a", "b", "c", "out", "all", "out is c"])
def test_strides(row, operand, layout):
    row = small_blocks(row)
    m, n, k = 2 * row.params["MR"] + 1, 2 * row.params["NR"] + 2, 7
    a, b, c = operands(row, m, n, k)
    want = ordered(a, b, c, 0.5, -2.0)
    lay = LAYOUTS[layout]
    place = {name: lay(x) if operand in (name, "all") else x for name, x in (("a", a), ("b", b), ("c", c))}
    out = lay(c) if operand in ("out", "all", "out is c") else np.full_like(c, np.nan)
    if operand == "out is c":
        place["c"] = out
    run(row, place["a"], place["b"], out, c=place["c"], alpha=0.5, beta=-2.0)
    check_same_bits(out, want)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_batches(row, threads):
    gemm.set_num_threads(threads)
    m, n, k = 19, 140, 66  # 3 * 5 * 2 products of 175 000 multiply-adds: enough for several threads
    a, b, c = (rand(*x, dtype=row.dtype) for x in ((3, 1, 2, m, k), (5, 1, k, n), (m, n)))
    b = b.mT.copy().mT
    shape = (3, 5, 2)
    a_, b_, c_ = (np.broadcast_to(x, (*shape, *x.shape[-2:])) for x in (a, b, c))
    out = np.empty((2, 5, 3, m, n), row.dtype).transpose(2, 1, 0, 3, 4)
    run(row, a_, b_, out, c=c_, beta=1.0)
    some = [0, 4, m - 1]
    check_same_bits(out[..., some, :], ordered(a[..., some, :], b, c[some], beta=1.0))


@pytest.mark.parametrize("shape", [(230, 240, 300), (7, 3000, 260), (3000, 5, 300), (1, 5000, 300), (5000, 1, 300)])
def test_threads_leave_the_bits(row, shape):
    m, n, k = shape
    a, b, _ = operands(row, m, n, k)
    results = []
    for threads in (1, 2, 3, 7):
        gemm.set_num_threads(threads)
        results.append(run(row, a, b, np.full((m, n), np.nan, row.dtype)))
        results.append(run(row, a, b, np.full((n, m), np.nan, row.dtype).T))
    rows, columns = [0, m // 2, m - 1], [0, n // 3, n - 1]
    check_same_bits(results[0][rows][:, columns], ordered(a[rows], b[:, columns]))
    for other in results[1:]:
        check_same_bits(other, results[0])


def complex_chain(a, b):
    """a @ b as csrc/complex.h promises it."""
    re, im = np.zeros((2, len(a), b.shape[1]), a.real.dtype)
    for x, y in zip(a.T[..., None], b, strict=True):
        re, im = fma(x.real, y.real, re), fma(x.real, y.imag, im)
        re, im = fma(-x.imag, y.imag, re), fma(x.imag, y.real, im)
    return np.stack([re, im], -1).view(a.dtype)[..., 0]


@pytest.mark.parametrize("k", [1, 2, 9, 300])
@pytest.mark.parametrize("row", COMPLEX, ids=lambda row: row.name)
def test_complex_numbers_have_one_order(row, k):
    """From panels, in place, in a last panel that is not whole, through blocks of k: the same bits, the chain's."""
    available(row)
    m, n = 67, 2 * row.params["NR"] + 3
    rng = np.random.default_rng(k)
    a, b, c = (
        rng.integers(-9, 9, (*shape, 2)) * rng.choice([1, 0.1], (*shape, 2)) for shape in ((m, k), (k, n), (m, n))
    )
    a, b, c = (np.ascontiguousarray(x).view(complex)[..., 0].astype(row.dtype) for x in (a, b, c))
    parts = row.dtype.replace("complex64", "float32").replace("complex128", "float64")
    plain = next(x for x in COMPLEX if x.dtype == row.dtype and x.target == "scalar")
    some = ((slice(m), slice(n)), (slice(m), slice(2)), (slice(5, 50), slice(n - 5, n)), (slice(2, 4), slice(1, 20)))
    for options in ({}, {"alpha": -0.5, "c": c, "beta": 2.0}, {"alpha": 1 + 3j, "c": c, "beta": 0.3j}):
        whole = run(plain, a, b, np.empty_like(c), reproducible=False, **options)
        if not options:
            check_same_bits(whole[:2, :2].copy().view(parts), complex_chain(a[:2], b[:, :2]).view(parts))
        for kernel in (row, small_blocks(row)):
            for rows, columns in (*some, (slice(1), slice(n))):
                if options:
                    options["c"] = c[rows, columns]
                want = whole[rows, columns].copy()
                for x, y in ((a, b), (a.T.copy().T, b), (a, b if len(want) == 1 else b.T.copy().T)):
                    out = run(kernel, x[rows], y[:, columns], np.empty_like(want), reproducible=False, **options)
                    check_same_bits(out.view(parts), want.view(parts))


@pytest.mark.parametrize("k", [1, 3, 8, 139, 707])
@pytest.mark.parametrize("row", [*ROWS, *COMPLEX], ids=lambda row: row.name)
def test_a_matrix_times_a_vector(row, k):
    """Not reproducible, its sums may be split; each depends on its row alone, and leaves what lies around."""
    available(row)
    is_complex, (alpha, beta) = (True, (2j, 1 - 1j)) if row in COMPLEX else (False, (2.0, -1.0))
    a, b = (rand(*shape, dtype=row.dtype) for shape in ((533, k), (k, 1)))
    if is_complex:
        a, b = a + 1j * a[::-1], b - 1j * b[::-1]
    wide = np.clongdouble if is_complex else np.longdouble
    exact, unit = a.astype(wide) @ b.astype(wide), np.finfo(row.dtype).eps / 2
    bound = 2 * (1 + is_complex) * (k + 2) * unit * (abs(a).astype(np.longdouble) @ abs(b).astype(np.longdouble))
    for x in (a, a.T.copy().T) if is_complex else (a,):
        inside, check = guarded((533, 1), row.dtype)
        whole = np.empty((533, 1), row.dtype)
        for out in (inside, whole):
            assert np.all(abs(run(row, x, b, out, reproducible=False) - exact) <= bound)
        check()
        for rows in (slice(1), slice(3, 4), slice(5, 12), slice(100, 533)):
            for threads in (1, 3):
                gemm.set_num_threads(threads)
                part = run(row, x[rows], b, np.empty_like(whole[rows]), reproducible=False)
                assert np.array_equal(part, whole[rows])
    c = run(row, a, b, np.empty_like(whole), c=whole, alpha=alpha, beta=beta, reproducible=False)
    assert np.all(abs(c - (alpha * exact + beta * whole)) <= 4 * (bound + 2 * unit * abs(whole)))


@pytest.mark.parametrize("row", NARROW, ids=lambda row: row.name)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
def test_few_rows_or_columns_of_narrow_types(row, layout):
    """Panels that are not whole, and operands in their place; k = 1100 is more than dots widen at a time."""
    row, generator = available(row), np.random.default_rng(22)
    if row.dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    mr, nr = row.params["MR"], row.params["NR"]
    integers = row.dtype.startswith("int")
    shapes = [(1, n, 67) for n in (1, 2, 3, 5, 9, 17, nr + 1, nr + 17)] + [(1, 70, 1100), (70, 1, 67)]
    for m, n, k in [*shapes, (4, 17, 70), (mr + 3, nr + 5, 66), (5, 3, 1), (mr + 1, 2, 7)]:

        def random(shape, dtype, turned):
            shape = shape[::-1] if turned else shape
            if integers:
                x = generator.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
            else:
                x = generator.standard_normal(shape).astype(dtype)
            return x.T if turned else x

        of_a, of_b = (np.dtype(name) for name in row.inputs or (row.dtype, row.dtype))
        a, b = random((m, k), of_a, layout[0] == "T"), random((k, n), of_b, layout[1] == "T")
        got = gemm.gemm(a, b, kernel=row.name, reproducible=not integers, dtype=row.dtype)
        if integers:
            want = a.astype(np.int64) @ b.astype(np.int64)
            assert np.array_equal(got, want.astype(row.dtype)), (m, n, k)
        else:
            check_same_bits(got, ordered(a.astype(np.float32), b.astype(np.float32)).astype(got.dtype))


def test_rounding_mode_of_the_caller(row):
    """A caller that rounds upward gets the same bits, and its mode back."""
    upward = {"x86_64": 0x800, "AMD64": 0x800, "aarch64": 0x400000}.get(platform.machine())
    if upward is None or os.name != "posix":
        pytest.skip("the constant for fesetround is not known here")
    a, b, _ = operands(row, 13, 17, 50)
    want, out = ordered(a, b), np.empty((13, 17), row.dtype)
    library = ctypes.CDLL(None)
    library.fesetround(upward)
    try:
        run(row, a, b, out)
        assert library.fegetround() == upward
    finally:
        library.fesetround(0)
    check_same_bits(out, want)


def test_threads_asleep_and_awake():
    """Products of all sizes, after pauses that put none, some or all of the workers to sleep, by changing limits."""
    rng, row = np.random.default_rng(24), BY_NAME["sgemm_scalar_4x4"]
    a, b, _ = operands(row, 400, 400, 150)
    gemm.set_num_threads(1)
    want = run(row, a, b, np.empty((400, 400), row.dtype))
    for _ in range(60):
        threads, m, n = int(rng.integers(1, 9)), *rng.integers(1, 401, 2).tolist()
        gemm.set_num_threads(threads)
        out = run(row, a[:m], b[:, :n], np.full((m, n), np.nan, row.dtype))
        check_same_bits(out, want[:m, :n])
        time.sleep(rng.choice([0, 2e-5, 1e-4, 2e-3]))


# What needs a process of its own: forks, limits, the environment.

PRELUDE = """
import os, sys, threading
import numpy as np
import gemm
from gemm.backends import cpu
from gemm.catalog import BY_NAME
from gemm.core.problem import Problem
backend = cpu.CpuBackend()
device, = backend.devices()
row = BY_NAME["sgemm_scalar_4x4"]
gemm.set_num_threads(4)
a = np.random.default_rng(0).standard_normal((320, 320)).astype(np.float32)
launch = backend.launcher(row, device, Problem("float32", 320, 320, 320))
def product():
    out = np.empty_like(a)
    launch(a, a, None, out, 1.0, 0.0)
    return out.tobytes()
def child(expected):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if product() == expected else 1)
    return pid
def status(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@posix
def test_fork():
    """Before the pool's first use, after it, and again in the child of a child."""
    python(
        prelude=PRELUDE,
        code="""
        if (pid := os.fork()) == 0:
            product(); os._exit(0)
        assert status(pid) == 0
        expected = product()
        if sys.platform == "linux" and (pid := os.fork()) == 0:  # a child has workers of its own
            before = len(os.listdir("/proc/self/task"))
            product()
            os._exit(len(os.listdir("/proc/self/task")) - before)
        assert sys.platform != "linux" or status(pid) == 3
        assert [status(child(expected)) for _ in range(3)] == [0, 0, 0]
        if (pid := os.fork()) == 0:
            os._exit(status(child(expected)))
        assert status(pid) == 0
        assert product() == expected
    """,
    )


def test_exit_with_a_busy_daemon_thread():
    python(
        prelude=PRELUDE,
        code="""
        product()
        def busy():
            while True: product()
        threading.Thread(target=busy, daemon=True).start()
        import time; time.sleep(0.2)
    """,
    )


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("which", ["", "a", "b", "c", "out"])
def test_what_is_not_aligned_is_refused_and_nothing_written(row, which, direct):
    """By gemm_run and by gemm_run_many, of which the product between two that are in order."""
    loaded = engine()
    ffi, lib = loaded.ffi, loaded.lib
    m, n, k = (3, 5, 4) if direct else (70, 300, 300)
    item = np.dtype(row.dtype).itemsize
    places = []
    for odd in (False, True, False):
        given = {}
        for name, size in (("a", m * k), ("b", k * n), ("c", m * n), ("out", m * n)):
            memory = np.full(size * item + 64, 7, np.uint8)
            start = -memory.ctypes.data % 64 % item + (odd and name == which)
            given[name] = memory[start : start + size * item]
        places.append(given)
    shape = ffi.new("int64_t[]", 1)
    strides = [(x, 1, ffi.NULL) for x in (k, n, n, n)]
    head = ffi.addressof(getattr(lib, row.name)), m, n, k, 0, 0, 0, 2, 0, 0, 0, shape
    plan = ffi.new("gemm_plan *", (*head, *strides))
    lib.gemm_set_blocks(plan)
    block = ffi.new("gemm_block *")
    if lib.gemm_is_direct(plan, block):
        plan.direct = block
    assert (plan.direct != ffi.NULL) == direct
    one = ffi.new("gemm_scalar *", (1.0, 0.0, 1))
    at = [[ffi.cast("void *", given[name].ctypes.data) for name in ("a", "b", "c", "out")] for given in places]
    wanted = lib.GEMM_UNALIGNED if which else lib.GEMM_OK
    assert lib.gemm_run_many(plan, 3, ffi.new("gemm_place[]", at), one, one) == wanted
    if which:
        assert all((given["out"] == 7).all() for given in places)
    assert lib.gemm_run(plan, *at[1], one, one) == wanted
    assert not which or (places[1]["out"] == 7).all()


def test_isa_override(monkeypatch):
    everything = CpuBackend().devices()[0].features
    monkeypatch.setenv("GEMM_CPU_ISA", "scalar")
    assert CpuBackend().devices()[0].features == frozenset()
    monkeypatch.setenv("GEMM_CPU_ISA", "mmx")
    with pytest.raises(BackendUnavailable, match=r"GEMM_CPU_ISA=mmx .*avx2, avx512, neon, scalar"):
        CpuBackend().devices()
    for target in {row.target for row in ROWS}:
        monkeypatch.setenv("GEMM_CPU_ISA", target)
        rows = [set(row.needs) for row in KERNELS if row.backend == "cpu" and row.target == target]
        if able := [needs for needs in rows if needs <= everything]:
            assert CpuBackend().devices()[0].features == set().union(*able)
        else:
            with pytest.raises(BackendUnavailable, match="this CPU lacks"):
                CpuBackend().devices()


def test_number_of_threads(monkeypatch, tmp_path):
    monkeypatch.delenv("GEMM_NUM_THREADS", raising=False)
    assert 1 <= granting.granted() <= (os.cpu_count() or 1)
    monkeypatch.setenv("GEMM_NUM_THREADS", "1")
    assert granting.granted() == 1
    for bad in ("0", "-2", "two", "1.5"):
        monkeypatch.setenv("GEMM_NUM_THREADS", bad)
        with pytest.raises(ValueError, match=f"GEMM_NUM_THREADS.*{bad}"):
            granting.granted()


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/", {"cpu.max": "max 100000\n"}, float("inf")),
        ("0::/pod/job", {"pod/cpu.max": "200000 100000\n", "pod/job/cpu.max": "max 100000\n"}, 2),
        ("0::/elsewhere", {"cpu.max": "300000 100000\n"}, 3),
        ("4:cpu,cpuacct:/job", {"cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n",
                                "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n"}, 0.5),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, float("inf")),
        ("4:memory:/", {"memory/cpu.cfs_quota_us": "1\n"}, float("inf")),
    ],
)  # fmt: skip
def test_quota_of_control_groups(own, files, quota, tmp_path):
    for name, text in files.items():
        path = tmp_path / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text(own + "\n")
    assert granting._cgroup_quota.__wrapped__(tmp_path / "mount", tmp_path / "own") == quota


def test_a_kernel_that_the_cpu_lacks():
    """Or the build."""
    for row, words in (
        (replace(ROWS[0], needs=("avx2049",)), "needs avx2049, which cpu:0 lacks"),
        (replace(ROWS[-1], name="sgemm_scalar_of_tomorrow"), "has no kernel sgemm_scalar_of_tomorrow"),
    ):
        with pytest.raises(KernelFailed, match=words):
            CpuBackend().launcher(row, CpuBackend().devices()[0], Problem(row.dtype, 1, 1, 1))


def test_a_missing_extension(monkeypatch):
    monkeypatch.setitem(sys.modules, "gemm._cpu", None)
    with pytest.raises(BackendUnavailable, match=r"gemm\._cpu"):
        CpuBackend().devices()


@pytest.mark.parametrize("flip", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize(("m", "n", "k"), [(8, 8, 8), (1, 40, 9), (7, 1, 9), (13, 70, 5), (300, 300, 300)])
def test_a_direct_product_has_the_bits_of_any(row, m, n, k, flip):
    """Small products over adjacent columns need no driver; the plan knows, and either way gives the same."""
    a, b, c = operands(row, m, n, k)
    launch = CpuLaunch(engine(), row, Problem(row.dtype, m, n, k, reproducible=True))
    results = []
    for allowed in (True, False):
        out = np.zeros((n, m), row.dtype).T if flip else np.zeros((m, n), row.dtype)
        plan, _ = launch._ready(a, b, None, out)
        if allowed:
            assert not plan.direct or m * n * k < 10**6
            assert plan.direct or flip or n == 1 or row.target == "scalar" or m * n * k > 10**6
        else:
            plan.direct = engine().ffi.NULL
        launch(a, b, None, out, 1.0, 0.0)
        launch(a, b, c, out, 0.5, 2.0)
        results.append(out)
    check_same_bits(results[0], results[1])
    check_same_bits(results[0][:1, :3], ordered(a[:1], b[:, :3], c[:1, :3], 0.5, 2.0))


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((1, 9), (9, 1))])
def test_a_prepared_call_keeps_no_pointer(shapes):
    """What gemm_is_direct fills in outlives its frame, and the operands."""
    x, y = (np.ones(shape, np.float32) for shape in shapes)
    out = np.empty((x.shape[0], y.shape[1]), np.float32)
    backend = CpuBackend()
    launch = backend.launcher(
        BY_NAME["sgemm_scalar_4x4"], backend.devices()[0], Problem("float32", *out.shape, x.shape[1])
    )
    plan, (*_, block) = launch._ready(x, y, None, out)
    assert plan.direct
    pointers = {name: getattr(block, name) for name in ("a", "b", "c", "to", "from", "alpha", "beta")}
    assert all(pointer == engine().ffi.NULL for pointer in pointers.values()), pointers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("shape", [(1,), (3, 7), (2, 300_000), (700, 300), (5, 1, 40_001), (3, 4, 5, 6)])
@pytest.mark.parametrize("size", [1, 4, 16])
def test_copies_reach_all_and_nothing_else(shape, size, stream):
    """Between arrays whose axes lie dense, apart, reversed or turned; of long lines, which are cut to jobs, too."""
    module = engine()
    rng = np.random.default_rng(sum(shape))

    def lie(how):
        if how == "apart":
            whole = rng.integers(0, 256, [2 * x for x in shape] + [size], np.uint8)
            return whole, whole[tuple(slice(None, None, 2) for _ in shape)]
        whole = rng.integers(0, 256, [*(shape[::-1] if how == "turned" else shape), size], np.uint8)
        if how == "turned":
            return whole, whole.transpose(*reversed(range(len(shape))), len(shape))
        return whole, whole[::-1] if how == "reversed" else whole

    for to_lies, from_lies in (("dense", "dense"), ("apart", "dense"), ("dense", "turned"), ("reversed", "apart")):
        (whole, to), (_, source) = lie(to_lies), lie(from_lies)
        expected, addresses = whole.copy(), [x.__array_interface__["data"][0] for x in (to, source)]
        view = np.ndarray(to.shape, np.uint8, expected, addresses[0] - whole.__array_interface__["data"][0], to.strides)
        view[...] = source
        places = [module.ffi.cast("char *", address) for address in addresses]
        module.lib.gemm_copy(*places, len(shape), shape, to.strides[:-1], source.strides[:-1], size, stream)
        np.testing.assert_array_equal(whole, expected, err_msg=f"{from_lies} to {to_lies}")
