"""The regimes of launches: that gemm.select.verify.regimes finds every one there is, and that launches go as it says.

How many clusters a launch has, and into how many parts it cuts k, is read off the recipe that the host makes of it.
"""

import struct
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

from gemm.backends import registry
from gemm.backends.cuda.launch_plan import Chip, Layout, recipe
from gemm.catalog import BY_NAME, KERNELS, launch_arithmetic
from gemm.core.problem import Device, Problem
from gemm.select.verify.launches import unable
from gemm.select.verify.regimes import launched, name_of, regimes
from gemm.select.verify.single import Mismatch, types_of
from gemm.select.verify.suite import BEYOND, left_out, planned

ROWS = [row for row in KERNELS if row.backend == "cuda"]
OPENCL = [row for row in KERNELS if row.backend == "opencl"]
DEEP = (*range(1, 41), *(base << shift for base in (5, 7, 8) for shift in range(3, 11)), 1 << 20)
"""Steps along k. What is best of so many parts does not change any more where k is longest: all times grow with it."""


@cache
def gpu(units, capability=90):
    features = {f"sm_{x}" for x in (75, 80, 90) if x <= capability} | ({"sm_90a"} if capability >= 90 else set())
    return Device("cuda", "cuda:0", f"{units} of {capability}", kind="gpu", features=frozenset(features),
                  limits={"sm_count": units, "compute_capability": capability})  # fmt: skip


@cache
def opencl(units):
    return Device("opencl", "opencl:0", f"{units}", kind="gpu", features=frozenset({"denorms"}),
                  limits={"compute_units": units})  # fmt: skip


def arithmetic(kernel):
    """What a row's launch arithmetic depends on."""
    names = "BM BN BK MULTICAST STACK blocks RESIDENT THREADS shared parts shares waits"
    return (*map(kernel.params.get, names.split()), kernel.gflops, kernel.startup, kernel.swap)


def strides_of(problem, sizes):
    """Of operands as the problem's layout says, in bytes; c lies as out."""
    m, n, k = problem.m, problem.n, problem.k
    found = []
    for letter, rows, columns, size in zip(problem.layout, (m, k, m), (k, n, n), sizes, strict=True):
        row, column = (columns, 1) if letter == "N" else (1, rows)
        batch = (rows * columns * size,) if problem.batch > 1 else ()
        found.append((*batch, row * size, column * size))
    return (*found, found[-1])


def made(kernel, device, problem):
    """(clusters or groups of blocks, blocks of each, parts) of each launch of the kernel, off the host's recipe."""
    dtype, (a, b) = types_of(kernel)
    shape = (problem.batch, problem.m, problem.n) if problem.batch > 1 else (problem.m, problem.n)
    layout = Layout(shape, problem.k, strides_of(problem, [a.itemsize, b.itemsize, dtype.itemsize]), (16,) * 4,
                    ordered=problem.reproducible)  # fmt: skip
    chip = Chip(device.limits["compute_capability"], device.limits["sm_count"])
    plan = recipe(kernel, chip, layout)
    found = []
    for step in plan.steps:
        if step.kernel is kernel:
            parts = struct.unpack_from("4i", step.parameters, struct.calcsize("5Q4q12q2q2Q"))[0]
            blocks_of_all = step.grid[0] * step.grid[1]
            found.append((blocks_of_all // (kernel.params.get("MULTICAST", 1) * parts), step.cluster, parts))
    return found


@pytest.mark.parametrize(("units", "capability"), [(132, 90), (2, 90), (108, 80), (16, 75)])
def test_launches_go_as_the_regimes_say(units, capability):
    """Parts, and how many clusters walk the tiles of a persistent grid, are those of the recipe."""
    device, seen = gpu(units, capability), set()
    for kernel in ROWS:
        if set(kernel.needs) - device.features or (arithmetic(kernel), kernel.inputs) in seen:
            continue
        seen.add((arithmetic(kernel), kernel.inputs))
        for name, problem in regimes(kernel, device).items():
            way, launches = launched(kernel, device, problem), made(kernel, device, problem)
            clusters, _, parts = launches[0]
            assert len(launches) == 1, (kernel.name, name)
            assert parts == way.parts, (kernel.name, name)
            if way.shared:
                assert clusters == launch_arithmetic.room(units, launch_arithmetic.resident(kernel), 1)
            elif kernel.params.get("blocks"):
                assert clusters == min(way.tiles, way.at_once), (kernel.name, name)
            else:
                assert clusters == way.tiles, (kernel.name, name)


@pytest.mark.parametrize(("units", "capability"), [(2, 90), (7, 90), (132, 90)])
def test_every_regime_that_can_be_reached_is(units, capability):
    """By trying numbers of tiles up to three rounds of the most clusters, of every depth: there is no other regime."""
    device, seen, some = gpu(units, capability), set(), 0
    for kernel in ROWS:
        if set(kernel.needs) - device.features or arithmetic(kernel) in seen:
            continue
        seen.add(arithmetic(kernel))
        p, known = kernel.params, set(regimes(kernel, device))
        most = 3 * launch_arithmetic.room(units, launch_arithmetic.resident(kernel), p.get("MULTICAST", 1)) + 3
        counts = range(1, most) if most < 60 else [*range(1, 60, 7), *range(60, most, most // 20)]
        high, wide = p["BM"] * p.get("MULTICAST", 1), p["BN"]
        for count in counts:
            for steps in DEEP:
                m, n, batch = count * high, wide, 1
                if p.get("STACK", 0) > 1:
                    m, batch = p["BM"], count * p["STACK"]
                elif kernel.swaps(m, n, "NNN"):
                    m, n = high, count * wide
                problem = Problem(kernel.dtype, m, n, steps * p["BK"], batch, "NTN" if p.get("b_lies") == 1 else "NNN",
                                  inputs=kernel.inputs)  # fmt: skip
                name = name_of(kernel, device, problem)
                if not kernel.swaps(m, n, problem.layout):
                    assert name.removesuffix(", of a batch") in {x.removesuffix(", of a batch") for x in known}, (
                        kernel.name, count, steps)  # fmt: skip
                    some += 1
    assert some > 1000


@pytest.mark.parametrize("units", [2, 8, 24, 96])
def test_every_regime_of_opencl_is_found(units):
    device = opencl(units)
    for kernel in OPENCL:
        known, (high, wide), depth = set(regimes(kernel, device)), kernel.group, kernel.params.get("BK", 16)
        for count in (*range(1, 3 * units + 2, max(1, units // 8)), units - 1, units, units + 1, 2 * units):
            for steps in DEEP[:-1:3]:
                for m, n in ((count * high, wide), (high, count * wide)):
                    problem = Problem(kernel.dtype, m, n, steps * depth, inputs=kernel.inputs)
                    if not kernel.swaps(m, n, "NNN"):
                        assert name_of(kernel, device, problem) in known, (kernel.name, problem)


@pytest.mark.parametrize("units", [2, 6, 114, 132])
def test_pairs_that_share_b_walk_several_tiles_with_k_cut(units):
    """The regime in which one block may load what the other still reads; where a row has none, no product is of it."""
    device = gpu(units)
    pairs = [row for row in ROWS if row.params.get("MULTICAST", 1) > 1 and row.params.get("parts", 0) > 1]
    assert len(pairs) > 20
    missing = [row for row in pairs if not any(walks(row, device, x) for x in regimes(row, device).values())]
    assert not missing or units < 100
    for row in missing:
        high, wide, deep = row.params["BM"] * row.params["MULTICAST"], row.params["BN"], row.params["BK"]
        for count in range(
            1, 4 * launch_arithmetic.room(units, launch_arithmetic.resident(row), row.params["MULTICAST"])
        ):
            for steps in DEEP:
                problem = Problem(row.dtype, high, count * wide, steps * deep, layout="NTN", inputs=row.inputs)
                assert not walks(row, device, problem), (row.name, count, steps)


def walks(kernel, device, problem):
    """Whether k is cut and tiles are more than clusters."""
    way = launched(kernel, device, problem)
    return way.parts > 1 and way.tiles > way.at_once


def test_a_device_that_tells_nothing_has_no_regimes():
    nothing = Device("late", "late:0", "a device")
    assert not any(regimes(row, nothing) for row in KERNELS)
    assert BY_NAME["sgemm_scalar_4x4"].backend == "cpu"


NOTHING = Device("cuda", "cuda:0", "silent", kind="gpu")
SMALL = replace(opencl(8), limits={"compute_units": 8, "global_memory": 1 << 33})
LARGE = replace(opencl(8), limits={"compute_units": 8, "global_memory": 1 << 38})


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("device", [gpu(132), gpu(16, 75), SMALL, LARGE, NOTHING], ids=lambda device: device.name)
def test_what_is_not_verified_is_told(device, full):
    """Of regimes, chains and large index ranges, each is among the checks of a row, or left out for a reason."""
    for row in ROWS + OPENCL:
        if row.backend != device.backend or unable(row, device):
            continue
        checks = {name for name, _ in planned(registry.backend(row.backend), row, device, full=full)}
        told = left_out(row, device, full=full)
        assert all(told.values())
        whole = "regimes of launches, launches in a row, chains"
        assert (whole in told) != any(name in checks for name in regimes(row, device)), row.name
        assert any("chains" in what for what in told) != ("a chain" in checks), row.name
        if full:
            assert (BEYOND in told) != (BEYOND in checks), row.name
        else:
            assert BEYOND not in told


def test_results_that_no_kernel_multiplies_are_told():
    row = BY_NAME["s8s32gemm_generic_packed_64x64"]
    device = replace(LARGE, features=LARGE.features | set(row.needs))
    assert left_out(row, device) == {
        "chains": "no kernel of opencl multiplies its results, int32", BEYOND: "it is a chain",
    }  # fmt: skip
    row = BY_NAME["sgemm_generic_naive"]
    assert BEYOND in dict(planned(registry.backend(row.backend), row, device))
    assert left_out(row, SMALL)[BEYOND].startswith("it takes 9.4 GB, and a device is to have four times that")
    assert left_out(row, SMALL)[BEYOND].endswith("has 8.6 GB")
    assert "gives 2.1 GB" in left_out(row, replace(LARGE, limits={**LARGE.limits, "max_alloc": 1 << 31}))[BEYOND]
    assert "does not say" in left_out(row, opencl(8))[BEYOND]


@pytest.mark.parametrize("fault", ["", "a", "b", "out"])
@pytest.mark.parametrize("row", ["sgemm_scalar_4x4", "u8s32gemm_scalar_4x4", "gemm_numpy_reference"])
def test_distances_beyond_32_bits_are_verified_in_host_memory(row, fault):
    """An element that is not reached is found."""
    if row not in BY_NAME:
        pytest.skip(f"there is no {row}")
    backend = registry.backend(BY_NAME[row].backend)
    device = backend.devices()[0]
    check = dict(planned(backend, BY_NAME[row], device)).get(BEYOND)
    if check is None:
        assert BEYOND in left_out(BY_NAME[row], device)
        pytest.skip("the system promises no more memory than it has")
    assert not left_out(BY_NAME[row], device)
    if not fault:
        check()
        return

    class Near:
        """It does not reach the last row and column of an operand that lies far apart."""

        @staticmethod
        def launcher(kernel, device, problem):
            launch = backend.launcher(kernel, device, problem)

            def cut(a, b, c, out, alpha, beta):
                given = {"a": a, "b": b, "out": out}
                far = max(given[fault].strides) > 1 << 20
                given[fault] = x = np.array(given[fault])
                if not far:
                    launch(a, b, c, out, alpha, beta)
                elif fault == "out":
                    launch(a, b, c, x, alpha, beta)
                    x[-1], x[:, -1] = 0, 0
                    out[...] = x
                else:
                    x[-1], x[:, -1] = 0, 0
                    launch(given["a"], given["b"], c, out, alpha, beta)

            return cut

    with pytest.raises(Mismatch, match=f"of {fault} beyond"):
        dict(planned(Near, BY_NAME[row], device))[BEYOND]()
