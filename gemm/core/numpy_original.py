"""NumPy's original product functions, saved before `gemm.use` replaces them. The package itself uses the originals.

If a backend or a check called np.matmul by name inside `gemm.use`, gemm would compute the product again.
"""

from numpy import dot, einsum, einsum_path, inner, matmul, tensordot, vdot

__all__ = ["dot", "einsum", "einsum_path", "inner", "matmul", "tensordot", "vdot"]
