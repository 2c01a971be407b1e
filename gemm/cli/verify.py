"""`gemm verify`: check that every kernel computes correct results on every device of this machine."""

from __future__ import annotations

import argparse
import secrets
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from gemm.bench import phrases
from gemm.catalog import KERNELS, Kernel
from gemm.cli import text
from gemm.cli.arguments import add_selection, check_kernels, positive, save_json, select, writable
from gemm.core.backend import Backend
from gemm.core.errors import KernelFailed
from gemm.core.problem import Device
from gemm.frontend import report
from gemm.select import candidates
from gemm.select.verify import suite
from gemm.select.verify.single import ORDERED, Mismatch, has_bits, ordered_hash

HELP = "check every kernel on this machine's devices against the numerical contract"
EXAMPLES = """examples:
  gemm verify                          every kernel that can run here
  gemm verify --backends cpu --quick   the checks that a kernel must pass before "auto" chooses it
  gemm verify --hashes                 the bits of reproducible=True: the same on all devices
  gemm verify --stress 300             random overlapping products, for five minutes on each GPU
  gemm verify --kernel sgemm_adreno_image_8x4 --json verified.json

The exit status is 1 when a check failed or nothing could be checked.
"""
Job = tuple[Backend, Device, Kernel]


@dataclass
class Outcome:
    """The outcome of one kernel on one device.

    Attributes:
        passed: the number of cases that passed.
        total: the number of all cases.
        ordered: whether the reproducible bits are those of the contract; None if the kernel does not offer them.
        sha256: the hash of the reproducible result, with --hashes.
        seconds: the time of all cases, compilation included.
        error: the first failure, or "".
        left_out: {what could not be covered: why}.
    """

    kernel: str
    device: str
    dtype: str
    passed: int
    total: int
    ordered: bool | None
    sha256: str | None
    seconds: float
    error: str = ""
    left_out: dict[str, str] = field(default_factory=dict)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_selection(parser)
    parser.add_argument("--quick", action="store_true", help="run only the short cases")
    parser.add_argument("--hashes", action="store_true", help="check only the reproducible results, and print hashes")
    parser.add_argument("--stress", type=positive, nargs="?", const=60, metavar="SECONDS",
                        help="run random products, in series without waiting and in dependent chains, for this time on "
                        "each device (default: 60)")  # fmt: skip
    parser.add_argument("--seed", type=int, metavar="N", help="the seed of --stress, as an earlier run printed it")
    parser.add_argument("--json", type=writable, metavar="FILE", help="also write the outcomes as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the checks, print the table and return the exit status."""
    devices, missing = select(args)
    jobs, skipped = _jobs(args, devices)
    skipped += [f"{name}: {why.removeprefix(f'{name}: ')}" for name, why in missing.items()]
    if args.stress:
        return _stress(jobs, args.stress, args.seed)
    outcomes = []
    with text.Progress(len(jobs)) as progress:
        for backend, device, row in jobs:
            progress.step(f"{row.name} on {device.key}", 0)
            outcomes.append(_hash(backend, row, device) if args.hashes else _check(backend, row, device, args.quick))
            progress.step(f"{row.name} on {device.key}")
    differing = _differing(outcomes)
    _print(outcomes, hashes=args.hashes)
    text.bullets("Not checked:", skipped)
    text.bullets("Not covered:", _left_out(outcomes))
    failures = [outcome for outcome in outcomes if outcome.error]
    for outcome in failures:
        print(f"FAILED {outcome.kernel} on {outcome.device}: {outcome.error}")
    if differing:
        print(f"FAILED: the reproducible results differ for {', '.join(differing)}")
    if args.json:
        save_json(args.json, _document(outcomes, devices, skipped))
    if not outcomes:
        print("Nothing was checked.")
        return 1
    what = "right bits" if args.hashes else "passed"
    tested = phrases.counted(len(outcomes), "pair of kernel and device", "pairs of kernel and device")
    print(f"{len(outcomes) - len(failures)} of {tested}: {what}.")
    return 1 if failures or differing else 0


def _jobs(args: argparse.Namespace, devices: list[tuple[Backend, Device]]) -> tuple[list[Job], list[str]]:
    """The kernels to check on each device, and a line for each kernel that cannot run there."""
    rows = check_kernels(args.kernel) or list(KERNELS)
    jobs: list[Job] = []
    skipped: list[str] = []
    for backend, device in devices:
        for row in rows:
            if row.backend != backend.name or (args.hashes and (not row.ordered or row.inputs)):
                continue
            why = candidates.unavailable(row, device, reproducible=args.hashes)
            if why:
                skipped.append(f"{row.name} on {device.key}: {why}")
            else:
                jobs.append((backend, device, row))
    return jobs, skipped


def _stress(jobs: list[Job], seconds: int, seed: int | None) -> int:
    """Run random products on each device. Returns 1 if a result was wrong or if no product ran."""
    seed = secrets.randbits(32) if seed is None else seed
    print(f"--seed {seed}")
    made, failed = 0, False
    for device in dict.fromkeys(device for _, device, _ in jobs):
        backend = next(backend for backend, each, _ in jobs if each == device)
        rows, count = [row for _, each, row in jobs if each == device], 0
        try:
            for _ in suite.stress(backend, device, rows, seconds, seed):
                count += 1
        except (Mismatch, KernelFailed) as failure:
            failed = True
            print(f"FAILED after {count} on {device.key}, --seed {seed}: {failure}")
        else:
            print(f"{device.key}: {phrases.counted(count, 'trial', 'trials')}, all right")
        made += count
    if not made:
        print("Nothing was checked: --stress is for GPUs, and for OpenCL's devices.")
    return 1 if failed or not made else 0


def _check(backend: Backend, row: Kernel, device: Device, quick: bool) -> Outcome:
    offers = has_bits(row, device)
    planned = suite.planned(backend, row, device, full=not quick)
    total = len(planned)
    passed, error = 0, ""
    start = time.perf_counter()
    try:
        for _, check in planned:
            check()
            passed += 1
    except (Mismatch, KernelFailed) as failure:
        error = str(failure)
    # The checks of the ordered bits come last, so they have run only if all checks passed.
    ordered = None if not offers else passed == total
    left_out, took = suite.left_out(row, device, full=not quick), time.perf_counter() - start
    return Outcome(row.name, device.key, row.dtype, passed, total, ordered, None, took, error, left_out)


def _hash(backend: Backend, row: Kernel, device: Device) -> Outcome:
    start = time.perf_counter()
    sha256, error = None, ""
    try:
        sha256 = ordered_hash(backend, row, device)
        right = sha256 == ORDERED[row.dtype]
        error = "" if right else f"its bits are not the contract's, {ORDERED[row.dtype][:16]}"
    except KernelFailed as failure:
        right, error = False, str(failure)
    return Outcome(row.name, device.key, row.dtype, int(right), 1, right, sha256, time.perf_counter() - start, error)


def _left_out(outcomes: list[Outcome]) -> list[str]:
    """What could not be covered, why, and for which kernels."""
    whose: dict[str, list[str]] = {}
    for outcome in outcomes:
        for what, why in outcome.left_out.items():
            whose.setdefault(f"{what} on {outcome.device}: {why}", []).append(outcome.kernel)
    return [f"{told} ({phrases.counted(len(names), 'kernel', 'kernels')}: {', '.join(names)})"
            for told, names in whose.items()]  # fmt: skip


def _differing(outcomes: list[Outcome]) -> list[str]:
    """The dtypes whose kernels have different hashes."""
    found: dict[str, set[str]] = {}
    for outcome in outcomes:
        if outcome.sha256:
            found.setdefault(outcome.dtype, set()).add(outcome.sha256)
    return sorted(dtype for dtype, hashes in found.items() if len(hashes) > 1)


def _print(outcomes: list[Outcome], *, hashes: bool) -> None:
    head: tuple[str, ...]
    lines: list[tuple[str, ...]]
    if hashes:
        head = ("kernel", "device", "dtype", "sha256", "time")
        lines = [(o.kernel, o.device, o.dtype, (o.sha256 or "–")[:16], phrases.seconds(o.seconds)) for o in outcomes]
    else:
        head = ("kernel", "device", "dtype", "cases", "ordered bits", "time")
        lines = [
            (o.kernel, o.device, o.dtype, f"{o.passed}/{o.total}", _ordered(o), phrases.seconds(o.seconds))
            for o in outcomes
        ]
    if outcomes:
        text.table(head, lines, numbers=(3, len(head) - 1))


def _ordered(outcome: Outcome) -> str:
    if outcome.ordered is None:
        return "–"
    return "ok" if outcome.ordered else "not reached" if outcome.passed < outcome.total - 1 else "WRONG"


def _document(outcomes: list[Outcome], devices: list[tuple[Backend, Device]], skipped: list[str]) -> dict[str, Any]:
    return {
        "schema": "gemm-verify/1", **report.head(),
        "devices": [report.device_facts(device) for _, device in devices],
        "outcomes": [asdict(outcome) for outcome in outcomes], "skipped": skipped,
    }  # fmt: skip
