"""How far float32 products are from the truth, by arithmetic and by kind of operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gemm


def families(m: int, n: int, k: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{kind: (a, b)}: normal; uniform in [0, 1), whose sums grow; magnitudes over 2^±20; ill-conditioned, whose terms
    cancel but for a 2^-12th."""
    rng = np.random.default_rng([m, n, k])

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape)

    def wide(*shape: int) -> np.ndarray:
        return normal(*shape) * 2.0 ** rng.uniform(-20, 20, shape)

    half = k // 2
    a, b = normal(m, half), normal(half, n)
    pairs = np.concatenate([a, -a * (1 + 2.0**-12 * normal(m, half))], 1), np.concatenate([b, b])
    made = {
        "normal": (normal(m, k), normal(k, n)), "uniform": (rng.random((m, k)), rng.random((k, n))),
        "wide range": (wide(m, k), wide(k, n)), "ill-conditioned": pairs,
    }  # fmt: skip
    return {name: (x.astype(np.float32), y.astype(np.float32)) for name, (x, y) in made.items()}


def errors(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """The largest and the middle one of |out - exact| ÷ (|a|·|b|), in units of 2^-24; exact by float64."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    share = np.abs(out - x @ y) / (np.abs(x) @ np.abs(y)) * 2.0**24
    return {"max": float(share.max()), "median": float(np.median(share))}


def table(key: str, others: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]], *, quick: bool) -> list[Any]:
    """Rows {k, operands, errors: {arithmetic: {max, median}}} for gemm on the device `key` and `others`."""
    arithmetics: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
        f"gemm, {precision}": lambda a, b, precision=precision: gemm.gemm(a, b, precision=precision, backend=key)
        for precision in ("highest", "high", "medium")
    }
    for row in gemm.kernels():
        if row.backend == "cuda" and "emulated" in row.name and row.available and row.name.endswith("128x128"):
            name = row.name
            arithmetics[name] = lambda a, b, name=name: gemm.gemm(a, b, precision="high", kernel=name)
    rows = []
    for k in (64,) if quick else (512, 4096, 16384):
        m, n = (16, 16) if quick else (256, 256)
        for kind, (a, b) in families(m, n, k).items():
            found = {}
            for name, multiply in {**arithmetics, **others}.items():
                try:
                    found[name] = errors(multiply(a, b), a, b)
                except Exception as error:  # of whatever kind: it is then no row of the table
                    print(f"{name} cannot do {m}×{n}×{k}: {error}")
            rows.append({"m": m, "n": n, "k": k, "operands": kind, "errors": found})
    return rows
