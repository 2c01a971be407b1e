"""Run one kernel through a compiler for Adreno GPUs, and read the figures in the compiler's answer."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMORY = ("tex", "ldg", "stg", "ldl", "stl", "ldp", "stp", "mem_other")
"""Classes of instructions that access memory: texture, global, local and private."""


class Failed(Exception):
    """The tool or a peer's file is missing, or a kernel does not compile. The text is shown to the user."""


@dataclass(frozen=True)
class Case:
    """A kernel to compile.

    Attributes:
        kernel, by: the kernel's name and its library.
        dtype, sums: the type of the operands, and the type of the sums over k.
        source: OpenCL C source.
        entry, group, options: the kernel function, the work-group size and the build options.
    """

    kernel: str
    by: str
    dtype: str
    sums: str
    source: str
    entry: str
    group: tuple[int, int]
    options: str


def figures(tool: Path, case: Case, gpu: str) -> dict[str, Any]:
    """Compile `case` for `gpu` and return its figures, as an entry of `rows` in the document of adreno_static.py.

    Raises Failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cl"
        file.write_text(case.source, encoding="utf-8")
        group = ",".join(map(str, case.group))
        command = [tool, file, case.entry, "--gpu", gpu, "--wg", group, "--opts", case.options]
        try:
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        except OSError as error:
            raise Failed(f"{tool} cannot be run: {error}") from error
    if done.returncode:
        raise Failed(f"{case.kernel} does not compile for {gpu}: {done.stderr.strip()[-400:]}")
    return {
        "kernel": case.kernel,
        "by": case.by,
        "dtype": case.dtype,
        "sums": case.sums,
        "gpu": gpu,
        **read(done.stdout),
    }


def read(answer: str) -> dict[str, Any]:
    """The figures in the tool's JSON.

    `registers`, `waves`, `threads_per_wave`, `spills` and `instructions` refer to the whole kernel, the others to the
    main loop.

    Raises Failed if the kernel has no loop with multiply-adds.
    """
    document = json.loads(answer)
    stats, loop = document["stats"], document["main_loop"]
    if not loop or not loop["mads"]:
        raise Failed(f"{document['kernel']}: no loop multiplies and adds")
    classes, mads = loop["by_class"], loop["mads"]
    memory = sum(classes.get(name, 0) for name in MEMORY)
    return {
        "registers": stats["full_regs"], "waves": stats["max_waves"], "threads_per_wave": stats["threads_per_wave"],
        "spills": stats["spill_instrs"], "mads": mads, "slots": loop["issue_slots"], "nops": loop["nops"],
        "slots_per_mad": round((loop["issue_slots"] - classes.get("mad_f16", 0) / 2) / mads, 4),
        "memory": memory, "memory_per_mad": round(memory / mads, 4), "instructions": stats["instrs"],
    }  # fmt: skip
