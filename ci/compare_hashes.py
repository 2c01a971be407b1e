"""compare_hashes.py FILE...: print one table of the files that `gemm verify --hashes --json` wrote on several machines.

With reproducible=True every kernel on every device must give the same bits. The script fails in these cases: a dtype
has two different hashes, a kernel has no hash, a file is missing or has no hash, or a file lacks a dtype that another
file has. There is one exception: a file named hashes.json may lack a dtype, which is only mentioned. Such a file is a
recorded run (benchmarks/record.py), and the run may be older than the dtype.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

RECORD = "hashes.json"
"""The name of the file that benchmarks/record.py writes."""


def run_of(path: Path) -> str:
    """The run of a file: "pocl" for REPORTS/pocl.hashes.json, the folder's name for
    benchmarks/results/2026-11-21-h200/hashes.json."""
    return path.parent.name if path.name == RECORD else path.name.partition(".")[0]


def main(names: list[str]) -> int:
    hashes: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))  # dtype → hash → runs
    faults, notes = [], []
    recorded = {run_of(path) for path in map(Path, names) if path.name == RECORD}
    print(f"{'run':16} {'device':40} {'kernel':36} sha256 of the ordered result")
    for path in map(Path, names):
        run = run_of(path)
        if not path.exists():
            faults.append(f"{run}: its job left no {path.name}")
            continue
        document = json.loads(path.read_text())
        devices = {device["key"]: device["name"] for device in document["devices"]}
        for one in document["outcomes"]:
            print(f"{run:16} {devices[one['device']]:40.40} {one['kernel']:36} {one['sha256'] or one['error']}")
            if one["sha256"]:
                hashes[one["dtype"]][one["sha256"]].add(run)
            else:
                faults.append(f"{run}: {one['kernel']} on {one['device']} has no hash")
    for dtype, found in sorted(hashes.items()):
        if len(found) > 1:
            faults.append(f"{dtype} has {len(found)} different hashes")
        for absent in sorted({run_of(Path(name)) for name in names} - set().union(*found.values())):
            (notes if absent in recorded else faults).append(f"{dtype}: no hash from {absent}")
    for run in sorted(recorded - {run for found in hashes.values() for runs in found.values() for run in runs}):
        faults.append(f"{run} holds no hash")
    print("\n".join([*notes, *(faults or [f"one hash a dtype: {', '.join(sorted(hashes))}"])]))
    return 1 if faults or not hashes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
