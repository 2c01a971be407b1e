"""Repeated products of pyopencl Arrays: like the first ones, whatever has changed between them."""

from __future__ import annotations

import os
import sys
import threading
import weakref

import numpy as np
import pytest
import repeated

import gemm
from gemm.backends import registry
from gemm.core.errors import BackendUnavailable
from gemm.frontend import plan_cache
from gemm.select import worker

cl = pytest.importorskip("pyopencl")
cla = pytest.importorskip("pyopencl.array")
KERNEL = "sgemm_generic_naive"
SPLIT = "sgemm_generic_skinny_4x4"


pytestmark = pytest.mark.usefixtures("settled")


@pytest.fixture
def queue():
    try:
        return registry.backend("opencl").devices()[0].handle.queue
    except BackendUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def enqueued(monkeypatch):
    """How many products went the long way, through the launcher."""
    from gemm.backends.opencl.launch import Launcher

    seen = []
    launch = Launcher._launch
    monkeypatch.setattr(Launcher, "_launch", lambda *args: seen.append(1) or launch(*args))
    plan_cache.forget()
    yield seen
    plan_cache.forget()


def arrays(queue, *shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [cla.to_device(queue, rng.integers(-8, 9, shape).astype(np.float32)) for shape in shapes]


@pytest.mark.parametrize("kernel", [KERNEL, SPLIT])
def test_repeats_take_new_buffers(queue, enqueued, kernel):
    for seed in range(4):
        a, b, c = arrays(queue, (3, 800), (800, 16), (3, 16), seed=seed)
        out = cla.to_device(queue, np.full((3, 16), np.nan, np.float32))
        assert gemm.gemm(a, b, c, alpha=2, beta=-1, out=out, kernel=kernel) is out
        assert np.array_equal(out.get(), 2 * (a.get() @ b.get()) - c.get())
        assert np.array_equal(gemm.gemm(a, b, kernel=kernel).get(), a.get() @ b.get())
    assert len(enqueued) == 2  # one for each set of options


@pytest.mark.parametrize(
    ("kernel", "shape", "turned"),
    [("sgemm_generic_dot_16x4", (3, 40, 900), "b"), ("sgemm_generic_dot_16x4", (40, 3, 900), ""),
     (SPLIT, (40, 3, 900), "a"), ("sgemm_generic_tile_direct_128x16", (3, 40, 900), "")],
)  # fmt: skip
def test_transposed_products_read_operands_where_they_lie_and_repeat(queue, enqueued, kernel, shape, turned):
    """out' = b' a': a row for few columns serves few rows, whose K is contiguous, and the other way round."""
    m, n, k = shape
    before = gemm.copied()
    for seed in range(3):
        a, b, c = arrays(queue, *((k, m) if turned == "a" else (m, k), (n, k) if turned == "b" else (k, n), (m, n)),
                         seed=seed)  # fmt: skip
        a, b = a.T if turned == "a" else a, b.T if turned == "b" else b
        result = gemm.gemm(a, b, c, alpha=2, beta=-1, kernel=kernel)
        assert np.array_equal(result.get(), 2 * (a.get() @ b.get()) - c.get())
    assert len(enqueued) == 1
    assert gemm.copied() == before


@pytest.mark.parametrize("way", ["NumPy arrays", "device arrays", "a repeated product"])
def test_a_call_between_the_arguments_and_the_launch(queue, monkeypatch, way):
    """As that of a signal handler: it sets the arguments of the same kernel."""
    given = [arrays(queue, (9, 8), (8, 7), seed=seed) for seed in range(2)]
    right = [a.get() @ b.get() for a, b in given]
    if way == "NumPy arrays":
        given = [[x.get() for x in pair] for pair in given]
    for _ in range(2 if way == "a repeated product" else 0):
        gemm.gemm(*given[0], kernel=KERNEL, backend="opencl")
    inner, enqueue = [], cl.enqueue_nd_range_kernel

    def interrupted(*args, **options):
        if not inner:
            inner.append(None)
            inner.append(gemm.gemm(*given[1], kernel=KERNEL, backend="opencl"))
        return enqueue(*args, **options)

    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", interrupted)
    outer = gemm.gemm(*given[0], kernel=KERNEL, backend="opencl")
    for found, want in zip((outer, inner[1]), right, strict=True):
        assert np.array_equal(found if isinstance(found, np.ndarray) else found.get(), want)


def test_operands_that_are_one_array_or_two(queue, enqueued):
    a, b, out = arrays(queue, (8, 8), (8, 8), (8, 8))
    for left, right in ((a, a), (a, b), (b, b), (b, a)):
        gemm.gemm(left, right, out=out, kernel=KERNEL)
        assert np.array_equal(out.get(), left.get() @ right.get())
    for c in (out, a, out, b):
        want = a.get() @ b.get() + c.get()
        gemm.gemm(a, b, c, beta=1, out=out, kernel=KERNEL)
        assert np.array_equal(out.get(), want)
    assert len(enqueued) == 5  # one array, two; c that is out, c that is not and shares with a, with b


def test_what_is_not_alike_takes_the_long_way(queue, enqueued):
    a, b, out = arrays(queue, (8, 8), (8, 8), (8, 8))
    plan = gemm.plan(a, b, out=out, kernel=KERNEL)
    left, right = a.get(), b.get()
    for x, y, goal, want in (
        (a, b, out, left @ right), (a.T, b, out, left.T @ right), (a, b[::-1], out, left @ right[::-1]),
        (a, b, out.T, (left @ right)), (a[:, :4], b[4:], out, left[:, :4] @ right[4:]), (a, b, out, left @ right),
        (a, b, a, left @ right), (b, a, a, right @ (left @ right)),
    ):  # fmt: skip
        gemm.gemm(x, y, out=goal, kernel=KERNEL)
        assert np.array_equal(out.get().T if goal.strides == (4, 32) else goal.get(), want)
    assert len(enqueued) >= 7
    with pytest.raises(ValueError, match="make a new plan"):
        plan(a[:4], b)


def test_offsets_into_one_buffer(queue, enqueued):
    (whole,) = arrays(queue, (4, 8, 8))
    out = cla.zeros(queue, (8, 8), np.float32)
    for at in (0, 1, 0, 2, 1):
        gemm.gemm(whole[at], whole[at + 1], out=out, kernel=KERNEL)
        assert np.array_equal(out.get(), whole[at].get() @ whole[at + 1].get())
    assert len(enqueued) == 1
    for left, right in ((0, 2), (1, 3), (0, 3), (3, 0), (2, 2), (0, 0)):  # other distances are other products
        gemm.gemm(whole[left], whole[right], out=out, kernel=KERNEL)
        assert np.array_equal(out.get(), whole[left].get() @ whole[right].get())
    assert len(enqueued) == 5


def test_operands_of_two_types_in_one_buffer(queue, enqueued):
    """An offset is set in elements: one distance in bytes is a different number of int8 and of int32 elements."""
    raw = cla.to_device(queue, np.random.default_rng(0).integers(-8, 9, 1 << 13).astype(np.int8))
    b = cla.to_device(queue, np.eye(16, dtype=np.int8))
    for at, gap in ((0, 4096), (64, 4096), (128, 4096), (128, 4032), (64, 4096)):
        a = cla.Array(queue, (16, 16), np.int8, data=raw.base_data, offset=at)
        c = cla.Array(queue, (16, 16), np.int32, data=raw.base_data, offset=at + gap)
        found = gemm.gemm(a, b, c, beta=1, dtype=np.int32, kernel="s8s32gemm_generic_naive")
        assert np.array_equal(found.get(), a.get().astype(np.int32) + c.get())
    whole = cla.to_device(queue, np.random.default_rng(0).integers(-8, 9, (4, 8, 8)).astype(np.int8))
    before = len(enqueued)
    for at in (0, 1, 2):
        found = gemm.gemm(whole[at], whole[at + 1], dtype=np.int32, kernel="s8s32gemm_generic_naive")
        assert np.array_equal(found.get(), whole[at].get().astype(np.int32) @ whole[at + 1].get())
    assert len(enqueued) == before + 1


@pytest.mark.parametrize("kernel", [KERNEL, SPLIT, "sgemm_generic_tile_64x64", "sgemm_generic_tile_direct_32x32"])
def test_views_of_larger_arrays_repeat_wherever_they_begin(queue, enqueued, kernel):
    """Their alignment alone matters: some kernels read whole vectors if the offset is a multiple of their size."""
    a, b, c, out = arrays(queue, (12, 3, 800), (12, 800, 16), (12, 3, 16), (12, 3, 16))
    want = out.get()
    for turn in range(12):
        x, y, z, goal = a[turn], b[(5 * turn) % 12], c[(7 * turn) % 12], out[turn]
        gemm.gemm(x, y, z, alpha=2, beta=-1, out=goal, kernel=kernel)
        want[turn] = 2 * (x.get() @ y.get()) - z.get()
        assert np.array_equal(out.get(), want)  # and nothing else was written
    assert len(enqueued) == 1
    left, right = a[0].get(), b[0].get()
    for first in (1, 3, 1, 2, 4, 64, 65, 17):
        part = slice(first, first + 64)
        found = gemm.gemm(a[0][:, part], b[0][part], kernel=kernel)
        assert np.array_equal(found.get(), left[:, part] @ right[part])


def test_an_offset_that_the_driver_refuses_is_set_the_next_time(queue, enqueued, monkeypatch):
    import pyopencl as cl

    whole, b = arrays(queue, (4, 8, 8), (8, 8))
    for at in (0, 1):
        gemm.gemm(whole[at], b, kernel=KERNEL)
    set_arg, failures = cl.Kernel.set_arg, iter([cl.RuntimeError("out of luck")])

    def once(kernel, at, value):
        for failure in failures if isinstance(value, np.ndarray) and value.dtype == np.int64 else ():
            raise failure
        return set_arg(kernel, at, value)

    monkeypatch.setattr(cl.Kernel, "set_arg", once)
    for at in (2, 2, 1, 3):
        assert np.array_equal(gemm.gemm(whole[at], b, kernel=KERNEL).get(), whole[at].get() @ b.get())
    assert len(enqueued) == 2


def test_far_offsets_are_not_moved_to(queue, enqueued, monkeypatch):
    """Beyond 2**31 elements, some kernels read a packed copy."""
    from gemm.backends.opencl import replay

    monkeypatch.setattr(replay, "MOST", 600)
    whole, b = arrays(queue, (4, 8, 8), (8, 8))
    for at in (0, 1, 0, 2, 2, 3):
        assert np.array_equal(gemm.gemm(whole[at], b, kernel=KERNEL).get(), whole[at].get() @ b.get())
    assert len(enqueued) == 3  # the first, and those with 2 and 3


def test_results_are_awaited_across_queues(queue, enqueued, monkeypatch):
    import pyopencl as cl

    other, flushed, flush = cl.CommandQueue(queue.context), [], cl.CommandQueue.flush
    monkeypatch.setattr(cl.CommandQueue, "flush", lambda each: (flushed.append(each), flush(each)))
    for turn in range(6):
        a, b = arrays(queue, (64, 64), (64, 64), seed=turn)
        flushed.clear()
        first = gemm.gemm(a, b, kernel=KERNEL)
        assert queue in flushed  # else its commands might not start, and `other` would wait for ever
        second = gemm.gemm(first.with_queue(other), b.with_queue(other), kernel=KERNEL)
        assert np.array_equal(second.get(), a.get() @ b.get() @ b.get())


def test_a_queue_that_cannot_be_flushed(queue, enqueued, monkeypatch):
    """The commands may have run: a product in place must not be computed again."""
    import pyopencl as cl

    def refuse(each):
        raise cl.RuntimeError("clFlush failed")

    a, b, c, out = arrays(queue, (8, 8), (8, 8), (8, 8), (8, 8))
    for _ in range(2):
        gemm.gemm(a, b, c, beta=1, out=c, kernel=KERNEL)
        gemm.gemm(a, b, out=out, kernel=KERNEL)
    before, flush = c.get(), cl.CommandQueue.flush
    monkeypatch.setattr(cl.CommandQueue, "flush", refuse)
    with pytest.raises(RuntimeError, match="cannot be flushed"):
        gemm.gemm(a, b, c, beta=1, out=c, kernel=KERNEL)
    monkeypatch.setattr(cl.CommandQueue, "flush", flush)
    assert np.array_equal(c.get(), before + a.get() @ b.get())


def test_threads_have_their_own(queue, enqueued):
    wrong = ["not run"] * 4

    def work(seed):
        bad = []
        for turn in range(20):
            a, b = arrays(queue, (16, 300), (300, 16), seed=[seed, turn])
            if not np.array_equal(gemm.gemm(a, b, kernel=SPLIT).get(), a.get() @ b.get()):
                bad.append(turn)
        wrong[seed] = bad

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [[]] * 4
    assert len(enqueued) >= 4


def test_a_driver_that_refuses_a_repeat_is_met_the_long_way(queue, enqueued, monkeypatch):
    import pyopencl as cl

    a, b, out = arrays(queue, (8, 8), (8, 8), (8, 8))
    plan = gemm.plan(a, b, out=out, kernel=KERNEL)
    plan(a, b, out=out)
    enqueue = cl.enqueue_nd_range_kernel
    failures = iter([cl.RuntimeError("out of luck")])

    def once(*args, **options):
        for failure in failures:
            raise failure
        return enqueue(*args, **options)

    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", once)
    out.fill(0)
    plan(a, b, out=out)
    assert np.array_equal(out.get(), a.get() @ b.get())
    assert len(enqueued) == 2


@pytest.mark.parametrize(("in_place", "cut", "launches"), [(True, True, 2), (True, False, 1), (False, True, 1)])
def test_what_writes_c_in_several_launches_is_not_repeated(queue, enqueued, monkeypatch, in_place, cut, launches):
    """A failure between two of them loses c: only the full path reports that."""
    if cut:
        monkeypatch.setitem(registry.backend("opencl").devices()[0].limits, "max_alloc", 64 * 64 * 4)
    a, b, c = arrays(queue, (128, 64), (64, 64), (128, 64))
    for _ in range(2):
        expected = a.get() @ b.get() + c.get()
        out = gemm.gemm(a, b, c, beta=1, out=c if in_place else None, kernel="sgemm_generic_tile_64x64")
        assert np.array_equal(out.get(), expected)
    assert len(enqueued) == launches


@pytest.mark.parametrize("kernel", [KERNEL, SPLIT])
def test_products_with_a_prepared_matrix_repeat(queue, enqueued, kernel):
    host = np.random.default_rng(0).integers(-8, 9, (800, 16)).astype(np.float32)
    key = registry.backend("opencl").devices()[0].key
    prepared = gemm.prepare(host, kernel=kernel, backend=key)
    for seed in range(4):
        a, c, out = arrays(queue, (4, 800), (4, 16), (4, 16), seed=seed)
        assert np.array_equal(gemm.gemm(a, prepared).get(), a.get() @ host)
        assert gemm.gemm(a, prepared, c, alpha=2, beta=-1, out=out) is out
        assert np.array_equal(out.get(), 2 * (a.get() @ host) - c.get())
    assert len(enqueued) == 2  # one for each set of options
    (a,) = arrays(queue, (8, 800))  # of another shape
    assert np.array_equal(gemm.gemm(a, prepared).get(), a.get() @ host)
    assert len(enqueued) == 3
    other = gemm.prepare(2 * host, kernel=kernel, backend=key)
    assert np.array_equal(gemm.gemm(a, other).get(), 2 * (a.get() @ host))


@pytest.mark.parametrize("kernel", ["sgemm_generic_tile_64x64", "sgemm_generic_panel_4x24", "sgemm_adreno_images_8x4"])
def test_packed_operands_are_packed_again(queue, enqueued, kernel):
    from gemm.catalog import BY_NAME

    device = registry.backend("opencl").devices()[0]
    if set(BY_NAME[kernel].needs) - device.features:
        pytest.skip("no device offers image")
    packed = []
    for seed in range(4):
        a, b, c = arrays(queue, (70, 33), (70, 45), (33, 45), seed=seed)
        before = gemm.copied()[device.key]["packed"]
        result = gemm.gemm(a, b, c, trans_a=True, beta=1, kernel=kernel)
        assert np.array_equal(result.get(), a.get().T @ b.get() + c.get())
        packed.append(gemm.copied()[device.key]["packed"] - before)
    assert len(enqueued) == 1
    assert set(packed) == {packed[0]}
    assert packed[0] >= b.nbytes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX only")
def test_the_child_of_a_fork_frees_no_objects_of_the_driver(queue, enqueued):
    """Not even in the hook after the fork, which clears the plan cache if a probe is running: the driver's locks may be
    held.
    """
    a, b = arrays(queue, (8, 8), (8, 8))
    gemm.gemm(a, b, kernel=KERNEL)
    freed, task = [], object()
    for cache in plan_cache.memos.values():
        for known in cache.devices._known.values():
            weakref.finalize(known.replay, freed.append, 1)
    del cache, known
    worker._running[task] = task
    try:
        if (pid := os.fork()) == 0:
            plan_cache.forget()
            os._exit(len(freed))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        del worker._running[task]
    assert len(enqueued) == 1


def test_what_replays_hold_is_bounded_and_given_back(queue, enqueued, monkeypatch):
    kernel = "sgemm_generic_tile_64x64"
    handle = registry.backend("opencl").devices()[0].handle
    held = handle.replay_bytes
    a, b = arrays(queue, (33, 70), (70, 45))
    for _ in range(2):
        gemm.gemm(a, b, kernel=kernel)
    assert len(enqueued) == 1
    one = handle.replay_bytes - held
    assert one > 0
    plan_cache.forget()
    assert handle.replay_bytes == held
    monkeypatch.setattr(type(handle), "replay_limit", one + one // 2)
    others = [b, *arrays(queue, (70, 44), (70, 43))]
    for turn, right in enumerate((*others, *others)):  # each one takes the memory of the one before
        for _ in range(2):
            assert np.array_equal(gemm.gemm(a, right, kernel=kernel).get(), a.get() @ right.get())
        assert len(enqueued) == 2 + turn
        assert handle.replay_bytes <= one + one // 2
    monkeypatch.setattr(type(handle), "replay_limit", one // 2)
    plan_cache.forget()
    for _ in range(2):
        assert np.array_equal(gemm.gemm(a, b, kernel=kernel).get(), a.get() @ b.get())
    assert len(enqueued) == 9
    assert handle.replay_bytes == 0


@pytest.mark.parametrize("kernel", [KERNEL, SPLIT, "sgemm_generic_tile_64x64"])
def test_repeated_products_keep_no_operand_alive(queue, enqueued, kernel):
    operands = arrays(queue, (3, 800), (800, 16), (3, 16))

    def counted():
        return [sys.getrefcount(array.base_data) for array in operands]

    before = counted()
    for _ in range(3):
        gemm.gemm(*operands[:2], out=operands[2], kernel=kernel)
    assert len(enqueued) == 1
    assert counted() == before


def test_a_thousand_shapes_in_rotation(queue, enqueued):
    repeated.a_thousand_shapes(lambda x: cla.to_device(queue, x), lambda x: x.get(), biased=False, kernel=KERNEL)


@pytest.mark.parametrize("kernel", [KERNEL, SPLIT])
def test_scalars_are_arguments(queue, enqueued, kernel):
    repeated.scalars(lambda x: cla.to_device(queue, x), lambda x: x.get(), kernel=kernel)


def test_products_of_no_terms(queue, enqueued):
    repeated.no_terms(lambda x: cla.to_device(queue, x), lambda x: x.get(), kernel=KERNEL)


def test_scalars_of_sums_in_parts(queue, enqueued):
    """Two kernels take them: of the parts, and of their sum."""
    a, b, c = arrays(queue, (3, 8000), (8000, 16), (3, 16))
    for number in range(5):
        found = gemm.gemm(a, b, c, alpha=1 + number, beta=2 - number, kernel=SPLIT)
        assert np.array_equal(found.get(), (1 + number) * (a.get() @ b.get()) + (2 - number) * c.get())
    assert len(enqueued) == 2  # beta is 0, and is not


def test_plans_and_prepared_matrices_forget(queue, enqueued):
    key = registry.backend("opencl").devices()[0].key
    repeated.plans_and_prepared(
        lambda x: cla.to_device(queue, x), lambda x: x.get(),
        lambda x: gemm.prepare(x, kernel=KERNEL, backend=key), kernel=KERNEL,
    )  # fmt: skip


def test_a_bias_that_no_kernel_adds_is_refused_as_the_first_time(queue, enqueued):
    a, b, bias = (cla.to_device(queue, np.ones(shape, np.float32)) for shape in ((5, 7), (7, 6), (6,)))
    for _ in range(3):
        gemm.gemm(a, b, kernel=KERNEL)
        with pytest.raises(TypeError, match="bias"):
            gemm.gemm(a, b, bias=bias, kernel=KERNEL)
