"""The OpenCL kernels, which the driver compiles at run time.

The work-group is WGM x WGN work-items, or the size that the source requires. Some parameters of a row:

    a_*, b_*    the padded buffer or image that a kernel reads (gemm.backends.opencl.layout.Layout). Rows without a_*
                and b_* read any strides
    streams     the operand that a kernel reads from end to end at the speed of memory. 1: the kernel reads a once for
                each column of work-groups. 2: the kernel reads b once for each row of work-groups
    busy        number of work-groups that keep a compute unit of a GPU busy; default 1
    step        k is computed in multiples of `step`; default BK

Before the probe has ended, `gflops` ranks the rows of a device. For generic and Adreno rows, it is the rate of one
compute unit of an H200 (2026-11-24), for the rows of CPU runtimes that of a core of a Zen 3. A vendor's rows are ranked
before generic rows on the vendor's GPUs: those for Intel by `_INTEL`, those for matrix units by `_MATRIX`, and those
for Adreno by OWN in gemm/select/cost.py.
"""

from __future__ import annotations

from typing import Any

from .kernel import Kernel, typed_row

_SHUFFLING = ("intel_required_subgroup_size",)
"""The feature that identifies the GPUs for which the Intel rows are written."""


_INTEL = 400
"""GFLOP/s that rank rows for Intel's GPUs before generic rows."""
_MATRIX = 10_000
"""GFLOP/s of float16 on a GPU with matrix units. The rate is not measured: it is 0.3 of the peak that Intel reports for
its smallest GPUs with these units (8 Xe-cores of Arc or of Lunar Lake: 33 TFLOP/s). For AMD, it is the same guess."""


def _opencl(op: str, form: str, source: str, about: str, needs: tuple[str, ...] = (), **rest: Any) -> Kernel:
    """The catalog's row <op>gemm_<form>, whose source is kernels/opencl/<source>.cl.

    Ordered accumulation in float32 needs a device with denormals. Rows with HALF_SUMS sum in half (float16) and offer
    only medium precision.
    """
    half = bool(rest.get("HALF_SUMS"))
    return typed_row(f"{op}gemm_{form}", "opencl", f"kernels/opencl/{source}.cl", about,
                     needs=needs + ("fp64",) * (op == "d") + ("fp16",) * half,
                     ordered_needs=("denorms",) * (op in ("s", "h") and not half),
                     precision=rest.pop("precision", "medium" if half else "highest"), **rest)  # fmt: skip


def _adreno(op: str, form: str, tile: tuple[int, int, int], about: str) -> Kernel:
    """An Adreno row.

    Args:
        form: "image" (b is an image), "images" (a and b are images), "turned" (memory holds the transpose of a),
            "turned_image" or "turned_images" (both properties), or "half" (like "turned", with sums in half).
        tile: rows and columns of a work-item, and the step along k.
    """
    tm, tn, bk = tile
    half = form == "half"
    turned, a_image, b_image = half or form.startswith("turned"), form.endswith("images"), "image" in form
    rows, cols = (bk, tm) if turned else (tm, bk)
    return _opencl(op, f"adreno_{form}_{tm}x{tn}", "adreno/gemm_adreno", about, ("image",) * b_image,
                   auto_kinds=("gpu",), excluded_features=_SHUFFLING, gflops=150,
                   space={"WGM": (1, 2, 4, 8, 16), "WGN": (1, 2, 4, 8, 16, 32)},
                   TM=tm, TN=tn, BK=bk, A_TURNED=int(turned), A_IMAGE=int(a_image), B_IMAGE=int(b_image),
                   HALF_SUMS=int(half), WGM=8, WGN=16, a_rows=rows, a_cols=cols, a_turned=int(turned),
                   a_channels=4 * a_image, b_rows=bk, b_cols=tn, b_channels=4 * b_image)  # fmt: skip


def _shuffles(sg: int) -> tuple[str, ...]:
    return ("intel_subgroups", "intel_required_subgroup_size", f"subgroup_size_{sg}")


def _intel_block_read(tm: int, tn: int) -> Kernel:
    return _opencl("s", f"intel_block_read_{tm}x{tn}_1x8", "intel/sgemm_intel_block_read",
                   f"A and B image2d, intel_sub_group_block_read, {tm}x{tn} outputs a work-item, sub-groups of 8",
                   ("image", *_shuffles(8)), auto_kinds=("gpu",) if tm == 32 else (), gflops=_INTEL,
                   TM=tm, TN=tn, SG=8, a_rows=tm, a_cols=8, a_channels=1,
                   b_rows=8, b_cols=8 * tn, b_channels=1, bits=1)  # fmt: skip


def _intel_simd(op: str, tile: tuple[int, int, int], sg: int = 8, *, barrier: int = 0, half: int = 0) -> Kernel:
    """An Intel row for a kernel whose lanes share A by shuffles.

    Args:
        tile: rows and columns of a work-item, and the sub-groups of a work-group.
        sg: work-items of a sub-group.
        half: 1: sum in half (float16). 0: sum in float.
    """
    tm, tn, gh = tile
    kv = {8: 4, 16: 4, 32: 2}[tm] if sg == 8 else 1 + half  # limited by the registers that the sums leave free
    form = f"{'half_' * half}{tm}x{tn}_{gh}x{sg}{'_barrier' * barrier}"
    return _opencl(op, f"intel_L3_SIMD_{form}", "intel/gemm_intel_L3_SIMD",
                   f"A shared in sub-groups of {sg} by shuffles, {tm}x{tn} outputs a work-item"
                   + ", synchronized" * barrier + ", sums in half: twice as fast" * half, _shuffles(sg),
                   # Gen8 GPUs convert halves before they compute with them, and do not report this. Rows with sums in
                   # half are therefore used only if the user names them.
                   auto_kinds=() if half else ("gpu",), gflops=_INTEL,
                   excluded_features=("subgroup_size_8",) if sg > 8 else (),
                   space={"KV": (1, 2, 4)}, derived={"a_cols": "SG * KV", "b_rows": "SG * KV"},
                   TM=tm, TN=tn, SG=sg, GH=gh, KV=kv, BARRIER=barrier, HALF_SUMS=half,
                   a_rows=tm * gh, a_cols=sg * kv, b_rows=sg * kv, b_cols=sg * tn)  # fmt: skip


def _intel_dpas(op: str, tile: tuple[int, int], sg: int, grf: int, *, io: int = 0) -> Kernel:
    """A row for the matrix units of Intel GPUs. A work-group has 2 x 2 sub-groups.

    Args:
        tile: rows and columns of a sub-group.
        sg: work-items of a sub-group.
        grf: registers of a hardware thread.
        io: 1: messages read blocks of row-major operands. 0: the kernel reads packed operands.
    """
    (tm, tn), depth = tile, 4 if "8" in op else 2
    step, line = 8 * depth, 16 * depth  # elements of a block along k, and of 64 bytes
    feature, how = "intel_subgroup_2d_block_io", "in place" if io else "packed"
    bk = step * (grf // 128) if io else step
    layout = {"a_rows": 1, "a_cols": line, "b_rows": line, "b_cols": line, "a_blocks": 1, "b_blocks": 1}
    panels = {"a_rows": 2 * tm, "a_cols": bk, "b_rows": bk, "b_cols": 2 * tn, "a_panel": bk, "b_panel": sg,
              "b_depth": depth}  # fmt: skip
    # The units may treat a subnormal bfloat16 as zero.
    return _opencl(op, f"intel_dpas_{'io_' * io}{tm}x{tn}_2x{sg}", "intel/gemm_intel_dpas",
                   f"matrix units, operands {how}, {tm}x{tn} outputs a sub-group of {sg}"
                   + ", twice the registers" * (grf > 128),
                   ("intel_subgroups", f"intel_dpas_{sg}", *[feature] * io), auto_kinds=("gpu",),
                   excluded_features=() if io else (feature,), ordered=False,
                   precision="high" if op == "b" else "highest", gflops=_MATRIX * depth // 2, TM=tm, TN=tn, SG=sg, GH=2,
                   GW=2, BK=bk, A_UNSIGNED=int(op[0] == "u"), BLOCK_IO=io, grf=grf,
                   **(layout if io else panels))  # fmt: skip


def _amd_wmma(op: str, tile: tuple[int, int]) -> Kernel:
    """A row for the matrix units of AMD GPUs. A work-group has 2 x 2 sub-groups of 32.

    float16 and bfloat16 need RDNA 4: on RDNA 3, sums of small integers are not exact (docs/amd.md).

    Args:
        tile: rows and columns of a sub-group.
    """
    (tm, tn), bytes_ = tile, "8" in op
    bk = 32 if bytes_ else 16
    # The units of RDNA 3 treat a subnormal bfloat16 as zero, and AMD does not document those of RDNA 4.
    return _opencl(op, f"amd_wmma_{tm}x{tn}_2x32", "amd/gemm_amd_wmma",
                   f"matrix units, operands packed, {tm}x{tn} outputs a sub-group of 32",
                   ("amd_wmma",) if bytes_ else ("amd_wmma_gfx12",), auto_kinds=("gpu",), ordered=False,
                   precision="high" if op == "b" else "highest", gflops=_MATRIX, TM=tm, TN=tn, GH=2, GW=2, BK=bk,
                   A_UNSIGNED=int(op[0] == "u"), a_rows=2 * tm, a_cols=bk, b_rows=bk, b_cols=2 * tn, a_panel=bk,
                   b_panel=16, b_depth=bk)  # fmt: skip


def _intel_slm(gh: int, gw: int) -> Kernel:
    return _opencl("s", f"intel_L3_SLM_8x8_{gh}x{gw}", "intel/sgemm_intel_L3_SLM",
                   f"A staged in local memory, 8x8 outputs a work-item, groups of {gh}x{gw}",
                   legal=(f"{gh * gw} <= work_group", f"{512 * gh} <= local_memory"), auto_kinds=(),
                   TM=8, TN=8, BK=16, GH=gh, GW=gw, a_rows=8 * gh, a_cols=16, b_rows=16, b_cols=8 * gw)  # fmt: skip


def _local_vec4(suffix: str, um: int, un: int) -> Kernel:
    return _opencl("s", f"generic_local_vec4{suffix}", "generic/sgemm_generic_local_vec4",
                   f"tiles of float4 in local memory, {16 * um * un} outputs a work-item",
                   legal=("BS * BS <= work_group", "4 * BS * BS * (TM + TN) <= local_memory"), auto_kinds=(),
                   TM=4 * um, TN=4 * un, BS=16, a_rows=64 * um, a_cols=16, b_rows=16, b_cols=64 * un)  # fmt: skip


def _size(op: str) -> int:
    """Bytes of an element in local memory."""
    return 8 if op == "d" else 4


def _generic(op: str, form: str, source: str, about: str, **rest: Any) -> Kernel:
    return _opencl(op, f"generic_{form}", f"generic/gemm_generic_{source}", about, **rest)


def _tile(op: str, group: tuple[int, int, int], item: tuple[int, int], split: int, *, direct: int = 0,
          **rest: Any) -> Kernel:  # fmt: skip
    """A row of gemm_generic_tile, which computes with tiles in registers.

    The kernel reads padded copies of the operands or, if `direct` is 1, the operands in their original layout.

    Args:
        group: rows and columns of a work-group, and its step along k.
        item: rows and columns of a work-item.
    """
    (bm, bn, bk), (tm, tn) = group, item
    # The rule `whole` says that all work-items load the same number of vectors.
    whole = "BK * TM * TN % (4 * BN) == 0 and BK * TM * TN % (4 * BM) == 0"
    padded: dict[str, Any] = {} if direct else {"a_rows": bm, "a_cols": bk, "b_rows": bk, "b_cols": bn}
    where = "of operands in their original layout" if direct else "in local memory"
    return _generic(op, f"tile_{direct * 'direct_'}{bm}x{bn}", "tile",
                    f"tiles {where}, {tm}x{tn} outputs a work-item",
                    legal=("BM * BN <= TM * TN * work_group", whole,
                           f"{2 * _size(op)} * BK * (BM + 4 + BN + 4 * DIRECT) <= local_memory"),
                    auto_kinds=("gpu",), space={"TM": (4, 8, 16), "TN": (4, 8), "BK": (8, 16, 32)},
                    derived={} if direct else {"a_cols": "BK", "b_rows": "BK"},
                    TM=tm, TN=tn, BM=bm, BN=bn, BK=bk, DIRECT=direct, split=split, **padded, **rest)  # fmt: skip


def _skinny(op: str, tm: int, gflops: float) -> Kernel:
    return _generic(op, f"skinny_{tm}x4", "skinny", "few rows: one pass over B, K split among groups",
                    legal=("WGN <= work_group", f"{_size(op)} * BK * TM <= local_memory"),
                    swap="m > n and a == 'T'",  # out has fewer columns than rows, and a has unit stride along m
                    auto_kinds=("gpu",), gflops=gflops, space={"WGN": (64, 128, 256), "BK": (32, 64, 128)},
                    TM=tm, TN=4, WGN=128, BK=64, split=64, streams=2, b_rows=1, b_cols=4)  # fmt: skip


def _dot(op: str, bm: int, bn: int, *, tm: int, bk: int, split: int, **rest: Any) -> Kernel:
    return _generic(op, f"dot_{bm}x{bn}", "dot", "few columns: one pass over A along k, by many work-items a row",
                    legal=("BM * LANES <= TM * work_group",
                           f"{_size(op)} * (BN * (BK + 4) + 4 * BM * LANES // TM) <= local_memory",
                           f"{_size(op)} * BM * BN * (LANES + 1) <= TM * local_memory"),
                    swap="m < n and b == 'T'",  # out has fewer rows than columns, and b has unit stride along k
                    auto_kinds=("gpu",), space={"TM": (1, 2, 4), "BK": (256, 512, 1024), "LANES": (16, 32, 64)},
                    derived={"step": "4 * LANES"},
                    BM=bm, BN=bn, BK=bk, TM=tm, LANES=32, split=split, streams=1, a_rows=1, a_cols=1,
                    **rest)  # fmt: skip


def _panel(op: str, vec: int) -> Kernel:
    return _generic(op, f"panel_4x{3 * vec}", "panel", "CPU runtimes: outputs in vector registers, B in panels",
                    auto_kinds=("cpu",), gflops=60 if op == "s" else 30,
                    space={"TM": (2, 4, 6, 8, 12), "VEC": (2, 4, 8, 16), "NV": (1, 2, 3)},
                    derived={"TN": "NV * VEC", "b_panel": "NV * VEC"},
                    TM=4, NV=3, VEC=vec, a_rows=1, a_cols=1, b_rows=1)  # fmt: skip


def _packed(bm: int, bn: int, *, tm: int, tn: int) -> Kernel:
    # The rule `whole` says that all work-items load the same number of blocks.
    whole = "BK * TM * TN % (16 * BN) == 0 and BK * TM * TN % (16 * BM) == 0"
    return _generic("s8s32", f"packed_{bm}x{bn}", "packed", f"four bytes an instruction, {tm}x{tn} outputs a work-item",
                    needs=("integer_dot_product",),
                    legal=("BM * BN <= TM * TN * work_group", whole, "BK * (BM + BN + 8) <= local_memory"),
                    auto_kinds=("gpu",), gflops=300, space={"TM": (4, 8), "TN": (4, 8), "BK": (32, 64, 128)},
                    BM=bm, BN=bn, BK=64, TM=tm, TN=tn, split=512)  # fmt: skip


def _local(op: str) -> Kernel:
    return _generic(op, "local_16x16", "local_16x16", "tiles of A and B in local memory, one output a work-item",
                    legal=("BM * BN <= work_group", f"(BM * (BK + 1) + BK * (BN + 1)) * {_size(op)} <= local_memory"),
                    BM=16, BN=16, BK=16, busy=2, gflops=25)  # fmt: skip


def _naive(op: str) -> Kernel:
    return _generic(op, "naive", "naive", "one output a work-item, directly from memory", WGM=8, WGN=16, busy=8,
                    gflops=20 if op == "d" else 40)  # fmt: skip


OPENCL: tuple[Kernel, ...] = (
    _adreno("s", "image", (8, 4, 4), "A a buffer through L2, B an image through the texture cache"),
    *(_adreno(op, "images", (8, 4, 4), "A and B images; halves are widened when read") for op in "sh"),
    _adreno("s", "turned", (12, 4, 4), "A transposed: a vector is 4 rows for one k"),
    _adreno("s", "turned", (8, 8, 2), "A transposed; fewest loads, half the waves"),
    _adreno("s", "turned", (8, 4, 2), "A transposed; fewest registers, most waves"),
    _adreno("s", "turned_image", (12, 4, 4), "A transposed, B an image"),
    _adreno("h", "turned_images", (8, 8, 1), "A transposed; both images"),
    *(_adreno("h", "half", (tm, 8, 2), "A transposed, sums in half: twice as fast") for tm in (8, 12, 16)),
    *(_intel_block_read(tm, tn) for tm, tn in ((32, 2), (32, 1), (4, 1))),
    *(_intel_simd("s", tile) for tile in ((32, 2, 1), (16, 2, 1), (16, 2, 4), (8, 4, 1), (8, 4, 8))),
    _intel_simd("s", (8, 4, 8), barrier=1),
    *(_intel_simd("h", tile) for tile in ((32, 2, 1), (8, 4, 8))),
    *(_intel_simd(op, (8, 4, 8), 16) for op in "sh"),  # for GPUs without sub-groups of 8
    _intel_simd("h", (8, 4, 8), 16, half=1),
    *(_intel_dpas(op, tile, sg, grf)
      for sg, tile, grf in ((8, (32, 16), 128), (8, (48, 32), 256), (16, (32, 32), 128), (16, (48, 64), 256))
      for op in ("h", "b", "s8s32", "u8s32")),
    *(_intel_dpas(op, tile, 16, grf, io=1)
      for tile, grf in (((32, 32), 128), ((32, 64), 256)) for op in ("h", "b", "s8s32", "u8s32")),
    *(_amd_wmma(op, tile) for tile in ((32, 32), (64, 64)) for op in ("h", "b", "s8s32", "u8s32")),
    *(_intel_slm(gh, gw) for gh, gw in ((8, 16), (4, 16), (16, 16))),
    *(_local_vec4(suffix, um, un) for suffix, um, un in (("", 1, 1), ("_unroll", 2, 1))),
    # The sums of this tile do not fit into the 128 registers of Intel's GPUs. For AMD's RDNA, clang spills registers.
    _tile("s", (128, 128, 8), (16, 8), 128, excluded_features=(*_SHUFFLING, "rdna"), gflops=350),
    _tile("s", (64, 64, 16), (8, 4), 384, gflops=320),
    _tile("s", (64, 32, 16), (4, 4), 640, gflops=230),
    _tile("d", (64, 64, 16), (4, 4), 256, gflops=77),
    _tile("h", (128, 128, 8), (16, 8), 128, excluded_features=(*_SHUFFLING, "rdna"), gflops=280),
    _tile("h", (64, 64, 16), (8, 4), 384, gflops=250),
    # Rows for small products, which mostly wait for memory.
    *(_tile(op, (32, 32, bk), (4, 4), 768, direct=1, busy=busy, gflops=gflops)
      for op, bk, busy, gflops in (("s", 32, 3, 190), ("d", 16, 3, 65), ("h", 16, 3, 130), ("s8s32", 32, 2, 170))),
    _tile("s", (64, 64, 16), (4, 4), 384, direct=1, gflops=220),
    _tile("s", (128, 16, 16), (8, 4), 512, direct=1, swap="m < n", excluded_features=_SHUFFLING, gflops=190),
    *(_skinny(op, tm, gflops)
      for op, tm, gflops in (("s", 1, 48), ("s", 4, 220), ("s", 16, 240), ("d", 4, 88), ("h", 4, 150))),
    _dot("s", 8, 1, tm=2, bk=512, split=4096, gflops=20),
    *(_dot(op, 16, 4, tm=4, bk=512, split=2048, gflops=60) for op in "sdh"),
    _dot("s", 32, 16, tm=4, bk=256, split=1024, excluded_features=_SHUFFLING, gflops=65),
    *(_panel(op, vec) for op, vec in (("s", 8), ("d", 4))),
    _packed(64, 64, tm=8, tn=4),
    *(_local(op) for op in ("s", "d", "h", "s8s32")),
    *(_naive(op) for op in ("s", "d", "h", "s8s32")),
)  # fmt: skip
