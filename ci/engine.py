"""engine.py FOLDER: print the C sources of the CPU engine, as build.py compiles it here or for $GEMM_BUILD_MACHINE.

The script also writes FOLDER/rows.h for the programs of tests/fuzz: the kernels, with the CPU features that they need.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def engine(build: dict[str, Any], folder: Path) -> list[str]:
    """The sources, relative to the checkout. `build` has the globals of build.py."""
    rows = build["rows"]()
    text = "".join(f'ROW({row.name}, "{"".join(f"{need} " for need in row.needs)}")\n' for row in rows)
    (folder / "rows.h").write_text(text)
    driver = {path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc" / "driver").glob("*.c")}
    return sorted(driver | {row.source for row in rows})


if __name__ == "__main__":
    print(*engine(runpy.run_path(str(ROOT / "build.py")), Path(sys.argv[1])), sep="\n")
