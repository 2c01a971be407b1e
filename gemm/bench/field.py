"""The contestants of a comparison: this package's backends, NumPy and other libraries ("peers")."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from gemm.bench import contest
from gemm.bench.contest import Contestant, Shape, timed
from gemm.bench.peers import Absent, DevicePeer, NumPy, Peer, load, load_on
from gemm.bench.peers.base import Unable
from gemm.core.backend import Backend
from gemm.core.problem import Device
from gemm.core.threads import granted

PEERS = ("torch", "mkl", "blis", "blis-wheel", "clblast", "cupy", "torch-cuda")
"""The peers except NumPy, which is a backend."""
Enter = Callable[[Shape, np.ndarray, np.ndarray], Contestant]
"""enter(shape, a, b) returns a contestant after its first call.

Raises Unable if the contestant has no call for this shape, BackendUnavailable if it does not work on this machine,
KernelFailed, MemoryError, and any exception of a peer.
"""


@dataclass
class Field:
    """The contestants of a comparison.

    Attributes:
        enter: {contestant: function that makes it}.
        about: {contestant: its description}.
        absent: {peer: why it is missing}.
    """

    enter: dict[str, Enter]
    about: dict[str, str]
    absent: dict[str, str]

    @classmethod
    def of(cls, devices: Iterable[tuple[Backend, Device]], names: Iterable[str]) -> Field:
        """The contestants on these devices, NumPy included, and the peers in `names`, with equal numbers of threads."""
        names, devices = set(names), list(devices)
        with suppress(Absent):  # without threadpoolctl, NumPy's number of threads cannot be set
            NumPy().set_threads(granted())
        peers, absent = load(names, {})
        others, more = load_on(names, [device for _, device in devices])
        enter: dict[str, Enter] = {}
        about = {}
        for backend, device in devices:
            entry = contest.Entry(backend, device)
            enter[device.key], about[device.key] = partial(contest.enter, entry), _described(device)
        for peer in peers:
            peer.set_threads(granted())
            enter[peer.name], about[peer.name] = partial(_host, peer), peer.about
        for other in others:
            name = f"{other.name} on {other.device.key}"
            enter[name], about[name] = partial(_resident, other), other.about
        return cls(enter, about, absent | more)


def _described(device: Device) -> str:
    origin = ", ".join(part for part in (device.platform, device.driver) if part)
    kind = "an OpenCL device on the CPU, no GPU: " if device.backend == "opencl" and device.kind == "cpu" else ""
    return f"{kind}{device.name}{f' ({origin})' if origin else ''}"


def _empty(shape: Shape, a: np.ndarray) -> np.ndarray:
    """A result array full of NaN, which marks elements that a product did not write."""
    return np.full((*a.shape[:-2], shape.m, shape.n), np.nan, a.dtype)


def _host(peer: Peer, shape: Shape, a: np.ndarray, b: np.ndarray) -> Contestant:
    if shape.batch > 1 and not peer.batches:
        raise Unable("stacks of products")
    out = _empty(shape, a)
    call = partial(peer.prepare(a, b, out), 1)
    entered = Contestant(Device(peer.name, "cpu:0", peer.about), peer.name, call, out)
    entered.cold = timed(call)
    return entered


def _resident(peer: DevicePeer, shape: Shape, a: np.ndarray, b: np.ndarray) -> Contestant:
    out = _empty(shape, a)
    x, y, z = (peer.send(array) for array in (a, b, out))

    def launch() -> None:
        peer.multiply(x, y, z)
        peer.finish()

    def offload(times: int) -> None:
        left, right = peer.send(a), peer.send(b)
        for _ in range(times):
            peer.multiply(left, right, z)
        peer.fetch(z, out)

    device = Device(peer.name, peer.device.key, peer.about, kind=peer.device.kind)
    entered = Contestant(device, peer.name, partial(offload, 1), out, launch, offload)
    entered.cold = timed(entered.call)
    return entered
