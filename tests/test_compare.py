"""Comparisons: thresholds, what is measured and written, the report, what has become slower. Nothing is asserted about
speed; what a browser makes of the report, ci/check_report.py sees."""

from __future__ import annotations

import copy
import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gemm
from gemm.cli import main, plot
from gemm.compare import SCHEMA, Comparison, comparison, energy, families, field, regress, sweep, tables
from gemm.compare.peers import DevicePeer
from gemm.compare.peers.base import Unable
from gemm.compare.threshold import Threshold, quartiles, ratios, threshold, verdict
from gemm.problem import Device
from gemm.timing.contest import Shape

ROOT = Path(__file__).resolve().parents[1]
HOST = ["bench", "--compare", "--quick", "--backends", "cpu,numpy", "--peers", "none"]


def result_of(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(argv)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a run on the CPU and NumPy."""
    file = tmp_path_factory.mktemp("compare") / "host.json"
    assert main([*HOST, "--sizes", "16,24", "--json", str(file)]) == 0
    return file


class OnDevice(DevicePeer):
    """A device peer that computes on the host."""

    name, about, device = "stand-in", "NumPy as a device", Device("opencl", "opencl:7", "x", kind="gpu")

    def send(self, array: np.ndarray) -> Any:
        return array.copy()

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        if a.ndim == 3:
            raise Unable("stacks")
        np.matmul(a, b, out=out)

    def finish(self) -> None:
        pass

    def fetch(self, array: Any, out: np.ndarray) -> None:
        out[...] = array


@pytest.fixture(scope="module")
def with_device(recorded: Path) -> dict[str, Any]:
    """The document of a run in which `OnDevice` was a GPU."""
    document = Comparison.load(recorded).document
    found, _ = comparison.all_devices()
    whole = field.Field.of([each for each in found if each[1].backend == "cpu"], [])
    whole.enter["stand-in on opencl:7"] = lambda *product: field._resident(OnDevice(), *product)
    whole.about["stand-in on opencl:7"] = OnDevice.about
    cases = families.cases(["squares", "batched"], quick=True, sizes=[16, 24, 32])
    rows = [
        row for case in cases[:4]
        for row in sweep.compete(case, whole, sweep.Pace(3, 0.1), "float32", {"cpu:0": 50.0}, lambda text: None)
    ]  # fmt: skip
    roof = {"gflops": None, "gflops_basis": "not known", "memory_gbs": None, "memory_basis": "not known"}
    gpu = {**document["devices"][0], "key": "opencl:7", "kind": "gpu"}
    return document | {
        "results": rows, "thresholds": comparison.thresholds(rows), "contestants": whole.about,
        "roofs": document["roofs"] | {"opencl:7": roof}, "devices": [*document["devices"], gpu],
        "families": ["squares", "batched"],
    }  # fmt: skip


def points(*speeds: float, noise: float = 0.0) -> list[tuple[int, list[float]]]:
    """A series of doubling sizes with these ratios, each of nine noisy rounds."""
    rng = random.Random(5)
    return [(64 << at, [speed * (1 + rng.uniform(-noise, noise)) for _ in range(9)]) for at, speed in enumerate(speeds)]


class TestThreshold:
    @pytest.mark.parametrize(
        ("speeds", "noise", "found"),
        [
            ((0.1, 0.5, 0.9, 1.5, 4.0), 0.0, Threshold(512, 256)),
            ((0.1, 0.5, 0.9, 1.5, 4.0), 0.05, Threshold(512, 256)),
            ((0.1, 0.2, 0.3), 0.1, Threshold(None, None)),
            ((2.0, 3.0, 4.0), 0.1, Threshold(64, None)),
            ((1.0, 1.0, 1.0), 0.0, Threshold(None, None)),
            ((1.0, 1.0, 1.0), 0.1, Threshold(None, None)),
            ((0.5, 1.5, 0.5, 2.0), 0.1, Threshold(512, 256)),  # a lead that is lost again is none
            ((0.5, 1.5, 1.0, 2.0), 0.1, Threshold(128, 64)),  # noise in between ends nothing
            ((0.5, 1.0, 1.0, 2.0), 0.1, Threshold(512, 256)),
            ((2.0, 2.0, 1.0), 0.1, Threshold(None, None)),  # not ahead at the largest
            ((2.0,), 0.0, Threshold(64, None)),
            ((), 0.0, Threshold(None, None)),
        ],
    )
    def test_series(self, speeds: tuple[float, ...], noise: float, found: Threshold) -> None:
        assert threshold(points(*speeds, noise=noise)) == found
        assert threshold(reversed(points(*speeds, noise=noise))) == found

    def test_verdicts_are_beyond_the_quartiles(self) -> None:
        assert verdict([1.1, 1.2, 1.3]) == "ahead"
        assert verdict([0.9, 1.2, 1.3, 1.4, 1.5]) == "ahead"  # one bad round
        assert verdict([0.9, 0.9, 1.3, 1.4]) == "even"
        assert verdict([0.7]) == "behind"
        assert quartiles([2.0]) == (2.0, 2.0, 2.0)

    def test_ratios_are_those_of_rounds(self) -> None:
        assert ratios([2.0, 4.0], [1.0, 2.0]) == [2.0, 2.0]
        assert ratios([3.0, 1.0, 2.0], [1.0]) == [2.0]


class TestFamilies:
    def test_all_have_cases_and_quick_ones_are_fewer(self) -> None:
        for name in families.FAMILIES:
            few, whole = (families.cases([name], quick=quick) for quick in (True, False))
            assert 0 < len(few) < len(whole)
            assert len({case.name for case in whole}) == len(whole)

    def test_resnet50_has_the_work_that_is_known_of_it(self) -> None:
        """4.1 G multiply-adds an image, with each layer as often as the network has it."""
        shapes = {case.name: case.shape.flops / 2 for case in families.cases(["resnet50"], quick=False)}
        times = {"conv2 1×1, in": 2, "conv2 3×3": 3, "conv2 1×1, out": 4, "conv3 1×1, in": 3, "conv3 3×3": 4,
                 "conv3 1×1, out": 4, "conv4 1×1, in": 5, "conv4 3×3": 6, "conv4 1×1, out": 6, "conv5 1×1, in": 2,
                 "conv5 3×3": 3, "conv5 1×1, out": 3}  # fmt: skip
        assert sum(work * times.get(name, 1) for name, work in shapes.items()) == pytest.approx(4.1e9, rel=0.01)

    def test_sizes_replace_those_of_squares(self) -> None:
        assert [case.shape for case in families.cases(["squares"], quick=True, sizes=[7])] == [Shape(7, 7, 7)]


class TestDocument:
    def test_schema(self, recorded: Path) -> None:
        text = recorded.read_text(encoding="utf-8")
        document = json.loads(text)
        assert list(document) == [
            "schema", "date", "command", "commit", "versions", "machine", "environment", "dtype", "quick", "families",
            "rounds", "method", "devices", "contestants", "absent", "roofs", "results", "thresholds", "choice",
            "energy", "left_out", "quiet",
        ]  # fmt: skip
        described = gemm.compare.__doc__ or ""
        assert all(name in described for name in (*document, *sweep.COLUMNS))
        assert document["schema"] == SCHEMA
        assert str(recorded.parent) not in text  # folders tell of a machine
        assert document["roofs"]["cpu:0"]["memory_gbs"] > 0
        assert {row["contestant"] for row in document["results"]} == {"cpu:0", "numpy:0"}
        for row in document["results"]:
            assert list(row) == [*sweep.COLUMNS, "samples_s"]
            assert row["valid"]
            assert row["mode"] == "host"
            assert row["gflops"] == pytest.approx(2 * row["m"] * row["n"] * row["k"] / row["seconds"] / 1e9)
            assert 5 <= len(row["samples_s"]) <= document["rounds"]
        choice = document["choice"]
        assert np.shape(choice["chosen"]) == np.shape(choice["lead"]) == (len(choice["k"]), *2 * [len(choice["sizes"])])
        assert choice["chosen"][0][0][0] == "cpu:0"

    def test_round_trip(self, recorded: Path, tmp_path: Path) -> None:
        found = Comparison.load(recorded)
        assert [case.shape for case in found.cases()] == [Shape(16, 16, 16), Shape(24, 24, 24)]
        (tmp_path / "again.json").write_text(json.dumps(found.document), encoding="utf-8")
        assert Comparison.load(tmp_path / "again.json") == found

    def test_csv(self, tmp_path: Path) -> None:
        file = tmp_path / "x.csv"
        assert main([*HOST, "--sizes", "8", "--dtype", "float64", "--csv", str(file)]) == 0
        rows = list(csv.DictReader(file.open(encoding="utf-8")))
        assert [(row["contestant"], row["m"]) for row in rows] == [("cpu:0", "8"), ("numpy:0", "8")]

    def test_devices_are_resident_and_offloaded(self, with_device: dict[str, Any]) -> None:
        rows = [row for row in with_device["results"] if row["contestant"] == "stand-in on opencl:7"]
        ways = [("host", 1), ("resident", 1), ("once", 1), ("once", 8), ("once", 64)]
        assert [(row["mode"], row["products"]) for row in rows] == 3 * ways  # and not of the stack
        assert all(row["valid"] and row["seconds"] > 0 and row["measured"] for row in rows)
        assert [(x["series"], x["mode"], x["products"]) for x in with_device["thresholds"]] == [
            ("squares, s × s × s", *way) for way in ways
        ]
        assert all(x["sizes"] == [16, 24, 32] and len(x["verdicts"]) == 3 for x in with_device["thresholds"])

    def test_what_takes_long_is_added_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sweep, "_SLOW", 1e-9)
        enter = {"x": lambda *product: field._resident(OnDevice(), *product)}
        case = families.Case("squares", "8", Shape(8, 8, 8), "s", 8)
        rows = sweep.compete(case, field.Field(enter, {}, {}), sweep.Pace(3, 0.1), "float32", {}, lambda text: None)
        assert [(row["mode"], row["products"], row["measured"]) for row in rows] == [
            ("host", 1, True), ("resident", 1, True), ("once", 1, True), ("once", 8, False), ("once", 64, False)
        ]  # fmt: skip
        once = {row["products"]: row["seconds"] for row in rows if row["mode"] == "once"}
        assert once[8] == pytest.approx((once[1] + 7 * rows[1]["seconds"]) / 8)

    def test_failures_are_told_and_absences_are_not_failures(self) -> None:
        def fail(*product: Any) -> Any:
            raise RuntimeError("out of order")

        def miss(*product: Any) -> Any:
            raise gemm.BackendUnavailable("opencl", "no kernel works")

        whole = field.Field({"bad": fail, "away": miss}, {}, {})
        case = families.cases(["batched"], quick=True)[0]
        (row,) = sweep.compete(case, whole, sweep.Pace(3, 0.1), "float32", {}, lambda text: None)
        assert row["error"] == "out of order"
        assert "no kernel works" in whole.absent["away"]
        assert Comparison({"results": [row]}).failures() == ["16 of 32 (batched), bad: out of order"]

    def test_an_opencl_device(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        able = next((k for k in gemm.kernels() if k.available and k.backend == "opencl" and not k.untrusted), None)
        if able is None:
            pytest.skip("there is no OpenCL device")
        file = tmp_path / "x.json"
        argv = ["bench", "--compare", "--sizes", "40", "--device", able.devices[0], "--peers", "none"]
        status, out, _ = result_of(capsys, *argv, "--json", str(file))
        assert status == 0, out
        assert {row["mode"] for row in Comparison.load(file).rows} >= {"host", "resident", "once"}


class TestCompareTo:
    def test_verdicts(self, recorded: Path) -> None:
        old = Comparison.load(recorded).rows
        assert {each.verdict for each in regress.changes(old, old)} == {"same"}

        def scaled(factor: float) -> list[dict[str, Any]]:
            return [row | {"seconds": factor * row["seconds"], "samples_s": [factor * x for x in row["samples_s"]]}
                    for row in old]  # fmt: skip

        assert {each.verdict for each in regress.changes(old, scaled(100))} == {"slower"}
        assert {each.verdict for each in regress.changes(scaled(100), old)} == {"faster"}
        assert {each.verdict for each in regress.changes(old, scaled(1.04))} == {"same"}
        slower = regress.regressions(regress.changes(old, scaled(2)))
        assert {each.row["contestant"] for each in slower} <= {"cpu:0"}  # NumPy's times are not ours to mend
        assert regress.confirmed(slower, slower[:1]) == slower[:1]
        assert regress.changes(old, []) == []

    def test_samples_that_overlap_tell_nothing(self) -> None:
        place = dict.fromkeys(regress._KEY, 0) | {"backend": "cpu"}
        then = place | {"seconds": 1.0, "samples_s": [0.8, 0.9, 1.0, 1.3, 1.4]}
        now = place | {"seconds": 1.2, "samples_s": [0.9, 1.0, 1.2, 1.3, 1.5]}
        assert [each.verdict for each in regress.changes([then], [now])] == ["same"]
        now["samples_s"] = [1.15, 1.2, 1.2, 1.2, 1.3]
        assert [each.verdict for each in regress.changes([then], [now])] == ["same"]  # within what it varied by then
        then["samples_s"] = [0.99, 1.0, 1.0, 1.0, 1.01]
        assert [each.verdict for each in regress.changes([then], [now])] == ["slower"]

    @pytest.mark.parametrize(("factor", "status", "words"), [(0.01, 1, "twice"), (100.0, 0, "0 times of 2 slower")])
    def test_injected(
        self, capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path, factor: float, status: int, words: str
    ) -> None:
        """Against a run that claims to have been a hundred times as fast, or as slow."""
        document = Comparison.load(recorded).document
        for row in document["results"]:
            row["seconds"] *= factor
            row["samples_s"] = [factor * x for x in row["samples_s"]]
        file = tmp_path / "old.json"
        file.write_text(json.dumps(document), encoding="utf-8")
        found = result_of(capsys, "bench", "--compare-to", str(file), "--backends", "cpu,numpy", "--peers", "none")
        assert found[0] == status, found[1]
        assert words in found[1]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda d: d.update(schema="gemm-bench/1"), "gemm-bench/1"),
            (lambda d: d["machine"].update(cpu="Z80"), "Z80"),
            (lambda d: d["devices"][0].update(name="another"), "another"),
            (lambda d: d["devices"].append({"key": "cuda:9", "backend": "cuda", "name": "H900"}), "H900"),
        ],
    )
    def test_other_files_are_refused(
        self, capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path,
        change: Callable[[dict[str, Any]], None], words: str,
    ) -> None:  # fmt: skip
        document = copy.deepcopy(Comparison.load(recorded).document)
        change(document)
        file = tmp_path / "other.json"
        file.write_text(json.dumps(document), encoding="utf-8")
        status, out, err = result_of(capsys, "bench", "--compare-to", str(file), "--backends", "cpu,numpy")
        assert (status, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1


class TestMistakes:
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
            (["--compare-to", str(ROOT / "README.md"), "--backends", "cpu"], "no JSON"),
        ],
    )
    def test_one_line_and_status_2(self, capsys: pytest.CaptureFixture[str], argv: list[str], words: str) -> None:
        status, out, err = result_of(capsys, "bench", *argv)
        assert (status, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1

    def test_a_folder_that_cannot_be_made(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        (tmp_path / "file").touch()
        status, _, err = result_of(capsys, *HOST, "--sizes", "8", "--plots", str(tmp_path / "file" / "plots"))
        assert status == 2
        assert "cannot write to" in err

    def test_python_api(self) -> None:
        with pytest.raises(ValueError, match="round"):
            gemm.compare.compare(["round"])


class Elements(HTMLParser):
    """Checks that elements are closed in order, and collects names and attributes."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


class TestReport:
    @pytest.fixture(autouse=True)
    def matplotlib(self) -> None:
        pytest.importorskip("matplotlib", reason="it draws the charts")

    def test_page(self, with_device: dict[str, Any]) -> None:
        rows = [{"contestant": "cpu:0", "mode": "host", "joules": 0.5, "meters": {"package-0": 0.5},
                 "gflops_per_watt": 1.25}]  # fmt: skip
        spent = {"energy": with_device["energy"] | {"rows": rows}, "absent": {"torch": "<b>&"}}
        text = Comparison(with_device | spent).page()
        elements = Elements()
        elements.feed(text)
        assert elements.open == []
        assert {at["id"] for tag, at in elements.seen if tag == "section"} == {
            "machine", "thresholds", "chart-crossover", "chart-contestants", "chart-peak", "chart-roofline",
            "chart-choice", "chart-energy", "family-squares", "family-batched", "energy", "method",
        }  # fmt: skip
        names = [at["id"] for _, at in elements.seen if at.get("id")]
        assert len(set(names)) == len(names)
        assert sum(tag == "svg" for tag, _ in elements.seen) == 6
        assert "0.5 J" in text
        assert "&lt;b&gt;&amp;" in text
        assert "There is no GPU" not in text
        for _, at in elements.seen:  # nothing is loaded, nothing runs
            assert not at.keys() & {"src", "srcset", "data", "action", "onload", "onclick"}
            assert all((value or "").startswith("#") for name, value in at.items() if name.endswith("href"))
        assert not {"script", "link", "iframe", "img", "object"} & {tag for tag, _ in elements.seen}
        assert "http" not in text
        assert "@import" not in text

    def test_without_a_device(self, recorded: Path) -> None:
        text = Comparison.load(recorded)._repr_html_()  # a page's body, for notebooks
        assert tables.NO_DEVICE in text
        assert "There is no GPU on this machine." in text
        assert 'class="gemm-compare"' in text
        assert "<html" not in text

    def test_files(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        page, plots = tmp_path / "x.html", tmp_path / "plots"
        argv = [*HOST, "--sizes", "8,16", "--html", str(page), "--plots", str(plots)]
        status, out, _ = result_of(capsys, *argv)
        assert status == 0
        assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
        assert {file.stem for file in plots.glob("*.svg")} == {file.stem for file in plots.glob("*.png")}
        assert "charts in" in out

    def test_plans_in_notebooks(self) -> None:
        shown = gemm.plan(np.ones((4, 4)), np.ones((4, 4)), backend="cpu")._repr_html_()
        assert shown.startswith("<pre>")
        assert "chosen: " in shown


class TestTerminal:
    def test_tables_and_curves(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, out, _ = result_of(capsys, *HOST, "--families", "squares,transformer", "--sizes", "8,16")
        assert status == 0
        assert "squares, float32, GFLOP/s" in out
        assert "feed-forward up, batch 8" in out
        assert "● cpu:0  ○ numpy:0" in out
        assert tables.NO_DEVICE in out

    def test_thresholds(self, capsys: pytest.CaptureFixture[str], with_device: dict[str, Any]) -> None:
        from gemm.cli.comparing import show

        for x in with_device["thresholds"]:
            x["size"], x["below"] = (24, 16) if x["mode"] == "resident" else (16, None)
        show(Comparison(with_device))
        out = capsys.readouterr().out
        assert "24 (16)" in out
        assert "16, the smallest" in out

    def test_plot(self) -> None:
        lines = plot.curves({"a": {8: 1.0, 16: 100.0}, "b": {8: 1.0}}, unit="x", height=3)
        assert lines == [
            "     100 │         ●",
            "      10 │",
            "       1 │   ●○",
            "       x └────────────",
            "            8     16",
            "          ● a  ○ b",
        ]
        assert plot.curves({}, unit="x") == []
        assert len(plot.curves({"a": {8: 1.0}}, unit="x")) > 3


class TestEnergy:
    def test_rapl(self, tmp_path: Path) -> None:
        for zone in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl"):
            (tmp_path / zone).mkdir()
        package = tmp_path / "intel-rapl:0"
        for name, text in (("name", "package-0\n"), ("energy_uj", "900000\n"), ("max_energy_range_uj", "1000000\n")):
            (package / name).write_text(text)
        meters, absent = energy.meters(tmp_path)
        assert [meter.name for meter in meters][:1] == ["package-0"]
        assert not any(why.startswith("RAPL") for why in absent)

        def call() -> None:  # 0.1 J, of a counter that begins anew at 1 J
            (package / "energy_uj").write_text(str((int((package / "energy_uj").read_text()) + 100_000) % 1_000_000))

        joules, seconds = energy.spent(call, meters[:1], span=0.0)
        assert joules == {"package-0": pytest.approx(0.1)}
        assert seconds > 0

    def test_absences_have_reasons(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", None)
        assert energy.meters(tmp_path)[0] == []
        assert [why.partition(":")[0] for why in energy.meters(tmp_path)[1]] == ["RAPL", "NVML"]
        (tmp_path / "intel-rapl:0").mkdir()
        assert "energy_uj" in energy.meters(tmp_path)[1][0]

    def test_nvml(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fake: Any = ModuleType("pynvml")
        state = SimpleNamespace(millijoules=0, broken=False)

        def consumed(handle: object) -> int:
            if state.broken:
                raise fake.NVMLError("too old")
            state.millijoules += 500
            return state.millijoules

        fake.NVMLError = type("NVMLError", (Exception,), {})
        fake.nvmlInit, fake.nvmlDeviceGetCount = lambda: None, lambda: 1
        fake.nvmlDeviceGetHandleByIndex, fake.nvmlDeviceGetTotalEnergyConsumption = lambda at: at, consumed
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        (meter,), _ = energy.meters(tmp_path)
        assert energy.spent(lambda: None, [meter], span=0.0)[0] == {"GPU 0": pytest.approx(0.5)}
        state.broken = True
        assert energy.meters(tmp_path) == ([], [energy.meters(tmp_path)[1][0], "NVML: too old"])


def test_suites_run(tmp_path: Path) -> None:
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
