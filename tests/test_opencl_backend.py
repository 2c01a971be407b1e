"""The OpenCL backend below the public face: launches on host and device operands, tiling, caching, threads.

Each kernel that a device can run is tested on every device found; what the whole package promises is the matter of
tests/conformance.
"""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from oracle import check_close, exact
from oracle.ordered import check_same_bits, ordered

from gemm.backends.opencl import context as opencl_context
from gemm.backends.opencl.backend import OpenCLBackend
from gemm.backends.opencl.context import Handle
from gemm.backends.opencl.devices import _name, _vector_width, discover
from gemm.backends.opencl.layout import PACKED, Layout, tile
from gemm.backends.opencl.staging import Traffic
from gemm.catalog import BY_NAME, KERNELS, Kernel
from gemm.core import disk_cache
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Device, DeviceView, Problem

ROWS = list({r.source: r for r in reversed(KERNELS) if r.backend == "opencl" and not r.inputs}.values())
"""One of each source; conformance has them all."""
IMAGES = [row for row in ROWS if "image" in row.needs]
BACKEND = OpenCLBackend()

try:
    DEVICES: tuple[Device, ...] = BACKEND.devices()
    WHY = ""
except BackendUnavailable as error:
    DEVICES, WHY = (), str(error)


def runs(row: Kernel, device: Device) -> bool:
    limits = {"m": 64, "n": 64, "k": 64, "batch": 1, **device.limits}
    return not set(row.needs) - device.features and row.illegal(limits) is None


def each(rows: list[Kernel]) -> pytest.MarkDecorator:
    """A test of every one of `rows` on every device that can run it; one skip a row that none can."""
    cases: list[Any] = []
    for row in rows:
        able = [device for device in DEVICES if runs(row, device)]
        cases += [pytest.param(row, device, id=f"{row.name}@{device.key}") for device in able]
        if not able:
            why = WHY or f"no device offers {', '.join(row.needs)}"
            cases.append(pytest.param(row, None, id=row.name, marks=pytest.mark.skip(reason=why)))
    return pytest.mark.parametrize(("row", "device"), cases)


on_any_device = pytest.mark.skipif(not DEVICES, reason=WHY or "no device")


@pytest.fixture(autouse=True, scope="module")
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMM_CACHE_DIR", str(folder))
        disk_cache.cache_dir.cache_clear()
        yield folder
    disk_cache.cache_dir.cache_clear()


def random(row: Kernel, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(row.dtype)


def launch(
    row: Kernel, device: Device, a: Any, b: Any, c: Any, out: Any, alpha: float = 1.0, beta: float = 0.0, *,
    reproducible: bool = False,
) -> None:  # fmt: skip
    (*batch, m, k), n = a.shape, b.shape[-1]
    problem = Problem(row.dtype, m, n, k, int(np.prod(batch)), reproducible=reproducible)
    BACKEND.launcher(row, device, problem)(a, b, c, out, alpha, beta)


def check(
    row: Kernel, device: Device, a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None,
    alpha: float = 1.0, beta: float = 0.0, *, out: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Launch on host operands as they are, both ways, against the oracle; inputs must stay as they were."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    shape = (*batch, a.shape[-2], b.shape[-1])
    before = [None if x is None else x.copy() for x in (a, b, c)]
    for reproducible in (False, True):
        if reproducible and set(row.ordered_needs) - device.features:
            continue
        result = np.full(shape, np.nan, row.dtype) if out is None else out
        launch(row, device, a, b, c, result, alpha, beta, reproducible=reproducible)
        if reproducible:
            check_same_bits(result, ordered(a, b, c, alpha, beta))
        else:
            check_close(result, exact(a, b, c, alpha, beta))
    for x, was in zip((a, b, c), before, strict=True):
        assert x is None or np.array_equal(x, was, equal_nan=True)
    return result


def resident(row: Kernel, device: Device, operand: np.ndarray) -> DeviceView:
    """`operand`'s memory block on the device, viewed with its strides and at an offset."""
    import pyopencl as cl
    import pyopencl.array as cla

    size = operand.itemsize
    spans = [(length - 1) * step for length, step in zip(operand.shape, operand.strides, strict=True)]
    low = sum(span for span in spans if span < 0)
    high = sum(span for span in spans if span > 0) + size
    if not operand.size:
        low, high = 0, size
    block = np.full(5 * size + high - low, 0xFF, np.uint8)  # NaN
    at = 5 * size - low
    if operand.size:
        np.ndarray(operand.shape, operand.dtype, block, at, operand.strides)[...] = operand
    queue = device.handle.queue
    buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=block)
    array = cla.Array(queue, operand.shape, operand.dtype, strides=operand.strides, data=buffer, offset=at)
    view = BACKEND.view(array, "x")
    assert view is not None
    assert view.device is device
    return view


SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 37]


@each(ROWS)
def test_edge_sizes(row: Kernel, device: Device) -> None:
    for at, k in enumerate(SIZES):
        m, n = SIZES[1:][(3 * at) % 15], SIZES[1:][(7 * at + 4) % 15]
        for beta in (0.0, -0.5):
            c = random(row, m, n, seed=3) if beta else None
            alpha = 1.0 if k else (-1.0 if beta else 1.0)
            check(row, device, random(row, m, k), random(row, k, n, seed=1), c, alpha, beta)
    check(row, device, random(row, 130, 67), random(row, 67, 101, seed=1), random(row, 130, 101, seed=2), 0.75, 1.5)


@each(ROWS)
@pytest.mark.parametrize("where", ["host", "device"])
def test_strides(row: Kernel, device: Device, where: str) -> None:
    m, n, k = 19, 21, 13
    wide = random(row, 60, 60)
    views: list[Callable[[int, int], np.ndarray]] = [
        lambda r, c: wide[:r, :c],
        lambda r, c: wide[3 : 3 + c, 5 : 5 + r].T,
        lambda r, c: wide[: 2 * r : 2, : 2 * c : 2],
        lambda r, c: wide[::-1, ::-1][:r, :c],
        lambda r, c: np.broadcast_to(wide[:1, :c], (r, c)),
    ]
    for at, (left, right) in enumerate(itertools.product(views, views)):
        a, b, c = left(m, k), right(k, n), views[at % 5](m, n)
        room = np.full((60, 60), np.nan, row.dtype)
        out = [room[:m, :n], room[:n, :m].T, room[::-1, ::-2][:m, :n]][at % 3]
        if where == "host":
            check(row, device, a, b, c, 0.5, 2.0, out=out)
            continue
        *inputs, goal = (resident(row, device, x) for x in (a, b, c, out))
        launch(row, device, *inputs, goal, 0.5, 2.0)
        check_close(BACKEND.to_host(goal), exact(a, b, c, 0.5, 2.0))


@each(ROWS)
@pytest.mark.parametrize("where", ["host", "device"])
def test_batches_and_broadcasts(row: Kernel, device: Device, where: str) -> None:
    cases = [((3,), (3,)), ((3,), (1,)), ((1,), (3,)), ((2, 1), (1, 3)), ((2, 3), (2, 3)), ((2, 1, 2), (3, 1))]
    for left, right in cases:
        batch = np.broadcast_shapes(left, right)
        a = np.broadcast_to(random(row, *left, 9, 10), (*batch, 9, 10))
        b = np.broadcast_to(random(row, *right, 10, 6, seed=1), (*batch, 10, 6))
        c = np.broadcast_to(random(row, 6, seed=2), (*batch, 9, 6))
        if where == "host":
            check(row, device, a, b, c, 1.5, 0.5)
            continue
        out = np.full((*batch, 9, 6), np.nan, row.dtype)
        *inputs, goal = (resident(row, device, x) for x in (a, b, c, out))
        launch(row, device, *inputs, goal, 1.5, 0.5)
        check_close(BACKEND.to_host(goal), exact(a, b, c, 1.5, 0.5))


PACKED_AS = [Layout(8, 16), Layout(4, 4, pad=-0.0), Layout(1, 24, panel=24), Layout(4, 4, channels=4)]


@on_any_device
@pytest.mark.parametrize(  # no kernel reads texels of one half, which PoCL 3.1 writes wrongly
    ("layout", "dtype"), [*itertools.product(PACKED_AS, ["float32", "float16"]), (Layout(2, 8, 1), "float32")], ids=str
)
@pytest.mark.parametrize("cpu", [True, False], ids=["blocks", "elements and squares"])
def test_packing(layout: Layout, dtype: str, cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel of each layout reads, element by element, however the operand lies and whatever packs it."""
    import pyopencl as cl

    device = DEVICES[0]
    if layout.channels and "image" not in device.features:
        pytest.skip("no device offers image")
    monkeypatch.setitem(device.handle.__dict__, "runs_on_cpu", cpu)
    wide = np.random.default_rng(0).standard_normal((2, 90, 90)).astype(dtype)
    sources = [wide[:, :67, :50], wide[:, 3:53, 5:72].transpose(0, 2, 1), wide[:, ::-1, ::3], wide[:1, :3, :5]]
    for source in sources:
        batch, rows, cols = source.shape
        tall, long = layout.padded(rows, cols)
        expected = np.full((batch, tall, long), layout.pad, dtype)
        expected[:, :rows, :cols] = source
        if layout.panel:
            expected = expected.reshape(batch, tall, -1, layout.panel).swapaxes(1, 2)
        found = np.empty(expected.size, dtype)
        view = resident(BY_NAME["sgemm_generic_naive"], device, source)
        kept = Traffic(device.handle, device.handle.queue, []).keep(view, layout)
        if layout.channels:
            size = {"origin": (0, 0), "region": (long // layout.channels, batch * tall)}
            cl.enqueue_copy(device.handle.queue, found, kept.staged.data, **size)
        else:
            cl.enqueue_copy(device.handle.queue, found, kept.staged.data)
        bits = f"u{found.itemsize}"
        np.testing.assert_array_equal(found.view(bits), expected.ravel().view(bits))


@each(ROWS)
def test_c_may_be_out_and_only_out_is_written(row: Kernel, device: Device) -> None:
    m, n, k = 11, 9, 7
    a, b, start = random(row, m, k), random(row, k, n, seed=1), random(row, m, n, seed=2)
    reference = exact(a, b, start, -1.0, 3.0)
    room = np.full((m + 4, n + 4), 7.0, row.dtype)
    out = room[2:-2, 2:-2]
    out[...] = start
    launch(row, device, a, b, out, out, -1.0, 3.0)
    check_close(out, reference)
    room[2:-2, 2:-2] = 7.0
    assert (room == 7.0).all()

    room[2:-2, 2:-2] = start
    whole = resident(row, device, room)
    cut = BACKEND.view(whole.owner[2:-2, 2:-2], "out")
    assert cut is not None
    launch(row, device, resident(row, device, a), resident(row, device, b), cut, cut, -1.0, 3.0)
    room = BACKEND.to_host(whole)
    check_close(room[2:-2, 2:-2], reference)
    room[2:-2, 2:-2] = 7.0
    assert (room == 7.0).all()


@each(ROWS)
def test_nan_and_infinity_propagate(row: Kernel, device: Device) -> None:
    a, b = random(row, 9, 10), random(row, 10, 6, seed=1)
    a[3, 9], b[0, 5], a[5, 0] = np.nan, np.inf, 0.0  # NaN in a row, Inf in a column, 0·Inf
    out = np.zeros((9, 6), row.dtype)
    launch(row, device, a, b, None, out)
    with np.errstate(invalid="ignore"):
        expected = (a[:, :, None] * b).sum(axis=1)
    assert np.array_equal(np.isnan(out), np.isnan(expected))
    assert np.array_equal(np.isinf(out), np.isinf(expected))


@each(ROWS)
@pytest.mark.parametrize("where", ["host", "device"])
def test_ordered_keeps_denormals_and_minus_zero(row: Kernel, device: Device, where: str) -> None:
    if set(row.ordered_needs) - device.features:
        pytest.skip(f"{device.name} flushes denormals")
    tiny = np.finfo(row.dtype).tiny
    for k in (1, 2, 3, 5, 9):  # sums that end as -0 or as a denormal, then meet the padding
        a = np.full((5, k), -tiny, row.dtype)
        b = np.full((k, 6), tiny, row.dtype)
        a[1], b[:, 3] = tiny / 4, 0.5
        a[2], b[:, 4] = -tiny / 8, 1.0
        c = np.full((5, 6), -0.0, row.dtype)
        for beta in (0.0, 1.0):
            old = c if beta else None
            out = np.full((5, 6), np.nan, row.dtype)
            if where == "device":
                x, y, z, goal = (resident(row, device, o) for o in (a, b, c, out))
                launch(row, device, x, y, z if beta else None, goal, 1.0, beta, reproducible=True)
                out = BACKEND.to_host(goal)
            else:
                launch(row, device, a, b, old, out, 1.0, beta, reproducible=True)
            check_same_bits(out, ordered(a, b, old, 1.0, beta))


@each(ROWS)
def test_tiles_beyond_the_limits_resume_exactly(row: Kernel, device: Device) -> None:
    """Images of 24 x 72 texels and 4 KiB an allocation: many launches along m, n, k and the batch; the same bits."""
    if set(row.ordered_needs) - device.features:
        pytest.skip(f"{device.name} flushes denormals")
    small = replace(device, limits={**device.limits, "image_width": 24, "image_height": 72, "max_alloc": 4096})
    a, b = random(row, 2, 75, 83), random(row, 2, 83, 101, seed=1)
    c = random(row, 2, 75, 101, seed=2)
    expected = ordered(a, b, c, 0.5, -2.0)
    check(row, small, a, b, c, 0.5, -2.0)
    out = c.copy()
    launch(row, small, a, b, out, out, 0.5, -2.0, reproducible=True)
    check_same_bits(out, expected)
    goal = resident(row, device, c)
    launch(row, small, resident(row, device, a), resident(row, device, b), goal, goal, 0.5, -2.0, reproducible=True)
    check_same_bits(BACKEND.to_host(goal), expected)


def test_tile_respects_every_limit() -> None:
    left, right = Layout(8, 4, pad=-0.0), Layout(4, 4, channels=4)
    slabs = ((left, "m", "k"), (right, "k", "n"), (PACKED, "m", "n"))
    for m, n, k in itertools.product((1, 7, 100, 5000), repeat=3):
        for image, nbytes in (((16, 20), 1 << 30), ((8192, 8192), 4096), ((3, 1), 64)):
            step = tile(m, n, k, slabs, 4, image, nbytes)
            assert 1 <= step.m <= m
            assert 1 <= step.n <= n
            assert 1 <= step.k <= k
            assert step.k == k or step.k % 4 == 0
            high, wide = right.padded(step.k, step.n)
            assert wide // 4 <= max(1, image[0])
            assert high <= max(4, image[1])
            if nbytes >= 4096:
                assert all(
                    np.prod(layout.padded(getattr(step, rows), getattr(step, cols))) * 4 <= nbytes
                    for layout, rows, cols in slabs
                )


@each(IMAGES)
def test_one_launch_for_many_small_products(row: Kernel, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyopencl as cl

    enqueue, count = cl.enqueue_nd_range_kernel, []

    def counted(*args: Any, **options: Any) -> Any:
        count.append(args)
        return enqueue(*args, **options)

    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", counted)
    check(row, device, random(row, 40, 5, 6), random(row, 40, 6, 7, seed=1))
    assert len(count) == (1 if set(row.ordered_needs) - device.features else 2)


@each(ROWS)
def test_threads_share_a_launcher(row: Kernel, device: Device) -> None:
    run = BACKEND.launcher(row, device, Problem(row.dtype, 40, 30, 50))
    failures: list[Exception] = []

    def work(seed: int) -> None:
        try:
            for turn in range(6):
                a, b = random(row, 40, 50, seed=seed + turn), random(row, 50, 30, seed=seed)
                out = np.full((40, 30), np.nan, row.dtype)
                if turn % 2:
                    goal = resident(row, device, out)
                    run(resident(row, device, a), resident(row, device, b), None, goal, 1.0, 0.0)
                    out = BACKEND.to_host(goal)
                else:
                    run(a, b, None, out, 1.0, 0.0)
                check_close(out, exact(a, b))
        except Exception as error:  # handed to the main thread, whatever it is
            failures.append(error)

    threads = [threading.Thread(target=work, args=(100 * seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


@each(ROWS[:1] + ROWS[-2:])
def test_callers_context_and_queues(row: Kernel, device: Device) -> None:
    import pyopencl as cl
    import pyopencl.array as cla

    context = cl.Context([device.handle.cl_device])
    a, b = random(row, 17, 9), random(row, 9, 12, seed=1)
    queues = [
        cl.CommandQueue(context),
        cl.CommandQueue(context, properties=cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)
        if device.handle.cl_device.queue_properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        else cl.CommandQueue(context),
    ]
    views: list[DeviceView] = []
    for queue in queues:
        arrays = [cla.to_device(queue, x) for x in (a, b)]
        views = [BACKEND.view(array, "x") for array in arrays]  # type: ignore[misc]
        assert views[0].device.key.startswith("opencl:ctx")
        assert views[0].device is views[1].device
        assert views[0].queue == queue
        goal = BACKEND.empty((17, 12), views[0])
        assert isinstance(goal.owner, cla.Array)
        launch(row, views[0].device, *views, None, goal)
        launch(row, views[0].device, *views, goal, goal, 1.0, 1.0)
        expected = exact(a, b, alpha=2.0)
        check_close(goal.owner.get(), expected)
        check_close(BACKEND.to_host(goal.mT).T, expected)

    loose = BACKEND.view(arrays[0].with_queue(None), "x")
    assert loose is not None
    assert loose.queue is None
    goal = BACKEND.empty((17, 12), loose)
    assert goal.queue is None
    launch(row, loose.device, loose, BACKEND.view(arrays[1].with_queue(None), "x"), None, goal)
    BACKEND.synchronize(loose.device)
    check_close(BACKEND.to_host(goal), exact(a, b))


@on_any_device
def test_view_takes_only_whole_elements_of_buffers() -> None:
    import pyopencl as cl
    import pyopencl.array as cla

    queue = DEVICES[0].handle.queue
    assert BACKEND.view(np.zeros(3), "a") is None
    buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 64)
    odd = cla.Array(queue, (2, 2), np.float32, data=buffer, offset=2)
    with pytest.raises(ValueError, match="a has offset 2"):
        BACKEND.view(odd, "a")
    view = BACKEND.to_device(np.arange(6, dtype=np.float32).reshape(2, 3), DEVICES[0])
    assert np.array_equal(BACKEND.to_host(view), [[0, 1, 2], [3, 4, 5]])


@on_any_device
def test_devices_are_described() -> None:
    assert [device.key for device in DEVICES] == [f"opencl:{at}" for at in range(len(DEVICES))]
    kinds = [device.kind for device in DEVICES]
    assert kinds == sorted(kinds, reverse=True)  # GPUs first
    for device in DEVICES:
        assert device.name
        assert device.driver
        assert device.limits["work_group"] >= 1
        assert {"image_width", "image_height", "local_memory", "max_alloc", "global_memory"} <= device.limits.keys()
        with_sizes = any(feature.startswith("subgroup_size_") for feature in device.features)
        assert with_sizes == ("intel_required_subgroup_size" in device.features)


@on_any_device
def test_a_flushing_device_offers_no_ordered_result() -> None:
    row = BY_NAME["sgemm_generic_naive"]
    flushing = replace(DEVICES[0], features=DEVICES[0].features - {"denorms"})
    with pytest.raises(KernelFailed, match="denormals"):
        BACKEND.launcher(row, flushing, Problem("float32", 4, 4, 4, reproducible=True))


@on_any_device
def test_failures_carry_the_build_log_and_tell_memory_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyopencl as cl

    row = BY_NAME["sgemm_generic_naive"]
    problem = Problem("float32", 4, 4, 4)
    with monkeypatch.context() as patch:
        patch.setattr(
            disk_cache, "read", lambda _: "kernel void gemm_generic_naive(global float *a) { a[0] = nowhere; }"
        )
        with pytest.raises(KernelFailed, match="nowhere") as caught:
            BACKEND.launcher(row, DEVICES[0], problem)
        assert not caught.value.memory
    run = BACKEND.launcher(row, DEVICES[0], problem)
    a, out = np.ones((4, 4), np.float32), np.zeros((4, 4), np.float32)

    def full(*_: Any, **__: Any) -> None:
        raise cl.MemoryError(cl._cl._ErrorRecord(msg="full", code=-4, routine="clCreateBuffer"))

    with monkeypatch.context() as patch:
        patch.setattr(Handle, "take", full)
        with pytest.raises(KernelFailed, match="full") as caught:
            run(a, a, None, out, 1.0, 0.0)
        assert caught.value.memory
    run(a, a, None, out, 1.0, 0.0)
    assert (out == 4).all()


@on_any_device
@pytest.mark.parametrize("damage", ["kept", "torn", "foreign"])
def test_cached_binaries(damage: str, private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyopencl as cl

    row, device = BY_NAME["sgemm_generic_naive"], DEVICES[0]
    for old in private_cache.iterdir():
        old.unlink()
    handle = Handle(device.handle.cl_device)
    options = "-D REAL=float"
    handle.program(disk_cache.read(row), options)
    (entry,) = private_cache.iterdir()
    good = entry.read_bytes()
    if damage == "torn":
        entry.write_bytes(good[: len(good) // 2])
    elif damage == "foreign":  # the checksum is right, the driver's word is not: tell it so without its abort
        disk_cache.store(entry.name, b"no binary at all")

    built: list[str] = []
    program = cl.Program

    def watched(context: Any, *rest: Any) -> Any:
        kind = "source" if len(rest) == 1 else "binary"
        built.append(kind)
        if damage == "foreign" and kind == "binary":
            raise cl.LogicError(cl._cl._ErrorRecord(msg="bad", code=-42, routine="clCreateProgramWithBinary"))
        return program(context, *rest)

    monkeypatch.setattr(cl, "Program", watched)
    fresh = Handle(device.handle.cl_device)
    again = fresh.program(disk_cache.read(row), options)
    assert again is fresh.program(disk_cache.read(row), options)
    assert built == {"kept": ["binary"], "torn": ["source"], "foreign": ["binary", "source"]}[damage]
    a, out = np.full((3, 3), 2, np.float32), np.zeros((3, 3), np.float32)
    launch(row, replace(device, handle=fresh), a, a, None, out)
    assert (out == 12).all()


@each(ROWS[:1])
def test_staging_memory_is_reused_and_bounded(row: Kernel, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    allocate = Handle.allocate
    monkeypatch.setattr(Handle, "allocate", lambda self, need: made.append(need) or allocate(self, need))
    run = BACKEND.launcher(row, device, Problem(row.dtype, 50, 60, 70))
    a, b, out = random(row, 50, 70), random(row, 70, 60), np.zeros((50, 60), row.dtype)
    run(a, b, None, out, 1.0, 0.0)
    made.clear()
    for _ in range(5):
        run(a, b, None, out, 1.0, 0.0)
    assert not made
    monkeypatch.setattr(opencl_context, "_KEPT", 0)
    run(a, b, None, out, 1.0, 0.0)
    gc.collect()
    assert not device.handle._spare


def test_without_a_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    cl = pytest.importorskip("pyopencl")

    def none() -> None:
        raise cl.LogicError(cl._cl._ErrorRecord(msg="none", code=-1001, routine="clGetPlatformIDs"))

    monkeypatch.setattr(cl, "get_platforms", none)
    with pytest.raises(BackendUnavailable, match="no OpenCL platform") as caught:
        OpenCLBackend().devices()
    assert "gemm[opencl-cpu]" in caught.value.remedy
    monkeypatch.setattr(cl, "get_platforms", list)
    with pytest.raises(BackendUnavailable, match="no platform has a usable device"):
        OpenCLBackend().devices()
    monkeypatch.setitem(__import__("sys").modules, "pyopencl", None)
    with pytest.raises(BackendUnavailable, match="cannot be imported"):
        OpenCLBackend().devices()


@pytest.mark.parametrize(
    ("name", "version", "known"),
    [
        ("QUALCOMM Adreno(TM)", "OpenCL C 3.0 Adreno(TM) 740", "QUALCOMM Adreno(TM) 740"),
        ("QUALCOMM Adreno(TM) 640 ", "OpenCL C 2.0 Adreno(TM) 640", "QUALCOMM Adreno(TM) 640"),
        ("Intel(R) UHD Graphics", "OpenCL C 3.0", "Intel(R) UHD Graphics"),
    ],
)
def test_names_tell_the_model(name: str, version: str, known: str) -> None:
    assert _name(SimpleNamespace(name=name, opencl_c_version=version)) == known


@on_any_device
@pytest.mark.parametrize(
    "kernel", ["s8s32gemm_generic_naive", "s8s32gemm_generic_local_16x16", "s8s32gemm_generic_tile_direct_32x32"]
)
def test_resident_bytes_have_sums_of_32_bits(kernel: str) -> None:
    import pyopencl.array as cla

    import gemm

    queue, rng = DEVICES[0].handle.queue, np.random.default_rng(0)
    x, y = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((33, 70), (70, 41)))
    whole = x.astype(np.int32) @ y.astype(np.int32)
    a, b = cla.to_device(queue, x), cla.to_device(queue, y)
    for _ in range(2):  # the second one repeats
        result = gemm.gemm(a, b, dtype="int32", kernel=kernel)
        assert result.dtype == np.int32
        assert np.array_equal(result.get(), whole)
    room = cla.to_device(queue, np.arange(34 * 41, dtype=np.int32).reshape(34, 41))
    before = room.get()
    gemm.gemm(a, b, room[:33], alpha=2, beta=-1, out=room[1:], dtype="int32", kernel=kernel)  # out overlaps c
    assert np.array_equal(room.get()[1:], 2 * whole - before[:33])
    with pytest.raises(TypeError, match="a has dtype int8, the product float32"):
        gemm.gemm(a, cla.to_device(queue, y.astype(np.float32)))
    with pytest.raises(TypeError, match="int8"):
        gemm.gemm(a, b, kernel=kernel)


WRITTEN_OUT = """
int written_out(uint a, uint b)
{
    const int4 products = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
    return products.s0 + products.s1 + products.s2 + products.s3;
}
#define dot_4x8packed_ss_int written_out
"""


@on_any_device
def test_packed_bytes_with_the_instruction_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the kernel but the instruction, which few devices have: conformance has it whole on one that does."""
    read = disk_cache.read
    whole = {True: "", False: WRITTEN_OUT}  # the kernel's whole text begins with it, no file that this is made of does
    monkeypatch.setattr(disk_cache, "read", lambda source: whole[isinstance(source, str)] + read(source))
    row, device = replace(BY_NAME["s8s32gemm_generic_packed_64x64"], needs=()), DEVICES[0]
    rng = np.random.default_rng(0)
    for m, n, k, batch in ((1, 1, 1, 1), (65, 70, 131, 1), (64, 64, 128, 2), (5, 33, 515, 1)):
        x, y = (rng.integers(-128, 128, (batch, *shape)).astype(np.int8) for shape in ((m, k), (k, n)))
        c = rng.integers(-9, 9, (batch, m, n)).astype(np.int32)
        exact = 2 * (x.astype(np.int32) @ y.astype(np.int32)) - c
        for turned in range(4):
            a = x.swapaxes(1, 2).copy().swapaxes(1, 2) if turned & 1 else x
            b = y.swapaxes(1, 2).copy().swapaxes(1, 2) if turned & 2 else y
            result = np.full_like(c, -7)
            problem = Problem("int32", m, n, k, batch, inputs=("int8", "int8"))
            sent = [resident(row, device, operand) for operand in (a, b, c)]
            BACKEND.launcher(row, device, problem)(*sent, out := resident(row, device, result), 2, -1)
            assert np.array_equal(BACKEND.to_host(out), exact)


@pytest.mark.parametrize(
    ("version", "usable"),
    [
        ("OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-generic", False),
        ("OpenCL 3.0 PoCL HSTR: pthread-x86_64-pc-linux-gnu-haswell", True),
        ("OpenCL 3.0 PoCL HSTR: pthread-aarch64-unknown-linux-gnu-generic", True),
        ("OpenCL 3.0 (Build 0)", True),
    ],
)
def test_a_device_whose_compiler_does_not_know_it_is_left_out(
    monkeypatch: pytest.MonkeyPatch, version: str, usable: bool
) -> None:
    cl = pytest.importorskip("pyopencl")
    device = SimpleNamespace(name="a CPU", version=version, type=cl.device_type.CPU)
    platform = SimpleNamespace(version="PoCL", get_devices=lambda: [device])
    monkeypatch.setattr(cl, "get_platforms", lambda: [platform])
    if usable:
        assert discover() == [device]
    else:
        with pytest.raises(BackendUnavailable, match=r"a CPU .*newer than PoCL's compiler"):
            discover()


def test_a_platform_that_lists_no_devices_leaves_those_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cl = pytest.importorskip("pyopencl")

    def broken() -> list[Any]:
        raise cl.LogicError("clGetDeviceIDs failed: DEVICE_NOT_FOUND")

    device = SimpleNamespace(name="a GPU", version="OpenCL 3.0", type=cl.device_type.GPU)
    good, bad = (SimpleNamespace(version="3.0", get_devices=what) for what in (lambda: [device], broken))
    for platforms in ([good, bad], [bad, good]):
        monkeypatch.setattr(cl, "get_platforms", lambda platforms=platforms: platforms)
        assert discover() == [device]
    monkeypatch.setattr(cl, "get_platforms", lambda: [bad])
    with pytest.raises(BackendUnavailable, match="no platform has a usable device"):
        discover()


@pytest.mark.parametrize(
    ("told", "version", "width"),
    [
        (16, "OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-znver3", 8),  # a Zen 4, to LLVM 14
        (16, "OpenCL 3.0 PoCL HSTR: cpu-x86_64-pc-linux-gnu-znver4", 16),
        (16, "OpenCL 3.0 PoCL HSTR: pthread-x86_64-pc-linux-gnu-skylake-avx512", 16),
        (16, "OpenCL 3.0 PoCL HSTR: pthread-x86_64-pc-linux-gnu-icelake-server", 16),
        (16, "OpenCL 3.0 PoCL HSTR: pthread-x86_64-pc-linux-gnu-sapphirerapids", 16),
        (8, "OpenCL 3.0 PoCL HSTR: pthread-x86_64-pc-linux-gnu-haswell", 8),
        (4, "OpenCL 3.0 PoCL HSTR: cpu-aarch64-unknown-linux-gnu-generic", 4),
        (16, "OpenCL 3.0 (Build 0)", 16),  # Intel's
    ],
)
def test_a_vector_is_no_wider_than_the_compiler_knows_the_cpu(told: int, version: str, width: int) -> None:
    assert _vector_width(told, version) == width
