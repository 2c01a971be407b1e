"""The call after others like it, or among others that wait, so that checks meet what is remembered of earlier calls.

Each product is computed twice before on copies of the same layout: once with every operand in memory of its own, once
sharing memory as the real ones do. What was learned from the former must not be trusted for operands that overlap.
"""

import numpy as np

import gemm
from conformance.arena import root, twin


def pending(call):
    """`call` behind products that wait in a gemm.batching of their own, and ahead of one that writes what it read.

    Like `repeated`: the kind is known from a call before, without which no product waits.
    """

    def later(a, b, c=None, *, out=None, **options):
        given = [a, b, c, out]
        first, second, third = ([None if x is None else _copy(x) for x in given] for _ in range(3))
        for apart in (first, second, third):
            if c is out:
                apart[3] = apart[2]
        call(*first[:3], out=first[3], **options)
        with gemm.batching():
            ahead = call(*second[:3], out=second[3], **options)
            result = call(a, b, c, out=out, **options)
            behind = call(*third[:3], out=third[3], **options)
        for other in (ahead, behind):
            if c is None and other.tobytes() != (out if out is not None else result).tobytes():
                raise AssertionError("products that wait together came out with other bits")
        return result

    return later


def repeated(call):
    """`call`, after two like it."""

    def third(a, b, c=None, *, out=None, **options):
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


def _copy(x):
    """x in a copy of its memory."""
    return twin(x, _flat(np.array(root(x), order="K")))


def _flat(memory):
    """A root array's memory as one axis, in the order in which it lies."""
    return memory.ravel(order="K").view(np.uint8)
