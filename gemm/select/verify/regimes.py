"""The regimes of a kernel on a device: the paths that its launches can take, and a small product for each path.

A wave is a number of tiles of the result that run at the same time. The path of a GPU kernel depends on three facts:
whether the result has more tiles than one wave, whether the last wave is partial, and whether k is cut into parts.
`launched` computes the path of a product with the same arithmetic as the launch itself. `regimes` does the inverse: it
finds a small product for each path. The results of both functions depend only on the kernel's row in the catalog and
the properties of the Device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from gemm.catalog import Kernel, launch_arithmetic
from gemm.core.problem import Device, Problem

STEPS = tuple(sorted({base << shift for base in (1, 3) for shift in range(12)}))
"""Numbers of steps along k that the search for regimes tries."""
BATCHED = ", of a batch"
"""Suffix of the names of regimes in which a thread block computes tiles of more than one product."""


class Launched(NamedTuple):
    """How a launch computes a product.

    Attributes:
        tiles: number of tiles of the result, for the whole batch. A thread block or a cluster computes each tile.
        at_once: number of tiles that run at the same time. A persistent kernel has this number of clusters, which
            compute all tiles.
        parts: number of parts into which k is cut.
        shared: whether the tiles of a partial last wave are divided, along k, among all thread blocks (stream-K).
    """

    tiles: int
    at_once: int
    parts: int
    shared: bool

    @property
    def waves(self) -> str:
        """Whether the tiles need more than one wave and whether the last wave is partial, in words."""
        if self.tiles <= self.at_once:
            return "one wave"
        return "a last partial wave" if self.tiles % self.at_once else "whole waves"

    @property
    def depth(self) -> str:
        """How k is divided, in words."""
        return "k in parts" if self.parts > 1 else "last tiles shared" if self.shared else "k whole"


def units_of(device: Device) -> int:
    """Return the number of multiprocessors or compute units; 0 if the device does not report it."""
    return device.limits.get("sm_count") or device.limits.get("compute_units", 0)


def launched(kernel: Kernel, device: Device, problem: Problem) -> Launched:
    """Return how `kernel` computes `problem` on `device`, which must report its number of units."""
    m, n, k, ordered, units = problem.m, problem.n, problem.k, problem.reproducible, units_of(device)
    if kernel.swaps(m, n, problem.layout):
        m, n = n, m
    if "sm_count" not in device.limits:
        tiles = kernel.groups(m, n, problem.batch)
        share = k if ordered else kernel.share(k, tiles, units)
        return Launched(tiles, units, -(-k // share), False)
    tiles, members = launch_arithmetic.groups(kernel, m, n, problem.batch), kernel.params.get("MULTICAST", 1)
    parts = 1 if ordered else launch_arithmetic.parts(kernel, tiles, k, units)
    separate = launch_arithmetic.OVERLAPPING not in device.features  # before Hopper, parts of k are separate blocks
    joined = members if separate else members * parts
    room = launch_arithmetic.room(units, launch_arithmetic.resident(kernel), joined)
    shared = not ordered and parts == 1 and launch_arithmetic.shared(kernel, tiles, k, units) > 0
    return Launched(tiles, max(1, room * joined // (members * parts)), parts, shared)


def name_of(kernel: Kernel, device: Device, problem: Problem) -> str:
    """Return the name of the regime of a product."""
    return _named(kernel, problem, launched(kernel, device, problem))


def _named(kernel: Kernel, problem: Problem, found: Launched) -> str:
    walked = kernel.params.get("blocks") and problem.batch > 1 and found.tiles > found.at_once
    return f"{found.depth}, {found.waves}{BATCHED if walked else ''}"


def regimes(kernel: Kernel, device: Device) -> dict[str, Problem]:
    """Return {regime: a small product of that regime}.

    The result is {} if the device does not report its number of units, or if the kernel has no tiles.

    The regime "reproducible" is a product with reproducible=True. Without that option, its k would be cut into parts or
    its last tiles would be shared.
    """
    if not units_of(device) or kernel.dtype == "*" or ("sm_count" in device.limits and "BM" not in kernel.params):
        return {}
    return dict(_regimes(kernel, device))


@lru_cache(512)
def _regimes(kernel: Kernel, device: Device) -> dict[str, Problem]:
    best: dict[str, tuple[tuple[int, int], Problem]] = {}
    for problem in _candidates(kernel, device):
        way, (m, n, k) = launched(kernel, device, problem), (problem.m, problem.n, problem.k)
        # `elements` estimates the time of a check: it fills a and b, and compares the m x n results of 8 launches.
        elements = problem.batch * (m * k + k * n + 8 * m * n)
        name, rank = _named(kernel, problem, way), (_faint(kernel, problem, way), elements)
        if name not in best or rank < best[name][0]:
            best[name] = rank, problem
    found = {name: problem for name, (_, problem) in best.items()}
    cut = [x for name, x in found.items() if not name.startswith("k whole")]
    if cut and kernel.ordered and not set(kernel.ordered_needs) - device.features:
        least = min(cut, key=lambda x: x.flops)
        found["reproducible"] = replace(least, reproducible=True)
    return found


def _faint(kernel: Kernel, problem: Problem, way: Launched) -> int:
    """Return how poorly a product exercises its regime: 0, 1 or 2; the least is best.

    1 is added if there are too few tiles: they fill less than half of a single wave, or they exceed one wave and do not
    fill two. 1 is added if each part of k is so short that it uses no stage of the ring in shared memory twice.
    """
    few = way.tiles < 2 * way.at_once if way.tiles > way.at_once else 2 * way.tiles < way.at_once
    ring = kernel.params.get("STAGES", 0) * kernel.params.get("BK", 1)
    return few + (problem.k < (ring + kernel.params.get("BK", 1)) * way.parts)


def _candidates(kernel: Kernel, device: Device) -> Iterator[Problem]:
    """Yield products of a few tiles, and of about 1/2, 1, 3/2, 2 and 3 waves of tiles.

    The number of tiles in a wave depends on the number of parts of k. All possible numbers of parts are tried.
    """
    units, p = units_of(device), kernel.params
    most = max(p.get("parts", 0), 1)
    if "sm_count" in device.limits:
        members = p.get("MULTICAST", 1)
        rooms = {launch_arithmetic.room(units, launch_arithmetic.resident(kernel), members * cut) // apart or 1
                 for cut in range(1, min(most, launch_arithmetic.CLUSTER // members) + 1)
                 for apart in (1, cut if launch_arithmetic.OVERLAPPING not in device.features else 1)}  # fmt: skip
    else:
        rooms = {units}
    tiles = {max(1, waves * room + more) for room in rooms for waves in (0, 1, 2, 3) for more in (-1, 0, 1, 2, 3)}
    tiles |= {max(1, room // 2) for room in rooms} | {room + max(1, room // 2) for room in rooms}
    depth = p.get("BK", 16)
    for count in sorted(tiles):
        shapes = [shape for batch in (1, 2, 3, 5) for shape in [_shape(kernel, count, batch)] if shape]
        for steps in STEPS:
            for batch, m, n in shapes:
                if batch == 1 or (p.get("blocks") and not p.get("MODULI")) or p.get("STACK"):
                    k = (steps - 1) * depth + max(1, depth // 2)
                    yield Problem(kernel.dtype, m, n, k, batch, _layout(kernel), precision=kernel.precision,
                                  inputs=kernel.inputs)  # fmt: skip


def _shape(kernel: Kernel, count: int, batch: int) -> tuple[int, int, int] | None:
    """Return (batch, m, n) for nearly square products with `count` tiles in total. Edge tiles are three quarters full.

    If a tile of the kernel holds several products (STACK > 1), return a batch that nearly fills `count` tiles. Returns
    None if there are no such products.
    """
    p = kernel.params
    if p.get("STACK", 0) > 1:
        return (count * p["STACK"] - 1, max(1, p["BM"] - 3), max(1, p["BN"] - 3)) if batch == 1 else None
    high, wide = kernel.group
    high *= p.get("MULTICAST", 1)
    if count % batch:
        return None
    each, best = count // batch, None
    for rows in range(1, each + 1):
        if each % rows:
            continue
        m, n = ((x - 1) * size + max(1, 3 * size // 4) for x, size in ((rows, high), (each // rows, wide)))
        if not kernel.swaps(m, n, _layout(kernel)) and (best is None or m + n < sum(best)):
            best = m, n
    return (batch, *best) if best else None


def _layout(kernel: Kernel) -> str:
    """Return the layout in which the kernel reads a and b without copying them."""
    a, b = (kernel.params.get(f"{x}_lies", 3) for x in "ab")
    return ("T" if a == 2 else "N") + ("T" if b == 1 else "N") + "N"
