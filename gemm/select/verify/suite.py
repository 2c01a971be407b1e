"""The checks of a kernel on a device, including offsets beyond 32 bits, and a stress test with random products."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gemm.catalog import HOST_BACKENDS, Kernel, simplest
from gemm.core.backend import Backend
from gemm.core.numpy_original import matmul
from gemm.core.problem import Device, Problem, layout_of
from gemm.select.verify.launches import IN_A_ROW, chain, in_a_row, unable, unlinked
from gemm.select.verify.regimes import BATCHED, regimes, units_of
from gemm.select.verify.single import (
    FAR,
    FULL,
    QUICK,
    Mismatch,
    beyond,
    brief,
    check_bits,
    check_single,
    has_bits,
    ones,
    types_of,
    wide,
)

BEYOND = "beyond 2**31 elements"
"""Name of the check of offsets that do not fit into 32 bits."""
Check = tuple[str, Callable[[], object]]
"""The name of a check, and a function that raises Mismatch if the check fails."""


def too_far(kernel: Kernel, device: Device) -> str:
    """Return why `device` cannot run the chain whose matrix c reaches beyond 2**31 elements; or "".

    This check runs only if the device has four times the memory that the check needs.
    """
    needed, limits = int(1.1 * FAR) * types_of(kernel)[0].itemsize, device.limits
    there = limits.get("memory_bytes") or limits.get("global_memory", 0)
    if needed > limits.get("max_alloc", needed):
        return f"it takes {needed / 1e9:.1f} GB at once, and the device gives {limits['max_alloc'] / 1e9:.1f} GB"
    if 4 * needed > there:
        has = f"has {there / 1e9:.1f} GB" if there else "does not say what it has"
        return f"it takes {needed / 1e9:.1f} GB, and a device is to have four times that; this one {has}"
    return ""


def promised(kernel: Kernel) -> np.ndarray | None:
    """Return an array of bytes for an operand that reaches beyond 2**31 elements.

    The bytes take no memory until they are accessed. Returns None if the system does not reserve that much memory.
    """
    size = int(1.1 * FAR) * max(x.itemsize for x in (types_of(kernel)[0], *types_of(kernel)[1]))
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        return np.frombuffer(mmap.mmap(-1, size, flags), np.uint8)
    except (AttributeError, OSError, OverflowError):  # on Windows, with too little memory, or with 32-bit addresses
        return None


def check_far(backend: Backend, kernel: Kernel, device: Device) -> None:
    """Raise Mismatch unless `kernel` is correct when the rows or columns of a, b or out span 2**31 elements."""
    dtype, types = types_of(kernel)
    dice, sizes = np.random.default_rng(6), {"a": (9, 13), "b": (13, 21), "out": (9, 21)}
    memory = promised(kernel)
    assert memory is not None
    for place, axis in product(sizes, (0, 1)):
        given = {"a": ones(dice, types[0], sizes["a"]), "b": ones(dice, types[1], sizes["b"]),
                 "out": np.zeros(sizes["out"], dtype)}  # fmt: skip
        near = given[place]
        strides = [near.itemsize * near.shape[1], near.itemsize]
        strides[axis] = near.itemsize * (FAR // (near.shape[axis] - 1) + 3)
        far = as_strided(memory[: strides[axis] * near.shape[axis]].view(near.dtype), near.shape, strides)
        far[...] = near
        given[place] = far
        a, b, out = given.values()
        problem = Problem(dtype.name, 9, 21, 13, 1, "".join(map(layout_of, (a, b, out))), inputs=kernel.inputs)
        backend.launcher(kernel, device, problem)(a, b, None, out, 1, 0)
        if not np.array_equal(wide(out), matmul(wide(a), wide(b))):
            axes = ("rows", "columns")[axis]
            raise Mismatch(f"{kernel.label} on {device.name}: {axes} of {place} {BEYOND}: the product is wrong")


def verify(backend: Backend, kernel: Kernel, device: Device) -> None:
    """Run the short list of checks: raise Mismatch or KernelFailed unless `kernel` passes."""
    for _, check in planned(backend, kernel, device, full=False):
        check()


def planned(
    backend: Backend, kernel: Kernel, device: Device, *, full: bool = True, ordered: bool = True
) -> list[Check]:
    """Return the checks as (name, function) in their order. A function raises Mismatch if its check fails.

    All kernels have checks of single products against the error bound. If the device reports its number of compute
    units, there are two more kinds of checks. For each regime (`regimes`), several products are launched one after the
    other without waiting. In the regime with the fewest FLOPs, there is a chain of dependent products whose launches
    may overlap.

    `full` adds:

    - more single products, and regimes of batches
    - the chain in the regime with the most FLOPs, not with the fewest, and a second chain in this regime, with the
      simplest kernel of the same type
    - a chain whose c reaches beyond 2**31 elements, if the device has four times the memory that this c needs
    - for kernels that compute in host memory: operands whose rows or columns span 2**31 elements. These operands use
      only a few pages of memory.

    Kernels with ordered accumulation also have a check of their ordered bits. Without `ordered`, the result omits all
    checks of products with reproducible=True. The result also omits checks that this kernel or this device cannot run;
    `left_out` returns them.
    """
    cases = (FULL if full else QUICK) + beyond(kernel)
    found: list[Check] = [(str(case), partial(check_single, backend, kernel, device, case)) for case in cases]
    ways = regimes(kernel, device)
    times = IN_A_ROW if full or kernel.lazy_verify else 2
    for name, problem in ways.items():
        if (not full and name.endswith(BATCHED)) or (problem.reproducible and not ordered):
            continue
        found.append((name, partial(in_a_row, backend, device, [(kernel, problem)], (1,), times=times)))
    if _links(ways) and not unlinked(kernel, device):
        found += _chains(backend, kernel, device, _links(ways), full=full)
    if full and kernel.backend in HOST_BACKENDS and promised(kernel) is not None:
        found.append((BEYOND, partial(check_far, backend, kernel, device)))
    if ordered and has_bits(kernel, device):
        found.append(("ordered bits", partial(check_bits, backend, kernel, device)))
    return found


def _chains(
    backend: Backend, kernel: Kernel, device: Device, single: dict[str, Problem], *, full: bool
) -> Iterator[Check]:
    """Yield the checks of chains. Each chain is in one of the regimes `single`, which come from `_links`."""
    several = [problem for name, problem in single.items() if "one wave" not in name] or [*single.values()]
    easiest, *_, hardest = sorted((several[0], *several), key=lambda problem: problem.flops)
    yield "a chain", partial(chain, backend, device, (kernel,), hardest if full else easiest, (2,))
    if full:
        plain = simplest(kernel.backend, kernel.dtype)
        yield "a chain with the simplest kernel", partial(chain, backend, device, (kernel, plain), hardest, (3,))
    if full and not too_far(kernel, device):
        yield BEYOND, partial(chain, backend, device, (kernel,), hardest, (4,), far=True)


def _links(ways: dict[str, Problem]) -> dict[str, Problem]:
    """Return the regimes in which chains can be: those of products with batch 1 and reproducible=False."""
    return {name: problem for name, problem in ways.items() if problem.batch == 1 and not problem.reproducible}


def left_out(kernel: Kernel, device: Device, *, full: bool = True) -> dict[str, str]:
    """Return the checks that `planned` omits because this kernel or this device cannot run them: {what: why}."""
    if kernel.backend in HOST_BACKENDS:
        there = not full or promised(kernel) is not None
        return {} if there else {BEYOND: "the system promises no more memory than it has"}
    ways, found = regimes(kernel, device), {}
    if not ways:
        why = "its launches are not cut into tiles" if units_of(device) else "the device does not tell of its units"
        found["regimes of launches, launches in a row, chains"] = why
    elif why := unlinked(kernel, device) or ("" if _links(ways) else "it computes products of a batch alone"):
        found["chains"] = why
    if full and (why := too_far(kernel, device) or ("it is a chain" if found else "")):
        found[BEYOND] = why
    return found


def stress(backend: Backend, device: Device, kernels: Sequence[Kernel], seconds: float, seed: int) -> Iterator[str]:
    """Run random regimes of random kernels for `seconds`, and yield a description of each test that passes.

    A test is either `in_a_row` with one to three kernels, or a `chain`. Test number i depends only on `seed` and i.
    Raises Mismatch, KernelFailed.
    """
    able = [kernel for kernel in kernels if not unable(kernel, device) and regimes(kernel, device)]
    until, number = time.monotonic() + seconds, 0
    while able and time.monotonic() < until:
        dice = np.random.default_rng([seed, number])
        some = [able[dice.integers(len(able))] for _ in range(dice.integers(1, 4))]
        jobs = [(kernel, _varied(kernel, device, dice)) for kernel in some]
        if dice.integers(3):
            in_a_row(backend, device, jobs, (seed, number), times=IN_A_ROW)
            what = "in a row: " + ", ".join(f"{kernel.label} {brief(problem)}" for kernel, problem in jobs)
        else:
            kernel, problem = jobs[0]
            seconds_of = [x for x in able if (x.dtype, x.inputs) == (kernel.dtype, ())]
            second = seconds_of[dice.integers(len(seconds_of))] if seconds_of else None
            if not chain(backend, device, (kernel, second), problem, (seed, number)):
                number += 1
                continue
            what = f"chain: {kernel.label} {brief(problem)}" + (f", {second.label}" if second else "")
        yield what
        number += 1


def _varied(kernel: Kernel, device: Device, dice: np.random.Generator) -> Problem:
    """Return the product of a random regime. In half of the cases, change its sizes by up to 50 %."""
    found = list(regimes(kernel, device).values())
    problem = found[dice.integers(len(found))]
    if dice.integers(2):
        return problem
    m, n, k = (max(8, int(size * dice.uniform(0.5, 1.5)) // 8 * 8) if size > 8 else size
               for size in (problem.m, problem.n, problem.k))  # fmt: skip
    return replace(problem, m=m, n=n, k=k)
