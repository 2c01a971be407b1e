"""What every kernel owes: the right numbers at any size, layout and scalar, and not a byte touched elsewhere.

Where operands are small integers every sum is exact in any order and results are compared for equality; where they are
not, the componentwise bound of the numerical contract holds.
"""

from itertools import product

import numpy as np
from oracle import check_close, exact, finfo, is_narrow, wrapped

from conformance.arena import LAYOUTS, POISON, Layout, case, equal, retyped
from conformance.subject import THIN, check, check_of

TRANSPOSED = {False: False, True: True, "N": False, "T": True, "C": True}


def random(seed=0):
    return np.random.default_rng([7, seed])


def times(a, b):
    """a @ b of small integers, exactly: in the widest type of their kind."""
    wide = {"c": np.complex128, "i": np.int64, "u": np.int64}.get(a.dtype.kind, np.float64)
    return np.asarray(np.matmul(a.astype(wide), b.astype(wide)))


def real(x):
    """x, or the real and imaginary parts of it side by side."""
    return x.view(x.real.dtype) if x.dtype.kind == "c" else x


def scaled(s, factor, x):
    """factor · x, each part rounded or wrapped once."""
    if s.kind == "i":
        return wrapped(x[:, :0], x[:0], x, 1, int(factor), s.dtype)
    parts = real(x)
    return np.asarray(parts.dtype.type(factor) * parts).view(s.dtype)


def close(s, a, b, c=None, alpha=1.0, beta=0.0, **options):
    """The product of `s` is within the bound; of integers, right."""
    if s.kind == "i":
        alpha, beta = s.factor(alpha.real), s.factor(beta.real)
        result = s(a, b, c, alpha=alpha, beta=beta, **options)
        equal(result, wrapped(a, b, c, int(alpha), int(beta), s.dtype))
    else:
        check_close(s(a, b, c, alpha=alpha, beta=beta, **options), exact(a, b, c, alpha, beta, s.precision, s.inputs))


@check
def small_sizes(s):
    """Every m, n, k of 1 … 33 crossed, with transposes, scalars, layouts and outs in rotation; equality.

    Only a full set has the whole product. k = (m + n + shift) mod 33 meets every pair of (m, n), (m, k) and (n, k) once
    a shift, and each m, n and k with every transpose and layout. In a thin set the first kernel of a source meets all
    pairs of (m, n), unless all are parts of one tile. Then it meets a sixth of them, as each of its kin does.
    """
    top = 33
    rng = random()
    a, b, c = (s.integers(rng, top, top) for _ in range(3))
    sums = np.stack([times(a[:, :k], b[:k]) for k in range(top + 1)])
    at, bt = a.T.copy(), b.T.copy()
    scalars = [(1.0, 0.0), (-2.0, 0.0), (1.0, 1.0), (3.0, -2.0), (1.0, s.factor(0.5))]
    memory = np.full((top + 2, top + 2), POISON, np.uint8).repeat(s.dtype.itemsize, 1).view(s.dtype)
    quiet = memory.copy()
    every = 3 if s.dtype in (np.float32, np.float64) else 11
    shifts = range(0, top, s.pick(top, every, 1))
    few = s.effort == THIN and (s.kin or min(s.params.get("BM", 1), s.params.get("BN", 1)) > top)
    for count, (m, n, shift) in enumerate(product(range(1, top + 1), range(1, top + 1), shifts)):
        if few and (m // 2 + n) % 6 != s.kin % 6:
            continue
        k = (m + n + shift) % top + 1
        alpha, beta = scalars[count % 5]
        trans_a, trans_b = bool(count & 1), count % 3 == 0
        x, y = (at[:k, :m] if trans_a else a[:m, :k]), (bt[:n, :k] if trans_b else b[:k, :n])
        if count % 7 < 3:  # tight: the leading dimension is the row itself
            x, y = x.copy(), y.copy()
        z = c[:m, :n] if beta else None
        out = memory[1 : m + 1, 1 : n + 1] if count % 4 else None
        result = s.call(x, y, z, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b, out=out)
        expected = alpha * sums[k, :m, :n]
        if beta:
            expected = expected + beta * c[:m, :n].astype(sums.dtype)
        expected = retyped(expected, s.dtype)
        facts = {"m": m, "n": n, "k": k, "alpha": alpha, "beta": beta, "trans_a": trans_a, "trans_b": trans_b}
        if not np.array_equal(result, expected):
            with case(**facts, ld=[v.strides[0] // v.itemsize for v in (x, y, result)]):
                equal(result, expected)
        if out is not None:
            out[...] = quiet[1 : m + 1, 1 : n + 1]
            if memory.tobytes() != quiet.tobytes():
                raise AssertionError(f"{facts}: something around out was overwritten")


def _sized(s, shapes):
    rng = random(1)
    for number, (m, n, k) in enumerate(shapes):
        a, b, c = s.operands(s.normal, rng, m, n, k)
        with case(m=m, n=n, k=k):
            if number % 2:
                close(s, Layout("F").place(a), Layout("F").place(b), c, 0.7, -1.3)
            else:
                close(s, a, b, out=Layout(pad=3).place(np.zeros_like(c)))


@check
def tile_edges(s):
    """One below, at and one above every tile and cache block."""
    rows, columns = s.edges("MR", "BM", "TM"), s.edges("NR", "BN", "TN")
    depths = s.edges("KC", "BK") if s.pick(False, True) else s.edges("BK")
    shapes = [(m, n, k) for m in rows for n in columns for k in depths[-4:]]
    shapes += [(m, columns[-1], 5) for m in s.edges("MC")] + [(rows[-1], n, 5) for n in s.edges("NC")]
    _sized(s, shapes[:: s.pick(3, 1)])
    if {"MC", "KC", "NC"} <= s.params.keys():
        _sized(s, [(s.params["MC"] + 1, columns[-1] + 2, s.params["KC"] + 1)])
        _sized(s, s.pick([], [(rows[-1], s.params["NC"] + 1, s.params["KC"] + 1)]))


@check
def odd_sizes(s):
    """Primes, single rows and columns, tall, wide, flat and deep products."""
    shapes = [(1, 1, 1), (1, 1, 67), (1, 67, 1), (67, 1, 1), (1, 131, 67), (131, 1, 67), (131, 67, 1), (37, 41, 43)]
    shapes += [(61, 67, 71), (101, 103, 7), (2, 521, 3), (521, 2, 3), (8, 8, 1009), (127, 3, 129), (64, 64, 64)]
    shapes += s.pick([], [(8, 8, 20011), (1, 3, 5003), (4099, 3, 5), (3, 4099, 5), (131, 257, 521), (300, 300, 17)])
    _sized(s, shapes)


@check
def zero_sizes(s):
    """0-sized dimensions: empty results, and beta·C where only k is 0."""
    for m, n, k in product((0, 1, 5), repeat=3):
        a, b, c = np.ones((m, k), s.dtype), np.ones((k, n), s.dtype), np.full((m, n), 3, s.dtype)
        with case(m=m, n=n, k=k):
            equal(s(a, b), np.full((m, n), k))
            equal(s(a, b, c, alpha=2.0, beta=-1.0), np.full((m, n), 2 * k - 3))
            out = s.blank((m, n))
            equal(s(a, b, out=out), np.full((m, n), k))
    equal(s(np.ones((0, 2, 3), s.dtype), np.ones((3, 4), s.dtype)), np.ones((0, 2, 4), s.dtype))


@check
def transposes(s):
    """Every spelling of both transposes, in both orders of memory."""
    rng = random(2)
    a, b, c = s.integers(rng, 7, 9), s.integers(rng, 9, 5), s.integers(rng, 7, 5)
    for trans_a, trans_b, order in product(TRANSPOSED, TRANSPOSED, "CF"):
        x = np.array(a.T if TRANSPOSED[trans_a] else a, order=order)
        y = np.array(b.T if TRANSPOSED[trans_b] else b, order=order)
        expected = 2 * times(*(z.conj() if trans == "C" else z for z, trans in ((a, trans_a), (b, trans_b)))) + c
        with case(trans_a=trans_a, trans_b=trans_b, order=order):
            equal(s(x, y, c, alpha=2.0, beta=1.0, trans_a=trans_a, trans_b=trans_b), expected)


@check
def layouts(s):
    """Every layout of a with every layout of b, those of c and out in rotation, poison all around.

    A thin set has a third of the pairs; of each of a kernel's kin, one pair a layout of a.
    """
    rng = random(3)
    m, n, k = 19, 37, 23
    a, b, c = s.operands(s.integers, rng, m, n, k)
    expected = times(a, b)
    names = list(LAYOUTS)
    for i, j in product(range(len(names)), repeat=2):
        if (i + j - s.kin) % (len(names) if s.effort == THIN and s.kin else s.pick(3, 1)):
            continue
        third, fourth = names[(i + j) % len(names)], names[(i + 2 * j) % len(names)]
        x, y, z = LAYOUTS[names[i]].place(a), LAYOUTS[names[j]].place(b), LAYOUTS[third].place(c)
        out = LAYOUTS[fourth].place(s.blank((m, n)))
        with case(a=names[i], b=names[j], c=third, out=fourth):
            equal(s(x, y, out=out), expected)
            equal(s(x, y, z, alpha=-1.0, beta=2.0, out=out), 2 * c - expected)
            equal(s(x, y, z, alpha=3.0, beta=-1.0, out=z), 3 * expected - c, "in place")


@check
def zero_strides(s):
    """Operands of one repeated row, column or element."""
    rng = random(4)
    m, n, k = 21, 34, 18
    a, b = s.integers(rng, m, k), s.integers(rng, k, n)
    xs = [np.broadcast_to(part, a.shape) for part in (a[:1], a[:, :1], a[:1, :1])]
    ys = [np.broadcast_to(part, b.shape) for part in (b[:1], b[:, :1], b[:1, :1])]
    for i, j in [*product(range(4), repeat=2)][1:]:
        x, y = [a, *xs][i], [b, *ys][j]
        with case(a=x.strides, b=y.strides):
            equal(s(x, y), times(np.array(x), np.array(y)))
    row = s.integers(rng, n)
    for c in (row, row[:1], np.broadcast_to(row, (m, n)), a[:, :1]):
        equal(s(a, b, c, beta=2.0), times(a, b) + 2 * c, f"c of shape {c.shape}")


@check
def batches(s):
    """Stacks of matrices: broadcast, strided, reversed, interleaved, with out and c, each equal to its own product."""
    rng = random(5)
    shapes = [((3,), (3,)), ((), (4,)), ((4,), ()), ((2, 1), (1, 3)), ((2, 3), (3,)), ((1,), (1,)), ((2, 1, 2), (3, 1))]
    for left, right in shapes:
        a, b = s.integers(rng, *left, 6, 11), s.integers(rng, *right, 11, 19)
        expected = times(a, b)
        c = s.integers(rng, *expected.shape)
        with case(a=a.shape, b=b.shape):
            equal(s(a, b), expected)
            out = Layout(pad=3).place(s.blank(expected.shape))
            equal(s(Layout(pad=1).place(a), Layout("F").place(b), c, alpha=2.0, beta=-1.0, out=out), 2 * expected - c)
            equal(s(a, b, c[..., :1], beta=1.0), expected + c[..., :1])
            for name in ("F", "F both reversed", "every second column"):
                out = LAYOUTS[name].place(s.blank(expected.shape))
                equal(s(Layout("F", pad=2).place(a), b, c, beta=1.0, out=out), expected + c, f"out {name}")
    a, b = s.integers(rng, 5, 7, 9), s.integers(rng, 5, 9, 8)
    expected = times(a, b)
    inner = np.moveaxis(np.moveaxis(a, 0, -1).copy(), -1, 0)
    out = np.moveaxis(s.blank((7, 8, 10))[..., ::2], -1, 0)
    equal(s(inner, b, out=out), expected, "interleaved stacks")
    equal(s(a[::-1], b[::-1].copy()), expected[::-1], "a reversed stack")
    equal(s(a[::2], b[::2]), expected[::2], "every second of a stack")
    equal(s(np.broadcast_to(a[:1], a.shape), b), times(a[0], b), "a repeated matrix")
    many = s.integers(rng, 200, 4, 3)
    equal(s(many, many, trans_b=True), times(many, many.swapaxes(1, 2)), "many small products")


@check
def scalars(s):
    """alpha and beta of every kind, NaN and infinities too, at a size inside and a size across tiles."""
    values = (0.0, 1.0, -1.0, 0.1, -2.5) if s.kind == "i" else (0.0, 1.0, -1.0, 0.1, -2.5, np.nan, np.inf)
    rng = random(6)
    for m, n, k in ((3, 2, 5), (37, 70, 19)):
        a, b, c = s.operands(s.normal, rng, m, n, k)
        c[0, 0] = 0.0
        for alpha, beta in product(values, repeat=2):
            with case(m=m, n=n, k=k, alpha=alpha, beta=beta):
                close(s, a, b, c, alpha, beta)


@check
def bias_and_activation(s):
    """A row or column is added after beta·C, and max(x, 0) or gelu applied to that, in a batch as well."""
    rng = random(8)
    for m, n, k in ((1, 1, 1), (5, 9, 3), (35, 67, 33)):
        a, b, c = s.operands(s.integers, rng, m, n, k)
        row, column = s.integers(rng, n), s.integers(rng, m, 1)
        sums = times(a, b)
        with case(m=m, n=n, k=k):
            equal(s(a, b, bias=row), retyped(sums + row, s.dtype), "a row")
            equal(s(a, b, bias=row, out=s.blank((n, m)).T), retyped(sums + row, s.dtype), "a row, out transposed")
            equal(s(a, b, c, alpha=-2.0, beta=-1.0, bias=column), retyped(-2 * sums - c + column, s.dtype), "a column")
            equal(s(np.stack([a, a]), b, bias=column)[1], retyped(sums + column, s.dtype), "a stack")
            if s.kind != "f":
                continue
            out = s.blank((m, n))
            equal(s(a, b, bias=row, activation="relu", out=out), np.maximum(sums + row, 0), "relu")
            some = np.where(np.arange(n) == n - 1, np.nan, row).astype(s.dtype)
            equal(s(a, b, bias=some, activation="relu"), np.maximum(sums + some, 0), "relu of NaN")
            x = (sums + row) / 8
            exact = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
            result = s(a, b, alpha=0.125, bias=(row / 8).astype(s.dtype), activation="gelu_tanh")
            limit = max(float(finfo(s.dtype).eps), 2.0**-23 if s.dtype.itemsize <= 4 else 0.0)
            if not (abs(result - exact) <= 16 * limit * np.maximum(1, abs(x))).all():
                raise AssertionError("gelu_tanh is wrong")


@check
def beta_zero_never_reads_c(s):
    """NaN in c and in out leave no trace when beta = 0, inside tiles and at their edges."""
    rng = random(7)
    for m, n, k in ((1, 1, 1), (5, 9, 3), (33, 65, 17), (6, 64, 0)):
        a, b = s.integers(rng, m, k), s.integers(rng, k, n)
        nan = s.blank((m, n))
        for alpha in (1.0, 2.0, 0.0):
            with case(m=m, n=n, k=k, alpha=alpha):
                equal(s(a, b, nan, alpha=alpha, beta=0.0), alpha * times(a, b))
                equal(s(a, b, alpha=alpha, out=nan.copy()), alpha * times(a, b))
                filled = nan.copy()
                equal(s(a, b, filled, alpha=alpha, beta=-0.0, out=filled), alpha * times(a, b))


@check
def alpha_zero_never_reads_a_b(s):
    """NaN and Inf in a and b leave no trace when alpha = 0; nor does k = 0 invent anything."""
    rng = random(8)
    for m, n, k in ((1, 1, 1), (5, 9, 3), (33, 65, 17), (6, 64, 0), (1, 1, 0)):
        a, b = s.blank((m, k)), s.blank((k, n)) if s.kind == "i" else np.full((k, n), np.inf, s.dtype)
        c = s.normal(rng, m, n)
        c.flat[0] = -0.0
        for alpha in (0.0, -0.0) if k else (0.0, 1.0, 3.0, *((np.nan,) if s.kind != "i" else ())):
            with case(m=m, n=n, k=k, alpha=alpha):
                equal(s(a, b, alpha=alpha), np.zeros((m, n), s.dtype))
                for beta in (1.0, -2.0, s.factor(0.3)):
                    expected = scaled(s, beta, c)
                    result = s(a, b, c, alpha=alpha, beta=beta)
                    equal(result, expected)
                    if s.kind != "i" and not np.array_equal(*(np.signbit(real(x)) for x in (result, expected))):
                        raise AssertionError(f"beta = {beta}: a zero changed its sign")
                equal(s(a, b, alpha=alpha, out=s.blank((m, n))), np.zeros((m, n), s.dtype))


@check_of("fc")
def non_finite(s):
    """NaN and Inf spread as IEEE arithmetic says: 0 · Inf and Inf - Inf are NaN, and nothing spreads further."""
    rng = random(9)
    for m, n, k in ((2, 3, 1), (9, 7, 5), (34, 67, 33)):
        for trial in range(s.pick(4, 12)):
            a, b, c = (s.integers(rng, *shape, limit=1) for shape in ((m, k), (k, n), (m, n)))
            for x in (a, b, c)[: 1 + trial % 3]:
                for value in rng.choice([np.nan, np.inf, -np.inf], 1 + trial % 2):
                    x[rng.integers(x.shape[0]), rng.integers(x.shape[1])] = value
            with case(m=m, n=n, k=k, trial=trial):
                close(s, a, b)
                close(s, a, b, c, -1.0, 1.0)
                close(s, a, b, c, 2.0, 0.5)
    # In the last, partial tile of everything, against zeros only.
    a, b = np.zeros((35, 37), s.dtype), np.zeros((37, 67), s.dtype)
    for x, y in ((a, b), (b.T, a.T)):
        x = x.copy()
        x[-1, -1] = np.inf
        expected = np.zeros((len(x), y.shape[1]), s.dtype)
        expected[-1] = np.nan
        equal(s(x, y), expected, "0 · Inf in the corner")


@check_of("fc")
def accuracy(s):
    """The bound on kind and unkind data: one sign, cancelling, of wildly different sizes."""
    rng = random(10)
    for m, n, k in ((13, 21, 300), *s.pick([], [(40, 33, 1200)])):
        a, b, c = s.operands(s.normal, rng, m, n, k)
        with case(m=m, n=n, k=k):
            positive = [abs(x).astype(s.dtype) for x in (a, b)]
            close(s, *positive)
            close(s, *positive, c, 1 / 3, 1 / 7)
            close(s, np.concatenate([a, a], 1), np.concatenate([b, -b], 0))
            close(s, s.wide(rng, m, k, exponent=30), s.wide(rng, k, n, exponent=30), c, -0.1, 1e3)
            close(s, s.narrowed((a + (100 if s.inputs else 1000)).astype(s.dtype)), b)
    if s.inputs:  # which have no such numbers
        return
    k = 4000
    small = np.full((1, k), s.dtype.type(finfo(s.dtype).eps * 0.75), s.dtype)
    small[0, 0] = 1  # 1 + many terms of 3/4 ulp: an accumulator that truncates, or is narrower, stays behind
    close(s, small.repeat(3, 0), np.ones((k, 2), s.dtype))


@check_of("fc")
def subnormals(s):
    """Subnormal operands and results are not flushed."""
    tiny = float(finfo(s.dtype).smallest_subnormal)
    rng = random(11)
    for m, n, k in ((1, 1, 1), (7, 9, 5), (35, 66, 17)):
        a, b, c = s.operands(s.integers, rng, m, n, k)
        low = (c * tiny).astype(s.dtype)
        with case(m=m, n=n, k=k):
            equal(s((a * tiny).astype(s.dtype), b), times(a, b) * tiny, "subnormal a")
            equal(s(a, (b * tiny).astype(s.dtype)), times(a, b) * tiny, "subnormal b")
            equal(
                s((a * tiny).astype(s.dtype), b, low, alpha=2.0, beta=-1.0), (2 * times(a, b) - c) * tiny, "subnormal c"
            )
            half = float(2.0 ** (finfo(s.dtype).minexp // 2 - 4))
            equal(
                s((a * half).astype(s.dtype), (b * half).astype(s.dtype)), times(a, b) * half * half, "small products"
            )


@check_of("fc")
def overflow(s):
    """Sums past the largest number are infinite, with the sign they have; just below it they are finite."""
    top = float(finfo(s.dtype).max)
    a = np.array([[top, top], [-top, -top], [top, -top], [top / 2, 0]], s.dtype)
    b = np.ones((2, 3), s.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = times(a, b).real.astype(np.float32 if is_narrow(s.dtype) else real(a).dtype)
        equal(s(a, b), sums)
        equal(s(a, b, np.ones((4, 3), s.dtype), beta=top), sums + sums.dtype.type(top))


@check
def repeatable(s):
    """The same call gives the same bits each time, and whatever lay in out."""
    rng = random(12)
    a, b = s.normal(rng, 150, 170), s.normal(rng, 170, 140)
    first = s(a, b).tobytes()
    for _ in range(s.pick(3, 15)):
        out = s.normal(rng, 150, 140)
        if s(a, b, out=out).tobytes() != first:
            raise AssertionError("the same product came out with other bits")


@check
def in_place(s):
    """out may be c, a or b, or overlap any of them in part."""
    rng = random(13)
    for n in (4, 33, 70):
        a, b, c = (s.integers(rng, n, n) for _ in range(3))
        expected = 2 * times(a, b) - c
        with case(n=n):
            for which in "abc":
                x, y, z = a.copy(), b.copy(), c.copy()
                out = {"a": x, "b": y, "c": z}[which]
                equal(s(x, y, z, alpha=2.0, beta=-1.0, out=out), expected, f"out is {which}")
                x, y, z = a.copy(), b.copy(), c.copy()
                out = {"a": x, "b": y, "c": z}[which].T
                equal(s(x, y, z, alpha=2.0, beta=-1.0, out=out), expected, f"out is {which}.T")
                for way, step in product((1, -1), (1, -1)):
                    memory = np.zeros((n + 2, n), s.dtype)
                    inner, outer = memory[1 : n + 1][::way], (memory[2:] if step > 0 else memory[:n])
                    inner[...] = {"a": a, "b": b, "c": c}[which]
                    given = {"a": a, "b": b, "c": c, which: inner}
                    result = s(given["a"], given["b"], given["c"], alpha=2.0, beta=-1.0, out=outer)
                    equal(result, expected, f"{which} in direction {way}, out {step} rows on")
            x = a.copy()
            equal(s(x, x, x, beta=1.0, out=x), times(a, a) + a, "all are one")


@check
def deep_in_place(s):
    """out is c, and the sum longer than a block of k: partial sums must not take c's place before c was read."""
    rng = random(14)
    deep, tall = s.edges("KC", "BK")[-1], s.edges("MC", "BM", "MR")[-1]
    large = [(8 * tall + 5, 2, deep), (36 * tall, 3, deep), (150, 130, 2 * deep)]
    for m, n, k in ((7, 9, deep), (35, 2, 2 * deep + 1), *s.pick([], large)):
        a, b, c = s.operands(s.integers, rng, m, n, k)
        for name in ("C", "F padded", "every second column", "rows reversed"):
            out = LAYOUTS[name].place(c)
            with case(m=m, n=n, k=k, layout=name):
                equal(s(a, b, out, alpha=2.0, beta=-3.0, out=out), 2 * times(a, b) - 3 * c)
                equal(s(a, b, c, alpha=2.0, beta=-3.0, out=LAYOUTS[name].place(c)), 2 * times(a, b) - 3 * c, "apart")
    many = s.integers(rng, 3, 6, deep)
    out = c = s.integers(rng, 3, 6, 6)
    expected = times(many, many.swapaxes(1, 2)) - c
    equal(s(many, many, c, trans_b=True, beta=-1.0, out=out), expected, "a stack")


@check_of("i")
def wrapping(s):
    """Numbers of the whole range: sums, scalars and what is added wrap modulo a power of two."""
    rng = random(15)
    whole = [np.iinfo(name) for name in (*(s.inputs or (s.dtype, s.dtype)), s.dtype)]
    for m, n, k in ((1, 1, 2), (7, 19, 33), (13, 35, 300), *s.pick([], [(40, 70, 1031)])):
        a, b, c = (
            rng.integers(x.min, x.max, shape, x.dtype, endpoint=True).astype(s.dtype)
            for x, shape in zip(whole, ((m, k), (k, n), (m, n)), strict=True)
        )
        for alpha, beta in ((1, 0), (127, 0), (1, 1), (-128, 113)):
            with case(m=m, n=n, k=k, alpha=alpha, beta=beta):
                close(s, a, b, c, alpha, beta)
        with case(m=m, n=n, k=k, out="columns adjacent: operands of two types must not change places"):
            close(s, a, b, c, 1, 1, out=s.blank((n, m)).T)
        for x, y in ((a.min(), b.min()), (a.max(), b.max()), (a.min(), b.max())):
            with case(m=m, n=n, k=k, x=x, y=y):
                close(s, np.full_like(a, x), np.full_like(b, y), c, 3, -1)


@check_of("c")
def complex_factors(s):
    """alpha and beta with imaginary parts, and conjugated operands."""
    rng = random(16)
    values = (1.0, 1j, -1j, 0.5 - 2j, -0.75 + 0.1j)
    for m, n, k in ((1, 3, 2), (13, 35, 21)):
        a, b, c = s.operands(s.normal, rng, m, n, k)
        for alpha, beta in product(values, (0.0, *values)):
            with case(m=m, n=n, k=k, alpha=alpha, beta=beta):
                close(s, a, b, c, alpha, beta)
        for conjugate_a, conjugate_b in product((False, True), repeat=2):
            x, y = a.conj().T if conjugate_a else a, b.conj().T if conjugate_b else b
            result = s(x, y, trans_a="NC"[conjugate_a], trans_b="NC"[conjugate_b])
            check_close(result, exact(a, b), f"conjugated: {conjugate_a}, {conjugate_b}")
