"""`gemm bench --compare` on a terminal: mistakes, tables, curves, thresholds; and the same from pytest-benchmark."""

import json
import os
import subprocess
import sys

import pytest

import gemm
from comparison.runs import HOST, ROOT, result_of
from gemm.bench import contest, report
from gemm.compare import Comparison
from gemm.core import text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--compare", "--families", "squares,round"], "round"),
        (["--compare", "--peers", "cublas"], "cublas"),
        (["--compare", "--html", "no/such/folder/x.html"], "does not exist"),
        (["--compare", "--kernel", "sgemm_scalar_4x4"], "--kernel does not go"),
        (["--compare", "-M", "8", "-N", "8", "-K", "8"], "-M does not go"),
        (["--compare", "--batch", "8"], "--batch"),
        (["--compare-to", "no.json", "--quick"], "do not go with --compare-to"),
        (["--quick"], "--quick belongs to"),
        (["--html", "x.html"], "--html belongs to"),
        (["--compare-to", "no.json", "--backends", "cpu"], "No such file"),
        (["--compare-to", str(ROOT / "README.md"), "--backends", "cpu"], "is not JSON"),
    ],
)
def test_one_line_and_status_2(capsys, argv, words):
    status, out, err = result_of(capsys, "bench", *argv)
    assert (status, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_a_folder_that_cannot_be_made(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").touch()
    status, _, err = result_of(
        capsys, *HOST, "--families", "squares", "--sizes", "8", "--plots", str(tmp_path / "file" / "plots")
    )
    assert status == 2
    assert "cannot write to" in err


def test_python_api():
    with pytest.raises(ValueError, match="'round' is not known"):
        gemm.compare.compare(["round"])


def test_tables_and_curves(capsys, monkeypatch):
    monkeypatch.setattr(contest, "warnings", lambda quiet: [])  # as on a quiet machine
    status, out, _ = result_of(capsys, *HOST, "--families", "squares,transformer", "--sizes", "8,16,24,32")
    assert status == 0
    assert "squares, float32, GFLOP/s" in out
    assert "feed-forward up, batch 8" in out
    assert "● cpu:0  ○ numpy:0" in out
    assert report.NO_DEVICE in " ".join(out.split())  # the terminal may be narrow


def test_thresholds(capsys, with_device):
    from gemm.cli.compare import show

    known = [
        x | dict(zip(("size", "below"), (24, 16) if x["mode"] == "resident" else (16, None), strict=True))
        for x in with_device["thresholds"]
    ]
    show(Comparison(with_device | {"thresholds": known}))
    out = capsys.readouterr().out
    assert "24 (16)" in out
    assert "16, the smallest" in out


def test_plot():
    lines = text.curves({"a": {8: 1.0, 16: 100.0}, "b": {8: 1.0}}, unit="x", height=3)
    assert lines == [
        "     100 │       ●",
        "      10 │",
        "       1 │  ●○",
        "       x └──────────",
        "            8   16",
        "          ● a  ○ b",
    ]
    assert text.curves({}, unit="x") == []
    assert len(text.curves({"a": {8: 1.0}}, unit="x")) > 3


def test_suites_run(tmp_path):
    """benchmarks/suites by pytest-benchmark: one product, once."""
    pytest.importorskip("pytest_benchmark", reason="it runs the suites")
    file = tmp_path / "benchmark.json"
    options = "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "squares-32x32x32 and cpu"
    command = [sys.executable, "-m", "pytest", "benchmarks/suites", *options, "--benchmark-max-time=0.01",
               "--benchmark-json", str(file)]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (one,) = json.loads(file.read_text(encoding="utf-8"))["benchmarks"]
    assert one["extra_info"]["contestant"] == "cpu:0"
    assert one["extra_info"]["gflops"] > 0
