"""The CUDA backend below the public face, on a GPU, or on the emulated one (tests/cuda_machine) where there is none.

The conformance suite holds the kernels to the numerical contract. test_cuda_recipe.py checks what the kernels are
handed. This file tests compilation and its cache, devices, streams, faults, repeated products and prepared matrices.
"""

import ctypes
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cuda_compile
import cuda_machine
import numpy as np
import pytest
from helpers import forget_drivers, python, rand
from oracle import check_same_bits, ordered

from gemm.backends.cuda import arrays as cuda_arrays
from gemm.backends.cuda import backend as cuda_backend
from gemm.backends.cuda import compiler, launch_graph, launch_plan
from gemm.backends.cuda import driver as cuda_driver
from gemm.backends.cuda.backend import CudaBackend
from gemm.catalog import BY_NAME, KERNELS
from gemm.core import disk_cache
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Problem

ROWS = [row for row in KERNELS if row.backend == "cuda"]
TILE = BY_NAME["sgemm_cuda_tile"]
ROOT = Path(__file__).resolve().parents[3]


def absent(request, reason):
    if "cuda" in request.config.getoption("--require", "").split(","):
        pytest.fail(f"required, but {reason}", pytrace=False)
    pytest.skip(reason)


# Compilation, with NVIDIA's NVRTC and without a GPU.


@pytest.fixture(scope="module")
def nvrtc(request):
    found = sorted((compiler.Compiler(path) for path in compiler._libraries()), key=lambda c: -c.major)
    if not found:
        absent(request, "no NVRTC")
    return found[0]


@pytest.mark.parametrize("name", ["sgemm_cuda_tile", "dgemm_cuda_tile"])
def test_arithmetic_is_ordered(nvrtc, name):
    """Every floating-point operation of the PTX rounds once, to nearest, and keeps denormals."""
    row = BY_NAME[name]
    ptx, _ = nvrtc.compile(row, f"compute_{nvrtc.supported[-1]}", next(cuda_compile.forms(row)))
    kind = {"float32": "f32", "float64": "f64"}[row.dtype]
    other = {"f32": "f64", "f64": "f32"}[kind]
    verbs = ("fma", "mul", "add", "sub", "mad", "cvt", "div")
    used = {line.split()[0] for line in ptx.decode().splitlines() if line.strip().startswith(verbs)}
    assert {op for op in used if kind in op or other in op} == {f"fma.rn.{kind}", f"mul.rn.{kind}"}


def test_compile_error_shows_the_log(nvrtc, monkeypatch):
    monkeypatch.setattr(disk_cache, "read", lambda kernel: "__global__ void broken() { nonsense; }")
    with pytest.raises(KernelFailed, match=r"sgemm_cuda_tile does not compile for sm_90(.|\n)*nonsense"):
        nvrtc.compile(TILE, "sm_90", {})


def test_unreadable_report_is_an_error():
    with pytest.raises(ValueError, match="no ptxas report"):
        cuda_compile.resources("ptxas info    : all is well")
    log = "8 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads\nUsed 32 registers, 8448 bytes smem"
    assert cuda_compile.resources(log) == {"registers": 32, "shared": 8448, "spills": 16}


class Nvrtc(compiler.Compiler):
    """A libnvrtc by its file's name, that is never loaded."""

    version, supported = (13, 0), (75, 80, 90)

    def __init__(self, name, folder):
        (folder / name).touch()
        super().__init__(folder / name)
        self.compiled = []

    def compile(self, kernel, arch, form):
        self.compiled.append(arch)
        return b"image", ""


def test_architecture(tmp_path):
    made = Nvrtc("libnvrtc.so.13", tmp_path)
    assert made.architecture(TILE, 90) == "sm_90"
    assert made.architecture(replace(TILE, needs=("sm_90a",)), 90) == "sm_90a"
    assert made.architecture(TILE, 89) == "compute_80"
    assert made.architecture(TILE, 121) == "compute_90"
    with pytest.raises(KernelFailed, match=r"NVRTC 13\.0 does not compile for sm_53.*pip install"):
        made.architecture(TILE, 53)


def test_compiler_fits_chip_and_driver(tmp_path, monkeypatch):
    names = {"libnvrtc.so.13.0.88": 13, "libnvrtc.so.12": 12, "nvrtc64_120_0.dll": 12, "libnvrtc.so": 0}
    assert {name: Nvrtc(name, tmp_path).major for name in names} == names
    new, old = Nvrtc("libnvrtc.so.13", tmp_path), Nvrtc("libnvrtc.so.12", tmp_path)
    choose = compiler.compiler.__wrapped__
    monkeypatch.setattr(compiler, "compilers", lambda: (new, old))
    assert (choose(90, 13000), choose(90, 12090), choose(53, 13000), choose()) == (new, old, old, new)
    monkeypatch.setattr(compiler, "compilers", lambda: (new,))
    with pytest.raises(KernelFailed, match=r"only NVRTC of CUDA 13 .* sm_53: pip install \"nvidia-cuda-nvrtc-cu12\""):
        choose(53, 13000)
    with pytest.raises(KernelFailed, match=r"driver of CUDA 12: pip install \"nvidia-cuda-nvrtc-cu12\""):
        choose(90, 12080)


def test_an_nvrtc_that_is_not_newer_than_the_driver_is_preferred(tmp_path, monkeypatch):
    made = []
    for version, name in (
        ("13.5", "libnvrtc-builtins.so.13.5"),
        ("13.0", "nvrtc-builtins64_130.dll"),
        ("12.9", "none"),
    ):
        (tmp_path / version).mkdir()
        (tmp_path / version / name).touch()
        made.append(Nvrtc(f"libnvrtc.so.{version[:2]}", tmp_path / version))
    newer, older, oldest = made
    assert [(c.major, c.minor) for c in made] == [(13, 5), (13, 0), (12, 0)]
    monkeypatch.setattr(compiler, "compilers", lambda: (newer, older, oldest))
    choose = compiler.compiler.__wrapped__
    assert (choose(90, 13000), choose(90, 13050), choose(90, 13060), choose()) == (older, newer, newer, newer)
    monkeypatch.setattr(compiler, "compilers", lambda: (newer, oldest))
    assert choose(90, 13000) is newer  # its cubins load on every driver of CUDA 13


def test_a_refused_image_names_the_remedy(tmp_path, monkeypatch):
    made = Nvrtc("libnvrtc.so.13", tmp_path)
    cause = KernelFailed("cuModuleLoadData: CUDA_ERROR_UNSUPPORTED_PTX_VERSION")
    assert made.refused(cause, 13000) is cause  # NVRTC is not newer than the driver: the cause is another one
    monkeypatch.setattr(Nvrtc, "version", (13, 5))
    remedy = r'driver is made for CUDA 13\.0, NVRTC for 13\.5; update .*pip install "nvidia-cuda-nvrtc==13\.0\.\*"'
    assert re.search(f"UNSUPPORTED_PTX_VERSION: the {remedy}", str(made.refused(cause, 13000)))
    assert '"nvidia-cuda-nvrtc-cu12==12.4.*"' in str(made.refused(cause, 12040))
    lost = KernelFailed("cuModuleLoadData: the GPU is lost", lost=True)
    assert made.refused(lost, 13000) is lost


def test_options_carry_the_row():
    row = replace(TILE, params={"BM": 16, "BN": 8, "stages": 2})
    flags = compiler.options(row, "sm_53", {"A_TYPE": "float"})
    assert {"-DBM=16", "-DBN=8", "-DA_TYPE=float", "--gpu-architecture=sm_53"} <= set(flags)
    assert not any("fast" in flag or "stages" in flag or "ftz=true" in flag for flag in flags)


def test_cache_entry_tells_what_an_image_depends_on(tmp_path, monkeypatch):
    made = Nvrtc("libnvrtc.so.13", tmp_path)

    def entry(row=TILE, capability=90, by=made, **form):
        return compiler.cache_entry(row, capability, form, by)

    (tmp_path / "libnvrtc.so.12").write_bytes(b"another")
    others = [
        entry(BY_NAME["dgemm_cuda_tile"]), entry(replace(TILE, params={**TILE.params, "BK": 16})), entry(capability=80),
        entry(A_TYPE="double"), entry(by=Nvrtc("libnvrtc.so.12", tmp_path)), entry(),
    ]  # fmt: skip
    assert len(set(others)) == len(others)
    disk_cache.headers.cache_clear()
    read = disk_cache.read
    monkeypatch.setattr(disk_cache, "read", lambda what: read(what) + "//" * (what == "csrc/cuda/gemm.cuh"))
    assert entry() not in others, "a header has changed"
    disk_cache.headers.cache_clear()


def test_images_come_from_the_cache(cache_folder, tmp_path):
    made = Nvrtc("libnvrtc.so.13", tmp_path)
    for _ in range(2):
        assert compiler.image(TILE, 90, {}, made) == b"image"
    assert made.compiled == ["sm_90"]
    (cache_folder / compiler.cache_entry(TILE, 90, {}, made)).write_bytes(b"torn")
    for _ in range(2):
        assert compiler.image(TILE, 90, {}, made) == b"image"
    assert made.compiled == ["sm_90"] * 2
    compiler.image(TILE, 90, {}, made, anew=True)
    assert len(made.compiled) == 3


# On a GPU.


@pytest.fixture(scope="module")
def machine(request):
    """The variables of the emulated GPU; {}: there is a real one."""
    try:
        cuda_driver.Driver()
    except OSError:
        pass
    else:
        yield {}
        return
    try:
        found = cuda_machine.environment("9.0", sms=2, devices=2)
    except (OSError, subprocess.CalledProcessError) as error:
        absent(request, f"no GPU, and none that can be emulated: {error}")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.items():
            patch.setenv(name, value)
        forget_drivers(launch_graph._addresses)
        yield found
    forget_drivers(launch_graph._addresses)


@pytest.fixture
def emulated(machine, monkeypatch):
    """emulated(fail=..., ...) gives the emulated GPU other settings; skips where the GPU is real."""

    def settings(**given):
        if not os.environ.get("GEMM_LIBCUDA"):
            pytest.skip("the GPU is real")
        for name, value in given.items():
            monkeypatch.setenv(f"CUDA_MACHINE_{name.upper()}", str(value))

    return settings


@pytest.fixture(scope="module")
def backend(machine):
    return CudaBackend()


@pytest.fixture
def device(request, backend):
    try:
        return backend.devices()[0]
    except BackendUnavailable as error:
        absent(request, str(error))
        raise


PRODUCT = """
import os, sys, numpy as np, gemm
from gemm.backends import registry
a, b = (np.random.default_rng(s).standard_normal((40, 40)).astype("float32") for s in (1, 2))
def product(**more):
    return gemm.gemm(a, b, kernel="sgemm_cuda_tile", **more)
"""


@pytest.fixture
def process(machine, tmp_path_factory):
    """Runs Python code in a process of its own, on the emulated GPU; its output."""
    if not os.environ.get("GEMM_LIBCUDA"):
        pytest.skip("the GPU is real")
    cache = tmp_path_factory.getbasetemp() / "cuda-cache"

    def run(code, cache=cache, **settings):
        given = {f"CUDA_MACHINE_{name.upper()}": value for name, value in settings.items()}
        return python(code, prelude=PRODUCT, OCL_ICD_VENDORS="/nonexistent", GEMM_CACHE_DIR=cache, **given)

    return run


def launch(backend, device, dtype="float32", **more):
    row = {"float32": TILE, "float64": BY_NAME["dgemm_cuda_tile"]}[dtype]
    return backend.launcher(row, device, Problem(dtype, 1, 1, 1, **more))


def pointed(array, stream, readonly=False):
    """`array` as another library's, whose pending work is on `stream`."""
    shown = {**array.__cuda_array_interface__, "stream": stream}
    return SimpleNamespace(__cuda_array_interface__=shown, kept=array)


def test_context_is_restored(backend, device):
    before = cuda_driver.cuda().cuCtxGetCurrent()
    out = np.empty((2, 2), np.float32)
    launch(backend, device)(out, out, None, np.empty_like(out), 1.0, 0.0)
    backend.synchronize(device)
    assert cuda_driver.cuda().cuCtxGetCurrent() == before


def test_out_of_memory_is_named(backend, device):
    with pytest.raises(KernelFailed, match="OUT_OF_MEMORY") as caught:
        cuda_arrays.DeviceArray((1 << 46,), np.float32, device)
    assert caught.value.memory


def test_second_device(backend, device):
    if len(backend.devices()) < 2:
        pytest.skip("one GPU only")
    second = backend.devices()[1]
    a, b = rand(40, 50), rand(50, 60)
    a_, b_ = backend.to_device(a, second), backend.to_device(b, second)
    out = backend.empty((40, 60), a_)
    assert out.device == second
    found = backend.view(pointed(out.owner, 1), "a")
    assert found.device == second
    launch(backend, second)(a_, b_, None, out, 1.0, 0.0)
    check_same_bits(backend.to_host(out), ordered(a, b))
    with pytest.raises(ValueError, match="move them to one device"):
        launch(backend, device)(a_, b_, None, out, 1.0, 0.0)


# Operands that the kernel cannot read as they lie, and room on the device.


def suits(row, device):
    if set(row.needs) - device.features:
        pytest.skip("no Hopper")
    return row


def tensor_launch(backend, device):
    """Of a kernel that reads both operands through tensor maps."""
    row = next(row for row in ROWS if row.params.get("maps") == 3 and row.dtype == "float16" and not row.inputs)
    return backend.launcher(suits(row, device), device, Problem("float16", 1, 1, 1))


def test_operands_are_copied_where_they_must(backend, device):
    run = tensor_launch(backend, device)
    a, b = rand(30, 33, dtype="float16"), rand(48, 33, dtype="float16")
    a_, b_ = backend.to_device(a, device), backend.to_device(b, device)
    out = backend.empty((30, 48), a_)
    access = run.access(a_, b_.mT, None, out)
    assert access == {"a": "packed on the device", "b": "packed on the device", "out": "used in place"}
    run(a_, b_.mT, None, out, 1.0, 0.0)
    exact = a.astype(float) @ b.T.astype(float)
    np.testing.assert_allclose(backend.to_host(out).astype(float), exact, atol=0.02)
    assert run.access(a, b.T, None, np.empty((30, 48), np.float16))["a"] == "copied"


def test_room_that_is_missing_is_looked_for_again(backend, device, emulated):
    emulated()
    run = tensor_launch(backend, device)
    views = [backend.to_device(rand(33, 33, dtype="float16", seed=seed), device) for seed in range(3)]
    run(*views[:2], None, views[2], 1.0, 0.0)
    expected = backend.to_host(views[2])
    emulated(fail="cuMemAllocFromPoolAsync:1:2")
    run(*views[:2], None, views[2], 1.0, 0.0)
    emulated(fail="cuMemAllocFromPoolAsync:1:2:sticky")
    with pytest.raises(KernelFailed, match="OUT_OF_MEMORY") as caught:
        run(*views[:2], None, views[2], 1.0, 0.0)
    assert caught.value.memory
    assert not caught.value.lost
    emulated(fail="")
    check_same_bits(backend.to_host(views[2]), expected)


def test_a_failure_between_launches_spoils_c(backend, device, emulated, monkeypatch):
    """Where out is c and some of several launches have gone, nothing may start anew from c."""
    emulated()
    monkeypatch.setattr(launch_plan, "GRID", 2)
    launch_plan.recipe.cache_clear()
    a, b, c = (backend.to_device(rand(4, 3, 3, seed=seed), device) for seed in range(3))
    out = backend.to_device(rand(4, 3, 3), device)
    run = launch(backend, device)
    run(a, b, c, out, 1.0, 1.0)
    for goal, spoilt in ((out, False), (c, True)):
        emulated(fail="")
        run(a, b, None, out, 1.0, 0.0)  # the machine counts from its new setting on
        emulated(fail="cuLaunchKernel:2:1")
        with pytest.raises(KernelFailed) as caught:
            run(a, b, c, goal, 1.0, 1.0)
        assert caught.value.spoilt == spoilt
    emulated(fail="")
    for goal, repeats in ((out, True), (c, False)):  # a repeated launch could not report that c is spoilt
        run(a, b, c, goal, 1.0, 1.0)
        assert (run.replay(a.owner, b.owner, c.owner, goal.owner) is not None) == repeats
    run(a, b, None, out, 1.0, 0.0)
    check_same_bits(backend.to_host(out), ordered(backend.to_host(a), backend.to_host(b)))
    launch_plan.recipe.cache_clear()


# Streams.


@pytest.fixture
def streams(device):
    with device.handle:
        made = [cuda_driver.cuda().cuStreamCreate(1) for _ in range(2)]
    yield made
    with device.handle:
        for stream in made:
            cuda_driver.cuda().cuStreamDestroy(stream)


def copied_late(device, source, stream):
    """An array that becomes `source` when `stream` comes to it."""
    there, late = (cuda_arrays.DeviceArray(source.shape, source.dtype, device) for _ in range(2))
    there.copy_from_host(source)
    late.copy_from_host(np.zeros_like(source))
    with device.handle:
        cuda_driver.cuda().cuCtxSynchronize()
        cuda_driver.cuda().cuMemcpyDtoDAsync(late._address, there._address, source.nbytes, stream)
    shown = pointed(late, stream)
    shown.source = there
    return shown


@pytest.mark.parametrize("own", [False, True])
def test_streams_of_operands_are_joined(backend, device, streams, emulated, own):
    """The product waits for what operands wait for, and what comes next on their streams waits for the product."""
    if os.environ.get("GEMM_LIBCUDA"):
        emulated(streams="late")
    a, b = rand(40, 40), rand(40, 40, seed=1)
    out = cuda_arrays.DeviceArray((40, 40), "float32", device)
    shown = [copied_late(device, x, stream) for x, stream in zip((a, b), streams, strict=True)]
    views = [backend.view(x, "x") for x in (*shown, pointed(out, streams[0] if own else None))]
    launch(backend, device)(*views[:2], None, views[2], 1.0, 0.0)
    with device.handle:
        for x, stream in zip(shown, streams, strict=True):
            cuda_driver.cuda().cuMemsetD32Async(x.kept._address, 0, 1600, stream)
        for stream in streams:
            cuda_driver.cuda().cuStreamSynchronize(stream)
    check_same_bits(out.copy_to_host(), ordered(a, b))


def test_nothing_waits_for_the_device(backend, device, streams, emulated):
    """A product of device operands is enqueued: it neither begins nor ends with a wait."""
    emulated(streams="late")
    driver, stream = cuda_driver.cuda(), streams[0]
    a, b, out = (cuda_arrays.DeviceArray((33, 33), "float16", device) for _ in range(3))
    run = tensor_launch(backend, device)
    views = [backend.view(pointed(x, stream), "x") for x in (a, b, out)]
    run(*views[:2], None, views[2], 1.0, 0.0)  # loads the kernels
    with device.handle:
        driver.cuStreamSynchronize(stream)
    run(*views[:2], None, views[2], 1.0, 0.0)
    assert not driver.cuStreamQuery(stream)
    with device.handle:
        driver.cuStreamSynchronize(stream)
    assert driver.cuStreamQuery(stream)


def test_products_are_captured_into_graphs(backend, device, streams):
    """A caller's CUDA graph takes a product in, packed operands and all, and repeats it on what is there by then."""
    library, stream, run = cuda_driver.cuda()._library, streams[0], tensor_launch(backend, device)
    arrays = [backend.to_device(rand(33, 33, dtype="float16", seed=seed), device).owner for seed in range(3)]
    views = [backend.view(pointed(x, stream), "x") for x in arrays]
    run(*views[:2], None, views[2], 1.0, 0.0)  # kernels are loaded before a capture
    graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
    with device.handle:
        cuda_driver.cuda().cuStreamSynchronize(stream)
        assert library.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), 1) == 0
    run(*views[:2], None, views[2], 1.0, 0.0)
    with device.handle:
        assert library.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)) == 0
        assert library.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, ctypes.c_ulonglong(0)) == 0
    a, b = (rand(33, 33, dtype="float16", seed=seed) for seed in (8, 9))
    arrays[0].copy_from_host(a)
    arrays[1].copy_from_host(b)
    with device.handle:
        assert library.cuGraphLaunch(ready, ctypes.c_void_p(stream)) == 0
        cuda_driver.cuda().cuStreamSynchronize(stream)
    np.testing.assert_allclose(arrays[2].copy_to_host().astype(float), a.astype(float) @ b.astype(float), atol=0.03)


# Repeated products and prepared matrices.


REPEATED = """
sys.path[:0] = ["tests", "tests/backends/cuda"]  # pytest runs at the root
import repeated
there = registry.backend("cuda")
array = lambda x: there.to_device(np.ascontiguousarray(x), there.devices()[0]).owner
values = lambda x: x.copy_to_host()
"""


COUNTED = """
counted = {"kernel": "sgemm_cuda_tile"}
repeated.a_thousand_shapes(array, values, biased=True, **counted)
assert len(in_python) == long_ways
repeated.scalars(array, values, **counted)
repeated.no_terms(array, values, **counted)
repeated.plans_and_prepared(array, values, lambda x: gemm.prepare(array(x)), **counted)
"""


WATCHED = """
from gemm.frontend import plan_cache as repeat
from gemm.backends.cuda import array_metadata
from gemm.backends.cuda.arrays import DeviceArray
in_python = []
real = repeat.begin
repeat.begin = lambda *given: in_python.append(1) or real(*given)
"""


EXCHANGED = """
import ctypes
import test_cuda_sequence as like_torch

@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(like_torch.DLTensor))
def read(x, out):
    size, axes = x.dtype.itemsize, len(x.shape)
    x.head = (ctypes.c_int64 * (2 * axes))(*x.shape, *(step // size for step in x._view[3]))
    there = ctypes.addressof(x.head)
    kind = "iuf..c".index(x.dtype.kind)
    out[0] = like_torch.DLTensor(x._address, 2, 0, axes, kind, 8 * size, 1, there, there + 8 * axes, 0)
    return 0

@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
def stream(kind, device, out):
    out[0] = None
    return 0

functions = (ctypes.cast(each, ctypes.c_void_p).value for each in (read, stream))
api = like_torch.Exchange(1, 0, None, None, None, None, *functions)
DeviceArray.is_neg = lambda x: False
assert array_metadata._read_in_c(DeviceArray, like_torch.capsule(api))
"""


CUPY = """
import contextlib, types

class ndarray:  # as CuPy's
    def __init__(self, own):
        self.own, self.shape, self.strides, self.dtype = own, own.shape, own._strides, own.dtype
        self.device, self.data = types.SimpleNamespace(id=0), types.SimpleNamespace(ptr=own._address, device_id=0)

    def __dlpack_device__(self):
        return 2, 0

streams = []
cupy = sys.modules["cupy"] = types.ModuleType("cupy")
cupy.ndarray, cupy.cuda = ndarray, types.SimpleNamespace(
    runtime=types.SimpleNamespace(is_hip=False), Device=lambda number: contextlib.nullcontext(),
    get_current_stream=lambda number: streams.append(number) or types.SimpleNamespace(ptr=0),
)
cupy.empty = lambda shape, dtype: ndarray(DeviceArray(shape, dtype, there.devices()[0]))
array = lambda x: ndarray(there.to_device(np.ascontiguousarray(x), there.devices()[0]).owner)
values = lambda x: getattr(x, "own", x).copy_to_host()
"""


READERS = {
    "attributes": "",
    "attributes, CuPy": CUPY,
    "exchange": EXCHANGED,
    "Python": "array_metadata.repeatable(DeviceArray).native = False",
}
"""How the arrays of repeated products are read: by C code, except with "Python"."""


@pytest.mark.parametrize("reader", READERS)
def test_repeated_products_are_counted(process, reader):
    long_ways = 3000 if reader == "Python" else 1000
    process(f"{REPEATED}{WATCHED}{READERS[reader]}\nlong_ways = {long_ways}{COUNTED}")


def test_repeated_products_of_our_own_arrays_call_no_python(process):
    process(f"""{REPEATED}
x, y, out = (array(np.ones((8, 8), np.float32)) for _ in range(3))
plan = gemm.plan(x, y, out=out, kernel="sgemm_cuda_tile")
for call, most in ((lambda x, y, out: gemm.gemm(x, y, out=out, kernel="sgemm_cuda_tile"), 1), (plan, 1)):
    call(x, y, out=out)
    call(x, y, out=out)
    seen = []
    sys.setprofile(lambda frame, event, given: seen.append(frame.f_code.co_name) if event == "call" else None)
    call(x, y, out=out)
    sys.setprofile(None)
    assert len(seen) <= most, seen
""")


ODD = """
def odd(name, value):
    x = array(np.ones((3, 3), np.float32))
    setattr(x, name, value)
    return x

good = [array(np.ones((3, 3), np.float32)) for _ in range(3)]
named = {"kernel": "sgemm_cuda_tile"}
assert (values(gemm.gemm(*good[:2], **named)) == 3).all()
for name, value in (
    ("dtype", "float32"), ("dtype", np.dtype("V4")), ("dtype", np.dtype(">f4")), ("shape", [3, 3]), ("shape", (3, 3.0)),
    ("shape", (1, 1, 1, 3, 3)), ("strides", (12,)), ("strides", (13, 4)), ("strides", (1 << 70, 4)),
    ("data", None), ("data", types.SimpleNamespace(ptr="0", device_id=0)),
):
    found = []
    for x in (good[0], odd(name, value)):
        try:
            found.append(values(gemm.gemm(x, good[1], **named)).tobytes())
        except Exception as error:
            found.append(error)
    repeat.forget()
    try:
        right = values(gemm.gemm(odd(name, value), good[1], **named)).tobytes()
    except Exception as error:
        right = error
    assert type(found[1]) is type(right) and str(found[1]) == str(right), (name, value, found, right)
    assert (values(gemm.gemm(*good[:2], **named)) == 3).all()
"""


def test_arrays_with_odd_attributes_are_left_to_the_full_path(process):
    process(f"{REPEATED}{WATCHED}{CUPY}{ODD}")


SHIFTED = """
named = {"kernel": "sgemm_cuda_tile"}
x, y, out = (array(np.ones((8, 8), np.float32)) for _ in range(3))
bias = array(np.ones(9, np.float32))
bias.shape = (8,)
for _ in range(3):
    gemm.gemm(x, y, out=out, bias=bias, **named)
for which in (x, y, out, bias):
    which.data.ptr += 1  # an address that a GPU cannot read: the error would destroy the context
    try:
        gemm.gemm(x, y, out=out, bias=bias, **named)
    except TypeError as error:
        assert "aligned" in str(error)
    else:
        raise SystemExit("an array that is not aligned was used")
    which.data.ptr -= 1
"""


@pytest.mark.parametrize("native", [True, False])
def test_arrays_that_are_not_aligned_are_refused(process, native):
    process(f"{REPEATED}{WATCHED}{CUPY}\narray_metadata.repeatable(ndarray).native &= {native}\n{SHIFTED}")


def test_repeated_products_are_aligned_alike(backend, device):
    """A repeated launch is given only addresses that are multiples of what the first ones were."""
    run = launch(backend, device)
    a_, b_, out = (cuda_arrays.DeviceArray((4, 4), "float32", device) for _ in range(3))
    run(a_.view(), b_.view(), None, out.view(), 1.0, 0.0)
    replay = run.replay(a_, b_, None, out)
    assert replay is not None
    moved = cuda_arrays.DeviceArray((4, 4), "float32", device)
    moved._address, kept = moved._address + 4, moved._address
    assert replay(moved, b_, None, out, 1.0, 0.0, None) is None
    moved._address = kept


@pytest.mark.parametrize("name", ["sgemm_cuda_tile", "planes", "copied"])
def test_prepared(backend, device, name):
    rows = {
        "planes": next((row for row in ROWS if row.params.get("planes") == 3 and row.params["BN"] == 128), TILE),
        "copied": next((row for row in ROWS if row.params.get("tf32") and row.params["BM"] == 64), TILE),
    }
    row = suits(rows.get(name, TILE), device)
    a, b = rand(20, 37), rand(37, 41)
    a_ = backend.to_device(a, device)
    run = backend.launcher(row, device, Problem("float32", 1, 1, 1, precision=row.precision))
    for b_ in (backend.to_device(b, device), backend.to_device(np.ascontiguousarray(b.T), device).mT):
        kept = backend.keep(row, device, b_, reproducible=False)
        assert kept.owner.memory.nbytes
        assert (kept.owner.memory is b_.owner) == (name == "sgemm_cuda_tile")
        for out in (backend.empty((20, 41), a_), backend.empty((41, 20), a_).mT):
            run(a_, kept, None, out, 1.0, 0.0)
            np.testing.assert_allclose(backend.to_host(out), a @ b, atol=0.02 if name == "copied" else 1e-5)
            assert run.access(a_, kept, None, out)["b"] == "used in place"
        host = np.empty((20, 41), np.float32)
        run(a, kept, None, host, 1.0, 0.0)
        np.testing.assert_allclose(host, a @ b, atol=0.02 if name == "copied" else 1e-5)


def test_prepacking_follows_the_stream_of_its_memory(backend, device, streams, emulated, tmp_path):
    """gemm allocates on the legacy stream: what used the memory before may still run there."""
    emulated()
    row = suits(next((row for row in ROWS if row.params.get("planes") == 3), TILE), device)
    b_ = backend.to_device(rand(20, 37), device)
    emulated(log=tmp_path / "calls")
    backend.keep(row, device, replace(b_, queue=streams[0]), reproducible=False)
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    names = [name for name, *_ in calls if name.startswith(("cuMemAlloc", "cuStreamWaitEvent", "cuLaunchKernel"))]
    assert names == ["cuMemAllocFromPoolAsync", "cuStreamWaitEvent", "cuLaunchKernel"]


def test_prepared_vectors(backend, device):
    """Planes of a matrix of one column lie as they were made, however that was seen."""
    row = suits(next((row for row in ROWS if row.params.get("planes") == 3), TILE), device)
    a, b = rand(20, 37), rand(37, 1)
    run = backend.launcher(row, device, Problem("float32", 1, 1, 1, precision=row.precision))
    wide = backend.to_device(np.repeat(b, 9, 1), device)
    for b_ in (backend.to_device(b, device), replace(wide, shape=(37, 1))):
        out = backend.empty((20, 1), b_)
        run(backend.to_device(a, device), backend.keep(row, device, b_, reproducible=False), None, out, 1.0, 0.0)
        np.testing.assert_allclose(backend.to_host(out), a @ b, atol=1e-5)


# Faults, and processes of their own.


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"init": 100}, "no CUDA device.*nvidia-smi"),
        ({"devices": 0}, "no CUDA device.*nvidia-smi"),
        ({"init": 803}, r"cuInit: .*803|cuInit: CUDA_ERROR"),
        ({"driver": 11040}, r"made for CUDA 11\.4, NVRTC for 12.*Update the driver"),
    ],
)  # fmt: skip
def test_unavailable_says_why(emulated, settings, said):
    emulated(**settings)
    backend = CudaBackend()
    for _ in range(2):  # remembered, and raised anew
        with pytest.raises(BackendUnavailable, match=said):
            backend.devices()


def test_without_libraries(machine, monkeypatch):
    monkeypatch.setenv("GEMM_LIBCUDA", "/nonexistent/libcuda.so.1")
    cuda_driver.cuda.cache_clear()
    with pytest.raises(BackendUnavailable, match=r"driver does not load.*NVIDIA driver"):
        CudaBackend().devices()
    monkeypatch.undo()
    for name, value in machine.items():
        monkeypatch.setenv(name, value)
    cuda_driver.cuda.cache_clear()
    monkeypatch.setattr(cuda_backend, "compilers", lambda: ())
    if machine:
        with pytest.raises(BackendUnavailable, match=r"no NVRTC was found.*\. Install NVRTC: pip install nvidia"):
            CudaBackend().devices()


def test_a_second_process_needs_no_compiler(process, tmp_path):
    code = """
product()
print("loaded" if "libnvrtc" in open("/proc/self/maps").read() else "not loaded")
"""
    assert "not loaded" not in process(code, cache=tmp_path / "cache")
    assert "not loaded" in process(code, cache=tmp_path / "cache")
    for entry in (tmp_path / "cache").glob("cuda-*"):
        entry.write_bytes(entry.read_bytes()[:-9])
    assert "not loaded" not in process(code, cache=tmp_path / "cache")


def test_a_lost_device_is_left_alone(process):
    code = """
expected = product()
os.environ["CUDA_MACHINE_FAIL"] = "cuLaunchKernel:1:700:sticky"
try:
    product()
except gemm.BackendUnavailable as error:
    print(error)
os.environ["CUDA_MACHINE_FAIL"] = ""
assert np.allclose(gemm.gemm(a, b), expected), "auto goes on elsewhere"
try:
    product()
except gemm.BackendUnavailable as error:
    print("again:", error)
"""
    said = process(code, devices=1)
    assert "was lost in this process" in said
    assert "ILLEGAL_ADDRESS" in said or "700" in said
    assert "again:" in said


def test_forked_children_are_told(process):
    code = """
expected = product()
there = registry.backend("cuda").to_device(a, registry.backend("cuda").devices()[0])
if (child := os.fork()) == 0:
    try:
        product()
    except gemm.BackendUnavailable as error:
        print("child:", error, flush=True)
    try:
        there.device.handle.__enter__()
    except Exception as error:
        print("context:", error, flush=True)
    del there
    os._exit(0)
os.waitpid(child, 0)
assert np.array_equal(product(), expected)
"""
    said = process(code)
    assert "child: cuda: CUDA was in use when this process was forked" in said or "child:" in said
    assert "context: CUDA was in use when this process was forked" in said


# With other libraries, where they are.


def torch_on(device):
    torch = pytest.importorskip("torch")
    if os.environ.get("GEMM_LIBCUDA") or not torch.cuda.is_available():
        pytest.skip("PyTorch has no such GPU")
    return torch


def test_torch_stream_order(backend, device):
    """The product waits for what the current stream holds, and what follows on it waits for the product."""
    torch = torch_on(device)
    run = launch(backend, device)
    a, b = rand(64, 64), rand(64, 64, seed=1)
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


def test_torch_graph(backend, device):
    """A product repeated while PyTorch captures goes into its graph."""
    torch = torch_on(device)
    import gemm

    a, b = (torch.from_numpy(rand(64, 64, seed=seed)).cuda() for seed in (1, 2))
    out = torch.zeros_like(a)
    for _ in range(3):
        gemm.gemm(a, b, out=out, kernel="sgemm_cuda_tile")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm.gemm(a, b, out=out, kernel="sgemm_cuda_tile")
    a.copy_(torch.from_numpy(rand(64, 64, seed=3)))
    graph.replay()
    check_same_bits(out.cpu().numpy(), ordered(rand(64, 64, seed=3), rand(64, 64, seed=2)))
