"""Products whose operands a kernel finds through a table, by whatever way they were asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def apart(enqueue: Callable[..., None]) -> Callable[..., None]:
    """The `enqueue` of a CUDA launcher, for stacks as if each of their products lay by itself.

    Those of no terms and those with a bias are left to the launches that they always have.
    """

    def tabled(
        self: Any, a: Any, b: Any, c: Any, out: Any, alpha: Any, beta: Any, stream: int, bias: Any = None
    ) -> None:
        self._apart = a.shape[-1] > 0 and bias is None
        try:
            enqueue(self, a, b, c, out, alpha, beta, stream, bias)
        finally:
            self._apart = False  # launchers are kept

    return tabled
