"""Options, the kernels as test parameters, and the report of what ran where.

--require=NAME[,NAME…] turns skips into failures: a kernel or target must run; a backend must be there, and each of
its kernels must run unless the hardware lacks a feature that it needs. --thin suits emulators, --full releases, and
--smoke a first look: see `pytest_collection_modifyitems`.
--cuda-machine=9.0 gives the tests an emulated CUDA GPU; see tests/cuda_machine/README.md. --emulate-matrix-units
gives OpenCL devices the matrix units of Intel's or AMD's GPUs; see tests/matrix_units.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import hypothesis
import numpy as np
import pytest

# The oracle, the checks and the tables of faults are shared by several test modules.
sys.path.insert(0, str(Path(__file__).parent / "backends" / "cuda"))
sys.path.insert(0, str(Path(__file__).parent / "select"))
sys.path.insert(0, str(Path(__file__).parent / "bench"))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # some tests are of what is measured there

import cuda_machine
import matrix_units
from conformance import ALL_CHECKS, CHAIN_CHECKS
from conformance.apart import apart
from conformance.narrowed import narrowed, unsigned
from conformance.prepared import prepared
from conformance.repeated import pending, repeated
from conformance.resident import CudaInterface, CuPy, PyOpenCL, Torch, resident
from conformance.subject import DEFAULT, FULL, ONLY, THIN, Subject, blocked
from cuda_machine.direct import Machine
from helpers import emulate, forget_drivers

import gemm
from gemm import execute
from gemm.backends import registry
from gemm.backends.cuda.backend import Launcher
from gemm.catalog import BACKENDS, BY_NAME, KERNELS, TARGETS, Kernel
from gemm.core import disk_cache
from gemm.core.problem import EXTRA, NARROW
from gemm.extras.batching import Batch
from gemm.frontend import plan_cache
from gemm.select import candidates, probe, verification, worker
from gemm.select.candidates import unavailable

if importlib.util.find_spec("ml_dtypes"):
    import ml_dtypes  # noqa: F401  NumPy knows the name bfloat16 from then on


os.environ.pop("COLUMNS", None)  # output that is captured has no width, unless a test sets one


def pytest_addoption(parser):
    group = parser.getgroup("gemm")
    group.addoption(
        "--require",
        default=os.environ.get("GEMM_TEST_REQUIRE", ""),
        metavar="NAME[,NAME]",
        help="backends, targets or kernels that must run: their skips are failures",
    )
    group.addoption("--thin", action="store_true", help="a thinned set for emulators; or GEMM_TEST_EFFORT=thin")
    group.addoption("--full", action="store_true", help="all cases on slow devices too; or GEMM_TEST_EFFORT=full")
    group.addoption("--smoke", action="store_true", help="one thin case of each test that is not marked slow")
    group.addoption(
        "--cuda-machine", metavar="CAPABILITY", help="an emulated CUDA GPU, such as 9.0, instead of any real one"
    )
    group.addoption(
        "--emulate-matrix-units",
        default="",
        metavar="FAMILY[,FAMILY]",
        help=f"OpenCL devices with Intel's sub-groups have these matrix units, too: {', '.join(matrix_units.FAMILIES)}",
    )
    group.addoption(
        "--every-row", action="store_true", help="OpenCL kernels that share a source, too, and each source in every way"
    )
    group.addoption(
        "--siblings",
        default="",
        metavar="CHECK[,CHECK]",
        help="kernels that share a source, too, but only in these checks",
    )
    group.addoption(
        "--rows", default="", metavar="NAME[,NAME]", help="the conformance suite of these kernels, collected alone"
    )
    group.addoption(
        "--kernel-report", type=Path, metavar="FILE", help="write {kernel: {passed, failed, skipped, reason}} as JSON"
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes seconds; --smoke leaves it out")
    emulated = config.getoption("--cuda-machine")
    if emulated:
        os.environ.update(cuda_machine.environment(emulated))
    if families := config.getoption("--emulate-matrix-units"):
        matrix_units.emulate(families.split(","))
    strange = set(filter(None, config.getoption("--siblings").split(","))) - ALL_CHECKS.keys()
    if strange:
        raise pytest.UsageError(f"--siblings: unknown {', '.join(sorted(strange))}")
    unknown = _required(config) - BACKENDS.keys() - TARGETS - BY_NAME.keys()
    if unknown:
        known = ", ".join([*BACKENDS, *sorted(TARGETS), *BY_NAME])
        raise pytest.UsageError(f"--require: unknown {', '.join(sorted(unknown))}; known are {known}")
    effort = _effort(config)
    examples = (20, 100, 1000)[effort]
    hypothesis.settings.register_profile("gemm", deadline=None, derandomize=effort != FULL, max_examples=examples)
    hypothesis.settings.load_profile("gemm")
    config.pluginmanager.register(KernelReport(config), "gemm-kernel-report")


def pytest_collection_finish():
    gc.freeze()  # a session's thousands of items, which each full collection would go through


def _required(config):
    return set(filter(None, config.getoption("--require").split(",")))


def _effort(config):
    asked = os.environ.get("GEMM_TEST_EFFORT", "")
    if config.getoption("--full") or asked == "full":
        return FULL
    return THIN if config.getoption("--thin") or config.getoption("--smoke") or asked == "thin" else DEFAULT


@dataclass(frozen=True)
class Spec:
    """A subject to be.

    Attributes:
        kernel, dtype: what multiplies.
        device: the key of the device; None where no device can run the kernel.
        variant: "" for host operands; a library for operands of its own on the device; "cramped": a device that claims
            so little room that products are cut along every axis; "repeated": each call after others like it;
            "pending": each waits, with others like it, in a gemm.batching; "prepared": b is packed by gemm.prepare;
            "unsigned": the integers without a sign; "apart": each product's operands are found through a table.
        inputs: the types of a and b where they are not `dtype`.
    """

    kernel: str
    dtype: str
    device: str | None
    variant: str = ""
    inputs: tuple[str, ...] = ()


CRAMPED = {"image_width": 24, "image_height": 72, "max_alloc": 4096}


REFERENCE = (
    ("float32", ()), ("float64", ()), ("float16", ()), ("bfloat16", ()), ("complex64", ()), ("complex128", ()),
    ("int8", ()), ("int64", ()), ("int32", ("uint8", "int8")),
    ("float32", ("float16", "float16")), ("bfloat16", ("float8_e4m3fn", "float8_e5m2")),
)  # fmt: skip
"""What kernels of every dtype are tested with."""


def _relatives():
    """(siblings, kin): the names of OpenCL and CUDA kernels whose source and form an earlier row has, so that they
    differ in parameters (OpenCL: or types) only; and for each CUDA kernel how many earlier types its source has."""
    seen, counts, siblings, kin = set(), Counter(), set(), {}
    for row in KERNELS:
        if row.backend not in ("opencl", "cuda"):
            continue
        types = (row.dtype, row.inputs) if row.backend == "cuda" else ()
        form = row.source, *(row.params.get(name, 0) for name in ("DIRECT", "A_TURNED", "BLOCK_IO")), *types
        wider = row.source, row.params.get("A_TURNED", 0), bool(row.params.get("pointers"))
        kin[row.name] = counts[wider] if types else 0
        if form in seen:
            siblings.add(row.name)
        seen.add(form)
        counts[wider] += row.name not in siblings
    return siblings, kin


SIBLINGS, KIN = _relatives()


EVERY_WAY = ("sgemm_adreno_image_8x4", "sgemm_generic_naive", "sgemm_cuda_tile", "hgemm_cuda_wgmma_64x64")
"""Kernels that are always tested in every way: ones with padded or packed operands, and ones that read any strides."""


def _variants(row, dtype, *, every):
    """The ways to test `row` with."""
    backend = row.backend
    if backend == "opencl":
        thorough = row.name in EVERY_WAY or (every and row.name not in SIBLINGS)
        return ["", "pyopencl", "cramped"] if thorough else [""]
    if backend == "cpu":
        # Calls that repeat or wait go one way for all kernels: one kernel of each type shows it, and float32's others.
        shown = row.target == "scalar" or (dtype == "float32" and not row.inputs) or row.name == "bgemm_amx_32x32"
        later = ["repeated", "pending"] if shown else []
        # uint64 has no common type with the checks' own sums, int64; tests/frontend/test_call_surface.py multiplies it
        # gemm.prepare makes b what is summed, so that there is none for rows whose operands are of another type
        prepares = ["prepared"] if not row.inputs else []
        return ["", *later, *prepares, *(["unsigned"] if dtype in ("int8", "int16", "int32") else [])]
    # CuPy has no bfloat16, and PyTorch none that NumPy could read back.
    lent = backend == "cuda" and row.dtype != "bfloat16"
    libraries = [name for name in ("cupy", "torch") if lent and _imports(name)]
    return ["", *libraries, *(["interface"] if row.name in EVERY_WAY else []),
            *(["apart"] if row.params.get("pointers") else [])]  # fmt: skip


def _imports(name):
    try:
        __import__(name)
    except Exception:  # a broken installation of a library we only borrow is as good as none
        return False
    return True


def _specs(*, every):
    """Catalog rows on every device that can run them, with their test ids; `every`: siblings, too."""
    found = []
    for status in gemm.kernels():
        if status.name in SIBLINGS and not every:
            continue
        several = len(status.devices) > 1
        for dtype, inputs in REFERENCE if status.dtype == "*" else ((status.dtype, status.row.inputs),):
            devices = status.devices if not {dtype, *inputs} & {*EXTRA} or _imports("ml_dtypes") else ()
            for device in devices or (None,):
                variants = _variants(status.row, "" if inputs else dtype, every=every)
                for variant in variants if device else [""]:
                    id_ = status.name + (f"-{'-'.join((*inputs, dtype))}" if status.dtype == "*" else "")
                    id_ += (f"@{device}" if several else "") + (f"-{variant}" if variant else "")
                    found.append((Spec(status.name, dtype, device, variant, inputs), id_))
    return found


ENGINE_CHECKS = {"packed_edges", "page_ends"}
"""Checks of the C engine's rows alone."""
HOST_ONLY = {"far_strides", "concurrent", *ENGINE_CHECKS}


ARITHMETIC = {"accuracy", "overflow", "positions", "published_bits", "repeatable", "subnormals"}
"""Checks of what a kernel computes, not of how its operands reach it: variants in UNCHANGED do not have them."""
UNCHANGED = {"repeated", "pending", "pyopencl", "cupy", "torch", "interface", "apart"}
"""Variants in which the same launch reads the same operands."""


OF_THE_FIRST = {
    "batches", "batch_members", "concurrent", "deep_in_place", "far_strides", "in_place", "positions", "repeatable",
    "zero_sizes",
}  # fmt: skip
"""Checks of what is the same for all types of a CUDA source: in a thin set, its first type has them."""


NARROWER = {"subnormals", "overflow", "non_finite", "minus_zero", "published_bits"}
"""Checks of numbers that only the result's type has."""


def _applies(check, spec):
    """Whether `check` is for `spec`; what is not is not collected, so that a skip always means absence."""
    row = BY_NAME[spec.kernel]
    if (spec.variant and check in HOST_ONLY) or (spec.inputs and check == "far_strides"):
        return False
    if spec.variant in UNCHANGED and check in ARITHMETIC:
        return False
    kind = "i" if "int" in spec.dtype else "c" if "complex" in spec.dtype else "f"
    if kind not in ONLY.get(check, kind):
        return False
    if check in ENGINE_CHECKS and row.backend != "cpu":
        return False
    if check == "page_ends" and os.name != "posix":
        return False  # it protects pages by mprotect, and forks
    if check in NARROWER and any("float" in name for name in spec.inputs):
        return False  # what these are about is not in the types of a and b
    if check == "bias_and_activation" and not row.fuses and (spec.variant == "pyopencl" or spec.dtype in NARROW):
        return False  # it is a pass over float32 results, in host memory
    if check == "subnormals" and row.precision != "highest":
        return False  # precision="high" lets them count as zero
    if check == "overflow" and row.precision == "medium":
        return False  # sums in half are infinite where those in float are not yet
    if check in ("non_finite", "overflow") and row.dtype == "*" and kind == "c":
        return False  # BLAS multiplies by alpha = 1 + 0i, whose zero turns an infinite part into NaN
    if check not in CHAIN_CHECKS:
        return True
    if not row.ordered or spec.device is None:
        return row.ordered
    return not unavailable(row, _device(spec), reproducible=True)


def _device(spec):
    devices = registry.backend(BY_NAME[spec.kernel].backend).devices()
    return next(device for device in devices if device.key == spec.device)


def pytest_generate_tests(metafunc):
    if {"subject", "check"} <= set(metafunc.fixturenames):
        every = metafunc.config.getoption("--every-row") or _effort(metafunc.config) == FULL
        siblings = set(filter(None, metafunc.config.getoption("--siblings").split(",")))
        rows = set(filter(None, metafunc.config.getoption("--rows").split(","))) or BY_NAME.keys()
        shared = OF_THE_FIRST if _effort(metafunc.config) == THIN else set()
        cases = [
            pytest.param(spec, check, id=f"{id_}-{check}")
            for spec, id_ in _specs(every=every or bool(siblings))
            if spec.kernel in rows
            for check in ALL_CHECKS
            if _applies(check, spec)
            and (every or check in siblings or spec.kernel not in SIBLINGS)
            and (check not in shared or not KIN.get(spec.kernel))
        ]
        metafunc.parametrize(("subject", "check"), cases, indirect=["subject"], scope="session")


RECORDINGS = {"recorded", "beside_cublas"}
"""Fixtures that run a benchmark."""


def _smoke_group(item, absent):
    """What --smoke runs one case of, for `item`; None if it is slow, or of a kernel that is `absent`."""
    if item.get_closest_marker("slow") or RECORDINGS & {*item.fixturenames}:
        return None
    given = item.callspec.params if hasattr(item, "callspec") else {}
    spec = given.get("subject")
    if isinstance(spec, Spec):  # each kernel at its edges, and each check on one kernel of each target
        name = spec.kernel if given["check"] == "tile_edges" else BY_NAME[spec.kernel].target
        return (name, given["check"]) if spec.device and not spec.variant else None
    if any(isinstance(value, Kernel) and value.backend == "cpu" and value.name in absent for value in given.values()):
        return None
    return item.nodeid.partition("[")[0]


def pytest_collection_modifyitems(config, items):
    """With --smoke: the first case of each test, unless it is slow, and a part of the conformance suite."""
    if not config.getoption("--smoke"):
        return
    first, absent = {}, {status.name for status in gemm.kernels() if not status.available}
    for item in items:
        if (group := _smoke_group(item, absent)) is not None:
            first.setdefault(group, item)
    config.hook.pytest_deselected(items=[item for item in items if item not in {*first.values()}])
    items[:] = first.values()


@pytest.fixture(scope="session")
def subject(request):
    """The kernel of the test's parameter, reached through `gemm.gemm`; skips, or fails if required, when absent."""
    spec = request.param
    if spec.device is None:
        _absent(spec.kernel, request.config)
    return make_subject(spec, request.config)


def cramped(call, limits):
    """`call` on a device with little memory. Plans for one size of the memory are forgotten before those for the other.

    The limits change for each call, because the last subject of a session lives while other modules are tested.
    """

    def called(*operands, **options):
        plan_cache.forget()
        try:
            with patch.dict(limits, CRAMPED):
                return call(*operands, **options)
        finally:
            plan_cache.forget()

    return called


def make_subject(spec, config):
    row = BY_NAME[spec.kernel]
    dtype = np.dtype("u" * (spec.variant == "unsigned") + spec.dtype)
    options = {"kernel": row.name, "backend": spec.device, "precision": row.precision}

    def call(*operands, **more):
        return gemm.gemm(*operands, **options, **more)

    if spec.variant == "pyopencl":
        call = resident(call, PyOpenCL(_device(spec).handle.cl_device))
    elif spec.variant == "interface":
        call = resident(call, CudaInterface(_device(spec)))
    elif spec.variant == "cupy":
        call = resident(call, CuPy())
    elif spec.variant == "torch":
        call = resident(call, Torch(str(spec.device)))
    elif spec.variant == "cramped":
        call = cramped(call, _device(spec).limits)
    elif spec.variant == "prepared":
        call = prepared(row.name, row.precision, call)
    elif spec.variant == "pending":
        call = pending(call)
    elif spec.variant == "apart":
        call = patch.object(Launcher, "enqueue", apart(Launcher.enqueue))(call)
    if spec.inputs:  # on the host, before they go to a device
        call = narrowed(call, spec.inputs, spec.dtype)
    if spec.variant == "unsigned":
        call = unsigned(call, dtype)
    elif spec.variant == "repeated":
        call = repeated(call)
    return Subject(
        name=row.name, call=call, dtype=dtype, inputs=spec.inputs, ordered=row.ordered,
        always=row.ordered and row.backend in ("cpu", "cuda") and not {"parts", "ordered_form"} & row.params.keys(),
        precision=row.precision, params=blocked(row), slow=row.backend in ("opencl", "cuda"),
        effort=THIN if (spec.variant or row.name in SIBLINGS) and _effort(config) != FULL else _effort(config),
        kin=KIN.get(row.name, 0) or int(bool(spec.variant) or row.name in SIBLINGS),
    )  # fmt: skip


def _absent(kernel, config):
    status = next(status for status in gemm.kernels() if status.name == kernel)
    required = _required(config)
    gone = gemm.backends()[status.backend]
    if required & {status.name, status.target} or (status.backend in required and gone):
        pytest.fail(f"required, but {status.reason or 'ml_dtypes is not installed'}", pytrace=False)
    pytest.skip(status.reason or "ml_dtypes is not installed")


class KernelReport:
    """Counts the outcomes of each kernel's tests; xdist's workers send theirs to the controller."""

    def __init__(self, config):
        self._file = config.getoption("--kernel-report")
        self._worker = hasattr(config, "workerinput")
        self._counts = defaultdict(lambda: {"passed": 0, "failed": 0, "skipped": 0, "reason": ""})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        spec = getattr(item, "callspec", None) and item.callspec.params.get("subject")
        if isinstance(spec, Spec):
            item.user_properties.append(("kernel", spec.kernel))

    def pytest_runtest_logreport(self, report):
        kernel = dict(report.user_properties).get("kernel")
        if kernel is None or (report.when != "call" and report.outcome == "passed"):
            return
        counts = self._counts[str(kernel)]
        counts[report.outcome] += 1
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            counts["reason"] = report.longrepr[2].removeprefix("Skipped: ")

    def pytest_sessionfinish(self):
        if self._file is not None and not self._worker:
            order = [row.name for row in KERNELS]
            counts = {name: self._counts[name] for name in order if name in self._counts}
            self._file.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")


@pytest.fixture(params=["late", "early"])
def emulated_gpu(request, monkeypatch):
    """The emulated GPU, whose copies and products happen as late, or as early, as they may."""
    emulate(monkeypatch, ASYNC=request.param)
    monkeypatch.setattr(registry, "backend", cache(registry.backend.__wrapped__))  # other tests keep theirs
    execute.forget()
    yield registry.backend("cuda").devices()[0]
    execute.forget()
    forget_drivers()


@pytest.fixture(scope="session")
def machine():
    """The emulated GPU without the package: a process has one."""
    if sys.platform != "linux":
        pytest.skip("the emulated CUDA machine needs Linux")
    try:
        return Machine()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the emulated machine is not built here: {error}")


@pytest.fixture
def plain_settings(monkeypatch):
    """Nothing of the emulated GPU is set but its capability."""
    for name in ("DEVICES", "SMS", "MEMORY", "SEED", "ASYNC", "STREAMS", "FAIL", "STICKY", "LOG", "SUM", "RACES"):
        monkeypatch.delenv(f"CUDA_MACHINE_{name}", raising=False)
    monkeypatch.setenv("CUDA_MACHINE_CAPABILITY", "9.0")


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """The package's cache, which is empty."""
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "cache"))
    disk_cache.cache_dir.cache_clear()
    yield tmp_path / "cache"
    disk_cache.cache_dir.cache_clear()


@pytest.fixture
def settled(monkeypatch):
    """What the plan cache recognises does not depend on the moment or on the speed of this machine.

    No search for devices and no verification ends in the middle of the test, because their ends make the plan cache
    forget its products. `auto` does not choose NumPy's BLAS, whatever speed it measured here: the plan cache repeats
    NumPy's products in Python, and does not merge them. No product is timed to correct predictions: if this machine has
    several OpenCL devices of similar speed, the plan cache does not repeat products that are timed.
    """
    monkeypatch.setattr(candidates, "LEAD", math.inf)
    monkeypatch.setenv("GEMM_ADAPT", "0")
    verification.forget_choices()
    probe.facts()
    for errand in list(worker._running.values()):
        with suppress(Exception):
            errand.wait()
    with worker.waiting():
        yield


@pytest.fixture
def waited(settled, monkeypatch):
    """How many products waited, flush by flush."""
    counts = []
    real, at_once = Batch.deliver, Batch.at_once

    def deliver(self):
        if len(self):
            counts.append(len(self))
        real(self)

    def counted(self, key, scales, count, columns):
        results = at_once(self, key, scales, count, columns)
        counts.extend([count] * (results is not None))
        return results

    monkeypatch.setattr(Batch, "deliver", deliver)
    monkeypatch.setattr(Batch, "at_once", counted)
    return counts
