"""Checks of single products, and the operands of all checks.

The error bound of the numerical contract is checked with random operands. The bits of ordered accumulation are checked
with fixed operands and reproducible=True: the hash of the result must be the known hash of their ordered product.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gemm.catalog import Kernel
from gemm.core import operands
from gemm.core.backend import Backend
from gemm.core.numpy_original import matmul
from gemm.core.problem import FP8, NARROW, Device, DeviceView, DType, Ints, Problem

FAR = 1 << 31
"""The least offset in elements that does not fit into a signed 32-bit integer."""
SPARSE = 96
"""Greatest number of elements other than 0 in a row of a. A sum of SPARSE ones fits into int8 and is exact in every
type."""


def types_of(kernel: Kernel) -> tuple[DType, list[DType]]:
    """Return (type of the kernel's results, [type of a, type of b]). For a kernel that takes all types: float32."""
    names = "float32" if kernel.dtype == "*" else kernel.dtype, *kernel.inputs
    dtype, *types = (operands.named(name, kernel.name) for name in names)
    return dtype, types or [dtype, dtype]


def random_matrix(random: np.random.Generator, dtype: DType, shape: Ints) -> np.ndarray:
    """Return an array of random numbers. Integers can have any value of their type. Other numbers are from -1 to 1; so
    are both parts of complex numbers.
    """
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, shape, dtype, endpoint=True)
    values = random.uniform(-1, 1, shape)
    return (values + 1j * random.uniform(-1, 1, shape) if dtype.kind == "c" else values).astype(dtype)


def ones(dice: np.random.Generator, dtype: DType, shape: Ints, letter: str = "N") -> np.ndarray:
    """Return an array of random elements: 1 or -1; 1 or 0 for unsigned types. Complex elements have two such parts.

    Args:
        letter: the layout: "N" for unit stride along the last axis, "T" along the second-last axis.
    """
    if letter == "T":
        return np.swapaxes(ones(dice, dtype, (*shape[:-2], shape[-1], shape[-2])), -1, -2)
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return np.stack([ones(dice, part, shape) for _ in range(2)], -1).view(dtype)[..., 0]
    count = math.prod(shape)
    bits = np.unpackbits(np.frombuffer(dice.bytes(-(-count // 8)), np.uint8), count=count)
    # Compute bit patterns, which is faster than conversions: start from the first number's pattern, and add the
    # difference to the second number's pattern where the random bit is 1.
    number = np.dtype(f"u{dtype.itemsize}")
    pair = np.array([0 if dtype.kind == "u" else -1, 1], np.int8).astype(dtype).view(number)
    drawn = bits.astype(number)
    drawn *= pair[1:] - pair[:1]
    drawn += pair[:1]
    return drawn.view(dtype).reshape(shape)


def few_ones(dice: np.random.Generator, dtype: DType, shape: Ints, most: int = SPARSE) -> np.ndarray:
    """Return an array with the elements of `ones` in at most `most` random places of each row, and 0 elsewhere."""
    found = np.zeros(shape, dtype)
    some = (*shape[:-1], min(most, shape[-1]))
    np.put_along_axis(found, dice.integers(0, shape[-1], some), ones(dice, dtype, some), -1)
    return found


def poisoned(dtype: DType, shape: Ints) -> np.ndarray:
    """Return an array for results, filled with a value that no product has: NaN, or bytes of 0xA5 in integers."""
    poison = np.uint8(0xA5 if dtype.kind in "iu" else 0xFF)
    return np.full((*shape[:-1], shape[-1] * dtype.itemsize), poison).view(dtype)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def times(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return x·y with sums in float64 or complex128. To save memory, only some rows of x are widened at a time."""
    some = max(1, (1 << 18) // max(1, x.shape[-1]))
    parts = [matmul(wide(x[..., row : row + some, :]), y) for row in range(0, max(1, x.shape[-2]), some)]
    return np.concatenate(parts, -2)


def on_device(backend: Backend, device: Device, x: np.ndarray, letter: str = "N") -> Any:
    """Return a copy of `x` in the memory where the backend computes: a DeviceView, or an ndarray for host memory.

    Args:
        letter: the layout of the copy: "N" for unit stride along the last axis, "T" along the second-last axis.
    """
    if letter == "T":
        copy = on_device(backend, device, np.swapaxes(x, -1, -2))
        return copy.mT if isinstance(copy, DeviceView) else np.swapaxes(copy, -1, -2)
    try:
        return backend.to_device(x, device)
    except TypeError:  # the backend has no device memory
        return np.array(x, order="C")


def brief(problem: Problem) -> str:
    batch = f"{problem.batch}x " if problem.batch > 1 else ""
    return f"{batch}{problem.m}x{problem.n}x{problem.k} {problem.layout[:2]}"


class Mismatch(ArithmeticError):
    """The result of a kernel violates the numerical contract."""


@dataclass(frozen=True)
class Case:
    """One product to check: sizes, scalars and layouts.

    Attributes:
        apart: whether the products of the batch are a pointer batch (see Problem).
    """

    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 0.0
    trans_a: bool = False
    trans_b: bool = False
    batch: int = 1
    apart: bool = False

    def __str__(self) -> str:
        trans = "NT"[self.trans_a] + "NT"[self.trans_b]
        batch = f"{self.batch}x {'apart ' * self.apart}" if self.batch > 1 else ""
        return f"{batch}{self.m}x{self.n}x{self.k} {trans} alpha={self.alpha:g} beta={self.beta:g}"


QUICK = (
    Case(1, 1, 1),
    Case(37, 41, 43, 0.5, -2.0),
    Case(33, 65, 17, -1.0, 1.0, trans_a=True, trans_b=True),
    Case(5, 7, 0, -1.0, 3.0),
    Case(64, 96, 300, batch=2),
)
FULL = (
    *QUICK,
    *(Case(m, n, k) for m in (1, 2, 3, 8, 31, 33) for n in (1, 4, 7, 16, 33) for k in (1, 5, 8, 33)),
    *(Case(29, 35, 71, alpha, beta, trans_a, trans_b)
      for alpha in (1.0, 0.75) for beta in (0.0, 1.0, -0.5) for trans_a in (False, True) for trans_b in (False, True)),
    Case(130, 70, 1030), Case(3, 200, 11), Case(200, 3, 11), Case(16, 16, 5000), Case(9, 9, 9, batch=33),
)  # fmt: skip
APART = (Case(17, 19, 45, 0.5, -2.0, batch=9, apart=True), Case(16, 32, 33, batch=9, trans_b=True, apart=True))
"""Cases for kernels that also take pointer batches: each product's operands have their own addresses."""


def beyond(kernel: Kernel) -> tuple[Case, ...]:
    """Return further cases for a tiled GPU kernel that is verified when it is first used; () for other kernels.

    - a product of more than one tile along m and along n
    - if the kernel can divide the last tiles along k among thread blocks: a product whose k is large enough for that
    - if the kernel takes pointer batches: the cases APART
    """
    p = kernel.params
    if not kernel.lazy_verify or "BM" not in p:
        return ()
    lengths = (2 * p.get("BK", 8) + 16, *([2064] if p.get("shares") else []))
    tiles = tuple(Case(p["BM"] * p.get("MULTICAST", 1) + 8, p["BN"] + 16, k, 0.5, -2.0) for k in lengths)
    return tiles + (APART if kernel.apart else ())


def check_single(backend: Backend, kernel: Kernel, device: Device, case: Case) -> None:
    dtype, types = types_of(kernel)
    random = np.random.default_rng(list(case.__dict__.values())[:3])
    lead = (case.batch,) if case.batch > 1 else ()

    def matrix(own: DType, rows: int, columns: int, flip: bool = False) -> np.ndarray:
        shape = (*lead, columns, rows) if flip else (*lead, rows, columns)
        values = random_matrix(random, own, shape)
        return np.swapaxes(values, -1, -2) if flip else values

    a, b = matrix(types[0], case.m, case.k, case.trans_a), matrix(types[1], case.k, case.n, case.trans_b)
    c = matrix(dtype, case.m, case.n) if case.beta else None
    whole = dtype.kind == "i"
    alpha, beta = (int(x if x == 1 else 4 * x) if whole else x for x in (case.alpha, case.beta))
    frame = poisoned(dtype, (*lead, case.m + 2, case.n + 2))
    before, out = frame.copy(), frame[..., 1:-1, 1:-1]
    problem = Problem(dtype.name, case.m, case.n, case.k, case.batch, _letters(a, b) + "N",
                      "1" if alpha == 1 else "x", "0" if c is None else "x", inputs=kernel.inputs,
                      apart=case.apart)  # fmt: skip
    backend.launcher(kernel, device, problem)(a, b, c, out, alpha, beta)

    if np.any(shares(out, a, b, c, replace(case, alpha=alpha, beta=beta), kernel) > 1):
        raise Mismatch(f"{kernel.name} on {device.name}: {case} {'is wrong' if whole else 'exceeds the error bound'}")
    out[...] = before[..., 1:-1, 1:-1]
    if frame.tobytes() != before.tobytes():
        raise Mismatch(f"{kernel.name} on {device.name}: {case} wrote outside its output")


def unit(kernel: Kernel, dtype: DType, k: int) -> float:
    """Return the factor of |a|·|b| in the error bound of `kernel`, which sums in `dtype`; see `gemm.gemm`."""
    if kernel.precision == "medium" and any(name in FP8 for name in kernel.inputs):
        return 2.0**-5 + (k + 2) * 2.0**-24
    if kernel.precision == "medium" and kernel.dtype == "float16":
        return (k + 2) * 2.0**-11
    if kernel.precision == "medium" and kernel.dtype == "float32":
        return 2.0**-10 + (k + 2) * 2.0**-22
    if kernel.precision == "high" and kernel.dtype == "float32":
        return (k + 48) * 2.0**-24
    return float((k + 2) * np.finfo(dtype).eps / 2)


def shares(out: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray | None, case: Case, how: Any) -> np.ndarray:
    """Return each element's error ÷ the element's error bound; inf for NaN, and for integers that are not exact.

    Args:
        out: the result, or a stack of results along additional axes at the front.
        how: the kernel, or anything else with its dtype, inputs and precision.
    """
    dtype = out.dtype
    if dtype.kind == "c":  # compute the real parts, then the imaginary parts, as real products with k' = 2k
        left = [np.concatenate([a.real, sign * a.imag], -1) for sign in (-1, 1)]
        right = [np.concatenate(parts, -2) for parts in ((b.real, b.imag), (b.imag, b.real))]
        thirds = (None, None) if c is None else (c.real, c.imag)
        rows = zip((out.real, out.imag), left, right, thirds, strict=True)
        worse: np.ndarray = np.maximum(*(shares(*row, replace(case, k=2 * case.k), how) for row in rows))
        return worse
    if dtype.kind == "i":  # the exact result is reduced modulo 2**(number of bits of `dtype`)
        with np.errstate(over="ignore"):
            total = matmul(a.astype(np.int64), b.astype(np.int64)) * np.int64(case.alpha)
            total = total if c is None else total + np.int64(case.beta) * c
        return np.where(out == total.astype(dtype), 0.0, np.inf)
    narrow = dtype.name in NARROW  # the kernel sums in float32 and rounds once
    if narrow or how.inputs:
        out, a, b = (x.astype(np.float32) for x in (out, a, b))
        c = None if c is None else c.astype(np.float32)
    # float64 is exact enough to check sums in float32: its error is 2**-29 of the bound.
    wide = np.longdouble if dtype.itemsize > 4 else np.float64
    exact = wide(case.alpha) * matmul(a.astype(wide), b.astype(wide))
    size = matmul(np.abs(a).astype(wide), np.abs(b).astype(wide)) * abs(case.alpha)
    if c is not None:
        exact, size = exact + wide(case.beta) * c, size + np.abs(wide(case.beta) * c)
    # Where longdouble is no wider than double (macOS on Arm, MSVC), the reference can have an error as large as the
    # permitted error of the result. On these systems the bound is doubled.
    bound = (1 if np.finfo(wide).eps < np.finfo(a.dtype).eps else 2) * _allowed(how, a, b, case, size)
    if narrow:
        rounded = 2.0**-11 if dtype.name == "float16" else 2.0**-8
        bound = bound + rounded * (np.abs(exact) + bound) + 2.0**-25  # half of float16's smallest positive number
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(out - exact)
        found = np.where(error == 0, 0.0, error / bound)
    return np.where(np.isnan(found), np.inf, found)


def _allowed(how: Any, a: np.ndarray, b: np.ndarray, case: Case, size: np.ndarray) -> Any:
    """Return the error bound of the sums. `size` is |alpha|·|a|·|b| + |beta·c|.

    The bound of float64 products by residues is 3·u·size + √k·u·|alpha|·‖a‖·‖b‖, where ‖a‖ and ‖b‖ are the 2-norms of a
    row of a and of a column of b.
    """
    if how.precision != "high" or how.dtype != "float64":
        return unit(how, a.dtype, case.k) * size
    # If `how` is no kernel, the product may also be the work of a kernel that sums in the order of k.
    k = 1 if isinstance(how, Kernel) else case.k
    bound = unit(how, a.dtype, k) * size
    rows, columns = (np.sqrt((x.astype(np.longdouble) ** 2).sum(axis)) for x, axis in ((a, -1), (b, -2)))
    return bound + abs(case.alpha) * math.sqrt(case.k) * 2.0**-53 * rows[..., None] * columns[..., None, :]


def _letters(*arrays: np.ndarray) -> str:
    return "".join("N" if a.strides[-1] == a.itemsize else "T" for a in arrays)


def ordered_case(dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return fixed operands a (47 × 301), b (301 × 53) and c (47 × 53).

    The result 0.75·a·b − 1.25·c by ordered accumulation must have the bits in ORDERED. The operands are made with
    integer arithmetic only, so they are the same on each machine. Their exponents spread over 2^±12 (float16: 2^±4).
    """
    reach = 4 if dtype == "float16" else 12

    def numbers(seed: int, *shape: int) -> np.ndarray:
        index = np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(seed << 32)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the splitmix64 finaliser
            index = (index ^ (index >> np.uint64(shift))) * np.uint64(factor)
        index ^= index >> np.uint64(31)
        mantissa = (index >> np.uint64(11)).astype(np.int64) - (1 << 52)
        exponent = (index % np.uint64(2 * reach + 1)).astype(np.int64) - reach - 52
        values: np.ndarray = np.ldexp(mantissa.astype(np.float64), exponent.astype(np.int32)).astype(dtype)
        return values.reshape(shape)

    with np.errstate(over="ignore"):
        return numbers(1, 47, 301), numbers(2, 301, 53), numbers(3, 47, 53)


ORDERED = {
    "float32": "3820add6c6ff64dce8290166451b8ddac472a605978ddcbeb5c7e074f6f19254",
    "float16": "047c9ede111565c14e721aaee38ba350a8b0ddf99f84efd93c99dee60e4ef692",
    "bfloat16": "242e00b757924a592156a20aa9e1aaa9527751d58d87206dabf3f148b242c098",
    "float64": "b6d5d387c891116124c58406a17cb1f445a22330280c2d1d9a8ca1c786a513c3",
}
"""{type: SHA-256 of the result of `ordered_case` by ordered accumulation, as little-endian bytes}. The tests derive the
same hashes with code that shares nothing with the package."""


def ordered_hash(backend: Backend, kernel: Kernel, device: Device) -> str:
    """Return the SHA-256 of the result that `kernel` computes for `ordered_case` with reproducible=True."""
    types_of(kernel)  # registers the name bfloat16 with NumPy
    a, b, c = ordered_case(kernel.dtype)
    out = np.empty_like(c)
    problem = Problem(kernel.dtype, 47, 53, 301, alpha="x", beta="x", reproducible=True)
    backend.launcher(kernel, device, problem)(a, b, c, out, 0.75, -1.25)
    return bits_hash(out)


def bits_hash(out: np.ndarray) -> str:
    """Return the SHA-256 of the elements of `out` in C order, little-endian."""
    bits = np.ascontiguousarray(out).view(f"u{out.dtype.itemsize}")
    return hashlib.sha256(bits.astype(bits.dtype.newbyteorder("<")).tobytes()).hexdigest()


def has_bits(kernel: Kernel, device: Device) -> bool:
    """Whether `check_bits` applies.

    It applies if `kernel` has ordered accumulation on `device`, and its operands and results have the same type.
    """
    return kernel.ordered and not kernel.inputs and not set(kernel.ordered_needs) - device.features


def check_bits(backend: Backend, kernel: Kernel, device: Device) -> None:
    if ordered_hash(backend, kernel, device) != ORDERED[kernel.dtype]:
        raise Mismatch(f"{kernel.name} on {device.name}: its ordered bits differ from the contract's")
