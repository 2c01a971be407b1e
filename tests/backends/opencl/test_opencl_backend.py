"""The OpenCL backend below the public face: launches on device operands, packing, tiling, caching, threads.

A kernel of each source is tested on every device found; what all owe on operands of the host is the matter of
tests/conformance.
"""

import gc
import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import at_once, rand
from oracle import check_close, exact

from gemm.backends.opencl import context as opencl_context
from gemm.backends.opencl.backend import OpenCLBackend, _name, _vector_width, discover
from gemm.backends.opencl.context import Handle
from gemm.backends.opencl.layout import PACKED, Layout, tile
from gemm.backends.opencl.staging import Traffic
from gemm.catalog import BY_NAME, KERNELS
from gemm.core import disk_cache
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Problem

ROWS = list({r.source: r for r in reversed(KERNELS) if r.backend == "opencl" and not r.inputs}.values())
"""One of each source; conformance has them all."""
IMAGES = [row for row in ROWS if "image" in row.needs]
BACKEND = OpenCLBackend()

try:
    DEVICES = BACKEND.devices()
    WHY = ""
except BackendUnavailable as error:
    DEVICES, WHY = (), str(error)


def runs(row, device):
    limits = {"m": 64, "n": 64, "k": 64, "batch": 1, **device.limits}
    return not set(row.needs) - device.features and row.illegal(limits) is None


def each(rows):
    """A test of every one of `rows` on every device that can run it; one skip a row that none can."""
    cases = []
    for row in rows:
        able = [device for device in DEVICES if runs(row, device)]
        cases += [pytest.param(row, device, id=f"{row.name}@{device.key}") for device in able]
        if not able:
            why = WHY or f"no device offers {', '.join(row.needs)}"
            cases.append(pytest.param(row, None, id=row.name, marks=pytest.mark.skip(reason=why)))
    return pytest.mark.parametrize(("row", "device"), cases)


on_any_device = pytest.mark.skipif(not DEVICES, reason=WHY or "no device")


def launch(row, device, a, b, c, out, alpha=1.0, beta=0.0):
    (*batch, m, k), n = a.shape, b.shape[-1]
    problem = Problem(row.dtype, m, n, k, int(np.prod(batch)))
    BACKEND.launcher(row, device, problem)(a, b, c, out, alpha, beta)


def resident(device, operand):
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
    assert view.device is device
    return view


PACKED_AS = [
    Layout(8, 16),
    Layout(4, 4, pad=-0.0),
    Layout(1, 24, panel=24),
    Layout(4, 4, channels=4),
    Layout(8, 32, panel=16, pad=-0.0),
    Layout(8, 16, panel=8, depth=2),
    Layout(32, 8, panel=8, depth=4),
]


@on_any_device
@pytest.mark.parametrize(  # no kernel reads texels of one half, which PoCL 3.1 writes wrongly
    ("layout", "dtype"), [*itertools.product(PACKED_AS, ["float32", "float16"]), (Layout(2, 8, 1), "float32")], ids=str
)
@pytest.mark.parametrize("cpu", [True, False], ids=["blocks", "elements and squares"])
def test_packing(layout, dtype, cpu, monkeypatch):
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
            panels = expected.reshape(batch, tall // layout.depth, layout.depth, -1, layout.panel)
            expected = panels.transpose(0, 3, 1, 4, 2)
        found = np.empty(expected.size, dtype)
        view = resident(device, source)
        kept = Traffic(device.handle, device.handle.queue, []).keep(view, layout)
        if layout.channels:
            size = {"origin": (0, 0), "region": (long // layout.channels, batch * tall)}
            cl.enqueue_copy(device.handle.queue, found, kept.staged.data, **size)
        else:
            cl.enqueue_copy(device.handle.queue, found, kept.staged.data)
        bits = f"u{found.itemsize}"
        np.testing.assert_array_equal(found.view(bits), expected.ravel().view(bits))


def test_tile_respects_every_limit():
    left, right = Layout(8, 4, pad=-0.0), Layout(4, 4, channels=4)
    slabs = ((left, "m", "k"), (right, "k", "n"), (PACKED, "m", "n"))
    for m, n, k in itertools.product((1, 7, 100, 5000), repeat=3):
        for image, nbytes in (((16, 20), 1 << 30), ((8192, 8192), 4096), ((3, 1), 64)):
            step = tile((m, n, k), slabs, 4, image, nbytes)
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
def test_one_launch_for_many_small_products(row, device, monkeypatch):
    import pyopencl as cl

    enqueue, count = cl.enqueue_nd_range_kernel, []

    def counted(*args, **options):
        count.append(args)
        return enqueue(*args, **options)

    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", counted)
    a, b = rand(40, 5, 6, dtype=row.dtype), rand(40, 6, 7, dtype=row.dtype)
    out = np.empty((40, 5, 7), row.dtype)
    launch(row, device, a, b, None, out)
    check_close(out, exact(a, b))
    assert len(count) == 1


@each(ROWS)
def test_threads_share_a_launcher(row, device):
    run = BACKEND.launcher(row, device, Problem(row.dtype, 40, 30, 50))

    def work(seed):
        for turn in range(6):
            a, b = rand(40, 50, dtype=row.dtype, seed=seed + turn), rand(50, 30, dtype=row.dtype, seed=seed)
            out = np.full((40, 30), np.nan, row.dtype)
            if turn % 2:
                goal = resident(device, out)
                run(resident(device, a), resident(device, b), None, goal, 1.0, 0.0)
                out = BACKEND.to_host(goal)
            else:
                run(a, b, None, out, 1.0, 0.0)
            check_close(out, exact(a, b))

    at_once(work, range(0, 400, 100))


@each(ROWS[:1] + ROWS[-2:])
def test_callers_context_and_queues(row, device):
    import pyopencl as cl
    import pyopencl.array as cla

    context = cl.Context([device.handle.cl_device])
    a, b = rand(17, 9, dtype=row.dtype), rand(9, 12, dtype=row.dtype)
    queues = [
        cl.CommandQueue(context),
        cl.CommandQueue(context, properties=cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)
        if device.handle.cl_device.queue_properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        else cl.CommandQueue(context),
    ]
    views = []
    for queue in queues:
        arrays = [cla.to_device(queue, x) for x in (a, b)]
        views = [BACKEND.view(array, "x") for array in arrays]
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
    assert loose.queue is None
    goal = BACKEND.empty((17, 12), loose)
    assert goal.queue is None
    launch(row, loose.device, loose, BACKEND.view(arrays[1].with_queue(None), "x"), None, goal)
    BACKEND.synchronize(loose.device)
    check_close(BACKEND.to_host(goal), exact(a, b))


@on_any_device
def test_view_takes_only_whole_elements_of_buffers():
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
def test_devices_are_described():
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
def test_a_flushing_device_offers_no_ordered_result():
    row = BY_NAME["sgemm_generic_naive"]
    flushing = replace(DEVICES[0], features=DEVICES[0].features - {"denorms"})
    with pytest.raises(KernelFailed, match="denormals"):
        BACKEND.launcher(row, flushing, Problem("float32", 4, 4, 4, reproducible=True))


@on_any_device
def test_failures_carry_the_build_log_and_tell_memory_apart(monkeypatch):
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

    def full(*_, **__):
        raise cl.MemoryError(cl._cl._ErrorRecord(msg="full", code=-4, routine="clCreateBuffer"))

    with monkeypatch.context() as patch:
        patch.setattr(Handle, "take", full)
        with pytest.raises(KernelFailed, match="full") as caught:
            run(a, a, None, out, 1.0, 0.0)
        assert caught.value.memory
    run(a, a, None, out, 1.0, 0.0)
    assert (out == 4).all()


@on_any_device
@pytest.mark.parametrize(
    ("features", "fused"), [({"fma"}, 1), (set(), 0), ({"fma", "slow_fma"}, 0)], ids=["fast", "none", "slow"]
)
def test_fma_is_called_where_it_is_fast(features, fused):
    device = replace(DEVICES[0], features=DEVICES[0].features - {"fma", "slow_fma"} | features)
    run = BACKEND.launcher(BY_NAME["sgemm_generic_naive"], device, Problem("float32", 4, 4, 4))
    assert f"-D FUSED={fused}" in run.options
    a, out = np.ones((4, 4), np.float32), np.zeros((4, 4), np.float32)
    run(a, a, None, out, 1.0, 0.0)
    assert (out == 4).all()
    assert ("slow_fma" in DEVICES[0].features) == ("PoCL" in DEVICES[0].driver)


@on_any_device
@pytest.mark.parametrize("damage", ["kept", "torn", "foreign"])
def test_cached_binaries(damage, cache_folder, monkeypatch):
    import pyopencl as cl

    monkeypatch.setattr(opencl_context, "KEEP_PROGRAMS", ())
    row, device = BY_NAME["sgemm_generic_naive"], DEVICES[0]
    handle = Handle(device.handle.cl_device)
    options = "-D REAL=float"
    handle.program(disk_cache.read(row), options)
    (entry,) = cache_folder.iterdir()
    good = entry.read_bytes()
    if damage == "torn":
        entry.write_bytes(good[: len(good) // 2])
    elif damage == "foreign":  # the checksum is right, the driver's word is not: tell it so without its abort
        disk_cache.store(entry.name, b"no binary at all")

    built = []
    program = cl.Program

    def watched(context, *rest):
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


@on_any_device
def test_no_binary_of_a_program_that_the_driver_keeps(cache_folder, monkeypatch):
    device = DEVICES[0]
    monkeypatch.setattr(opencl_context, "KEEP_PROGRAMS", (device.handle.cl_device.platform.name,))
    Handle(device.handle.cl_device).program(disk_cache.read(BY_NAME["sgemm_generic_naive"]), "-D REAL=float")
    assert not list(cache_folder.iterdir())


@each(ROWS[:1])
def test_staging_memory_is_reused_and_bounded(row, device, monkeypatch):
    made = []
    allocate = Handle.allocate
    monkeypatch.setattr(Handle, "allocate", lambda self, need: made.append(need) or allocate(self, need))
    run = BACKEND.launcher(row, device, Problem(row.dtype, 50, 60, 70))
    a, b, out = rand(50, 70, dtype=row.dtype), rand(70, 60, dtype=row.dtype), np.zeros((50, 60), row.dtype)
    run(a, b, None, out, 1.0, 0.0)
    made.clear()
    for _ in range(5):
        run(a, b, None, out, 1.0, 0.0)
    assert not made
    monkeypatch.setattr(opencl_context, "_KEPT", 0)
    run(a, b, None, out, 1.0, 0.0)
    gc.collect()
    assert not device.handle._spare


def test_without_a_platform(monkeypatch):
    cl = pytest.importorskip("pyopencl")

    def none():
        raise cl.LogicError(cl._cl._ErrorRecord(msg="none", code=-1001, routine="clGetPlatformIDs"))

    monkeypatch.setattr(cl, "get_platforms", none)
    with pytest.raises(BackendUnavailable, match="no OpenCL platform") as caught:
        OpenCLBackend().devices()
    assert "pyopencl[pocl]" in caught.value.remedy
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
def test_names_tell_the_model(name, version, known):
    assert _name(SimpleNamespace(name=name, opencl_c_version=version)) == known


@on_any_device
@pytest.mark.parametrize(
    "kernel", ["s8s32gemm_generic_naive", "s8s32gemm_generic_local_16x16", "s8s32gemm_generic_tile_direct_32x32"]
)
def test_resident_bytes_have_sums_of_32_bits(kernel):
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
    with pytest.raises(TypeError, match="a has dtype int8, the product has float32"):
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
def test_packed_bytes_with_the_instruction_written_out(monkeypatch):
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
            sent = [resident(device, operand) for operand in (a, b, c)]
            BACKEND.launcher(row, device, problem)(*sent, out := resident(device, result), 2, -1)
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
def test_a_device_whose_compiler_does_not_know_it_is_left_out(monkeypatch, version, usable):
    cl = pytest.importorskip("pyopencl")
    device = SimpleNamespace(name="a CPU", version=version, type=cl.device_type.CPU)
    platform = SimpleNamespace(version="PoCL", get_devices=lambda: [device])
    monkeypatch.setattr(cl, "get_platforms", lambda: [platform])
    if usable:
        assert discover() == [device]
    else:
        with pytest.raises(BackendUnavailable, match=r"a CPU .*newer than PoCL's compiler"):
            discover()


def test_a_platform_that_lists_no_devices_leaves_those_of_the_others(monkeypatch):
    cl = pytest.importorskip("pyopencl")

    def broken():
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
def test_a_vector_is_no_wider_than_the_compiler_knows_the_cpu(told, version, width):
    assert _vector_width(told, version) == width
