"""The emulated CUDA machine itself: its copies against models in NumPy, and that it finds mistakes.

Its tensor cores show their mistakes in test_cuda_kmajor.py and test_cuda_races.py, where kernels use them.
"""

import re
import struct
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path

import numpy as np
import pytest
from cuda_machine.direct import Failed, source

pytestmark = pytest.mark.usefixtures("plain_settings")

HEAD = '#include "ptx.cuh"\n#include "wgmma.cuh"\n'


@pytest.fixture(params=["late", "early", "mixed"])
def timing(request, monkeypatch):
    monkeypatch.setenv("CUDA_MACHINE_ASYNC", request.param)
    return str(request.param)


def swizzled(offset, width):
    """Where the byte at `offset` of a tile lies, by the PTX ISA's drawings of the swizzling modes."""
    if not width:
        return offset
    row, column = offset // 128, offset % 128
    chunk = column // 16
    chunk = chunk ^ row % (width // 16)
    return row * 128 + chunk * 16 + column % 16


def shared_image(tile, width):
    """The bytes of shared memory after TMA has written `tile`."""
    raw = np.ascontiguousarray(tile).view(np.uint8).ravel()
    image = np.empty_like(raw)
    image[swizzled(np.arange(raw.size), width)] = raw
    return image


# ---- TMA


LOAD = (
    HEAD
    + """
extern "C" __global__ void load(const __grid_constant__ TensorMap map, uint4 *out, int bytes, int x, int y, int z) {
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ unsigned long long full;
    const unsigned bar = shared_address(&full);
    if (threadIdx.x == 0) {
        barrier_init(bar, 1);
        barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_expect(bar, bytes);
        tma_load_3d(shared_address(memory), &map, bar, x, y, z);
    }
    barrier_wait(bar, 0);
    for (int i = threadIdx.x; i < bytes / 16; i += blockDim.x) out[i] = ((const uint4 *)memory)[i];
}
"""
)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("width", [0, 32, 64, 128])
@pytest.mark.parametrize("at", [(0, 0, 0), (16, 5, 1), (-4, -3, 0), (80, 30, 2)])
def test_tma_loads_boxes(machine, dtype, width, at):
    size = np.dtype(dtype).itemsize
    tensor = np.random.default_rng(0).integers(1, 200, (3, 37, 96)).astype(dtype)
    box = ((width or 128) // size, 16, 2)
    padded = np.pad(tensor, ((2, 2), (40, 40), (200, 200)))
    x, y, z = at[0] + 200, at[1] + 40, at[2] + 2
    want = shared_image(padded[z : z + 2, y : y + 16, x : x + box[0]], width)
    device = machine.to_device(tensor)
    out = np.zeros(want.size, np.uint8)
    kernel = machine.kernel(LOAD, "load")
    kernel((1,), (64,), machine.tensor_map(device, box, width), out, c_int(out.size), *map(c_int, at), shared=out.size)
    np.testing.assert_array_equal(out, want)


def test_tma_rounds_to_tf32(machine):
    tensor = np.array([1 + 2**-11, 1 + 3 * 2**-11, -(1 + 2**-11 + 2**-20), 3] * 8, np.float32).reshape(1, 1, 32)
    device = machine.to_device(tensor)
    out = np.zeros(32, np.float32)
    map_ = machine.tensor_map(device, (32, 1, 1), 128, kind="tf32")
    machine.kernel(LOAD, "load")((1,), (32,), map_, out, c_int(128), c_int(0), c_int(0), c_int(0), shared=128)
    np.testing.assert_array_equal(out[:4], np.float32([1, 1 + 2**-9, -(1 + 2**-10), 3]))


STORE = (
    HEAD
    + """
extern "C" __global__ void store(const __grid_constant__ TensorMap map, int x, int y) {
    extern __shared__ __align__(1024) float tile[];
    for (int i = threadIdx.x; i < 16 * 32; i += blockDim.x) tile[i] = 1 + i;
    if (FENCED) fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        tma_store_2d(&map, shared_address(tile), x, y);
        bulk_commit();
        if (WAITS) bulk_wait_read<0>();
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * 32; i += blockDim.x) tile[i] = -1;
}
"""
)


def test_tma_stores_what_lies_inside(machine, timing):
    device = machine.to_device(np.zeros((20, 40), np.float32))
    map_ = machine.tensor_map(device, (32, 16))
    machine.kernel(STORE, "store", {"FENCED": 1, "WAITS": 1})((1,), (32,), map_, c_int(16), c_int(8), shared=2048)
    want = np.zeros((20, 40), np.float32)
    want[8:, 16:] = np.arange(1, 513, dtype=np.float32).reshape(16, 32)[:12, :24]
    np.testing.assert_array_equal(device.get(), want)


@pytest.mark.parametrize(
    ("macros", "told"), [({"FENCED": 0, "WAITS": 1}, "fence_async"), ({"FENCED": 1, "WAITS": 0}, "without waiting")]
)
def test_tma_stores_want_a_fence_and_a_wait(machine, macros, told):
    map_ = machine.tensor_map(machine.to_device(np.zeros((20, 40), np.float32)), (32, 16))
    with pytest.raises(Failed, match=told):
        machine.kernel(STORE, "store", macros)((1,), (32,), map_, c_int(0), c_int(0), shared=2048)


# ---- Clusters, barriers, cp.async


SUMS = (
    HEAD
    + """
extern "C" __global__ void sums(float *out) {
    __shared__ float4 inbox[2][32];
    __shared__ unsigned long long arrived;
    const unsigned bar = shared_address(&arrived);
    if (threadIdx.x == 0) {
        barrier_init(bar, 1);
        barrier_init_fence();
    }
    if (SYNC) cluster_meet();
    if (threadIdx.x == 0) barrier_expect(bar, 2 * 32 * 16);
    const float x = 100 * blockIdx.x + threadIdx.x;
    for (unsigned rank = 0; rank < 2; ++rank)
        remote_store(shared_address(&inbox[cluster_rank()][threadIdx.x]), float4{x, 0, 0, x}, bar, rank);
    if (STAY) barrier_wait_cluster(bar, 0);
    out[blockIdx.x * 32 + threadIdx.x] = inbox[0][threadIdx.x].x + inbox[1][threadIdx.x].w;
}
"""
)


def test_clusters_store_to_each_other(machine, timing):
    out = np.zeros((4, 32), np.float32)
    machine.kernel(SUMS, "sums", {"SYNC": 1, "STAY": 1})((4,), (32,), out, cluster=2)
    blocks = 100 * np.arange(4)[:, None] + np.arange(32)
    np.testing.assert_array_equal(out, np.repeat(blocks.reshape(2, 2, 32).sum(axis=1), 2, axis=0))


@pytest.mark.parametrize(
    ("macros", "told"),
    [({"SYNC": 0, "STAY": 1}, "not have started"), ({"SYNC": 1, "STAY": 0}, "still storing|already ended")],
)
def test_clusters_must_begin_and_end_together(machine, macros, told):
    with pytest.raises(Failed, match=told):
        machine.kernel(SUMS, "sums", macros)((2,), (32,), np.zeros((2, 32), np.float32), cluster=2)


MULTICAST = (
    HEAD
    + """
extern "C" __global__ void load(const __grid_constant__ TensorMap map, float *out) {
    extern __shared__ __align__(1024) float tile[];
    __shared__ unsigned long long full, empty;
    const unsigned bar = shared_address(&full), done = shared_address(&empty);
    if (threadIdx.x == 0) {
        barrier_init(bar, 1);
        barrier_init(done, 2 * blockDim.x);
        barrier_init_fence();
    }
    cluster_meet();
    for (int step = 0; step < 3; ++step) {
        if (threadIdx.x == 0) {
            if (WAITS && step) barrier_wait(done, step - 1 & 1);
            barrier_expect(bar, 2 * 32 * 4);
            const unsigned rank = cluster_rank();
            tma_load_2d_multicast(shared_address(tile) + rank * 128, &map, bar, 0, step * 2 + rank, 3);
        }
        barrier_wait(bar, step & 1);
        for (int i = threadIdx.x; i < 64; i += 32) out[(blockIdx.x * 3 + step) * 64 + i] = tile[i];
        for (unsigned rank = 0; rank < 2; ++rank) barrier_arrive_remote(done, rank);
    }
    cluster_meet();
}
"""
)


def test_multicast_loads_reach_the_cluster(machine, timing):
    rows = np.arange(6 * 32, dtype=np.float32).reshape(6, 32)
    map_ = machine.tensor_map(machine.to_device(rows), (32, 1))
    out = np.zeros((2, 3, 64), np.float32)
    machine.kernel(MULTICAST, "load", {"WAITS": 1})((2,), (32,), map_, out, shared=256, cluster=2)
    np.testing.assert_array_equal(out, [rows.reshape(3, 64)] * 2)


def test_a_stage_overwritten_too_early_shows(machine, monkeypatch):
    rows = np.arange(6 * 32, dtype=np.float32).reshape(6, 32)
    map_ = machine.tensor_map(machine.to_device(rows), (32, 1))
    kernel = machine.kernel(MULTICAST, "load", {"WAITS": 0})
    monkeypatch.setenv("CUDA_MACHINE_ASYNC", "early")
    for seed in range(1, 6):
        monkeypatch.setenv("CUDA_MACHINE_SEED", str(seed))
        out = np.zeros((2, 3, 64), np.float32)
        try:
            kernel((2,), (32,), map_, out, shared=256, cluster=2)
        except Failed:
            return
        if (out != rows.reshape(3, 64)).any():
            return
    pytest.fail("the missing wait was not noticed")


COPY = (
    HEAD
    + """
extern "C" __global__ void copy(const float *from, float *to, int count) {
    __shared__ __align__(16) float tile[2][128];
    const int at = threadIdx.x * 4, left = count - at;
    copy_async<16>(shared_address(tile[0] + at), from + at, left < 0 ? 0 : left < 4 ? left * 4 : 16);
    copy_commit();
    copy_async<4>(shared_address(tile[1] + threadIdx.x), from + threadIdx.x, 4);
    copy_commit();
    copy_wait<PENDING>();
    for (int i = 0; i < 4; ++i) to[at + i] = tile[0][at + i];
    copy_wait<0>();
    to[128 + threadIdx.x] = tile[1][threadIdx.x];
}
"""
)


def test_asynchronous_copies(machine, timing):
    from_, to = np.arange(1, 129, dtype=np.float32), np.zeros(160, np.float32)
    machine.kernel(COPY, "copy", {"PENDING": 1})((1,), (32,), from_, to, c_int(70))
    np.testing.assert_array_equal(to, [*from_[:70], *[0] * 58, *from_[:32]])


def test_a_copy_not_waited_for_shows(machine, monkeypatch):
    monkeypatch.setenv("CUDA_MACHINE_ASYNC", "late")
    to = np.zeros(160, np.float32)
    machine.kernel(COPY, "copy", {"PENDING": 2})((1,), (32,), np.ones(128, np.float32), to, c_int(128))
    assert np.isnan(to[:128]).all(), "shared memory begins as NaN"


# ---- Mistakes


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("if (threadIdx.x) __syncthreads();", "deadlock:.*ended.*named barrier 0"),
        ("bar_sync(1, 64);", "deadlock"),
        ("if (threadIdx.x < 16) __shfl_sync(0xffffffffu, 1, 0);", "__shfl_sync"),
        ("if (threadIdx.x & 1) __syncwarp(); else __shfl_sync(0xffffffffu, 1, 0);", "while lanes"),
        ("x[1 << 12] = 1;", "illegal address"),
        ("x[-(1 << 12)] = 1;", "illegal address"),
        ("memory[threadIdx.x + 600] = 0;", "beyond its dynamic shared memory"),
        ("barrier_wait(shared_address(memory), 0);", "there is no barrier"),
        ("if (threadIdx.x == 0) barrier_init(shared_address(memory), 33); __syncthreads();"
         "barrier_arrive(shared_address(memory)); barrier_wait(shared_address(memory), 0);", "wait for barrier"),
        ("unsigned y[4]; ldmatrix_x4_trans(y, shared_address(memory) + 4);", "not aligned"),
        ("copy_async<16>(shared_address(memory), x + 1, 16);", "not aligned"),
        ("float d[4]; wgmma_bf16(d, 0ull, 0ull, 0);", "without wgmma_fence"),
        ("float d[4]; wgmma_fence(); wgmma_bf16(d, descriptor(shared_address(memory), 16, 128, 0),"
         "descriptor(shared_address(memory), 16, 128, 0), 0); wgmma_commit();", "without waiting for wgmma"),
        ("volatile float big[1 << 17]; for (int i = 1 << 17; i-- > 0;) big[i] = i;", "illegal address"),
    ],
)  # fmt: skip
def test_mistakes_are_reported(machine, body, told, monkeypatch, capfd):
    monkeypatch.setenv("CUDA_MACHINE_ASYNC", "late")
    source = (
        HEAD
        + 'extern "C" __global__ void wrong(float *x) { extern __shared__ __align__(16) float memory[];'
        + body
        + "}"
    )
    kernel = machine.kernel(source, "wrong")
    with pytest.raises(Failed, match=f"(?s){told}"):
        kernel((1,), (32,), np.zeros(4, np.float32), shared=1024)
    assert "emulated CUDA machine" in capfd.readouterr().err
    good = np.zeros(1, np.float32)
    machine.kernel('extern "C" __global__ void good(float *x) { *x = 1; }', "good")((1,), (1,), good)
    assert good[0] == 1, "the machine goes on after a fault"


def test_an_allocation_overrun_within_its_page_is_noticed_when_freed(machine):
    source = 'extern "C" __global__ void past(char *x) { x[100] = 1; }'
    kernel = machine.kernel(source, "past")
    kernel((1,), (1,), np.zeros(100, np.uint8))
    with pytest.raises(Failed, match="behind the end"):
        machine.call("cuCtxSynchronize")


def test_launches_are_checked(machine):
    kernel = machine.kernel('extern "C" __global__ void __launch_bounds__(64) small(float *x) {}', "small")
    x = np.zeros(1, np.float32)
    for grid, block, options in (
        ((1,), (65,), {}), ((1,), (2048,), {}), ((1, 70000), (32,), {}), ((3,), (32,), {"cluster": 2}),
        ((1,), (32,), {"shared": 233 << 10}), ((16,), (32,), {"cluster": 16}),
    ):  # fmt: skip
        with pytest.raises(Failed):
            kernel(grid, block, x, **options)
    with pytest.raises(Failed, match="no kernel image"):
        machine.kernel('extern "C" __global__ void old() {}', "old", arch="sm_80a")
    with pytest.raises(Failed, match="error"):
        machine.kernel('extern "C" __global__ void bad() { nonsense; }', "bad")


# ---- The driver


def new(machine, function, *given):
    """The handle that the driver's function makes."""
    handle = c_void_p()
    machine.call(function, byref(handle), *given)
    return handle


def stream_of(machine):
    return new(machine, "cuStreamCreate", 1)


def test_functions_fail_when_asked_to(machine, monkeypatch):
    monkeypatch.setenv("CUDA_MACHINE_FAIL", "cuMemAlloc_v2:2:2,cuCtxSynchronize:1:719:sticky")
    device = machine.to_device(np.zeros(4))
    with pytest.raises(Failed, match="out of memory"):
        machine.to_device(np.zeros(4))
    machine.to_device(np.zeros(4)).free()
    for _ in range(2):
        with pytest.raises(Failed, match="719"):
            machine.call("cuCtxSynchronize")
    monkeypatch.delenv("CUDA_MACHINE_FAIL")
    machine.call("cuCtxSynchronize")
    device.free()


def test_memory_ends(machine, monkeypatch):
    monkeypatch.setenv("CUDA_MACHINE_MEMORY", "1")
    with pytest.raises(Failed, match="out of memory"):
        machine.to_device(np.zeros(1 << 20))


def test_streams_are_late_and_events_order_them(machine, monkeypatch):
    monkeypatch.setenv("CUDA_MACHINE_STREAMS", "late")
    streams, event = [stream_of(machine), stream_of(machine)], new(machine, "cuEventCreate", 0)
    device = machine.to_device(np.zeros(4, np.uint32))
    address, size = c_void_p(device.address), c_size_t(16)
    got = np.zeros(4, np.uint32)

    def set_then_copy(ordered, value):
        machine.call("cuMemsetD32Async", address, value, c_size_t(4), streams[0])
        machine.call("cuEventRecord", event, streams[0])
        if ordered:
            machine.call("cuStreamWaitEvent", streams[1], event, 0)
        machine.call("cuMemcpyDtoHAsync_v2", c_void_p(got.ctypes.data), address, size, streams[1])
        machine.call("cuStreamSynchronize", streams[1])
        return int(got[0])

    assert set_then_copy(False, 7) == 0
    assert set_then_copy(True, 8) == 8


COUNT = 'extern "C" __global__ void count(float *x) { x[threadIdx.x] = threadIdx.x; }'


@pytest.fixture
def two(machine, monkeypatch):
    """The contexts of two GPUs, that of the second one current; what is enqueued there is late."""
    monkeypatch.setenv("CUDA_MACHINE_DEVICES", "2")
    contexts = [new(machine, "cuDevicePrimaryCtxRetain", ordinal) for ordinal in range(2)]
    monkeypatch.setenv("CUDA_MACHINE_STREAMS", "late")
    machine.call("cuCtxPushCurrent_v2", contexts[1])
    yield contexts
    machine.call("cuCtxPopCurrent_v2", None)


def test_memory_of_another_device_is_out_of_reach(machine, two):
    def launch(kernel):
        kernel((1,), (8,), there)

    here = machine.kernel("#define SECOND 1\n" + COUNT, "count")
    nearby, own = machine.to_device(np.zeros(8, np.float32)), stream_of(machine)
    machine.call("cuCtxPushCurrent_v2", two[0])
    there, other = machine.to_device(np.zeros(8, np.float32)), machine.kernel(COUNT, "count")
    event = new(machine, "cuEventCreate", 2)
    machine.call("cuCtxPopCurrent_v2", None)
    to, source = c_void_p(nearby.address), c_void_p(there.address)
    for call in (("cuMemcpyDtoDAsync_v2", to, source, c_size_t(32), own), ("cuEventRecord", event, own)):
        with pytest.raises(Failed):
            machine.call(*call)
    with pytest.raises(Failed, match="invalid resource handle"):  # a kernel of the other context
        launch(other)
    with pytest.raises(Failed, match="illegal address"):
        launch(here)


def test_a_device_fails_alone(machine, two, monkeypatch):
    monkeypatch.setenv("CUDA_MACHINE_FAIL", "cuMemAlloc_v2@0:1:2:sticky")
    machine.to_device(np.zeros(8, np.float32)).free()
    machine.call("cuCtxPushCurrent_v2", two[0])
    with pytest.raises(Failed, match="out of memory"):
        machine.to_device(np.zeros(8, np.float32))
    machine.call("cuCtxPopCurrent_v2", None)


def test_graphs_replay_what_a_stream_captured(machine):
    """Memory that a graph allocates is there at each replay, and its alone."""
    stream, graph = stream_of(machine), c_void_p()
    room, size, device = c_uint64(), c_size_t(4), machine.to_device(np.zeros(2, np.uint32))
    address = c_uint64(device.address)
    machine.call("cuStreamBeginCapture_v2", stream, 0)
    machine.call("cuMemAllocFromPoolAsync", byref(room), size, c_void_p(1), stream)
    machine.call("cuMemsetD32Async", room, 5, c_size_t(1), stream)
    machine.call("cuMemcpyDtoDAsync_v2", address, room, size, stream)
    machine.call("cuMemFreeAsync", room, stream)
    machine.call("cuStreamEndCapture", stream, byref(graph))
    made = new(machine, "cuGraphInstantiateWithFlags", graph, c_uint64(0))
    machine.call("cuGraphDestroy", graph)
    for _ in range(2):
        machine.call("cuMemsetD32Async", address, 0, c_size_t(1), stream)
        machine.call("cuStreamSynchronize", stream)
        assert device.get()[0] == 0
        machine.call("cuGraphLaunch", made, stream)
        machine.call("cuStreamSynchronize", stream)
        assert list(device.get()) == [5, 0]
    machine.call("cuGraphExecDestroy", made)
    with pytest.raises(Failed):
        machine.call("cuMemFree_v2", room)


def test_every_function_of_ptx_is_emulated():
    emulated = Path(__file__).parents[2].joinpath("cuda_machine", "ptx.h").read_text(encoding="utf-8")
    known = set(re.findall(r"\b(\w+)\(", emulated)) | set(re.findall(r"MACHINE_WGMMA\((\w+)", emulated))
    for name in ("ptx.cuh", "ptx_sm90.cuh", "wgmma.cuh"):
        functions = re.findall(r"^(?:template <[^>]*> )?PTX [\w ]+?(\w+)\(", source(name), re.MULTILINE)
        assert functions
        assert not set(functions) - known, name


# ---- Launches that overlap


FOLLOWS = (
    HEAD
    + """
extern "C" __global__ void copy(const float *from, float *to) {
    __shared__ float held[32];
    if (EARLY) copy_async<4>(shared_address(held + threadIdx.x), from + threadIdx.x, 4);
    if (threadIdx.x < FOLLOWING) follow_launch();
    if (!EARLY) copy_async<4>(shared_address(held + threadIdx.x), from + threadIdx.x, 4);
    copy_commit();
    copy_wait<0>();
    to[threadIdx.x] = held[threadIdx.x];
}
"""
)


def test_overlapping_launches_wait_for_each_other(machine):
    values, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    machine.kernel(FOLLOWS, "copy", {"EARLY": 0, "FOLLOWING": 32})((1,), (32,), values, out, overlaps=True)
    np.testing.assert_array_equal(out, values)
    machine.kernel(FOLLOWS, "copy", {"EARLY": 0, "FOLLOWING": 0})((1,), (32,), values, out)
    for early, following, told in ((1, 32, "cp.async before follow"), (0, 31, "before follow")):
        made = machine.kernel(FOLLOWS, "copy", {"EARLY": early, "FOLLOWING": following})
        with pytest.raises(Failed, match=told):
            made((1,), (32,), values, out, overlaps=True)


# ---- csrc/cuda/gemm.cuh


TILES = """
#include "gemm.cuh"
extern "C" __global__ void tiles(ARGUMENT Gemm g, int *counts, int across) {
    for (unsigned i = threadIdx.x; i < tiles_of<8, 4>(g); i += blockDim.x) {
        const Tile tile = tile_of<8, 4>(g, i);
        counts[i] = (int)(tile.top / 8) * across + (int)(tile.left / 4);
    }
}
"""


@pytest.mark.parametrize("raster", [0, 1, 2, 3, 5, 7, 9])
def test_bands_have_each_tile_once(machine, raster):
    """`raster` columns of tiles are walked together, down all rows; the last band may have fewer."""
    m, n, down, across = 37, 27, 5, 7
    given = struct.pack("5Q18q2Q4i", *[0] * 5, m, n, *[0] * 16, 0, 0, 1, 0, raster, 0).ljust(256, b"\0")
    found = np.full(down * across, -1, np.int32)
    machine.kernel(TILES, "tiles")((1,), (64,), given, found, c_int(across))
    width = raster if 0 < raster < across else across
    expected = [
        row * across + column
        for first in range(0, across, width) for row in range(down)
        for column in range(first, min(first + width, across))
    ]  # fmt: skip
    np.testing.assert_array_equal(found, expected)
