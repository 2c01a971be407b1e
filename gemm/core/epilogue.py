"""The epilogue of a product (bias and activation) as a separate pass over the result, for kernels that do not fuse the
epilogue.

The steps are t = alpha·a·b + beta·c (as without an epilogue), t += bias, t = activation(t), out = t. Each step is
rounded separately in the result's type. For float16 and bfloat16, the steps are computed in float32, so the result is
rounded to the narrow type only once, at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemm.core.backend import Launch
from gemm.core.problem import NARROW, Problem

_BLOCK = 1 << 13
"""Number of elements to which an activation is applied at a time, so that intermediate results stay in the cache."""


class Finishing:
    """A launch for `problem`, with the bias as its last argument.

    It runs `launch`, a launch for `problem.unfused`, and then applies the epilogue.

    Attributes:
        native: `launch.native`, for gemm.frontend.plan_cache; None if `launch` has no such attribute.
        wide: the type to which a and b (and c, if the result is narrower) are converted, or None.
    """

    def __init__(self, launch: Launch, problem: Problem) -> None:
        self._launch, self.activation = launch, problem.activation
        self.native = getattr(launch, "native", None)
        self.wide, self._narrow = getattr(launch, "wide", None), problem.dtype in NARROW

    def __call__(self, *operands: Any) -> None:
        a, b, c, out, alpha, beta, bias = operands
        sums = out
        if self._narrow:
            sums = np.empty(out.shape, np.float32)
            c = None if c is None else c.astype(np.float32)
        self._launch(a, b, c, sums, alpha, beta)
        finish(self.activation, False, sums, out, bias)


def finish(activation: str, flat: bool, sums: np.ndarray, out: np.ndarray, bias: np.ndarray | None) -> None:
    """Compute out = activation(sums + bias). `sums` may be out itself or another array, whose values are overwritten.

    flat: the product has only one row or one column, and out lacks that axis. The axes of the bias are then merged
    into one.
    """
    with np.errstate(all="ignore"):  # NaN and Inf are regular results
        apply(sums, bias.reshape(-1) if flat and bias is not None else bias, activation)
        if sums is not out:
            out[...] = sums


def apply(x: np.ndarray, bias: np.ndarray | None, activation: str) -> None:
    """Compute x = activation(x + bias) in place. `activation` "" means none."""
    if bias is not None:
        np.add(x, bias.astype(x.dtype, copy=False), out=x)
    if activation:
        _activate(x, activation)


def _activate(x: np.ndarray, activation: str) -> None:
    """Compute x = activation(x) in place, for one of the activations "relu", "gelu" and "gelu_tanh"."""
    if activation == "relu":
        np.copyto(x, 0, where=x < 0)  # NaN stays NaN
        return
    # "gelu" is x·(1 + erf(x/sqrt(2)))/2, where 1 + erf(t) = erfc(-t). "gelu_tanh" is x·(1 + tanh(t))/2 with
    # t = sqrt(2/pi)·(x + 0.044715·x³), where (1 + tanh(t))/2 = 1/(1 + exp(-2t)). In the code, y is x in float64.
    with np.nditer(x, ["external_loop", "buffered"], ["readwrite"], buffersize=_BLOCK) as blocks:
        block: Any
        for block in blocks:
            y = block.astype(np.float64)
            if activation == "gelu":
                block[...] = 0.5 * y * erfc(y * -np.sqrt(0.5))
            else:
                block[...] = y / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (y + 0.044715 * y * y * y)))


_MIDDLE = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1, 2.98635138197400131e2,
     8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
     3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
)  # fmt: skip
_NEAR = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
_FAR = (
    (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
     1.60837851487422766e-2, 6.58749161529837803e-4),
    (1.0, 2.56852019228982242, 1.87295284992346047, 5.27905102951428412e-1, 6.05183413124413191e-2,
     2.33520497626869185e-3),
)  # fmt: skip
"""Coefficients from W. J. Cody, Rational Chebyshev approximations for the error function, 1969.

_NEAR is for |x| up to 0.46875, _MIDDLE for |x| up to 4, _FAR for larger |x|.
"""


def erfc(x: np.ndarray) -> np.ndarray:
    """1 - erf(x) for float64; NumPy has no such function.

    The relative error is a few units of roundoff, and larger for results below 1e-300.
    """
    y = np.minimum(np.abs(x), 30.0)
    square = y * y
    near, inverse = np.where(y < 0.5, square, 0.0), 1 / np.maximum(square, 0.2)
    small = 1 - x * _ratio(_NEAR, near)
    tail = _ratio(_MIDDLE, np.minimum(y, 5.0))
    large = (1 / np.sqrt(np.pi) - inverse * _ratio(_FAR, inverse)) / np.maximum(y, 1.0)
    # exp(-y²) needs an accurate y²: `high` has so few bits that high² is exact, and `low` is y² - high².
    high = np.trunc(y * 16) / 16
    low = (y - high) * (y + high)
    upper = np.exp(-high * high) * np.exp(-low) * np.where(y < 4, tail, large)
    return np.asarray(np.where(y < 0.46875, small, np.where(x < 0, 2 - upper, upper)))


def _ratio(coefficients: tuple[tuple[float, ...], ...], x: np.ndarray) -> np.ndarray:
    above, below = (np.polyval(np.array(row), x) for row in coefficients)
    return np.asarray(above / below)
