"""The ordered accumulation of reproducible=True in pieces along k, for operands that never fit into memory together.

    sums = gemm.gemm(a[:, :k], b[:k], reproducible=True)
    go_on(sums, a[:, k:], b[k:])        # the bits of gemm.gemm(a, b, reproducible=True)

This runs on the CPU, because the CPU engine continues from stored sums with each block of k in any case.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemm.backends.cpu import CpuLaunch
from gemm.core.engine import engine
from gemm.core.errors import delivering
from gemm.execute import choose
from gemm.frontend.arguments import Given, Options
from gemm.frontend.call import normalise


def go_on(
    sums: np.ndarray, a: Any, b: Any, *, trans_a: bool | str = False, trans_b: bool | str = False, backend: str = "cpu"
) -> None:
    """Continue the accumulation in `sums` with the fused multiply-adds of a · b, in place.

    `sums` holds the accumulated products of all earlier k.

    Args:
        sums: C-contiguous array of float32 or float64; written in place.
        a, b, trans_a, trans_b: as for `gemm.gemm`, for the next range of k, in host memory. Narrower types are
            converted to the type of `sums` first.
        backend: "cpu", or a target of the CPU, such as "avx2".

    Raises:
        ValueError, TypeError: an argument is wrong.
        BackendUnavailable: the C extension is missing.
        MemoryError: not enough memory.
    """
    if not isinstance(sums, np.ndarray) or sums.dtype not in (np.float32, np.float64) or not sums.flags.c_contiguous:
        raise TypeError("sums must be a NumPy array of float32 or float64 in C's order")
    left, right = (np.asarray(x).astype(sums.dtype, casting="same_kind", copy=False) for x in (a, b))
    options = Options(trans_a, trans_b, sums.dtype, reproducible=True)
    call = normalise(Given(left, right, out=sums), options)
    if call.out.size and call.problem.k:
        plan = choose(call.problem, backend)
        with delivering(plan.kernel.name):
            launch = CpuLaunch(engine(), plan.kernel, call.problem, goes_on=True)
            launch(call.a, call.b, None, call.out, 1.0, 0.0)


def scale(sums: np.ndarray, c: np.ndarray | None, alpha: Any, beta: Any, backend: str = "cpu") -> np.ndarray:
    """alpha · sums + beta · c as a new array, rounded as the end of a chain: t = alpha·sums, then fma(beta, c, t).

    Args:
        sums: as for `go_on`.
        c: an array that broadcasts to the shape of `sums`; None if there is no beta.
        alpha, beta: numbers.
    """
    kind = sums.dtype.type
    with np.errstate(all="ignore"):  # NaN and Inf are results, not errors
        scaled = np.array(sums if alpha == 1 else sums * kind(alpha), order="C")
    if c is not None and scaled.size:
        rows = scaled.reshape(-1, 1, scaled.shape[-1] if scaled.ndim else 1)
        addend = np.broadcast_to(c, scaled.shape).astype(sums.dtype).reshape(rows.shape)
        # The fused multiply-add of beta and c, as a product of 1 × 1 by 1 × n that continues from `rows`.
        go_on(rows, np.broadcast_to(kind(beta), (len(rows), 1, 1)), addend, backend=backend)
    return scaled
