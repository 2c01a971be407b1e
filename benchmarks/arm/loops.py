"""Find the inner loops of compiled AArch64 code by disassembling it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .tools import llvm, run

_BACK = re.compile(r"^(?:b\.\w+|cbn?z|tbn?z)\b.*?0x([0-9a-f]+)$")
_LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S.*)$")
_LANES = {"16b": 16, "8h": 8, "4s": 4, "2d": 2, "8b": 8, "4h": 4, "2s": 2}
_PRODUCTS = {"sdot": 4, "udot": 4, "usdot": 4, "sudot": 4, "smmla": 8, "ummla": 8, "usmmla": 8, "bfdot": 2, "bfmmla": 4}
"""Multiply-adds for each lane of the destination register."""


def multiply_adds(instruction: str) -> int:
    """The number of multiply-adds of an instruction: 4 for `fmla v0.4s, v1.4s, v2.s[0]`."""
    name, _, operands = instruction.partition(" ")
    if name in ("fmadd", "fmsub", "fnmadd", "fnmsub"):
        return 1
    kind = re.match(r"v\d+\.(\d+\w)\b", operands.strip())
    if not kind or kind[1] not in _LANES:
        return 0
    if name in ("fmla", "fmlal", "fmlal2", "smlal", "smlal2", "mla"):
        return _LANES[kind[1]]
    return _PRODUCTS.get(name, 0) * _LANES[kind[1]]


@dataclass(frozen=True)
class Loop:
    """A loop that contains no other loop: the instructions from a branch's target to the branch."""

    instructions: tuple[str, ...]

    @cached_property
    def work(self) -> int:
        """Multiply-adds in one pass through the loop."""
        return sum(map(multiply_adds, self.instructions))

    @property
    def fmas(self) -> int:
        """The number of instructions that multiply and add."""
        return sum(multiply_adds(text) > 0 for text in self.instructions)

    @property
    def loads(self) -> int:
        """The number of load instructions."""
        return sum(text.startswith("ld") for text in self.instructions)

    @property
    def spills(self) -> int:
        """The number of accesses to the stack, which mean that the register tile does not fit."""
        return sum(bool(re.match(r"(ld|st)\S+ .*\[sp\b", text)) for text in self.instructions)

    @property
    def typical(self) -> str:
        """The first instruction with the same name, such as `fmla`, as the one that does the most multiply-adds."""
        by = sorted(self.instructions, key=multiply_adds)[-1].split(" ", 1)[0]
        return next(text for text in self.instructions if text.split(" ", 1)[0] == by)


def inner_loops(binary: Path) -> list[Loop]:
    """All inner loops of an object file or program."""
    listing, _ = run([llvm("llvm-objdump"), "-d", "--no-show-raw-insn", "--mattr=+all", binary])
    found: list[Loop] = []
    section: list[tuple[int, str]] = []
    for line in [*listing.splitlines(), "Disassembly of section end"]:
        if line.startswith("Disassembly of section"):
            found += _loops(section)
            section = []
        elif match := _LINE.match(line):
            text = re.sub(r"\s*(//.*|<.*>)\s*$", "", match[2])
            section.append((int(match[1], 16), re.sub(r"\s+", " ", text).strip()))
    return found


def _loops(section: list[tuple[int, str]]) -> list[Loop]:
    ranges = set()
    for address, text in section:
        match = _BACK.match(text)
        if match and int(match[1], 16) <= address:
            ranges.add((int(match[1], 16), address))
    inner = [x for x in ranges if not any(y != x and x[0] <= y[0] and y[1] <= x[1] for y in ranges)]
    return [Loop(tuple(text for at, text in section if low <= at <= high)) for low, high in sorted(inner)]


def main_loop(binary: Path) -> Loop | None:
    """The inner loop of a full tile. Return None if no loop multiplies and adds.

    The function chooses the loop with the greatest product of two figures: the multiply-adds in one pass, and the
    fraction of the loop's instructions that multiply and add.
    """
    loops = [loop for loop in inner_loops(binary) if loop.work]
    return max(loops, key=lambda loop: loop.work * loop.fmas / len(loop.instructions), default=None)
