"""The peer comparison runs, writes what it documents and can be drawn. Nothing is asserted about speed.

And Intel's assembly is read rightly: intel_assembly/ has loops of our block_read_4x1, as its compiler wrote them."""

import importlib
import json
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import helpers
import pytest
from helpers import machine

from gemm import execute
from gemm.catalog import BY_NAME, KERNELS
from gemm.core.problem import Problem
from gemm.select import choice

ROOT = Path(__file__).resolve().parents[2]
COMMON = {"family", "dtype", "threads", "m", "n", "k", "batch", "layout", "kernel", "ratios", "spreads", "best_peer",
          "ratio", "seconds", "gflops", "cores", "settling", "repeats", "worst_error", "samples"}  # fmt: skip
PLAIN = {"percent_of_peak", "percent_of_read"}
FAMILIES = {**dict.fromkeys(("square", "skinny", "thin", "random", "batched", "dtypes"), PLAIN),
            "call": {"plain_ratios"}, "rotation": {"call_seconds"}, "prepare": {"gain"}, "scaling": {"speedup"},
            "beside": {"slowdown"}, "contention": {"slowdown"}}  # fmt: skip
PEERS = {"numpy", "openblas"}


def run(script, *arguments):
    command = [sys.executable, str(ROOT / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The file of a quick run against NumPy, at both levels."""
    pytest.importorskip("threadpoolctl", reason="it sets NumPy's threads")
    pytest.importorskip("gemm._cpu", reason="the CPU engine is what is compared")
    file = tmp_path_factory.mktemp("peers") / "cpu.json"
    options = "--quick", "--peers", "numpy,openblas", "--dtype", "float32,int32,complex64", "--contention"
    told = helpers.run(ROOT / "benchmarks/cpu_vs_peers.py", *options, "--worst", "3", "--json", file)
    assert "Geometric means" in told
    assert "The lowest ratios" in told
    return file


def test_peer_comparison_writes_its_schema(recorded):
    document = json.loads(recorded.read_text(encoding="utf-8"))
    assert set(document) == {
        "schema", "date", "command", "commit", "versions", "machine", "environment", "cpuinfo", "device", "rounds",
        "sample_s", "peers", "absent", "unable", "peaks", "read_gbs", "results", "means", "quiet",
    }  # fmt: skip
    assert document["schema"] == "gemm-cpu-peers/3"
    assert str(recorded.parent) not in recorded.read_text(encoding="utf-8")  # folders tell of a machine
    assert set(document["peers"]) - {"gemm"} == {"plan", "numpy", "openblas"} - document["absent"].keys()
    assert document["absent"].keys() <= {"openblas"}  # a NumPy with another BLAS, or no C compiler
    assert document["quiet"].keys() == {
        "load_before", "load_after", "others_before", "stolen_before", "others_cores", "stolen", "median_spread",
        "warnings",
    }  # fmt: skip
    threads = max(row["threads"] for row in document["results"])
    left_out = {"scaling", "beside"} if threads == 1 else set()  # one has nothing to scale to, and no pool
    if "gemm" not in document["peers"]:
        left_out |= {"beside"}
    if "prepared" in document["unable"]:
        left_out |= {"prepare"}
    assert {row["family"] for row in document["results"]} == FAMILIES.keys() - left_out


def test_peer_comparison_has_whole_rows(recorded):
    document = json.loads(recorded.read_text(encoding="utf-8"))
    for row in document["results"]:
        assert set(row) == COMMON | FAMILIES[row["family"]]
        assert {name.partition(",")[0] for name in row["ratios"]} <= PEERS
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


def test_peer_comparison_refuses_nonsense():
    for wrong in (("--peers", "cublas"), ("--families", "round"), ("--library", "nameless"), ("--threads", "0"),
                  ("--shapes", "2x3")):  # fmt: skip
        done = run("benchmarks/cpu_vs_peers.py", *wrong)
        assert done.returncode == 2
        assert wrong[1] in done.stderr


def test_random_products_come_from_the_seed(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    shapes = importlib.import_module("peers.shapes")
    drawn = shapes.random_shapes(3, 50)
    assert drawn == shapes.random_shapes(3, 60)[:50] != shapes.random_shapes(4, 50)
    assert {shape.layout for shape in drawn} == set(shapes.TRANSPOSED)
    for shape in (drawn[0]._replace(layout=layout) for layout in shapes.TRANSPOSED):
        a, b, out = shapes.operands(shape, "float32")
        assert (a.shape, b.shape, out.shape) == (shape[0:3:2], shape[2:0:-1], shape[:2])


def test_a_library_that_ends_its_process_is_unable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    workers = importlib.import_module("peers.workers")
    monkeypatch.setattr(workers, "_native", str)  # no compiler is needed
    found, absent = workers.load([{"lost": partial(os._exit, 3)}])
    assert not found
    assert "exit code 3" in absent["lost"]


def test_cpu_chart(recorded, tmp_path):
    pytest.importorskip("matplotlib", reason="it draws the chart")
    chart, more = tmp_path / "cpu.svg", tmp_path / "more.json"
    document = json.loads(recorded.read_text(encoding="utf-8"))
    document["results"] = [row | {"dtype": "float64"} for row in document["results"] if row["family"] == "skinny"]
    more.write_text(json.dumps(document), encoding="utf-8")  # a type that lacks a family
    helpers.run(ROOT / "docs/make_cpu_chart.py", recorded, more, "--output", chart)
    drawn = chart.read_text(encoding="utf-8")
    assert drawn.lstrip().startswith("<?xml")
    chart.unlink()
    (tmp_path / "other.json").write_text('{"schema": "other"}')
    assert run("docs/make_cpu_chart.py", str(tmp_path / "other.json"), "--output", str(chart)).returncode == 2
    assert not chart.exists()


def test_like_is_set_against_like(recorded):
    document = json.loads(recorded.read_text(encoding="utf-8"))
    if not {"gemm", "openblas"} <= document["peers"].keys():
        pytest.skip("it takes a C compiler, and NumPy's own OpenBLAS")
    for row in document["results"]:
        if row["family"] in ("square", "skinny"):
            for ours, peer in (("gemm", "openblas"), ("plan", "numpy")):
                rounds = [his / our for our, his in zip(row["samples"][ours], row["samples"][peer], strict=True)]
                assert math.isclose(row["ratios"][peer], sorted(rounds)[len(rounds) // 2], rel_tol=1e-3)


def test_roofs_are_measured(recorded):
    document = json.loads(recorded.read_text(encoding="utf-8"))
    if "gemm" not in document["peers"]:
        pytest.skip("it takes a C compiler")
    assert all(rate > 0 for rates in document["read_gbs"].values() for rate in rates.values())
    for row in document["results"]:
        peak = document["peaks"].get(row["dtype"], {}).get(str(row["threads"]))
        if row["family"] == "square" and peak:
            assert math.isclose(row["percent_of_peak"], 100 * row["gflops"]["gemm"] / peak["gflops"], rel_tol=1e-3)
        assert row.get("percent_of_read") is None or row["family"] == "skinny"


@pytest.fixture(scope="module")
def beside_cublas(tmp_path_factory):
    """What cuda_vs_cublas.py writes of tiny products on an emulated GPU, without cuBLAS."""
    file = tmp_path_factory.mktemp("cublas") / "cublas.json"
    options = "--quick", "--only", "float32$|calls|transfers", "--json", file
    assert "WRONG" not in helpers.run(ROOT / "benchmarks/cuda_vs_cublas.py", *options, timeout=500, **machine())
    return json.loads(file.read_text(encoding="utf-8"))


def test_cublas_comparison_writes_its_schema(beside_cublas):
    assert set(beside_cublas) == {
        "schema", "date", "command", "commit", "versions", "machine", "environment", "device", "clocks", "rounds",
        "sample_s", "peers", "copy_gbs", "results", "calls", "transfers",
    }  # fmt: skip
    assert beside_cublas["schema"] == "gemm-cuda-cublas/1"
    assert set(beside_cublas["peers"]) == {"torch", "torch, cublasLt", "cupy", "cublasLt"}
    assert {(row["batch"], row["m"]) for row in beside_cublas["results"]} == {(0, 64), (0, 5), (3, 16)}
    for row in beside_cublas["results"]:
        assert row["seconds"]["gemm"] > 0
        assert row["worst_error"]["gemm"] <= row["allowed_error"]
        assert row["graph"]["gemm"]
        assert row["tflops"].keys() == row["seconds"].keys() == row["worst_error"].keys()
    assert all(seconds > 0 for seconds in beside_cublas["calls"].values())
    assert all(row["ratio"] > 0 for row in beside_cublas["transfers"])


def test_cuda_chart(beside_cublas, tmp_path):
    pytest.importorskip("matplotlib", reason="it draws the chart")
    file, chart = tmp_path / "cublas.json", tmp_path / "cuda.svg"
    for row in beside_cublas["results"]:
        row["best"], row["tflops"]["torch"] = "torch", row["tflops"]["gemm"] / 1.1
    file.write_text(json.dumps(beside_cublas), encoding="utf-8")
    helpers.run(ROOT / "docs/make_cuda_chart.py", file, "--output", chart)
    assert chart.read_text(encoding="utf-8").lstrip().startswith("<?xml")
    chart.unlink()
    file.write_text('{"schema": "other"}', encoding="utf-8")
    assert run("docs/make_cuda_chart.py", str(file), "--output", str(chart)).returncode == 2
    assert not chart.exists()


def test_cuda_forms_are_all_compiled_in_turn(monkeypatch):
    """The ends of a row's architectures, and two forms at least; nothing twice; all architectures by some row."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("cuda_compile")
    seen = set()
    for row in (row for row in KERNELS if row.backend == "cuda"):
        for archs in (["sm_90a"], [f"sm_{n}" for n in (50, 75, 80, 86, 90, 100, 120)], []):
            jobs = module.jobs(row, archs, every=False)
            found = {arch for _, arch, _ in jobs}
            seen |= found
            assert {*archs[:1], *archs[-1:]} <= found <= set(archs)
            assert len({str(job[1:]) for job in jobs}) == len(jobs) <= 4
            every = module.jobs(row, archs, every=True)
            assert len({module.program(job) for job in every}) == len(every) == len(archs) * len(module.forms_of(row))
    assert {"sm_90a", *(f"sm_{n}" for n in (50, 75, 80, 86, 90, 100, 120))} == seen
    mixed = (
        module.jobs(BY_NAME[f"{types}bgemm_cuda_tile"], ["sm_90"], every=True) for types in ("e4m3e5m2", "e5m2e4m3")
    )
    assert len({frozenset(map(module.program, jobs)) for jobs in mixed}) == 1  # they are compiled once
    table = [{"kernel": "x", "arch": "sm_90", "registers": r, "shared": 0, "spills": s, "error": e}
             for r, s, e in ((40, 0, ""), (32, 8, "spills registers"), (50, 0, ""))]  # fmt: skip
    (worst,) = module.worst(table)
    assert (worst["forms"], worst["registers"], worst["spills"]) == (3, 50, 8)
    assert worst["error"] == "spills registers"


@pytest.fixture
def intel(monkeypatch):
    """benchmarks/intel_static.py as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("intel_static")


@pytest.mark.parametrize(("device", "loop"), [("bdw", 44), ("tgllp", 46), ("dg2", 45)])
def test_intel_loop_is_found(intel, device, loop):
    """Each generation ends a loop by another instruction: jmpi, while, goto."""
    text = (ROOT / "tests" / "intel_assembly" / f"{device}.asm").read_text(encoding="utf-8")
    listing = intel.assembly.parse(text)
    assert listing.loop is not None
    assert (listing.loop.mads, len(listing.loop.instructions), listing.loop.sends) == (4 * 8, loop, 2)
    assert listing.loop.share == 32 / loop
    assert listing.instructions > loop
    assert (listing.spilled, listing.flags, listing.loop.scratch) == (0, 0, 0)
    spills = text.replace("//.platform", "//.spill size 1248\n//.spill flag store 3\n//.platform")
    stored = "(W) send (8|M0) null r1:f 0xA 0x040F0024 // hword scratch block write x1\n"
    first = next(line for line in text.splitlines() if intel.assembly.multiplies_floats(line))
    worse = intel.assembly.parse(spills.replace(first, f"{stored}{first}"))
    assert (worse.spilled, worse.flags, worse.loop.scratch, worse.loop.sends) == (1248, 3, 1, 3)
    assert intel.assembly.parse(text.replace(" mad ", " mul ")).loop is None
    with pytest.raises(ValueError, match="not an assembly file"):
        intel.assembly.parse("L0:\n  nop\n")


MATRIX_LOOPS = {
    "dg2, Debian 12": """\
L1:
(W)     send.dc0 (16|M0)   r12      r2      null:0  0x0   0x02484401   {A@1,$7} // wr:1h+0, rd:4; oword
(W)     add (1|M0)   r2.0<1>:d     r2.0<0;1,0>:d     256:w   {Compacted}
        sync.nop   null   {Compacted,$1.src}     // $168
        dpas.8x8 (8|M0)   r56:f   null:f   r56:hf   r56.0:hf   {$1}
        dpas.8x8 (8|M0)   r60:f   r60:f   r4:hf   r108.0:hf   {Atomic} // $168
(f0.1)  goto.b (8|M0)   _0_201   L1   // $239
""",
    "bmg-g21": """\
L1:
(W)     load.ugm.d32x64t.a64 (1|M0)  r4:4   [r3:1+0x100]      {$3} // ex_desc:0x100000; desc:0x240F580 // $185
(W)     add (1|M0)   r12.0<1>:q    r38.1<0;1,0>:q    r38.5<0;1,0>:q   {Compacted}   //  ALU pipe: int
        sync.nop   null   {Compacted,F@1}   // $201
        sync.allwr   ($1,$3,$4)   // $201
        dpas.8x8 (16|M0)   r48:f   r48:f   r13:hf   r23.0:hf   {Atomic,Compacted}
(W)     jmpi   L1   // $215
""",
    "ptl-h": """\
L1:
(W)     send.ugm (1|M0)   r8   r2  null:0  0x0   0x0240F580   {$5} // wr:1+0, rd:4; load.ugm
(W)     add (1|M0)   r12.0<1>:q    r38.1<0;1,0>:q    r38.5<0;1,0>:q   {Compacted}   //  ALU pipe: int
        sync.nop   null   {Compacted,F@1}   // $201
        sync.allwr   ($1,$3,$4)   // $201
        dpas.8x8 (16|M0)   r48:f   r48:f   r13:hf   r23.0:hf   {Atomic,Compacted}
(W)     jmpi   L1   // $215
""",
}


@pytest.mark.parametrize("loop", MATRIX_LOOPS.values(), ids=MATRIX_LOOPS.keys())
def test_intel_matrix_units_fill_eight_slots(intel, loop):
    """Each of these loops has one dpas, one message of four registers, and four other instructions."""
    listing = intel.assembly.parse(f"//.kernel x\n//.thread_config numGRF=256, numAcc=8, numSWSB=16\n{loop}")
    assert listing.available == 256
    assert (listing.loop.dpas, listing.loop.sends, len(listing.loop.instructions)) == (1, 1, 6)
    assert listing.loop.matrix_share == 8 / 13
    assert listing.loop.read(64) == 4 * 64


def test_intel_registers_are_those_that_hold_variables(intel):
    declared = [
        "//.declare V1 (40)  rf=r size=64 type=f align=16 words (r8.0)",
        "//.declare V2 (41)  rf=r size=32 type=d alias=+0 align=16 words (r9.0)",
        "//.declare V3 (42)  rf=r size=4 type=d align=2 words (r12.4)",
        "//.declare P1 (43)  rf=f8  size=2 type=uw align=1 words (f0.0)",
    ]
    assert intel.assembly.parse("\n".join(["//.kernel x", *declared])).registers == 3  # r8, r9, r12


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("mad (8|M0)  r60.0<1>:f  r60.0<2;1>:f  r72.0<2;1>:f  r7.0<0>:f {Compacted}", True),
        ("mac (8|M0)  r61.0<1>:f  r73.0<8;8,1>:f  r23.1<0;1,0>:f", True),
        ("(W) mad (16|M0)  acc0.0<1>:hf  r1.0<8;1>:hf  r2.0<8;1>:hf  r3.0<0>:hf", True),
        ("mad (8|M0)  r60.0<1>:d  r60.0<8;1>:d  r72.0<8;1>:d  r7.0<0>:w", False),
        ("mach (8|M0)  r60.0<1>:d  r60.0<8;8,1>:d  r72.0<8;8,1>:d", False),
        ("mul (8|M0)  r60.0<1>:f  r60.0<8;8,1>:f  r72.0<8;8,1>:f", False),
    ],
)
def test_intel_multiply_adds_are_those_of_floats(intel, text, counts):
    assert intel.assembly.multiplies_floats(text) is counts


def test_intel_faults_are_told(intel):
    row = {"kernel": "sgemm_x", "device": "bdw", "share": 0.9, "spilled": 0, "auto": True}
    assert intel.faults([row]) == []
    assert len(intel.faults([row | {"spilled": 32}])) == 1
    assert intel.faults([row | {"spilled": 32, "auto": False}]) == []
    assert len(intel.faults([row | {"share": 0.84}])) == 1
    assert intel.faults([row, row | {"kernel": "hgemm_x", "share": 0.1}]) == []
    matrix = {"kernel": "s8s32gemm_y", "device": "pvc", "share": 0.7, "spilled": 0, "auto": True, "dpas": 8}
    assert intel.faults([matrix | {"traffic": 1.3}]) == []
    assert len(intel.faults([matrix | {"traffic": 1.4}])) == 1
    assert len(intel.faults([matrix | {"traffic": 1.0, "spilled": 64}])) == 1


AMD_LOOP = """\
\t.text
helper:
.LBB0_1:
\tv_wmma_f32_16x16x16_f16 v[0:7], v[8:11], v[12:15], v[0:7]
\ts_cbranch_scc1 .LBB0_1
.Lfunc_end0:
gemm_x:
.LBB1_1: ; before the loop
\tv_mov_b32_e32 v0, 0
.LBB1_2:
\tglobal_load_b128 v[8:11], v[16:17], off offset:512 ; a comment
\ts_wait_loadcnt 0x0
\t{0}
\ts_cbranch_scc1 .LBB1_2
\ts_cbranch_execz .LBB1_4
.LBB1_4:
\ts_endpgm
.Lfunc_end1:
; Occupancy: 16
    .sgpr_count:     34
    .vgpr_count:     78
"""


@pytest.mark.parametrize(
    ("instruction", "units", "fmas"),
    [
        ("v_wmma_i32_16x16x16_iu8 v[0:7], v[8:11], v[12:15], v[0:7] neg_lo:[1,1,0]", 1, 0),
        ("v_dual_fmac_f32 v1, v2, v3 :: v_dual_fmac_f32 v4, v5, v6", 0, 2),
        ("v_dual_fmac_f32 v1, v2, v3 :: v_dual_mov_b32 v4, v5", 0, 1),
        ("v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[0:1]", 0, 2),
        ("v_fmac_f32_e32 v1, v2, v3", 0, 1),
        ("v_fma_f32 v1, v2, v3, v4", 0, 1),
    ],
)
def test_amd_loop_is_found(monkeypatch, instruction, units, fmas):
    """Of the kernel, not of other functions of the program."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    amd = importlib.import_module("amd_static")
    listing = amd.parse(AMD_LOOP.format(instruction), "gemm_x")
    assert len(listing.loop) == 4
    assert (listing.units, listing.fmas) == (units, fmas)
    assert listing.figures == {"sgpr_count": 34, "vgpr_count": 78, "occupancy": 16}
    with pytest.raises(ValueError, match="no assembly of gemm_y"):
        amd.parse(AMD_LOOP, "gemm_y")


def test_amd_record_is_of_rows_that_are_there_and_none_spills(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    amd = importlib.import_module("amd_static")
    records = sorted((ROOT / "benchmarks" / "results").glob("*-amd-static/amd_static.json"))
    if not records:
        pytest.skip("source distributions carry no recorded runs")
    rows = json.loads(records[-1].read_text(encoding="utf-8"))["rows"]
    assert {(row["kernel"], row["device"]) for row in rows} == {(row.name, device) for row, device in amd.jobs("")}
    assert not any(row["spilled"] for row in rows if row["units"])


def _intel_record():
    records = sorted((ROOT / "benchmarks" / "results").glob("*-intel-static/intel_static.json"))
    if not records:
        pytest.skip("source distributions carry no recorded runs")
    return json.loads(records[-1].read_text(encoding="utf-8"))


def _identity(row):
    return row["kernel"], row["device"], tuple(sorted(row["chosen"].items()))


def _wanted(row, device):
    return row.name, device, tuple(sorted(row.chosen.items()))


def test_intel_record_is_of_rows_that_are_there_and_none_spills(intel):
    """Of the catalog and of gemm/tuned as they are now. A row that is new need not be recorded yet."""
    record = _intel_record()
    found = {_identity(row): row for row in record["rows"]}
    wanted = {_wanted(row, device): intel.automatic(row) for row, device in intel.jobs("")}
    assert {key: row["auto"] for key, row in found.items()}.items() <= wanted.items()
    assert intel.faults(record["rows"]) == []


def test_intel_record_of_matrix_units_is_of_rows_that_are_there(intel):
    """Each row on each device that has its sub-groups, none of which spills or reads twice."""
    records = sorted((ROOT / "benchmarks" / "results").glob("*-intel-matrix/intel_matrix.json"))
    if not records:
        pytest.skip("source distributions carry no recorded runs")
    rows = json.loads(records[-1].read_text(encoding="utf-8"))["rows"]
    wanted = {(row.name, device) for row, device in intel.matrix_jobs("", list(intel.MATRIX))}
    assert {(row["kernel"], row["device"]) for row in rows} == wanted
    assert intel.faults(rows) == []


def test_intel_values_that_are_shipped_are_better_by_the_record(intel):
    record = _intel_record()
    tuned = [row for row in record["rows"] if row["chosen"]]
    plain = {_identity(row): row for row in record["rows"]}
    assert {row["device"] for row in tuned} == {"bdw"}
    for row in tuned:
        assert row["share"] > plain[row["kernel"], row["device"], ()]["share"], row


@pytest.mark.parametrize(("dtype", "goal"), [("float32", 0.85), ("float16", 0.75)])
@pytest.mark.parametrize("device", ["bdw", "skl", "icllp", "tgllp", "dg2"])
def test_auto_takes_the_best_row_on_intel_gpus(intel, monkeypatch, device, dtype, goal):
    """With all rows verified, and as fast as their loops' shares of multiply-adds say."""
    record = _intel_record()
    gpu = intel.gpu(device)
    rows = [row for row in record["rows"] if row["device"] == device and row["auto"]]
    labels = {_wanted(kernel, at): kernel.label for kernel, at in intel.jobs("") if at == device}
    facts = helpers.probed((gpu, {
        labels[_identity(row)]: {"launch": 1e-5, "flops": 4e11 * row["share"] + 1e9} for row in rows
    }))  # fmt: skip
    helpers.remember(monkeypatch, facts)
    problem = Problem(dtype, 1024, 1024, 1024, device=gpu.key)
    chosen = min((c for c in choice.candidates(problem, "opencl", holder=gpu) if c.seconds), key=lambda c: c.seconds)
    best = max((row for row in rows if row["kernel"].startswith("s" if dtype == "float32" else "h")),
               key=lambda row: row["share"])  # fmt: skip
    assert chosen.kernel.label == labels[_identity(best)]
    assert best["share"] >= goal
    if dtype == "float32":
        found = choice.candidates(problem, "opencl", "sgemm_intel_L3_SIMD_8x4_1x8", holder=gpu)[0]
        wanted = (2, "predicted for this architecture") if device == "bdw" else (4, "predicted for this vendor")
        assert (found.kernel.params["KV"], found.origin) == wanted


def test_intel_table_is_that_of_the_record():
    _intel_record()  # where there is one
    helpers.run(ROOT / "docs/make_intel_table.py", "--check")
    helpers.run(ROOT / "docs/make_amd_table.py", "--check")


def test_hybrid_is_set_beside_both_sides_alone(tmp_path):
    file = tmp_path / "hybrid.json"
    options = "--sizes", "64,128,20000", "--rounds", "3", "--sample", "0.0005", "--limit", "60"
    options += "--dtypes", "float32,float64,complex128"  # the last one: no OpenCL device multiplies it
    done = run("benchmarks/hybrid.py", *options, "--json", str(file))
    if "no device besides the CPU" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["schema"] == "gemm-hybrid/2"
    assert {(row["n"], row["dtype"]) for row in document["results"]} == {
        (n, dtype) for n in (64, 128) for dtype in ("float32", "float64")
    }
    whys = {(row["n"], row["dtype"]): row["why"] for row in document["left_out"]}
    assert all("beyond --limit" in whys[20000, dtype] for dtype in ("float32", "float64"))
    for row in document["results"]:
        times = row["times"]
        assert row["gain"] == min(times["cpu"], times["device"]) / times["hybrid"]
        assert row["ratio"] == times["cpu"] / times["device"]
        assert row["within"] == (0.1 <= row["ratio"] <= 10)
        assert sum(row["rows"].values()) == row["n"]
    assert "left out" in done.stdout
    assert any(row["within"] for row in document["results"]) == ("* within 10 times of each other" in done.stdout)


def test_the_house_is_measured(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    house = importlib.import_module("house")
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}
    assert house.circles(graph) == [["a", "b", "c"]]
    helpers.remember(monkeypatch, None)  # the calls of a new shape depend on what a probe has found
    execute.forget()
    calls = house.calls()
    execute.forget()
    assert calls["repeated"] == (0, 0, 0)
    assert all(count <= most for count, most in zip(calls["first"], (120, 60, 12), strict=True))


def test_regret_is_that_of_what_auto_chose(tmp_path):
    file = tmp_path / "regret.json"
    options = "--problems", "8", "--rounds", "3", "--sample", "0.0005", "--work", "1e7", "--memory", "1e7"
    told = helpers.run(ROOT / "benchmarks/auto_regret.py", *options, "--json", file)
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["schema"] == "gemm-auto-regret/1"
    assert 0 < len(document["results"]) <= 8
    for row in document["results"]:
        assert {row["chosen"], row["best"]} <= row["times"].keys()
        assert row["regret"] == 1 if row["chosen"] == row["best"] else row["regret"] >= 1
    whole = document["regret"]["all"]
    assert whole["count"] == len(document["results"])
    assert 1 <= whole["median"] <= whole["p95"] <= whole["worst"] == max(row["regret"] for row in document["results"])
    assert document["decision"].keys() - {"new_resident"} == {"new", "first_new", "repeated", "first_call", "import"}
    assert "Largest regrets" in told


def test_recorded_choices_are_replayed(tmp_path):
    pytest.importorskip("ml_dtypes", reason="some were of bfloat16")
    folder = ROOT / "benchmarks/results/2026-11-24-h200-auto"
    runs = [str(folder / f"auto_regret{x}.json") for x in ("", "_tuned")]
    told = helpers.run(ROOT / "benchmarks/auto_model.py", *runs, "--worst", "3", "--probe", str(folder / "probe"))
    assert told.count(", recorded ") == 3 + 2
    lines = {line.split("  ")[0]: line.split() for line in told.splitlines() if ":0, " in line[:10]}
    assert lines.keys() == {f"{key}:0, {how}" for key in ("cuda", "opencl") for how in ("recorded", "model")}
    for _, _, products, median, p95, worst, *_ in lines.values():
        assert int(products) > 50
        assert 1 <= float(median) <= float(p95) <= float(worst)
    (tmp_path / "other.json").write_text('{"schema": "other"}')
    assert run("benchmarks/auto_model.py", str(tmp_path / "other.json")).returncode == 2


def test_merging_is_timed_beside_calls_one_by_one(tmp_path):
    file = tmp_path / "batching.json"
    told = helpers.run(
        ROOT / "benchmarks/batching.py", "--sizes", "4,8", "--count", "50", "--rounds", "3", "--json", str(file)
    )
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["schema"] == "gemm-batching/1"
    assert {(row["size"], row["place"]) for row in document["results"]} >= {
        (size, place) for size in (4, 8) for place in ("separate", "slices")
    }
    for row in document["results"]:
        assert {"one by one", "batching", "gemm_many"} <= row["seconds"].keys() == row["ratios"].keys()
        assert row["ratios"]["one by one"] == 1
    assert "gemm_many" in told
    assert run("benchmarks/batching.py", "--sizes", "4,none").returncode == 2
