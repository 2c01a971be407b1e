"""The only definition of a product's arguments: the caller's operands and scalars, and the options."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import DTypeLike

Scalar = complex | float | int


class Given(NamedTuple):
    """The caller's operands and scalars, as they are passed to `gemm.gemm`."""

    a: Any
    b: Any
    c: Any = None
    out: Any = None
    bias: Any = None
    alpha: Scalar = 1.0
    beta: Scalar = 0.0


class Options(NamedTuple):
    """The options of `gemm.gemm`, and the classes of trans_a and trans_b.

    The classes distinguish 1 from True: the two are equal, but 1 is not a valid option. The order of the fields is the
    order of the keys that front.c builds.
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
"""{name: default value} of alpha, beta and the options of `gemm.gemm`."""


def named(options: Options, alpha: Any, beta: Any) -> dict[str, Any]:
    """alpha, beta and `options` as keyword arguments for gemm.gemm."""
    return dict(zip(DEFAULTS, (alpha, beta, *options), strict=False))
