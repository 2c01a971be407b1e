"""Kernels that are verified when they are first to be chosen: once, in a child process, and never chosen unverified."""

import importlib.util
import json
import os
import re
import shutil
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import python

import gemm
from gemm.backends import registry
from gemm.catalog import BY_NAME, KERNELS
from gemm.core import disk_cache
from gemm.core.problem import Device
from gemm.select import probe, tuning_db, verification

BACKEND = """
import os, sys, time
from gemm.core.backend import Backend
from gemm.core.problem import Device

class Late(Backend):
    name = "late"
    def devices(self):
        if os.environ.get("GONE") and os.environ["PARENT"] != str(os.getpid()):
            self.left_out = {"late:0": "it is out of memory"}
            return ()
        return (Device("late", "late:0", "a device", driver=os.environ.get("DRIVER", "1"), kind="gpu"),)
    def launcher(self, kernel, device, problem):
        with open(os.environ["LAUNCHES"], "a") as file:
            print(os.getpid(), kernel.name, file=file)
        fault = os.environ.get("FAULT", "") if kernel.name == "sgemm_late_fast" else ""
        if fault == "crash": os.abort()
        if fault == "hang": time.sleep(600)
        if problem.reproducible and kernel.name == "sgemm_late_slow":
            from gemm.backends import registry
            cpu = registry.backend("cpu")
            return cpu.launcher(sys.modules["gemm.catalog"].BY_NAME["sgemm_scalar_4x4"], cpu.devices()[0], problem)
        def launch(a, b, c, out, alpha, beta):
            out[...] = alpha * (a @ b) + (0 if c is None else beta * c)
            if fault == "garbage": out += 1
        return launch
"""
CUSTOMIZE = """
import sys
import gemm.catalog as catalog
for name in ("opencl", "cuda"):
    del catalog.BACKENDS[name]
catalog.BACKENDS["late"] = "late:Late"
import os
import gemm.core.disk_cache
from pathlib import Path
gemm.core.disk_cache._ROOT = Path(os.environ.get("SOURCES", gemm.core.disk_cache._ROOT))
source = catalog.BY_NAME[os.environ.get("SOURCE_OF", "sgemm_generic_naive")].source  # wheels carry it, too
rows = [catalog.Kernel(f"sgemm_late_{form}", "late", "late", "float32", source, ordered="ORDERED" in os.environ,
                       lazy_verify=True, gflops=gflops)
        for form, gflops in (("fast", 1e6), ("slow", 1e5))]
rows = (*[row for row in catalog.KERNELS if row.name == "sgemm_scalar_4x4"], *rows)
names = {"KERNELS": rows, "BY_NAME": {row.name: row for row in rows}, "TARGETS": {row.target for row in rows}}
for module in [module for name, module in sys.modules.items() if name.startswith("gemm")]:
    vars(module).update({name: value for name, value in names.items() if hasattr(module, name)})
"""
PRODUCT = """
import json, logging, os, sys
import numpy as np, gemm
logging.basicConfig()
a = np.ones((64, 64), np.float32)
options = json.loads(os.environ.get("OPTIONS", "{}"))
first, second = gemm.plan(a, a, backend="late", **options), gemm.plan(a, a, backend="late", **options)
assert (first(a, a) == 64).all()
untrusted = {row.name: why for row in gemm.kernels() for why in row.untrusted.values()}
print(json.dumps([os.getpid(), first.kernel, second.kernel, untrusted]))
"""


REFUSED = """
import json, logging, os, sys
import numpy as np, gemm
from gemm.core.errors import BackendUnavailable
logging.basicConfig()
os.environ["PARENT"] = str(os.getpid())
a = np.ones((64, 64), np.float32)
try:
    gemm.plan(a, a, backend="late")
except BackendUnavailable as error:
    print(json.dumps([os.getpid(), str(error), str(error), {}]))
    sys.exit(0)
raise AssertionError("it was not refused")
"""
VERIFY = """
import math, time
from gemm.backends import registry
from gemm.catalog import BY_NAME
from gemm.backends import registry
from gemm.select import verification, probe
probe.facts()
kernels = [BY_NAME[f"sgemm_late_{form}"] for form in ("slow", "fast", "slow")]
device, = registry.backend("late").devices()
verification.verify(kernels, device, -math.inf)
assert not any(verification.record(kernel, device) for kernel in kernels)
verification.verify(kernels, device, math.inf)
"""


@pytest.fixture
def product(tmp_path):
    """Runs PRODUCT: (kernel chosen, {kernel: (how often launched here, how often in a child)}, untrusted ones, log)."""
    (tmp_path / "late.py").write_text(BACKEND)
    (tmp_path / "sitecustomize.py").write_text(CUSTOMIZE)

    def run(before="", **environment):
        log = tmp_path / "launches"
        log.write_text("")
        told = python(
            before + PRODUCT, path=tmp_path, GEMM_CACHE_DIR=tmp_path / "cache", LAUNCHES=log, GEMM_PROBE_TIMEOUT="5",
            **environment,
        )  # fmt: skip
        (line,) = [line for line in told.splitlines() if line.startswith("[")]
        process, first, second, untrusted = json.loads(line)
        assert first == second
        launched = {}
        for line in log.read_text().splitlines():
            number, name = line.split()
            here, there = launched.get(name, (0, 0))
            launched[name] = (here + 1, there) if int(number) == process else (here, there + 1)
        return first, launched, untrusted, told

    return run


def test_a_kernel_is_verified_in_a_child_when_it_is_first_chosen_and_never_again(product):
    kernel, launched, untrusted, _ = product()
    here, there = launched["sgemm_late_fast"]
    assert kernel == "sgemm_late_fast"
    assert here == 1
    assert there > 1
    assert "sgemm_late_slow" not in launched  # what is not to be chosen is not waited for
    assert not untrusted
    again, launched, _, _ = product()
    assert again == kernel
    assert launched == {"sgemm_late_fast": (1, 0)}
    _, launched, _, _ = product(DRIVER="2")  # which is another matter
    assert launched["sgemm_late_fast"][1] > 1


def test_a_kernel_whose_source_changed_is_another_one(product):
    """What was found of the old one, good or bad, says nothing of it."""
    product()
    kernel, _, untrusted, _ = product(SOURCE_OF="sgemm_generic_panel_4x24", FAULT="garbage")
    assert kernel == "sgemm_late_slow"
    assert "failed verification" in untrusted["sgemm_late_fast"]
    kernel, launched, untrusted, _ = product()
    assert kernel == "sgemm_late_fast"
    assert launched["sgemm_late_fast"][1] > 1
    assert not untrusted


def test_a_kernel_whose_header_changed_is_another_one(product, tmp_path):
    for tree in disk_cache.TREES:
        shutil.copytree(disk_cache._ROOT / tree, tmp_path / tree)
    options = {"SOURCES": str(tmp_path), "SOURCE_OF": "bgemm_cuda_wgmma_128x256"}
    product(**options)
    assert product(**options)[1] == {"sgemm_late_fast": (1, 0)}
    with (tmp_path / "csrc/cuda/hopper.cuh").open("a") as file:
        file.write("/* cured */\n")
    kernel, launched, _, _ = product(**options)
    assert kernel == "sgemm_late_fast"
    assert launched["sgemm_late_fast"][1] > 1


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The sources in a folder where they may be changed; fingerprints are taken anew."""
    for tree in disk_cache.TREES:
        shutil.copytree(disk_cache._ROOT / tree, tmp_path / tree)
    caches = disk_cache.read, disk_cache.headers, disk_cache.state, tuning_db.fingerprint, probe.entry
    monkeypatch.setattr(disk_cache, "_ROOT", tmp_path)

    def anew():
        for each in caches:
            each.cache_clear()

    anew()
    yield tmp_path, anew
    monkeypatch.undo()
    anew()


def included(root, path):
    """The names of all that a source file includes, in whatever form, itself included."""
    found, new = set(), {root / path}
    while new:
        found |= new
        names = {name for file in new for name in re.findall(r'#\s*include\s*["<]([^">]+)', file.read_text())}
        new = {file for name in names for file in root.rglob(name) if file.parent in (root / path).parents} - found
    return found


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cuda", "opencl"])
def test_records_are_of_every_file_that_a_kernel_is_made_of(copied, backend):
    """A change of any file changes the fingerprints of just the rows that include it, and the probe's key."""
    root, anew = copied
    rows = [row for row in KERNELS if row.backend == backend]
    uses = {row: included(root, row.source) for row in rows}
    tree = "csrc/cuda" if backend == "cuda" else "kernels/opencl"
    helpers = set((root / tree).rglob("*.c[lu]")) - {root / row.source for row in rows}
    assert helpers
    for file in helpers:
        helped = included(root, file.relative_to(root))
        for row in rows:
            uses[row] |= helped
    assert all(any(file.suffix in (".cuh", ".clh") for file in files) for files in uses.values())
    for file in sorted(set().union(*uses.values())):
        before, key = {row: tuning_db.fingerprint(row) for row in rows}, probe.entry()
        with file.open("a") as opened:
            opened.write("/* cured */\n")
        anew()
        changed = {row for row in rows if tuning_db.fingerprint(row) != before[row]}
        assert changed == {row for row in rows if file in uses[row]}, file
        assert probe.entry() != key, file


def test_records_of_the_cpu_are_of_one_build(copied, tmp_path, monkeypatch):
    """No library of it is read, as that would take longer than a small product: a build has a size and a time."""
    _, anew = copied
    row, built = next(row for row in KERNELS if row.backend == "cpu"), tmp_path / "engine.so"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace(origin=str(built)))
    seen = set()
    for content in (b"one", b"another", b"another"):
        built.write_bytes(content)
        os.utime(built, ns=(len(seen), len(seen)))
        anew()
        seen.add((tuning_db.fingerprint(row), probe.entry()))
    assert len({first for first, _ in seen}) == len({second for _, second in seen}) == 3
    built.unlink()
    anew()
    assert tuning_db.fingerprint(row) not in {first for first, _ in seen}


def test_rows_of_a_type_that_numpy_lacks_are_not_verified(monkeypatch):
    """They are no faults of the CPU. Once ml_dtypes is there, the probe runs again."""
    pytest.importorskip("ml_dtypes")
    (device,) = registry.backend("cpu").devices()

    def known():
        probe.entry.cache_clear()
        return {row.dtype for row in probe._variants("cpu", device)}, probe.entry()

    with_it, key = known()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    without, other = known()
    assert with_it - without == {"bfloat16"}
    assert key != other
    monkeypatch.undo()
    assert known() == (with_it, key)


def test_the_name_of_an_entry_looks_once_for_ml_dtypes(monkeypatch):
    """A process computes the name before its first product: looking for each row took 4 ms."""
    asked = []
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: asked.append(name) or found(name))
    probe.entry.cache_clear()
    probe.entry()
    assert asked.count("ml_dtypes") == 1


def test_a_device_that_a_child_cannot_use_says_nothing_of_its_kernels(product):
    """They are done without in this process, which says why; the next one verifies them."""
    assert "it is out of memory" in product(before=REFUSED, GONE="1")[0]
    assert product()[0] == "sgemm_late_fast"


@pytest.mark.parametrize("fault", ["garbage", "crash", "hang"])
def test_a_kernel_that_fails_is_not_chosen_and_the_next_one_is(product, fault):
    kernel, launched, untrusted, log = product(FAULT=fault)
    assert kernel == "sgemm_late_slow"
    assert launched["sgemm_late_fast"][0] == 0  # never in this process
    assert "failed verification" in untrusted["sgemm_late_fast"]
    assert "gemm does without sgemm_late_fast on a device" in log
    again, launched, _, log = product(FAULT=fault)
    assert again == kernel
    assert launched == {"sgemm_late_slow": (1, 0)}
    assert "does without" not in log


@pytest.mark.skipif(gemm.backends()["cpu"] != "", reason="the engine is not built")
def test_products_with_reproducible_have_checks_of_their_own(product):
    """The fast kernel is right, but for the bits of reproducible=True; those of the slow one are right, too."""
    kernel, launched, untrusted, _ = product(ORDERED="1")
    _, there = launched["sgemm_late_fast"]
    assert (kernel, untrusted) == ("sgemm_late_fast", {})
    kernel, launched, untrusted, _ = product(ORDERED="1", OPTIONS='{"reproducible": true}')
    assert kernel == "sgemm_late_slow"
    assert launched["sgemm_late_fast"] == (0, there + 1)  # all checks again, and then the one that fails
    assert "ordered bits" in untrusted["sgemm_late_fast"]
    kernel, launched, _, _ = product(ORDERED="1")
    assert (kernel, launched) == ("sgemm_late_slow", {"sgemm_late_slow": (1, 0)})  # those of before included the rest


def test_a_kernel_that_is_named_runs_at_once(product):
    kernel, launched, _, _ = product(OPTIONS=json.dumps({"kernel": "sgemm_late_slow"}))
    assert kernel == "sgemm_late_slow"
    assert launched == {"sgemm_late_slow": (1, 0)}


@pytest.mark.parametrize("fault", ["", "garbage", "hang"])
def test_several_are_verified_side_by_side_and_each_has_its_own_fate(product, fault):
    kernel, launched, untrusted, log = product(before=VERIFY, FAULT=fault)
    assert kernel == ("sgemm_late_slow" if fault else "sgemm_late_fast")
    assert log.count("gemm does without") == bool(fault)
    assert list(untrusted) == (["sgemm_late_fast"] if fault else [])
    assert launched["sgemm_late_slow"][1] > 1
    assert launched["sgemm_late_fast"][1] >= 1
    again, launched, _, _ = product()
    assert again == kernel
    assert launched == {kernel: (1, 0)}  # all is known


ANSWERS = {
    "right, then it dies": [{"step": "kernel", "ok": True, "error": ""}, {"step": "died", "cause": "hung"}],
    "right": [{"step": "kernel", "ok": True, "error": ""}],
    "refused": [{"step": "refused", "cause": "did not start"}],
    "it dies": [{"step": "died", "cause": "hung"}],
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_the_answers_of_a_child_are_worth(answer, monkeypatch, tmp_path):
    """A child that dies after its answer has verified nothing; what was refused is asked again by the next process."""
    monkeypatch.setattr(disk_cache, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(probe, "recalled", probe.Recalled())
    kernel, device = BY_NAME["sgemm_generic_naive"], Device("opencl", "opencl:9", f"a device of {tmp_path}", driver="1")
    closed: list[str] = []
    child: Any = SimpleNamespace(ask=lambda *_: iter(ANSWERS[answer]), close=lambda: closed.append(answer))
    verification._verify(kernel, device, child)
    assert closed == ([] if answer == "right" else [answer])  # it verifies no other kernel after a failure
    found = verification.record(kernel, device)
    assert found is not None
    assert found["ok"] == (answer == "right")
    written = disk_cache.load(probe.entry("verified")) or b""
    assert (device.name.encode() in written) == (answer != "refused")


@pytest.mark.parametrize("right", [True, False])
def test_what_was_verified_with_the_ordered_bits_stays(right, monkeypatch, tmp_path):
    """Also if another process or thread has begun before to verify the kernel without them."""
    monkeypatch.setattr(disk_cache, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(probe, "recalled", probe.Recalled())
    kernel, device = BY_NAME["sgemm_generic_naive"], Device("opencl", "opencl:9", f"a device of {tmp_path}", driver="1")

    def ask(request, limit):
        if not request["ordered"]:
            verification._verify(kernel, device, child, ordered=True)
        yield {"step": "kernel", "ok": right or not request["ordered"], "error": ""}

    child: Any = SimpleNamespace(ask=ask, close=lambda: None)
    verification._verify(kernel, device, child, ordered=False)
    for _ in range(2):
        assert verification.record(kernel, device)["ok"] == right
        probe.recalled.clear()  # what is on disk says the same


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("failed", [True, False])
def test_a_failure_of_either_of_two_verifications_stays(first, failed):
    """`failed`: whether the one with the ordered bits failed. `first`: whether it was stored first."""
    about = {"step": "device", "device": "d"}
    both = [{"step": "kernel", "kernel": "k", "device": "d", "source": "s", "ok": ordered != failed, "ordered": ordered}
            for ordered in (first, not first)]  # fmt: skip
    lines = verification._merged(verification._merged([], about, both[0]), about, both[1])
    assert [line["ok"] for line in lines if line["step"] == "kernel"] == [False]


@pytest.mark.parametrize("ok", [True, False])
def test_what_was_verified_without_the_ordered_bits_is_not_known_with_them(ok, monkeypatch, tmp_path):
    """A kernel that failed is known to fail; a record of an earlier version says nothing of its ordered bits."""
    monkeypatch.setattr(disk_cache, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(probe, "recalled", probe.Recalled())
    kernel, device = BY_NAME["sgemm_generic_naive"], Device("opencl", "opencl:9", f"a device of {tmp_path}", driver="1")
    asked = []

    def ask(request, limit):
        asked.append(request["ordered"])
        return iter([{"step": "kernel", "ok": ok, "error": ""}])

    child: Any = SimpleNamespace(ask=ask, close=lambda: None)
    verification._verify(kernel, device, child, ordered=False)
    assert verification.record(kernel, device, ordered=False)["ok"] == ok
    assert (verification.record(kernel, device) is None) == ok
    verification._verify(kernel, device, child, ordered=True)
    assert all(verification.record(kernel, device, ordered=x)["ok"] == ok for x in (True, False))
    assert asked == [False, True]
    (line,) = [line for line in probe.recalled[probe.entry("verified")].lines if line["step"] == "kernel"]
    del line["ordered"]
    assert (verification.record(kernel, device) is None) == ok
