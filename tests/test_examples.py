"""The example scripts run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import gemm

ROOT = Path(__file__).resolve().parents[1]


def run(folder, script, *arguments):
    """What the script prints, run in `folder`."""
    command = [sys.executable, str(ROOT / script), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def backends():
    return [name for name, why_not in gemm.backends().items() if not why_not]


def test_digits(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    printed = run(tmp_path, "examples/digits.py", "--backend", *(set(backends()) - {"opencl"}))
    assert "cpu" in printed
    hashes = re.findall(r"weights (\w{16})", printed)
    assert len(hashes) >= 2


def test_digits_has_the_same_weights_on_opencl(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    if "opencl" not in backends():
        pytest.skip(gemm.backends()["opencl"])
    assert "have the same bits" in run(tmp_path, "examples/digits.py", "--backend", "cpu", "opencl", "--epochs", "10")


def test_convolution(tmp_path):
    for library in ("skimage", "scipy", "matplotlib"):
        pytest.importorskip(library, reason=f"{library} is what the example compares with")
    printed = run(tmp_path, "examples/convolution.py", "--output", "picture.png")
    assert all(f"\n{name}" in printed for name in backends())
    picture = (tmp_path / "picture.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 100_000
