"""Comparisons that several tests look at."""

import pytest

from comparison.runs import HOST, OnDevice
from gemm.bench import comparison, families, field, sweep
from gemm.cli import main
from gemm.compare import Comparison


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """The file of a run on the CPU and NumPy."""
    file = tmp_path_factory.mktemp("compare") / "host.json"
    assert main([*HOST, "--sizes", "128,192", "--json", str(file)]) == 0
    return file


@pytest.fixture(scope="session")
def with_device(recorded):
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
