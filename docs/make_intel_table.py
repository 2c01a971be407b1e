"""Write the tables of docs/intel.md, the compiler's figures of the kernels, from the newest records of intel_static.py.

python docs/make_intel_table.py            write the tables
python docs/make_intel_table.py --check    exit with 1 if a table is out of date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import generated

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "intel.md"
MARKS = "<!-- table: python docs/make_intel_table.py -->", "<!-- end of table -->"
MATRIX_MARKS = (
    "<!-- table of matrix units: python docs/make_intel_table.py -->",
    "<!-- end of table of matrix units -->",
)


def table(record: dict[str, Any]) -> str:
    """The record as a Markdown table."""
    devices: dict[str, str] = record["generations"]
    lines = [f"{record['compiler']}; commit {record['commit']}, {record['date']}.", ""]
    lines += ["| kernel | " + " | ".join(devices.values()) + " | SIMD | mads per message |"]
    lines += ["|---|" + "---|" * (len(devices) + 2)]
    for kernel in dict.fromkeys(row["kernel"] for row in record["rows"]):
        # A kernel may have several rows for a device. The last one has the values that gemm ships for this device.
        rows = {row["device"]: row for row in record["rows"] if row["kernel"] == kernel}
        cells = [_cell(rows[device]) for device in devices]
        simd = "/".join(str(width) for width in sorted({row["simd"] for row in rows.values()}))
        dense = [round(row["mads"] / max(1, row["sends"])) for row in rows.values()]
        between = str(dense[0]) if len(set(dense)) == 1 else f"{min(dense)}–{max(dense)}"
        name = kernel if any(row["auto"] for row in rows.values()) else f"{kernel} *"
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {simd} | {between} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    notes = [f"{name}={value}" for name, value in row["chosen"].items()]
    notes += [f"spills {row['spilled']} B"] if row["spilled"] else []
    share = f"{row['share']:.2f}" if row["mads"] else "–"
    return f"{share} ({', '.join(notes)})" if notes else share


def matrix_table(records: list[dict[str, Any]]) -> str:
    """The records of kernels for matrix units as a Markdown table: a column for each compiler and device."""
    columns = [(record, device) for record in records for device in record["devices"]]
    lines = [f"{record['compiler']}; commit {record['commit'][:7]}, {record['date']}." for record in records]
    lines += ["", "| kernel | registers | " + " | ".join(_titles(columns)) + " | dpas per message | bytes read |"]
    lines += ["|---|---|" + "---|" * (len(columns) + 2)]
    for kernel in dict.fromkeys(row["kernel"] for record in records for row in record["rows"]):
        found = [next((row for row in record["rows"] if (row["kernel"], row["device"]) == (kernel, device)), None)
                 for record, device in columns]  # fmt: skip
        rows = [row for row in found if row]
        dense = sorted({f"{row['dpas'] / row['sends']:.1f}" for row in rows})
        ends = [f"{dense[0]}–{dense[-1]}" if len(dense) > 1 else dense[0], f"{max(row['traffic'] for row in rows):.2f}"]
        lines.append("| " + " | ".join([kernel, str(rows[0]["available"]), *map(_matrix_cell, found), *ends]) + " |")
    return "\n".join(lines)


def _matrix_cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    spills = f", spills {row['spilled']} B" if row["spilled"] else ""
    return f"{row['share']:.2f} ({row['dpas']} of {row['loop']}{spills})"


def _titles(columns: list[tuple[dict[str, Any], str]]) -> list[str]:
    """Names of the devices, with the compiler if the table has a device twice."""
    names = [record["devices"][device] for record, device in columns]
    return [name if names.count(name) == 1 else f"{name}, {record['compiler'].split(',')[0]}"
            for (record, _), name in zip(columns, names, strict=True)]  # fmt: skip


def document() -> str:
    """The page, with the new tables between their marks."""
    results = ROOT / "benchmarks" / "results"
    newest = max(results.glob("*-intel-static/intel_static.json"))
    folder = max(results.glob("*-intel-matrix"))
    matrix = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    page = TARGET.read_text(encoding="utf-8")
    for marks, text in (
        (MARKS, table(json.loads(newest.read_text(encoding="utf-8")))),
        (MATRIX_MARKS, matrix_table(matrix)),
    ):
        page = generated.between(page, marks, text)
    return page


if __name__ == "__main__":
    sys.exit(generated.main(None, __doc__, TARGET, document))
