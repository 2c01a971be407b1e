"""What a contestant is: a library that multiplies NumPy arrays with a given number of threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

Call = Callable[[], Any]


class Absent(Exception):
    """A peer that cannot take part; the text says why."""


class Peer(ABC):
    """A library under test. Its constructor loads it and raises Absent where that fails.

    Attributes:
        name: as in tables and JSON. about: library, version, file, as far as it tells.
        batches: whether it has a call for stacks of products; a loop in Python would be no peer.
        most_threads: None without a limit.
    """

    name: str
    about: str
    batches = False
    most_threads: int | None = None
    _threads = 0

    def use(self, threads: int) -> None:
        """Multiply with `threads` threads from now on."""
        if threads != self._threads:
            self.set_threads(threads)
            self._threads = threads

    @abstractmethod
    def set_threads(self, count: int) -> None:
        """Tell the library."""

    @abstractmethod
    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Call:
        """out = a @ b with all that can be done beforehand done; the arrays must outlive the call.

        a, b, out: C-contiguous (m, k), (k, n), (m, n), or (batch, ...) each, of one dtype, float32 or float64.
        """

    def empty(self, dtype: str) -> Call | None:
        """The call for a product of no elements, so what calling costs; None where Python's call IS the library's."""
        return None
