"""Launch plans: makes the plan (`Recipe`) for a kernel of the catalog and the layout of a product.

A plan lists the kernels to launch, their operands and the number of thread blocks. gemm/catalog/cuda.py explains the
parameters of a kernel. A variable `row` is a kernel's row in the catalog.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from gemm.backends.cuda import operand_layout
from gemm.backends.cuda.operand_layout import BIAS, OUT, SIZES, WORKSPACE, A, B, C, Operand, Step, View
from gemm.catalog import Kernel, launch_arithmetic, simplest
from gemm.core.errors import KernelFailed
from gemm.core.operands import same_stack
from gemm.core.problem import Ints

GRID = 65535
"""The maximum number of thread blocks along the y axis of a grid."""

TYPES = {
    "float32": "float", "float64": "double", "float16": "float16", "bfloat16": "bfloat16",
    "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "complex64": "complex64", "complex128": "complex128",
    "int8": "int8", "uint8": "uint8", "int16": "int16", "int32": "int32", "int64": "int64",
}  # fmt: skip
"""{NumPy's name of a type: its name in csrc/cuda}."""

_GEMM = struct.Struct("5Q4q12q2q2Q4i8x16s16s")
"""struct Gemm of gemm.cuh. Its first fields are the pointers to a, b, c, out and bias."""
SCALE_AT = _GEMM.size - 32
"""The offset of alpha in struct Gemm, in bytes. alpha and then beta have 16 bytes each."""
_MEMORY_AT, _ARRIVALS_AT = SCALE_AT - 40, SCALE_AT - 32
"""The offsets of two pointers in struct Gemm. They point to the partial sums and to the counters. If the operands are
split into planes, they point to the exponents of the left and of the right operand."""
_ADDRESS = 8
"""Bytes of an address in a table of a pointer batch."""


class Chip(NamedTuple):
    """The properties of a GPU that determine a launch plan.

    Attributes:
        capability: the compute capability, such as 90.
        units: the number of multiprocessors.
    """

    capability: int
    units: int


class Layout(NamedTuple):
    """All properties of a product that determine its launches: everything except addresses and scalars.

    Attributes:
        shape: (*batch, m, n).
        k: the length of the sums.
        strides: byte strides of a, b, c and out, one for each axis of `shape`. If c is not read, c has out's strides.
        aligned: for each of a, b, c and out, the largest power of two, at most 16, that divides the address.
        reads_c: whether beta is not 0.
        ordered: whether ordered accumulation is required.
        bias: the bias's strides in elements along m and n, or None.
        activation: the number of the activation in gemm.cuh.
        kept: whether b is prepacked and split into planes, as `backend.keep` returns it.
        apart: whether the product is a pointer batch: the kernel reads the addresses of a, b, c and out from a table.
            The addresses of a launch are then those of the first entries in the table. The strides along the only batch
            axis are the distances between table entries, and `aligned` is the alignment of the operands themselves.
    """

    shape: Ints
    k: int
    strides: tuple[Ints, ...]
    aligned: Ints
    reads_c: bool = False
    ordered: bool = False
    bias: Ints | None = None
    activation: int = 0
    kept: bool = False
    apart: bool = False


class Recipe(NamedTuple):
    """A launch plan: the steps of a product, in order.

    Attributes:
        workspace: bytes of workspace in device memory that the steps need.
        zeroed: (offset, bytes) of the part of the workspace that must be 0 before the first step.
        copied: the operands that the plan copies, or splits into planes, before the product: "a", "b", "ab" or "".
    """

    steps: tuple[Step, ...]
    workspace: int
    zeroed: tuple[int, int]
    copied: str


def fallback(kernel: Kernel) -> Kernel:
    """Return the fallback for products that `kernel` cannot compute.

    The fallback is the last kernel in the catalog for the same types. It takes any strides and sizes.
    """
    found = simplest("cuda", kernel.dtype, kernel.inputs)
    assert found is not None
    return found


def types(kernel: Kernel) -> tuple[str, str, str]:
    """Return the names of the types of a, b and out in csrc/cuda."""
    a, b = kernel.inputs or (kernel.dtype, kernel.dtype)
    return TYPES[a], TYPES[b], TYPES[kernel.dtype]


def swaps(kernel: Kernel, layout: Layout) -> bool:
    """Return whether to compute out^T = b^T·a^T instead of out = a·b.

    If the kernel has a rule for this (Kernel.swap), the rule decides. Otherwise gemm swaps if out is closer to
    column-major than to row-major. In both cases, each element is the result of the same operations, because
    fma(x, y, z) = fma(y, x, z).
    """
    *_, m, n = layout.shape
    if kernel.swap:
        letters = "".join("N" if abs(s[-1]) <= abs(s[-2]) else "T" for s in layout.strides[:2])
        return kernel.swaps(m, n, letters)
    row, column = layout.strides[OUT][-2:]
    return abs(row) < abs(column)


@lru_cache(4096)
def recipe(kernel: Kernel, chip: Chip, layout: Layout) -> Recipe:
    """Return the launch plan of `kernel` for products of this layout.

    If `kernel` cannot compute such products, the plan uses `fallback(kernel)`. For example, k may be 0, or a matrix may
    have more rows than a tensor map supports. Raises KernelFailed if the fallback cannot compute such products either.
    If the layout is `kept` or `apart`, there is no fallback.
    """
    for row in (kernel, *(() if layout.kept or layout.apart else (fallback(kernel),))):
        try:
            return _Maker(row, chip, layout).recipe()
        except _Unfit:
            continue
    raise KernelFailed(f"{kernel.name} cannot compute products of {layout.shape}")


class _Unfit(Exception):
    """The kernel cannot compute this product."""


class _Maker:
    """Makes the launch plan of the kernel `row` for one layout. The constructor and `recipe` may raise _Unfit."""

    def __init__(self, row: Kernel, chip: Chip, layout: Layout) -> None:
        self.row, self.chip, self.layout = row, chip, layout
        self.swap = swaps(row, layout)
        self.m, self.n = layout.shape[-2:][:: -1 if self.swap else 1]
        self.steps: list[Step] = []
        self.workspace = self.used = 0  # bytes of workspace: the maximum over all launches; the current launch
        self.zeroed = (0, 0)
        self.copied: set[str] = set()
        if (layout.k == 0 and row is not fallback(row)) or (layout.apart and not row.apart):
            raise _Unfit

    def recipe(self) -> Recipe:
        row, layout = self.row, self.layout
        slots, names = [A, B, C, OUT], [*types(row), types(row)[-1]]
        strides, aligned = list(layout.strides), list(layout.aligned)
        if self.swap:
            strides = [(*s[:-2], s[-1], s[-2]) for s in strides]
            slots[:2], names[:2] = slots[1::-1], names[1::-1]
            strides[:2], aligned[:2] = strides[1::-1], aligned[1::-1]
        axes = same_stack(layout.shape[:-2], *(s[:-2] for s in strides))
        inner = max(axes, key=lambda axis: axis[0], default=(1, (0, 0, 0, 0)))
        if axes:
            axes.remove(inner)
        steps = [[axis[1][x] for axis in (*axes, inner)] for x in range(4)]
        sizes = [SIZES[name] for name in names]
        units = [_ADDRESS] * 4 if layout.apart else sizes
        if not layout.apart:
            # The alignment must hold for every matrix of the batch, so it must also divide all batch strides.
            aligned = [math.gcd(16, a, *own) for a, own in zip(aligned, steps, strict=True)]
        most = inner[0] if row.params.get("blocks") else GRID * row.params.get("STACK", 1)
        by_residues = bool(row.params.get("MODULI"))
        most = 1 if by_residues else most
        for index in product(*(range(count) for count, _ in axes)):
            start = [sum(i * axis[1][x] for i, axis in zip(index, axes, strict=True)) for x in range(4)]
            for first in range(0, inner[0], most):
                views = [
                    View(slots[x], start[x] + first * inner[1][x], names[x], strides[x][-2] // sizes[x],
                          strides[x][-1] // sizes[x], inner[1][x] // units[x], aligned[x])
                    for x in range(4)
                ]  # fmt: skip
                self.by_residues(views) if by_residues else self.product(views, min(most, inner[0] - first))
        return Recipe(tuple(self.steps), self.workspace, self.zeroed, "".join(sorted(self.copied)))

    def product(self, views: list[View], batch: int) -> None:
        """Add one launch of the kernel, for `batch` products, after the steps that pack the operands of this launch."""
        row, p, layout = self.row, self.row.params, self.layout
        m, n, (a, b, c, out) = self.m, self.n, views
        self.used = 0
        x = self.prepared(Operand("a", *a[:3], m, layout.k, batch, a.col, a.row, a.step, a.aligned))
        y = self.prepared(Operand("b", *b[:3], n, layout.k, batch, b.row, b.col, b.step, b.aligned))
        tiles, stacked = launch_arithmetic.groups(row, m, n, 1), -(-batch // p.get("STACK", 1))
        count = 1 if layout.ordered else launch_arithmetic.parts(row, tiles * stacked, layout.k, self.chip.units)
        cluster, across = p.get("MULTICAST", 1), tiles * p.get("MULTICAST", 1) * count
        pointers = self.pointers(x, y, c, out)
        if self.chip.capability >= 90:
            cluster *= count
        elif count > 1:
            sums = max(512, p["BM"] * p["BN"] * max(4, SIZES[out.type]))  # at least 16 bytes for each thread of a warp
            self.joined(pointers, tiles * batch, tiles * batch * count * sums)
        grid = across, stacked
        if p.get("blocks"):
            grid = min(across * batch, launch_arithmetic.room(self.chip.units, p["blocks"], cluster) * cluster), 1
        alone = not layout.ordered and count == 1
        if alone and (sharing := launch_arithmetic.shared(row, tiles * batch, layout.k, self.chip.units)):
            grid = sharing, 1
            self.joined(pointers, sharing + 1, sharing * p["BM"] * p["BN"] * SIZES[out.type])
        if across >= 1 << 31:
            raise _Unfit
        maps = tuple(operand_layout.tensor_map(row, o) for bit, o in ((1, x), (2, y)) if p.get("maps", 0) & bit)
        out_map = None if layout.reads_c else operand_layout.out_map(out, m, n, batch)
        parameters = self.parameters((m, n, layout.k, batch), (x, y, c, out), count, int(out_map is not None))
        if p.get("OUT_BOXES"):
            maps += (out_map or maps[0],)
        self.workspace = max(self.workspace, self.used)
        self.steps.append(
            Step(row, self.form(x, y, out.type), grid, cluster, parameters, tuple(pointers), maps, scaled=True)
        )

    def by_residues(self, views: list[View]) -> None:
        """Add the steps of one product by residues: two of gemm_cuda_residues, the kernel, gemm_cuda_combine."""
        row, p, (a, b, c, out), m, n, k = self.row, self.row.params, views, self.m, self.n, self.layout.k
        left = Operand("a", *a[:3], m, k, 1, a.col, a.row, 0, a.aligned)
        right = Operand("b", *b[:3], n, k, 1, b.row, b.col, 0, b.aligned)
        self.used = -(-4 * (m + n) // 256) * 256  # the exponents of a's rows, then of b's columns
        x, y = self.planes(left, 0), self.planes(right, 4 * m)
        rest = View(WORKSPACE, self.used, "uint8", y.extent, 1, m * y.extent, 256)
        self.workspace = max(self.workspace, self.used + p["MODULI"] * m * y.extent)
        room = launch_arithmetic.room(self.chip.units, p["blocks"], p["MULTICAST"])
        blocks = min(launch_arithmetic.groups(row, m, y.extent, 1), room) * p["MULTICAST"]
        form = ("A_TYPE", x.type), ("B_TYPE", y.type), ("OUT_TYPE", rest.type)
        parameters = self.parameters((m, y.extent, k, p["MODULI"]), (x, y, rest, rest))
        pointers = (0, x.slot, x.at), (8, y.slot, y.at), (24, rest.slot, rest.at)
        maps = operand_layout.tensor_map(row, x), operand_layout.tensor_map(row, y)
        self.steps.append(Step(row, form, (blocks, 1), p["MULTICAST"], parameters, pointers, maps))
        found = [*self.pointers(left, right, c, out), (_MEMORY_AT, rest.slot, rest.at), (_ARRIVALS_AT, WORKSPACE, 0)]
        last = self.parameters((m, n, k, 1), (left, right, c, out))
        blocks = -(-m * y.extent // (4 * operand_layout.COMBINE.params["THREADS"]))
        self.steps.append(Step(operand_layout.COMBINE, self.fused(), (blocks, 1), 1, last, tuple(found), scaled=True))

    def planes(self, x: Operand, exponents: int) -> Operand:
        """Add the step that replaces `x` by planes of residues in the workspace, and return the stack of planes.

        exponents: where in the workspace the exponents of the lines of `x` are stored.
        """
        y, step, nbytes = operand_layout.residues(x, self.row.params["MODULI"], self.used, exponents)
        self.steps.append(step)
        self.copied.add("ab"[x.slot])
        self.used += -(-nbytes // 256) * 256
        return y

    def parameters(self, sizes: Ints, operands: tuple[Any, ...], parts: int = 1, mapped: int = 0) -> bytes:
        """Return struct Gemm without addresses and scalars. `sizes`: m, n, k, batch. `operands`: a, b, c, out."""
        x, y, c, out = operands
        bias = (self.layout.bias or (0, 0))[:: -1 if self.swap else 1]
        return _GEMM.pack(
            0, 0, 0, 0, 0, *sizes, x.across, x.along, x.step, y.along, y.across, y.step, c.row, c.col, c.step,
            out.row, out.col, out.step, *bias, 0, 0, parts, self.layout.activation, self.raster(), mapped, b"", b"",
        )  # fmt: skip

    def pointers(self, x: Operand, y: Operand, c: View, out: View) -> list[tuple[int, int, int]]:
        """Return the pointers to operands that a launch needs, in the format of Step.pointers."""
        found = [(0, x.slot, x.at), (8, y.slot, y.at), (24, OUT, out.at)]
        if self.layout.reads_c:
            found.append((16, C, c.at))
        if self.layout.bias is not None:
            found.append((32, BIAS, 0))
        if x.planes:
            found += [(_MEMORY_AT, x.slot, x.scales), (_ARRIVALS_AT, y.slot, y.scales)]
        return found

    def joined(self, pointers: list[tuple[int, int, int]], arrivals: int, nbytes: int) -> None:
        """Reserve workspace for adding up the sums of the parts of k, and append pointers into it to `pointers`.

        Args:
            arrivals: the number of 32-bit counters.
            nbytes: the bytes of the partial sums.
        """
        counts = -(-4 * arrivals // 256) * 256
        self.zeroed = (self.used, counts)
        pointers += [(_ARRIVALS_AT, WORKSPACE, self.used), (_MEMORY_AT, WORKSPACE, self.used + counts)]
        self.used += counts + nbytes

    def prepared(self, x: Operand) -> Operand:
        """Return `x` in a layout that the kernel reads.

        If the kernel cannot read `x` in place, this method adds a step that copies `x` to the workspace, or splits it
        into planes there.
        """
        row = self.row
        if row.params.get("planes"):
            if x.slot == B and self.layout.kept:
                return operand_layout.planes_of(row, x, B, x.at)[0]
        elif (found := operand_layout.in_place(row, x)) is not None:
            return found
        y, step, nbytes = operand_layout.prepared(row, x, WORKSPACE, self.used)
        self.steps.append(step)
        self.copied.add("ab"[x.slot])
        self.used += -(-nbytes // 256) * 256
        return y

    def form(self, a: Operand, b: Operand, out: str) -> tuple[tuple[str, object], ...]:
        """Return (macro, value) pairs that select the kernel's compiled variant. They omit the kernel's parameters."""
        p, layout = self.row.params, self.layout
        found: dict[str, object] = {"A_TYPE": a.type, "B_TYPE": b.type, "OUT_TYPE": out}
        for name, x in (("A", a), ("B", b)):
            wide = operand_layout.vector_of(self.row, x.which)
            if wide or p.get(f"{x.which}_lies", 3) == 3:
                # TURNED is 0 if the operand is row-major: a contiguous along k, b along n
                found[f"{name}_TURNED"] = int(x.transposed == (name == "A"))
            if wide:
                found[f"{name}_VECTOR"] = max(1, wide // x.size) if x.vectors else 1
        if p.get("ordered_form"):
            found["ORDERED"] = int(layout.ordered)
        if p.get("pointers"):
            found["POINTERS"] = int(layout.apart)
        return (*found.items(), *self.fused())

    def fused(self) -> tuple[tuple[str, object], ...]:
        """Return the part of a form that says whether there is a bias or an activation."""
        return (("EPILOGUE", 1),) if self.layout.bias is not None or self.layout.activation else ()

    def raster(self) -> int:
        """Return how many columns of tiles form a band; 0 means no bands.

        Thread blocks compute the tiles of out band by band. The tiles that are computed at the same time then cover
        nearly a square of out, so that they share more of a and b in the L2 cache.
        """
        p, wide = self.row.params, self.row.params["BN"]
        band = max(1, round(math.sqrt(self.chip.units * p["BM"] / wide)))
        return band if band * wide < self.n and p["BM"] * p.get("MULTICAST", 1) < self.m else 0
