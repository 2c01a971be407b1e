"""engine.py FOLDER: prints the C sources of the CPU engine, as build.py compiles it here or for $GEMM_BUILD_MACHINE,
and writes FOLDER/rows.h, its kernels with the CPU features that they need, for the programs of tests/fuzz.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def engine(build: dict[str, Any], folder: Path) -> list[str]:
    """The sources, relative to the checkout; `build` is what build.py has."""
    rows = build["rows"]()
    text = "".join(f'ROW({row.name}, "{"".join(f"{need} " for need in row.needs)}")\n' for row in rows)
    (folder / "rows.h").write_text(text)
    driver = {path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc" / "driver").glob("*.c")}
    return sorted(driver | {row.source for row in rows})


if __name__ == "__main__":
    print(*engine(runpy.run_path(str(ROOT / "build.py")), Path(sys.argv[1])), sep="\n")
