"""Repeated products of device arrays, counted: what tests of CUDA and of OpenCL ask for alike.

`array` puts one of NumPy's on the device, `values` brings one back; `options` are those of all products.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import gemm
from gemm.extras import prepack
from gemm.frontend import plan_cache
from gemm.select import verification

API = sys.modules["gemm.frontend.api"]
RNG = np.random.default_rng(7)


@contextmanager
def replaced(where: Any, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    real = getattr(where, name)
    setattr(where, name, change(real))
    try:
        yield
    finally:
        setattr(where, name, real)


@contextmanager
def long_ways() -> Iterator[list[int]]:
    """A list with one entry for each call that takes the long way."""
    calls: list[int] = []

    def counted(real: Any) -> Any:
        return lambda *given, **options: calls.append(1) or real(*given, **options)

    with replaced(API, "normalise", counted), replaced(prepack, "normalise", counted):
        yield calls


def floats(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.integers(-8, 9, shape).astype(dtype)


def a_thousand_shapes(array: Any, values: Any, *, biased: bool, **options: Any) -> None:
    """Each turn has other scalars, and another bias."""
    plan_cache.forget()
    shapes = [(m, n) for m in range(1, 41) for n in range(1, 26)]
    hosts = {shape: (floats(shape[0], 3), floats(3, shape[1]), floats(*shape)) for shape in shapes}
    there = {shape: [array(x) for x in each] for shape, each in hosts.items()}
    rows = {n: floats(3, n) for n in range(1, 26)}
    views = {n: [array(row) for row in x] for n, x in rows.items()}
    for turn in range(3):
        with long_ways() as calls:
            for number, shape in enumerate(shapes):
                alpha, beta, n = 1.0 + number + turn, 2.0 + turn, shape[1]
                more = {"bias": views[n][turn]} if biased else {}
                found = gemm.gemm(*there[shape], alpha=alpha, beta=beta, **more, **options)
                if number % 7 == turn:
                    x, y, c = hosts[shape]
                    right = alpha * (x @ y) + beta * c + (rows[n][turn] if biased else 0)
                    assert_array_equal(values(found), right)
        assert len(calls) == (0 if turn else len(shapes)), turn


def no_terms(array: Any, values: Any, **options: Any) -> None:
    """k = 0, whatever alpha is: beta * c, zeros with their signs."""
    a, b, c = (array(np.full(shape, -0.0, np.float32)) for shape in ((4, 0), (0, 5), (4, 5)))
    for alpha in (1.0, 1.0, 2.5, 0.0, 1.0, 0.0, -3.0):
        found = values(gemm.gemm(a, b, c, alpha=alpha, beta=0.3, **options))
        assert np.signbit(found).all(), alpha
        assert not found.any(), alpha


SCALARS = [2.0, 3, True, 0, -0.0, 0.0, 0.1, -1e-60, 1e-42, np.nan, np.inf, np.float32(0.3), np.float64(1e300), 1.0,
           np.int8(-3), 2**70, -7.25]  # fmt: skip


def scalars(array: Any, values: Any, **options: Any) -> None:
    """Rounded as on the long way, which also tells what is wrong; with 0, what is not to be read is not."""
    x, y, c = floats(4, 3), floats(3, 5), floats(4, 5)
    nothing = [np.full_like(each, np.nan) for each in (x, y, c)]
    x_, y_, c_, nan_x, nan_y, nan_c = map(array, (x, y, c, *nothing))

    def outcome(alpha: Any, beta: Any) -> Any:
        with np.errstate(all="ignore"):
            left, right = (nan_x, nan_y) if np.float32(alpha) == 0 else (x_, y_)
            return values(
                gemm.gemm(left, right, nan_c if np.float32(beta) == 0 else c_, alpha=alpha, beta=beta, **options)
            )

    for pair in [(first, second) for each in SCALARS for first, second in ((each, 2), (1, each), (each, each))]:
        plan_cache.forget()
        right = outcome(*pair)
        plan_cache.forget()
        for learned in ((1, 1), (0, 1), (1, 0), (0, 0)):
            outcome(*learned)
        for _ in range(2):
            assert outcome(*pair).tobytes() == right.tobytes(), pair
    plan_cache.forget()
    outcome(1, 1)
    for wrong in (1j, 1 + 0j, "1", None, [1], np.ones(2)):
        for given in ({"alpha": wrong}, {"beta": wrong}):
            with pytest.raises(TypeError, match=next(iter(given))):
                gemm.gemm(x_, y_, c_, **given, **options)
    with long_ways() as calls:
        for number in range(300):
            alpha, beta = 0.25 * number + 1, 1.5 + number
            found = gemm.gemm(x_, y_, c_, alpha=alpha, beta=beta, **options)
            assert_array_equal(values(found), np.float32(alpha) * (x @ y) + np.float32(beta) * c)
    assert not calls, f"{len(calls)} of 300 new scalars took the long way"


def plans_and_prepared(array: Any, values: Any, keep: Callable[[np.ndarray], Any], **options: Any) -> None:
    """A prepared matrix, whose scalars change; what was learned is forgotten when a kernel fails, in flight, too."""
    x, y = floats(4, 3), floats(3, 5)
    x_, y_ = array(x), array(y)
    plan, kept = gemm.plan(x_, y_, **options), keep(y)
    with long_ways() as calls:
        for number in range(100):
            found = gemm.gemm(x_, kept, alpha=1.0 + number)
            assert_array_equal(values(found), (1 + number) * (x @ y))
    assert len(calls) == 1

    def forgetting(real: Any) -> Any:
        def run(*given: Any, **more: Any) -> Any:
            found = real(*given, **more)
            worker = threading.Thread(target=verification.forget_choices)
            worker.start(), worker.join()
            return found

        return run

    ways = {
        "gemm": (lambda: gemm.gemm(x_, y_, **options), (API.execute, "run")),
        "plan": (lambda: plan(x_, y_), (API.execute, "run")),
        "prepared": (lambda: gemm.gemm(x_, kept), (prepack.Prepared, "_launched")),
    }
    for name, (call, during) in ways.items():
        verification.forget_choices()
        with replaced(*during, forgetting):
            call()
        for expected in (1, 0):
            with long_ways() as calls:
                assert_array_equal(values(call()), x @ y)
            assert len(calls) == expected, f"{name}: what was chosen before a kernel failed"
        verification.forget_choices()
        with long_ways() as calls:
            call()
        assert len(calls) == 1, f"{name}: what was learned before a kernel failed"
