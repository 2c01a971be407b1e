"""The contestants of a benchmark: this package's backends, NumPy and other libraries ("peers")."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gemm import execute
from gemm.backends import registry
from gemm.bench.contest import Contestant, timed
from gemm.bench.peers import Absent, Peer, Unable
from gemm.bench.peers.devices import DevicePeer, load_on
from gemm.bench.peers.host import load, set_numpy_threads
from gemm.bench.products import FLOAT32, Arithmetic, Shape
from gemm.core.numpy_original import matmul
from gemm.core.problem import Device, DeviceView
from gemm.core.threads import granted
from gemm.frontend import api
from gemm.frontend.arguments import Given, Options, normalise
from gemm.frontend.inventory import on_this_cpu

PEERS = ("torch", "mkl", "blis", "blis-wheel", "clblast", "cupy", "torch-cuda")
"""The peers except NumPy, which is a backend."""


class Entry(NamedTuple):
    """A contestant that is a device of one of this package's backends.

    Attributes:
        kernel: the name of the kernel to use. None: dispatch chooses the kernel.
    """

    device: Device
    kernel: str | None = None
    arithmetic: Arithmetic = FLOAT32


def enter(entry: Entry, shape: Shape, a: np.ndarray, b: np.ndarray) -> Contestant:
    """Make the Contestant of `entry` for the product a·b, and call it once.

    Raises Unable, BackendUnavailable, MemoryError or KernelFailed.
    """
    device, kernel, how = entry
    backend = registry.backend(device.backend)
    out = shape.result(how.dtype)
    if backend.name == "numpy":
        return _called(Contestant(device, "np.matmul", partial(_matmul, *shape.untransposed(a, b), out), out))
    trans_a, trans_b = (letter == "T" for letter in shape.trans)
    options: dict[str, Any] = {"trans_a": trans_a, "trans_b": trans_b, "dtype": how.dtype if how.inputs else None,
               "precision": how.precision, "reproducible": how.reproducible}  # fmt: skip
    problem = normalise(Given(a, b, out=out), Options(**options)).problem
    try:
        plan = execute.choose(problem, device.key, kernel)
    except (TypeError, ValueError) as error:  # the device has no kernel for these types, or none is reproducible
        raise Unable(str(error)) from None
    call = partial(api.gemm, a, b, out=out, backend=device.key, kernel=kernel, **options)
    entered = _called(Contestant(device, plan.kernel.name, call, out))
    try:
        result = backend.to_device(out, device)
    except TypeError:  # this backend computes in host memory, so `resident` would equal `host`
        return entered
    inputs = plan.kernel.inputs
    launch = backend.launcher(plan.kernel, device, replace(problem, device=device.key, inputs=inputs))

    def send() -> Iterable[DeviceView]:
        narrow = (a, b) if inputs else (x.astype(out.dtype, copy=False) for x in (a, b))
        views = (backend.to_device(array, device) for array in narrow)
        return [view.mT if flip else view for view, flip in zip(views, (trans_a, trans_b), strict=True)]

    def multiply(left: DeviceView, right: DeviceView) -> None:
        launch(left, right, None, result, 1, 0)

    entered.fetch = partial(backend.to_host, result)
    finish = partial(backend.synchronize, device)
    entered.launch, entered.offload = _resident(send, multiply, finish, entered.fetch)
    return entered


def _matmul(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    """NumPy's product. Narrow operands are converted first, as NumPy's users have to do."""
    matmul(x.astype(out.dtype, copy=False), y.astype(out.dtype, copy=False), out=out)


def enter_peer(peer: Peer, how: Arithmetic, shape: Shape, a: np.ndarray, b: np.ndarray) -> Contestant:
    """Make the Contestant of a peer in host memory, and call it once. Raises Unable, and any exception of the peer."""
    if shape.batch > 1 and not peer.batches:
        raise Unable("stacks of products")
    out = shape.result(how.dtype)
    call = partial(peer.prepare(a, b, out), 1)
    return _called(Contestant(Device(peer.name, "cpu:0", peer.about), peer.name, call, out))


def enter_device_peer(
    peer: DevicePeer, how: Arithmetic, shape: Shape, a: np.ndarray, b: np.ndarray
) -> Contestant:  # fmt: skip
    """Make the Contestant of a peer on a device, and call it once. Raises Unable, and any exception of the peer."""
    if how.dtype not in peer.dtypes or set(how.types) != {how.dtype}:
        raise Unable(f"no function for {replace(how, precision='highest', reproducible=False)}")
    out = shape.result(how.dtype)
    result = peer.send(out)
    launch, offload = _resident(lambda: map(peer.send, (a, b)), lambda x, y: peer.multiply(x, y, result), peer.finish,
                                lambda: peer.fetch(result, out))  # fmt: skip
    device = Device(peer.name, peer.device.key, peer.about, kind=peer.device.kind)
    return _called(Contestant(device, peer.name, partial(offload, 1), out, launch, offload))


def _called(entered: Contestant) -> Contestant:
    """Call the contestant once, store the seconds of the call in `cold`, and return the contestant."""
    entered.cold = timed(entered.call)
    return entered


def _resident(
    send: Callable[[], Iterable[Any]], multiply: Callable[[Any, Any], object], finish: Callable[[], object],
    fetch: Callable[[], object],
) -> tuple[Callable[[], None], Callable[[int], None]]:  # fmt: skip
    """Return (launch, offload) for a Contestant on a device with its own memory.

    Args:
        send: copies the host operands to the device and returns both copies.
        multiply: enqueues the product of two such copies.
        finish: waits until the device has finished.
        fetch: waits as well, and copies the result to the host.
    """
    left, right = send()

    def launch() -> None:
        multiply(left, right)
        finish()

    def offload(times: int) -> None:
        x, y = send()
        for _ in range(times):
            multiply(x, y)
        fetch()

    return launch, offload


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
        absent: {peer, or contestant whose backend does not work here: why it is missing}.
        unable: {contestant: why it did not multiply a product}.
    """

    enter: dict[str, Enter]
    about: dict[str, str]
    absent: dict[str, str]
    unable: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, devices: Iterable[Device], names: Iterable[str], how: Arithmetic = FLOAT32) -> Field:
        """A contestant for each device, NumPy's included, and each peer in `names`, with equal numbers of threads."""
        names, devices = set(names), list(devices)
        with suppress(Absent):  # without threadpoolctl, NumPy's number of threads cannot be set
            set_numpy_threads(granted())
        peers, absent = load(names)
        device_peers, more = load_on(names, devices)
        whole = cls({}, {}, absent | more)
        for device in devices:
            stand_in = device.backend == "opencl" and device.kind == "cpu"
            about = f"{'an OpenCL device on the CPU, no GPU: ' if stand_in else ''}{named(device)}"
            whole.add(device.key, partial(enter, Entry(device, None, how)), about)
        for peer in peers:
            peer.set_threads(granted())
            whole.add(peer.name, partial(enter_peer, peer, how), peer.about)
        for other in device_peers:
            whole.add(f"{other.name} on {other.device.key}", partial(enter_device_peer, other, how), other.about)
        return whole

    def missing(self, rows: Iterable[dict[str, Any]]) -> dict[str, str]:
        """{peer or contestant without results: why}."""
        measured = {row["contestant"] for row in rows}
        return self.absent | {name: why for name, why in self.unable.items() if name not in measured}

    def add(self, name: str, enter: Enter, about: str) -> None:
        """Add a contestant."""
        self.enter[name], self.about[name] = enter, about


def named(device: Device) -> str:
    """The device's name, platform and driver, and whether the device is the CPU that the cpu backend uses."""
    same = "this computer's CPU" if on_this_cpu(device.backend, device.kind) else ""
    origin = ", ".join(part for part in (same, device.platform, device.driver) if part)
    return f"{device.name}{f' ({origin})' if origin else ''}"
