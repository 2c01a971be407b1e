"""What a comparison measures and writes: families of products, the document, its CSV file."""

import csv
import json
from functools import partial

import numpy as np
import pytest

import gemm
from comparison.runs import HOST, ON_DEVICE, result_of
from gemm.bench import contest, contestants, products, sweep
from gemm.bench.products import Shape
from gemm.cli import main
from gemm.compare import SCHEMA, Comparison


def test_all_have_cases_and_quick_ones_are_fewer():
    for name in products.FAMILIES:
        few, whole = (products.cases([name], quick=quick) for quick in (True, False))
        assert 0 < len(few) < len(whole)
        assert len({case.name for case in whole}) == len(whole)


def test_resnet50_has_the_work_that_is_known_of_it():
    """4.1 G multiply-adds an image, with each layer as often as the network has it."""
    shapes = {case.name: case.shape.flops / 2 for case in products.cases(["resnet50"], quick=False)}
    times = {"conv2 1×1, in": 2, "conv2 3×3": 3, "conv2 1×1, out": 4, "conv3 1×1, in": 3, "conv3 3×3": 4,
             "conv3 1×1, out": 4, "conv4 1×1, in": 5, "conv4 3×3": 6, "conv4 1×1, out": 6, "conv5 1×1, in": 2,
             "conv5 3×3": 3, "conv5 1×1, out": 3}  # fmt: skip
    assert sum(work * times.get(name, 1) for name, work in shapes.items()) == pytest.approx(4.1e9, rel=0.01)


def test_sizes_replace_those_of_squares():
    assert [case.shape for case in products.cases(["squares"], quick=True, sizes=[7])] == [Shape(7, 7, 7)]


def test_schema(recorded):
    text = recorded.read_text(encoding="utf-8")
    document = json.loads(text)
    assert list(document) == [
        "schema", "date", "command", "commit", "versions", "machine", "environment", "dtype", "inputs", "precision",
        "reproducible", "quick", "families",
        "rounds", "method", "devices", "contestants", "absent", "roofs", "links", "results", "thresholds", "choice",
        "left_out", "quiet",
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


def test_round_trip(recorded, tmp_path):
    found = Comparison.load(recorded)
    assert [case.shape for case in found.cases()] == [Shape(128, 128, 128), Shape(192, 192, 192)]
    (tmp_path / "again.json").write_text(json.dumps(found.document), encoding="utf-8")
    assert Comparison.load(tmp_path / "again.json") == found


def test_csv(tmp_path):
    file = tmp_path / "x.csv"
    assert main([*HOST, "--sizes", "8", "--dtype", "float64", "--csv", str(file)]) == 0
    rows = list(csv.DictReader(file.open(encoding="utf-8")))
    assert [(row["contestant"], row["m"]) for row in rows] == [("cpu:0", "8"), ("numpy:0", "8")]


def test_devices_are_resident_and_offloaded(with_device):
    rows = [row for row in with_device["results"] if row["contestant"] == "stand-in on opencl:7"]
    ways = [("host", 1), ("resident", 1), ("once", 1), ("once", 8), ("once", 64)]
    assert [(row["mode"], row["products"]) for row in rows] == 3 * ways  # and not of the stack
    assert all(row["valid"] and row["seconds"] > 0 and row["measured"] for row in rows)
    assert [(x["series"], x["mode"], x["products"]) for x in with_device["thresholds"]] == [
        ("squares, s × s × s", *way) for way in ways
    ]
    assert all(x["sizes"] == [16, 24, 32] and len(x["verdicts"]) == 3 for x in with_device["thresholds"])


def test_what_takes_long_is_added_up(monkeypatch):
    monkeypatch.setattr(contest, "SLOW", 1e-9)
    enter = {"x": partial(contestants.enter_device_peer, ON_DEVICE, products.Arithmetic())}
    case = products.Case("squares", "8", Shape(8, 8, 8), "s", 8)
    rows = sweep.Sweep(contestants.Field(enter, {}, {}), contest.Pace(3, 0.1)).compete(case)
    assert [(row["mode"], row["products"], row["measured"]) for row in rows] == [
        ("host", 1, True), ("resident", 1, True), ("once", 1, True), ("once", 8, False), ("once", 64, False)
    ]  # fmt: skip
    once = {row["products"]: row["seconds"] for row in rows if row["mode"] == "once"}
    assert once[8] == pytest.approx((once[1] + 7 * rows[1]["seconds"]) / 8)


def test_failures_are_told_and_absences_are_not_failures():
    def fail(*product):
        raise RuntimeError("out of order")

    def miss(*product):
        raise gemm.BackendUnavailable("opencl", "no kernel works")

    whole = contestants.Field({"bad": fail, "away": miss}, {}, {})
    case = products.cases(["batched"], quick=True)[0]
    (row,) = sweep.Sweep(whole, contest.Pace(3, 0.1)).compete(case)
    assert row["error"] == "out of order"
    assert "no kernel works" in whole.absent["away"]
    assert Comparison({"results": [row]}).failures() == ["16 of 32 (batched), bad: out of order"]


def test_an_opencl_device(capsys, tmp_path):
    able = next((k for k in gemm.kernels() if k.available and k.backend == "opencl" and not k.untrusted), None)
    if able is None:
        pytest.skip("there is no OpenCL device")
    file = tmp_path / "x.json"
    argv = ["bench", "--compare", "--sizes", "40", "--device", able.devices[0], "--peers", "none"]
    status, out, _ = result_of(capsys, *argv, "--json", str(file))
    assert status == 0, out
    assert {row["mode"] for row in Comparison.load(file).rows} >= {"host", "resident", "once"}
