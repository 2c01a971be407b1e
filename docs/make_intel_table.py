"""Write the table of docs/intel.md, the compiler's figures of the kernels, from the newest record of intel_static.py.

python docs/make_intel_table.py            write the table
python docs/make_intel_table.py --check    exit with 1 if the table is out of date
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


def document() -> str:
    """The page, with the new table between its marks."""
    newest = max((ROOT / "benchmarks" / "results").glob("*-intel-static/intel_static.json"))
    head, _, rest = TARGET.read_text(encoding="utf-8").partition(MARKS[0])
    _, _, tail = rest.partition(MARKS[1])
    return f"{head}{MARKS[0]}\n{table(json.loads(newest.read_text(encoding='utf-8')))}\n{MARKS[1]}{tail}"


if __name__ == "__main__":
    sys.exit(generated.main(None, __doc__, TARGET, document))
