"""What is measured of a kernel on a device: `gemm.select.measure` does, `gemm.execute` predicts times by it."""

from __future__ import annotations

from dataclasses import dataclass

CALL = 2e-6
"""Seconds of a call that only enters native code."""


@dataclass(frozen=True)
class Rates:
    """What the probe measured of a kernel on a device.

    Attributes:
        launch: seconds of a product too small to matter, on resident operands.
        flops: additions and multiplications a second on a large product.
        upload, download: bytes/s between host and device of large operands and results; 0 where nothing is moved.
        staged: seconds more of a small product whose operands do not lie as the kernel asks, and are packed first.
        wrapped: the alignment from which host memory is used where it lies; 0: it is copied.
        start: seconds that moving takes besides, however little there is.
        overlaps: bytes of operands and result from which they are moved while others are multiplied; 0: never.
        memory: bytes/s of an operand that is read once: in the host's memory, by kernels that compute there, and in a
            GPU's, by those that stream one (others have the highest of theirs); or 0.
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
