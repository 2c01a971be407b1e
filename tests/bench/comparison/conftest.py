"""Comparisons that several tests look at."""

from functools import partial

import pytest

from comparison.runs import HOST, ON_DEVICE
from gemm.bench import comparison, contest, contestants, products, sweep, verdicts
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
    """The document of a run in which `ON_DEVICE` was a GPU."""
    document = Comparison.load(recorded).document
    found, _ = comparison.all_devices()
    whole = contestants.Field.of([each for each in found if each.backend == "cpu"], [])
    enter = partial(contestants.enter_device_peer, ON_DEVICE, products.Arithmetic())
    whole.add("stand-in on opencl:7", enter, ON_DEVICE.about)
    timed = sweep.Sweep(whole, contest.Pace(3, 0.1), peaks={"cpu:0": 50.0})
    cases = products.cases(["squares", "batched"], quick=True, sizes=[16, 24, 32])
    rows = [row for case in cases[:4] for row in timed.compete(case)]
    roof = {"gflops": None, "gflops_basis": "not known", "memory_gbs": None, "memory_basis": "not known"}
    gpu = {**document["devices"][0], "key": "opencl:7", "kind": "gpu"}
    return document | {
        "results": rows, "thresholds": verdicts.thresholds(rows), "contestants": whole.about,
        "roofs": document["roofs"] | {"opencl:7": roof}, "devices": [*document["devices"], gpu],
        "families": ["squares", "batched"],
    }  # fmt: skip
