"""No copies: `gemm.empty`, wrapped and prepared operands, resident arrays; and that calls on those do not wait.

That nothing is copied is asserted by `gemm.copied()`. Kernels are named, so that nothing is probed for.
"""

import gc
import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sessions
from helpers import at_once, python
from oracle import check_close, exact
from oracle.ordered import check_same_bits, ordered

import gemm
from gemm import execute
from gemm.backends import registry
from gemm.backends.opencl import mapped
from gemm.backends.opencl.layout import layouts
from gemm.backends.opencl.mapped import owner
from gemm.backends.opencl.staging import Traffic
from gemm.catalog import BY_NAME, KERNELS
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Problem, place_of
from gemm.select import verification

try:
    DEVICES = registry.backend("opencl").devices()
    WHY = ""
except BackendUnavailable as error:
    DEVICES, WHY = (), str(error)
SHARING = [device for device in DEVICES if device.unified][:1]  # kernels take long to compile
NAIVE, PADDED, IMAGE = "sgemm_generic_naive", "sgemm_generic_local_vec4", "sgemm_adreno_image_8x4"
HERE = SHARING[0].key if SHARING else ""


def naive(*operands, **options):
    return gemm.gemm(*operands, kernel=NAIVE, backend=HERE, **options)


def padded(*operands, **options):
    return gemm.gemm(*operands, kernel=PADDED, backend=HERE, **options)


pytestmark = pytest.mark.skipif(not SHARING, reason=WHY or "no OpenCL device shares the host's memory")


def runs(row, device):
    limits = {"m": 64, "n": 64, "k": 64, "batch": 1, **device.limits}
    return row.backend == "opencl" and not set(row.needs) - device.features and row.illegal(limits) is None


def reads_in_place(row, device):
    """Whether `row` reads padded row-major operands where they are: no panels, images only if they share memory."""
    both = layouts(row.params, False)
    return not any(x.panel or x.turned or (x.channels and not device.handle.image_alignment[0]) for x in both)


KINDS = ("a_channels", "b_channels", "a_turned")
FIRST = list({(r.source, *map(r.params.get, KINDS)): r for r in reversed(KERNELS)}.values())
"""One row of each source and kind of operands: what others differ in does not concern where operands lie."""


def cases(fits=lambda row, device: True):
    """A test of every kernel that runs on the device, of those that `fits` admits."""
    found = [
        pytest.param(row, device, id=f"{row.name}@{device.key}")
        for row in FIRST
        for device in SHARING
        if runs(row, device) and not row.inputs and fits(row, device)
    ]
    return pytest.mark.parametrize(("row", "device"), found)


def random(like, seed=0):
    like[...] = np.random.default_rng([seed, *like.shape]).standard_normal(like.shape)
    return like


def lying(device=HERE, dtype=np.float32):
    """new(*shape, seed=): random numbers in memory of `device`."""
    return lambda *shape, seed=0: random(gemm.empty(shape, dtype, device), seed)


class Copies:
    """What was copied on `device` inside a with block: {how: bytes}."""

    def __init__(self, device=HERE):
        self.device = device

    def __enter__(self):
        self.before = gemm.copied()[self.device]
        self.now = {}
        return self.now

    def __exit__(self, *_):
        after = gemm.copied()[self.device]
        self.now.update({how: after[how] - before for how, before in self.before.items()})


NONE = {"filled": 0, "packed": 0, "fetched": 0}


def test_empty_is_an_array_like_any_other():
    for place in (HERE, "cpu"):
        for shape in (7, (), (3,), (0, 5), (4, 6), (2, 3, 50, 70)):
            for dtype in (np.float32, np.float64, np.int8, np.complex64, bool):
                x = gemm.empty(shape, dtype, place)
                assert type(x) is np.ndarray
                assert x.shape == np.empty(shape).shape
                assert x.dtype == dtype
                assert x.flags.writeable
                x[...] = 1
                assert (x == 1).all()
    assert gemm.empty(3, device="cpu").dtype == np.float64
    assert gemm.empty((300, 3), device="cpu").ctypes.data % 4096 == 0
    assert owner(gemm.empty((4, 6), np.float32, HERE)[1:].T) is not None
    assert owner(gemm.empty((4, 6), np.float32, "cpu")) is None


def test_without_a_device_it_is_that_of_large_products(monkeypatch):
    asked = []

    def choose(problem, backend):
        asked.append((problem.dtype, min(problem.m, problem.n, problem.k) > 1000, backend))
        return SimpleNamespace(device=SHARING[0])

    monkeypatch.setattr(execute, "choose", choose)
    assert owner(gemm.empty((4, 4), np.float32)) is not None
    assert owner(gemm.empty((4, 4), np.float64, "opencl")) is not None
    assert asked == [("float32", True, "auto"), ("float64", True, "opencl")]


def test_empty_refuses():
    with pytest.raises(ValueError, match="negative"):
        gemm.empty((3, -1), device="cpu")
    with pytest.raises(TypeError, match="dtype"):
        gemm.empty(3, "S4", "cpu")
    with pytest.raises(ValueError, match="backend 'gpu' is not known: did you mean cuda or opencl"):
        gemm.empty(3, device="gpu")
    with pytest.raises(BackendUnavailable, match="no such device"):
        gemm.empty(3, device="opencl:99")


@cases()
def test_plain_arrays_are_counted_in_bytes(row, device):
    a, b = (random(np.empty(shape, row.dtype)) for shape in ((20, 30), (30, 40)))
    with Copies(device.key) as copies:
        result = gemm.gemm(a, b, kernel=row.name, backend=device.key)
    assert copies == {"filled": a.nbytes + b.nbytes, "packed": 0, "fetched": result.nbytes}


@pytest.mark.parametrize("wrapped", [False, True])
@cases(reads_in_place)
def test_operands_of_empty_are_not_copied(row, device, wrapped, monkeypatch):
    """Nor are large aligned arrays of the caller's own; nor anything beside a prepared matrix."""
    if wrapped and not mapped.shared_from(device.handle):
        pytest.skip("the driver copies the host's memory")
    monkeypatch.setattr(mapped, "WRAPPED_FROM", 1 << 16)
    new = lying("cpu" if wrapped else device.key, row.dtype)
    a, b, c, out = (new(256, 256, seed=seed) for seed in range(4))  # rows of whole pitches of images
    assert a.flags.c_contiguous
    a.flags.writeable = b.flags.writeable = False
    options = {"kernel": row.name, "backend": device.key}
    prepared, before = gemm.prepare(b, **options), c.copy()
    with Copies(device.key) as copies:
        assert gemm.gemm(a, b, c, alpha=0.5, beta=2, out=out, **options) is out
        between = out.copy()
        gemm.gemm(a, a, out, beta=-1, out=out, **options)
        assert gemm.gemm(a, prepared, out=c) is c
    assert copies == NONE
    check_close(between, exact(a, b, before, 0.5, 2.0))
    check_close(out, exact(a, a, between, 1.0, -1.0))
    check_close(c, exact(a, b))


@cases(lambda row, device: reads_in_place(row, device) and not set(row.ordered_needs) - device.features)
def test_the_padding_of_empty_changes_no_sum(row, device):
    """Rows, columns and k that are no multiples of tiles; sums that end as -0 before they meet the padding."""
    tiny, new = np.finfo(row.dtype).tiny, lying(device.key, row.dtype)
    a, b, c, out = new(62, 31), new(31, 62), new(62, 62), new(62, 62)
    a[:2], b[:, :2], c[...] = -tiny, tiny, -0.0
    a[3, 5] = np.inf
    with Copies(device.key) as copies:
        gemm.gemm(a, b, c, beta=1, out=out, reproducible=True, kernel=row.name, backend=device.key)
    check_same_bits(out, ordered(a, b, c, 1.0, 1.0))
    assert copies["filled"] == copies["fetched"] == 0
    if row.name in (NAIVE, PADDED):  # PADDED's tiles are of 64 x 64 x 16
        assert copies == NONE


@pytest.mark.parametrize("kernel", [NAIVE, PADDED, IMAGE, "sgemm_generic_panel_4x24"])
def test_views_of_empty(kernel):
    if not runs(BY_NAME[kernel], SHARING[0]):
        pytest.skip(f"{kernel} does not run on {HERE}")
    new, m, n, k = lying(), 19, 21, 13
    whole = new(3, 60, 60)
    views = [
        lambda r, c: whole[0, :r, :c],
        lambda r, c: whole[1, -r:, -c:],
        lambda r, c: whole[2, 3 : 3 + c, 5 : 5 + r].T,
        lambda r, c: whole[0, ::2, ::2][:r, :c],
        lambda r, c: whole[0, ::-1, ::-1][:r, :c],
        lambda r, c: np.broadcast_to(whole[1, :1, :c], (r, c)),
        lambda r, c: np.lib.stride_tricks.as_strided(whole[0], (r, c), (4, 8)),
    ]
    for at, (left, right) in enumerate(itertools.product(views, views)):
        a, b, c = left(m, k), right(k, n), views[at % 7](m, n)
        if at % 7 == 6:
            c = views[0](m, n)
        room = new(60, 60)
        before = room.copy()
        cut = [np.s_[2 : 2 + m, 3 : 3 + n], np.s_[: 2 * m : 2, -n:], np.s_[m - 1 :: -1, :n]][at % 3]
        with Copies() as copies:
            gemm.gemm(a, b, c, alpha=0.5, beta=2, out=room[cut], kernel=kernel, backend=HERE)
        check_close(room[cut], exact(a, b, c, 0.5, 2.0))
        room[cut] = before[cut]
        assert np.array_equal(room, before)
        assert copies["filled"] == copies["fetched"] == 0
        assert not copies["packed"] or kernel != NAIVE


def test_what_lies_beside_a_view_is_not_its_padding():
    """The array's own padding, 3 rows and columns, would do for these views, were it beside them."""
    whole = gemm.empty((125, 125), np.float32, HERE)
    whole[...] = np.nan
    a, b = random(whole[:61, :29]), random(whole[64:93, 64:])
    check_close(padded(a, b), exact(a, b))
    with Copies() as copies:
        padded(random(whole)[64:, 96:], whole[96:, 64:])
    assert copies["packed"] == 0


def test_batches_and_plain_operands_beside_those_of_empty():
    new = lying()
    a, b, out = new(3, 33, 20), new(20, 40), new(3, 33, 40)
    with Copies() as copies:
        naive(a, b, out=out)
    check_close(out, exact(np.array(a), np.array(b)))
    assert copies == NONE
    plain = random(np.empty((20, 40), np.float32), 5)
    with Copies() as copies:
        result = naive(a, plain)
        naive(np.array(a), plain, out, beta=1, out=out)
    check_close(result, exact(np.array(a), plain))
    assert copies == {"filled": 2 * plain.nbytes + a.nbytes, "packed": 0, "fetched": result.nbytes}


def test_a_result_may_overlap_its_operands():
    a = lying()(40, 40)
    was = a.copy()
    assert naive(a, a, out=a) is a
    check_close(a, exact(was, was))
    a[...] = was
    naive(a[:30, :30], a[:30, :30].T, a[5:35, 5:35], beta=1, out=a[10:, 10:])
    check_close(a[10:, 10:], exact(was[:30, :30], was[:30, :30].T, was[5:35, 5:35], 1.0, 1.0))
    a[10:, 10:] = was[10:, 10:]
    assert np.array_equal(a, was)


@pytest.mark.parametrize("wrapped", [False, True])
def test_threads_share_operands(wrapped, monkeypatch):
    """Each call returns with all of its operands mapped, whatever other threads are doing with them."""
    monkeypatch.setattr(mapped, "WRAPPED_FROM", 1)
    new = lying("cpu" if wrapped else HERE)
    a, b = new(48, 32), new(32, 64)
    expected = exact(a, b)

    def work(seed):
        out = new(48, 64)
        for turn in range(15):
            operands = (a, b) if turn % 2 else (a[:, ::-1], b[::-1])
            gemm.gemm(*operands, out=out, kernel=NAIVE if seed % 2 else PADDED, backend=HERE)
            check_close(out, expected)
            check_close(a @ b, expected)

    at_once(work, range(4))


def test_a_product_waits_for_another_threads_product(monkeypatch):
    new = lying()
    a, b = new(8, 8), new(8, 8)
    memory = owner(b)
    assert memory is not None
    entered, go, run = threading.Event(), threading.Event(), Traffic.run

    def held(*args):
        entered.set()
        assert go.wait(60)
        run(*args)

    monkeypatch.setattr(Traffic, "run", held)
    with ThreadPoolExecutor(2) as pool:
        first_one = pool.submit(gemm.gemm, a, b, kernel=NAIVE, backend=HERE)
        assert entered.wait(60)
        entered.clear()
        second = pool.submit(gemm.gemm, a, b, kernel=NAIVE, backend=HERE)
        assert not memory.lock.acquire(timeout=0.05)
        assert not entered.is_set()
        go.set()
        for result in (first_one, second):
            check_close(result.result(), exact(a, b))


@pytest.mark.parametrize("kind", ["launch", "interrupt", "unmap", "run"])
def test_after_a_failure_the_arrays_are_mapped(kind, monkeypatch):
    import pyopencl as cl

    new, device = lying(), SHARING[0]
    a, b, out = new(16, 16), new(16, 16, seed=1), new(16, 16, seed=2)
    was = a.copy(), b.copy()
    launch = registry.backend("opencl").launcher(BY_NAME[NAIVE], device, Problem("float32", 16, 16, 16))
    broken = cl.LogicError(cl._cl._ErrorRecord(msg="broken", code=-5, routine="clEnqueueNDRangeKernel"))
    expected = KernelFailed

    def fail(*_, **__):
        raise KeyboardInterrupt if kind == "interrupt" else broken

    with monkeypatch.context() as patch:
        if kind == "unmap":
            last = max((owner(x) for x in (a, b, out)), key=id)
            give = mapped.Mapped._unmap
            patch.setattr(mapped.Mapped, "_unmap", lambda self: fail() if self is last else give(self))
        elif kind == "run":  # after the kernel: what it did is undone for the map's first try
            mapping, tries = cl.enqueue_map_buffer, []

            def once(*args):
                tries.append(args)
                return fail() if len(tries) == 1 else mapping(*args)

            patch.setattr(cl, "enqueue_map_buffer", once)
        else:
            patch.setattr(Traffic, "run", fail)
            expected = KeyboardInterrupt if kind == "interrupt" else KernelFailed
        with pytest.raises(expected):
            launch(a, b, None, out, 1.0, 0.0)
    for memory in map(owner, (a, b, out)):
        assert memory._mapping is not None
        with ThreadPoolExecutor() as other:
            assert other.submit(memory.lock.acquire, False).result()
            other.submit(memory.lock.release).result()
    assert np.array_equal(a, was[0])
    assert np.array_equal(b, was[1])
    naive(a, b, out=out)
    check_close(out, exact(*was))


def drifting(monkeypatch):
    """From now on the driver maps to another address each time; what it has mapped."""
    import pyopencl as cl

    mapping, maps = cl.enqueue_map_buffer, []

    def moved(*args):
        array, event = mapping(*args)
        maps.append(array.base)
        address = array.ctypes.data + 64 * len(maps)
        return SimpleNamespace(base=array.base, __array_interface__={"data": (address, False)}), event

    monkeypatch.setattr(cl, "enqueue_map_buffer", moved)
    return maps


def test_a_driver_that_moves_its_memory_gets_none(monkeypatch):
    maps = drifting(monkeypatch)
    x = gemm.empty((64, 64), np.float32, HERE)
    assert len(maps) == 2
    assert owner(x) is None
    x[...] = 1
    assert x.sum() == 64 * 64


def test_memory_that_moves_after_all_is_an_error_and_no_retry(monkeypatch):
    a, out = lying()(16, 16), lying()(16, 16)
    launch = registry.backend("opencl").launcher(BY_NAME[NAIVE], SHARING[0], Problem("float32", 16, 16, 16))
    launch(a, a, None, out, 1.0, 0.0)
    drifting(monkeypatch)
    with pytest.raises(RuntimeError, match="another address") as caught:
        launch(a, a, None, out, 1.0, 0.0)
    assert not isinstance(caught.value, KernelFailed)


def test_memory_lives_as_long_as_its_views():
    a = lying()(64, 64)
    memory, cut = weakref.ref(owner(a)), a[8:40, ::2].T
    expected = cut.copy()
    del a
    gc.collect()
    assert memory() is not None
    result = naive(cut, lying()(32, 16))
    check_close(result, exact(expected, lying()(32, 16)))
    assert np.array_equal(cut, expected)
    del cut
    gc.collect()
    assert memory() is None


def test_a_process_ends_with_arrays_alive():
    program = f"import gemm, sys; sys.kept = x = gemm.empty((99, 99), 'f4', {HERE!r}); x[:] = 1; "
    program += f"print(gemm.gemm(x, x, kernel={NAIVE!r}, backend={HERE!r})[0, 0])"
    assert python(program) == "99.0\n"


def test_an_operand_is_not_lent_twice_by_one_thread(monkeypatch):
    """As a signal's handler would, that multiplies while the same thread does."""
    a, run = lying()(8, 8), Traffic.run

    def handler(*args):
        with pytest.raises(RuntimeError, match="another product of this thread"):
            naive(a, a)
        run(*args)

    monkeypatch.setattr(Traffic, "run", handler)
    check_close(naive(a, a), exact(a, a))


def test_the_documents_session():
    session = sessions.session(Path(__file__).parents[2] / "docs" / "zero-copy.md")
    assert sessions.run(session.replace("opencl:0", HERE), "zero-copy.md") >= 10


# Arrays of the caller's own, wrapped.


def test_what_is_not_wrapped(monkeypatch):
    new = lying("cpu")
    a, b, out = new(256, 256), new(256, 256, seed=1), new(256, 256)
    block = np.empty(256 * 257 * 4 + 4, np.uint8)[4:].view(np.float32)
    odd = random(block[: 256 * 256].reshape(256, 256))
    assert odd.ctypes.data % 64

    def filled(x, y, kernel=NAIVE):
        with Copies() as copies:
            gemm.gemm(x, y, out=out[: len(x)], kernel=kernel, backend=HERE)
        check_close(out[: len(x)], exact(x, y))
        return copies["filled"]

    assert filled(a, b) == 0
    assert filled(a.T, b.T) == 0  # NAIVE reads any strides
    assert filled(odd, b) == odd.nbytes
    assert filled(a[:, :128], b[:128]) == a.nbytes // 2 + b.nbytes // 2  # strided; too small
    assert filled(a.T, b, PADDED) == a.nbytes
    overlapping = new(512, 256)
    assert filled(overlapping[:256], overlapping[64:320]) == a.nbytes  # one of the two
    monkeypatch.setattr(mapped, "shared_from", lambda handle: 0)
    assert filled(a, b) == a.nbytes + b.nbytes


def test_a_copying_driver_is_seen(monkeypatch):
    import pyopencl as cl

    class Done:
        def wait(self):
            return

    handle = SHARING[0].handle
    monkeypatch.setattr(mapped, "_alignments", weakref.WeakKeyDictionary())
    assert mapped.shared_from(handle) in (64, 4096)  # the CPU runtimes that this runs on share
    mapped._alignments.clear()
    monkeypatch.setattr(cl, "enqueue_fill_buffer", lambda *_: Done())
    assert mapped.shared_from(handle) == 0


@pytest.mark.parametrize("kernel", [NAIVE, PADDED, IMAGE])
def test_a_plan_tells_what_is_copied(kernel, capsys):
    """As `gemm.copied` counts it afterwards."""
    if not runs(BY_NAME[kernel], SHARING[0]):
        pytest.skip(f"{kernel} does not run on {HERE}")
    here, page = lying(), lying("cpu")
    plain = page(256, 258)[:, :256]  # in nobody's order
    assert [place_of(x) for x in (here(4, 4).T, page(256, 256), page(4, 4), plain, None)] == [
        HERE, "4096", "", "", ""]  # fmt: skip
    options = {"kernel": kernel, "backend": HERE}
    for a, b, out in itertools.product((here(256, 256), here(256, 256).T, page(256, 256), plain), repeat=3):
        if out is a or out is b:
            continue
        lies = gemm.plan(a, b, out=out, **options).operands
        with Copies() as copies:
            gemm.gemm(a, b, out=out, **options)
        told = [lies[name] for name in "ab"]
        assert copies["filled"] == a.nbytes * told.count("copied")
        assert copies["packed"] == a.nbytes * told.count("packed on the device")
        assert copies["fetched"] == out.nbytes * (lies["out"] == "copied")
        assert set(lies.values()) <= {"copied", "packed on the device", "used in place"}
    plan = gemm.plan(plain, plain, **options)
    check_close(plan(page(256, 256), page(256, 256)), exact(page(256, 256), page(256, 256)))  # wherever they lie
    gemm.explain(plain, here(256, 256), **options)
    assert "operands: a is copied, b is " in capsys.readouterr().out
    assert gemm.plan(plain, plain, backend="cpu").operands == {}


# Prepared.


@cases()
def test_a_prepared_matrix_stays_on_the_device(row, device):
    b = random(np.empty((70, 50), row.dtype), 1)
    with Copies(device.key) as copies:
        prepared = gemm.prepare(b.T, trans_b=True, backend=device.key, kernel=row.name)
    assert copies == {"filled": b.nbytes, "packed": 0, "fetched": 0}
    assert prepared.kernel == row.name
    assert prepared.device == device.key
    assert prepared.nbytes >= b.nbytes
    expected, a = b.copy(), random(np.empty((3, 40, 70), row.dtype))
    b[...] = 0
    with Copies(device.key) as copies:
        result = gemm.gemm(a, prepared, alpha=2)
        again = gemm.gemm(a[0], prepared, result[0], beta=1)
    check_close(result, exact(a, expected, alpha=2.0))
    check_close(again, exact(a[0], expected, result[0], 1.0, 1.0))
    assert copies["filled"] == a.nbytes + a[0].nbytes + result[0].nbytes
    assert not copies["packed"]
    vector = gemm.gemm(a[0, 0], prepared)
    assert vector.shape == (50,)
    check_close(vector[None], exact(a[0, :1], expected))
    if not set(row.ordered_needs) - device.features:
        with pytest.raises(ValueError, match="reproducible=True"):
            gemm.gemm(a, prepared, reproducible=True)
        prepared = gemm.prepare(expected, reproducible=True, backend=device.key, kernel=row.name)
        check_same_bits(gemm.gemm(a[0, :4], prepared), ordered(a[0, :4], expected))


def test_a_prepared_matrix_is_not_cut(monkeypatch):
    device = SHARING[0]
    prepared = gemm.prepare(lying("cpu")(83, 61), backend=HERE, kernel=PADDED)
    monkeypatch.setitem(device.limits, "max_alloc", 4096)
    a = lying("cpu")(301, 83)
    check_close(gemm.gemm(a, prepared), exact(a, lying("cpu")(83, 61)))


def own_queue():
    """A context of the caller's own, which Intel's queues do not keep alive, and a queue of it."""
    import pyopencl as cl

    context = cl.Context([SHARING[0].handle.cl_device])
    return context, cl.CommandQueue(context)


def test_prepared_of_a_resident_array():
    import pyopencl.array as cla

    _context, queue = own_queue()
    host = random(np.empty((20, 30), np.float32)), random(np.empty((30, 40), np.float32))
    a, b = (cla.to_device(queue, x) for x in host)
    key = registry.backend("opencl").view(a, "a").device.key
    prepared = gemm.prepare(b, kernel=PADDED)
    assert prepared.device == key
    b.fill(0)
    with Copies(key) as copies:
        result = gemm.gemm(a, prepared)
        assert isinstance(result, cla.Array)
        check_close(result.get(), exact(*host))
    assert copies == {"filled": 0, "packed": a.nbytes, "fetched": 0}  # a's tiles are padded
    check_close(gemm.gemm(host[0], prepared), exact(*host))
    elsewhere = gemm.prepare(host[1], backend=HERE, kernel=PADDED)
    with pytest.raises(TypeError, match="operands must be in the memory of one device"):
        gemm.gemm(a, elsewhere)


def test_a_prepared_matrix_that_fails_says_so(monkeypatch):
    prepared = gemm.prepare(np.ones((4, 5), np.float32), backend=HERE, kernel=NAIVE)

    for kind in (MemoryError, BackendUnavailable):

        def fail(*_, full=kind is MemoryError):
            raise KernelFailed("broken", memory=full)

        with monkeypatch.context() as patch:
            patch.setattr(Traffic, "run", fail)
            patch.setattr(verification, "_failed", {})
            with pytest.raises(kind, match="broken"):
                gemm.gemm(np.ones((3, 4), np.float32), prepared)
            assert bool(verification._failed) == (kind is BackendUnavailable)
        verification.forget_choices()


# Resident operands: asynchronous, by pyopencl's own means.


@pytest.mark.parametrize("kernel", [NAIVE, PADDED])
def test_resident_products_are_enqueued_and_do_not_wait(kernel):
    """An event that has not happened holds a and so the product; the call returns, with an event of its own."""
    import pyopencl as cl
    import pyopencl.array as cla

    context, queue = own_queue()
    other = cl.CommandQueue(context)
    host = random(np.empty((64, 64), np.float32)), random(np.empty((64, 64), np.float32), 1)
    a, b = (cla.to_device(queue, x) for x in host)
    key = registry.backend("opencl").view(a, "a").device.key
    gemm.gemm(a, b, kernel=kernel).get()  # built
    gate = cl.UserEvent(context)
    a.add_event(gate)
    with Copies(key) as copies:
        result = gemm.gemm(a, b, kernel=kernel)
        twice = gemm.gemm(result, b, out=cla.empty(other, (64, 64), np.float32), kernel=kernel)  # in another queue
    assert copies == NONE
    (event,) = result.events
    waiting = cl.command_execution_status.COMPLETE
    assert event.command_execution_status != waiting
    assert twice.events[-1].command_execution_status != waiting
    del a, b  # the device still reads them
    gate.set_status(cl.command_execution_status.COMPLETE)
    twice.events[-1].wait()
    assert event.command_execution_status == waiting
    check_close(result.get(), exact(*host))
    check_close(twice.get(), exact(result.get(), host[1]))


def test_a_raw_buffer_needs_a_shape():
    import pyopencl as cl

    handle = SHARING[0].handle
    buffer = cl.Buffer(handle.context, cl.mem_flags.READ_WRITE, 64)
    with pytest.raises(TypeError, match=r"a is a pyopencl Buffer.*array.Array"):
        gemm.gemm(buffer, np.ones((4, 4), np.float32))


@pytest.mark.filterwarnings("ignore:Array has different queue from backing SVM memory")
@pytest.mark.parametrize("kernel", [NAIVE, PADDED, IMAGE])
def test_shared_virtual_memory(kernel):
    import pyopencl as cl
    import pyopencl.array as cla
    from pyopencl.tools import SVMAllocator

    device = SHARING[0].handle.cl_device
    if not runs(BY_NAME[kernel], SHARING[0]) or not cl.characterize.has_coarse_grain_buffer_svm(device):
        pytest.skip("no shared virtual memory here")
    context, queue = own_queue()
    # Without a queue, it is freed at once: PoCL 3 reads the list of what a queue is to free after the call has ended.
    allocator = SVMAllocator(context, alignment=64)
    host = random(np.empty((40, 40), np.float32))
    a = cla.to_device(queue, host, allocator=allocator)
    result = gemm.gemm(a, a.T, kernel=kernel)
    assert isinstance(result.base_data, cl.SVMAllocation)
    check_close(result.get(), exact(host, host.T))
    gemm.gemm(a[:30, :30], a[:30, :30], out=a[5:35, 10:], kernel=kernel)  # overlaps
    now = a.get()
    check_close(now[5:35, 10:], exact(host[:30, :30], host[:30, :30]))
    now[5:35, 10:] = host[5:35, 10:]
    assert np.array_equal(now, host)
