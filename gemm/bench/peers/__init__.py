"""Matrix products of other libraries behind one interface, in host memory and on devices, for comparisons."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

Loop = Callable[[int], None]
"""loop(n) multiplies n times."""
T = TypeVar("T")


class Absent(Exception):
    """The peer is not available. The text says why."""


class Unable(Exception):
    """The peer has no function for these operands."""


class Peer(ABC):
    """A library to compare with: it multiplies NumPy arrays with a given number of threads.

    The constructor loads the library and raises Absent if that fails.

    Attributes:
        name: its name in tables and JSON.
        about: library, version and file, as far as the library provides them.
        compiled: whether the timed loop is compiled code instead of Python.
        batches: whether the library has a function for stacks of products. A Python loop over its function for one
            product does not count.
        most_threads: the largest number of threads; None without a limit.
        awake: whether the peer has multiplied before. Libraries load code in the first call, which must not be timed.
    """

    name: str
    about: str
    compiled = False
    batches = False
    most_threads: int | None = None
    awake = False

    @abstractmethod
    def set_threads(self, count: int) -> None:
        """Use `count` threads from now on."""

    @abstractmethod
    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        """A loop that computes out = a @ b, with all preparation done. The arrays must outlive the loop.

        Args:
            a, b, out: (m, k), (k, n) and (m, n); or (batch, m, k), (batch, k, n) and (batch, m, n), where b may be one
                (k, n) for all products. One of the last two axes of a and of b, and the last axis of out, have a stride
                of one element.

        Raises:
            Unable: there is no such function. TypeError, ValueError or RuntimeError, here or from the first call of
                the loop, mean the same.
        """


def looped(call: Callable[[], Any]) -> Loop:
    """A loop over `call`, in Python."""

    def loop(times: int) -> None:
        for _ in range(times):
            call()

    return loop


def unloadable(path: str, error: Exception) -> Absent:
    """The exception for a library that does not load. The loader's message often begins with the path already."""
    return Absent(f"{path}: {str(error).removeprefix(f'{path}: ')}")


def module(name: str) -> Any:
    """Import the module `name`. Raises Absent."""
    try:
        return import_module(name)
    except Exception as error:  # a broken installation, of any kind, counts as a missing peer
        raise Absent(f"import {name}: {error}") from error


def made(makers: Iterable[tuple[str, Callable[[], T]]]) -> tuple[list[T], dict[str, str]]:
    """Call the functions of `makers`, pairs (name, function). Returns the peers, and {name: why it is missing}."""
    found, absent = [], {}
    for name, make in makers:
        try:
            found.append(make())
        except Exception as error:  # a broken installation, of any kind, counts as a missing peer
            absent[name] = str(error)
    return found, absent
