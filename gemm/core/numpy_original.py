"""NumPy's own products, taken before `gemm.use` replaces any: what the package itself computes with.

A backend or a check that called np.matmul by that name would come back to gemm inside `gemm.use`.
"""

from numpy import dot, einsum, einsum_path, inner, matmul, tensordot, vdot

__all__ = ["dot", "einsum", "einsum_path", "inner", "matmul", "tensordot", "vdot"]
