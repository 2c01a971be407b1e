"""float64 products by residues: the scheme's bound in exact arithmetic, and the kernels' results, bit for bit."""

import math
import struct
from itertools import combinations

import numpy as np
import pytest
from cuda_machine.direct import source
from oracle import residues
from oracle.residues import ALL, LIMIT, MODULI
from test_emulated import conditioned, graded
from test_tensor_core import cancelling, normal, uniform, wide

import gemm
from gemm.catalog import BY_NAME

ROW = "dgemm_cuda_kmajor_residues_128x256"
FAMILIES = [normal, uniform, wide, cancelling, conditioned, graded]
BY_FAMILY = pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)


def operands(family, m, n, k):
    random = np.random.default_rng(k)
    return family(random, m, k), family(random, k, n)


def exact(a, b):
    """a · b as integers, and the exponent of the power of two that scales them."""

    def integers(x):
        fraction, e = np.frexp(x)
        least = int(e.min()) - 53
        shifts = np.array([1 << int(shift) for shift in (e - 53 - least).ravel()], object).reshape(x.shape)
        return np.ldexp(fraction, 53).astype(np.int64).astype(object) * shifts, least

    (left, scale), (right, more) = integers(a), integers(b)
    return left.dot(right), scale + more


def errors(a, b, result):
    """In units of 2⁻⁵³ · |a| · |b|."""
    sums, scale = exact(a, b)
    size, _ = exact(np.abs(a), np.abs(b))
    error = np.array([
        float(abs(residues.Fraction(float(x)) / residues.Fraction(2) ** scale - s) / t) * 2.0**53
        for x, s, t in zip(result.ravel(), sums.ravel(), size.ravel(), strict=True)
    ])  # fmt: skip
    return error.reshape(result.shape)


def chain(a, b):
    """The product by one fma after the other. Each step is rounded to long double, then to float64."""
    total = np.zeros((a.shape[0], b.shape[1]))
    for p in range(a.shape[1]):
        total = (total + a[:, p : p + 1].astype(np.longdouble) * b[p]).astype(np.float64)
    return total


def test_moduli():
    assert all(math.gcd(*pair) == 1 for pair in combinations(MODULI, 2))
    assert max(MODULI) == 256
    assert LIMIT < ALL / 2


@BY_FAMILY
def test_lines_fit(family):
    """Sums stay below half of the product of the moduli, and few of its bits are wasted."""
    x = family(np.random.default_rng(1), 7, 100)
    integers = residues.whole(x, residues.exponents(x, 1), 1).astype(object)
    squares = (integers**2).sum(1)
    assert all(LIMIT / 5 < square < ALL / 2 for square in squares)


@BY_FAMILY
@pytest.mark.parametrize("k", [1, 2, 17, 300])
def test_within_its_bound(family, k):
    a, b = operands(family, 5, 6, k)
    allowed = residues.bound(a, b) / (2.0**-53 * (np.abs(a) @ np.abs(b)))
    assert (errors(a, b, residues.product(a, b)) <= allowed).all()


@pytest.mark.parametrize("family", [normal, uniform], ids=lambda f: f.__name__)
@pytest.mark.parametrize("k", [64, 1000])
def test_no_worse_than_a_chain_of_fma(family, k):
    """Where the elements of rows and columns are of like size."""
    a, b = operands(family, 12, 12, k)
    ours, chains = errors(a, b, residues.product(a, b)), errors(a, b, chain(a, b))
    assert ours.max() <= chains.max()
    assert np.median(ours) <= np.median(chains) * 1.1


def test_integers_are_exact():
    random = np.random.default_rng(2)
    a, b = (random.integers(-(2**20), 2**20, shape).astype(float) for shape in ((6, 900), (900, 5)))
    assert np.array_equal(residues.product(a, b), (a.astype(object).dot(b.astype(object))).astype(float))


def lines(kind):
    """Operands whose lines are rows: of many sizes, with zeros, subnormal and huge numbers, and ties."""
    random = np.random.default_rng(3)
    if kind == "sizes":
        return normal(random, 21, 133) * 2.0 ** random.integers(-300, 300, 21)[:, None]
    if kind == "spread":
        return wide(random, 5, 16) * 2.0 ** random.integers(-900, 900, (5, 16))
    if kind == "subnormal":
        x = np.ldexp(random.integers(-9, 10, (6, 40)).astype(float), -1074)
        x[2] = 0
        x[3] = 2.0**-1022
        x[4, 1:] = 0
        x[5] = np.ldexp(random.integers(-(2**50), 2**50, 40).astype(float), -1074)
        return x
    if kind == "huge":
        return np.where(random.integers(0, 2, (3, 300)), -1, 1) * np.finfo(float).max
    return random.integers(-(2**53), 2**53, (4, 600)) * 2.0**-5  # kind == "ties"


def split(machine, x, *, turned, right):
    """gemm_cuda_residues' planes and exponents of the rows of x."""
    extent, k = x.shape
    padded, pitch = -(-extent // 64) * 64, -(-k // 16) * 16
    memory = machine.to_device(np.asfortranarray(x).T if turned else x)
    across, along = (1, extent) if turned else (k, 1)
    planes = machine.to_device(np.full((len(MODULI), padded, pitch), 99, np.int8))
    exponents = machine.to_device(np.full(extent + 1, 7, np.int32))
    count = 16 if turned else 2
    macros = {"TURNED": int(turned), "RIGHT": int(right), "LINES": count}
    packed = struct.pack("3Q2q2q2q", memory.address, planes.address, exponents.address, extent, k, across, along,
                         pitch, padded * pitch)  # fmt: skip
    kernel = machine.kernel(source("gemm_cuda_residues.cu"), "gemm_cuda_residues", macros)
    kernel((-(-extent // count),), (256,), packed)
    found, e = planes.get(), exponents.get()
    assert e[extent] == 7
    for each in (memory, planes, exponents):
        each.free()
    order = [place(i) for i in range(extent)] if right else np.arange(extent)
    assert (np.delete(found, order, 1) == 99).all()
    return found[:, order, :k], e[:extent]


def place(line):
    """The row of a plane in which gemm_cuda_residues stores a line of b: as the lanes of gemm_cuda_kmajor hold sums."""
    byte, word, lane = line % 4, line // 4 % 4, line // 16 % 4
    return line // 64 * 64 + 16 * word + byte // 2 * 8 + 2 * lane + byte % 2


@pytest.mark.parametrize("kind", ["sizes", "spread", "subnormal", "huge", "ties"])
@pytest.mark.parametrize(("turned", "right"), [(False, False), (True, True), (False, True), (True, False)])
def test_planes_are_the_scheme_s(machine, plain_settings, kind, turned, right):
    x = lines(kind)
    found, e = split(machine, x, turned=turned, right=right)
    assert np.array_equal(e, residues.exponents(x, 1))
    expected = residues.planes(residues.whole(x, e, 1), right=right)
    expected[1][(expected[1] == 127) & (found[1] == -128)] = -128  # another remainder by 255
    assert np.array_equal(found, expected)


def combine(machine, rests, e, f):
    """gemm_cuda_combine's results from residues (modulus, row, column) and exponents, as the emulated GPU computes."""
    moduli, m, n = rests.shape
    padded = np.zeros((moduli, m, -(-n // 64) * 64), np.uint8)
    padded[..., :n] = rests
    devices = [machine.to_device(x) for x in (padded, np.concatenate([e, f]).astype(np.int32), np.full((m, n), 5.0))]
    planes, exponents, out = (x.address for x in devices)
    sizes, strides = (m, n, 3, 1), (3, 1, 0, n, 1, 0, n, 1, 0, n, 1, 0, 0, 0)
    given = 0, 0, 0, out, 0, *sizes, *strides, planes, exponents, 1, 0, 0, 0, 1.0, 0.0
    packed = struct.pack("5Q4q12q2q2Q4i8xd8xd8x", *given)
    kernel = machine.kernel(source("gemm_cuda_combine.cu"), "gemm_cuda_combine", {})
    kernel((-(-m * padded.shape[2] // 1024),), (256,), packed)
    found = devices[-1].get()
    for each in devices:
        each.free()
    return found


def test_sums_are_combined_exactly(machine, plain_settings):
    """Integers up to the limit, small, and near to ties; 0 by both residues; results that overflow or are subnormal."""
    random = np.random.default_rng(4)
    bound = ALL // 2 - (ALL >> 21)
    some = [int(random.integers(1, 2**62)) * bound // 2 ** int(random.integers(62, 172)) for _ in range(498)]
    ties = 2**108 + 2**55 + 1, 2**108 + 2**55 - 1, -(2**108) - 2**55 - 1, 2**108 + 3 * 2**55 - 1
    some = [0, 0, 1, -1, bound, -bound, 2**52 + 1, 2**109, *ties, *some, *(-x for x in some)]
    some = np.array(some, object).reshape(9, -1)
    rests = np.stack([some * pow(ALL // q, -1, q) % q for q in MODULI]).astype(np.uint8)
    rests[1:, 0, 1] = MODULI[1:]
    e, f = random.integers(-1128, 980, 9), random.integers(-1128, 980, some.shape[1])
    e[:3], f[:10] = (0, -1128, 979), (0, 0, 0, 0, 0, 0, -1128, 979, 50, -50)
    found = combine(machine, rests, e, f)
    assert np.array_equal(found, residues.scaled(some, e[:, None] + f))


def run(*given, **options):
    return gemm.gemm(*given, kernel=options.pop("kernel", ROW), precision="high", **options)


@pytest.mark.parametrize(
    ("emulated_gpu", "layout"), [("late", "NNN"), ("early", "NTN"), ("late", "TNT"), ("early", "TTT")],
    indirect=["emulated_gpu"],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 70, 17), (140, 130, 150)])
def test_products_are_the_scheme_s(emulated_gpu, layout, shape):
    m, n, k = shape
    a, b = operands(normal, m, n, k)
    a, b = (np.asfortranarray(x) if letter == "T" else x for x, letter in zip((a, b), layout, strict=False))
    out = np.full((n, m), np.nan).T if layout[2] == "T" else np.full((m, n), np.nan)
    run(a, b, out=out)
    assert np.array_equal(out, residues.product(a, b))


@pytest.mark.parametrize("emulated_gpu", ["late"], indirect=True)
def test_tiles_and_stages(emulated_gpu):
    """More tiles than blocks run at once, and more steps of k than the ring has stages; exact integers."""
    random = np.random.default_rng(5)
    for row in (row for row in BY_NAME.values() if row.params.get("MODULI")):
        p = row.params
        m, n, k = 2 * p["BM"] + 3, p["BN"] + 70, (p["STAGES"] + 1) * p["BK"] + 5
        a, b = (random.integers(-99, 100, shape).astype(float) for shape in ((m, k), (k, n)))
        c = random.integers(-9, 10, (m, n)).astype(float)
        assert np.array_equal(run(a, b, c, alpha=-2, beta=3, kernel=row.name), -2 * (a @ b) + 3 * c)


@pytest.mark.parametrize("emulated_gpu", ["early"], indirect=True)
def test_epilogue_and_stacks(emulated_gpu):
    random = np.random.default_rng(6)
    a, b, c = (random.integers(-9, 10, shape).astype(float) for shape in ((3, 5, 40), (3, 40, 67), (3, 5, 67)))
    bias = random.integers(-9, 10, 67).astype(float)
    found = run(a, b, c, alpha=0.5, beta=-1, bias=bias, activation="relu")
    assert np.array_equal(found, np.maximum(0.5 * (a @ b) - c + bias, 0))
    assert np.array_equal(run(a, b[0]), a @ b[0])
    assert np.array_equal(run(a[0], b), a[0] @ b)


@pytest.mark.parametrize("emulated_gpu", ["late"], indirect=True)
def test_infinities_and_nan(emulated_gpu):
    """The results of their rows and columns are IEEE's; all others are as without them."""
    a, b = operands(normal, 9, 70, 33)
    plain = run(a, b)
    a[2, 5], a[3, 1], a[4, 7], a[4, 8] = np.inf, np.nan, np.inf, -np.inf
    b[6, 11], b[5, 12], b[0, 69] = -np.inf, 0, np.nan
    a[5, 6], b[5, 13] = 0, 2.0**-1074
    found = run(a, b)
    with np.errstate(invalid="ignore"):
        expected = a @ b
    usual = np.isfinite(a).all(1)[:, None] & np.isfinite(b).all(0)
    usual[5], usual[:, 12:14] = False, False  # these have other operands than before
    assert np.array_equal(found[usual], plain[usual])
    for name in (np.isnan, np.isposinf, np.isneginf):
        assert np.array_equal(name(found), name(expected))
    finite = np.isfinite(expected)
    assert np.allclose(found[finite], expected[finite], rtol=1e-12, atol=1e-12)
