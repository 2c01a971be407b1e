"""Peers in host memory: PyTorch, PyPI's blis package, MKL and BLIS; and NumPy's threads."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache, partial
from importlib import metadata
from typing import Any

import numpy as np

from gemm.bench.peers import Absent, Loop, Peer, Unable, looped, made, module
from gemm.bench.peers.cblas import blis, mkl


@cache
def numpy_blas() -> list[Any]:
    """threadpoolctl's controllers of NumPy's BLAS. The first call must come before another peer loads a BLAS.

    Raises Absent if threadpoolctl is missing or finds no BLAS.
    """
    found = module("threadpoolctl").ThreadpoolController().lib_controllers
    blas = [library for library in found if library.user_api == "blas" and library.internal_api != "gemm"]
    if not blas:
        raise Absent("threadpoolctl finds no BLAS in this NumPy, so its threads cannot be set")
    return blas


def set_numpy_threads(count: int) -> None:
    """Set the number of threads of NumPy's BLAS. Raises Absent if threadpoolctl is missing or finds no BLAS."""
    for library in numpy_blas():
        library.set_num_threads(count)


class PyTorch(Peer):
    """PyTorch, which multiplies by torch.mm or torch.bmm, with out= and without autograd.

    The tensors share the memory of the caller's arrays. If all products of a stack share one b, torch.matmul computes
    them as a single product. For int8, the function is torch._int_mm.
    """

    name = "torch"
    batches = True

    def __init__(self) -> None:
        self._torch = module("torch")
        self._torch.set_grad_enabled(False)
        self.about = f"PyTorch {self._torch.__version__}"

    def set_threads(self, count: int) -> None:
        self._torch.set_num_threads(count)

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        torch = self._torch
        if a.dtype != b.dtype or (a.dtype != out.dtype and (a.dtype.name, out.dtype.name) != ("int8", "int32")):
            raise Unable("no such function")
        multiply = torch._int_mm if a.dtype != out.dtype else torch.mm
        if a.ndim == 3:
            multiply = torch.bmm if b.ndim == 3 else torch.matmul
        x, y, z = map(self._tensor, (a, b, out))
        return looped(partial(multiply, x, y, out=z))

    def _tensor(self, array: np.ndarray) -> Any:
        if array.dtype.name == "bfloat16":  # ml_dtypes adds this type to NumPy; torch.from_numpy does not accept it
            return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(array)


class BlisWheel(Peer):
    """blis.py.gemm of PyPI's blis package, which uses one thread."""

    name = "blis-wheel"
    most_threads = 1

    def __init__(self) -> None:
        self._gemm = module("blis.py").gemm
        self.about = f"blis {metadata.version('blis')} (PyPI)"

    def set_threads(self, count: int) -> None:
        pass

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        if a.dtype not in (np.float32, np.float64):
            raise Unable("no such function")
        return looped(partial(self._gemm, a, b, out=out, beta=0.0))


PEERS: dict[str, Callable[[], Peer]] = {"torch": PyTorch, "mkl": mkl, "blis": blis, "blis-wheel": BlisWheel}
"""The peers in the order in which they are loaded. MKL's threading layer depends on whether PyTorch is loaded."""


def load(names: Collection[str]) -> tuple[list[Peer], dict[str, str]]:
    """Load the peers in `names`. Returns (loaded peers, {name of a missing peer: why it is missing})."""
    return made((name, make) for name, make in PEERS.items() if name in names)
