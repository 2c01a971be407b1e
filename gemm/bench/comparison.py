"""A comparison: run it, save it, load it, show it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gemm.backends import registry
from gemm.bench import sweep, tables, threshold
from gemm.bench.choices import choices
from gemm.bench.contest import Shape
from gemm.bench.families import FAMILIES, Case, cases
from gemm.bench.field import PEERS, Field
from gemm.bench.quiet import Watch
from gemm.bench.roofs import roofs
from gemm.bench.sweep import PACES, Row, find
from gemm.catalog import BACKENDS
from gemm.core.backend import Backend
from gemm.core.errors import BackendUnavailable
from gemm.core.problem import Device
from gemm.frontend import report
from gemm.select import probe

SCHEMA = "gemm-compare/1"
METHOD = (
    "Times are medians over interleaved rounds in one process. All contestants use the same number of threads and "
    "random operands; every result is checked. Host to host: NumPy arrays in and out, transfers included (GPU-BLOB's "
    "Transfer-Always). Resident: operands and result stay on the device. n products: operands are sent once, n "
    "products run, the result is fetched once (Transfer-Once); the time is divided by n. A threshold is the smallest "
    "size from which a device stays ahead of this package's cpu backend. Ahead means that both quartiles of the "
    "rounds' ratios are above 1. The cpu backend, NumPy and libraries for CPUs compute in host memory, where all three "
    "measurements are the same."
)
Devices = list[tuple[Backend, Device]]
Step = Callable[[str, int], None]
"""step(description of the next case, number of finished cases)."""


@dataclass(frozen=True)
class Comparison:
    """A comparison. gemm.compare describes its document."""

    document: dict[str, Any]

    @classmethod
    def load(cls, path: Path) -> Comparison:
        """Load a file that `gemm bench --compare --json` wrote. Raises ValueError, OSError."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is no JSON: {error}") from None
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema != SCHEMA:
            raise ValueError(f"{path} is not a comparison of this version: its schema is {schema!r}, not {SCHEMA!r}")
        return cls(document)

    @property
    def rows(self) -> list[Row]:
        """The results, one row for each."""
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
        return tables.failures(self.document)

    def page(self) -> str:
        """The report as one self-contained HTML page."""
        from gemm.bench.page import page

        return page(self.document)

    def _repr_html_(self) -> str:
        """HTML for notebooks: thresholds, charts and tables."""
        from gemm.bench.page import body

        return body(self.document)


def compare(
    families: Iterable[str] = tuple(FAMILIES), *, quick: bool = False, sizes: Sequence[int] | None = None,
    dtype: str = "float32", devices: Devices | None = None, peers: Sequence[str] = PEERS,
    products: Sequence[Case] | None = None, missing: dict[str, str] | None = None,
    step: Step = lambda text, done: None,
) -> Comparison:  # fmt: skip
    """Time families of products on `devices` (default: all that work here) and in the `peers` that are installed.

    NumPy's BLAS and the peers are set to the number of threads of the cpu backend, and keep this setting.

    Args:
        sizes: sizes of the square products, instead of the family's own.
        products: products to time instead of families.
        missing: {backend: why it is missing}, for the document.

    Raises:
        ValueError: a family is unknown.
    """
    families = list(families)
    if unknown := [name for name in families if name not in FAMILIES]:
        raise ValueError(f"families are {', '.join(FAMILIES)}, not {', '.join(unknown)}")
    if devices is None:
        devices, missing = all_devices()
    chosen = list(products or cases(families, quick=quick, sizes=sizes))
    head, watch = report.head(), Watch()
    field = Field.of(devices, peers)
    known = roofs([device for _, device in devices], dtype)
    peaks = {key: roof["gflops"] for key, roof in known.items() if roof["gflops"]}
    compete = partial(sweep.compete, field=field, pace=PACES[quick], dtype=dtype, peaks=peaks,
                      step=lambda text: step(text, 0))  # fmt: skip
    rows, left_out = _swept(chosen, compete, step)
    return Comparison({
        "schema": SCHEMA, **head, "dtype": dtype, "quick": quick,
        "families": list(dict.fromkeys(case.family for case in chosen)), "rounds": PACES[quick].rounds,
        "method": METHOD, "devices": [report.device_facts(device) for _, device in devices],
        "contestants": field.about, "absent": {**(missing or {}), **field.absent}, "roofs": known, "results": rows,
        "thresholds": thresholds(rows), "choice": choices(dtype), "left_out": left_out,
        "quiet": watch.facts(_spreads(rows)),
    })  # fmt: skip


def _swept(chosen: Sequence[Case], compete: Callable[[Case], list[Row]], step: Step) -> tuple[list[Row], list[str]]:
    """The results of all cases, and a line for each case that needs too much memory."""
    rows: list[Row] = []
    left_out = []
    for case in chosen:
        try:
            rows += compete(case)
        except MemoryError:
            left_out.append(f"{case.name} ({case.family}): not enough memory")
        step(str(case.shape), 1)
    return rows, left_out


def all_devices() -> tuple[Devices, dict[str, str]]:
    """All working devices, and {backend: why it is missing}."""
    found: Devices = []
    missing = {}
    for name in BACKENDS:
        try:
            found += [(registry.backend(name), device) for device in probe.devices(name)]
        except BackendUnavailable as error:
            missing[name] = str(error)
    return found, missing


def _spreads(rows: Sequence[Row]) -> list[float]:
    """The spread of the ratios of cpu:0's samples to a contestant's samples, with operands in host memory.

    One number for each product and each contestant but cpu:0: the interquartile range of the ratios ÷ their median.
    """
    hosted = find(rows, mode="host")
    ours = {(row["family"], row["name"]): row["samples_s"] for row in find(hosted, contestant="cpu:0")}
    found = []
    for row in hosted:
        reference = ours.get((row["family"], row["name"]))
        if reference and row["contestant"] != "cpu:0":
            low, middle, high = threshold.quartiles(threshold.ratios(reference, row["samples_s"]))
            found.append((high - low) / middle)
    return found


def thresholds(rows: Sequence[Row]) -> list[Row]:
    """The offload thresholds: one for each series, contestant with its own memory, and mode."""
    found = []
    kinds = {(r["series"], r["contestant"], r["mode"], r["products"]): None for r in find(rows) if r["series"]}
    away = {row["contestant"] for row in find(rows, mode="resident")}
    for series, contestant, mode, products in kinds:
        if contestant not in away:
            continue
        ours = {row["size"]: row["samples_s"] for row in find(rows, series=series, contestant="cpu:0", mode="host")}
        own = find(rows, series=series, contestant=contestant, mode=mode, products=products)
        points = sorted(
            (r["size"], threshold.ratios(ours[r["size"]], r["samples_s"])) for r in own if r["size"] in ours
        )
        size, below = threshold.threshold(points)
        if points:
            found.append({
                "series": series, "contestant": contestant, "mode": mode, "products": products, "size": size,
                "below": below, "sizes": [size for size, _ in points],
                "verdicts": [threshold.verdict(ratios) for _, ratios in points],
                "ratios": [statistics.median(ratios) for _, ratios in points],
            })  # fmt: skip
    return found
