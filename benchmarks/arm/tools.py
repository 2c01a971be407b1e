"""Run external programs, and report missing programs and failures."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

PACKAGES = "apt-get install clang-19 llvm-19 gcc-aarch64-linux-gnu libc6-dev-arm64-cross"


class Failed(Exception):
    """A program is missing or failed. The text is shown to the user."""


def llvm(name: str) -> str:
    """An LLVM tool: `name`-19, whose scheduling models gave the recorded figures, or else `name`."""
    for candidate in (f"{name}-19", name):
        if shutil.which(candidate):
            return candidate
    raise Failed(f"{name}-19 is not installed: {PACKAGES}")


def run(
    command: Sequence[str | Path], text: str = "", cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """Run `command` with `text` as its standard input. Return (stdout, stderr).

    Raises Failed if the program is not installed or if its exit status is not 0.
    """
    words = [str(word) for word in command]
    if not shutil.which(words[0]):
        raise Failed(f"{words[0]} is not installed: {PACKAGES}")
    done = subprocess.run(words, input=text, capture_output=True, text=True, cwd=cwd,
                          env={**os.environ, **(environment or {})})  # fmt: skip
    if done.returncode:
        raise Failed(f"{' '.join(words[:6])} ... exited with {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout, done.stderr
