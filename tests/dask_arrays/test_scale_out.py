"""cubed and xarray multiply by gemm, as docs/scale.md shows; its tables are the model's; the benchmark runs."""

import json
import re

import pytest
from helpers import ROOT, python, run

DOCUMENT = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
RECORDED = ROOT / "benchmarks" / "results" / "2026-11-24-epyc-scale" / "scale.json"


def example(library):
    """The code of the document's section about `library`."""
    section = DOCUMENT.partition(f"\n## {library}\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return str(code)


COUNTED = """
import sys, gemm.frontend.api
calls, own = [], gemm.frontend.api.at_once
def counted(*args, **kwargs):
    calls.append(kwargs.get("reproducible", False))
    return own(*args, **kwargs)
for name in ("array", "tensordot"):
    sys.modules[f"gemm.numpy_api.{name}"].gemm = counted
"""


def test_cubed_multiplies_by_gemm(tmp_path):
    pytest.importorskip("cubed", reason="cubed is not installed (the extra `scale`)")
    check = """
import numpy as np, gemm
assert calls, "no block was multiplied by gemm"
same = np.testing.assert_allclose
same(c.compute(), np.asarray(a.compute()) @ np.asarray(b.compute()), rtol=1e-4, atol=1e-4)
print(len(calls))
"""
    printed = python(
        COUNTED + example("cubed") + check, cwd=tmp_path, CUBED_BACKEND_ARRAY_API_MODULE="gemm.numpy_api.namespace"
    )
    assert int(printed.splitlines()[-1]) >= 4


def test_xarray_multiplies_by_gemm(tmp_path):
    pytest.importorskip("xarray", reason="xarray is not installed (the extra `scale`)")
    pytest.importorskip("dask", reason="dask is not installed (the extra `scale`)")
    check = """
import numpy as np, gemm
assert True in calls, "the product of gemm.array did not go through gemm"
expected = gemm.gemm(np.asarray(a.data), np.asarray(b.data), reproducible=True)
assert product.dims == lazy.dims == ("row", "column")
assert np.array_equal(product.data, expected)
assert lazy.data.name.startswith("gemm-matmul")
assert np.array_equal(lazy.compute(), expected)
print("same bits")
"""
    assert python(COUNTED + example("xarray") + check, cwd=tmp_path).endswith("same bits\n")


def test_the_models_tables_are_what_it_prints():
    pytest.importorskip("dask", reason="dask is not installed (the extra `scale`)")
    printed = run(ROOT / "benchmarks/scale_model.py", RECORDED)
    assert len(printed.splitlines()) > 12
    assert printed in DOCUMENT


@pytest.mark.slow
def test_the_benchmark_of_scaling(tmp_path):
    pytest.importorskip("distributed", reason="dask.distributed is not installed (the extra `scale`)")
    file = tmp_path / "scale.json"
    options = ("--size", "300", "--rounds", "2", "--dtype", "float64", "--json", file)
    run(ROOT / "benchmarks/scale.py", "--workers", "1,2", *options)
    document = json.loads(file.read_text())
    assert document["schema"] == "gemm-scale/1"
    assert {"date", "command", "commit", "versions", "machine", "quiet", "rounds"} <= document.keys()
    constants = document["constants"]
    assert constants["rate"].keys() == {"float32", "float64"}
    assert constants["task"].keys() == {"local", "distributed"}
    assert min(*constants["task"].values(), *constants["rate"].values(), constants["bandwidth"]) > 0
    rows = {(row["scaling"], row["workers"]): row for row in document["results"]}
    assert rows.keys() == {(scaling, count) for scaling in ("strong", "weak") for count in (1, 2)}
    assert rows["strong", 2]["size"] == 300 < rows["weak", 2]["size"]
    for row in rows.values():
        assert row["seconds"].keys() == {"gemm", "gemm, auto", "gemm, chain", "dask"}
        for name, seconds in row["seconds"].items():
            assert row["ratios"][name] == row["seconds"]["dask"] / seconds
        if row["workers"] == 1:
            assert set(row["efficiency"].values()) == {1.0}
    with pytest.raises(AssertionError, match="usage: "):
        run(ROOT / "benchmarks/scale.py", "--workers", "1,none")
