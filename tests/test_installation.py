"""The build of the package: what it says without a compiler, and what the package requires on which platform."""

import re
import subprocess
import sys
from pathlib import Path

import helpers
import pytest

from gemm.cli.checks import drivers

ROOT = Path(__file__).resolve().parents[1]
SENTENCE = "gemm compiles its C engine, and {}: install a C compiler and Python's headers (Debian, Ubuntu: apt-get"


def _build(*command, **environment):
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.skipif(sys.platform == "win32", reason="setuptools itself looks for the compiler on Windows")
@pytest.mark.parametrize("command", [["build.py"], ["build.py", "--library", "nowhere"], ["setup.py", "bdist_wheel"]])
def test_without_a_compiler_one_sentence_says_what_to_install(command, tmp_path):
    if command[0] == "setup.py":
        pytest.importorskip("setuptools")
    missing = _build(*command, PATH=str(tmp_path), CC="missing-cc -O2")
    assert missing.returncode == 1
    assert missing.stderr.startswith(SENTENCE.format("there is no compiler missing-cc"))
    assert missing.stderr.count("\n") == 1
    assert missing.stdout == ""

    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'headers.c:1:10: fatal error: stdio.h: No such file or directory' >&2\nexit 1\n")
    broken.chmod(0o755)
    fails = _build(*command, PATH=f"{tmp_path}:/usr/bin:/bin", CC="broken-cc")
    assert fails.returncode == 1
    cause = "broken-cc fails (headers.c:1:10: fatal error: stdio.h: No such file or directory)"
    assert fails.stderr.startswith(SENTENCE.format(cause))
    assert fails.stderr.count("\n") == 1


def test_without_pyopencl_the_backend_says_how_to_get_it():
    script = """import sys
sys.modules["pyopencl"] = None  # the import fails
from gemm.cli.checks import installation
from gemm.frontend import inventory
print(inventory.backend_facts("opencl")["cause"])
print(inventory.backend_facts("opencl")["remedy"])
print([finding.what for finding in installation.versions()])"""
    cause, remedy, findings = helpers.python(script).splitlines()
    assert cause.startswith("pyopencl cannot be imported")
    assert "pip install pyopencl" in remedy
    assert "docs/install.md" in remedy
    assert "pyopencl" not in findings


PLATFORMS = {
    ("linux", "x86_64"): True, ("linux", "aarch64"): True, ("darwin", "arm64"): True, ("darwin", "x86_64"): True,
    ("win32", "AMD64"): True, ("win32", "ARM64"): False, ("android", "aarch64"): False, ("linux", "armv7l"): False,
    ("linux", "i686"): False, ("linux", "ppc64le"): False, ("linux", "riscv64"): False, ("freebsd14", "amd64"): False,
}  # fmt: skip
"""{sys_platform and platform_machine: whether PyPI has wheels of pyopencl 2026.1.4 for it}."""


@pytest.mark.parametrize("platform", PLATFORMS)
def test_pyopencl_is_required_where_it_has_wheels(platform, monkeypatch):
    tomllib = pytest.importorskip("tomllib", reason="Python before 3.11 has no tomllib")
    requirements = pytest.importorskip("packaging.requirements")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {
        line.name: line.marker is None or line.marker.evaluate(dict(zip(NAMES, platform, strict=True)))
        for line in map(requirements.Requirement, project["dependencies"])
    }
    assert needed == {"numpy": True, "cffi": True, "platformdirs": True, "pyopencl": PLATFORMS[platform]}
    extra = project["optional-dependencies"]["opencl"]
    assert [re.match(r"[\w-]+", line)[0] for line in extra] == ["pyopencl"]
    monkeypatch.setattr(drivers.platform, "machine", lambda: platform[1])
    if platform[0] == "android":
        monkeypatch.setattr(sys, "getandroidapilevel", lambda: 24, raising=False)
    assert drivers.requires_pyopencl() == PLATFORMS[platform]


NAMES = "sys_platform", "platform_machine"


def test_document_names_extras_that_exist():
    tomllib = pytest.importorskip("tomllib", reason="Python before 3.11 has no tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    table = (ROOT / "docs" / "install.md").read_text(encoding="utf-8").split("| extra | adds |")[1].split("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    assert {"opencl", "cuda12", "bench"} <= named <= extras.keys()
