"""Devices that are lost, full, or were never there: what a named backend says, and that `auto` delivers all the same.

tests/drivers/failing.c stands between the loader and a real driver and fails what it is told to.
"""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import at_once, python

import gemm
from gemm.backends import registry
from gemm.backends.opencl.backend import OpenCLBackend
from gemm.backends.opencl.launch import Launcher
from gemm.catalog import BY_NAME
from gemm.core import disk_cache
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.core.problem import Problem
from gemm.select import choice, probe, verification

TESTS = Path(__file__).parents[2]
try:
    WHY = "" if OpenCLBackend().devices() else "no device"
except BackendUnavailable as error:
    WHY = str(error)

builds = pytest.mark.skipif(not shutil.which("gcc") or sys.platform != "linux", reason="builds a shared library")
on_any_device = pytest.mark.skipif(bool(WHY), reason=WHY)

START = """
import ctypes, logging, os, re, sys
import numpy as np
import gemm
from gemm import execute
from gemm.backends import registry
from gemm.select import probe, verification
from gemm.core.problem import Problem
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
shim, NAIVE, LOCAL = ctypes.CDLL(os.environ["OPENCL_LAYERS"]), "sgemm_generic_naive", "sgemm_generic_local_16x16"
def fail(names, count=0, code=0):
    shim.fail(names.encode(), count, code)
device = registry.backend("opencl").devices()[0]
HERE = device.key
# As if the probe had found the device to be without equal, and these kernels to be right.
probe.recalled[probe.entry()] = probe.Facts([
    {"step": "device", "device": HERE, "backend": "opencl", "name": device.name, "driver": device.driver, "kind": "x"},
    *({"step": "kernel", "kernel": name, "device": HERE, "ok": True, "error": "", "launch": 1e-9, "flops": flops,
       "upload": 1e18, "download": 1e18} for name, flops in [(NAIVE, 1e18), (LOCAL, 1e17)])])
rng = np.random.default_rng(0)
a, b, c = (rng.integers(-9, 10, shape).astype(np.float32) for shape in ((600, 500), (500, 700), (600, 700)))
right = a @ b
def raised(call, *args, **options):
    try:
        call(*args, **options)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")
assert execute.choose(Problem("float32", 600, 700, 500)).kernel.name == NAIVE
"""


@pytest.fixture(scope="session")
def layer(tmp_path_factory):
    library = tmp_path_factory.mktemp("layer") / "failing.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, TESTS / "drivers" / "failing.c"], check=True)
    return library


def with_faults(layer, code):
    # With one thread, so that the products are long enough for devices to be looked for.
    environment = {"OPENCL_LAYERS": layer, "GEMM_CACHE_DIR": os.devnull, "GEMM_NUM_THREADS": "1"}
    return python(code, prelude=START, **environment)


@builds
@on_any_device
@pytest.mark.parametrize(("names", "count", "code"), [
    ("cl", 5, -5), ("clEnqueue clWait clFinish clFlush clCreate", 2, -36), ("clEnqueueMapBuffer", 2, -2),
])  # fmt: skip
def test_a_device_that_is_lost_in_mid_run(layer, names, count, code):
    """OUT_OF_RESOURCES and INVALID_COMMAND_QUEUE from all calls, DEVICE_NOT_AVAILABLE from one kind."""
    told = with_faults(
        layer,
        f"""
        plan, resident = gemm.plan(a, b), registry.backend("opencl").to_device(b, device).owner
        kept, prepared = gemm.empty((600, 700), np.float32, HERE), gemm.prepare(b, backend=HERE, kernel=NAIVE)
        fail({names!r}, {count}, {code})
        out = c.copy()
        assert (gemm.gemm(a, b, out, beta=2.0, out=out) == right + 2 * c).all()
        calls = shim.called()
        assert (gemm.gemm(a, b) == right).all() and (plan(a, b) == right).all()
        assert plan.device == "cpu:0" and shim.called() == calls
        for call, options in ((gemm.gemm, {{"backend": HERE}}), (gemm.gemm, {{"kernel": NAIVE, "backend": HERE}})):
            error = raised(call, a, b, **options)
            assert isinstance(error, gemm.BackendUnavailable) and "lost in this process" in str(error), error
        assert isinstance(raised(gemm.gemm, a, prepared), gemm.BackendUnavailable)
        assert shim.called() == calls
        assert isinstance(raised(gemm.gemm, resident.T, resident), gemm.BackendUnavailable)
        del resident  # `kept` lives until the end
        """,
    )
    assert told.count("WARNING gemm does without") == 1, told


@builds
@on_any_device
def test_no_room_on_the_device(layer):
    told = with_faults(
        layer,
        """
        fail("clCreateBuffer clCreateImage", 2, -4)
        assert (gemm.gemm(a, b) == right).all()
        fail("clCreateBuffer clCreateImage", 2, -4)
        error = raised(gemm.gemm, a, b, backend=HERE, kernel=NAIVE)
        assert isinstance(error, MemoryError), error
        size, name = re.search("no room for ([0-9]+) bytes of (a|b|out)", str(error)).groups()
        assert int(size) == {"a": a, "b": b, "out": c}[name].nbytes, error
        fail("clEnqueueNDRangeKernel", 0, -4)
        error = raised(gemm.gemm, a, b, backend=HERE, kernel=NAIVE)
        assert isinstance(error, MemoryError) and f"b has {b.nbytes}" in str(error), error
        fail("")
        assert gemm.plan(a, b).device == HERE and (gemm.gemm(a, b) == right).all()
        before = shim.called()
        assert (gemm.gemm(a, b) == right).all() and shim.called() > before
        """,
    )
    assert "does without" not in told


@builds
@on_any_device
def test_a_kernel_that_does_not_build_or_start(layer):
    """It is demoted, its device is not."""
    told = with_faults(
        layer,
        """
        fail("clBuildProgram", 0, -11)
        assert (gemm.gemm(a, b) == right).all()
        assert "did not build" in str(raised(gemm.gemm, a, b, backend=HERE, kernel=NAIVE))
        fail("clEnqueueNDRangeKernel", 0, -52)
        error = raised(gemm.gemm, a, b, backend=HERE, kernel="sgemm_generic_local_vec4")
        assert isinstance(error, gemm.BackendUnavailable) and "INVALID_KERNEL_ARGS" in str(error), error
        fail("")
        assert (gemm.gemm(a, b, backend=HERE, kernel="sgemm_generic_tile_64x32") == right).all()
        assert [x.untrusted[HERE] for x in gemm.kernels() if x.name == NAIVE][0].startswith("failed in this process")
        """,
    )
    assert told.count("gemm does without sgemm_generic_naive on") == 1, told
    assert "lost" not in told


@builds
@on_any_device
def test_a_c_that_is_out_is_whole_or_said_to_be_lost(layer):
    """The device is lost after some tiles of a result that takes the place of c."""
    with_faults(
        layer,
        """
        plenty, aligned = device.limits["max_alloc"], gemm.empty((600, 700), np.float32, "cpu")
        for count, limit, out in ((20, 1 << 16, c.copy()), (60, 1 << 16, c.copy()), (2, plenty, aligned)):
            device.limits["max_alloc"], out[...] = limit, c
            gemm.gemm(a, b, kernel=NAIVE, backend=HERE)
            fail("clEnqueueMap clEnqueueWrite" if limit == plenty else "cl", count, -36)
            assert (gemm.gemm(a, b, out, beta=2.0, out=out) == right + 2 * c).all()
            fail("")
            assert verification._lost
            verification._lost.clear(), verification.forget_choices()
        kept = gemm.empty((600, 700), np.float32, HERE)
        if kept.base is not None and device.unified:
            kept[...] = c
            fail("clEnqueueMap clEnqueueWrite", 2, -5)  # when the kernel has run
            error = raised(gemm.gemm, a, b, kept, beta=2.0, out=kept)
            assert isinstance(error, RuntimeError) and not isinstance(error, gemm.BackendUnavailable), error
            assert (gemm.gemm(a, b) == right).all()
        """,
    )


def vendors(folder, *libraries):
    """A folder of drivers, one a library."""
    folder.mkdir()
    for library in libraries:
        (folder / f"{library.stem}.icd").write_text(f"{library}\n")
    return folder


INFO = "import sys; from gemm.cli import main; sys.argv[1:] = ['info']; sys.exit(main())"


@pytest.mark.skipif(sys.platform != "linux", reason="drivers are told of by files")
def test_info_tells_of_drivers_that_do_not_load(tmp_path):
    pytest.importorskip("pyopencl")
    text = tmp_path / "text.so"
    text.write_text("no library")
    folder = vendors(tmp_path / "vendors", tmp_path / "gone.so", text)
    told = python(INFO, OCL_ICD_VENDORS=folder, GEMM_CACHE_DIR=tmp_path / "cache")
    assert f"gone.icd: {tmp_path / 'gone.so'}: cannot open shared object file" in told
    assert f"text.icd: {text}: " in told


@builds
def test_info_survives_a_driver_that_ends_the_process(tmp_path):
    pytest.importorskip("pyopencl")
    source, library = tmp_path / "bad.c", tmp_path / "bad.so"
    source.write_text("#include <stdlib.h>\n__attribute__((constructor)) static void load(void) { abort(); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    environment = {"OCL_ICD_VENDORS": vendors(tmp_path / "vendors", library)}
    for _ in range(2):
        told = python(INFO, GEMM_CACHE_DIR=tmp_path / "cache", **environment)
        assert "- opencl: its driver ended with status -6 in a child process" in told
    assert len(list((tmp_path / "cache").glob("drivers-*"))) == 1


def test_info_says_how_to_get_a_platform(tmp_path):
    pytest.importorskip("pyopencl")
    code = f"""
    import pyopencl as cl
    def none():
        raise cl.LogicError(cl._cl._ErrorRecord(msg="none", code=-1001, routine="clGetPlatformIDs"))
    cl.get_platforms = none
    {INFO}"""
    told = python(code, GEMM_CACHE_DIR=tmp_path / "cache")
    assert "- opencl: no OpenCL platform" in told
    assert re.search(r"to get it: .*pyopencl\[pocl\].*Termux.*pkg install ocl-icd.*LD_LIBRARY_PATH=/vendor/lib64", told)


ADDED = """
import os, pathlib, sys
from gemm.backends import opencl
sys.prefix, opencl.VENDORS = {prefix!r}, pathlib.Path({vendors!r})
opencl.add_intel_runtime()
folder = os.environ.get("OCL_ICD_VENDORS", "")
files = sorted(pathlib.Path(folder).glob("*.icd")) if folder else []
print(folder, *(f"{{file.name}}={{file.read_text().strip()}}" for file in files), sep="\\n")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="drivers are told of by files")
def test_intels_runtime_joins_the_machines_drivers(tmp_path):
    library = tmp_path / "lib/libintelocl.so"
    machine = vendors(tmp_path / "vendors", tmp_path / "gpu.so")
    code = ADDED.format(prefix=str(tmp_path), vendors=str(machine))

    def added(**environment):
        usual = {"OCL_ICD_VENDORS": "", "GEMM_CACHE_DIR": tmp_path / "cache"}
        lines = python(code, **(usual | environment)).splitlines()
        return lines[0], lines[1:]

    assert added() == ("", [])  # there is no such library
    library.parent.mkdir()
    library.touch()
    first, files = added()
    assert files == [f"gemm-intel-cpu.icd={library}", f"gpu.icd={tmp_path / 'gpu.so'}"]
    assert added() == (first, files)
    assert added(OCL_ICD_VENDORS="mine")[0] == "mine"
    assert added(GEMM_CACHE_DIR=os.devnull)[0] == ""
    (machine / "more.icd").write_text("more.so\n")
    second, files = added()
    assert second != first
    assert "more.icd=more.so" in files
    (machine / "intel.icd").write_text("/opt/intel/libintelocl.so\n")
    assert added() == ("", [])


# The cache of built kernels.

PRODUCT = """
import logging, sys
import numpy as np
import gemm
from gemm.backends import registry
logging.basicConfig(stream=sys.stdout)
from gemm.backends.opencl import context
import pyopencl as cl
context.KEEP_PROGRAMS = ()  # PoCL's binaries are kept, too
made, program = [], cl.Program
cl.Program = lambda *args: made.append(len(args)) or program(*args)  # 2: from source, 3: from a binary
a = np.arange(12, dtype=np.float32).reshape(3, 4)
key = registry.backend("opencl").devices()[0].key
assert (gemm.gemm(a, a.T, kernel="sgemm_generic_naive", backend=key) == a @ a.T).all()
print("made from", " ".join({2: "source", 3: "binary"}[n] for n in made))
"""


@on_any_device
@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
@pytest.mark.parametrize(("mode", "words"), [(0o777, "others may write"), (0o500, "is read-only")])
def test_a_cache_folder_that_cannot_be_used(tmp_path, mode, words):
    """Kernels are built in each process, with a line in the log that says so; nothing is written."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    folder.chmod(mode)
    # Root may write to what is read-only: there the answer to the question is planted.
    root = "import os; os.access = lambda *_: False" if mode == 0o500 and os.geteuid() == 0 else ""
    for _ in range(2):
        told = python(root + PRODUCT, GEMM_CACHE_DIR=folder)
        assert "made from source" in told
        assert told.count(f"gemm runs without a disk cache: {'' if mode == 0o777 else folder}") == 1
        assert words in told
    folder.chmod(0o700)
    assert not list(folder.iterdir())


@on_any_device
def test_a_disk_that_fills_up_costs_the_cache_alone(tmp_path):
    full = "import os\ndef full(*_): raise OSError(28, 'No space left on device')\nos.fsync = full\n"
    assert "gemm could not write the cache entry" in python(full + PRODUCT, GEMM_CACHE_DIR=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


@on_any_device
def test_processes_that_build_at_once(tmp_path):
    """All of them find a cache without the kernel; what they leave is whole."""
    wait = "import os, time\nopen(os.environ['HERE'] + f'/{os.getpid()}', 'w')\n"
    wait += "while len(os.listdir(os.environ['HERE'])) < 3: time.sleep(0.001)\n"
    code = PRODUCT.replace("a = np.arange", wait + "a = np.arange")
    (tmp_path / "here").mkdir()
    environment = {"GEMM_CACHE_DIR": tmp_path / "cache", "HERE": tmp_path / "here"}
    told = at_once(lambda _: python(code, **environment), range(3))
    assert any("made from source" in one for one in told)
    (entry,) = (tmp_path / "cache").iterdir()
    assert entry.name.startswith("opencl-")
    assert "made from binary\n" in python(PRODUCT, GEMM_CACHE_DIR=tmp_path / "cache")


# Kernels.


@on_any_device
def test_a_thread_has_kernel_objects_of_its_own():
    device = OpenCLBackend().devices()[0]
    row, problem, a = BY_NAME["sgemm_generic_naive"], Problem(4, 4, 4), np.ones((4, 4), np.float32)

    def used():
        Launcher(row, device, problem)(a, a, None, np.empty_like(a), 1.0, 0.0)
        return list(device.handle.kernels.values())

    own = used()
    assert len(own) == 1
    assert used() == own
    with ThreadPoolExecutor(1) as pool:
        (other,) = pool.submit(used).result()
    assert other.int_ptr != own[0].int_ptr


@on_any_device
def test_what_does_not_build_on_a_device_is_not_chosen_there_and_says_why(monkeypatch):
    """As where a driver lists an extension whose functions it lacks: what it lists is not believed, kernels are built.

    The probe's own step is run here, on a kernel whose source asks for what no driver has.
    """
    backend, row = OpenCLBackend(), BY_NAME["sgemm_generic_naive"]
    monkeypatch.setattr(
        disk_cache, "read", lambda _: "kernel void gemm_naive(global int *a) { *a = intel_no_such(1); }"
    )
    monkeypatch.setattr(registry, "backend", lambda name: backend)
    monkeypatch.setattr(probe, "BACKENDS", {"opencl": ""})
    monkeypatch.setattr(probe, "KERNELS", (row,))
    facts = probe.Facts(list(probe.explore({"skip": [], "verify": True})))
    device = backend.devices()[0]
    assert "intel_no_such" in verification.unverified(row, device, facts)
    monkeypatch.setitem(probe.recalled, probe.entry(), facts)
    found = choice.candidates(Problem("float32", 8, 8, 8), "opencl")
    assert all(one.seconds is None for one in found if one.kernel is row)
    assert any("did not build" in one.why_not for one in found if one.kernel is row)
    (status,) = [status for status in gemm.kernels() if status.row is row]
    assert "did not build" in status.untrusted[device.key]
    # Another driver is another device: what was found says nothing of it.
    updated = replace(device, driver="another")
    assert verification.unverified(row, updated, facts) == "not verified on this device and driver"


# Devices that no context can be made of.

NO_CONTEXT = """
import ctypes, logging, os, sys
import numpy as np
import gemm
from gemm.select import probe, worker
from gemm.core.errors import BackendUnavailable, KernelFailed
logging.basicConfig(stream=sys.stdout)
if os.environ["KNOWN"] == "good":  # the probe had found the device when it still could be used
    found = probe.Facts([{"step": "device", "device": "opencl:0", "backend": "opencl", "name": "x", "driver": "y",
                          "kind": "cpu"}])
    probe.recalled[probe.entry()] = found
ctypes.CDLL(os.environ["OPENCL_LAYERS"]).fail(b"clCreateContext", 0, int(os.environ["CODE"]))
a = np.ones((700, 700), np.float32)
with worker.waiting():
    assert (gemm.gemm(a, a) == 700).all()
for call in (gemm.gemm, gemm.plan):
    for options in ({"backend": "opencl"}, {"backend": "opencl:0"}, {"kernel": "sgemm_generic_naive"}):
        try:
            call(a, a, **options)
        except BackendUnavailable as error:
            assert "no OpenCL context" in str(error), error
        else:
            raise AssertionError(options)
"""


@builds
@on_any_device
@pytest.mark.parametrize("code", [-6, -5, -2])
def test_a_context_that_cannot_be_made_is_no_users_problem(layer, code):
    """OUT_OF_HOST_MEMORY, OUT_OF_RESOURCES, DEVICE_NOT_AVAILABLE: `auto` goes on, and who names the device is told."""
    python(NO_CONTEXT, OPENCL_LAYERS=str(layer), CODE=str(code), KNOWN="good", GEMM_CACHE_DIR=os.devnull,
           GEMM_NUM_THREADS="1")  # fmt: skip


@on_any_device
@pytest.mark.parametrize("fault", ["KernelFailed", "cl.Error"])
def test_a_bad_platform_leaves_the_good_ones(monkeypatch, fault):
    import pyopencl as cl

    from gemm.backends.opencl import backend as opencl_backend

    (good, *_), real = opencl_backend.discover(), opencl_backend.describe

    def described(cl_device, key, handle):
        if key == "opencl:0":
            raise KernelFailed("no OpenCL context: out of memory") if fault == "KernelFailed" else cl.Error("gone")
        return real(cl_device, key, handle)

    monkeypatch.setattr(opencl_backend, "describe", described)
    left_out = {}
    assert [device.key for device in opencl_backend.usable([good, good], left_out)] == ["opencl:1"]
    assert left_out.keys() == {"opencl:0"}
    with pytest.raises(BackendUnavailable, match="opencl:0: it cannot be used"):
        opencl_backend.usable([good], {})


LEFT_OUT = """
import contextlib, io
import numpy as np
import gemm, gemm.cli
from gemm.backends.opencl import backend as opencl_backend
from gemm.core.errors import BackendUnavailable, KernelFailed
from gemm.select import probe
found, real = opencl_backend.discover()[:1] * 2, opencl_backend.describe
opencl_backend.discover.__code__ = (lambda: FOUND).__code__
opencl_backend.FOUND = found
def described(cl_device, key, handle):
    if key == "opencl:0":
        raise KernelFailed("no OpenCL context: out of memory")
    return real(cl_device, key, handle)
opencl_backend.describe = described
probe.recalled[probe.entry()] = probe.Facts([  # as if the probe had looked
    {"step": "device", "device": "opencl:1", "backend": "opencl", "name": "x", "driver": "y", "kind": "cpu"}])
a = np.ones((70, 70), np.float32)
assert (gemm.gemm(a, a, kernel="sgemm_generic_naive", backend="opencl:1") == 70).all()
def listed(device):
    with contextlib.redirect_stderr(io.StringIO()) as told:
        assert gemm.cli.main(["verify", "--device", device]) != 0
    raise BackendUnavailable(device, told.getvalue())
for device, why in (("opencl:0", "out of memory"), ("opencl:7", "no such device; there is opencl:1")):
    calls = (lambda: gemm.gemm(a, a, backend=device), lambda: gemm.plan(a, a, backend=device),
             lambda: gemm.prepare(a, backend=device), lambda: gemm.empty((9, 9), device=device), lambda: listed(device),
             lambda: gemm.gemm(a, a, kernel="sgemm_generic_naive", backend=device))
    for call in calls:
        try:
            call()
        except BackendUnavailable as error:
            assert why in str(error) and device in str(error), error
        else:
            raise AssertionError(device)
"""


@on_any_device
def test_who_names_a_device_that_is_left_out_is_told_why():
    python(LEFT_OUT)
