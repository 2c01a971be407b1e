"""gemm: matrix products on the CPU and on GPUs, behind one call.

    >>> import numpy as np, gemm
    >>> a, b = np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)
    >>> gemm.gemm(a, b, alpha=0.5)
    array([[2., 2.],
           [2., 2.],
           [2., 2.]], dtype=float32)

Importing the package starts no thread and searches for no device. `python -m gemm info` describes the machine.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from gemm.core import VERSION
from gemm.core.engine import get_num_threads, set_num_threads, start
from gemm.core.errors import BackendUnavailable
from gemm.extras import prepack
from gemm.extras.batching import batching, gemm_many
from gemm.extras.prepack import Prepared, prepare
from gemm.extras.zero_copy import copied, empty
from gemm.frontend import interop
from gemm.frontend.api import GemmPlan, explain, gemm, matmul, plan
from gemm.frontend.inventory import backends, get_include, get_library, kernels, show_config
from gemm.numpy_api import namespace
from gemm.numpy_api.array import Array, array
from gemm.numpy_api.einsum import einsum
from gemm.numpy_api.override import use
from gemm.numpy_api.tensordot import matrix_transpose, tensordot, transpose, vecdot

__version__ = VERSION

__all__ = [
    "Array",
    "BackendUnavailable",
    "GemmPlan",
    "Prepared",
    "array",
    "backends",
    "batching",
    "copied",
    "einsum",
    "empty",
    "explain",
    "gemm",
    "gemm_many",
    "get_include",
    "get_library",
    "get_num_threads",
    "kernels",
    "matmul",
    "matrix_transpose",
    "plan",
    "prepare",
    "set_num_threads",
    "show_config",
    "tensordot",
    "transpose",
    "use",
    "vecdot",
]

# The modules are arranged in layers, and a module may not import a module of a higher layer. This file may import all
# modules. It therefore gives Array and interop what they need from the higher layers (namespace, prepack, dask).
Array._namespace = namespace


def _dask() -> object:
    from gemm import dask

    return dask


interop.KINDS += [
    interop.Kind("gemm.extras.prepack", "Prepared", interop.read_any, lambda: prepack, only_b=True),
    interop.Kind("dask.array", "Array", interop.read_any, _dask),
]


if not TYPE_CHECKING:  # type checkers know the modules themselves

    class _Later(ModuleType):
        """A placeholder for a module that takes long to load.

        The first use of an attribute imports the module, and the import replaces the placeholder. A function
        `__getattr__` in gemm/__init__.py would also do, but it would slow down each lookup of `gemm.gemm`, by a tenth
        of the time of a small product.
        """

        def __getattr__(self, name: str) -> object:
            # inspect and doctest look up __wrapped__ in all modules; such a lookup must not import the module.
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(importlib.import_module(self.__name__), name)

    compare, dask = _Later("gemm.compare"), _Later("gemm.dask")


def __dir__() -> list[str]:
    """The public names. Submodules that happen to be loaded are not listed."""
    return [*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__", "__spec__", "__version__"]


start()
del start
