"""What Intel's graphics compiler made of a kernel: its assembly, as IGC_ShaderDumpEnable=1 leaves it in a file.

Each generation writes loops in its own way: Gen8 to Gen11 close one with `jmpi` or `while`, Gen12 with `while`, Xe-HPG
with `goto`; the label of each is a line of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = re.compile(r"^(\w+):\s*$")
_INSTRUCTION = re.compile(r"^(?:\([^)]*\))?\s+[a-z]")
_PARTS = re.compile(r"^(?:\([^)]*\))?\s*(?P<name>\w+)(?P<rest>.*)$")
_BRANCHES = ("jmpi", "while", "goto")
_REGISTERS = re.compile(r"^//\.declare .* rf=r size=(\d+) .*\(r(\d+)\.\d+\)", re.MULTILINE)
_BYTES = 32
"""Of a register of the general file (GRF) on every generation that this reads."""


def name(instruction: str) -> str:
    """`send` of `(W) send.dc1 (8|M0) r15 r110 ...`."""
    match = _PARTS.match(instruction)
    return match["name"] if match else ""


def multiplies_floats(instruction: str) -> bool:
    """Whether it multiplies and adds floats, `mad` or `mac`: both are made for integers, addresses for one, too."""
    return bool(re.match(r"^(?:\([^)]*\))?\s*ma[dc]\s.*?<1>:h?f\s", instruction))


@dataclass(frozen=True)
class Loop:
    """Instructions from the target of a branch back to that branch."""

    instructions: tuple[str, ...]

    @property
    def mads(self) -> int:
        """Those that multiply and add floats."""
        return sum(map(multiplies_floats, self.instructions))

    @property
    def sends(self) -> int:
        """Messages to memory, to a barrier or to the thread's end; `sends` is one with two payloads."""
        return sum(name(text) in ("send", "sends", "sendc") for text in self.instructions)

    @property
    def scratch(self) -> int:
        """Messages to scratch memory: a register tile that did not fit."""
        return sum("scratch" in text for text in self.instructions)

    @property
    def share(self) -> float:
        """Of all instructions, those that multiply and add floats."""
        return self.mads / max(1, len(self.instructions))


@dataclass(frozen=True)
class Listing:
    """A kernel's assembly.

    Attributes:
        instructions: how many there are in all.
        loop: the one with the most multiply-adds; None where no loop has any.
        registers: of the general file, as many as variables lie in.
        spilled: bytes of scratch memory a hardware thread.
        flags: stores of flag registers to general ones, of which there are two or four only; no memory is touched.
    """

    instructions: int
    loop: Loop | None
    registers: int
    spilled: int
    flags: int


def parse(text: str) -> Listing:
    """The facts of one assembly file; ValueError if it is none."""
    if not text.startswith("//.kernel"):
        raise ValueError("not an assembly file of Intel's graphics compiler")
    labels: dict[str, int] = {}
    instructions: list[str] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif _INSTRUCTION.match(line):
            instructions.append(line.strip())
    taken = {at for size, first in _REGISTERS.findall(text)
             for at in range(int(first), int(first) + -(-int(size) // _BYTES))}  # fmt: skip
    return Listing(len(instructions), _main_loop(instructions, labels), len(taken), _count(text, "spill size"),
                   _count(text, "spill flag store"))  # fmt: skip


def _main_loop(instructions: list[str], labels: dict[str, int]) -> Loop | None:
    """The loop with the most multiply-adds; of those that have as many, the smallest: no other is inside it."""
    loops = []
    for at, text in enumerate(instructions):
        if name(text) in _BRANCHES:
            starts = [labels[word] for word in re.findall(r"\w+", text.partition("//")[0]) if word in labels]
            loops += [Loop(tuple(instructions[start : at + 1])) for start in starts if start <= at]
    loops = [loop for loop in loops if loop.mads]
    return max(loops, key=lambda loop: (loop.mads, loop.share), default=None)


def _count(text: str, what: str) -> int:
    match = re.search(rf"^//\.{what} (\d+)", text, re.MULTILINE)
    return int(match[1]) if match else 0
