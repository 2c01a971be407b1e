"""The array API's namespace of `gemm.Array`.

gemm computes matmul, tensordot, vecdot and matrix_transpose, here and in `linalg`. asarray, zeros and the other
functions that create arrays return a `gemm.Array`. All other names are NumPy's. NumPy supports the standard from
version 2.0 on; older versions of NumPy lack some of the standard's names.

    xp = x.__array_namespace__()
    xp.vecdot(xp.matmul(x, y), z)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from gemm.numpy_api import array
from gemm.numpy_api.tensordot import matrix_transpose


def _product(function: Callable[..., Any], x1: Any, x2: Any, **kwargs: Any) -> Any:
    """Call `function`, a product of `array`, with operands of any class. The result is an Array or a scalar."""
    bare = array.Bare((x1, x2), kwargs)
    return bare.back(function(bare.around(), *bare.args, **bare.kwargs))


def matmul(x1: Any, x2: Any, /) -> Any:
    """The matrix product of x1 and x2."""
    return _product(array.matmul, x1, x2)


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    """The sums of products of x1 and x2 over `axes`: a number of axes, or a pair (axes of x1, axes of x2)."""
    return _product(array.tensordot, x1, x2, axes=axes)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The scalar products of the vectors along `axis` of x1 and x2. The vectors of x1 are conjugated."""
    return _product(array.vecdot, x1, x2, axis=axis)


class _Linalg:
    """The extension `linalg` of the array API."""

    matmul, tensordot, vecdot = staticmethod(matmul), staticmethod(tensordot), staticmethod(vecdot)
    matrix_transpose = staticmethod(matrix_transpose)

    def __getattr__(self, name: str) -> Any:
        return _of_numpy(np.linalg, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(np.linalg), *vars(_Linalg)})


linalg = _Linalg()


def asarray(obj: Any, /, **kwargs: Any) -> Any:
    """np.asarray(obj, ...) as an Array. If `obj` is an Array, the result has the options of `obj`."""
    if isinstance(obj, array.Array):
        return np.asanyarray(obj, **kwargs)
    return np.asarray(obj, **kwargs).view(array.Array)


def _making(name: str) -> Callable[..., Any]:
    """Return a function that calls NumPy's function `name` and returns the result as an Array."""
    own = getattr(np, name)

    @wraps(own)
    def making(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs).view(array.Array)

    return making


_MAKING = ("arange", "empty", "eye", "from_dlpack", "full", "linspace", "ones", "zeros")
globals().update({name: _making(name) for name in _MAKING})


def _of_numpy(module: Any, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        hint = "" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else ", which follows the array API from 2.0 on"
        raise AttributeError(f"{module.__name__} {np.__version__} has no {name!r}{hint}", name=name) from None


def __getattr__(name: str) -> Any:
    return _of_numpy(np, name)


def __dir__() -> list[str]:
    return sorted({*dir(np), *__all__})


__all__ = sorted(  # np.__all__ lacks __array_api_version__
    {*np.__all__, "matmul", "matrix_transpose", "tensordot", "vecdot"}
    | {name for name in ("__array_api_version__",) if hasattr(np, name)}
)
