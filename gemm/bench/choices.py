"""The device that "auto" would choose, over a grid of sizes. gemm.execute predicts it; nothing is multiplied."""

from __future__ import annotations

from typing import Any

from gemm.catalog import HOST_BACKENDS
from gemm.core.problem import Problem
from gemm.select import choice

SIZES = tuple(1 << power for power in range(4, 14))
"""The sizes m and n of the grid."""
SUMS = (64, 1024, 8192)
"""The sizes k of the grid."""


def choices(dtype: str) -> dict[str, Any]:
    """The choices for products from host memory to host memory.

    Kernels that dispatch would verify before their first use count as verified.

    Returns:
        {sizes, k, chosen, lead}. chosen[k][m][n] is the key of the chosen device. lead[k][m][n] is the CPU's predicted
        time ÷ the best device's predicted time, or null if dispatch considers no device, as for small products.
    """
    chosen, lead = [], []
    for k in SUMS:
        found = [[_choice(Problem(dtype, m, n, k)) for n in SIZES] for m in SIZES]
        chosen.append([[key for key, _ in line] for line in found])
        lead.append([[ratio for _, ratio in line] for line in found])
    return {"sizes": list(SIZES), "k": list(SUMS), "chosen": chosen, "lead": lead}


def _choice(problem: Problem) -> tuple[str, float | None]:
    able = [(c.seconds, c) for c in choice.candidates(problem) if c.seconds]
    _, best = min(able, key=lambda each: (each[1].kernel.dtype == "*", each[0]))
    cpu = [seconds for seconds, c in able if c.kernel.backend == "cpu"]
    others = [seconds for seconds, c in able if c.kernel.backend not in HOST_BACKENDS]
    return best.device.key, min(cpu) / min(others) if cpu and others else None
