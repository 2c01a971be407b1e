"""How the tests run `gemm bench`, and a peer for them to compare."""

from pathlib import Path

import numpy as np

from gemm.bench.peers import Unable
from gemm.bench.peers.devices import DevicePeer
from gemm.cli import main
from gemm.core.problem import Device

ROOT = Path(__file__).resolve().parents[3]
HOST = ["bench", "--compare", "--quick", "--backends", "cpu,numpy", "--peers", "none"]


def result_of(capsys, *argv):
    status = main(argv)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def _multiply(a, b, out):
    if a.ndim == 3:
        raise Unable("stacks")
    np.matmul(a, b, out=out)


ON_DEVICE = DevicePeer(
    "stand-in",
    "NumPy as a device",
    Device("opencl", "opencl:7", "x", kind="gpu"),
    np.copy,
    _multiply,
    lambda: None,
    lambda array, out: np.copyto(out, array),
)
"""A device peer that computes on the host."""
