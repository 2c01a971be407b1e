"""How CUDA kernels read operands: in place, from a copy, split into planes, or through tensor maps.

Planes are arrays of narrower numbers. Their sum represents an operand (see csrc/cuda/gemm_cuda_split.cu). An argument
`row` is a kernel's row in the catalog; gemm/catalog/cuda.py explains the parameters of a kernel (row.params).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from gemm.catalog import Kernel

A, B, C, OUT, BIAS, WORKSPACE = range(6)
"""The slots. A slot is memory into which the pointers of a Step point: an operand, or the launch plan's workspace on
the device (WORKSPACE)."""

PACK = Kernel("gemm_cuda_pack", "cuda", "cuda", "*", "csrc/cuda/gemm_cuda_pack.cu", params={"THREADS": 256})
SPLIT = Kernel("gemm_cuda_split", "cuda", "cuda", "float32", "csrc/cuda/gemm_cuda_split.cu", needs=("sm_90a",),
               params={"THREADS": 512, "COLUMNS": 16})  # fmt: skip
"""Kernels that pack operands (PACK), or split them into planes (SPLIT), for the kernel that computes the product."""

RESIDUES, COMBINE = (
    Kernel(f"gemm_cuda_{name}", "cuda", "cuda", "float64", f"csrc/cuda/gemm_cuda_{name}.cu", needs=("sm_90a",),
           params={"THREADS": 256}) for name in ("residues", "combine")
)  # fmt: skip
"""The kernels before and after a product by residues (csrc/cuda/residues.cuh)."""
COLUMNS = 64
"""The planes of b, and of a product's residues, are padded to a multiple of COLUMNS columns of out."""

SIZES = {
    "float": 4, "double": 8, "float16": 2, "bfloat16": 2, "e4m3": 1, "e5m2": 1, "complex64": 8, "complex128": 16,
    "int8": 1, "uint8": 1, "int16": 2, "int32": 4, "int64": 8,
}  # fmt: skip
"""{name of a type in csrc/cuda: the type's size in bytes}."""

PLANES = {2: "float16", 3: "bfloat16"}
"""{number of planes into which a float32 operand is split: type of the planes}."""

_PACK = struct.Struct("2Q3q3q2q")
_SPLIT = struct.Struct("2Q3q3q2qQq")
_RESIDUES = struct.Struct("3Q2q2q2q")
_WIDE = 16
"""Bytes of the widest memory access. TMA requires the same alignment."""
_MAP_KINDS = {1: 0, 2: 1, 4: 2, 8: 4}
"""{size in bytes: CUtensorMapDataType of the unsigned integer of that size}."""
_TF32 = 11


class Map(NamedTuple):
    """The arguments of cuTensorMapEncodeTiled. The address is `at` bytes after the beginning of `slot`.

    `dims` and `box` are in elements, `strides` in bytes.
    """

    slot: int
    at: int
    kind: int
    dims: tuple[int, int, int]
    strides: tuple[int, int]
    box: tuple[int, int, int]
    swizzle: int


class Step(NamedTuple):
    """The launch of a kernel.

    Attributes:
        kernel: the kernel.
        form: the kernel's compiled variant.
        grid: the numbers of thread blocks along x and y.
        cluster: the number of thread blocks of a cluster.
        parameters: the bytes of the struct that the kernel takes, without addresses.
        pointers: (offset, slot, displacement) for each address in the struct: at `offset`, the launch stores the
            address of `slot` plus `displacement`.
        maps: tensor maps, which the kernel takes after the struct.
        scaled: whether the struct is a Gemm, which contains alpha and beta.
    """

    kernel: Kernel
    form: tuple[tuple[str, object], ...]
    grid: tuple[int, int]
    cluster: int
    parameters: bytes
    pointers: tuple[tuple[int, int, int], ...]
    maps: tuple[Map, ...] = ()
    scaled: bool = False


class View(NamedTuple):
    """An operand in one launch.

    Attributes:
        slot, at: the address: `at` bytes after the beginning of `slot`.
        type: a key of SIZES.
        row, col, step: the strides in elements from one row, column and matrix of the batch to the next.
        aligned: the alignment in bytes of every matrix of the batch.
    """

    slot: int
    at: int
    type: str
    row: int
    col: int
    step: int
    aligned: int


class Operand(NamedTuple):
    """a or b in one launch: a stack of `batch` matrices of `extent` x k elements.

    Attributes:
        which: "a" or "b".
        extent: m for a, n for b.
        slot, at: the address: `at` bytes after the beginning of `slot`.
        aligned: the alignment in bytes of every matrix of the stack.
        along: the stride along k, in elements.
        across: the stride along m or n, in elements.
        step: the stride along the batch, in elements. 0: all products use the same matrix.
        transposed: whether the operand is contiguous along m (for b: n) instead of along k.
        vectors: whether the kernel may read the operand with the vector width of the kernel's catalog row.
        planes: the number of planes, or 0 if the operand is not split.
        plane: the number of elements from one plane to the next.
        scales: the offset of the exponents in `slot`, in bytes. Each row of a or column of b has one exponent.
    """

    which: str
    slot: int
    at: int
    type: str
    extent: int
    k: int
    batch: int
    along: int
    across: int
    step: int
    aligned: int
    transposed: bool = False
    vectors: bool = False
    planes: int = 0
    plane: int = 0
    scales: int = 0

    @property
    def size(self) -> int:
        return SIZES[self.type]

    @property
    def matrices(self) -> int:
        return self.batch if self.step else 1

    @property
    def pitch(self) -> int:
        """The stride from one contiguous line to the next, in elements."""
        return self.along if self.transposed else self.across

    def lines(self, transposed: bool) -> tuple[int, int, int, int]:
        """Describe the matrix as lines along k, or along m (for b: n) if `transposed`.

        Returns (number of lines, length of a line, stride from line to line, stride within a line), in elements.
        """
        if transposed:
            return self.k, self.extent, self.along, self.across
        return self.extent, self.k, self.across, self.along

    def contiguous(self, pitch: int, transposed: bool) -> Operand:
        """Return the operand with contiguous lines (see `lines`), `pitch` elements from line to line."""
        across, along = (1, pitch) if transposed else (pitch, 1)
        return self._replace(across=across, along=along, transposed=transposed)


def vector_of(row: Kernel, which: str) -> int:
    """Return the bytes of the widest load of a kernel from the operand `which`. 0: any alignment is valid."""
    return row.params.get(f"{which}_vector", row.params.get("vector", 0))


def in_place(row: Kernel, x: Operand) -> Operand | None:
    """Return `x` with the layout in which the kernel `row` reads it in place, or None if `x` must be copied first."""
    p = row.params
    if p.get("widen"):
        return None
    lies, mapped = p.get(f"{x.which}_lies", 3), p.get("maps", 0) & "ab".index(x.which) + 1
    wide = _WIDE if mapped else vector_of(row, x.which)
    found = x if lies == 7 else None
    for transposed in (False, True):
        lines, length, other, unit = x.lines(transposed)
        if not lies & 1 << transposed or (unit != 1 and length > 1):
            continue
        if lines == 1:  # no other line: the stride between lines has no effect, so take a multiple of _WIDE bytes
            other = -(-length * x.size // _WIDE) * _WIDE // x.size
        here = x.contiguous(other, transposed)
        if wide and x.aligned >= wide and other * x.size % wide == 0:
            here = here._replace(vectors=True)
        if here.vectors and (not mapped or _mappable(here)):
            return here
        found = found if mapped or (found and found is not x) else here
    return found


def _mappable(x: Operand) -> bool:
    steps = (x.pitch * x.size, x.step * x.size)
    return 0 < steps[0] < 1 << 40 and 0 <= steps[1] < 1 << 40 and max(x.extent, x.k, x.batch) < 1 << 32


def prepared(row: Kernel, x: Operand, slot: int, at: int) -> tuple[Operand, Step, int]:
    """Return (y, the Step that makes y from `x`, the bytes of y).

    y is a copy of `x`, or the planes of `x`, in the layout that the kernel `row` reads. y begins `at` bytes after the
    beginning of `slot`.
    """
    if row.params.get("planes"):
        y, nbytes = planes_of(row, x, slot, at)
        return y, _split(x, y), nbytes
    lies = row.params.get(f"{x.which}_lies", 3)
    transposed = lies == 2 or (lies == 3 and abs(x.across) < abs(x.along))
    rows, cols, row_step, col_step = x.lines(transposed)
    kind = "float16" if row.params.get("widen") else x.type
    size = SIZES[kind]
    pitch = -(-cols * size // _WIDE) * _WIDE // size
    y = x.contiguous(pitch, transposed)._replace(
        slot=slot, at=at, type=kind, step=rows * pitch if x.step else 0, aligned=_WIDE, vectors=True
    )
    packed = _PACK.pack(0, 0, rows, cols, x.matrices, row_step, col_step, x.step, pitch, rows * pitch)
    edge = {1: 128, 8: 32}.get(size, 64)
    form = (("ELEMENT_BYTES", size), *((("WIDEN", x.type),) if kind != x.type else ()))
    grid = -(-rows // edge) * -(-pitch // edge), min(x.matrices, 65535)
    step = Step(PACK, form, grid, 1, packed, ((0, x.slot, x.at), (8, slot, at)))
    return y, step, x.matrices * rows * pitch * size


def planes_of(row: Kernel, x: Operand, slot: int, at: int) -> tuple[Operand, int]:
    """Return the operand that splitting `x` into planes produces, and the bytes that its planes and exponents need.

    The planes begin `at` bytes after the beginning of `slot`.
    """
    count = row.params["planes"]
    transposed = abs(x.across) < abs(x.along)
    lines, length, *_ = x.lines(transposed)
    pitch = -(-length // 8) * 8
    plane = lines * pitch
    scales = at + -(-2 * count * plane * x.matrices // 256) * 256
    y = x.contiguous(pitch, transposed)._replace(
        slot=slot, at=at, type=PLANES[count], step=count * plane if x.step else 0, aligned=_WIDE, vectors=True,
        planes=count, plane=plane, scales=scales,
    )  # fmt: skip
    return y, scales - at + 4 * x.extent * x.matrices


def _split(x: Operand, y: Operand) -> Step:
    """Return the step that splits `x` into the planes `y`."""
    rows, cols, row, col = x.lines(y.transposed)
    packed = _SPLIT.pack(0, 0, rows, cols, x.matrices, row, col, x.step, y.pitch, y.planes * y.plane, 0, y.plane)
    pointers = (0, x.slot, x.at), (8, y.slot, y.at), (_SPLIT.size - 16, y.slot, y.scales)
    form = ("TYPE", y.type), ("PLANES", y.planes), ("TURNED", int(y.transposed))
    grid = -(-cols // SPLIT.params["COLUMNS"]) if y.transposed else rows, min(x.matrices, 65535)
    return Step(SPLIT, form, grid, 1, packed, pointers)


def residues(x: Operand, moduli: int, at: int, exponents: int) -> tuple[Operand, Step, int]:
    """Return (y, the Step that makes y from `x`, the bytes of y).

    y is the stack of the planes of residues of the float64 operand `x`: one matrix for each of `moduli`, in the
    workspace from byte `at` on. The exponents of x's lines are stored from byte `exponents` on.
    """
    transposed, right = abs(x.across) < abs(x.along), x.which == "b"
    extent = -(-x.extent // COLUMNS) * COLUMNS if right else x.extent
    pitch = -(-x.k // _WIDE) * _WIDE
    y = x.contiguous(pitch, False)._replace(
        slot=WORKSPACE, at=at, type="int8", extent=extent, batch=moduli, step=extent * pitch, aligned=_WIDE,
        vectors=True,
    )  # fmt: skip
    packed = _RESIDUES.pack(0, 0, 0, x.extent, x.k, x.across, x.along, pitch, y.step)
    lines = 16 if transposed else 2
    form = ("TURNED", int(transposed)), ("RIGHT", int(right)), ("LINES", lines)
    pointers = (0, x.slot, x.at), (8, WORKSPACE, at), (16, WORKSPACE, exponents)
    return y, Step(RESIDUES, form, (-(-x.extent // lines), 1), 1, packed, pointers), moduli * y.step


def tensor_map(row: Kernel, x: Operand) -> Map:
    """Return the tensor map through which the kernel `row` reads `x`."""
    p, name = row.params, "m" if x.which == "a" else "n"
    swizzle = p.get(f"{x.which}_swizzle", 0)
    box = [p[f"{x.which}_box_k"], p[f"{x.which}_box_{name}"]]
    dims = [x.k, x.extent]
    if x.transposed:
        box, dims = box[::-1], dims[::-1]
    if swizzle:
        box[0] = swizzle // x.size
    kind = _TF32 if p.get("tf32") else _MAP_KINDS[x.size]
    third = x.plane or x.step or x.pitch
    return Map(x.slot, x.at, kind, (dims[0], dims[1], x.matrices * (x.planes or 1)), (x.pitch * x.size, third * x.size),
               (box[0], box[1], 1), {0: 0, 32: 1, 64: 2, 128: 3}[swizzle])  # fmt: skip


def out_map(x: View, m: int, n: int, batch: int) -> Map | None:
    """Return the tensor map that stores results in boxes of 16 rows x 128 bytes, or None if out's layout forbids it."""
    size = SIZES[x.type]
    row, step = x.row * size, (x.step if batch > 1 else x.row) * size
    fits = size in (2, 4) and x.col == 1 and x.aligned % _WIDE == row % _WIDE == step % _WIDE == n * size % _WIDE == 0
    if not fits or not (0 < row < 1 << 40 and 0 < step < 1 << 40) or max(m, n, batch) >= 1 << 32:
        return None
    return Map(x.slot, x.at, _MAP_KINDS[size], (n, m, batch), (row, step), (128 // size, 16, 1), 3)
