"""The example scripts run."""

import re

import helpers
import pytest
from helpers import ROOT

import gemm


def run(folder, script, *arguments):
    """What the script prints, run in `folder`."""
    return helpers.run(ROOT / script, *arguments, cwd=folder)


def backends():
    return [name for name, why_not in gemm.backends().items() if not why_not]


@pytest.mark.slow
def test_digits(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    printed = run(tmp_path, "examples/digits.py", "--backend", *(set(backends()) - {"opencl"}))
    assert "cpu" in printed
    hashes = re.findall(r"weights (\w{16})", printed)
    assert len(hashes) >= 2


@pytest.mark.slow
def test_digits_has_the_same_weights_on_opencl(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    if "opencl" not in backends():
        pytest.skip(gemm.backends()["opencl"])
    assert "have the same bits" in run(tmp_path, "examples/digits.py", "--backend", "cpu", "opencl", "--epochs", "10")


@pytest.mark.slow
def test_convolution(tmp_path):
    for library in ("skimage", "scipy", "matplotlib"):
        pytest.importorskip(library, reason=f"{library} is what the example compares with")
    printed = run(tmp_path, "examples/convolution.py", "--output", "picture.png")
    assert all(f"\n{name}" in printed for name in backends())
    picture = (tmp_path / "picture.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 100_000
