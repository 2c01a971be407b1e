"""How the tests run `gemm bench`, and a peer for them to compare."""

from pathlib import Path

import numpy as np

from gemm.bench.peers import DevicePeer
from gemm.bench.peers.base import Unable
from gemm.cli import main
from gemm.core.problem import Device

ROOT = Path(__file__).resolve().parents[2]
HOST = ["bench", "--compare", "--quick", "--backends", "cpu,numpy", "--peers", "none"]


def result_of(capsys, *argv):
    status = main(argv)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


class OnDevice(DevicePeer):
    """A device peer that computes on the host."""

    name, about, device = "stand-in", "NumPy as a device", Device("opencl", "opencl:7", "x", kind="gpu")

    def send(self, array):
        return array.copy()

    def multiply(self, a, b, out):
        if a.ndim == 3:
            raise Unable("stacks")
        np.matmul(a, b, out=out)

    def finish(self):
        pass

    def fetch(self, array, out):
        out[...] = array
