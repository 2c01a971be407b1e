"""gemm: matrix products on whatever the machine has.

    >>> import numpy as np, gemm
    >>> a, b = np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)
    >>> gemm.gemm(a, b, alpha=0.5)
    array([[2., 2.],
           [2., 2.],
           [2., 2.]], dtype=float32)

Importing starts no thread and looks for no device; see `gemm.gemm` for the call, `python -m gemm info` for the machine.
"""

__version__ = "0.1.0"

from gemm.api import GemmPlan, backends, explain, gemm, kernels, matmul, plan, show_config
from gemm.arrays import Array, array
from gemm.contract import matrix_transpose, tensordot, transpose, vecdot
from gemm.engine import get_num_threads, set_num_threads, start
from gemm.errors import BackendUnavailable
from gemm.library import get_include, get_library
from gemm.memory import copied, empty
from gemm.pending import batching, gemm_many
from gemm.prepared import Prepared, prepare
from gemm.summation import einsum
from gemm.using import use

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

start()
del start
