"""`gemm verify`: check that every kernel computes correct results on every device of this machine."""

from __future__ import annotations

import argparse
import secrets
import time
from collections import Counter
from dataclasses import asdict, dataclass, field

from gemm.backends import registry
from gemm.catalog import HOST_BACKENDS, KERNELS, Kernel
from gemm.cli.arguments import add_selection, check_kernels, positive, save_json, select, writable
from gemm.core import text
from gemm.core.errors import KernelFailed
from gemm.core.problem import Device
from gemm.frontend import inventory
from gemm.select import candidates
from gemm.select.verify import suite
from gemm.select.verify.single import ORDERED, Mismatch, has_bits, ordered_hash

HELP = "check every kernel on this machine's devices against the numerical contract"
EXAMPLES = """examples:
  gemm verify                          every kernel that can run here
  gemm verify --backends cpu --quick   the checks that "auto" requires
  gemm verify --hashes                 the bits of reproducible=True
  gemm verify --stress 300             random products, five minutes on each GPU
  gemm verify --kernel sgemm_adreno_image_8x4 --json verified.json

The exit status is 1 when a check failed or nothing could be checked.
"""
Job = tuple[Device, Kernel]


@dataclass
class Outcome:
    """The outcome of one kernel on one device.

    Attributes:
        passed: the number of checks that passed. The first failure ends the checks of the kernel.
        total: the number of all checks.
        ordered: whether the reproducible bits are those of the contract; None if the contract has no such bits for the
            kernel on this device.
        sha256: the hash of the reproducible result, with --hashes.
        seconds: the time of all checks, compilation included.
        error: the first failure, or "".
        left_out: {what the checks could not cover: why}.
    """

    kernel: str
    device: str
    dtype: str
    passed: int
    total: int
    ordered: bool | None = None
    sha256: str | None = None
    seconds: float = 0.0
    error: str = ""
    left_out: dict[str, str] = field(default_factory=dict)


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `gemm verify`."""
    add_selection(parser)
    parser.add_argument("--quick", action="store_true", help="run only the short cases")
    parser.add_argument("--hashes", action="store_true", help="check only the reproducible results, and print hashes")
    parser.add_argument("--stress", type=positive, nargs="?", const=60, metavar="SECONDS",
                        help="run random products on each device for this time (default: 60): several without waiting, "
                        "and chains of dependent products")  # fmt: skip
    parser.add_argument("--seed", type=int, metavar="N",
                        help="the seed of --stress, to repeat an earlier run, which printed its seed")  # fmt: skip
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
        for device, row in jobs:
            progress.step(f"{row.name} on {device.key}", 0)
            outcomes.append(_hash(row, device) if args.hashes else _check(row, device, args.quick))
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
        save_json(args.json, {
            "schema": "gemm-verify/1", **inventory.head(), "devices": list(map(inventory.device_facts, devices)),
            "outcomes": [asdict(outcome) for outcome in outcomes], "skipped": skipped,
        })  # fmt: skip
    if not outcomes:
        print("Nothing was checked.")
        return 1
    what = "right bits" if args.hashes else "passed"
    tested = text.counted(len(outcomes), "pair of kernel and device", "pairs of kernel and device")
    print(f"{len(outcomes) - len(failures)} of {tested}: {what}.")
    return 1 if failures or differing else 0


def _jobs(args: argparse.Namespace, devices: list[Device]) -> tuple[list[Job], list[str]]:
    """The kernels to check on each device, and a line for each kernel that cannot run there."""
    rows = check_kernels(args.kernel) or list(KERNELS)
    jobs: list[Job] = []
    skipped: list[str] = []
    for device in devices:
        for row in rows:
            if row.backend != device.backend or (args.hashes and (not row.ordered or row.inputs)):
                continue
            why = candidates.unavailable(row, device, reproducible=args.hashes)
            if why:
                skipped.append(f"{row.name} on {device.key}: {why}")
            else:
                jobs.append((device, row))
    return jobs, skipped


def _stress(jobs: list[Job], seconds: int, seed: int | None) -> int:
    """Run random products on each device. Returns 1 if a result was wrong or if no product ran."""
    seed = secrets.randbits(32) if seed is None else seed
    print(f"--seed {seed}")
    made, failed = 0, False
    for device in dict.fromkeys(device for device, _ in jobs):
        rows, count = [row for each, row in jobs if each == device], 0
        try:
            for _ in suite.stress(registry.backend(device.backend), device, rows, seconds, seed):
                count += 1
        except (Mismatch, KernelFailed) as failure:
            failed = True
            print(f"FAILED in trial {count + 1} on {device.key}, --seed {seed}: {failure}")
        else:
            none = f"no trial was made in {text.counted(seconds, 'second')}"
            print(f"{device.key}: {text.counted(count, 'trial') + ', all right' if count else none}")
        made += count
    if not made:
        host = all(device.backend in HOST_BACKENDS for device, _ in jobs)
        why = "--stress is for GPUs, and for OpenCL's devices" if host else f"give --stress more than {seconds} seconds"
        print(f"Nothing was checked: {why}.")
    return 1 if failed or not made else 0


def _check(row: Kernel, device: Device, quick: bool) -> Outcome:
    planned = suite.planned(registry.backend(device.backend), row, device, full=not quick)
    found = Outcome(row.name, device.key, row.dtype, 0, len(planned))
    start = time.perf_counter()
    try:
        for _, check in planned:
            check()
            found.passed += 1
    except (Mismatch, KernelFailed) as failure:
        found.error = str(failure)
    if has_bits(row, device):
        # The check of the ordered bits comes last, and a failed check ends the verification. The bits are therefore
        # known to be right only if all checks have passed.
        found.ordered = found.passed == found.total
    found.left_out, found.seconds = suite.left_out(row, device, full=not quick), time.perf_counter() - start
    return found


def _hash(row: Kernel, device: Device) -> Outcome:
    found = Outcome(row.name, device.key, row.dtype, 0, 1, ordered=False)
    start, right = time.perf_counter(), ORDERED[row.dtype]
    try:
        found.sha256 = ordered_hash(registry.backend(device.backend), row, device)
        found.error = "" if found.sha256 == right else f"its bits are not the contract's, {right[:16]}"
    except KernelFailed as failure:
        found.error = str(failure)
    found.ordered = not found.error
    found.passed, found.seconds = int(found.ordered), time.perf_counter() - start
    return found


def _left_out(outcomes: list[Outcome]) -> list[str]:
    """Lines that say what could not be covered, why, and for which kernels."""
    kernels: dict[str, list[str]] = {}
    for outcome in outcomes:
        for what, why in outcome.left_out.items():
            kernels.setdefault(f"{what} on {outcome.device}: {why}", []).append(outcome.kernel)
    return [f"{what} ({text.counted(len(names), 'kernel')}: {', '.join(names)})" for what, names in kernels.items()]


def _differing(outcomes: list[Outcome]) -> list[str]:
    """The dtypes whose kernels have different hashes."""
    hashes = {(outcome.dtype, outcome.sha256) for outcome in outcomes if outcome.sha256}
    return sorted(dtype for dtype, count in Counter(dtype for dtype, _ in hashes).items() if count > 1)


def _print(outcomes: list[Outcome], *, hashes: bool) -> None:
    columns = ["sha256"] if hashes else ["cases", "ordered bits"]
    lines = [
        [o.kernel, o.device, o.dtype, *([(o.sha256 or "–")[:16]] if hashes else [f"{o.passed}/{o.total}", _ordered(o)]),
         text.seconds(o.seconds)]
        for o in outcomes
    ]  # fmt: skip
    if outcomes:
        text.table(["kernel", "device", "dtype", *columns, "time"], lines, numbers=(3, 3 + len(columns)))


def _ordered(outcome: Outcome) -> str:
    if outcome.ordered is None:
        return "–"
    return "ok" if outcome.ordered else "not reached" if outcome.passed < outcome.total - 1 else "WRONG"
