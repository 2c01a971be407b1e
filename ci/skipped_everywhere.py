"""skipped_everywhere.py FOLDER: fail if a kernel of the catalog ran in no CI job although a job could have run it.

FOLDER contains two files for each job: JOB.kernels.json, with the numbers of each kernel's passed, failed and skipped
tests, and JOB.facts.json, with the features of the job's machine (see facts.py). All jobs may skip a kernel only if no
job's CPU has the instructions that the kernel's row needs. CUDA kernels run on an emulated GPU.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "gemm"))
from catalog import KERNELS  # not through gemm, because importing the package needs NumPy


def reports(folder: Path, kind: str) -> dict[str, Any]:
    """{job: its report of this kind}."""
    return {path.name.partition(".")[0]: json.loads(path.read_text()) for path in sorted(folder.glob(f"*.{kind}.json"))}


def excuse(row: Any, facts: list[dict[str, Any]]) -> str:
    """Why no job's machine can run the kernel of `row`, or "" if a machine can."""
    if row.backend == "cpu":
        lacking = [set(row.needs) - set(machine["features"]) for machine in facts]
        if all(lacking):
            return f"no machine has {' and '.join(sorted(min(lacking, key=len)))}"
    return ""


def main(folder: Path) -> int:
    counts, facts = reports(folder, "kernels"), list(reports(folder, "facts").values())
    if not counts or not facts:
        print(f"no job left a report in {folder}")
        return 1
    missed = 0
    print(f"{'kernel':36} tests passed in")
    for row in KERNELS:
        ran = {job: report[row.name]["passed"] for job, report in counts.items() if row.name in report}
        where = ", ".join(f"{job} ({passed})" for job, passed in ran.items() if passed)
        why = "" if where else excuse(row, facts)
        missed += not (where or why)
        print(f"{row.name:36} {where or (f'– {why}' if why else 'NOWHERE, though a machine of CI can run it')}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
