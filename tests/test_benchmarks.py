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
COMMON = {"family", "dtype", "threads", "m", "n", "k", "batch", "ratios", "spreads", "best_peer", "ratio", "seconds",
          "gflops", "cores", "settling", "repeats", "worst_error", "samples"}  # fmt: skip
PLAIN = {"net", "percent_of_peak", "percent_of_read"}
FAMILIES = {"square": PLAIN, "skinny": PLAIN, "batched": PLAIN, "call": {"plain_ratios"}, "scaling": {"speedup"},
            "contention": {"slowdown"}}  # fmt: skip


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a quick run against NumPy."""
    pytest.importorskip("threadpoolctl", reason="it sets NumPy's threads")
    pytest.importorskip("gemm._cpu", reason="the CPU engine is what is compared")
    file = tmp_path_factory.mktemp("peers") / "cpu.json"
    done = run("benchmarks/cpu_vs_peers.py", "--quick", "--peers", "numpy", "--contention", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Geometric means" in done.stdout
    return file


def test_peer_comparison_writes_its_schema(recorded: Path) -> None:
    document: dict[str, Any] = json.loads(recorded.read_text(encoding="utf-8"))
    assert set(document) == {
        "schema", "date", "command", "commit", "versions", "machine", "environment", "device", "rounds", "sample_s",
        "peers", "absent", "peaks", "read_gbs", "call_s", "results", "means", "quiet",
    }  # fmt: skip
    assert document["schema"] == "gemm-cpu-peers/1"
    assert set(document["peers"]) == {"gemm", "numpy"}
    assert not document["absent"]
    assert document["quiet"].keys() == {
        "load_before", "load_after", "others_cores", "stolen", "median_spread", "warnings"
    }  # fmt: skip
    threads = max(map(int, document["read_gbs"]))  # one has nothing to scale to
    assert {row["family"] for row in document["results"]} == FAMILIES.keys() - ({"scaling"} if threads == 1 else set())


def test_peer_comparison_has_whole_rows(recorded: Path) -> None:
    document: dict[str, Any] = json.loads(recorded.read_text(encoding="utf-8"))
    for row in document["results"]:
        assert set(row) == COMMON | FAMILIES[row["family"]]
        assert row["best_peer"] == "numpy"
        assert row["ratio"] == row["ratios"]["numpy"] > 0
        contestants = row["seconds"].keys()
        for table in ("gflops", "cores", "settling", "repeats", "worst_error", "samples"):
            assert row[table].keys() == contestants
        assert all(len(samples) == document["rounds"] for samples in row["samples"].values())
        assert all(error is not None and 0 <= error <= 1 for error in row["worst_error"].values())
    for mean in document["means"]:
        some = [r["ratio"] for r in document["results"] if all(r[x] == mean[x] for x in ("family", "dtype", "threads"))]
        assert mean["rows"] == len(some)
        assert math.isclose(mean["best"], math.exp(sum(map(math.log, some)) / len(some)))


def test_peer_comparison_refuses_nonsense() -> None:
    for wrong in (("--peers", "cublas"), ("--families", "round"), ("--library", "nameless"), ("--threads", "0")):
        done = run("benchmarks/cpu_vs_peers.py", *wrong)
        assert done.returncode == 2
        assert wrong[1] in done.stderr


def test_cpu_chart(recorded: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="it draws the chart")
    chart = tmp_path / "cpu.svg"
    done = run("docs/make_cpu_chart.py", str(recorded), "--output", str(chart))
    assert done.returncode == 0, done.stderr
    drawn = chart.read_text(encoding="utf-8")
    assert drawn.lstrip().startswith("<?xml")
    chart.unlink()
    (tmp_path / "other.json").write_text('{"schema": "other"}')
    assert run("docs/make_cpu_chart.py", str(tmp_path / "other.json"), "--output", str(chart)).returncode == 2
    assert not chart.exists()
