"""The cost model: seconds = launch + transfer + max(work / rate, bytes / memory's rate).

`_times` is the formula for predictions and for lower bounds. For kernels with measured or guessed rates, this module
computes the terms of the formula. For a GPU whose number of multiprocessors is known, gemm.select.gpu_model computes
them.

The probe (gemm.select.probe) measures the rates once for each machine. Until then the CPU's kernels have the rates that
the catalog guesses. Small products go to the CPU, because moving their data to a device would take longer than the
arithmetic. This rule needs no special case: it follows from the launch and transfer terms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gemm.catalog import Kernel
from gemm.core.problem import CALL, Candidate, Device, Problem, Rates
from gemm.select import gpu_model
from gemm.select.tuning_db import Record, timed

FEW = 8
"""On a device, a product with at most FEW rows or columns takes only as long as reading its larger operand."""

PACKING = 4
"""Time of packing an operand ÷ time of reading it, on a GPU. Packing reads and writes, at half the memory's rate.

Measured on an H200, 2026-11-24, in products of 6468 × 96 × 666 and in a batch of 37 products of 263 × 133 × 634.
"""

CONVERTED = 1e9
"""Elements per second that NumPy converts if the kernel does not accept the operands' type.

Measured from int8 to int32 on the host of an H200, 2026-11-24.
"""

SINGLE = 2
"""Time of a work-item that runs alone ÷ its time as part of a vector, on an OpenCL device that is a CPU.

Measured with random products on two cores with Intel's runtime, 2026-11-24.
"""

ENDS = 12
"""On a GPU, each work-item initializes its outputs and stores them one by one. Both together take as long as ENDS steps
along k.

If k is small, they take most of the product's time. Measured on an H200, 2026-11-24.
"""

GATHERED = 8
"""Loading one element by itself takes as long as this many multiply-adds.

A GPU's OpenCL kernel that reads operands in place loads single elements where the operand's rows are not whole vectors.
On an H200, 2026-11-24, the measured value was 3 to 5 in large products of several types, and 7 to 15 in other products.
"""

MOST_PASSES = 1.5
"""Any number of passes over an operand takes at most as long as MOST_PASSES passes. Neighbouring work-groups read the
same operand, and all except the first find it in a cache.

Measured on an H200, 2026-11-24: a batch of 33 products with 5 rows (33 × 5 × 1232 × 2465) takes 1.4 times as long if
each work-group computes 4 rows instead of all 5.
"""

OWN = 10
"""The guessed rate of a kernel is multiplied by OWN on a GPU that has the kernel's target as a feature.

Before the probe has measured rates, such a kernel is thus ranked before generic kernels. It matters for kernels that
also run on other GPUs; kernels that run only on their own GPUs are ranked by the catalog. OWN is not measured.
"""

FASTEST_LINK = 60e9
"""Upper limit in bytes/s of a transfer between host and device today (PCIe 5 x16)."""


def modelled(kernel: Kernel, device: Device) -> bool:
    """Whether the GPU model predicts the times of `kernel` on `device`.

    If so, the kernel's measured rates describe only the link between the host and the device.
    """
    return "sm_count" in device.limits and "BM" in kernel.params


def guess(kernel: Kernel, device: Device) -> Rates:
    """Return rates for use before anything is measured.

    If the GPU model predicts the times, these are the rates of the link to the device. Otherwise, they are the kernel's
    rates from the catalog.
    """
    if modelled(kernel, device):
        return Rates(gpu_model.CALL, 1.0)
    own = OWN if device.kind == "gpu" and kernel.target in device.features else 1
    return Rates(CALL, kernel.gflops * 1e9 * own * device.limits.get("threads", 1), basis="guessed")


def predict(
    kernel: Kernel, device: Device, problem: Problem, measured: Rates | None, tuned: Record | None = None
) -> Candidate:
    """Return the predicted time of `problem` on a kernel that can run it.

    Args:
        measured: the rates that the probe measured for the kernel; None stands for `guess`.
        tuned: what the tuner measured for products like this one, or None.
    """
    moved, rates = problem.moved, measured or guess(kernel, device)
    basis = rates.basis
    if modelled(kernel, device):
        basis = "modelled"
        terms = gpu_model.terms(kernel, device, problem, sum(moved))
    else:
        if tuned is not None and tuned.seconds:
            basis = "measured for such products"
            rates = _tuned(kernel, device, problem, rates, tuned)
        terms = _terms(kernel, device, problem, rates, sum(moved))
    if problem.device != "host":
        moved = 0, 0
    elif problem.places and rates.upload:
        moved = problem.traffic(_stay(kernel, device, problem, rates))
    launch, transfer, busy = _times(terms, rates, moved)
    if kernel.inputs != problem.inputs:  # conversion comes first and overlaps nothing
        launch += problem.batch * (problem.m + problem.n) * problem.k / CONVERTED
    return Candidate(kernel, device, launch + transfer + busy, launch, transfer, busy, basis)


def _overlapped(one: float, other: float) -> float:
    """Return the time of two activities that overlap: the longer time plus a tenth of the shorter time."""
    return one + 0.1 * other if one > other else other + 0.1 * one


def _times(terms: gpu_model.Terms, rates: Rates, moved: tuple[int, int]) -> tuple[float, float, float]:
    """Return the parts of a product's time, by the formula of the cost model.

    Args:
        moved: (bytes of operands sent to the device, bytes of results fetched from it).

    Returns:
        Three times in seconds, whose sum is the time of the product: the launch; what transfers add; the time in which
        the device is busy.
    """
    compute = _overlapped(terms.compute, terms.storing) if terms.storing else terms.compute
    busy = _overlapped(compute, terms.memory) + terms.packing
    transfer = moving(rates, *moved, busy) if rates.upload else 0.0
    return rates.launch + terms.launch, transfer, busy


def moving(link: Rates, bytes_in: int, bytes_out: int, busy: float) -> float:
    """Return the seconds that transfers add to a product.

    Args:
        bytes_in: bytes of host operands sent to the device.
        bytes_out: bytes of the result fetched from the device.
        busy: seconds in which the product keeps the device busy. Large transfers overlap with this time.
    """
    if not (link.upload and link.download and (bytes_in or bytes_out)):
        return 0.0
    up, down = bytes_in / link.upload, bytes_out / link.download
    if bytes_in + bytes_out < (link.overlaps or math.inf):
        return link.start + up + down
    return link.start + _overlapped(_overlapped(up, down), busy) - busy


def _tuned(kernel: Kernel, device: Device, problem: Problem, rates: Rates, tuned: Record) -> Rates:
    """Return `rates` with the arithmetic rate that follows from the tuner's measurement."""
    (batch, m, n, k), seconds = tuned.shape, tuned.seconds or 0.0
    work, launches = _work(kernel, device, replace(problem, batch=batch, m=m, n=n, k=k))
    return replace(rates, flops=work / max(seconds - rates.launch * launches, seconds / 4))


def _terms(kernel: Kernel, device: Device, problem: Problem, rates: Rates, traffic: float) -> gpu_model.Terms:
    """Return the terms of the formula from measured or guessed rates. `traffic` is the bytes of operands and result."""
    work, launches = _work(kernel, device, problem)
    compute, memory, packing = work / rates.flops, 0.0, 0.0
    launch = rates.launch * (launches - 1) + 1e-6 * kernel.startup
    if rates.memory:
        memory = (_streamed(kernel, problem) if kernel.params.get("streams") else traffic) / rates.memory
    padded = device.key in problem.places[:2]  # gemm.empty pads rows and columns
    if (problem.device != "host" or padded) and not _in_place(kernel, problem, padded=padded):
        launch += rates.staged
        # Packing reads an operand and writes it: two more passes. If the device is no GPU or its memory's rate is
        # unknown, the time of one pass is estimated from the product itself. A product with at most FEW rows or columns
        # takes as long as one pass. A larger product does more arithmetic for each element, so one pass is a smaller
        # share of its time.
        if rates.memory and device.kind == "gpu":
            packing = PACKING * sum(problem.sizes[:2]) / rates.memory
        else:
            packing = _overlapped(compute, memory) * 2 * min(1.0, FEW / max(1, min(problem.m, problem.n)))
    return gpu_model.Terms(compute, memory, packing, launch)


class Bound:
    """A lower bound of `predict`: the same formula at the best rates, without terms that can only add time.

    The bound ignores partial tiles and waves, layouts and alignment, packing, and type conversion. It is computed fast.
    It excludes most kernels from the search for the fastest one.
    """

    def __init__(
        self, kernel: Kernel, device: Device, measured: Sequence[Rates], *, moved: bool, least: float = 1.0
    ) -> None:
        """Prepare the bound.

        Args:
            measured: the measured rates of the kernel and of its variants; may be empty.
            moved: whether operands are transferred to the device, because they are in host memory.
            least: the least calibration factor of the kernel's predictions.
        """
        self._least = least
        self._kernel, self._device, self._modelled = kernel, device, modelled(kernel, device)
        rates = measured or [guess(kernel, device)]

        def most(name: str) -> float:
            """Return the highest rate; 0, which means "takes no time", if a variant has no such rate."""
            found = [getattr(each, name) for each in rates]
            return max(found) if all(found) else 0.0

        linked = moved and most("upload") and most("download")
        self._rates = Rates(
            min(each.launch for each in rates), most("flops"), most("upload") if linked else 0.0, most("download"),
            start=min(each.start for each in rates), memory=most("memory"),
            overlaps=min((each.overlaps for each in rates if each.overlaps), default=0),
        )  # fmt: skip

    def seconds(
        self, problem: Problem, flops: float, moved: tuple[int, int], factor: float | None = None
    ) -> float:  # fmt: skip
        """Return a lower bound, in seconds, of the predictions for `problem` with any variant of the kernel.

        Args:
            flops: the problem's FLOPs.
            moved: (bytes sent to the device, bytes fetched from the device). The caller computes `flops` and `moved`
                once for all kernels.
            factor: the calibration factor of the problem, if all kernels of the device have the same factor. None: use
                the least factor of this kernel.
        """
        rates, traffic = self._rates, moved[0] + moved[1]
        if self._kernel.space and timed(self._kernel, self._device):
            flops = 0.0  # the bound then holds at any arithmetic rate, also at the rate that the tuner measured
        if self._modelled:
            terms = gpu_model.terms(self._kernel, self._device, problem, traffic, least=True)
        else:
            terms = gpu_model.Terms(flops / rates.flops, traffic / rates.memory if rates.memory else 0.0)
        seconds = sum(_times(terms, rates, (0, 0) if problem.places else moved))
        return (self._least if factor is None else factor) * seconds


def _stay(kernel: Kernel, device: Device, problem: Problem, rates: Rates) -> list[bool]:
    """Return for each of a, b, c and out whether the device uses this array in place in host memory.

    `problem.places` must not be ().
    """
    fits = _in_place(kernel, problem)  # whether a and b can be used in place; c and out can always be
    return [
        place == device.key
        or bool(place.isdigit() and rates.wrapped and int(place) >= rates.wrapped and (fits or at > 1))
        for at, place in enumerate(problem.places)
    ]


def _in_place(kernel: Kernel, problem: Problem, *, padded: bool = False) -> bool:
    """Whether the kernel can read operands of `problem` in device memory in place, without packing.

    A kernel without the parameters a_rows and b_rows reads any strides, so it can. Another kernel can if it reads
    neither images nor panels of b, and if the operands have its layout and consist of whole tiles.

    Args:
        padded: whether the operands are in memory whose padding makes all tiles whole.
    """
    p, k = kernel.params, problem.k
    if not {"a_rows", "b_rows"} & p.keys():
        return True
    if any(p.get(name) for name in ("a_channels", "b_channels", "a_panel", "b_panel")):
        return False
    m, n, a, b = _launched(kernel, problem)
    transposed = bool(p.get("a_turned"))
    (rows, cols), a_layout = ((k, m), "T") if transposed else ((m, k), "N")
    a_fits = "a_rows" not in p or (a == a_layout and (padded or not (rows % p["a_rows"] or cols % p.get("a_cols", 1))))
    b_fits = "b_rows" not in p or (b == "N" and (padded or not (k % p["b_rows"] or n % p.get("b_cols", 1))))
    return a_fits and b_fits


def _launched(kernel: Kernel, problem: Problem) -> tuple[int, int, str, str]:
    """Return m, n and the layouts of the left and right operands of the launch.

    If `kernel` computes out^T = b^T a^T, m and n are exchanged, and the operands are b^T and a^T.
    """
    m, n, a, b = problem.m, problem.n, problem.layout[0], problem.layout[1]
    return (
        (n, m, gpu_model.TRANSPOSED[b], gpu_model.TRANSPOSED[a]) if kernel.swaps(m, n, problem.layout) else (m, n, a, b)
    )


def _streamed(kernel: Kernel, problem: Problem) -> float:
    """Return the bytes that a kernel which streams operands reads and writes.

    A kernel that streams a reads a once for each column of work-groups. A kernel that streams b reads b once for each
    row of work-groups. At most `MOST_PASSES` of these passes count.
    """
    streams = kernel.params["streams"]
    (a, b, c, out), m, n = problem.sizes, problem.m, problem.n
    if kernel.swaps(m, n, problem.layout):
        m, n, a, b = n, m, b, a
    rows, columns = kernel.group
    across, down = (min(MOST_PASSES, -(-x // size)) for x, size in ((n, columns), (m, rows)))
    return a * (across if streams & 1 else 1) + b * (down if streams & 2 else 1) + c + out


def _gathered(kernel: Kernel, problem: Problem) -> int:
    """Return the number of elements that `kernel` loads one by one.

    A kernel that reads operands in place loads four elements of an operand at a time under two conditions: along m (for
    b: n) the product is at least as large as the tile of a work-group, and the length of the operand's rows is a
    multiple of four elements. Otherwise it loads single elements.
    """
    if not kernel.params.get("DIRECT"):
        return 0
    (m, n, a, b), k = _launched(kernel, problem), problem.k
    (rows, columns), found = kernel.group, 0
    if m < rows or (k if a == "N" else m) % 4:
        found += m * k * -(-n // columns)
    if n < columns or (n if b == "N" else k) % 4:
        found += k * n * -(-m // rows)
    return found * problem.batch


def _work(kernel: Kernel, device: Device, problem: Problem) -> tuple[float, int]:
    """Return (effective FLOPs, number of launches).

    Effective FLOPs include wasted work, such that effective FLOPs ÷ full rate is the product's time.

    - GPU: padding counts, because the kernel computes whole tiles, in whole steps along k. Idle units count, because
      the full rate is that of all compute units: a product with too few work-groups takes as long as one that keeps
      every unit busy. An element that is loaded by itself counts as GATHERED multiply-adds.
    - OpenCL device that is a CPU: the device runs the work-items in one row of a work-group as vectors, and runs no
      work-items outside the result. So m and n are padded to whole tiles, not to whole work-groups. The work-items of
      an incomplete row run one by one. Each counts as SINGLE work-items, but together they count at most as a row.
    - Our own CPU kernels: neither padding nor idle units count, because these kernels have smaller tiles for the edges,
      and divide products among threads themselves.
    """
    p, m, n = kernel.params, problem.m, problem.n
    rows, columns = p.get("TM") or p.get("BM") or 1, p.get("TN") or p.get("BN") or 1
    units = device.limits.get("compute_units")
    if units is None:
        return 2.0 * -(-m // rows) * rows * -(-n // columns) * columns * problem.k * problem.batch, 1
    m, n, *_ = _launched(kernel, problem)
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
    """Whether a device, if there is one, could be faster than the CPU by enough to justify a search for devices.

    The search takes seconds, once for each machine. A product does not start a search if the CPU finishes it within a
    millisecond, or before any link could move its operands.
    """
    if cpu_seconds <= 1e-3:
        return False
    moved = problem.traffic([place != "" for place in problem.places]) if problem.places else problem.moved
    return cpu_seconds > 5e-5 + sum(moved) / FASTEST_LINK
