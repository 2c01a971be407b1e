"""Write the table of docs/amd.md, the compiler's figures of the kernels, from the newest record of amd_static.py.

python docs/make_amd_table.py            write the table
python docs/make_amd_table.py --check    exit with 1 if the table is out of date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import generated

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "amd.md"
MARKS = "<!-- table: python docs/make_amd_table.py -->", "<!-- end of table -->"


def table(record: dict[str, Any]) -> str:
    """The record as a Markdown table."""
    lines = [f"{record['compiler']}; commit {record['commit'][:7]}, {record['date']}.", ""]
    lines += ["| kernel | GPU | VGPRs | SGPRs | waves | spilled bytes | loop | wmma | fma | loads | share |"]
    lines += ["|---|---|" + "---|" * 9]
    for row in record["rows"]:
        device = f"{row['device']} ({record['devices'][row['device']]})"
        keys = ("vgprs", "sgprs", "occupancy", "spilled", "loop", "units", "fmas", "loads")
        cells = [row["kernel"], device, *(str(row[key]) for key in keys), f"{row['share']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def document() -> str:
    """The page, with the new table between its marks."""
    newest = max((ROOT / "benchmarks" / "results").glob("*-amd-static/amd_static.json"))
    text = table(json.loads(newest.read_text(encoding="utf-8")))
    return generated.between(TARGET.read_text(encoding="utf-8"), MARKS, text)


if __name__ == "__main__":
    sys.exit(generated.main(None, __doc__, TARGET, document))
