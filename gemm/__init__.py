"""gemm: matrix products on whatever the machine has.

    >>> import numpy as np, gemm
    >>> a, b = np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)
    >>> gemm.gemm(a, b, alpha=0.5)
    array([[2., 2.],
           [2., 2.],
           [2., 2.]], dtype=float32)

Importing starts no thread and looks for no device; see `gemm.gemm` for the call, `python -m gemm info` for the machine.
"""

from gemm import interop, namespace, prepared, version
from gemm.api import GemmPlan, explain, gemm, matmul, plan
from gemm.arrays import Array, array
from gemm.contract import matrix_transpose, tensordot, transpose, vecdot
from gemm.engine import get_num_threads, set_num_threads, start
from gemm.errors import BackendUnavailable
from gemm.inventory import backends, kernels
from gemm.library import get_include, get_library
from gemm.memory import copied, empty
from gemm.pending import batching, gemm_many
from gemm.prepared import Prepared, prepare
from gemm.summation import einsum
from gemm.using import use

__version__ = version.VERSION

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

# What stands above the modules that need it is handed to them here.
Array._namespace = namespace


def _dask() -> object:
    from gemm import dask

    return dask


interop.KINDS += [
    interop.Kind("gemm.prepared", "Prepared", interop.read_any, lambda: prepared, only_b=True),
    interop.Kind("dask.array", "Array", interop.read_any, _dask),
]


def show_config() -> None:
    """Print versions, devices, kernels and caches of this installation, for reports of problems."""
    from gemm.report import config

    print(config())


def __dir__() -> list[str]:
    """The public names; modules that are loaded are none of them."""
    return [*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__", "__spec__", "__version__"]


start()
del start
