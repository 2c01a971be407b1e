"""Check of the bits of reproducible products: fixed operands, and the hash of their product by ordered accumulation."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from gemm.catalog import Kernel
from gemm.core.backend import Backend
from gemm.core.problem import Device, Problem
from gemm.select.verify.samples import types_of
from gemm.select.verify.single import Mismatch


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
"""SHA-256 of the ordered product of `ordered_case`, little-endian. The tests derive the same hashes from an oracle that
shares no code with the package."""


def ordered_hash(backend: Backend, kernel: Kernel, device: Device) -> str:
    """Return the SHA-256 of the result of `kernel` for `ordered_case` with reproducible=True."""
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
    """Whether `check_bits` applies: `kernel` has ordered accumulation on `device` and operands of its result's type."""
    return kernel.ordered and not kernel.inputs and not set(kernel.ordered_needs) - device.features


def check_bits(backend: Backend, kernel: Kernel, device: Device) -> None:
    if ordered_hash(backend, kernel, device) != ORDERED[kernel.dtype]:
        raise Mismatch(f"{kernel.name} on {device.name}: its ordered bits differ from the contract's")
