"""Operands in types of their own, narrower than the result's: checks make them in the result's, here they are changed.

Memory blocks are converted whole, poison included, and the views keep their offset and strides in elements.
"""

import numpy as np

from conformance.arena import root


def narrowed(call, inputs, dtype):
    """`call` with a and b as `inputs`, unless they are so already, whose product is asked for in `dtype`."""

    def narrow(a, b, c=None, **options):
        x, y = (_retyped(z, np.dtype(name)) for z, name in zip((a, b), inputs, strict=True))
        made = [z for z, given in ((x, a), (y, b)) if z is not given]
        before = [root(z).tobytes() for z in made]
        result = call(x, y, c, dtype=dtype, **options)
        if before != [root(z).tobytes() for z in made]:
            raise AssertionError("a or b was overwritten")
        return result

    return narrow


def _retyped(x, dtype):
    if x.dtype == dtype:
        return x
    base = root(x)
    start = x.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    memory = base.ravel(order="K").view(x.dtype).astype(dtype)
    scale = dtype.itemsize / x.dtype.itemsize
    return np.ndarray(x.shape, dtype, memory, int(start * scale), [int(step * scale) for step in x.strides])


def unsigned(call, dtype):
    """`call` with alpha and beta modulo the power of two by which results wrap: an unsigned type holds no others."""

    def wrapping(*operands, **options):
        for name in {"alpha", "beta"} & options.keys():
            options[name] = int(options[name]) % 2 ** (8 * dtype.itemsize)
        return call(*operands, **options)

    return wrapping
