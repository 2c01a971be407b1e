"""benchmarks/adreno_static.py reads a compiler's answer and the peers' sources right. The compiler is a stand-in."""

import json
import subprocess
import sys
from pathlib import Path

import helpers
import pytest

from gemm.catalog import KERNELS

ROOT = Path(__file__).resolve().parents[2]
ROWS = [row for row in KERNELS if row.target == "adreno"]

# Answers as the tool does, and the worse the more its kernel's name says so; notes its arguments beside itself.
TOOL = """#!{python}
import json, pathlib, sys
file, kernel, *rest = sys.argv[1:]
options = dict(zip(rest[::2], rest[1::2]))
source = pathlib.Path(file).read_text()
with open({log!r}, "a") as log:
    log.write(json.dumps([kernel, options, source]) + "\\n")
half = "HALF_SUMS=1" in rest[-1] or "#define PRECISION 16" in source
peer = "adreno" not in kernel
mads, slots = 128, 256 if peer else 160
stats = dict(full_regs=24, max_waves={peer_waves} if peer else 4, threads_per_wave=128, spill_instrs=0, instrs=900)
classes = {{"mad_f16" if half else "mad_f32": mads, "tex": 4, "ldg": 8 + 8 * peer, "int_alu": 9}}
print(json.dumps(dict(kernel=kernel, stats=stats,
                      main_loop=dict(mads={mads}, issue_slots=slots, nops=3, by_class=classes))))
"""
DATABASE = """
const DatabaseEntry XgemmSingle = {
  "Xgemm", Precision::kSingle, {"GEMMK", "MDIMC", "NDIMC"}, {
        { "default", {
          { Name{"QUALCOMM Adreno(TM)     "}, Params{ 0, 8, 8 } },
        } },
        { "OpenCL C 3.0 Adreno(TM) 740", {
          { Name{"QUALCOMM Adreno(TM)     "}, Params{ 0, 16, 4 } },
        } },
"""


@pytest.fixture
def peers(tmp_path):
    """Folders like CLBlast's and llama.cpp's, as arguments."""
    kernels, database = tmp_path / "c/src/kernels", tmp_path / "c/src/database/kernels/xgemm"
    llama = tmp_path / "l/src/ggml-opencl/kernels"
    for folder in (kernels / "level3", database, llama):
        folder.mkdir(parents=True)
    for name in ("common", "level3/level3", *(f"level3/xgemm_part{part}" for part in range(1, 5))):
        (kernels / f"{name}.opencl").write_text(f'R"(\n// {name}\n)"\n')
    for bits in (32, 16):
        (database / f"xgemm_{bits}.hpp").write_text(DATABASE)
    for name in ("mul_mm_f32_f32_l4_lm", "mul_mm_f16_f32_l4_lm", "mul_mat_f16_f32"):
        (llama / f"{name}.cl").write_text("// " + name)
    return "--clblast", str(tmp_path / "c"), "--llama", str(tmp_path / "l")


def run(tmp_path, *arguments, mads=128, peer_waves=4):
    tool = tmp_path / "tool"
    tool.write_text(TOOL.format(python=sys.executable, log=str(tmp_path / "log"), mads=mads, peer_waves=peer_waves))
    tool.chmod(0o755)
    command = [sys.executable, str(ROOT / "benchmarks/adreno_static.py"), str(tool), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_figures_and_verdict(tmp_path, peers):
    file = tmp_path / "out.json"
    done = run(tmp_path, "--gpus", "630,740", *peers, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(file.read_text(encoding="utf-8"))
    assert set(document) == {"format", "date", "commit", "rows", "verdict"}
    mine = [row for row in document["rows"] if row["by"] == "gemm"]
    assert [row["kernel"] for row in mine] == 2 * [row.name for row in ROWS]
    for row in mine:
        # 160 slots, 64 of which a multiply-add in half saves; 4 + 8 loads; 128 multiply-adds
        assert row["slots_per_mad"] == (0.75 if row["sums"] == "float16" else 1.25)
        assert (row["memory"], row["memory_per_mad"], row["registers"]) == (12, 0.0938, 24)
        assert (row["sums"] == "float16") == ("half" in row["kernel"])
    assert len(document["verdict"]) == 2 * 5  # CLBlast in two types, three of llama.cpp's
    for row in document["verdict"]:
        assert row["ours"].startswith("sgemm_" if row["dtype"] == "float32" else "hgemm_")
    calls = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    groups = [(options["--gpu"], options["--wg"]) for kernel, options, _ in calls if kernel == "Xgemm"]
    assert groups == 2 * [("630", "8,8")] + 2 * [("740", "16,4")]
    assert not any('R"(' in source or ')"' in source for kernel, _, source in calls if kernel == "Xgemm")


def test_a_peer_that_is_not_beaten_is_told(tmp_path, peers):
    done = run(tmp_path, "--gpus", "740", *peers, peer_waves=6)
    assert done.returncode == 1
    assert done.stdout.count("not beaten on A740") == 5


def test_what_cannot_be_read_is_an_error(tmp_path):
    done = run(tmp_path, "--gpus", "740", mads=0)
    assert (done.returncode, "no loop multiplies" in done.stderr) == (2, True)
    done = run(tmp_path, "--gpus", "740", "--llama", str(tmp_path))
    assert (done.returncode, "cannot be read" in done.stderr) == (2, True)
    assert run(tmp_path, "--gpus", "900").returncode == 2


def test_docs_are_those_of_the_record():
    helpers.run(ROOT / "docs/make_adreno_table.py", "--check")
