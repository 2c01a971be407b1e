"""The peers of benchmarks/cpu_vs_peers.py: those of gemm.bench.peers, NumPy called in three ways, and any BLAS."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

import numpy as np

from gemm.bench.peers import Loop, Peer, host, looped
from gemm.bench.peers.cblas import Cblas
from gemm.bench.peers.host import numpy_blas, set_numpy_threads
from gemm.core.numpy_original import matmul

from .ours import rotation


class NumPy(Peer):
    """np.matmul with out=, on the BLAS that NumPy was built with."""

    name = "numpy"
    batches = True

    def __init__(self) -> None:
        infos = [library.info() for library in numpy_blas()]
        named = ", ".join(f"{info['internal_api']} {info['version']} {info.get('architecture', '')}" for info in infos)
        self.about = f"NumPy {np.__version__} with {named}".rstrip() + ", np.matmul(a, b, out=out)"

    def set_threads(self, count: int) -> None:
        set_numpy_threads(count)

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        mixed = {} if a.dtype == b.dtype == out.dtype else {"dtype": out.dtype}
        return looped(partial(matmul, a, b, out=out, **mixed))


class NumPyNew(NumPy):
    """np.matmul without out=, the most common call."""

    name = "numpy, new"

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        matmul(a, b, out=out)
        return looped(partial(matmul, a, b))


class NumPyBlas(Cblas):
    """The OpenBLAS in NumPy's wheels. Its functions must have the names that NumPy's wheels give them today."""

    def __init__(self) -> None:
        (library, *_) = numpy_blas()
        super().__init__("openblas", library.filepath, "scipy_cblas_{}64_", wide=True)
        self.about = f"{library.internal_api} {library.version} {library.info().get('architecture', '')}, NumPy's own"
        self.most_threads = None

    def set_threads(self, count: int) -> None:
        set_numpy_threads(count)


class NumPyRotation(NumPy):
    """np.matmul with a new shape each call."""

    name = "numpy, rotation"

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        return rotation(matmul, a, b, out)


PEERS: dict[str, Callable[[], Peer]] = {"numpy": NumPy, "openblas": NumPyBlas, **host.PEERS}
"""The peers in the order in which they are loaded. NumPy comes first: the only BLAS loaded by then is its own."""
MORE: dict[str, Callable[[], Peer]] = {"numpy, new": NumPyNew, "numpy, rotation": NumPyRotation}
"""Peers that only the families "call" and "rotation" use. They are loaded together with "numpy"."""


def makers(names: Collection[str], libraries: Mapping[str, str]) -> dict[str, Callable[[], Peer]]:
    """Functions that load the peers in `names`, and the BLAS at each path of `libraries`."""
    chosen = {name: make for name, make in PEERS.items() if name in names}
    return chosen | {name: partial(Cblas, name, path) for name, path in libraries.items()}
