"""Repeated products of NumPy arrays on an OpenCL device: like the first ones, whatever has changed between them."""

from __future__ import annotations

import gc
import math
import sys
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest
import repeated

import gemm
from gemm import execute
from gemm.backends import registry
from gemm.core import operands
from gemm.core.errors import BackendUnavailable
from gemm.extras import batching
from gemm.frontend import plan_cache
from gemm.frontend.arguments import Options
from gemm.select import calibration

cl = pytest.importorskip("pyopencl")
from gemm.backends.opencl import launch, replay, staging  # noqa: E402

KERNEL = "sgemm_generic_naive"
SPLIT = "sgemm_generic_skinny_4x4"
PANELS = "sgemm_generic_panel_4x24"

pytestmark = pytest.mark.usefixtures("settled")


@pytest.fixture(autouse=True)
def device():
    try:
        return registry.backend("opencl").devices()[0]
    except BackendUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """How many products went the long way, through the launcher. Only the second one of a shape can be repeated."""
    seen, long = [], launch.Launcher._launch
    monkeypatch.setattr(launch.Launcher, "_launch", lambda *args: seen.append(1) or long(*args))
    plan_cache.forget()
    execute.launcher.cache_clear()
    yield seen
    plan_cache.forget()


def arrays(*shapes, seed=0, dtype="float32"):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def newest(device):
    return [holder for holder in device.handle._charged if isinstance(holder, replay.HostReplay)][-1]


def first(*given, **options):
    """The product as a process computes it that has computed no other one."""
    plan_cache.forget()
    return gemm.gemm(*given, **options)


FORMS = {
    "plain": ((33, 70), (70, 50), lambda a, b: (a, b, {})),
    "a transposed": ((70, 33), (70, 50), lambda a, b: (a.T, b, {})),
    "b transposed by the option": ((33, 70), (50, 70), lambda a, b: (a, b, {"trans_b": True})),
    "reversed": ((33, 70), (70, 50), lambda a, b: (a[::-1], b[:, ::-1], {})),
    "every second": ((33, 140), (140, 100), lambda a, b: (a[:, ::2], b[::2, ::2], {})),
    "a batch": ((3, 33, 70), (3, 70, 50), lambda a, b: (a, b, {})),
    "one b for a batch": ((3, 33, 70), (70, 50), lambda a, b: (a, b, {})),
    "two batch axes": ((2, 1, 9, 8), (2, 8, 7), lambda a, b: (a, b, {})),
    "a vector": ((70,), (70, 50), lambda a, b: (a, b, {})),
    "few rows": ((3, 900), (900, 40), lambda a, b: (a, b, {})),
    "few columns": ((40, 900), (900, 3), lambda a, b: (a, b, {})),
}  # fmt: skip


@pytest.mark.parametrize("given", [False, True], ids=["new out", "out"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", [KERNEL, SPLIT, PANELS, "sgemm_generic_tile_64x64", "sgemm_generic_dot_16x4"])
def test_a_repeated_product_has_the_bits_of_the_first(launched, kernel, form, given):
    *shapes, made = FORMS[form]
    pairs = [made(*arrays(*shapes, seed=seed)) for seed in range(3)]
    expected = [first(a, b, kernel=kernel, **options) for a, b, options in pairs]
    plan_cache.forget()
    launched.clear()
    for (a, b, options), right in zip(pairs, expected, strict=True):
        out = np.full(right.shape, np.nan, np.float32) if given else None
        found = gemm.gemm(a, b, kernel=kernel, out=out, **options)
        assert found is out or out is None
        assert np.array_equal(found, right)
    assert len(launched) == (3 if form == "two batch axes" else 1)  # its launches overlap with copies


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_c_alpha_and_beta_are_those_of_the_call(launched, dtype):
    given = [arrays((33, 70), (70, 50), (33, 50), seed=seed, dtype=dtype) for seed in range(4)]
    scales = [(1 + number, 0.5 - number) for number in range(4)]
    for own_out in (False, True):
        expected = [
            first(a, b, c, alpha=x, beta=y, backend="opencl") for (a, b, c), (x, y) in zip(given, scales, strict=True)
        ]
        plan_cache.forget()
        launched.clear()
        for (a, b, c), (x, y), right in zip(given, scales, expected, strict=True):
            out = c.copy() if own_out else None
            assert np.array_equal(
                gemm.gemm(a, b, c if out is None else out, alpha=x, beta=y, out=out, backend="opencl"), right
            )
        assert len(launched) == 1
    repeated.scalars(lambda x: x, lambda x: x, kernel=KERNEL)


def test_products_of_no_terms():
    repeated.no_terms(lambda x: x, lambda x: x, kernel=KERNEL)


def odd(x):
    """A copy that is not aligned to its elements."""
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:]
    view = raw.view(x.dtype).reshape(x.shape)
    view[...] = x
    assert not view.flags.aligned
    return view


class Own(np.ndarray):
    pass


@pytest.mark.parametrize("change", [
    lambda a, b: (a.astype(np.float64), b), lambda a, b: (a.astype(">f4"), b), lambda a, b: (odd(a), odd(b)),
    lambda a, b: (a.T.copy().T, b), lambda a, b: (a, b[:, :7]), lambda a, b: (a[:, ::-1], b), lambda a, b: (a[:1], b),
    lambda a, b: (a.view(Own), b), lambda a, b: (a.tolist(), b), lambda a, b: (a.astype(np.float16), b),
    lambda a, b: (np.broadcast_to(a[:1], a.shape), b), lambda a, b: (a[None], b), lambda a, b: (a[0], b),
    lambda a, b: (b, a), lambda a, b: (a, a), lambda a, b: (gemm.array(a), b),
])  # fmt: skip
def test_operands_that_have_changed_are_multiplied_as_they_are(change):
    a, b = arrays((8, 8), (8, 8))
    for _ in range(3):
        gemm.gemm(a, b, backend="opencl")
    x, y = change(a, b)
    for _ in range(2):
        found = gemm.gemm(x, y, backend="opencl")
        right = np.asarray(x, float) @ np.asarray(y, float)
        assert np.asarray(found).dtype == np.result_type(np.asarray(x), np.asarray(y))
        assert np.allclose(np.asarray(found), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("options", "error", "words"), [
    (lambda a, b, c: {"out": readonly(c)}, ValueError, "out"),
    (lambda a, b, c: {"out": c[:7]}, ValueError, "out has shape"),
    (lambda a, b, c: {"out": c.astype(np.int8)}, TypeError, "out has dtype"),
    (lambda a, b, c: {"alpha": "x"}, TypeError, "alpha must be a number"),
    (lambda a, b, c: {"alpha": 1j}, TypeError, "alpha"),
    (lambda a, b, c: {"beta": 1.0}, ValueError, "c is None"),
    (lambda a, b, c: {"c": c[:3], "beta": 1.0}, ValueError, "c has shape"),
    (lambda a, b, c: {"bias": np.ones(3, np.float32)}, ValueError, "bias has shape"),
])  # fmt: skip
def test_errors_name_the_argument_after_a_product_that_was_right(options, error, words):
    a, b, c = arrays((8, 8), (8, 8), (8, 8))
    for _ in range(3):
        gemm.gemm(a, b, backend="opencl", out=c)
        gemm.gemm(a, b, backend="opencl")
        gemm.gemm(a, b, c, beta=1.0, backend="opencl")
    before = c.copy()
    with pytest.raises(error, match=words):
        gemm.gemm(a, b, backend="opencl", **options(a, b, c))
    assert np.array_equal(c, before)
    with pytest.raises(ValueError, match="must agree"):
        gemm.gemm(a, b[:7], backend="opencl")


def readonly(x):
    x = x.view()
    x.flags.writeable = False
    return x


def test_operands_that_overlap_out(launched):
    """They are copied before out is written, as for the first product."""
    for turn in range(3):
        a, b, c = arrays((8, 8), (8, 8), (8, 8), seed=turn)
        frame = np.zeros((9, 8), np.float32)
        for _ in range(2):
            gemm.gemm(a, b, out=c.copy(), kernel=KERNEL)
            gemm.gemm(a, b, c, beta=1.0, out=c.copy(), kernel=KERNEL)
        for left, right, add, out in ((a, b, None, a), (a, b, None, b), (a, b, frame[1:], frame[:8]), (c, c, c, c)):
            expected = left.astype(float) @ right + (0 if add is None else add)
            beta = 0.0 if add is None else 1.0
            assert gemm.gemm(left, right, add, beta=beta, out=out, kernel=KERNEL) is out
            assert np.allclose(out, expected, rtol=1e-4, atol=1e-3)
    assert len(launched) == 4


def test_memory_that_the_device_shares_is_not_copied(launched, device):
    """Nor read while a product of another thread has it."""
    a, b = arrays((64, 64), (64, 64))
    if not device.unified:
        pytest.skip("the device shares no memory with the host")
    shared = gemm.empty((64, 64), np.float32, device=device.key)
    shared[...] = a
    for _ in range(3):
        gemm.gemm(a, b, kernel=KERNEL, backend=device.key)
    launched.clear()
    for _ in range(2):
        assert np.allclose(gemm.gemm(shared, b, kernel=KERNEL, backend=device.key), a @ b, rtol=1e-3, atol=1e-3)
        assert np.allclose(gemm.gemm(shared[:, :], b, kernel=KERNEL, backend=device.key), a @ b, rtol=1e-3, atol=1e-3)
    assert len(launched) == 4
    assert launch.Launcher.signature(shared, b, None, None) is None  # another device copies it, and locks it meanwhile


def placed(x, shift):
    """A copy that begins `shift` bytes after the beginning of a page."""
    memory = operands.aligned(x.nbytes + 64)[shift : shift + x.nbytes].view(x.dtype).reshape(x.shape)
    memory[...] = x
    return memory


@pytest.mark.parametrize(("shifts", "copied"), [((4, 4, 4), True), ((0, 4, 4), False), ((4, 0, 4), False),
                                                ((4, 4, 0), False), ((0, 0, 0), False)])  # fmt: skip
def test_large_arrays_that_the_device_wraps_are_not_repeated(launched, device, shifts, copied):
    """An array is wrapped if its address is aligned. A product is repeated if it copies all of its operands."""
    named = {"kernel": KERNEL, "backend": device.key}
    for turn in range(4):
        a, b = arrays((300, 320), (320, 384), seed=turn)
        out = placed(np.empty((300, 384), np.float32), shifts[2])
        assert gemm.gemm(placed(a, shifts[0]), placed(b, shifts[1]), out=out, **named) is out
        assert np.allclose(out, a.astype(float) @ b, rtol=1e-3, atol=1e-3)
    assert len(launched) == (2 if copied or not device.unified else 4)
    a, b = arrays((300, 320), (320, 384), seed=4)
    left, right, out = placed(a, 4 - shifts[0]), placed(b, shifts[1]), placed(np.empty((300, 384), np.float32), 4)
    assert np.allclose(gemm.gemm(left, right, out=out, **named), a.astype(float) @ b, rtol=1e-3, atol=1e-3)


def test_large_operands_are_not_kept(launched, monkeypatch):
    monkeypatch.setattr(launch, "HOST_BYTES", 1000)
    a, b = arrays((20, 20), (20, 20))
    for _ in range(5):
        assert np.allclose(gemm.gemm(a, b, kernel=KERNEL), a @ b, rtol=1e-4, atol=1e-4)
    assert len(launched) == 5


def test_memory_that_was_dropped_is_not_used(launched, device):
    a, b = arrays((20, 20), (20, 20))
    for _ in range(3):
        gemm.gemm(a, b, kernel=KERNEL, backend=device.key)
    newest(device).drop()
    assert np.allclose(gemm.gemm(a, b, kernel=KERNEL, backend=device.key), a @ b, rtol=1e-4, atol=1e-4)
    assert len(launched) == 3


def test_no_operand_is_kept_alive():
    kept = []
    for _ in range(3):
        given = arrays((20, 20), (20, 20), (20, 20))
        gemm.gemm(*given, beta=1.0, out=given[2], kernel=KERNEL)
        kept += map(weakref.ref, given)
    del given
    assert not [x for x in kept if x() is not None]


def test_launches_that_are_not_repeated_keep_no_memory(device, monkeypatch):
    """But for the last one. Products of lists are never repeated."""
    made = []

    def traffic(*args):
        found = staging.Traffic(*args)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(launch, "Traffic", traffic)
    for n in range(5, 12):
        a, b = arrays((4, n), (n, 3))
        found = gemm.gemm(a.tolist(), b.tolist(), dtype="float32", kernel=KERNEL, backend=device.key)
        assert np.allclose(found, a @ b, atol=1e-4)
    gc.collect()
    assert [number for number, kept in enumerate(made) if kept() is not None] == [6]


@pytest.mark.parametrize(("owner", "name", "earlier"), [(launch.Launcher, "_launch", 0), (replay, "fill", 3)])
def test_a_call_within_a_call(monkeypatch, owner, name, earlier):
    """As that of a signal handler, which computes a product like the one that it interrupts: the first product between
    its launch and its end, or a repeated one while it copies its operands."""
    given = [arrays((20, 20), (20, 20), seed=seed) for seed in range(2)]
    for _ in range(earlier):
        gemm.gemm(*given[0], kernel=KERNEL)
    inner, function = [], getattr(owner, name)

    def interrupted(*args):
        found = function(*args)
        if not inner:
            inner.append(None)
            inner.append(gemm.gemm(*given[1], kernel=KERNEL))
        return found

    monkeypatch.setattr(owner, name, interrupted)
    outer = gemm.gemm(*given[0], kernel=KERNEL)
    assert len(inner) == 2
    for found, (a, b) in ((outer, given[0]), (inner[1], given[1])):
        assert np.allclose(found, a @ b, rtol=1e-4, atol=1e-4)


def test_products_that_were_timed_are_repeated_afterwards(launched, monkeypatch):
    """If another device may be faster, gemm times some products on each device first."""
    devices = registry.backend("opencl").devices()
    monkeypatch.setattr(calibration, "DOUBT", math.inf)
    monkeypatch.setenv("GEMM_ADAPT", "1")
    calibration.forget()
    a, b = arrays((20, 20), (20, 20))
    for _ in range((1 + calibration.TIMES + 2) * len(devices)):
        assert np.allclose(gemm.gemm(a, b, kernel=KERNEL), a @ b, rtol=1e-4, atol=1e-4)
    assert len(launched) >= (1 + calibration.TIMES + 1 if len(devices) > 1 else 1)
    launched.clear()
    for _ in range(3):
        assert np.allclose(gemm.gemm(a, b, kernel=KERNEL), a @ b, rtol=1e-4, atol=1e-4)
    assert not launched
    calibration.forget()


def test_threads_have_their_own():
    wrong = []

    def work(seed):
        a, b = arrays((40, 50), (50, 60), seed=seed)
        right, out = a @ b, np.empty((40, 60), np.float32)
        for _ in range(30):
            gemm.gemm(a, b, out=out, kernel=PANELS)
            wrong.extend([] if np.allclose(out, right, rtol=1e-3, atol=1e-3) else [seed])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("refused", ["enqueue_map_buffer", "enqueue_nd_range_kernel"])
@pytest.mark.parametrize("number", [1, 3])
def test_what_the_driver_refuses_is_met_the_long_way(launched, monkeypatch, refused, number):
    """out, which is c, is not written before. The third map is that of the result; there is no third kernel."""
    a, b, c = arrays((20, 20), (20, 20), (20, 20))
    out = c.copy()
    for _ in range(3):
        gemm.gemm(a, b, out.copy(), beta=1.0, out=out, kernel=KERNEL)
    real, calls = getattr(cl, refused), []

    def once(*args, **options):
        calls.append(1)
        if len(calls) == number:
            raise cl.RuntimeError("out of luck")
        return real(*args, **options)

    monkeypatch.setattr(cl, refused, once)
    out[...] = c
    assert np.allclose(gemm.gemm(a, b, out, beta=1.0, out=out, kernel=KERNEL), a @ b + c, rtol=1e-4, atol=1e-4)
    assert len(launched) == 2 + (len(calls) >= number)


def test_a_complete_result_is_not_computed_again(launched, monkeypatch):
    """If the driver does not take the memory of the result back, out, which is c, is complete nevertheless."""
    a, b, c = arrays((20, 20), (20, 20), (20, 20))
    for _ in range(3):
        out = c.copy()
        gemm.gemm(a, b, out, beta=1.0, out=out, kernel=KERNEL)
    unmapped = replay.unmapped

    def refuse(*args):
        unmapped(*args)
        raise cl.RuntimeError("out of luck")

    monkeypatch.setattr(replay, "unmapped", refuse)
    out = c.copy()
    assert np.allclose(gemm.gemm(a, b, out, beta=1.0, out=out, kernel=KERNEL), a @ b + c, rtol=1e-4, atol=1e-4)
    assert len(launched) == 2


def test_the_child_of_a_fork_uses_no_driver(launched, device, monkeypatch):
    a, b = arrays((20, 20), (20, 20))
    for _ in range(2):
        gemm.gemm(a, b, kernel=KERNEL, backend=device.key)
    held = newest(device)
    assert held(a, b, None, None, 1.0, 0.0, None) is not None
    monkeypatch.setattr(device.handle, "_process", device.handle._process + 1)
    assert held(a, b, None, None, 1.0, 0.0, None) is None


def test_copies_that_were_converted_are_not_repeated(launched):
    a, b, c = arrays((20, 20), (20, 20), (20, 20))
    for turn in range(4):
        half = (c * turn).astype(np.float16)
        found = gemm.gemm(a, b, half, beta=1.0, kernel=KERNEL)
        assert np.allclose(found, a @ b + half, rtol=1e-3, atol=1e-3)
    assert len(launched) == 4


def test_copies_between_launches_are_not_repeated(launched, monkeypatch):
    """Of k in pieces. All pieces of these operands begin at the same address."""
    whole = launch.Launcher._tile
    monkeypatch.setattr(launch.Launcher, "_tile", lambda *args: replace(whole(*args), k=4))
    for turn in range(4):
        a, b = arrays((9, 1), (1, 7), seed=turn)
        found = gemm.gemm(np.broadcast_to(a, (9, 10)), np.broadcast_to(b, (10, 7)), kernel=KERNEL)
        assert np.allclose(found, 10 * a * b, rtol=1e-4, atol=1e-4)
    assert len(launched) == 4


def test_prepared_matrices_plans_and_lists(launched):
    pairs = [arrays((20, 30), (30, 40), seed=seed) for seed in range(20)]
    b = pairs[0][1]
    ready = gemm.prepare(b, kernel=PANELS, backend="opencl")
    plan = gemm.plan(*pairs[0], kernel=PANELS)
    launched.clear()
    for a, _ in pairs:
        assert np.allclose(gemm.gemm(a, ready, kernel=PANELS), a @ b, rtol=1e-3, atol=1e-3)
        assert np.allclose(plan(a, b), a @ b, rtol=1e-3, atol=1e-3)
    assert len(launched) == 4
    for _ in range(2):
        gemm.gemm(*pairs[0], backend="opencl")
    for found, (x, y) in zip(gemm.gemm_many(*zip(*pairs, strict=True), backend="opencl"), pairs, strict=True):
        assert np.allclose(found, x @ y, rtol=1e-3, atol=1e-3)


def test_products_in_host_memory_are_no_pointer_batch():
    lists = [list(x) for x in zip(*[arrays((20, 30), (30, 40))] * 20, strict=True)]
    for _ in range(2):
        gemm.gemm(lists[0][0], lists[1][0], kernel=KERNEL)
    (options,) = plan_cache.memos
    assert batching.Products(Options(*options), (1.0, 0.0), (*lists, None, None), [None] * 20).launch(0) == 0


def test_a_repeated_product_takes_few_calls_in_python():
    a, b = arrays((64, 64), (64, 64))
    for _ in range(3):
        gemm.gemm(a, b, kernel=PANELS)
    calls = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        gemm.gemm(a, b, kernel=PANELS)
    finally:
        sys.setprofile(None)
    assert len(calls) <= 45, calls
