"""Matrix products of other libraries behind one interface, in host memory and on devices, for comparisons."""

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
"""The peers in the order in which they are loaded. NumPy comes first, so the only BLAS loaded by then is NumPy's own.
PyTorch comes before MKL, because `mkl` chooses its threading layer for PyTorch."""
DEVICE_PEERS: dict[str, tuple[str, Callable[[Device], DevicePeer]]] = {
    "clblast": ("opencl", ClBlastOn), "cupy": ("cuda", CuPyOn), "torch-cuda": ("cuda", TorchOn)
}  # fmt: skip
"""{name: (backend whose devices the peer runs on, function that loads the peer)}."""


def load(names: Iterable[str], libraries: Mapping[str, str]) -> tuple[list[Peer], dict[str, str]]:
    """Load the peers in `names`, and the BLAS at each path of `libraries`. Returns also {name: why it is missing}."""
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
    """Load the device peers in `names` for those of `devices` that they support, and say why others are missing.

    Returns:
        The loaded peers, and {name: why it is missing}.

    A peer that supports none of the devices is not reported as missing.
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
            except Exception as error:  # a broken installation, of any kind, counts as a missing peer
                absent[name] = str(error)
    return found, absent


__all__ = ["DEVICE_PEERS", "PEERS", "Absent", "DevicePeer", "NumPy", "Peer", "load", "load_on"]
