"""The ONLY hand-edited lists of the package: its backends and its kernels.

A kernel is one source file and one row here. build.py compiles the rows of the machine's architecture,
dispatch chooses among the legal ones, the tests run the conformance suite over each, and the kernel
table of the docs is generated from them. This module imports nothing of the package, so that build.py can read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cache
from types import CodeType
from typing import Any

BACKENDS: dict[str, str] = {
    "cpu": "gemm.backends.cpu:CpuBackend",
    "opencl": "gemm.backends.opencl:OpenCLBackend",
    "cuda": "gemm.backends.cuda:CudaBackend",
    "numpy": "gemm.backends.numpy:NumpyBackend",
}
"""name → module:class. Ties in predicted time go to the first."""


BUSY = 8
"""Groups a compute unit that keep a device busy."""


@dataclass(frozen=True)
class Kernel:
    """A row of the catalog.

    Attributes:
        name: `<op>_<target>_<technique or tile>`; also the test id and the tuning key.
        backend, target: a key of BACKENDS and the family within it; users may name either as backend=.
        dtype: of the result, and of the operands but for `inputs`; "*" for anything NumPy does. Rows of a signed
            integer serve the unsigned one of its width as well: modulo a power of two both have the same bits.
        source: its file. Its stem is the entry point: `name`, or `name` with the type letter s/d generalised to
            "gemm" where one parametrised file serves several types.
        inputs: types of a and b where they are not `dtype`.
        needs: features that a Device must have.
        params: fixed parameters (tile sizes, blocking), visible to `legal`; uppercase ones are -D options of
            run-time compiled kernels, where the file's #ifndef defaults agree with them.
        space: what a tuner may try for a parameter, {name: values}; the row's own value is the default.
        derived: parameters that follow from others, {name: expression}, such as a_rows from BM; they join `params`.
        chosen: the parameters that `tuned` has changed.
        legal: expressions over m n k batch, params and the device's limits; all must hold.
        swap: an expression over m n a b (the letters of Problem.layout), which says where the transposed product, of b
            transposed and a transposed, suits it better; "" for never. See `swaps`.
        ordered: offers reproducible=True, the ORDERED chain.
        ordered_needs: features that it needs for that.
        gflops: what one device (a CPU row: one core) may reach, a guess until it is measured.
        about: one line for tables.
        precision: the strictest that it offers; see `gemm.gemm`.
        auto: kinds of devices ("cpu", "gpu") on which it may be chosen though nobody named it. The others are verified
            when they are named: a form that another one beats is not worth every user's wait for the probe.
        beaten: features of devices on which it is chosen by name only, too: other rows are always better there, or its
            outputs do not fit into their registers.
    """

    name: str
    backend: str
    target: str
    dtype: str
    source: str
    needs: tuple[str, ...] = ()
    params: Mapping[str, int] = field(default_factory=dict, hash=False)
    space: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    derived: Mapping[str, str] = field(default_factory=dict, hash=False)
    chosen: Mapping[str, int] = field(default_factory=dict, hash=False)
    legal: tuple[str, ...] = ()
    swap: str = ""
    ordered: bool = True
    ordered_needs: tuple[str, ...] = ()
    gflops: float = 1.0
    about: str = ""
    inputs: tuple[str, ...] = ()
    precision: str = "highest"
    auto: tuple[str, ...] = ("cpu", "gpu")
    beaten: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = {name: eval(_compiled(rule), {"__builtins__": {}}, self.params) for name, rule in self.derived.items()}
        object.__setattr__(self, "params", {**self.params, **values})

    def tuned(self, chosen: Mapping[str, int]) -> Kernel:
        """This row of the catalog with other values for some parameters of its space. Raises ValueError for others."""
        for name, value in chosen.items():
            if value not in self.space.get(name, ()):
                raise ValueError(f"{self.name} cannot be tuned to {name} = {value}; its space is {dict(self.space)}")
        changed = {name: value for name, value in sorted(chosen.items()) if value != self.params[name]}
        return replace(self, params={**self.params, **changed}, chosen=changed) if changed else self

    @property
    def label(self) -> str:
        """The name, and what was tuned of it: sgemm_adreno_image_8x4[WGM=4,WGN=16]."""
        changed = ",".join(f"{name}={value}" for name, value in self.chosen.items())
        return f"{self.name}[{changed}]" if changed else self.name

    def multiplies(self, dtype: str, inputs: tuple[str, ...] = ()) -> bool:
        """Whether it computes products of `dtype`. Operands of types `inputs` that it does not take are converted."""
        return self.dtype in ("*", dtype.removeprefix("u")) and self.inputs in ((), inputs)

    def chosen_on(self, kind: str, features: Set[str]) -> bool:
        """Whether it may be chosen on a device of that kind with those features though nobody named it."""
        return kind in self.auto and features.isdisjoint(self.beaten)

    @property
    def entry(self) -> str:
        """The C or device function to call: the stem of the source file (the CPU's rows: the name)."""
        return self.source.rsplit("/", 1)[-1].rsplit(".", 1)[0]

    @property
    def group(self) -> tuple[int, int]:
        """Rows and columns of the result (of the transposed one, if swapped) that a work-group of a device computes."""
        p = self.params
        tall = p.get("WGM") or p.get("GH") or p.get("BS", 1)
        wide = p.get("WGN") or p.get("GW") or p.get("SG") or p.get("BS", 1)
        return p.get("BM") or p.get("TM", 1) * tall, p.get("BN") or p.get("TN", 1) * wide

    def swaps(self, m: int, n: int, layout: str) -> bool:
        """Whether its launches compute out' = b' a' for such operands: the m, n and operands of all else are those."""
        names = {"m": m, "n": n, "a": layout[0], "b": layout[1]}
        return bool(self.swap) and bool(eval(_compiled(self.swap), {"__builtins__": {}}, names))

    def groups(self, m: int, n: int, batch: int = 1) -> int:
        """Work-groups of so many m by n results."""
        rows, columns = self.group
        return -(-m // rows) * -(-n // columns) * batch

    def share(self, k: int, groups: int, units: int) -> int:
        """How much of k each group sums on a device of so many compute units.

        Less than all of it where groups are so few, or so few in the last wave of them, that units would be idle:
        several then share a tile of the result. A second launch adds them up, which takes as long as `split` steps
        along k of every unit; rows without `split` are never cut.
        """
        worth = self.params.get("split", 0)
        most = min(BUSY * units // groups, k // 64) if worth else 1

        def steps(parts: int) -> int:
            return -(-groups * parts // units) * -(-k // parts) + worth * (parts > 1)

        # Of equals the most parts, which hide each other's waits.
        parts = min(range(max(most, 1), 0, -1), key=steps)
        if parts == 1:
            return k
        grain = self.params.get("BK", 1)
        return -(-k // (parts * grain)) * grain

    def illegal(self, names: Mapping[str, int]) -> str | None:
        """The first rule that does not hold for `names` (problem and device limits), or None."""
        scope = {**names, **self.params}
        for rule in self.legal:
            if not eval(_compiled(rule), {"__builtins__": {}}, scope):
                values = ", ".join(f"{v} = {scope[v]}" for v in _compiled(rule).co_names)
                return f"needs {rule} ({values})"
        return None


@cache
def _compiled(rule: str) -> CodeType:
    return compile(rule, "<legality rule>", "eval")


_TYPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "s": ("float32", ()), "d": ("float64", ()), "h": ("float16", ()), "b": ("bfloat16", ()),
    "c": ("complex64", ()), "z": ("complex128", ()),
    "i8": ("int8", ()), "i16": ("int16", ()), "i32": ("int32", ()), "i64": ("int64", ()),
    "s8s32": ("int32", ("int8", "int8")), "u8s32": ("int32", ("uint8", "int8")),
}  # fmt: skip
"""What an operation's letters before "gemm" mean: Kernel.dtype and Kernel.inputs."""


def _row(
    name: str, backend: str, source: str, about: str, *,
    needs: tuple[str, ...] = (), legal: tuple[str, ...] = (), swap: str = "",
    space: Mapping[str, tuple[int, ...]] | None = None,
    derived: Mapping[str, str] | None = None, ordered_needs: tuple[str, ...] = (), gflops: float = 1.0,
    precision: str = "highest",
    auto: tuple[str, ...] = ("cpu", "gpu"), beaten: tuple[str, ...] = (), **params: int,
) -> Kernel:  # fmt: skip
    """A row whose types and target are read off its name."""
    op, target, _ = name.split("_", 2)
    dtype, inputs = _TYPES[op.removesuffix("gemm")]
    ordered = "float" in dtype and precision == "highest"
    return Kernel(name, backend, target, dtype, source, needs, params, space or {}, derived or {}, legal=legal,
                  swap=swap, ordered=ordered, ordered_needs=ordered_needs, gflops=gflops, about=about, inputs=inputs,
                  precision=precision, auto=auto, beaten=beaten)  # fmt: skip


def _cpu(name: str, about: str, gflops: float, *needs: str, precision: str = "highest",
         mc: int = 144, kc: int = 256) -> Kernel:  # fmt: skip
    """A CPU row of float16, bfloat16, complex or integer numbers, in a file of its name; it ends in MR x NR."""
    op, target, _ = name.split("_", 2)
    dtype, inputs = _TYPES[op.removesuffix("gemm")]
    mr, nr = map(int, name.rpartition("_")[2].split("x"))
    rows = mc // 2 if dtype == "complex128" else mc  # they stay in the second cache
    params = {"MR": mr, "NR": nr, "MC": rows // mr * mr, "KC": kc, "NC": 4096 // nr * nr}
    ordered = "float" in dtype and precision == "highest"
    return Kernel(name, "cpu", target, dtype, f"csrc/{target}/{name}.c", needs, params, ordered=ordered,
                  gflops=gflops, about=about, inputs=inputs, precision=precision)  # fmt: skip


_SHUFFLING = ("intel_required_subgroup_size",)
"""What tells the GPUs that the rows for Intel are for."""


def _adreno(op: str, form: str, tm: int, tn: int, bk: int, about: str, *, images: str = "", turned: int = 0,
            half: int = 0) -> Kernel:  # fmt: skip
    """An Adreno row: which operands are images ("a", "b", "ab"), whether a lies turned, whether sums are halves."""
    a_image, b_image = ("a" in images), ("b" in images)
    rows, cols = (bk, tm) if turned else (tm, bk)
    return _row(f"{op}gemm_adreno_{form}_{tm}x{tn}", "opencl", "kernels/opencl/adreno/gemm_adreno.cl", about,
                needs=("image",) * bool(images) + ("fp16",) * half, ordered_needs=() if half else ("denorms",),
                precision="medium" if half else "highest", auto=("gpu",), beaten=_SHUFFLING,
                space={"WGM": (1, 2, 4, 8, 16), "WGN": (1, 2, 4, 8, 16, 32)},
                TM=tm, TN=tn, BK=bk, A_TURNED=turned, A_IMAGE=int(a_image), B_IMAGE=int(b_image), HALF_SUMS=half,
                WGM=8, WGN=16, a_rows=rows, a_cols=cols, a_turned=turned, a_channels=4 * a_image,
                b_rows=bk, b_cols=tn, b_channels=4 * b_image)  # fmt: skip


def _shuffles(sg: int) -> tuple[str, ...]:
    return ("intel_subgroups", "intel_required_subgroup_size", f"subgroup_size_{sg}")


def _intel_block_read(tm: int, tn: int) -> Kernel:
    return _row(f"sgemm_intel_block_read_{tm}x{tn}_1x8", "opencl", "kernels/opencl/intel/sgemm_intel_block_read.cl",
                f"A and B image2d, intel_sub_group_block_read, {tm}x{tn} outputs a work-item, sub-groups of 8",
                needs=("image", *_shuffles(8)), ordered_needs=("denorms",), auto=("gpu",) if tm == 32 else (),
                TM=tm, TN=tn, SG=8, a_rows=tm, a_cols=8, a_channels=1,
                b_rows=8, b_cols=8 * tn, b_channels=1, bits=1)  # fmt: skip


def _intel_simd(tm: int, tn: int, gh: int, op: str = "s", sg: int = 8, barrier: int = 0, half: int = 0) -> Kernel:
    """An Intel row that shares A by shuffles; `half`: its sums are halves."""
    kv = {8: 4, 16: 4, 32: 2}[tm] if sg == 8 else 1 + half  # as many registers as the sums leave
    form = f"{'half_' * half}{tm}x{tn}_{gh}x{sg}{'_barrier' * barrier}"
    return _row(f"{op}gemm_intel_L3_SIMD_{form}", "opencl", "kernels/opencl/intel/gemm_intel_L3_SIMD.cl",
                f"A shared in sub-groups of {sg} by shuffles, {tm}x{tn} outputs a work-item"
                + ", in step" * barrier + ", sums in half: twice as fast" * half,
                needs=_shuffles(sg) + ("fp16",) * half, ordered_needs=() if half else ("denorms",),
                precision="medium" if half else "highest",
                auto=() if half else ("gpu",),  # Gen8 computes with halves only by converting them, and does not say so
                beaten=("subgroup_size_8",) if sg > 8 else (),
                space={"KV": (1, 2, 4)}, derived={"a_cols": "SG * KV", "b_rows": "SG * KV"},
                TM=tm, TN=tn, SG=sg, GH=gh, KV=kv, BARRIER=barrier, HALF_SUMS=half,
                a_rows=tm * gh, a_cols=sg * kv, b_rows=sg * kv, b_cols=sg * tn)  # fmt: skip


def _intel_slm(gh: int, gw: int) -> Kernel:
    return _row(f"sgemm_intel_L3_SLM_8x8_{gh}x{gw}", "opencl", "kernels/opencl/intel/sgemm_intel_L3_SLM.cl",
                f"A staged in local memory, 8x8 outputs a work-item, groups of {gh}x{gw}",
                legal=(f"{gh * gw} <= work_group", f"{512 * gh} <= local_memory"), ordered_needs=("denorms",), auto=(),
                TM=8, TN=8, BK=16, GH=gh, GW=gw, a_rows=8 * gh, a_cols=16, b_rows=16, b_cols=8 * gw)  # fmt: skip


def _local_vec4(suffix: str, um: int, un: int) -> Kernel:
    return _row(f"sgemm_generic_local_vec4{suffix}", "opencl", "kernels/opencl/generic/sgemm_generic_local_vec4.cl",
                f"tiles of float4 in local memory, {16 * um * un} outputs a work-item",
                legal=("BS * BS <= work_group", "4 * BS * BS * (TM + TN) <= local_memory"),
                ordered_needs=("denorms",), auto=(), TM=4 * um, TN=4 * un, BS=16,
                a_rows=64 * um, a_cols=16, b_rows=16, b_cols=64 * un)  # fmt: skip


def _generic(op: str, form: str, source: str, about: str, features: tuple[str, ...] = (), **rest: Any) -> Kernel:
    """An OpenCL row of a source that serves several types."""
    single, double = op in ("s", "h"), op == "d"
    return _row(
        f"{op}gemm_generic_{form}",
        "opencl",
        f"kernels/opencl/generic/gemm_generic_{source}.cl",
        about,
        needs=(*features, *(("fp64",) if double else ())),
        ordered_needs=("denorms",) if single else (),
        **rest,
    )


def _tile(op: str, bm: int, bn: int, *, tm: int, tn: int, bk: int, split: int, direct: int = 0,
          **rest: Any) -> Kernel:  # fmt: skip
    """Register tiles of padded operands, or `direct`: of any, as they lie."""
    size = 8 if op == "d" else 4
    whole = "BK * TM * TN % (4 * BN) == 0 and BK * TM * TN % (4 * BM) == 0"  # work-items bring as many vectors each
    padded: dict[str, Any] = {} if direct else {"a_rows": bm, "a_cols": bk, "b_rows": bk, "b_cols": bn}
    where = "of operands as they lie" if direct else "in local memory"
    return _generic(op, f"tile_{direct * 'direct_'}{bm}x{bn}", "tile",
                    f"tiles {where}, {tm}x{tn} outputs a work-item",
                    legal=("BM * BN <= TM * TN * work_group", whole,
                           f"{2 * size} * BK * (BM + 4 + BN + 4 * DIRECT) <= local_memory"),
                    auto=("gpu",), space={"TM": (4, 8, 16), "TN": (4, 8), "BK": (8, 16, 32)},
                    derived={} if direct else {"a_cols": "BK", "b_rows": "BK"},
                    TM=tm, TN=tn, BM=bm, BN=bn, BK=bk, DIRECT=direct, split=split, **padded, **rest)  # fmt: skip


def _skinny(op: str, tm: int) -> Kernel:
    size = 8 if op == "d" else 4
    return _generic(op, f"skinny_{tm}x4", "skinny", "few rows: one pass over B, K split among groups",
                    legal=("WGN <= work_group", f"{size} * BK * TM <= local_memory"),
                    swap="m > n and a == 'T'",  # few columns, and the other operand's rows lie along n
                    auto=("gpu",), space={"WGN": (64, 128, 256), "BK": (32, 64, 128)},
                    TM=tm, TN=4, WGN=128, BK=64, split=64, b_rows=1, b_cols=4)  # fmt: skip


def _dot(op: str, bm: int, bn: int, *, tm: int, bk: int, split: int, **rest: Any) -> Kernel:
    size = 8 if op == "d" else 4
    return _generic(op, f"dot_{bm}x{bn}", "dot", "few columns: one pass over A along k, by many work-items a row",
                    legal=("BM * LANES <= TM * work_group",
                           f"{size} * (BN * (BK + 4) + 4 * BM * LANES // TM) <= local_memory",
                           f"{size} * BM * BN * (LANES + 1) <= TM * local_memory"),
                    swap="m < n and b == 'T'",  # few rows, and b's columns lie along k
                    auto=("gpu",), space={"TM": (1, 2, 4), "BK": (256, 512, 1024), "LANES": (16, 32, 64)},
                    BM=bm, BN=bn, BK=bk, TM=tm, LANES=32, split=split, a_rows=1, a_cols=1, **rest)  # fmt: skip


def _panel(op: str, vec: int) -> Kernel:
    return _generic(op, f"panel_4x{3 * vec}", "panel", "CPU runtimes: outputs in vector registers, B in panels",
                    auto=("cpu",), space={"TM": (2, 4, 6, 8, 12), "VEC": (2, 4, 8, 16), "NV": (1, 2, 3)},
                    derived={"TN": "NV * VEC", "b_panel": "NV * VEC"},
                    TM=4, NV=3, VEC=vec, a_rows=1, a_cols=1, b_rows=1)  # fmt: skip


def _packed(bm: int, bn: int, *, tm: int, tn: int) -> Kernel:
    whole = "BK * TM * TN % (16 * BN) == 0 and BK * TM * TN % (16 * BM) == 0"  # work-items bring as many blocks each
    return _generic("s8s32", f"packed_{bm}x{bn}", "packed", f"four bytes an instruction, {tm}x{tn} outputs a work-item",
                    features=("integer_dot_product",),
                    legal=("BM * BN <= TM * TN * work_group", whole, "BK * (BM + BN + 8) <= local_memory"),
                    auto=("gpu",), space={"TM": (4, 8), "TN": (4, 8), "BK": (32, 64, 128)},
                    BM=bm, BN=bn, BK=64, TM=tm, TN=tn, split=512)  # fmt: skip


def _local(op: str) -> Kernel:
    size = 8 if op == "d" else 4
    return _generic(op, "local_16x16", "local_16x16", "tiles of A and B in local memory, one output a work-item",
                    legal=("BM * BN <= work_group", f"(BM * (BK + 1) + BK * (BN + 1)) * {size} <= local_memory"),
                    BM=16, BN=16, BK=16)  # fmt: skip


def _naive(op: str) -> Kernel:
    return _generic(op, "naive", "naive", "one output a work-item straight from memory", WGM=8, WGN=16)


KERNELS: tuple[Kernel, ...] = (
    # CPU micro-kernels: MR x NR registers of C; MC, KC, NC are the cache blocks of the driver around them.
    _row("sgemm_avx512_6x64", "cpu", "csrc/avx512/sgemm_avx512_6x64.c", "24 zmm accumulators",
         needs=("avx512f",), gflops=80, MR=6, NR=64, MC=192, KC=384, NC=4096),
    _row("dgemm_avx512_8x24", "cpu", "csrc/avx512/dgemm_avx512_8x24.c", "24 zmm accumulators",
         needs=("avx512f",), gflops=40, MR=8, NR=24, MC=192, KC=256, NC=4080),
    _row("sgemm_avx2_6x16", "cpu", "csrc/avx2/sgemm_avx2_6x16.c", "12 ymm accumulators",
         needs=("avx2", "fma"), gflops=70, MR=6, NR=16, MC=96, KC=512, NC=2048),
    _row("dgemm_avx2_6x8", "cpu", "csrc/avx2/dgemm_avx2_6x8.c", "12 ymm accumulators",
         needs=("avx2", "fma"), gflops=35, MR=6, NR=8, MC=48, KC=512, NC=1024),
    _row("sgemm_neon_8x12", "cpu", "csrc/neon/sgemm_neon_8x12.c", "24 accumulators; 6x16 and others unpacked",
         needs=("neon",), gflops=20, MR=8, NR=12, MC=128, KC=512, NC=3072),
    _row("dgemm_neon_6x8", "cpu", "csrc/neon/dgemm_neon_6x8.c", "24 accumulators; 3x16 and others unpacked",
         needs=("neon",), gflops=10, MR=6, NR=8, MC=96, KC=320, NC=3072),
    _row("sgemm_neon_4x4", "cpu", "csrc/neon/sgemm_neon_4x4.c", "4x4 block, sixteen lane FMAs a step of four k",
         needs=("neon",), gflops=8, MR=4, NR=4, MC=128, KC=256, NC=4096),
    _row("dgemm_neon_4x4", "cpu", "csrc/neon/dgemm_neon_4x4.c", "the 4x4 block in float64x2",
         needs=("neon",), gflops=4, MR=4, NR=4, MC=64, KC=256, NC=4096),
    _row("sgemm_neon_1x4", "cpu", "csrc/neon/sgemm_neon_1x4.c", "row kernel: four outputs, A a scalar",
         needs=("neon",), gflops=4, MR=1, NR=4, MC=128, KC=256, NC=4096),
    _row("dgemm_neon_1x4", "cpu", "csrc/neon/dgemm_neon_1x4.c", "row kernel: four outputs, A a scalar",
         needs=("neon",), gflops=2, MR=1, NR=4, MC=64, KC=256, NC=4096),
    _row("sgemm_armv7_6x8", "cpu", "csrc/armv7/sgemm_armv7_6x8.c", "32-bit; NEON there flushes subnormals: not ordered",
         needs=("neon", "vfpv4"), ordered_needs=("denorms",), gflops=4, MR=6, NR=8, MC=96, KC=256, NC=1024),
    _row("sgemm_scalar_4x4", "cpu", "csrc/scalar/gemm_scalar_4x4.c", "plain C, any CPU",
         gflops=3, MR=4, NR=4, MC=64, KC=256, NC=1024),
    _row("dgemm_scalar_4x4", "cpu", "csrc/scalar/gemm_scalar_4x4.c", "plain C, any CPU",
         gflops=3, MR=4, NR=4, MC=64, KC=256, NC=1024),
    # Narrow floats (sums of float), complex numbers, integers that wrap, and their wider sums.
    _cpu("bgemm_amx_32x32", "tdpbf16ps, which makes subnormal sums zero", 700, "amxbf16", precision="high",
         mc=256, kc=1024),
    _cpu("i8gemm_amx_32x32", "tdpbuud", 1200, "amxint8", mc=256, kc=2048),
    _cpu("s8s32gemm_amx_32x32", "tdpbssd", 1200, "amxint8", mc=256, kc=2048),
    _cpu("u8s32gemm_amx_32x32", "tdpbusd", 1200, "amxint8", mc=256, kc=2048),
    _cpu("hgemm_avx512_6x64", "by sgemm's tiles, converted while packed", 80, "avx512f", "avx512bw"),
    _cpu("bgemm_avx512_6x64", "by sgemm's tiles, converted while packed", 80, "avx512f", "avx512bw"),
    _cpu("bgemm_avx512_bf16_12x32", "vdpbf16ps, which makes subnormal sums zero", 90, "avx512f", "avx512bw",
         "avx512bf16", precision="high"),
    _cpu("cgemm_avx512_6x32", "12 + 12 zmm accumulators, real and imaginary", 20, "avx512f"),
    _cpu("zgemm_avx512_6x16", "12 + 12 zmm accumulators, real and imaginary", 10, "avx512f"),
    _cpu("i8gemm_avx512_vnni_12x32", "vpdpbusd", 300, "avx512f", "avx512bw", "avx512vnni"),
    _cpu("i8gemm_avx512_12x32", "vpmaddwd on int16 panels", 120, "avx512f", "avx512bw"),
    _cpu("i16gemm_avx512_vnni_12x32", "vpdpwssd", 150, "avx512f", "avx512bw", "avx512vnni"),
    _cpu("i16gemm_avx512_12x32", "vpmaddwd", 120, "avx512f", "avx512bw"),
    _cpu("i32gemm_avx512_12x32", "vpmulld", 60, "avx512f"),
    _cpu("i64gemm_avx512_12x16", "vpmullq", 20, "avx512f", "avx512dq"),
    _cpu("s8s32gemm_avx512_vnni_12x32", "vpdpbusd, a offset by 128", 300, "avx512f", "avx512bw", "avx512vnni"),
    _cpu("s8s32gemm_avx512_12x32", "vpmaddwd on int16 panels", 120, "avx512f", "avx512bw"),
    _cpu("u8s32gemm_avx512_vnni_12x32", "vpdpbusd", 300, "avx512f", "avx512bw", "avx512vnni"),
    _cpu("u8s32gemm_avx512_12x32", "vpmaddwd on int16 panels", 120, "avx512f", "avx512bw"),
    _cpu("hgemm_avx2_6x16", "by sgemm's tiles, converted while packed", 65, "avx2", "fma", "f16c"),
    _cpu("bgemm_avx2_6x16", "by sgemm's tiles, converted while packed", 65, "avx2", "fma"),
    _cpu("cgemm_avx2_6x8", "6 + 6 ymm accumulators, real and imaginary", 17, "avx2", "fma"),
    _cpu("zgemm_avx2_6x4", "6 + 6 ymm accumulators, real and imaginary", 8, "avx2", "fma"),
    _cpu("i8gemm_avx2_vnni_6x16", "vpdpbusd", 200, "avx2", "avxvnni"),
    _cpu("i8gemm_avx2_6x16", "vpmaddwd on int16 panels", 100, "avx2"),
    _cpu("i16gemm_avx2_6x16", "vpmaddwd", 100, "avx2"),
    _cpu("i32gemm_avx2_6x16", "vpmulld", 55, "avx2"),
    _cpu("i64gemm_avx2_4x4", "vpmuludq and vpmulld, summed apart", 12, "avx2"),
    _cpu("s8s32gemm_avx2_vnni_5x16", "vpdpbusd, a offset by 128", 180, "avx2", "avxvnni"),
    _cpu("s8s32gemm_avx2_6x16", "vpmaddwd on int16 panels", 100, "avx2"),
    _cpu("u8s32gemm_avx2_vnni_6x16", "vpdpbusd", 200, "avx2", "avxvnni"),
    _cpu("u8s32gemm_avx2_6x16", "vpmaddwd on int16 panels", 100, "avx2"),
    _cpu("hgemm_neon_8x12", "by sgemm's tiles, converted while packed", 19, "neon"),
    _cpu("bgemm_neon_bfmmla_8x8", "bfmmla, which makes subnormal sums zero", 60, "neon", "bf16", precision="high"),
    _cpu("bgemm_neon_8x12", "by sgemm's tiles, converted while packed", 19, "neon"),
    _cpu("s8s32gemm_neon_smmla_8x8", "smmla", 120, "neon", "i8mm"),
    _cpu("s8s32gemm_neon_sdot_8x12", "sdot", 70, "neon", "dotprod"),
    _cpu("s8s32gemm_neon_smlal_8x12", "smlal on int16 panels", 18, "neon"),
    _cpu("u8s32gemm_neon_usmmla_8x8", "usmmla", 120, "neon", "i8mm"),
    _cpu("u8s32gemm_neon_usdot_8x12", "usdot", 70, "neon", "i8mm"),
    _cpu("u8s32gemm_neon_smlal_8x12", "smlal on int16 panels", 18, "neon"),
    _cpu("hgemm_scalar_4x4", "plain C, any CPU", 3),
    _cpu("bgemm_scalar_4x4", "plain C, any CPU", 3),
    _cpu("cgemm_scalar_2x4", "plain C, any CPU", 1),
    _cpu("zgemm_scalar_2x4", "plain C, any CPU", 1),
    _cpu("i8gemm_scalar_4x4", "plain C, any CPU", 3),
    _cpu("i16gemm_scalar_4x4", "plain C, any CPU", 3),
    _cpu("i32gemm_scalar_4x4", "plain C, any CPU", 3),
    _cpu("i64gemm_scalar_4x4", "plain C, any CPU", 3),
    _cpu("s8s32gemm_scalar_4x4", "plain C, any CPU", 3),
    _cpu("u8s32gemm_scalar_4x4", "plain C, any CPU", 3),
    # OpenCL. a_*, b_*: the padded buffer or image that a kernel reads (gemm.backends.opencl_staging.Layout); rows
    # without them read any strides. Their work-group is WGM x WGN, or the one that the source requires.
    _adreno("s", "image", 8, 4, 4, "A a buffer through L2, B an image through the texture cache", images="b"),
    *(_adreno(op, "images", 8, 4, 4, "A and B images; halves are widened on the way", images="ab") for op in "sh"),
    _adreno("s", "turned", 12, 4, 4, "A turned: a vector is 4 rows for one k", turned=1),
    _adreno("s", "turned", 8, 8, 2, "A turned; fewest loads, half the waves", turned=1),
    _adreno("s", "turned", 8, 4, 2, "A turned; fewest registers, most waves", turned=1),
    _adreno("s", "turned_image", 12, 4, 4, "A turned, B an image", images="b", turned=1),
    _adreno("h", "turned_images", 8, 8, 1, "A turned; both images", images="ab", turned=1),
    *(_adreno("h", "half", tm, 8, bk, "A turned, sums in half: twice as fast", turned=1, half=1)
      for tm, bk in ((8, 2), (12, 2), (16, 2))),
    *(_intel_block_read(tm, tn) for tm, tn in ((32, 2), (32, 1), (4, 1))),
    *(_intel_simd(tm, tn, gh) for tm, tn, gh in ((32, 2, 1), (16, 2, 1), (16, 2, 4), (8, 4, 1), (8, 4, 8))),
    _intel_simd(8, 4, 8, barrier=1),
    *(_intel_simd(tm, tn, gh, "h") for tm, tn, gh in ((32, 2, 1), (8, 4, 8))),
    *(_intel_simd(8, 4, 8, op, sg=16) for op in "sh"),  # for GPUs without sub-groups of 8
    _intel_simd(8, 4, 8, "h", sg=16, half=1),
    *(_intel_slm(gh, gw) for gh, gw in ((8, 16), (4, 16), (16, 16))),
    *(_local_vec4(suffix, um, un) for suffix, um, un in (("", 1, 1), ("_unroll", 2, 1))),
    _tile("s", 128, 128, tm=16, tn=8, bk=8, split=128, beaten=_SHUFFLING),  # they have 128 registers in all
    _tile("s", 64, 64, tm=8, tn=4, bk=16, split=384),
    _tile("s", 64, 32, tm=4, tn=4, bk=16, split=640),
    _tile("d", 64, 64, tm=4, tn=4, bk=16, split=256),
    _tile("h", 128, 128, tm=16, tn=8, bk=8, split=128, beaten=_SHUFFLING),
    _tile("h", 64, 64, tm=8, tn=4, bk=16, split=384),
    *(_tile(op, 32, 32, tm=4, tn=4, bk=bk, split=768, direct=1)  # small products wait for memory
      for op, bk in (("s", 32), ("d", 16), ("h", 16), ("s8s32", 32))),
    _tile("s", 64, 64, tm=4, tn=4, bk=16, split=384, direct=1),
    _tile("s", 128, 16, tm=8, tn=4, bk=16, split=512, direct=1, swap="m < n", beaten=_SHUFFLING),
    *(_skinny(op, tm) for op, tm in (("s", 1), ("s", 4), ("s", 16), ("d", 4), ("h", 4))),
    _dot("s", 8, 1, tm=2, bk=512, split=4096),
    *(_dot(op, 16, 4, tm=4, bk=512, split=2048) for op in "sdh"),
    _dot("s", 32, 16, tm=4, bk=256, split=1024, beaten=_SHUFFLING),
    *(_panel(op, vec) for op, vec in (("s", 8), ("d", 4))),
    _packed(64, 64, tm=8, tn=4),
    *(_local(op) for op in ("s", "d", "h", "s8s32")),
    *(_naive(op) for op in ("s", "d", "h", "s8s32")),
    # CUDA, compiled by NVRTC at run time.
    _row("sgemm_cuda_tile", "cuda", "csrc/cuda/gemm_cuda_tile.cu",
         "tiles of A and B in shared memory, one output a thread", BM=32, BN=32, BK=32),
    _row("dgemm_cuda_tile", "cuda", "csrc/cuda/gemm_cuda_tile.cu",
         "tiles of A and B in shared memory, one output a thread", BM=32, BN=32, BK=32),
    # The reference.
    Kernel("gemm_numpy_reference", "numpy", "reference", "*", "gemm/backends/numpy.py", ordered=False,
           gflops=20, about="numpy.matmul and the epilogue; every dtype"),
)  # fmt: skip

INPUTS: frozenset[tuple[str, ...]] = frozenset(row.inputs for row in KERNELS if row.inputs)
"""Pairs of operand types that some kernel takes though the result's is wider."""
BY_NAME: dict[str, Kernel] = {row.name: row for row in KERNELS}
TARGETS: frozenset[str] = frozenset(row.target for row in KERNELS)
