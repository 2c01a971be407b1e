"""This package's CPU backend, prepared as the peers are: by a plan; and its plain call."""

from __future__ import annotations

import os
from functools import partial

import numpy as np

import gemm
from gemm import dispatch

from .base import Call, Peer


class Ours(Peer):
    """gemm.plan on the cpu backend."""

    name = "gemm"
    batches = True

    def __init__(self) -> None:
        self.about = f"gemm {gemm.__version__}, plan(a, b, out=out), backend cpu"

    def set_threads(self, count: int) -> None:
        os.environ["GEMM_NUM_THREADS"] = str(count)
        dispatch.forget()  # a launch is bound to the number of threads at its making

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Call:
        return partial(gemm.plan(a, b, out=out, backend="cpu"), a, b, out=out)

    def empty(self, dtype: str) -> Call:
        one = np.ones((1, 1), dtype)  # a plan has no product of no elements; one of one is the least
        return self.prepare(one, one.copy(), one.copy())


class PlainCall(Ours):
    """gemm.gemm as users write it: checks and the choice are made once a kind of product."""

    name = "gemm()"

    def __init__(self) -> None:
        self.about = f"gemm {gemm.__version__}, gemm(a, b, out=out)"

    def prepare(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Call:
        return partial(gemm.gemm, a, b, out=out)
