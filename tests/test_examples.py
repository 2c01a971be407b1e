"""The examples run, the README's session does what it says, and generated documents are current."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gemm
from gemm import report

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def run(folder: Path, script: str, *arguments: str) -> str:
    """What the script prints, run in `folder`."""
    command = [sys.executable, str(ROOT / script), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def backends() -> list[str]:
    return [name for name, why_not in gemm.backends().items() if not why_not]


def test_digits(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    printed = run(tmp_path, "examples/digits.py", "--backend", *(set(backends()) - {"opencl"}))
    assert "cpu" in printed
    hashes = re.findall(r"weights (\w{16})", printed)
    assert len(hashes) >= 2


def test_digits_has_the_same_weights_on_opencl(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    if "opencl" not in backends():
        pytest.skip(gemm.backends()["opencl"])
    assert "have the same bits" in run(tmp_path, "examples/digits.py", "--backend", "cpu", "opencl", "--epochs", "10")


def test_convolution(tmp_path: Path) -> None:
    for library in ("skimage", "scipy", "matplotlib"):
        pytest.importorskip(library, reason=f"{library} is what the example compares with")
    printed = run(tmp_path, "examples/convolution.py", "--output", "picture.png")
    assert all(f"\n{name}" in printed for name in backends())
    picture = (tmp_path / "picture.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 100_000


def test_readme_session() -> None:
    session = "\n".join(re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL))
    assert len(re.findall("^>>> ", session, re.MULTILINE)) >= 5
    test = doctest.DocTestParser().get_doctest(session, {}, "README.md", "README.md", 0)
    assert not doctest.DocTestRunner().run(test).failed


def test_package_docstring_session() -> None:
    assert not doctest.testmod(gemm).failed


def test_readme_has_one_command_for_each_purpose() -> None:
    for tag in ("run", "test"):
        (command,) = re.findall(rf"^```sh {tag}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
        assert len(command.splitlines()) == 1


def test_readme_names_every_environment_variable() -> None:
    assert all(f"`{name}`" in README for name in report.VARIABLES)


def test_readme_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_kernel_table_is_current() -> None:
    command = [sys.executable, str(ROOT / "docs" / "make_kernel_table.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
