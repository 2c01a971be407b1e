"""What "auto" would choose over a grid of sizes: predictions of gemm.execute, nothing is multiplied."""

from __future__ import annotations

from typing import Any

from gemm import execute
from gemm.catalog import HOST_BACKENDS
from gemm.core.problem import Problem

SIZES = tuple(1 << power for power in range(4, 14))
"""m and n."""
SUMS = (64, 1024, 8192)
"""k."""


def choices(dtype: str) -> dict[str, Any]:
    """{sizes, k, chosen [k][m][n]: a device's key, lead [k][m][n]: the CPU's predicted time ÷ the best device's}.

    Of products from host to host; lead is null where no device is considered, as for small products. What dispatch
    would verify before it took it counts as verified.
    """
    chosen, lead = [], []
    for k in SUMS:
        found = [[_choice(Problem(dtype, m, n, k)) for n in SIZES] for m in SIZES]
        chosen.append([[key for key, _ in line] for line in found])
        lead.append([[ratio for _, ratio in line] for line in found])
    return {"sizes": list(SIZES), "k": list(SUMS), "chosen": chosen, "lead": lead}


def _choice(problem: Problem) -> tuple[str, float | None]:
    able = [(c.seconds, c) for c in execute.candidates(problem) if c.seconds]
    _, best = min(able, key=lambda each: (each[1].kernel.backend == "numpy", each[0]))
    cpu = [seconds for seconds, c in able if c.kernel.backend == "cpu"]
    others = [seconds for seconds, c in able if c.kernel.backend not in HOST_BACKENDS]
    return best.device.key, min(cpu) / min(others) if cpu and others else None
