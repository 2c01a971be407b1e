"""gemm info --check: each fault that is planted is found, with its remedy; and errors name sections that are there."""

import ast
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from helpers import remember

import gemm
from gemm.backends.opencl import backend as opencl_backend
from gemm.cli import main
from gemm.cli.checks import Finding, drivers, installation
from gemm.cli.info import CHECKS
from gemm.core import disk_cache, errors
from gemm.core.engine import engine
from gemm.select import probe, worker

ROOT = Path(__file__).resolve().parents[2]
linux = pytest.mark.skipif(sys.platform != "linux", reason="drivers are told of by files")
Usage = namedtuple("Usage", "total used free")


def only(found):
    """The one thing that a check has found."""
    (finding,) = found
    return finding


@pytest.mark.parametrize(
    ("name", "value", "what", "remedy"),
    [
        ("GEMM_NUM_THREAD", "2", "nothing reads it", "Set GEMM_NUM_THREADS instead"),
        ("GEMM_WHATEVER", "2", "nothing reads it", "Unset it; these are read: GEMM_NUM_THREADS, "),
        ("GEMM_NUM_THREADS", "many", "positive integer, not 'many'", "Correct"),
        ("GEMM_PROBE_TIMEOUT", "-1", "positive number of seconds, not '-1'", "Correct"),
        ("GEMM_ADAPT", "maybe", "GEMM_ADAPT must be 0 or 1, not 'maybe'", "Correct"),
        ("GEMM_LIBCUDA", "/no/libcuda.so", "/no/libcuda.so, which is not a file", "Correct"),
        ("GEMM_CPU_CACHES", "1,2", "GEMM_CPU_CACHES=1,2 does not describe three caches", "Set it to KiB of L1"),
        ("GEMM_CPU_ISA", "avx9", "GEMM_CPU_ISA=avx9 names no target", "Set it to one of"),
    ],
)
def test_variables(monkeypatch, name, value, what, remedy):
    for variable in [variable for variable in os.environ if variable.startswith("GEMM_")]:
        monkeypatch.delenv(variable)
    assert not list(installation.variables())
    monkeypatch.setenv(name, value)
    finding = only(installation.variables())
    assert what in finding.what
    assert remedy in finding.remedy
    assert finding.about == "variables"


def test_versions(monkeypatch):
    assert not list(installation.versions())
    monkeypatch.setattr(metadata, "requires", lambda _: ["numpy>=99", "nothing-like-it>=1", 'rich; extra == "bench"'])
    old, missing = installation.versions()
    assert re.match(r"numpy \d\S* is too old", old.what)
    assert old.remedy == 'pip install -U "numpy>=99"'
    assert missing.what == "nothing-like-it is not installed"
    monkeypatch.setattr(metadata, "requires", lambda _: [])
    monkeypatch.setattr(installation, "VERSION", "0.0.1")
    assert "gemm 0.0.1 runs" in only(installation.versions()).what


@pytest.mark.parametrize(
    ("versions", "older"), [(("1.25", "1.25.0"), False), (("1.9", "1.25"), True), (("2.0rc1", "2"), False)]
)
def test_versions_are_compared_by_numbers(versions, older):
    assert (installation._numbers(versions[0]) < installation._numbers(versions[1])) is older


class TestCache:
    def test_a_good_one(self, cache_folder):
        assert not list(installation.cache())
        assert not list(cache_folder.iterdir())

    @pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
    def test_one_that_others_may_write_to(self, cache_folder):
        cache_folder.mkdir()
        cache_folder.chmod(0o777)
        finding = only(installation.cache())
        assert "others may write" in finding.what
        assert finding.remedy == f"chmod 700 {cache_folder}"

    def test_a_link(self, cache_folder, tmp_path):
        (tmp_path / "real").mkdir()
        cache_folder.symlink_to(tmp_path / "real")
        assert "is a link" in only(installation.cache()).what

    def test_one_that_cannot_be_made(self, cache_folder):
        cache_folder.write_text("a file")
        assert "GEMM_CACHE_DIR" in only(installation.cache()).remedy

    def test_a_read_only_one(self, cache_folder, monkeypatch):
        monkeypatch.setattr(os, "access", lambda *_: False)  # root may write to anything
        assert "is read-only" in only(installation.cache()).what

    def test_a_full_disk(self, cache_folder, monkeypatch):
        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100, 100, 0))
        few, none = installation.cache()
        assert "0 MiB left" in few.what
        assert "nothing can be stored" in none.what

    def test_damaged_entries(self, cache_folder):
        assert not list(installation.cache())
        (cache_folder / "torn.bin").write_bytes(b"gemm1\n...")
        disk_cache.store("whole", b"data")
        finding = only(installation.cache())
        assert (finding.severity, finding.remedy) == ("warning", f"rm {cache_folder / 'torn.bin'}")

    @pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
    def test_pyopencls(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        (tmp_path / "pyopencl").mkdir(mode=0o700)
        assert not list(installation.caches_of_others())
        (tmp_path / "pyopencl").chmod(0o777)
        assert str(tmp_path / "pyopencl") in only(installation.caches_of_others()).what


class TestProcessors:
    def test_a_whole_engine(self):
        assert not [finding for finding in installation.engine() if finding.severity != "note"]

    def test_no_engine(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "gemm._cpu", None)
        finding = only(installation.engine())
        assert "gemm._cpu" in finding.what
        assert "pip install" in finding.remedy

    def test_without_a_gil_the_extension_is_not_there(self, monkeypatch):
        def missing(name):
            raise ImportError(name)

        monkeypatch.setattr(installation.importlib, "import_module", missing)
        monkeypatch.setattr(installation, "features", frozenset)
        monkeypatch.setattr(installation, "load", lambda: SimpleNamespace(lib=Mock()))
        for free_threaded, count in ((0, 1), (1, 0)):
            monkeypatch.setattr(installation.sysconfig, "get_config_var", {"Py_GIL_DISABLED": free_threaded}.get)
            assert len([x for x in installation.engine() if "C extension" in x.what]) == count

    def test_an_old_engine_on_a_plain_cpu(self, monkeypatch):
        monkeypatch.setattr(installation, "features", frozenset)
        monkeypatch.setattr(installation, "load", lambda: SimpleNamespace(lib=SimpleNamespace(sgemm_scalar_4x4=1)))
        old, plain = installation.engine()
        assert "lacks dgemm_scalar_4x4" in old.what
        assert plain.severity == "note"

    def test_threads(self, monkeypatch):
        monkeypatch.delenv("GEMM_NUM_THREADS", raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda: 16)
        monkeypatch.setattr(installation.granting, "affinity", lambda: 8)
        monkeypatch.setattr(installation.granting, "cores", lambda: 4)
        gemm.set_num_threads(4)
        try:
            affinity, quota = installation.threads()
            assert "8 of 16 CPUs" in affinity.what
            assert "the time of 4 of 8 CPUs" in quota.what
            assert {affinity.severity, quota.severity} == {"note"}
            monkeypatch.setenv("GEMM_NUM_THREADS", "32")
            assert "GEMM_NUM_THREADS=32" in [*installation.threads()][2].what
            monkeypatch.delenv("GEMM_NUM_THREADS")
            gemm.set_num_threads(1)
            assert "one thread, 4 are granted" in [*installation.threads()][2].what
        finally:
            gemm.set_num_threads(None)


class TestDrivers:
    @linux
    def test_permissions(self, tmp_path, monkeypatch):
        (tmp_path / "renderD128").touch()
        monkeypatch.setattr(drivers, "GPUS", (str(tmp_path / "renderD*"),))
        assert not list(drivers.permissions())
        monkeypatch.setattr(os, "access", lambda *_: False)
        monkeypatch.setattr(drivers, "_group", lambda _: "render")
        finding = only(drivers.permissions())
        assert "renderD128" in finding.what
        assert finding.remedy.startswith("usermod -aG render")

    def test_android(self, tmp_path, monkeypatch):
        assert not list(drivers.android())
        monkeypatch.setenv("PREFIX", "/data/data/com.termux/files/usr")
        monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
        monkeypatch.setattr(drivers, "PHONE", str(tmp_path))
        assert only(drivers.android()).severity == "note"
        (tmp_path / "libOpenCL.so").touch()
        finding = only(drivers.android())
        assert finding.remedy == f"export LD_LIBRARY_PATH={tmp_path}:$PREFIX/lib"
        monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:/data/data/com.termux/files/usr/lib")
        assert not list(drivers.android())

    @linux
    def test_files_of_drivers(self, tmp_path, monkeypatch):
        monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path / "nowhere"))
        assert "OCL_ICD_VENDORS names" in only(drivers.installed()).what
        monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
        (tmp_path / "empty.icd").touch()
        (tmp_path / "gone.icd").write_text("libgone.so\n")
        (tmp_path / "here.icd").write_text("libc.so.6\n")
        empty, gone = drivers.installed()
        assert "empty.icd is empty" in empty.what
        assert "cannot open shared object file" in gone.why
        assert str(tmp_path / "gone.icd") in gone.remedy

    @linux
    @pytest.mark.skipif(not shutil.which("gcc"), reason="builds a shared library")
    @pytest.mark.parametrize(("fault", "words"), [("abort();", "status -6"), ("for (;;) sleep(1);", "hung")])
    def test_a_driver_that_ends_its_process(self, tmp_path, monkeypatch, fault, words):
        code, library = tmp_path / "bad.c", tmp_path / "bad.so"
        code.write_text(
            f"#include <stdlib.h>\n#include <unistd.h>\n"
            f"__attribute__((constructor)) static void load(void) {{ {fault} }}\n"
        )
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, code], check=True)
        (tmp_path / "bad.icd").write_text(str(library))
        monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
        monkeypatch.setenv("GEMM_PROBE_TIMEOUT", "3")
        monkeypatch.setattr(worker, "STARTING", 3.0)
        assert words in only(drivers.installed()).why
        found = {finding.what.partition(":")[0]: finding for finding in drivers.devices()}["opencl"]
        assert (found.severity, found.about) == ("error", "misbehaving")
        assert "in a child process" in found.what

    @pytest.mark.parametrize(
        ("line", "files", "severity", "about"),
        [
            ({"backend": "cuda", "cause": "the driver does not load"}, [], "note", "cuda"),
            ({"backend": "cuda", "cause": "the driver does not load"}, ["renderD128"], "note", "cuda"),
            ({"backend": "cuda", "cause": "the driver does not load"}, ["nvidia0"], "error", "cuda"),
            ({"backend": "opencl", "cause": "no OpenCL platform"}, ["renderD128"], "error", "opencl"),
            ({"backend": "cuda", "cause": "the driver is made for CUDA 12.4, NVRTC for 13"}, [], "error", "cuda"),
            ({"backend": "opencl", "cause": "pyopencl cannot be imported: no"}, [], "error", "opencl"),
            ({"backend": "opencl", "cause": "this CPU is newer than PoCL's compiler"}, [], "error", "cpus"),
        ],
    )
    def test_devices(
        self, tmp_path, monkeypatch, line, files, severity,
        about,
    ):  # fmt: skip
        for name in files:
            (tmp_path / name).touch()
        monkeypatch.setattr(drivers, "GPUS", (str(tmp_path / "*"),))
        line = {"step": "unavailable", **line, "remedy": "do that"}
        monkeypatch.setattr(probe, "look", lambda: probe.Facts([line]))
        finding = only(drivers.devices())
        remedy = "do that" if severity == "error" else ""  # nothing is wrong, so there is nothing to do
        assert (finding.severity, finding.about, finding.remedy) == (severity, about, remedy)
        assert finding.what == f"{line['backend']}: {line['cause']}"

    @pytest.mark.parametrize(
        ("cause", "machine", "severity"),
        [
            ("No module named 'pyopencl'", "ARM64", "note"),
            ("No module named 'pyopencl'", "x86_64", "error"),
            ("DLL load failed while importing _cl", "ARM64", "error"),
        ],
    )
    def test_pyopencl_is_missing(self, tmp_path, monkeypatch, cause, machine, severity):
        (tmp_path / "renderD128").touch()
        monkeypatch.setattr(drivers, "GPUS", (str(tmp_path / "*"),))
        monkeypatch.setattr(drivers.platform, "machine", lambda: machine)
        cause = f"pyopencl cannot be imported: {cause}"
        line = {"step": "unavailable", "backend": "opencl", "cause": cause, "remedy": "do that"}
        monkeypatch.setattr(probe, "look", lambda: probe.Facts([line]))
        finding = only(drivers.devices())
        assert (finding.severity, finding.remedy) == (severity, "do that" if severity == "error" else "")

    def test_kernels_that_failed(self, monkeypatch):
        lines = [
            {"step": "kernel", "kernel": name, "device": "opencl:0", "ok": name == "good", "error": "off\nby one"}
            for name in ("good", "wrong", "worse")
        ]
        remember(monkeypatch, probe.Facts(lines))
        monkeypatch.setitem(probe.recalled, probe.entry("verified"), None)
        finding = only(drivers.verification())
        assert finding.what == "2 kernels fail on opencl:0; wrong: off"


class TestCommand:
    def planted(self, monkeypatch, *findings):
        monkeypatch.setattr("gemm.cli.info.CHECKS", {"planted": lambda: iter(findings), "engine": installation.engine})

    def test_nothing_is_wrong(self, monkeypatch, capsys):
        self.planted(monkeypatch, Finding("note", "no GPU", "nothing needs one", "", "cuda"))
        assert main(["info", "--check"]) == 0
        shown = capsys.readouterr().out
        assert "\n  i no GPU\n" in shown  # no sign of a fault
        assert shown.endswith("Nothing is wrong\n")

    def test_lines_fit_the_terminal(self, monkeypatch, capsys):
        long = " ".join(["words"] * 30)
        self.planted(monkeypatch, Finding("error", long, long, long, "cache"))
        monkeypatch.setenv("COLUMNS", "60")
        assert main(["info", "--check"]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 60
        assert sum(line.count("words") for line in lines) == 90

    def test_something_is(self, monkeypatch, capsys):
        self.planted(monkeypatch, Finding("warning", "what", "why", "do that", "cache"))
        assert main(["info", "--check"]) == 1
        shown = capsys.readouterr().out
        assert "! what\n      why\n      remedy: do that\n      docs/doctor.md#cache\n" in shown
        assert shown.endswith("One thing is wrong\n")

    def test_json(self, monkeypatch, capsys, tmp_path):
        self.planted(monkeypatch, Finding("error", "what", "why", "do that", "cache"))
        assert main(["info", "--check", "--json"]) == 1
        told = json.loads(capsys.readouterr().out)
        assert told["wrong"] == 1
        assert told["checks"]["planted"] == [
            {"severity": "error", "what": "what", "why": "why", "remedy": "do that", "docs": "docs/doctor.md#cache"}
        ]
        assert main(["info", "--check", "--json", str(tmp_path / "told.json")]) == 1
        assert json.loads((tmp_path / "told.json").read_text()) == told

    def test_a_wrong_environment_is_a_finding(self, monkeypatch, capsys):
        monkeypatch.setenv("GEMM_PROBE_TIMEOUT", "soon")
        monkeypatch.setattr("gemm.cli.info.CHECKS", {"variables": installation.variables})
        assert main(["info", "--check"]) == 1
        assert "not 'soon'" in capsys.readouterr().out

    def test_the_former_command_names_the_new_one(self, capsys):
        assert main(["doctor", "--json"]) == 2
        assert "use gemm info --check" in capsys.readouterr().err

    def test_one_question_at_a_time(self, capsys):
        assert main(["info", "--check", "--cc"]) == 2
        assert "--cc and --check exclude each other" in capsys.readouterr().err

    def test_every_check_here(self, cache_folder, capsys):
        status = main(["info", "--check", "--json"])
        report = json.loads(capsys.readouterr().out)
        assert list(report["checks"]) == list(CHECKS)
        assert status == (report["wrong"] > 0)


def anchors(page):
    """The sections of a page of docs/, as links name them."""
    heads = re.findall(r"^#+ (.*)$", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("about", errors.PAGES)
def test_sections_that_errors_name_are_there(about):
    page, _, anchor = errors.PAGES[about].partition("#")
    assert anchor in anchors(page)


def test_what_errors_and_findings_are_about_has_a_section():
    asked = set()
    for path in Path(gemm.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("link", "Finding"):
                asked |= {at.value for at in call.args[-1:] if isinstance(at, ast.Constant)}
    assert {"cache", "variables", "misbehaving", "permissions"} <= asked <= errors.PAGES.keys()


class TestLinks:
    def test_an_error_names_its_section_once(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "gemm._cpu", None)
        with pytest.raises(gemm.BackendUnavailable, match=r"\(docs/doctor\.md#engine\)$") as raised:
            engine()
        assert str(raised.value).count("docs/") == 1
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)

    def test_a_kernel_has_the_page_of_devices(self):
        error = gemm.BackendUnavailable("sgemm_some_8x8", "no device")
        assert str(error) == "sgemm_some_8x8: no device (docs/devices.md#getting-a-device-to-work)"

    def test_the_projects_address_is_used_if_it_has_one(self, monkeypatch):
        urls = ["Homepage, https://example.org", "Documentation, https://example.org/docs/"]
        monkeypatch.setattr(metadata, "metadata", lambda _: SimpleNamespace(get_all=lambda _: urls))
        errors._documentation.cache_clear()
        try:
            assert errors.link("cuda") == "https://example.org/docs/devices.md#nvidia"
        finally:
            errors._documentation.cache_clear()

    def test_pocl_that_is_too_old(self, monkeypatch):
        cl = pytest.importorskip("pyopencl")
        device = SimpleNamespace(name="cpu", version="OpenCL 3.0 PoCL HSTR: cpu-x86_64-pc-linux-gnu-generic")
        platform = SimpleNamespace(version="PoCL 3.1", get_devices=lambda: [device])
        monkeypatch.setattr(cl, "get_platforms", lambda: [platform])
        with pytest.raises(gemm.BackendUnavailable, match="newer PoCL") as raised:
            opencl_backend.discover()
        assert "Intel's runtime" in raised.value.remedy
