"""The contestants of benchmarks/cpu_vs_peers.py: products of this and of other libraries behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from .base import Absent, Peer
from .cblas import Cblas, blis, mkl
from .modules import BlisWheel, NumPy, NumPyBlas, PyTorch

PEERS: dict[str, Callable[[], Peer]] = {
    "numpy": NumPy, "openblas": NumPyBlas, "torch": PyTorch, "mkl": mkl, "blis": blis, "blis-wheel": BlisWheel
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


__all__ = ["PEERS", "Absent", "Peer", "load"]
