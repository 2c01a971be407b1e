"""Cycles of a loop in llvm-mca's scheduling models. The models assume L1 hits and a front end that never stalls."""

from __future__ import annotations

import json
import re
from functools import cache

from .loops import Loop, multiply_adds
from .tools import llvm, run

MODELS = {
    "cortex-a53": ("its own model, but not calibrated: OpenBLAS's A53 kernel gets a fifth of the peak", False),
    "cortex-a57": ("its own model", True),
    "cortex-a72": ("Cortex-A57's model", True),
    "cortex-a76": ("Cortex-A57's model, with half of the units", False),
    "neoverse-n1": ("its own model, without forwarding of accumulators", True),
    "neoverse-v1": ("its own model", True),
    "apple-m1": ("the model of the older Cyclone", False),
}
"""{CPU: (the model that LLVM 19 uses for it, whether the model's figures are reliable)}."""
SHORT, LONG = 100, 400
"""The numbers of passes in two runs of llvm-mca. The difference of the runs' cycles excludes the start of the loop."""


def _cycles(text: str, cpu: str) -> float:
    """Cycles per pass through `text` in the steady state."""
    totals = []
    for passes in (SHORT, LONG):
        command = [llvm("llvm-mca"), "-mtriple=aarch64", f"-mcpu={cpu}", "-mattr=+fp16fml,+dotprod,+bf16,+i8mm"]
        command += [f"-iterations={passes}", "-json"]
        totals.append(json.loads(run(command, text)[0])["CodeRegions"][0]["SummaryView"]["TotalCycles"])
    return (totals[1] - totals[0]) / (LONG - SHORT)


@cache
def _peak(instruction: str, cpu: str) -> float:
    """Multiply-adds per cycle of independent instructions of this kind.

    fmla has two forms: its second factor is a vector, or one lane of a vector. The faster form counts.
    """
    name, operands = instruction.split(" ", 1)
    kinds = re.findall(r"v\d+\.(\w+)", operands)
    if not kinds:  # a scalar kernel is compared with the peak of vector instructions
        name, kinds = "fmla", ["2d", "2d"] if operands.startswith("d") else ["4s", "4s"]
    name = {"sudot": "usdot"}.get(name, name)  # sudot exists only with a lane, so usdot is measured instead
    forms = [f"v30.{kinds[1]}, v31.{kinds[1]}"]
    if name == "fmla":  # a model may give the two forms different speeds
        forms.append(f"v30.{kinds[1]}, v31.{kinds[0][-1]}[0]")
    streams = ["\n".join(f"{name} v{number}.{kinds[0]}, {form}" for number in range(24)) for form in forms]
    return 24 * multiply_adds(f"{name} v0.{kinds[0]}") / min(_cycles(stream, cpu) for stream in streams)


@cache
def percent_of_peak(loop: Loop, cpu: str) -> float:
    """The loop's multiply-adds per cycle in percent of the peak of the loop's main instruction, in `cpu`'s model."""
    text = [_target(line) for line in loop.instructions]
    return 100 * loop.work / _cycles("\n".join(["again:", *text]), cpu) / _peak(loop.typical, cpu)


def _target(line: str) -> str:
    """The line; in a branch, a label replaces the address."""
    return re.sub(r"0x[0-9a-f]+$", "again", line) if re.match(r"(b\.|cbn?z|tbn?z)", line) else line
