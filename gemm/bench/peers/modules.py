"""Peers that are Python modules: NumPy, PyTorch, PyPI's blis package; and NumPy's BLAS, called without NumPy."""

from __future__ import annotations

from functools import cache, partial
from importlib import import_module, metadata
from typing import Any

import numpy as np

from gemm.core.numpy_original import matmul

from .base import Absent, Loop, Peer, Unable, looped
from .cblas import Cblas


def module(name: str) -> Any:
    """Import the module `name`. Raises Absent."""
    try:
        return import_module(name)
    except Exception as error:  # a broken installation, of any kind, counts as a missing peer
        raise Absent(f"import {name}: {error}") from error


@cache
def _numpy_blas() -> list[Any]:
    """threadpoolctl's controllers of NumPy's BLAS. Must be called before another peer loads a BLAS."""
    found = module("threadpoolctl").ThreadpoolController().lib_controllers
    blas = [library for library in found if library.user_api == "blas" and library.internal_api != "gemm"]
    if not blas:
        raise Absent("threadpoolctl finds no BLAS in this NumPy, so its threads cannot be set")
    return blas


class NumPy(Peer):
    """np.matmul with out=, on the BLAS that NumPy was built with."""

    name = "numpy"
    batches = True

    def __init__(self) -> None:
        infos = [library.info() for library in _numpy_blas()]
        named = ", ".join(f"{info['internal_api']} {info['version']} {info.get('architecture', '')}" for info in infos)
        self.about = f"NumPy {np.__version__} with {named}".rstrip() + ", np.matmul(a, b, out=out)"

    def set_threads(self, count: int) -> None:
        for library in _numpy_blas():
            library.set_num_threads(count)

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        mixed = {} if a.dtype == b.dtype == out.dtype else {"dtype": out.dtype}
        return looped(partial(matmul, a, b, out=out, **mixed))


class NumPyPlain(NumPy):
    """np.matmul without out=, the most common call."""

    name = "numpy, new"

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Loop:
        matmul(a, b, out=out)
        return looped(partial(matmul, a, b))


class NumPyBlas(Cblas):
    """The OpenBLAS in NumPy's wheels, by its symbols there. Only this prefix and suffix of symbols are supported."""

    def __init__(self) -> None:
        (library, *_) = _numpy_blas()
        super().__init__("openblas", library.filepath, "scipy_cblas_{}64_", wide=True)
        self.about = f"{library.internal_api} {library.version} {library.info().get('architecture', '')}, NumPy's own"
        self.most_threads = None

    def set_threads(self, count: int) -> None:
        for library in _numpy_blas():
            library.set_num_threads(count)


class PyTorch(Peer):
    """torch.mm(out=) and torch.bmm(out=) on tensors that share the arrays' memory, without autograd.

    If one b belongs to all products, torch.matmul computes them as a single product. int8 uses torch._int_mm.
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
