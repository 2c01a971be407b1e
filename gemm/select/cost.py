"""The cost model: seconds = launch + transfer + the longer of work / rate and of bytes / the memory's rate.

Rates are measured once a machine by the probe (gemm.select.probe); until then CPU rows use the catalog's guesses. The
source documents' rule, that small products go to the CPU because moving data dominates, is not a special case: it
follows from the launch and transfer terms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gemm.catalog import Kernel
from gemm.core.plan import Candidate
from gemm.core.problem import Device, Problem
from gemm.core.rates import CALL, Rates
from gemm.select import gpu_model
from gemm.select.tuning_records import Record

FEW = 8
"""Rows or columns of a product that takes a device no longer than reading its larger operand."""

PACKING = 4
"""Times what reading an operand takes that packing it does, on a GPU: it writes as well, and reaches half the rate: on
an H200 in products of 6468 × 96 × 666 and 37 of 263 × 133 × 634."""

CONVERTED = 1e9
"""Elements a second of operands that NumPy converts to the type of a kernel which does not take theirs."""

SINGLE = 2
"""Times the time of an item in a vector that one takes alone, where an OpenCL device is a CPU."""

ENDS = 12
"""Steps along k in whose time a GPU's item begins its outputs and stores them, one by one, on an H200: most of the time
of few k."""

GATHERED = 8
"""Multiply-adds in whose time a GPU's OpenCL kernel that reads operands as they lie loads an element by itself, as it
does where rows are not whole vectors: on an H200 3 to 5 in large products of several types, 7 to 15 in others."""

MOST_PASSES = 1.5
"""Passes that several over an operand take as long as: the groups that read it are beside each other, so that all but
the first find it in a cache. On an H200 1.4 of 33 × 5 × 1232 × 2465, by fours of the 5 rows instead of all at once."""

FASTEST_LINK = 60e9
"""Bytes/s that no transfer between host and device exceeds today (PCIe 5 x16)."""


def guess(kernel: Kernel, device: Device) -> Rates:
    """Rates before anything was measured."""
    cores = device.limits.get("threads", 1)
    return Rates(CALL, kernel.gflops * 1e9 * cores)


def modelled(kernel: Kernel, device: Device) -> bool:
    """Whether the time on `device` follows from its multiprocessors; what was measured tells of the way there alone."""
    return "sm_count" in device.limits and "BM" in kernel.params


def predict(
    kernel: Kernel, device: Device, problem: Problem, measured: Rates | None, tuned: Record | None = None,
    origin: str = "",
) -> Candidate:  # fmt: skip
    """The time of `problem` on a kernel that can run it.

    Args:
        measured: what the probe found of the kernel. tuned: what the tuner found for products like this one.
        origin: of the kernel's parameters.
    """
    if modelled(kernel, device):
        found = gpu_model.predict(kernel, device, problem, measured, origin)
    else:
        found = _measured(kernel, device, problem, measured, tuned, origin)
    if kernel.inputs == problem.inputs:
        return found
    converting = problem.batch * (problem.m + problem.n) * problem.k / CONVERTED  # before anything else
    return found._replace(seconds=(found.seconds or 0.0) + converting, launch=found.launch + converting)


def _measured(
    kernel: Kernel, device: Device, problem: Problem, measured: Rates | None, tuned: Record | None, origin: str
) -> Candidate:  # fmt: skip
    """`predict` by rates that were measured, or guessed."""
    rates = measured or guess(kernel, device)
    basis = "measured" if measured else "guessed"
    if tuned is not None and tuned.seconds:
        batch, m, n, k = tuned.shape
        work, launches = _work(kernel, device, replace(problem, batch=batch, m=m, n=n, k=k))
        rates = replace(rates, flops=work / max(tuned.seconds - rates.launch * launches, tuned.seconds / 4))
        basis = "measured for such products"
    work, launches = _work(kernel, device, problem)
    compute, launch = work / rates.flops, rates.launch * launches
    if rates.memory:
        compute = gpu_model.overlapped(compute, _traffic(kernel, problem) / rates.memory)
    mine = [place == device.key for place in problem.places[:2]]  # gemm.empty's rows and columns are padded
    if (problem.device != "host" or any(mine)) and not _in_place(kernel, problem, padded=any(mine)):
        launch += rates.staged
        # Packing is two more passes over an operand. Where the memory's rate is not known: as many times what a product
        # of few rows or columns takes, which is such a pass, and the less of a larger one's time the more arithmetic
        # each element meets.
        if rates.memory and device.kind == "gpu":
            compute += PACKING * sum(problem.sizes[:2]) / rates.memory
        else:
            compute *= 1 + 2 * min(1.0, FEW / max(1, min(problem.m, problem.n)))
    transfer = 0.0
    if problem.device == "host" and rates.upload:
        stays = problem.places and _stay(kernel, device, problem, rates)
        transfer = gpu_model.moving(rates, *(problem.traffic(stays) if stays else problem.moved), compute)
    return Candidate(kernel, device, launch + transfer + compute, launch, transfer, compute, basis, origin=origin)


class Soonest:
    """A bound of `predict` from below, by few operations: for those who ask many kernels who may be the soonest."""

    def __init__(self, kernel: Kernel, device: Device, measured: Sequence[Rates], *, moved: bool) -> None:
        """`measured`: of the kernel and of its variants, if there are such. `moved`: the operands lie on the host."""
        rates = measured or [guess(kernel, device)]
        self._launch, self._flop = min(r.launch for r in rates), 1 / max(r.flops for r in rates)
        self._byte = 1 / max(r.memory for r in rates) if all(r.memory for r in rates) else 0.0
        self._floor = None
        if modelled(kernel, device):
            self._floor = floor = gpu_model.Floor(kernel, device, measured[0] if measured else None)
            self._launch, self._byte = floor.launch, floor.byte
        self._linked = moved and all(r.upload and r.download for r in rates)
        self._up, self._down = (
            1 / max(getattr(r, way) for r in rates) if self._linked else 0.0 for way in ("upload", "download")
        )
        self._start = min(r.start for r in rates)
        self._overlaps = min((r.overlaps for r in rates if r.overlaps), default=math.inf)

    def seconds(self, problem: Problem, flops: float, moved: tuple[int, int]) -> float:
        """Seconds that no prediction for `problem` is less than.

        Args:
            flops, moved: the problem's, which are the same for all who are asked; 0 flops: at whatever rate.
        """
        bytes_in, bytes_out = moved
        compute = self._floor.compute(problem) if self._floor else flops * self._flop
        busy = gpu_model.overlapped(compute, (bytes_in + bytes_out) * self._byte)
        if not self._linked or problem.places:
            return self._launch + busy
        up, down = bytes_in * self._up, bytes_out * self._down
        if bytes_in + bytes_out < self._overlaps:
            return self._launch + self._start + up + down + busy
        return self._launch + self._start + gpu_model.overlapped(gpu_model.overlapped(up, down), busy)


def _stay(kernel: Kernel, device: Device, problem: Problem, rates: Rates) -> list[bool]:
    """Of a, b, c and out, whose places in host memory are known: whether the device takes them from where they lie."""
    fits = _in_place(kernel, problem)  # c and out do always
    return [
        place == device.key
        or bool(place.isdigit() and rates.wrapped and int(place) >= rates.wrapped and (fits or at > 1))
        for at, place in enumerate(problem.places)
    ]


def _in_place(kernel: Kernel, problem: Problem, *, padded: bool = False) -> bool:
    """Whether device operands of `problem` may lie as the kernel reads them: whole tiles, in its order, no image.

    Args:
        padded: they lie in memory that makes tiles whole.
    """
    p, (m, n, k) = kernel.params, (problem.m, problem.n, problem.k)
    a, b = problem.layout[0], problem.layout[1]
    if not {"a_rows", "b_rows"} & p.keys():
        return True
    if any(p.get(name) for name in ("a_channels", "b_channels", "b_panel")):
        return False
    if kernel.swaps(m, n, problem.layout):
        m, n, a, b = n, m, *(gpu_model.TURNED[x] for x in (b, a))
    turned = bool(p.get("a_turned"))
    (rows, cols), a_lies = ((k, m), "T") if turned else ((m, k), "N")
    a_fits = "a_rows" not in p or (a == a_lies and (padded or not (rows % p["a_rows"] or cols % p.get("a_cols", 1))))
    b_fits = "b_rows" not in p or (b == "N" and (padded or not (k % p["b_rows"] or n % p.get("b_cols", 1))))
    return a_fits and b_fits


def _traffic(kernel: Kernel, problem: Problem) -> float:
    """Bytes that it reads and writes: rows that stream an operand do so once for each group's rows or columns."""
    streams = kernel.params.get("streams", 0)
    if not streams:
        return sum(problem.sizes)
    (a, b, c, out), m, n = problem.sizes, problem.m, problem.n
    if kernel.swaps(m, n, problem.layout):
        m, n, a, b = n, m, b, a
    rows, columns = kernel.group
    across, down = (min(MOST_PASSES, -(-x // size)) for x, size in ((n, columns), (m, rows)))
    return a * (across if streams & 1 else 1) + b * (down if streams & 2 else 1) + c + out


def _gathered(kernel: Kernel, problem: Problem) -> int:
    """Elements that a kernel loads one by one which reads operands as they lie, by fours where these are whole."""
    if not kernel.params.get("DIRECT"):
        return 0
    m, n, k, a, b = problem.m, problem.n, problem.k, problem.layout[0], problem.layout[1]
    if kernel.swaps(m, n, problem.layout):
        m, n, a, b = n, m, gpu_model.TURNED[b], gpu_model.TURNED[a]
    (rows, columns), found = kernel.group, 0
    if m < rows or (k if a == "N" else m) % 4:
        found += m * k * -(-n // columns)
    if n < columns or (n if b == "N" else k) % 4:
        found += k * n * -(-m // rows)
    return found * problem.batch


def _work(kernel: Kernel, device: Device, problem: Problem) -> tuple[float, int]:
    """FLOPs that take the product's time at the full rate, and launches.

    A device's kernel computes whole tiles, in whole steps along k, and its rate is that of all compute units together:
    a product of fewer groups takes as long as one that would keep each of them busy. Elements that are loaded one by
    one count as multiply-adds. An OpenCL device that is a CPU runs a row of a group's items as vectors, and those
    beyond the result not at all, so that only tiles are whole; but the items of a row that is not whole run one by one.
    Our own CPU kernels have smaller tiles for what is left at the edges, and cut products for their threads by
    themselves.
    """
    p, m, n = kernel.params, problem.m, problem.n
    rows, columns = p.get("TM") or p.get("BM") or 1, p.get("TN") or p.get("BN") or 1
    units = device.limits.get("compute_units")
    if units is None:
        return 2.0 * -(-m // rows) * rows * -(-n // columns) * columns * problem.k * problem.batch, 1
    if kernel.swaps(m, n, problem.layout):
        m, n = n, m
    busy, ends = 1, 0
    if device.kind != "cpu":
        (rows, columns), busy, ends = kernel.group, p.get("busy", 1), ENDS
    wide, rest = -(-n // columns) * columns, n % kernel.group[1]
    if columns == 1:
        wide += max(0, min(kernel.group[1], SINGLE * rest) - rest)
    step = p.get("step") or p.get("BK", 1)
    depth = -(-problem.k // step) * step + ends
    work = 2.0 * -(-m // rows) * rows * wide * depth * problem.batch
    if device.kind != "cpu":
        work += 2.0 * GATHERED * _gathered(kernel, problem)
    groups = kernel.groups(m, n, problem.batch)
    share = problem.k if problem.reproducible else kernel.share(problem.k, groups, units)
    parts = max(1, -(-problem.k // max(share, 1)))
    waves = max(-(-groups * parts // units), busy)
    return work * waves * units / (groups * parts), 1 + (parts > 1)


def a_device_could_win(problem: Problem, cpu_seconds: float) -> bool:
    """Whether a device, were there one, might beat the CPU by enough to be worth looking for.

    Finding devices takes seconds (once a machine), so that products which the CPU finishes within a millisecond, or
    sooner than any link moves their operands, never start it.
    """
    if cpu_seconds <= 1e-3:
        return False
    moved = problem.traffic([place != "" for place in problem.places]) if problem.places else problem.moved
    return cpu_seconds > 5e-5 + sum(moved) / FASTEST_LINK
