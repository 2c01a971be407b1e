"""Rates of a kernel on a device. `gemm.select.measure` measures them; the cost model predicts times from them."""

from __future__ import annotations

from dataclasses import dataclass

CALL = 2e-6
"""Seconds of a call that only enters native code."""


@dataclass(frozen=True)
class Rates:
    """The rates that the probe measured for a kernel on a device.

    Attributes:
        launch: seconds of a product that is too small to matter, with operands in the device's memory.
        flops: additions and multiplications per second in a large product.
        upload, download: bytes per second between host and device for large operands and results; 0 if nothing is
            transferred.
        staged: additional seconds of a small product whose operands have another layout than the kernel needs and are
            packed first.
        wrapped: the alignment from which host memory is used in place; 0: host memory is copied.
        start: additional seconds of a transfer of any size.
        overlaps: smallest size, in bytes of operands and result, from which transfers overlap with products; 0: they
            never do.
        memory: bytes per second for an operand that is read once, or 0. For kernels that compute in host memory: of
            host memory. For GPU kernels that stream an operand: of the GPU's memory; other GPU kernels have the highest
            of these rates.
    """

    launch: float
    flops: float
    upload: float = 0.0
    download: float = 0.0
    staged: float = 0.0
    wrapped: int = 0
    start: float = 0.0
    overlaps: int = 0
    memory: float = 0.0
