"""Operands in every memory layout, surrounded by poison, and the guard that watches everything around a call."""

from __future__ import annotations

from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

POISON = 0xFF  # as a byte everywhere: a NaN in every floating-point type, and -1 or the largest integer


class Layout(NamedTuple):
    """How a matrix lies in memory: axis order, elements of padding, steps and directions along its rows/columns."""

    order: str = "C"
    pad: int = 0
    step: tuple[int, int] = (1, 1)
    reverse: tuple[bool, bool] = (False, False)
    offset: int = 0

    def place(self, x):
        """A copy of `x` (*batch, rows, columns) laid out so, with poison before, between and behind."""
        stored = x if self.order == "C" else x.swapaxes(-1, -2)
        *batch, rows, columns = stored.shape
        (down, right), (up, left) = self.step, self.reverse
        lines, width = rows * down + self.pad, columns * right + self.pad
        size = int(np.prod(batch, dtype=int)) * lines * width
        memory = np.full((size + self.offset + 16) * x.itemsize, POISON, np.uint8).view(x.dtype)
        grid = memory[self.offset : self.offset + size].reshape(*batch, lines, width)
        first = self.pad // 2
        view = grid[..., first : first + rows * down : down, first : first + columns * right : right]
        view = view[..., :: -1 if up else 1, :: -1 if left else 1]
        view[...] = stored
        return view if self.order == "C" else view.swapaxes(-1, -2)


LAYOUTS = {
    "C": Layout(),
    "F": Layout("F"),
    "C padded": Layout(pad=3),
    "F padded": Layout("F", pad=5),
    "C offset": Layout(offset=1),
    "every second row": Layout(step=(2, 1), pad=1),
    "every second column": Layout(step=(1, 2), offset=3),
    "F steps": Layout("F", step=(3, 2), pad=2),
    "rows reversed": Layout(reverse=(True, False)),
    "columns reversed": Layout(pad=1, reverse=(False, True)),
    "F both reversed": Layout("F", pad=1, step=(1, 2), reverse=(True, True)),
}


def root(x):
    """The array that owns the memory of `x`."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def twin(x, memory):
    """The same view of `memory`, a copy of root(x), as x is of root(x)."""
    start = x.__array_interface__["data"][0] - root(x).__array_interface__["data"][0]
    return np.ndarray(x.shape, x.dtype, memory.view(np.uint8).reshape(-1), start, x.strides)


def _bytes(x):
    """The memory of a root array, as bytes in memory order."""
    flat = x.ravel(order="K") if x.flags.forc else np.ascontiguousarray(x).ravel()
    return flat.view(np.uint8)


def guarded(call, a, b, c=None, **options):
    """call(a, b, c, **options), failing if it writes a byte beside its result or returns what it should not.

    Only the elements of `out` may change; without out= nothing may, and the result must be memory of its own.
    """
    out = options.get("out")
    given = {"a": a, "b": b, "c": c, "out": out}
    before = {name: _bytes(root(x)).copy() for name, x in given.items() if x is not None}
    result = call(a, b, c, **options)
    if out is not None:
        if result is not out:
            raise AssertionError("the result is not out itself")
    else:
        if not isinstance(result, np.ndarray):
            raise AssertionError(f"the result is a {type(result).__name__}, not an ndarray")
        for name, x in given.items():
            if x is not None and np.may_share_memory(result, root(x)):
                raise AssertionError(f"the result lies in the memory of {name}")
    for name, old in before.items():
        x = given[name]
        assert x is not None
        if out is not None and root(x) is root(out) and out.size:
            twin(out, old)[...] = out
        changed = np.flatnonzero(_bytes(root(x)) != old)
        if changed.size:
            where = "around out" if out is not None and root(x) is root(out) else f"of {name}"
            raise AssertionError(f"{changed.size} bytes {where} were overwritten, the first at {changed[0]}")
    return result


@contextmanager
def case(**facts):
    """Name the case in the message of an assertion that fails within, or of an exception that escapes."""
    try:
        yield
    except Exception as error:
        text = " ".join(f"{name}={value!r}" for name, value in facts.items())
        kind = AssertionError if isinstance(error, AssertionError) else RuntimeError
        raise kind(f"{text}: {type(error).__name__}: {error}" if kind is RuntimeError else f"{text}: {error}") from (
            error if kind is RuntimeError else None
        )


def retyped(x, dtype):
    """x rounded, or wrapped, to `dtype`."""
    with np.errstate(all="ignore"):  # a negative float as an unsigned integer is undefined, as a signed one it is not
        return (x.astype(np.int64) if dtype.kind == "u" and x.dtype.kind == "f" else x).astype(dtype)


def equal(result, expected, what="result"):
    """Fail unless shape and values agree exactly (NaN equals NaN, -0 equals +0), `expected` rounded or wrapped to the
    result's type."""
    if result.shape != expected.shape:
        raise AssertionError(f"{what}: shape {result.shape}, must be {expected.shape}")
    expected = retyped(expected, result.dtype)
    wrong = ~((result == expected) | (np.isnan(result) & np.isnan(expected)))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{what}: {np.count_nonzero(wrong)} of {wrong.size} elements are wrong; at {at} {result[at]!r}, "
            f"must be {expected[at]!r}"
        )
