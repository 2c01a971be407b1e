"""The products of a quick `gemm bench --compare` as pytest-benchmark tests, for CI's history of single contestants.

    python -m pytest benchmarks/suites --benchmark-json FILE [-k "squares and cpu"]

There is one test for each product, contestant, and kind of operands: from host to host, or resident. The tests time
contestants one after another. To compare contestants use `gemm bench --compare`, which interleaves them.
"""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from gemm.bench.comparison import all_devices
from gemm.bench.contest import settle
from gemm.bench.contestants import PEERS, Field
from gemm.bench.peers import Unable
from gemm.bench.products import FAMILIES, Case, cases
from gemm.core.errors import BackendUnavailable

FIELD = Field.of(all_devices()[0], PEERS)


def _name(case: Case) -> str:
    shape = case.shape
    return f"{case.family}-{shape.m}x{shape.n}x{shape.k}{f'x{shape.batch}' if shape.batch > 1 else ''}"


@pytest.mark.parametrize("mode", ["host", "resident"])
@pytest.mark.parametrize("contestant", FIELD.enter)
@pytest.mark.parametrize("case", cases(FAMILIES, quick=True), ids=_name)
def test_product(benchmark: Any, case: Case, contestant: str, mode: str) -> None:
    try:
        one = FIELD.enter[contestant](case.shape, *case.shape.operands("float32"))
    except (Unable, BackendUnavailable) as error:
        pytest.skip(str(error))
    call = one.call if mode == "host" else one.launch
    if call is None:
        pytest.skip("it computes in host memory")
    settle()
    benchmark.group = f"{_name(case)}, {mode}"
    benchmark.extra_info.update(contestant=contestant, kernel=one.kernel, mode=mode, flops=case.shape.flops)
    benchmark(call)
    if benchmark.stats:  # missing with --benchmark-disable
        seconds = statistics.median(benchmark.stats.stats.data)
        benchmark.extra_info["gflops"] = case.shape.flops / seconds / 1e9
