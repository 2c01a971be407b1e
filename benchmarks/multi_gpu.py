"""What several GPUs of a host gain: the time of one product on 1, 2, 4, ... of them.

    python benchmarks/multi_gpu.py [--size 32768] [--dtypes bfloat16,float32] [--counts 1,2,4,8] [--rounds 5]
                                   [--ways sharded,weak,host] [--json FILE]

Ways, all of n × n × n products, with the median of --rounds products after one that warms up, timed until every GPU is
done; --counts beyond the GPUs of the machine are left out:

    sharded  operands and result in blocks over the GPUs (gemm.shard, SUMMA); on one GPU plain arrays there
    weak     likewise, of n · count^(1/3) for as much arithmetic a GPU; efficiency = its rate a GPU ÷ one GPU's
    host     operands and result in host memory, by one and (backend="cuda:all") by all of them; other counts by
             $CUDA_VISIBLE_DEVICES

    speedup = one GPU's median time ÷ this one's, of the same way

Peers, where they are: PyTorch on one GPU; cuBLASMp, through nvmath-python and mpiexec, on as many (peers/cublasmp.py).
Every result is compared with float64 sums of some of its elements. The document ("gemm-multi-gpu/1", seconds) holds

    date, command, commit, versions, machine, environment, devices, rounds
    links       [{from, to, rate (bytes/s), direct (without the host's memory)}]
    results     [{way, n, dtype, gpus, contestant (gemm, torch or cublasmp), times, median, tflops, speedup or
                  efficiency (null of peers)}]
    absent      {peer: why it was not run}
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers.exact import unit_roundoff
from peers.shapes import Shape, dtype_of, operands

import gemm
from gemm import report
from gemm.backends import cuda_peers
from gemm.cli.arguments import listed, positive, save_json
from gemm.dispatch import registry
from gemm.errors import BackendUnavailable

COUNTS = ("1", "2", "4", "8")
WAYS = ("sharded", "weak", "host")
CHECKED = 8
"""Rows and columns of the result whose elements are computed anew."""
PEER_LIMIT = 600
"""Seconds that a peer in processes of its own may take."""

Row = dict[str, Any]


class Machine:
    """The GPUs here, and what was measured."""

    def __init__(self, rounds: int) -> None:
        self.backend = registry.backend("cuda")
        self.devices = self.backend.devices()
        self.rounds, self.results = rounds, list[Row]()

    def synchronize(self) -> None:
        """Wait for every GPU."""
        for device in self.devices:
            self.backend.synchronize(device)

    def timed(self, call: Callable[[], Any]) -> list[float]:
        """Seconds of the rounds."""
        found = []
        for _ in range(self.rounds + 1):
            self.synchronize()
            begun = time.perf_counter()
            call()
            self.synchronize()
            found.append(time.perf_counter() - begun)
        return found[1:]

    def note(self, way: str, n: int, dtype: str, gpus: int, times: list[float], contestant: str = "gemm") -> None:
        """Keep a result and print it."""
        row: Row = {"way": way, "n": n, "dtype": dtype, "gpus": gpus, "contestant": contestant, "times": times}
        row["median"] = statistics.median(times)
        row["tflops"] = 2e-12 * n**3 / row["median"]
        alone = next(
            (x for x in (*self.results, row) if x["gpus"] == 1 and x["contestant"] == "gemm"
             and (x["way"], x["dtype"]) == (way, dtype)), None,
        )  # fmt: skip
        row["speedup"] = row["efficiency"] = None
        if alone is not None and contestant == "gemm":
            if way == "weak":
                row["efficiency"] = row["tflops"] / gpus / alone["tflops"]
            else:
                row["speedup"] = alone["median"] / row["median"]
        self.results.append(row)
        gain = row["efficiency"] if way == "weak" else row["speedup"]
        shown = "" if gain is None else f"{gain:8.2f}"
        line = f"{way:8} {n:>6} {dtype:>9} {gpus:>4} {contestant:>9} {1e3 * row['median']:10.3f} {row['tflops']:9.2f}"
        print(line, shown, flush=True)

    def resident(self, *arrays: np.ndarray) -> list[Any]:
        """Copies on the first GPU."""
        return [self.backend.to_device(array, self.devices[0]).owner for array in arrays]

    def sharded(self, way: str, n: int, dtype: str, gpus: int) -> None:
        """A product in blocks over so many GPUs; on one, of arrays there."""
        a, b, out = operands(Shape(n, n, n), dtype)
        if gpus == 1:
            x, y, z = self.resident(a, b, out)
        else:
            names = [device.key for device in self.devices[:gpus]]
            x, y, z = (gemm.shard(each, devices=names) for each in (a, b, out))
        times = self.timed(lambda: gemm.gemm(x, y, out=z))
        check(a, b, z.copy_to_host())
        self.note(way, n, dtype, gpus, times)

    def host(self, n: int, dtype: str) -> None:
        """A product of host arrays, by one and by all."""
        a, b, out = operands(Shape(n, n, n), dtype)
        for gpus, backend in self.backends():
            times = self.timed(lambda backend=backend: gemm.gemm(a, b, out=out, backend=backend))
            check(a, b, out)
            self.note("host", n, dtype, gpus, times)

    def backends(self) -> Iterator[tuple[int, str]]:
        """How many GPUs multiply by which name."""
        yield 1, self.devices[0].key
        if len(self.devices) > 1:
            yield len(self.devices), "cuda:all"

    def torch(self, n: int, dtype: str) -> None:
        """PyTorch's time on one GPU."""
        import torch

        a, b = (torch.randn(n, n, device="cuda").to(getattr(torch, dtype)) for _ in range(2))
        out = torch.empty_like(a)
        self.note("sharded", n, dtype, 1, self.timed(lambda: torch.mm(a, b, out=out)), "torch")

    def cublasmp(self, n: int, dtype: str, gpus: int) -> None:
        """cuBLASMp's time on so many."""
        script = Path(__file__).with_name("peers") / "cublasmp.py"
        command = ["mpiexec", "-n", gpus, sys.executable, script, n, dtype, self.rounds]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, timeout=PEER_LIMIT)
        self.note("sharded", n, dtype, gpus, json.loads(done.stdout.splitlines()[-1])["times"], "cublasmp")

    def links(self) -> list[Row]:
        """Of each pair of GPUs."""
        return [
            {"from": y.key, "to": x.key, "rate": cuda_peers.rate(x.handle, y.handle),
             "direct": cuda_peers.connect(x.handle, y.handle)}
            for x in self.devices for y in self.devices if x is not y
        ]  # fmt: skip


def check(a: np.ndarray, b: np.ndarray, found: np.ndarray) -> None:
    """End the program if some elements of a·b are not as near to `found` as k rounded sums may be."""
    k = a.shape[1]
    rows, columns = (np.random.default_rng(1).integers(0, n, CHECKED) for n in found.shape)
    x, y = a[rows].astype(np.float64), b[:, columns].astype(np.float64)
    unit = unit_roundoff(found.dtype)
    sums = unit_roundoff(np.dtype(np.float32)) if found.dtype.itemsize < 4 else unit
    allowed = (k + 2) * sums * (abs(x) @ abs(y)) + unit * abs(x @ y)
    if not (abs(found[np.ix_(rows, columns)].astype(np.float64) - x @ y) <= allowed).all():
        raise SystemExit(f"a {found.shape} product of {found.dtype} is wrong")


def missing() -> dict[str, str]:
    """Peers that cannot run here, and why."""
    found = {}
    try:
        import torch

        if not torch.cuda.is_available():
            found["torch"] = "this PyTorch finds no GPU"
    except ImportError:
        found["torch"] = "not installed"
    wanted = [name for name in ("nvmath", "mpi4py", "torch") if importlib.util.find_spec(name) is None]
    wanted += [] if shutil.which("mpiexec") else ["mpiexec"]
    if wanted:
        found["cublasmp"] = f"not installed: {', '.join(wanted)}"
    return found


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=positive, default=32768)
    parser.add_argument("--dtypes", type=listed, default=["bfloat16", "float32"], metavar="NAME[,NAME…]")
    parser.add_argument("--counts", type=listed, default=list(COUNTS), metavar="N[,N…]")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--ways", type=listed, default=list(WAYS), metavar="NAME[,NAME…]")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def main() -> int:
    """Time, print, write."""
    options = arguments().parse_args()
    if unknown := set(options.ways) - set(WAYS):
        raise SystemExit(f"--ways takes {', '.join(WAYS)}, not {', '.join(sorted(unknown))}")
    try:
        machine = Machine(options.rounds)
    except BackendUnavailable as error:
        raise SystemExit(str(error)) from error
    counts = [positive(count) for count in options.counts if positive(count) <= len(machine.devices)]
    absent, n = missing(), options.size
    print(f"{'way':8} {'n':>6} {'dtype':>9} {'GPUs':>4} {'':>9} {'ms':>10} {'TFLOP/s':>9}     gain")
    for dtype in options.dtypes:
        dtype_of(dtype)
        for gpus in counts:
            if "sharded" in options.ways:
                machine.sharded("sharded", n, dtype, gpus)
            if "weak" in options.ways:
                machine.sharded("weak", max(16, round(n * gpus ** (1 / 3) / 16) * 16), dtype, gpus)
            if gpus > 1 and "cublasmp" not in absent:
                try:
                    machine.cublasmp(n, dtype, gpus)
                except (subprocess.SubprocessError, LookupError, ValueError) as error:
                    absent["cublasmp"] = getattr(error, "stderr", "") or str(error)
        if "host" in options.ways:
            machine.host(n, dtype)
        if "torch" not in absent:
            machine.torch(n, dtype)
    for peer, why in absent.items():
        print(f"without {peer}: {why}")
    if options.json:
        save_json(options.json, {
            "schema": "gemm-multi-gpu/1", **report.head(), "rounds": options.rounds,
            "devices": [report.device_facts(device) for device in machine.devices], "links": machine.links(),
            "results": machine.results, "absent": absent,
        })  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
