"""The cache blocks that the engine derives from the caches: bounds, the same bits, agreement with packed matrices."""

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
from helpers import python, rand

import gemm
from gemm.backends.cpu import CpuBackend
from gemm.catalog import BY_NAME
from gemm.catalog import KERNELS as CATALOG
from gemm.core.engine import engine
from gemm.core.problem import Problem

FFI, LIB = engine().ffi, engine().lib
COMMON = (
    "32/8,512,8192",
    "48/12,1280,3072",
    "48/12,2048/2,32768/16",
    "64/4,1024,0",
    "128/8,12288/4,0",
    "32/8,1024/4,0",
)
ODD = ("16/2,128/64,512/128", "17/3,129/7,0", "256/16,65536,1048576", "1/1,1/1,0", "999/31,300/2,700000/3")


def caches(text):
    found = FFI.new("gemm_caches *")
    assert LIB.gemm_parse_caches(found, text.encode()), text
    LIB.gemm_check_caches(found)
    return found


def sizes(name, text, k):
    """MC, KC and NC of a kernel."""
    found = FFI.new("int64_t[3]")
    LIB.gemm_block_sizes(FFI.addressof(getattr(LIB, name)), caches(text), k, found)
    return tuple(found)


KERNELS = [row.name for row in CATALOG if row.backend == "cpu" and hasattr(LIB, row.name)]


@pytest.mark.parametrize("name", KERNELS)
def test_sizes_are_multiples_within_bounds(name):
    kernel = getattr(LIB, name)
    for text, k in itertools.product(COMMON + ODD, (1, 2, 7, 64, 333, 512, 1000, 4097, 10**6, 2**40)):
        mc, kc, nc = sizes(name, text, k)
        assert min(mc, kc, nc) > 0, (text, k)
        assert (mc % kernel.mr, kc % kernel.k_group, nc % kernel.nr) == (0, 0, 0), (text, k)
        assert 1024 <= nc <= 4096 + kernel.nr
        assert kc < k + max(8, kernel.k_group), "no longer than k, rounded up"
        l2 = caches(text).size[1] // caches(text).shared[1]
        assert mc == kernel.mr or mc * kc * kernel.a_packed <= l2 / 2, "a's block has at most half of L2"


@pytest.mark.parametrize("name", KERNELS)
def test_larger_caches_do_not_make_smaller_blocks(name):
    depth = [sizes(name, f"32/8,{l2},16384", 10**7)[1] for l2 in (256, 512, 1024, 2048, 4096)]
    assert depth == sorted(depth)
    columns = [sizes(name, f"32/8,512,{l3}", 512)[2] for l3 in (0, 1024, 4096, 16384, 65536)]
    assert columns == sorted(columns)
    alone, shared = (sizes(name, f"32/8,1024/{n},16384", 10**7) for n in (1, 2))
    assert shared[1] <= alone[1]


def test_sizes_of_the_machines_where_they_were_measured():
    """Of Zen 3: 1024 cubed, one thread. docs/cpu.md has the measurements."""
    zen = "32/8,512,32768/2"
    if "sgemm_avx2_6x16" not in KERNELS:
        pytest.skip("kernels of x86")
    assert sizes("sgemm_avx2_6x16", zen, 1024) == (96, 512, 2048)
    assert sizes("dgemm_avx2_6x8", zen, 1024) == (48, 512, 1024)


@pytest.mark.parametrize(("registers", "level", "size", "ways", "shared"), [
    # eax, ebx, ecx of leaf 4 of a Xeon, then of leaf 0x8000001D of an EPYC
    ((0x7C004121, 0x02C0003F, 63), 1, 48 << 10, 12, 2),
    ((0x7C004143, 0x03C0003F, 2047), 2, 2 << 20, 16, 2),
    ((0x00004121, 0x01C0003F, 63), 1, 32 << 10, 8, 2),
    ((0x0003C163, 0x03C0003F, 32767), 3, 32 << 20, 16, 16),
])  # fmt: skip
def test_cpuid(registers, level, size, ways, shared):
    found = FFI.new("gemm_caches *")
    assert LIB.gemm_note_cpuid_cache(found, registers)
    assert list(found.size) == [size * (i == level) for i in (1, 2, 3)]
    assert found.shared[level - 1] == shared
    assert found.l1_ways == (ways if level == 1 else 0)
    assert LIB.gemm_note_cpuid_cache(found, (0x00004122, 0x01C0003F, 63)), "a cache of instructions is passed over"
    assert list(found.size) == [size * (i == level) for i in (1, 2, 3)]
    assert not LIB.gemm_note_cpuid_cache(found, (0, 0, 0)), "there are no more caches"


@pytest.mark.parametrize(
    "wrong", ["", "32", "32/8,512", "32/8,512,", "0,512,0", "32/0,512,1", "32,512,1,1", "a,b,c", "-1,2,3"]
)
def test_a_setting_that_describes_no_caches_is_refused(wrong, monkeypatch):
    found = FFI.new("gemm_caches *")
    assert not LIB.gemm_parse_caches(found, wrong.encode())
    assert found.size[0] == 0
    if wrong:
        monkeypatch.setenv("GEMM_CPU_CACHES", wrong)
        with pytest.raises(gemm.BackendUnavailable, match=r"GEMM_CPU_CACHES=.* does not describe three caches"):
            CpuBackend().devices()


def test_caches_that_no_cpu_has_are_replaced():
    found = FFI.new("gemm_caches *")
    LIB.gemm_check_caches(found)
    assert list(found.size) == [32 << 10, 512 << 10, 8 << 20]
    assert found.l1_ways == 8
    assert list(found.shared) == [1] * 3
    found.size = [32 << 10, 512 << 10, 0]
    LIB.gemm_check_caches(found)
    assert found.size[2] == 0, "there are CPUs without an L3 cache"


def test_the_machine_has_caches():
    found = LIB.gemm_get_caches()
    assert 16 << 10 <= found.size[0] < found.size[1]
    assert found.l1_ways >= 2
    assert min(found.shared) >= 1
    assert FFI.string(found.source).decode() in ("cpuid", "sysfs", "sysctl", "Windows", "default", "GEMM_CPU_CACHES")


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("text", ODD)
def test_the_same_bits_for_any_caches(name, text):
    row, backend = BY_NAME[name], CpuBackend()
    if set(row.needs) - backend.devices()[0].features:
        pytest.skip("this CPU lacks an instruction set")
    m, n, k = 37, 2 * row.params["NR"] + 3, 700
    a, b, c = (rand(*shape, seed=i).astype(row.dtype) for i, shape in enumerate(((m, k), (k, n), (m, n))))
    if row.inputs:
        a, b = a.astype(row.inputs[0]), b.astype(row.inputs[1])
    mc, kc, nc = sizes(row.name, text, k)
    other = replace(row, params={**row.params, "MC": mc, "KC": kc, "NC": nc})
    problem = Problem(row.dtype, m, n, k, reproducible=True)
    first, second = np.empty_like(c), np.empty_like(c)
    for each, out in ((row, first), (other, second)):
        backend.launcher(each, backend.devices()[0], problem)(a, b, c, out, 1.0, 1.0)
    assert first.tobytes() == second.tobytes()


PRODUCT = """
    import sys
    import numpy as np
    import gemm
    draw = np.random.default_rng(1).standard_normal
    a, b = draw((70, 1500), np.float32), draw((1500, 90), np.float32)
    result = gemm.gemm(a, b, backend="cpu", reproducible=True)
    prepared = gemm.prepare(b, backend="cpu", reproducible=True)
    assert (gemm.gemm(a, prepared, reproducible=True) == result).all()
    if len(sys.argv) > 1:
        import pickle
        packed, expected = pickle.load(open(sys.argv[1], "rb"))
        assert (gemm.gemm(a, packed, reproducible=True) == expected).all()
        assert (result == expected).all()
        again = pickle.loads(pickle.dumps(packed))
        assert (gemm.gemm(a, again, reproducible=True) == expected).all()
"""


@pytest.mark.parametrize("text", ["16/2,128/4,0", "256/16,65536,0"])
def test_a_machine_with_other_caches_reads_a_pickled_matrix(text, tmp_path, monkeypatch):
    draw = np.random.default_rng(1).standard_normal
    a, b = draw((70, 1500), np.float32), draw((1500, 90), np.float32)
    prepared = gemm.prepare(b, backend="cpu", reproducible=True)
    (tmp_path / "packed").write_bytes(pickle.dumps((prepared, gemm.gemm(a, prepared, reproducible=True))))
    monkeypatch.setenv("GEMM_CPU_CACHES", text)
    python(PRODUCT, tmp_path / "packed")


def test_what_packing_and_products_assume_agrees():
    name = gemm.plan(rand(3, 3), rand(3, 3), backend="cpu").kernel
    for k in (1, 300, 777, 3000):
        assert CpuBackend().packing(BY_NAME[name], (k, 5))["KC"] == sizes_here(name, k)[1]


def sizes_here(name, k):
    plan = FFI.new("gemm_plan *", {"kernel": FFI.addressof(getattr(LIB, name)), "m": 9, "n": 9, "k": k})
    LIB.gemm_set_blocks(plan)
    return plan.mc, plan.kc, plan.nc


def test_explain_shows_the_blocks(capsys):
    gemm.explain(rand(300, 700), rand(500, 700).T, backend="cpu")  # every kernel packs such a b, and some pack a
    shown = " ".join(capsys.readouterr().out.split())
    assert "blocks: MC × KC × NC = " in shown
    assert "packs a and b" in shown or "packs b" in shown
    assert "thread" in shown
    assert "L2" in shown
    gemm.explain(rand(3, 3), rand(3, 3), backend="cpu")
    assert "a single kernel call" in " ".join(capsys.readouterr().out.split())
