"""How the tests run `gemm bench`, and a peer for them to compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm.bench.peers import DevicePeer
from gemm.bench.peers.base import Unable
from gemm.cli import main
from gemm.core.problem import Device

ROOT = Path(__file__).resolve().parents[2]
HOST = ["bench", "--compare", "--quick", "--backends", "cpu,numpy", "--peers", "none"]


def result_of(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(argv)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


class OnDevice(DevicePeer):
    """A device peer that computes on the host."""

    name, about, device = "stand-in", "NumPy as a device", Device("opencl", "opencl:7", "x", kind="gpu")

    def send(self, array: np.ndarray) -> Any:
        return array.copy()

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        if a.ndim == 3:
            raise Unable("stacks")
        np.matmul(a, b, out=out)

    def finish(self) -> None:
        pass

    def fetch(self, array: Any, out: np.ndarray) -> None:
        out[...] = array
