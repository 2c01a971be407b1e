"""What a contestant is: a library that multiplies NumPy arrays with a given number of threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

Loop = Callable[[int], None]
"""Multiplies so many times."""


class Absent(Exception):
    """A peer that cannot take part; the text says why."""


class Unable(Exception):
    """A peer that has no call for these operands."""


class Peer(ABC):
    """A library under test. Its constructor loads it and raises Absent where that fails.

    Attributes:
        name: as in tables and JSON. about: library, version, file, as far as it tells.
        compiled: called from a compiled loop; else from a loop in Python.
        batches: whether it has a call for stacks of products; a loop of ours would be no peer.
        most_threads: None without a limit.
        awake: has multiplied before; what it loads at its first call would count as the product's time.
    """

    name: str
    about: str
    compiled = False
    batches = False
    most_threads: int | None = None
    awake = False

    @abstractmethod
    def set_threads(self, count: int) -> None:
        """Multiply with `count` threads from now on."""

    @abstractmethod
    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        """out = a @ b with all that can be done beforehand done; the arrays must outlive the loop.

        a, b, out: (m, k), (k, n), (m, n); or (batch, m, k), (batch, k, n) or (k, n) for all, (batch, m, n). Adjacent
        columns. Raises Unable where there is no such call; TypeError, ValueError or RuntimeError, here or by the first
        call, mean the same.
        """


def looped(call: Callable[[], Any]) -> Loop:
    """A loop in Python."""

    def loop(times: int) -> None:
        for _ in range(times):
            call()

    return loop
