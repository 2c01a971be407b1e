"""Read the assembly that Intel's graphics compiler makes of a kernel, from a file that IGC_ShaderDumpEnable=1 writes.

Loops end differently in each generation: in Gen8 to Gen11 with `jmpi` or `while`, in Gen12 with `while`, in Xe-HPG with
`goto`, in later ones with `jmpi`. Each label has a line of its own.
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
"""Bytes of a register in the general register file (GRF), on every generation up to Xe-HPG. Later ones have 64."""
_DPAS = re.compile(r"^(?:\([^)]*\))?\s*dpas\.8x(\d+) \((\d+)\|M0\)\s+\S+\s+r\d")
_READ = re.compile(r"// wr:\S+ rd:(\d+);|^(?:\([^)]*\))?\s*(?:load|send)\S*\s.*?\br\d+:(\d+)\s+\S*\[?r\d")


def name(instruction: str) -> str:
    """The opcode: `send` for `(W) send.dc1 (8|M0) r15 r110 ...`."""
    match = _PARTS.match(instruction)
    return match["name"] if match else ""


def multiplies_floats(instruction: str) -> bool:
    """Whether the instruction is a `mad` or `mac` of floats. Both also exist for integers, such as addresses."""
    return bool(re.match(r"^(?:\([^)]*\))?\s*ma[dc]\s.*?<1>:h?f\s", instruction))


@dataclass(frozen=True)
class Loop:
    """The instructions from the target of a branch to the branch."""

    instructions: tuple[str, ...]

    @property
    def mads(self) -> int:
        """The number of instructions that multiply and add floats."""
        return sum(map(multiplies_floats, self.instructions))

    @property
    def sends(self) -> int:
        """The number of messages: to memory, to a barrier, or to end the thread. `sends` has two payloads."""
        return sum(name(text).startswith(("send", "load", "store")) for text in self.instructions)

    @property
    def dpas(self) -> int:
        """The number of instructions of the matrix units. One without a sum to add to is none of the product's."""
        return sum(bool(_DPAS.match(text)) for text in self.instructions)

    @property
    def matrix_share(self) -> float:
        """The fraction of issue slots that the matrix units fill: a dpas takes one for each of its (8) rows."""
        filled = sum(int(match[1]) for match in map(_DPAS.match, self.instructions) if match)
        return filled / max(1, len(self.instructions) - self.dpas + filled)

    def read(self, size: int) -> int:
        """The bytes that messages return, for registers of `size` bytes. The field for 32 registers says 31."""
        found = (_READ.search(text) for text in self.instructions if name(text).startswith(("send", "load")))
        counts = (int(match[1] or match[2]) for match in found if match)
        return size * sum(32 if count == 31 else count for count in counts)

    @property
    def scratch(self) -> int:
        """The number of messages to scratch memory. If there are any, the tile does not fit into the registers."""
        return sum("scratch" in text for text in self.instructions)

    @property
    def share(self) -> float:
        """The fraction of all instructions that multiply and add floats."""
        return self.mads / max(1, len(self.instructions))


@dataclass(frozen=True)
class Listing:
    """A kernel's assembly.

    Attributes:
        instructions: the total number of instructions.
        loop: the loop with the most multiply-adds; None if no loop has any.
        registers: the number of general registers that variables occupy.
        spilled: bytes of scratch memory per hardware thread.
        flags: stores of flag registers to general registers. There are only two or four flag registers; these stores
            do not access memory.
        available: the number of general registers that the thread has.
    """

    instructions: int
    loop: Loop | None
    registers: int
    spilled: int
    flags: int
    available: int


def parse(text: str) -> Listing:
    """Parse the text of an assembly file. Raises ValueError if it is not one."""
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
                   _count(text, "spill flag store"), _count(text, "thread_config numGRF", "="))  # fmt: skip


def _main_loop(instructions: list[str], labels: dict[str, int]) -> Loop | None:
    """The loop with the most multiply-adds or dpas; in a tie, the one with the fewest instructions: the innermost."""
    loops = []
    for at, text in enumerate(instructions):
        if name(text) in _BRANCHES:
            starts = [labels[word] for word in re.findall(r"\w+", text.partition("//")[0]) if word in labels]
            loops += [Loop(tuple(instructions[start : at + 1])) for start in starts if start <= at]
    loops = [loop for loop in loops if loop.mads or loop.dpas]
    return max(loops, key=lambda loop: (loop.mads + loop.dpas, -len(loop.instructions)), default=None)


def _count(text: str, what: str, between: str = " ") -> int:
    match = re.search(rf"^//\.{what}{between}(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else 0
