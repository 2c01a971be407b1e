"""The cost model: seconds = launch + transfer + the longer of work / rate and of bytes / the memory's rate.

`_times` is that formula, for predictions and for bounds. What its terms are of products on a device whose rates were
measured is here, what they are on a GPU whose multiprocessors are known is gemm.select.gpu_model's.
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
an H200 in products of 6468 × 96 × 666 and 37 of 263 × 133 × 634, 2026-11-24."""

CONVERTED = 1e9
"""Elements a second of operands that NumPy converts to the type of a kernel which does not take theirs. Of int8 to
int32 on the host of an H200, 2026-11-24."""

SINGLE = 2
"""Times the time of an item in a vector that one takes alone, where an OpenCL device is a CPU. Of random products on
two cores with Intel's runtime, 2026-11-24."""

ENDS = 12
"""Steps along k in whose time a GPU's item begins its outputs and stores them, one by one, on an H200: most of the time
of few k, 2026-11-24."""

GATHERED = 8
"""Multiply-adds in whose time a GPU's OpenCL kernel that reads operands as they lie loads an element by itself, as it
does where rows are not whole vectors: on an H200 3 to 5 in large products of several types, 7 to 15 in others,
2026-11-24."""

MOST_PASSES = 1.5
"""Passes that several over an operand take as long as: the groups that read it are beside each other, so that all but
the first find it in a cache. On an H200 1.4 of 33 × 5 × 1232 × 2465, by fours of the 5 rows instead of all at once,
2026-11-24."""

FASTEST_LINK = 60e9
"""Bytes/s that no transfer between host and device exceeds today (PCIe 5 x16)."""

_UNMEASURED = Rates(gpu_model.CALL, 1.0)
"""Of a device whose times are modelled, until the way there was measured."""


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
    moved = problem.moved
    if modelled(kernel, device):
        basis, rates = "modelled", measured or _UNMEASURED
        terms = gpu_model.terms(kernel, device, problem, sum(moved))
    else:
        basis, rates = ("measured", measured) if measured else ("guessed", guess(kernel, device))
        if tuned is not None and tuned.seconds:
            basis = "measured for such products"
            rates = _tuned(kernel, device, problem, rates, tuned.shape, tuned.seconds)
        terms = _terms(kernel, device, problem, rates)
    if problem.device != "host":
        moved = 0, 0
    elif problem.places and rates.upload:
        moved = problem.traffic(_stay(kernel, device, problem, rates))
    launch, transfer, busy = _times(terms, rates, moved)
    if kernel.inputs != problem.inputs:  # before anything else
        launch += problem.batch * (problem.m + problem.n) * problem.k / CONVERTED
    return Candidate(kernel, device, launch + transfer + busy, launch, transfer, busy, basis, origin=origin)


def _times(terms: gpu_model.Terms, rates: Rates, moved: tuple[int, int]) -> tuple[float, float, float]:
    """THE formula: seconds of launch, of transfers beyond the others, and that the device is busy.

    Args:
        moved: bytes of operands that are sent to the device, and of results that are fetched.
    """
    busy = gpu_model.overlapped(terms.compute, terms.memory) + terms.packing
    transfer = moving(rates, *moved, busy) if rates.upload else 0.0
    return rates.launch + terms.launch, transfer, busy


def moving(link: Rates, bytes_in: int, bytes_out: int, busy: float) -> float:
    """Seconds that host operands and a result add to a product that keeps a device busy for so long."""
    if not (link.upload and link.download and (bytes_in or bytes_out)):
        return 0.0
    up, down = bytes_in / link.upload, bytes_out / link.download
    if bytes_in + bytes_out < (link.overlaps or math.inf):
        return link.start + up + down
    return link.start + gpu_model.overlapped(gpu_model.overlapped(up, down), busy) - busy


def _tuned(
    kernel: Kernel, device: Device, problem: Problem, rates: Rates, shape: tuple[int, int, int, int], seconds: float
) -> Rates:  # fmt: skip
    """`rates` with that of arithmetic as a product of `shape` tells it, which took the tuner so long."""
    batch, m, n, k = shape
    work, launches = _work(kernel, device, replace(problem, batch=batch, m=m, n=n, k=k))
    return replace(rates, flops=work / max(seconds - rates.launch * launches, seconds / 4))


def _terms(kernel: Kernel, device: Device, problem: Problem, rates: Rates) -> gpu_model.Terms:
    """By rates that were measured, or guessed."""
    work, launches = _work(kernel, device, problem)
    compute, memory, packing = work / rates.flops, 0.0, 0.0
    launch = rates.launch * (launches - 1) + 1e-6 * kernel.startup
    if rates.memory:
        memory = _traffic(kernel, problem) / rates.memory
    mine = [place == device.key for place in problem.places[:2]]  # gemm.empty's rows and columns are padded
    if (problem.device != "host" or any(mine)) and not _in_place(kernel, problem, padded=any(mine)):
        launch += rates.staged
        # Packing is two more passes over an operand. Where the memory's rate is not known: as many times what a product
        # of few rows or columns takes, which is such a pass, and the less of a larger one's time the more arithmetic
        # each element meets.
        if rates.memory and device.kind == "gpu":
            packing = PACKING * sum(problem.sizes[:2]) / rates.memory
        else:
            packing = gpu_model.overlapped(compute, memory) * 2 * min(1.0, FEW / max(1, min(problem.m, problem.n)))
    return gpu_model.Terms(compute, memory, packing, launch)


class Bound:
    """A bound of `predict` from below: its formula, at the best rates, without the terms that only add.

    What is dropped: tiles and waves that are not full, how operands and rows lie, packing, types that are converted.
    For those who ask many kernels who may be the soonest.
    """

    def __init__(self, kernel: Kernel, device: Device, measured: Sequence[Rates], *, moved: bool) -> None:
        """`measured`: of the kernel and of its variants, if there are such. `moved`: the operands lie on the host."""
        self._kernel, self._device, self._modelled = kernel, device, modelled(kernel, device)
        rates = measured or [_UNMEASURED if self._modelled else guess(kernel, device)]

        def most(name: str) -> float:
            """The highest; 0 where a variant has none, and takes no time for that."""
            found = [getattr(each, name) for each in rates]
            return max(found) if all(found) else 0.0

        linked = moved and most("upload") and most("download")
        self._rates = Rates(
            min(each.launch for each in rates), most("flops"), most("upload") if linked else 0.0, most("download"),
            start=min(each.start for each in rates), memory=most("memory"),
            overlaps=min((each.overlaps for each in rates if each.overlaps), default=0),
        )  # fmt: skip

    def seconds(self, problem: Problem, flops: float, moved: tuple[int, int]) -> float:
        """Seconds that no prediction for `problem` is less than.

        Args:
            flops, moved: the problem's, which are the same for all who are asked; 0 flops: at whatever rate.
        """
        rates, traffic = self._rates, moved[0] + moved[1]
        if self._modelled:
            terms = gpu_model.terms(self._kernel, self._device, problem, traffic, least=True)
        else:
            terms = gpu_model.Terms(flops / rates.flops, traffic / rates.memory if rates.memory else 0.0)
        return sum(_times(terms, rates, (0, 0) if problem.places else moved))


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
