"""A comparison: run it, save it, load it, show it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gemm.bench import report, verdicts
from gemm.bench.contest import Pace, Watch
from gemm.bench.contestants import PEERS, Field
from gemm.bench.peaks import links, roofs
from gemm.bench.products import FAMILIES, Arithmetic, Case, Shape, cases
from gemm.bench.sweep import PACES, Sweep
from gemm.bench.verdicts import Document, Row
from gemm.catalog import HOST_BACKENDS
from gemm.core.problem import Device, Problem
from gemm.frontend.inventory import all_devices, device_facts, head
from gemm.select import choice, probe

SCHEMA = "gemm-compare/1"
METHOD = (
    "Times are medians over interleaved rounds in one process; calls of 0.3 s or more take part in three rounds, and "
    "the longest are timed once, which permits no ratio. All contestants use the same number of threads and "
    "random operands; every result is checked. Host to host: NumPy arrays in and out, transfers included (GPU-BLOB's "
    "Transfer-Always). Resident: operands and result stay on the device. n products: operands are sent once, n "
    "products run, the result is fetched once (Transfer-Once); the time is divided by n. A threshold is the smallest "
    "size from which a device stays ahead of this package's cpu backend. Ahead means that both quartiles of the "
    "rounds' ratios are above 1. The cpu backend, NumPy and libraries for CPUs compute in host memory, where all three "
    "measurements are the same."
)
SIZES = tuple(1 << power for power in range(4, 14))
"""The sizes m and n of the grid of choices."""
SUMS = (64, 1024, 8192)
"""The sizes k of the grid of choices."""
Step = Callable[[str, int], None]
"""step(text, count): reports progress. `text` names the product, or the product and the contestant. `count` is the
number of cases finished since the last call (0 or 1)."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of a comparison. The docstring of gemm.compare describes its document."""

    document: Document

    @classmethod
    def load(cls, path: Path) -> Comparison:
        """Load a file that `gemm bench --compare --json` wrote.

        Raises OSError if the file cannot be read, and ValueError if its content is not a comparison of this version.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}") from None
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema != SCHEMA:
            raise ValueError(f"{path} is not a comparison of this version: its schema is {schema!r}, not {SCHEMA!r}")
        return cls(document)

    @property
    def rows(self) -> list[Row]:
        """The results: one dictionary for each, whose keys gemm.compare describes."""
        found: list[Row] = self.document["results"]
        return found

    def cases(self) -> list[Case]:
        """The products, without duplicates."""
        return list(dict.fromkeys(
            Case(r["family"], r["name"], Shape(r["m"], r["n"], r["k"], r["batch"]), r["series"], r["size"])
            for r in self.rows
        ))  # fmt: skip

    def failures(self) -> list[str]:
        """One line for each contestant that failed or computed a wrong result."""
        return report.failures(self.document)

    def page(self) -> str:
        """The report as one self-contained HTML page."""
        return report.page(self.document)

    def __repr__(self) -> str:
        names = ", ".join(self.document["contestants"])
        return f"<Comparison of {names}: {len(self.cases())} products in {self.document['dtype']}>"

    def _repr_html_(self) -> str:
        """HTML for notebooks: thresholds, charts and tables."""
        return report.body(self.document)


def compare(
    families: Iterable[str] = tuple(FAMILIES), *, quick: bool = False, sizes: Sequence[int] | None = None,
    dtype: str | Arithmetic = "float32", devices: Sequence[Device] | None = None, peers: Sequence[str] = PEERS,
    products: Sequence[Case] | None = None, missing: dict[str, str] | None = None,
    pace: Pace | None = None, step: Step = lambda text, done: None,
) -> Comparison:  # fmt: skip
    """Time families of products on `devices` (default: all that work here) and in those of `peers` that are installed.

    NumPy's BLAS and the peers are set to the number of threads of the cpu backend, and keep this setting.

    Args:
        families: names of families, see gemm.bench.products.FAMILIES. quick: time fewer products, and for less time.
        dtype: the type, or a gemm.bench.products.Arithmetic with the types and the precision.
        pace: the number of rounds and their time. None: PACES[quick].
        sizes: sizes of the squares, instead of the family's own. products: products to time instead of families.
        missing: {backend: why it is missing}, for the document. Ignored if `devices` is None. step: see Step.

    Raises:
        ValueError: a family is unknown.
    """
    arithmetic = dtype if isinstance(dtype, Arithmetic) else Arithmetic(dtype)
    if devices is None:
        devices, missing = all_devices()
    chosen = list(products or cases(families, quick=quick, sizes=sizes))
    probe.facts()  # otherwise the watch would count the probe's processes as processes of others
    first, watch = head(), Watch()
    field = Field.of(devices, peers, arithmetic)
    known, pace = roofs(devices, arithmetic.dtype), pace or PACES[quick]
    peaks = {key: roof["gflops"] for key, roof in known.items() if roof["gflops"]}
    sweep = Sweep(field, pace, arithmetic, peaks, lambda text: step(text, 0))
    rows, left_out = sweep.run(chosen, lambda case: step(str(case.shape), 1))
    return Comparison({
        "schema": SCHEMA, **first, **asdict(arithmetic), "quick": quick,
        "families": list(dict.fromkeys(case.family for case in chosen)),
        "rounds": max((len(row["samples_s"]) for row in rows), default=0), "method": METHOD,
        "devices": list(map(device_facts, devices)), "contestants": field.about,
        "absent": (missing or {}) | field.missing(rows), "roofs": known, "links": links(devices), "results": rows,
        "thresholds": verdicts.thresholds(rows), "choice": choices(arithmetic), "left_out": left_out,
        "quiet": watch.facts(verdicts.spreads(rows)),
    })  # fmt: skip


def choices(arithmetic: Arithmetic) -> dict[str, Any]:
    """The devices that "auto" would choose for products from host memory to host memory; nothing is multiplied.

    Kernels that dispatch would verify before their first use count as verified.

    Returns:
        {sizes, k, chosen, lead}. chosen[k][m][n] is the key of the chosen device. lead[k][m][n] is the CPU's predicted
        time ÷ the best device's predicted time, or null if dispatch considers no device, as for small products. If no
        kernel offers the arithmetic, each `chosen` is "none".
    """
    given = asdict(arithmetic)
    planes = [[[_choice(Problem(m=m, n=n, k=k, **given)) for n in SIZES] for m in SIZES] for k in SUMS]
    chosen, lead = ([[[each[at] for each in line] for line in plane] for plane in planes] for at in (0, 1))
    return {"sizes": list(SIZES), "k": list(SUMS), "chosen": chosen, "lead": lead}


def _choice(problem: Problem) -> tuple[str, float | None]:
    able = [(c.seconds, c) for c in choice.candidates(problem) if c.seconds]
    if not able:  # no kernel offers reproducible=True for this type
        return "none", None
    _, best = min(able, key=lambda each: (each[1].kernel.dtype == "*", each[0]))
    cpu = [seconds for seconds, c in able if c.kernel.backend == "cpu"]
    others = [seconds for seconds, c in able if c.kernel.backend not in HOST_BACKENDS]
    return best.device.key, min(cpu) / min(others) if cpu and others else None
