"""Cycles of a loop by the scheduling models of llvm-mca: loads hit the first cache, and the front end never waits."""

from __future__ import annotations

import json
import re
from functools import cache

from .loops import Loop, multiply_adds
from .tools import llvm, run

MODELS = {
    "cortex-a53": ("its own, not calibrated: OpenBLAS's A53 kernel gets a fifth of the peak", False),
    "cortex-a57": ("its own", True),
    "cortex-a72": ("Cortex-A57's", True),
    "cortex-a76": ("Cortex-A57's: half of the units", False),
    "neoverse-n1": ("its own, without forwarding of accumulators", True),
    "neoverse-v1": ("its own", True),
    "apple-m1": ("the old Cyclone's", False),
}
"""CPU: (the model that LLVM 19 takes for it, whether its figures are to be believed)."""
SHORT, LONG = 100, 400
"""Passes of two runs; their difference is free of the start."""


def _cycles(text: str, cpu: str) -> float:
    """Cycles a pass through `text` in steady state."""
    totals = []
    for passes in (SHORT, LONG):
        command = [llvm("llvm-mca"), "-mtriple=aarch64", f"-mcpu={cpu}", "-mattr=+fp16fml,+dotprod,+bf16,+i8mm"]
        command += [f"-iterations={passes}", "-json"]
        totals.append(json.loads(run(command, text)[0])["CodeRegions"][0]["SummaryView"]["TotalCycles"])
    return (totals[1] - totals[0]) / (LONG - SHORT)


@cache
def _peak(instruction: str, cpu: str) -> float:
    """Multiply-adds a cycle of nothing but independent instructions of this kind, with a vector or a lane."""
    name, operands = instruction.split(" ", 1)
    kinds = re.findall(r"v\d+\.(\w+)", operands)
    if not kinds:  # scalars are measured by what vectors could do
        name, kinds = "fmla", ["2d", "2d"] if operands.startswith("d") else ["4s", "4s"]
    name = {"sudot": "usdot"}.get(name, name)  # which has no form without a lane
    forms = [f"v30.{kinds[1]}, v31.{kinds[1]}"]
    if name == "fmla":  # a model may know the two forms as instructions of unequal speed
        forms.append(f"v30.{kinds[1]}, v31.{kinds[0][-1]}[0]")
    streams = ["\n".join(f"{name} v{number}.{kinds[0]}, {form}" for number in range(24)) for form in forms]
    return 24 * multiply_adds(f"{name} v0.{kinds[0]}") / min(_cycles(stream, cpu) for stream in streams)


@cache
def percent_of_peak(loop: Loop, cpu: str) -> float:
    """Percent of the multiply-adds a cycle that the model of `cpu` allows at all, by the loop's own instruction."""
    text = [_target(line) for line in loop.instructions]
    return 100 * loop.work / _cycles("\n".join(["again:", *text]), cpu) / _peak(loop.typical, cpu)


def _target(line: str) -> str:
    """The line, its address made a label where it is a branch."""
    return re.sub(r"0x[0-9a-f]+$", "again", line) if re.match(r"(b\.|cbn?z|tbn?z)", line) else line
