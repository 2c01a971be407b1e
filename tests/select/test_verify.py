"""What `gemm verify` finds: faults of kernels that only show where launches overlap or blocks walk several tiles.

Each runs on an emulated GPU of few multiprocessors, whose waves are cheap, in a process of its own.
"""

import pytest
from helpers import machine, python, run

pytest.importorskip("ml_dtypes")

ROW = "sgemm_cuda_emulated_fp16x3_128x192"
PLANT = """
import sys
from gemm.core import disk_cache as sources
from gemm.backends.cuda import backend as cuda_backend
from gemm.catalog import BY_NAME
from gemm.backends import registry
from gemm.select.verify.single import Mismatch
from gemm.select.verify.suite import planned

name, fault, only = sys.argv[1:]
plain = sources.read
def read(source):
    text = plain(source)
    if fault == "ring" and str(source).endswith("hopper.cuh"):  # blocks that share b no longer wait for each other
        for waits in ("void return_ring() {", "void await_ring() {"):
            head, rest = text.split(waits)
            text = head + waits + rest.replace("if (SHARING > 1)", "if (false)", 1)
    if fault == "walk" and str(source).endswith("hopper.cuh"):  # the second tile of a cluster is another one
        assert "z += leap, rest += step;" in text
        text = text.replace("z += leap, rest += step;", "z += leap, rest += step + (g.parts > 1);")
    return text
sources.read = read
ways = []
made = cuda_backend.recipe
def recipe(kernel, chip, layout):
    plan = made(kernel, chip, layout)
    ways.extend((kernel.name, step.grid[0] // step.cluster, step.cluster) for step in plan.steps if step.scaled)
    return plan
cuda_backend.recipe = recipe
backend = registry.backend("cuda")
device, row = backend.devices()[0], BY_NAME[name]
try:
    for told, check in planned(backend, row, device, full=False):
        if only in told:
            check()
except Mismatch as error:
    print("Mismatch:", error)
else:
    print("passed")
print("clusters", sorted({way[1:] for way in ways if way[0] == name}))
"""


def planted(fault, only="", *, name=ROW, seed=1):
    """What the quick verification says of a row with a fault; `only`: of its checks whose names have that."""
    return python(PLANT, name, fault, only, **machine(sms=2, seed=seed))


SINGLE = "alpha="  # the short cases' names have it


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["ring", "walk"])
def test_a_fault_of_walking_clusters_is_found(fault):
    """One that k must be cut for, and tiles be more than clusters: the short cases do not show it.

    The ring's fault is a race, which about half of the emulated GPU's orders show: it has several.
    """
    assert "passed" in planted(fault, SINGLE)
    for seed in range(1, 9 if fault == "ring" else 2):
        said = planted(fault, "k in parts, whole waves", seed=seed)
        if "Mismatch" in said:
            break
    assert "Mismatch" in said
    assert "in a row is wrong" in said


@pytest.mark.slow
def test_a_right_kernel_passes_in_every_regime():
    said = planted("")
    assert "passed" in said
    assert "(1, 8)" in said  # a single cluster, of four parts for each of two blocks, for all tiles


def test_stress_passes_and_repeats_by_its_seed():
    told = run(
        "-m", "gemm", "verify", "--backends", "cuda", "--kernel", "sgemm_cuda_ffma_64x64",
               "--stress", "3", "--seed", "5", **machine(sms=2),
    )  # fmt: skip
    assert "--seed 5" in told
    assert "all right" in told
