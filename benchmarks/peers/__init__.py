"""The peers of benchmarks/cpu_vs_peers.py: other libraries' matrix products behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from .base import Absent, Call, Peer
from .cblas import Cblas, blis, mkl
from .modules import BlisWheel, NumPy, PyTorch

PEERS: dict[str, Callable[[], Peer]] = {
    "numpy": NumPy, "torch": PyTorch, "mkl": mkl, "blis": blis, "blis-wheel": BlisWheel
}  # fmt: skip
"""In the order of loading: NumPy first, so that the BLAS then loaded is its own; PyTorch before MKL, which must
know of it: see there."""


def load(names: Iterable[str], libraries: Mapping[str, str]) -> tuple[list[Peer], dict[str, str]]:
    """The peers called `names` and the BLAS at each path of `libraries`; {name: why} of those that are absent."""
    makers = {name: make for name, make in PEERS.items() if name in set(names) - libraries.keys()}
    found: list[Peer] = []
    absent: dict[str, str] = {}
    for name, make in makers.items():
        try:
            found.append(make())
        except Absent as reason:
            absent[name] = str(reason)
    for name, path in libraries.items():
        try:
            found.append(Cblas(name, path))
        except Absent as reason:
            absent[name] = str(reason)
    return found, absent


__all__ = ["PEERS", "Absent", "Call", "Peer", "load"]
