"""The CUDA backend below the public face: compilation, cache, recognition of arrays, launch plans; on a GPU, launches.

The conformance suite holds the kernels to the numerical contract; here are streams, grid limits, staging, second
devices and what needs no GPU at all.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from oracle import check_same_bits, ordered

from gemm import sources
from gemm.backends import cuda_arrays, cuda_compiler, cuda_driver
from gemm.backends.cuda import CudaBackend, dense, walk
from gemm.catalog import BY_NAME, KERNELS, Kernel
from gemm.errors import BackendUnavailable, KernelFailed
from gemm.problem import Device, Problem

ROWS = [row for row in KERNELS if row.backend == "cuda"]
TILE = BY_NAME["sgemm_cuda_tile"]


@pytest.fixture(autouse=True)
def _private_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path))
    sources.cache_dir.cache_clear()
    yield
    sources.cache_dir.cache_clear()


def rand(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# Compilation, with NVRTC and without a GPU.


@pytest.fixture
def nvrtc(request: pytest.FixtureRequest) -> None:
    try:
        cuda_compiler.compiler_version()
    except (ImportError, RuntimeError) as error:
        absent(request, f"no NVRTC: {error}")


def absent(request: pytest.FixtureRequest, reason: str) -> None:
    if "cuda" in request.config.getoption("--require", "").split(","):
        pytest.fail(f"required, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_compiles_without_spills(row: Kernel) -> None:
    capability = max(c for c in cuda_compiler.supported() if c <= 90)
    image, log = cuda_compiler.compile_source(row, cuda_compiler.architecture(row, capability))
    assert image.startswith(b"\x7fELF")
    if not log.strip():
        pytest.skip("this NVRTC logs no resources; benchmarks/cuda_compile.py insists on them")
    report = cuda_compiler.resources(log)
    assert report["spills"] == 0
    assert report["registers"] * row.params["BM"] * row.params["BN"] <= 65536


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_arithmetic_is_ordered(row: Kernel) -> None:
    """Every floating-point operation of the PTX rounds once, to nearest, and keeps denormals."""
    ptx, _ = cuda_compiler.compile_source(row, f"compute_{cuda_compiler.supported()[-1]}")
    kind = {"float32": "f32", "float64": "f64"}[row.dtype]
    other = {"f32": "f64", "f64": "f32"}[kind]
    verbs = ("fma", "mul", "add", "sub", "mad", "cvt", "div")
    used = {line.split()[0] for line in ptx.decode().splitlines() if line.strip().startswith(verbs)}
    assert {op for op in used if kind in op or other in op} == {f"fma.rn.{kind}", f"mul.rn.{kind}"}


@pytest.mark.usefixtures("nvrtc")
def test_compile_error_shows_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "read", lambda kernel: "__global__ void broken() { nonsense; }")
    with pytest.raises(KernelFailed, match=r"sgemm_cuda_tile does not compile for sm_90(.|\n)*nonsense"):
        cuda_compiler.compile_source(TILE, "sm_90")


def test_unreadable_report_is_an_error() -> None:
    with pytest.raises(ValueError, match="no ptxas report"):
        cuda_compiler.resources("ptxas info    : all is well")
    log = "8 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads\nUsed 32 registers, 8448 bytes smem"
    assert cuda_compiler.resources(log) == {"registers": 32, "shared": 8448, "spills": 16}


def test_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compiler, "supported", lambda: (75, 80, 90))
    monkeypatch.setattr(cuda_compiler, "compiler_version", lambda: (13, 0))
    assert cuda_compiler.architecture(TILE, 90) == "sm_90"
    assert cuda_compiler.architecture(replace(TILE, needs=("sm_90a",)), 90) == "sm_90a"
    assert cuda_compiler.architecture(TILE, 89) == "compute_80"
    assert cuda_compiler.architecture(TILE, 121) == "compute_90"
    with pytest.raises(KernelFailed, match=r"NVRTC 13\.0 does not compile for sm_53.*pip install"):
        cuda_compiler.architecture(TILE, 53)


def test_options_carry_the_row() -> None:
    flags = cuda_compiler.options(replace(TILE, params={"BM": 16, "BN": 8, "stages": 2}), "sm_53")
    assert {"-DBM=16", "-DBN=8", "-DREAL=float", "--gpu-architecture=sm_53"} <= set(flags)
    assert not any("fast" in flag or "stages" in flag or "ftz=true" in flag for flag in flags)


class FakeGpu:
    """A GPU as `load` sees it."""

    def attribute(self, name: str) -> int:
        return {"COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0}[name]

    def __enter__(self) -> FakeGpu:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_cache_hit_and_refused_image(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compile_source(kernel: Kernel, arch: str) -> tuple[bytes, str]:
        compiled.append(arch)
        return b"image", ""

    def function(kernel: Kernel, image: bytes) -> bytes:
        if image != b"image":
            raise KernelFailed("CUDA_ERROR_INVALID_IMAGE")
        return image

    monkeypatch.setattr(cuda_compiler, "supported", lambda: (90,))
    monkeypatch.setattr(cuda_compiler, "compiler_version", lambda: (13, 0))
    monkeypatch.setattr(cuda_driver, "compile_source", compile_source)
    monkeypatch.setattr(cuda_driver, "_function", function)
    load = cuda_driver.load.__wrapped__
    entry = cuda_compiler.cache_entry(TILE, "sm_90")
    assert entry != cuda_compiler.cache_entry(BY_NAME["dgemm_cuda_tile"], "sm_90")
    assert entry != cuda_compiler.cache_entry(replace(TILE, params={**TILE.params, "BK": 16}), "sm_90")

    assert load(TILE, FakeGpu()) == b"image"
    assert sources.load(entry) == b"image"
    load(TILE, FakeGpu())
    assert compiled == ["sm_90"]
    sources.store(entry, b"what the driver refuses")
    assert load(TILE, FakeGpu()) == b"image"
    assert compiled == ["sm_90", "sm_90"]
    assert sources.load(entry) == b"image"
    folder = sources.cache_dir()
    assert folder is not None
    (folder / entry).write_bytes(b"torn")
    load(TILE, FakeGpu())
    assert len(compiled) == 3


# What `devices` says when there are none.


class Status(int):
    name = "CUDA_ERROR_X"


def driver(**functions: Any) -> SimpleNamespace:
    base = {"CUDA_VERSION": 13000, "cuInit": lambda flags: (0,), "cuDriverGetVersion": lambda: (0, 13000),
            "cuGetErrorString": lambda status: (0, b"some reason")}  # fmt: skip
    for name, function in {**base, **functions}.items():
        if callable(function):
            function.__name__ = name
    return SimpleNamespace(**{**base, **functions})


def raising(error: Exception) -> Any:
    def function(*_: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize(
    ("fake", "said"),
    [
        (raising(ImportError("No module named 'cuda'")), r"cuda-bindings is not installed .*gemm\[cuda\]"),
        (lambda _: driver(cuInit=raising(RuntimeError("no libcuda\nmore"))), r"does not load \(no libcuda\).*NVIDIA"),
        (lambda _: driver(cuInit=lambda flags: (Status(100),)), "no CUDA device.*nvidia-smi"),
        (lambda _: driver(cuInit=lambda flags: (Status(803),)), r"cuInit: CUDA_ERROR_X \(some reason\)"),
        (lambda _: driver(cuDriverGetVersion=lambda: (0, 12020)), r"made for CUDA 12\.2.*for 13.*cuda-bindings==12"),
        (lambda _: driver(cuDeviceGetCount=lambda: (Status(3), 0)), r"cuDeviceGetCount: CUDA_ERROR_X \(some reason\)"),
    ],
)  # fmt: skip
def test_unavailable_says_why(fake: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "bindings", fake)
    monkeypatch.setattr(cuda_driver, "compiler_version", lambda: (13, 0))
    backend = CudaBackend()
    for _ in range(2):  # remembered, and raised anew
        with pytest.raises(BackendUnavailable, match=said):
            backend.devices()


def test_missing_nvrtc_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "compiler_version", raising(RuntimeError("libnvrtc.so.13 not found")))
    monkeypatch.setattr(cuda_driver, "bindings", lambda module: driver())
    with pytest.raises(BackendUnavailable, match=r"NVRTC does not load \(libnvrtc.so.13 not found\).*pip install"):
        CudaBackend().devices()


# Recognition of arrays.

DEVICES = tuple(Device("cuda", f"cuda:{i}", "a GPU") for i in range(2))


def devices() -> tuple[Device, ...]:
    return DEVICES


def interface(**changes: Any) -> Any:
    fields = {"shape": (3, 4), "typestr": "<f4", "data": (1024, False), "strides": None, "version": 3}
    return SimpleNamespace(__cuda_array_interface__={**fields, **changes})


def test_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_arrays, "_ordinal", lambda address: 1)
    array = interface()
    view = cuda_arrays.view(array, "a", devices)
    assert view is not None
    assert (view.owner, view.data, view.offset, view.device) == (array, 1024, 0, DEVICES[1])
    assert (view.shape, view.strides, view.dtype, view.queue) == ((3, 4), (16, 4), np.float32, None)
    for stream in (1, 2, 123456, None):
        found = cuda_arrays.view(interface(stream=stream, strides=(4, -12)), "a", devices)
        assert found is not None
        assert (found.queue, found.strides) == (stream, (4, -12))
    nothing = cuda_arrays.view(interface(shape=(0, 4), data=(0, False)), "a", devices)
    assert nothing is not None
    assert nothing.size == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mask": interface()}, "b has a mask"),
        ({"stream": 0}, "b exports the stream 0"),
        ({"typestr": ">f4"}, "b has dtype >f4 of foreign byte order"),
        ({"typestr": "bfloat16"}, "b has dtype bfloat16, which is not supported"),
        ({"data": (1022, False)}, "b is not aligned"),
        ({"strides": (18, 4)}, "b is not aligned"),
    ],
)
def test_interface_refuses(changes: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_arrays, "_ordinal", lambda address: 0)
    with pytest.raises(TypeError, match=said):
        cuda_arrays.view(interface(**changes), "b", devices)


class Exporter:
    """NumPy's own DLPack capsule under the flag of a GPU."""

    def __init__(self, array: np.ndarray, code: int | None = None) -> None:
        self.array, self.code, self.stream = array, code, None

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.stream = stream
        capsule = self.array.__dlpack__()
        if self.code is not None:
            pointer = ctypes.pythonapi.PyCapsule_GetPointer
            pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
            cuda_arrays._DLTensor.from_address(pointer(capsule, b"dltensor")).code = self.code
        return capsule


def test_dlpack() -> None:
    array = rand((2, 5, 6), "float64")[:, ::2, 1:]
    references = sys.getrefcount(array)
    exporter = Exporter(array)
    view = cuda_arrays.view(exporter, "a", devices)
    assert view is not None
    assert view.owner.array is exporter
    assert view.data + view.offset == array.ctypes.data
    assert (view.shape, view.strides, view.dtype) == (array.shape, array.strides, array.dtype)
    assert (view.device, view.queue, exporter.stream) == (DEVICES[0], 1, 1)
    del view
    gc.collect()
    assert sys.getrefcount(array) == references + 1  # the capsule was kept, and is gone: only `exporter` is left


def test_dlpack_refuses_bfloat16() -> None:
    with pytest.raises(TypeError, match="a has dtype bfloat16"):
        cuda_arrays.view(Exporter(rand((2, 2), "float16"), code=4), "a", devices)


def test_host_arrays_are_not_ours() -> None:
    for array in (rand((2, 2)), [[1.0]], 3.0, memoryview(b"abc"), None):
        assert cuda_arrays.view(array, "a", raising(AssertionError("devices were looked for"))) is None


# Launch plans and staging, against NumPy.


def layouts(shape: tuple[int, ...], dtype: str, seed: int) -> Iterator[np.ndarray]:
    """Arrays of `shape` with every kind of stride."""
    *batch, rows, columns = shape
    yield rand(shape, dtype, seed)
    yield rand((*batch, columns, rows), dtype, seed).swapaxes(-1, -2)
    yield rand((*batch, rows + 3, 2 * columns), dtype, seed)[..., 1:-2, ::-2]
    if batch:
        yield np.broadcast_to(rand((rows, columns), dtype, seed), shape)
        yield rand((rows, columns, *batch[::-1]), dtype, seed).transpose(*range(len(shape) - 1, 1, -1), 0, 1)


SHAPES = [((), 5, 7, 3), ((4,), 3, 2, 6), ((2, 3), 4, 5, 1), ((3, 1, 2), 2, 3, 4), ((2,), 1, 1, 0)]


@pytest.mark.parametrize(("batch", "m", "n", "k"), SHAPES)
def test_walk_covers_the_stack(batch: tuple[int, ...], m: int, n: int, k: int) -> None:
    """Whatever the strides, running the planned launches as the kernel would gives the product."""
    for a in layouts((*batch, m, k), "float64", 1):
        for b in layouts((*batch, k, n), "float64", 2):
            for out in (np.zeros((*batch, m, n)), np.zeros((*batch, n, m)).swapaxes(-1, -2)):
                plan = walk(out.shape, k, 8, 32, 32, a.strides, b.strides, out.strides, out.strides)
                x, y = (b, a) if plan.swap else (a, b)
                m_, n_, k_, *steps = plan.sizes
                for count, (x_at, y_at, _, out_at) in plan.launches:
                    for z in range(count):
                        p = window(x, x_at, z, steps[0:3], (m_, k_))
                        q = window(y, y_at, z, steps[3:6], (k_, n_))
                        r = window(out, out_at, z, steps[9:12], (m_, n_))
                        r += p @ q
                np.testing.assert_allclose(out, a @ b, atol=1e-12)


def window(array: np.ndarray, at: int, z: int, steps: list[int], size: tuple[int, int]) -> np.ndarray:
    """The matrix that the kernel sees: `steps` are row, column and batch strides in elements."""
    start = array.ctypes.data + at + 8 * z * steps[2]
    where = {"data": (start if min(size) else array.ctypes.data, False), "shape": size, "typestr": "<f8", "version": 3}
    where["strides"] = (8 * steps[0], 8 * steps[1])
    return np.asarray(SimpleNamespace(__array_interface__=where, base=array))


def test_walk_grid_limits() -> None:
    long = walk((70000, 2, 2), 2, 4, 32, 32, *[(16, 8, 4)] * 4)
    assert [count for count, _ in long.launches] == [65535, 70000 - 65535]
    assert long.launches[1][1] == (65535 * 16,) * 4
    tall = walk((10**8, 3), 2, 4, 32, 32, (8, 4), (12, 4), (12, 4), (12, 4))
    assert tall.grid == 10**8 // 32
    assert len(tall.launches) == 1
    assert walk((2**20, 2**20), 2, 4, 32, 32, (8, 4), (4 * 2**20, 4), *[(4 * 2**20, 4)] * 2).grid == 2**30


def test_dense_sends_everything_once() -> None:
    for batch, m, n, _ in SHAPES:
        for array in layouts((*batch, m, n), "float32", 3):
            block, strides, target = dense(array)
            assert block.flags.c_contiguous
            assert block.size == np.prod([1 if s == 0 else n for n, s in zip(array.shape, array.strides, strict=True)])
            np.testing.assert_array_equal(as_strided(block, array.shape, strides), array)
            assert target.shape == block.shape
            assert np.shares_memory(target, array)
    free = np.asfortranarray(rand((4, 5)))
    assert np.shares_memory(dense(free)[0], free)


# On a GPU.


@pytest.fixture(scope="module")
def backend() -> CudaBackend:
    return CudaBackend()


@pytest.fixture
def device(request: pytest.FixtureRequest, backend: CudaBackend) -> Device:
    try:
        return backend.devices()[0]
    except BackendUnavailable as error:
        absent(request, str(error))
        raise


def launch(backend: CudaBackend, device: Device, dtype: str = "float32") -> Any:
    row = next(row for row in ROWS if row.dtype == dtype)
    return backend.launcher(row, device, Problem(dtype, 1, 1, 1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("batch", "m", "n", "k"), [*SHAPES, ((), 33, 65, 31), ((), 32, 64, 96), ((2,), 31, 40, 100)])
def test_host_operands(
    backend: CudaBackend, device: Device, dtype: str, batch: tuple[int, ...], m: int, n: int, k: int
) -> None:
    run = launch(backend, device, dtype)
    c = rand((*batch, m, n), dtype, 3)
    b_all = list(layouts((*batch, k, n), dtype, 2))
    for i, a in enumerate(layouts((*batch, m, k), dtype, 1)):
        b = b_all[(i + 1) % len(b_all)]
        rows, columns = np.full((*batch, m + 2, n + 2), np.nan, dtype), np.full((*batch, n + 2, m + 2), np.nan, dtype)
        for frame in (rows, columns.swapaxes(-1, -2)):
            out = frame[..., 1:-1, 1:-1]
            run(a, b, None, out, 1.0, 0.0)
            check_same_bits(out.copy(), ordered(a, b))
            out[...] = c
            run(a, b, out, out, -1.0 if k == 0 else 1.5, -0.3)
            check_same_bits(out.copy(), ordered(a, b, c, 1.5, -0.3))
            assert np.isnan(frame).sum() == frame.size - out.size


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_device_operands(backend: CudaBackend, device: Device, dtype: str) -> None:
    a, b, c = rand((3, 40, 70), dtype, 1), rand((70, 33), dtype, 2), rand((3, 40, 33), dtype, 3)
    a_, b_, c_ = (backend.to_device(array, device) for array in (a, b, c))
    out = backend.empty((3, 40, 33), a_)
    run = launch(backend, device, dtype)
    run(a_, b_.broadcast_to((3, 70, 33)), c_, out, 2.0, 0.5)
    check_same_bits(backend.to_host(out), ordered(a, b, c, 2.0, 0.5))
    run(a_, b_.broadcast_to((3, 70, 33)), c_, c_, 2.0, 0.5)
    check_same_bits(out.owner.copy_to_host(), c_.owner.copy_to_host())
    check_same_bits(backend.to_host(out.mT), ordered(a, b, c, 2.0, 0.5).swapaxes(-1, -2).copy())
    flipped = replace(a_, offset=69 * a_.dtype.itemsize, strides=(*a_.strides[:2], -a_.strides[2]))
    check_same_bits(backend.to_host(flipped), a[..., ::-1].copy())
    run(flipped, b_.broadcast_to((3, 70, 33)), None, out, 1.0, 0.0)
    check_same_bits(backend.to_host(out), ordered(a[..., ::-1], b))


def test_many_products(backend: CudaBackend, device: Device) -> None:
    """More products than the grid's y holds, on device and host."""
    a, b = rand((70000, 2, 3), seed=1), rand((70000, 3, 2), seed=2)
    out = backend.to_device(np.full((70000, 2, 2), np.nan, np.float32), device)
    launch(backend, device)(backend.to_device(a, device), backend.to_device(b, device), None, out, 1.0, 0.0)
    check_same_bits(backend.to_host(out), ordered(a, b))


@pytest.mark.parametrize(("m", "n", "k"), [(70000 * 32 + 1, 2, 3), (2, 70000 * 32 + 1, 3), (3, 2, 100_000)])
def test_long_axes(backend: CudaBackend, device: Device, m: int, n: int, k: int) -> None:
    a, b, out = rand((m, k), seed=1), rand((k, n), seed=2), np.full((m, n), np.nan, np.float32)
    launch(backend, device)(a, b, None, out, 1.0, 0.0)
    check_same_bits(out, ordered(a, b))


def test_denormals_and_signed_zeros(backend: CudaBackend, device: Device) -> None:
    tiny = np.float32(1e-42)
    a = np.array([[tiny, 0], [-tiny, 0], [2.0**-75, 0]], np.float32)
    b = np.array([[1, -(2.0**-80), 0.5], [-0.0, 0, 1]], np.float32)
    for alpha, beta in ((1.0, 0.0), (0.5, 0.0), (-1.0, 1.0)):
        out, c = np.empty((3, 3), np.float32), np.full((3, 3), -tiny)
        launch(backend, device)(a, b, c if beta else None, out, alpha, beta)
        check_same_bits(out, ordered(a, b, c, alpha, beta))


def test_context_is_restored(backend: CudaBackend, device: Device) -> None:
    cu = cuda_compiler.bindings("driver")
    before = int(cuda_driver.call(cu.cuCtxGetCurrent))
    out = np.empty((2, 2), np.float32)
    launch(backend, device)(rand((2, 2)), rand((2, 2)), None, out, 1.0, 0.0)
    backend.synchronize(device)
    assert int(cuda_driver.call(cu.cuCtxGetCurrent)) == before


def test_out_of_memory_is_named(backend: CudaBackend, device: Device) -> None:
    with pytest.raises(KernelFailed, match="OUT_OF_MEMORY") as caught:
        cuda_arrays.DeviceArray((1 << 46,), np.float32, device)
    assert caught.value.memory


def test_threads_share_a_launcher(backend: CudaBackend, device: Device) -> None:
    run, wrong = launch(backend, device), []

    def work(seed: int) -> None:
        a, b = rand((20 + seed, 30), seed=seed), rand((30, 25), seed=seed)
        for _ in range(3):
            out = np.empty((20 + seed, 25), np.float32)
            run(a, b, None, out, 1.0, 0.0)
            if not np.array_equal(out, ordered(a, b)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_second_device(backend: CudaBackend, device: Device) -> None:
    if len(backend.devices()) < 2:
        pytest.skip("one GPU only")
    second = backend.devices()[1]
    a, b = rand((40, 50), seed=1), rand((50, 60), seed=2)
    a_, b_ = backend.to_device(a, second), backend.to_device(b, second)
    out = backend.empty((40, 60), a_)
    assert out.device == second
    foreign = SimpleNamespace(__cuda_array_interface__=out.owner.__cuda_array_interface__)
    found = backend.view(foreign, "a")
    assert found is not None
    assert found.device == second
    launch(backend, second)(a_, b_, None, out, 1.0, 0.0)
    check_same_bits(backend.to_host(out), ordered(a, b))
    with pytest.raises(ValueError, match="move them to one device"):
        launch(backend, device)(a_, b_, None, out, 1.0, 0.0)


def test_torch(backend: CudaBackend, device: Device) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    run = launch(backend, device)
    a, b, c = rand((4, 70, 40), seed=1), rand((70, 33), seed=2), rand((4, 40, 33), seed=3)
    a_ = torch.from_numpy(a).cuda().mT.requires_grad_()
    b_ = torch.from_numpy(b).cuda().expand(4, -1, -1)
    c_ = torch.from_numpy(c).cuda()
    views = [backend.view(tensor, "x") for tensor in (a_, b_, c_)]
    assert [view.strides for view in views if view] == [(11200, 4, 160), (0, 132, 4), (5280, 132, 4)]
    out = backend.empty((4, 40, 33), views[0])  # type: ignore[arg-type]
    assert isinstance(out.owner, torch.Tensor)
    run(*views, out, 2.0, 0.5)
    check_same_bits(out.owner.cpu().numpy(), ordered(a.swapaxes(-1, -2), b, c, 2.0, 0.5))
    with pytest.raises(TypeError, match="a has dtype bfloat16"):
        backend.view(c_.bfloat16(), "a")
    with pytest.raises(TypeError, match="lazily conjugated or negated"):
        backend.view(torch.zeros(2, 2, dtype=torch.complex64, device="cuda").conj().imag, "a")
    assert backend.view(torch.zeros(2, 2), "a") is None


def test_torch_stream_order(backend: CudaBackend, device: Device) -> None:
    """The product waits for what the current stream holds, and what follows on it waits for the product."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    run = launch(backend, device)
    a, b = rand((64, 64), seed=1), rand((64, 64), seed=2)
    expected = ordered(a, b)
    b_ = torch.from_numpy(b).cuda()
    source = torch.from_numpy(a).cuda()
    spare = torch.zeros_like(source)
    run(*(backend.view(x, "x") for x in (source, b_)), None, backend.view(spare, "out"), 1.0, 0.0)  # loads lazily
    torch.cuda.synchronize()
    for side in (torch.cuda.Stream(), torch.cuda.default_stream()):
        with torch.cuda.stream(side):
            a_, out = torch.zeros_like(source), torch.zeros_like(source)
            torch.cuda._sleep(50_000_000)
            a_.copy_(source)
            run(*(backend.view(x, "x") for x in (a_, b_)), None, backend.view(out, "out"), 1.0, 0.0)
            assert not side.query(), "the launch waited for the device"
            a_.zero_()
            host = out.clone()
        side.synchronize()
        check_same_bits(host.cpu().numpy(), expected)


def test_cupy(backend: CudaBackend, device: Device) -> None:
    cupy = pytest.importorskip("cupy")
    run = launch(backend, device, "float64")
    a, b = rand((5, 40, 50), "float64", 1), rand((5, 50, 33), "float64", 2)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        a_, b_ = cupy.asarray(a)[:, ::-1, ::2], cupy.asarray(b)[:, 1::2]
        views = [backend.view(array, "x") for array in (a_, b_)]
        out = backend.empty((5, 40, 33), views[0])  # type: ignore[arg-type]
        assert isinstance(out.owner, cupy.ndarray)
        assert out.queue == stream.ptr
        run(*views, None, out, 1.0, 0.0)
        check_same_bits(out.owner.get(), ordered(a[:, ::-1, ::2], b[:, 1::2]))
    wrapped = cupy.asarray(backend.to_device(a, device).owner)  # our own array as others see it
    check_same_bits(wrapped.get(), a)


def test_streams_of_operands_are_joined(backend: CudaBackend, device: Device) -> None:
    """Operands with pending work on different streams: the product waits for each."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    a, b = rand((64, 64), seed=1), rand((64, 64), seed=2)
    ready = {"a": torch.from_numpy(a).cuda(), "b": torch.from_numpy(b).cuda()}
    out = backend.to_device(np.zeros((64, 64), np.float32), device)
    torch.cuda.synchronize()
    views = []
    for source in ready.values():
        with torch.cuda.stream(torch.cuda.Stream()):
            late = torch.zeros_like(source)
            torch.cuda._sleep(50_000_000)
            late.copy_(source)
            views.append(backend.view(late, "x"))
    launch(backend, device)(*views, None, out, 1.0, 0.0)
    for view in views:  # overwritten only after the product has read it
        with torch.cuda.stream(torch.cuda.ExternalStream(view.queue)):  # type: ignore[union-attr]
            view.owner.zero_()  # type: ignore[union-attr]
    check_same_bits(backend.to_host(out), ordered(a, b))
