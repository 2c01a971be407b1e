"""The call after others like it, so that every check also meets what is remembered of earlier calls.

Each product is computed twice before on copies of the same layout: once with every operand in memory of its own, once
sharing memory as the real ones do. What was learned from the former must not be trusted for operands that overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.arena import root, twin

Array = np.ndarray


def repeated(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, after two like it."""

    def third(a: Array, b: Array, c: Array | None = None, *, out: Array | None = None, **options: Any) -> Any:
        operands = [a, b, c, out]
        apart = [x if x is None else _copy(x) for x in operands]
        if c is out:  # one object; c and out may also be two views of the same elements, which is another case
            apart[3] = apart[2]
        memories = {id(root(x)): np.array(root(x), order="K") for x in operands if x is not None}
        views = {id(x): twin(x, _flat(memories[id(root(x))])) for x in operands if x is not None}
        shared = [x if x is None else views[id(x)] for x in operands]
        for first, second, third, goal in (apart, shared):
            call(first, second, third, out=goal, **options)
        return call(a, b, c, out=out, **options)

    return third


def _copy(x: Array) -> Array:
    """x in a copy of its memory."""
    return twin(x, _flat(np.array(root(x), order="K")))


def _flat(memory: Array) -> Array:
    """A root array's memory as one axis, in the order in which it lies."""
    return memory.ravel(order="K").view(np.uint8)
