"""The contents of a comparison's tables, for the HTML page and for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemm.bench import phrases
from gemm.bench.contest import Shape
from gemm.bench.sweep import REPEATS, Row, find

THRESHOLDS = (
    "Each number is the smallest size from which a device stays ahead of the cpu backend; the number in brackets is "
    "the next smaller size, at which the device is not ahead. –: the device is not ahead at the largest size."
)
NO_DEVICE = "There are no thresholds: a threshold needs the cpu backend and a device with its own memory."
_WAYS = {("host", 1): "host to host", ("resident", 1): "resident",
         **{("once", n): phrases.counted(n, "product") for n in REPEATS}}  # fmt: skip


def thresholds(document: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table of thresholds: series, contestant, and a column for each mode."""
    rows = document["thresholds"]
    ways = [way for way in _WAYS if any((row["mode"], row["products"]) == way for row in rows)]
    lines = []
    for series, contestant in dict.fromkeys((row["series"], row["contestant"]) for row in rows):
        own = {(x["mode"], x["products"]): x for x in rows if (x["series"], x["contestant"]) == (series, contestant)}
        lines.append([series, contestant, *(_threshold(own.get(way)) for way in ways)])
    return ["series", "device", *(_WAYS[way] for way in ways)], lines


def _threshold(row: Row | None) -> str:
    if row is None or row["size"] is None:
        return "–"
    return f"{row['size']} ({row['below']})" if row["below"] else f"{row['size']}, the smallest"


def family(document: dict[str, Any], name: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Head and lines of a family's table: name, shape, and the result of each contestant and mode, or None."""
    rows = find(document["results"], family=name)
    columns = list(dict.fromkeys((r["contestant"], r["mode"], r["products"]) for r in rows if r["products"] in (1, 64)))
    columns = [column for column in columns if column[1:] != ("once", 1)]
    away = {row["contestant"] for row in find(rows, mode="resident")}
    lines = []
    for case in dict.fromkeys((r["name"], Shape(r["m"], r["n"], r["k"], r["batch"])) for r in rows):
        own = {(r["contestant"], r["mode"], r["products"]): r for r in find(rows, name=case[0])}
        lines.append((case[0], str(case[1]), *(own.get(column) for column in columns)))
    titles = [
        f"{contestant}, {_WAYS[mode, times]}" if contestant in away else contestant
        for contestant, mode, times in columns
    ]
    return ["product", "m × n × k", *titles], lines


def roofs(document: dict[str, Any]) -> dict[str, str]:
    """{devices: their limits in words}."""
    same: dict[str, list[str]] = {}
    for key, roof in document["roofs"].items():
        same.setdefault(_roof(roof), []).append(key)
    return {f"roofs of {', '.join(keys)}": words for words, keys in same.items()}


def _roof(roof: Mapping[str, Any]) -> str:
    peak, rate = roof["gflops"], roof["memory_gbs"]
    arithmetic = f"{phrases.number(peak)} GFLOP/s, {roof['gflops_basis']}" if peak else "peak not known"
    memory = f"memory {phrases.number(rate)} GB/s, {roof['memory_basis']}" if rate else "rate of its memory not known"
    return f"{arithmetic}; {memory}"


def failures(document: dict[str, Any]) -> list[str]:
    """One line for each contestant that failed or computed a wrong result, without duplicates."""
    return list(dict.fromkeys(
        f"{r['name']} ({r['family']}), {r['contestant']}: {r['error'] or 'its result is wrong'}"
        for r in document["results"] if r["error"] or r["valid"] is False
    ))  # fmt: skip


def notes(document: dict[str, Any]) -> list[str]:
    """Warnings that a reader needs before reading the figures."""
    found = []
    if not any(device["kind"] == "gpu" for device in document["devices"]):
        stand_in = any(device["backend"] == "opencl" for device in document["devices"])
        found.append("There is no GPU on this machine." + (
            " OpenCL devices on the CPU take its place: thresholds show the gain of OpenCL on the same cores."
            if stand_in else ""))  # fmt: skip
    if warnings := document["quiet"]["warnings"]:
        found.append(f"The machine was not quiet, so do not quote these figures: {'; '.join(warnings)}.")
    if failed := failures(document):
        found.append(f"Failed: {'; '.join(failed)}.")
    if document["left_out"]:
        found.append(f"Left out: {'; '.join(document['left_out'])}.")
    return found
