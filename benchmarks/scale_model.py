"""Compute the cost of a square product over many workers by formulas. docs/scale.md has the formulas and their sources.

    python benchmarks/scale_model.py RECORDED.json [--size 100000] [--workers 64,1024] [--element 4]

The script prints the tables of docs/scale.md, from constants measured by `benchmarks/scale.py`. A worker has one
thread.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gemm.dask.chunks import Cut, Limits, choose, least_side

SUMS = 4
"""The number of partial sums that one task of dask's reduction tree adds: dask's split_every."""
LIMIT = 128 << 20
"""Bytes of a block at most: dask's array.chunk-size."""


@dataclass(frozen=True)
class Constants:
    """Measured constants.

    Attributes:
        rate: FLOP/s of a worker.
        bandwidth: bytes/s from one worker to another.
        task: seconds of the scheduler per task.
    """

    rate: float
    bandwidth: float
    task: float


@dataclass(frozen=True)
class Cost:
    """The cost of a product of n × n matrices on `workers` workers, in blocks of side² elements.

    Attributes:
        tasks: total number of tasks.
        arithmetic, communication: seconds of one worker.
        scheduling: seconds of the scheduler.
        received: bytes that a worker receives, if it has none of the blocks that its tasks read.
    """

    tasks: int
    arithmetic: float
    communication: float
    scheduling: float
    received: float

    @property
    def efficiency(self) -> tuple[float, float]:
        """Arithmetic ÷ total time: if nothing overlaps, and if everything overlaps."""
        parts = self.arithmetic, self.communication, self.scheduling
        return self.arithmetic / sum(parts), self.arithmetic / max(parts)


def cost(n: int, side: int, workers: int, element: int, known: Constants) -> Cost:
    """The cost of gemm.dask.matmul with `contraction="sum"`. element: bytes of an element."""
    blocks = math.ceil(n / side)
    products = blocks**3
    sums = math.ceil(products / (SUMS - 1)) if blocks > 1 else 0  # products · (1/4 + 1/16 + ...)
    received = (2 + (blocks > 1)) * products * side**2 * element / workers
    return Cost(
        products + sums, 2 * n**3 / (workers * known.rate), received / known.bandwidth, (products + sums) * known.task,
        received,
    )  # fmt: skip


def bounds(n: int, workers: int, element: int) -> dict[str, float]:
    """Bytes that a worker receives: the lower bound, and the amounts of known algorithms."""
    memory = 3 * n**2 / workers  # elements of one worker's share of the three matrices
    return {
        "at least, memory for one copy (Irony, Toledo, Tiskin)":
            max(0.0, n**3 / (2 * math.sqrt(2) * workers * math.sqrt(memory)) - memory) * element,
        "SUMMA (van de Geijn, Watts)": 2 * n**2 / math.sqrt(workers) * element,
        "2.5D, 4 copies (Solomonik, Demmel)": 2 * n**2 / math.sqrt(4 * workers) * element,
        "3D, P^(1/3) copies": 3 * n**2 / workers ** (2 / 3) * element,
    }  # fmt: skip


def own_side(n: int, workers: int, element: int) -> int:
    """The side of the blocks that gemm.dask chooses."""
    cells, least = LIMIT // element, least_side(n**3, workers, "distributed")
    return choose(Cut(n, n, n, 1), Limits(cells, workers, least), fused=False).m


def tables(known: Constants, n: int, workers: list[int], element: int) -> str:
    """Two Markdown tables: received bytes, and times by the side of the blocks, with gemm.dask's side in bold."""
    lines = ["| GB into a worker | " + " | ".join(map(str, workers)) + " workers |", "|---" * (len(workers) + 1) + "|"]
    for name in bounds(n, workers[0], element):
        lines.append(f"| {name} | " + " | ".join(f"{bounds(n, p, element)[name] / 1e9:.2f}" for p in workers) + " |")
    sides = [own_side(n, p, element) for p in workers]
    ours = [cost(n, side, p, element, known).received / 1e9 for side, p in zip(sides, workers, strict=True)]
    lines.append("| gemm.dask, nothing at hand | " + " | ".join(f"{gigabytes:.2f}" for gigabytes in ours) + " |")
    lines += ["", "| workers | side | tasks | arithmetic, s | communication, s | scheduling, s | efficiency |",
              "|---|---|---|---|---|---|---|"]  # fmt: skip
    for p, own in zip(workers, sides, strict=True):
        for side in sorted({own // 4, own // 2, own, 2 * own}):
            made = cost(n, side, p, element, known)
            low, high = made.efficiency
            name = f"**{side}**" if side == own else str(side)
            lines.append(
                f"| {p} | {name} | {made.tasks} | {made.arithmetic:.1f} | {made.communication:.1f} | "
                f"{made.scheduling:.1f} | {low:.2f} to {high:.2f} |"
            )
    return "\n".join(lines)


def main() -> int:
    """Print the tables of docs/scale.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--workers", default="64,1024")
    parser.add_argument("--element", type=int, default=4, choices=(4, 8), help="bytes")
    options = parser.parse_args()
    constants = json.loads(options.recorded.read_text())["constants"]
    known = Constants(
        constants["rate"]["float32" if options.element == 4 else "float64"], constants["bandwidth"],
        constants["task"]["distributed"],
    )  # fmt: skip
    print(tables(known, options.size, list(map(int, options.workers.split(","))), options.element))
    return 0


if __name__ == "__main__":
    sys.exit(main())
