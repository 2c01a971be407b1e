"""Run each library in a process of its own, as users do. A process sleeps except while it is sampled.

Such a process is a worker. It holds the peers of one library, and its own copy of the operands. A worker answers when
its threads have stopped spinning, so that the next worker finds all cores idle.
"""

from __future__ import annotations

import atexit
import multiprocessing
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from tempfile import mkdtemp
from typing import Any

import numpy as np

from gemm.bench.contest import settle
from gemm.bench.peers import Absent, Peer, Unable, cblas, made

from . import duel
from .shapes import Shape, operands

Makers = Mapping[str, Callable[[], Peer]]
Product = tuple[Shape, str]
"""The sizes and the layout, and the name of the types in shapes.DTYPES."""
_FACTS = ("about", "compiled", "batches", "most_threads")


@dataclass
class Library:
    """A peer in a worker, with the attributes of gemm.bench.peers.Peer."""

    worker: Worker
    name: str
    about: str
    compiled: bool
    batches: bool
    most_threads: int | None

    def enter(self, product: Product, threads: int, key: str, before: str = "") -> Entry:
        """Make the peer a contestant, as duel.enter does. Raises Unable if the peer cannot multiply `product`.

        before: the name of a peer of the same worker, which multiplies before each product of this peer.
        """
        first = self.worker.ask("enter", key, self.name, product, threads, before)
        return Entry(key, self, None, None, threads, first)  # type: ignore[arg-type]


class Entry(duel.Entry):
    """A contestant in a worker."""

    peer: Library  # type: ignore[assignment]

    def calibrate(self, sample: float) -> int:
        return int(self.peer.worker.ask("calibrate", self.key, sample))

    def take(self) -> tuple[float, float, float]:
        seconds, cores, settling = self.peer.worker.ask("take", self.key, self.repeats)
        return seconds, cores, settling

    def part(self, stack: slice, rows: np.ndarray) -> np.ndarray:
        part: np.ndarray = self.peer.worker.ask("part", self.key, stack, rows)
        return part


class Worker:
    """A process with the peers that `makers` make. It ends with this process."""

    def __init__(self, makers: Makers) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, dict(makers), _native()), daemon=True)
        self._process.start()
        other.close()

    def ask(self, what: str, *arguments: Any) -> Any:
        """Call the method `what` of the worker's _Host and return its result.

        Raises Unable if the method fails or the process has ended.
        """
        try:
            self._pipe.send((what, arguments))
            found = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(1)
            raise Unable(f"its process ended with the exit code {self._process.exitcode}") from None
        if isinstance(found, Exception):
            raise found
        return found


def load(groups: Sequence[Makers]) -> tuple[dict[str, Library], dict[str, str]]:
    """The peers of each group, each group in a new worker; and {name of a missing peer: why it is missing}."""
    found: dict[str, Library] = {}
    absent: dict[str, str] = {}
    for group, worker in [(group, Worker(group)) for group in groups]:  # all processes start at the same time
        try:
            facts, missing = worker.ask("facts")
        except Unable as error:
            facts, missing = {}, dict.fromkeys(group, str(error))
        found |= {name: Library(worker, name, *each) for name, each in facts.items()}
        absent |= missing
    return found, absent


@cache
def _native() -> str:
    """The path of the module that all workers load, or "" if it cannot be compiled."""
    folder = mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with suppress(Absent):
        cblas.BUILT = cblas.build(folder)
    return cblas.BUILT


def _serve(pipe: Connection, makers: Makers, native: str) -> None:
    """The work of a worker: answer calls of the methods of _Host until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after Ctrl-C, the parent process ends this one
    cblas.BUILT = native
    host = _Host(makers)
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            return
        try:
            found = getattr(host, what)(*arguments)
        except (Absent, Unable, TypeError, ValueError, RuntimeError, ImportError) as error:
            found = Unable(str(error).partition("\n")[0])
        pipe.send(found)


class _Host:
    """The peers and entries of a worker. Worker.ask calls the methods."""

    def __init__(self, makers: Makers) -> None:
        peers, self._absent = made(makers.items())
        self._peers = dict(zip((name for name in makers if name not in self._absent), peers, strict=True))
        self._product: Product | None = None
        self._entries: dict[str, duel.Entry] = {}
        self._spare: dict[str, np.ndarray] = {}

    def facts(self) -> tuple[dict[str, list[Any]], dict[str, str]]:
        return {name: [getattr(peer, fact) for fact in _FACTS] for name, peer in self._peers.items()}, self._absent

    def enter(self, key: str, name: str, product: Product, threads: int, before: str) -> float:
        if product != self._product:
            self._entries.clear()
            self._operands, self._product = operands(*product), product
        entry = duel.enter(self._peers[name], *self._operands, threads, key)
        if before:
            self._peers[before].set_threads(threads)
            self._spare[key] = self._operands[2].copy()  # must outlive the loop
            entry.before = self._peers[before].prepare(*self._operands[:2], self._spare[key])
            entry.before(1)
            settle()
        self._entries[key] = entry
        return entry.first

    def calibrate(self, key: str, sample: float) -> int:
        return self._entries[key].calibrate(sample)

    def take(self, key: str, repeats: int) -> tuple[float, float, float]:
        self._entries[key].repeats = repeats
        return self._entries[key].take()

    def part(self, key: str, stack: slice, rows: np.ndarray) -> np.ndarray:
        return self._entries[key].part(stack, rows)
