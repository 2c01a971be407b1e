"""The peer comparison runs, writes what it documents and can be drawn. Nothing is asserted about speed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
COMMON = {"family", "dtype", "threads", "m", "n", "k", "batch", "layout", "kernel", "ratios", "spreads", "best_peer",
          "ratio", "seconds", "gflops", "cores", "settling", "repeats", "worst_error", "samples"}  # fmt: skip
PLAIN = {"percent_of_peak", "percent_of_read"}
FAMILIES = {"square": PLAIN, "skinny": PLAIN, "batched": PLAIN, "dtypes": PLAIN, "call": {"plain_ratios"},
            "prepare": {"gain"}, "scaling": {"speedup"}, "contention": {"slowdown"}}  # fmt: skip
PEERS = {"numpy", "openblas"}


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a quick run against NumPy, at both levels."""
    pytest.importorskip("threadpoolctl", reason="it sets NumPy's threads")
    pytest.importorskip("gemm._cpu", reason="the CPU engine is what is compared")
    file = tmp_path_factory.mktemp("peers") / "cpu.json"
    options = "--quick", "--peers", "numpy,openblas", "--dtype", "float32,int32,complex64", "--contention"
    done = run("benchmarks/cpu_vs_peers.py", *options, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Geometric means" in done.stdout
    return file


def test_peer_comparison_writes_its_schema(recorded: Path) -> None:
    document: dict[str, Any] = json.loads(recorded.read_text(encoding="utf-8"))
    assert set(document) == {
        "schema", "date", "command", "commit", "versions", "machine", "environment", "device", "rounds", "sample_s",
        "peers", "absent", "unable", "peaks", "read_gbs", "results", "means", "quiet",
    }  # fmt: skip
    assert document["schema"] == "gemm-cpu-peers/2"
    assert str(recorded.parent) not in recorded.read_text(encoding="utf-8")  # folders tell of a machine
    assert set(document["peers"]) - {"gemm"} == {"plan", "numpy", "openblas"} - document["absent"].keys()
    assert document["absent"].keys() <= {"openblas"}  # a NumPy with another BLAS, or no C compiler
    assert document["quiet"].keys() == {
        "load_before", "load_after", "others_cores", "stolen", "median_spread", "warnings"
    }  # fmt: skip
    threads = max(row["threads"] for row in document["results"])
    left_out = {"scaling"} if threads == 1 else set()  # one has nothing to scale to
    if "prepared" in document["unable"]:
        left_out |= {"prepare"}
    assert {row["family"] for row in document["results"]} == FAMILIES.keys() - left_out


def test_peer_comparison_has_whole_rows(recorded: Path) -> None:
    document: dict[str, Any] = json.loads(recorded.read_text(encoding="utf-8"))
    for row in document["results"]:
        assert set(row) == COMMON | FAMILIES[row["family"]]
        assert set(row["ratios"]) <= PEERS
        assert row["ratio"] == row["ratios"][row["best_peer"]] == min(row["ratios"].values()) > 0
        contestants = row["seconds"].keys()
        for table in ("gflops", "cores", "settling", "repeats", "worst_error", "samples"):
            assert row[table].keys() == contestants
        assert all(1 <= len(samples) <= document["rounds"] for samples in row["samples"].values())
        assert all(error is not None and 0 <= error <= 1 for error in row["worst_error"].values())
    for mean in document["means"]:
        some = [r["ratio"] for r in document["results"] if all(r[x] == mean[x] for x in ("family", "dtype", "threads"))]
        assert mean["rows"] == len(some)
        assert math.isclose(mean["best"], math.exp(sum(map(math.log, some)) / len(some)), rel_tol=1e-3)


def test_peer_comparison_refuses_nonsense() -> None:
    for wrong in (("--peers", "cublas"), ("--families", "round"), ("--library", "nameless"), ("--threads", "0"),
                  ("--shapes", "2x3")):  # fmt: skip
        done = run("benchmarks/cpu_vs_peers.py", *wrong)
        assert done.returncode == 2
        assert wrong[1] in done.stderr


def test_cpu_chart(recorded: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="it draws the chart")
    chart, more = tmp_path / "cpu.svg", tmp_path / "more.json"
    document: dict[str, Any] = json.loads(recorded.read_text(encoding="utf-8"))
    document["results"] = [row | {"dtype": "float64"} for row in document["results"] if row["family"] == "skinny"]
    more.write_text(json.dumps(document), encoding="utf-8")  # a type that lacks a family
    done = run("docs/make_cpu_chart.py", str(recorded), str(more), "--output", str(chart))
    assert done.returncode == 0, done.stderr
    drawn = chart.read_text(encoding="utf-8")
    assert drawn.lstrip().startswith("<?xml")
    chart.unlink()
    (tmp_path / "other.json").write_text('{"schema": "other"}')
    assert run("docs/make_cpu_chart.py", str(tmp_path / "other.json"), "--output", str(chart)).returncode == 2
    assert not chart.exists()


def test_like_is_set_against_like(recorded: Path) -> None:
    document: dict[str, Any] = json.loads(recorded.read_text(encoding="utf-8"))
    if not {"gemm", "openblas"} <= document["peers"].keys():
        pytest.skip("it takes a C compiler, and NumPy's own OpenBLAS")
    for row in document["results"]:
        if row["family"] in ("square", "skinny"):
            for ours, peer in (("gemm", "openblas"), ("plan", "numpy")):
                rounds = [his / our for our, his in zip(row["samples"][ours], row["samples"][peer], strict=True)]
                assert math.isclose(row["ratios"][peer], sorted(rounds)[len(rounds) // 2], rel_tol=1e-3)


def test_roofs_are_measured(recorded: Path) -> None:
    document: dict[str, Any] = json.loads(recorded.read_text(encoding="utf-8"))
    if "gemm" not in document["peers"]:
        pytest.skip("it takes a C compiler")
    assert all(rate > 0 for rates in document["read_gbs"].values() for rate in rates.values())
    for row in document["results"]:
        peak = document["peaks"].get(row["dtype"], {}).get(str(row["threads"]))
        if row["family"] == "square" and peak:
            assert math.isclose(row["percent_of_peak"], 100 * row["gflops"]["gemm"] / peak["gflops"], rel_tol=1e-3)
        assert row.get("percent_of_read") is None or row["family"] == "skinny"
