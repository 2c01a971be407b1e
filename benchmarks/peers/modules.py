"""Peers that are Python modules: NumPy, PyTorch, and the blis package of PyPI."""

from __future__ import annotations

from functools import partial
from importlib import import_module, metadata
from typing import Any

import numpy as np

from .base import Absent, Call, Peer


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except Exception as error:  # a broken installation of a peer, of whatever kind, is a peer that is not there
        raise Absent(f"import {name}: {error}") from error


class NumPy(Peer):
    """np.matmul(out=), on the BLAS that NumPy was built with."""

    name = "numpy"
    batches = True

    def __init__(self) -> None:
        found = _module("threadpoolctl").ThreadpoolController().lib_controllers
        # Made first, before another peer loads a BLAS of its own: what is there now is NumPy's.
        self._blas = [library for library in found if library.user_api == "blas"]
        if not self._blas:
            raise Absent("threadpoolctl finds no BLAS in this NumPy, so its threads cannot be set")
        infos = [library.info() for library in self._blas]
        named = ", ".join(f"{info['internal_api']} {info['version']} {info.get('architecture', '')}" for info in infos)
        self.about = f"NumPy {np.__version__} with {named}".rstrip()

    def set_threads(self, count: int) -> None:
        for library in self._blas:
            library.set_num_threads(count)

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Call:
        return partial(np.matmul, a, b, out=out)


class PyTorch(Peer):
    """torch.mm(out=) and torch.bmm(out=) on tensors that share the arrays' memory, without autograd."""

    name = "torch"
    batches = True

    def __init__(self) -> None:
        self._torch = _module("torch")
        self._torch.set_grad_enabled(False)
        self.about = f"PyTorch {self._torch.__version__}"

    def set_threads(self, count: int) -> None:
        self._torch.set_num_threads(count)

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Call:
        x, y, z = map(self._torch.from_numpy, (a, b, out))
        return partial(self._torch.bmm if a.ndim == 3 else self._torch.mm, x, y, out=z)


class BlisWheel(Peer):
    """blis.py.gemm of PyPI's blis, which runs on one thread."""

    name = "blis-wheel"
    most_threads = 1

    def __init__(self) -> None:
        self._gemm = _module("blis.py").gemm
        self.about = f"blis {metadata.version('blis')} (PyPI)"

    def set_threads(self, count: int) -> None:
        pass

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Call:
        return partial(self._gemm, a, b, out=out, beta=0.0)
