"""Products of other libraries behind one interface, in host memory and on devices, for comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gemm.core.problem import Device

from .base import Absent, Peer
from .cblas import Cblas, blis, mkl
from .modules import BlisWheel, NumPy, NumPyBlas, PyTorch
from .resident import ClBlastOn, CuPyOn, DevicePeer, TorchOn

PEERS: dict[str, Callable[[], Peer]] = {
    "numpy": NumPy, "openblas": NumPyBlas, "torch": PyTorch, "mkl": mkl, "blis": blis, "blis-wheel": BlisWheel
}  # fmt: skip
"""In the order of loading: NumPy first, so that the BLAS then loaded is its own; PyTorch before MKL, which must
know of it: see there."""
DEVICE_PEERS: dict[str, tuple[str, Callable[[Device], DevicePeer]]] = {
    "clblast": ("opencl", ClBlastOn), "cupy": ("cuda", CuPyOn), "torch-cuda": ("cuda", TorchOn)
}  # fmt: skip
"""{name: (the backend on whose devices it runs, how to load it)}."""


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


def load_on(names: Iterable[str], devices: Iterable[Device]) -> tuple[list[DevicePeer], dict[str, str]]:
    """The device peers called `names` on those of `devices` that are theirs, and {name: why} of those that are absent.

    A peer is not missed where it has no device.
    """
    found: list[DevicePeer] = []
    absent: dict[str, str] = {}
    wanted = set(names)
    for device in devices:
        for name, (backend, make) in DEVICE_PEERS.items():
            if name not in wanted or backend != device.backend:
                continue
            try:
                found.append(make(device))
            except Exception as error:  # a broken installation of a peer, of whatever kind, is a peer that is not there
                absent[name] = str(error)
    return found, absent


__all__ = ["DEVICE_PEERS", "PEERS", "Absent", "DevicePeer", "NumPy", "Peer", "load", "load_on"]
