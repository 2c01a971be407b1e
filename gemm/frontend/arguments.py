"""The arguments of a product: the caller's operands and scalars, and the options. Each is spelt out once, here."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import DTypeLike

Scalar = complex | float | int


class Given(NamedTuple):
    """The caller's operands and scalars, as `gemm.gemm` has them."""

    a: Any
    b: Any
    c: Any = None
    out: Any = None
    bias: Any = None
    alpha: Scalar = 1.0
    beta: Scalar = 0.0


class Options(NamedTuple):
    """The options of `gemm.gemm`, and the classes of the first two: 1 is equal to True, but is no option.

    The fields are in the order of the keys that front.c makes.
    """

    trans_a: bool | str = False
    trans_b: bool | str = False
    dtype: DTypeLike | None = None
    precision: str = "highest"
    reproducible: bool = False
    backend: str = "auto"
    kernel: str | None = None
    activation: str | None = None
    class_a: type = bool
    class_b: type = bool


DEFAULTS: dict[str, Any] = {
    "alpha": 1.0, "beta": 0.0,
    **{name: value for name, value in Options._field_defaults.items() if not name.startswith("class_")},
}  # fmt: skip
"""alpha, beta and gemm.gemm's options, and what they are if they are not given."""


def named(options: Options, alpha: Any, beta: Any) -> dict[str, Any]:
    """alpha, beta and `options` as arguments of gemm.gemm."""
    return dict(zip(DEFAULTS, (alpha, beta, *options), strict=False))
