"""`gemm tune`: find the best parameters for this machine's devices, and transfer tuning records between machines."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from gemm.catalog import KERNELS, Kernel
from gemm.cli.arguments import (
    LAYOUTS,
    Mistake,
    add_selection,
    check_kernels,
    listed,
    positive,
    save_text,
    select,
    shapes,
    writable,
)
from gemm.core import disk_cache, text
from gemm.core.problem import Device
from gemm.select import candidates, probe, tuning_db, verification
from gemm.select.worker import Child
from gemm.tune import calibrate, tuner

HELP = "adapt the choice of devices and the parameters of their kernels to this machine"
EXAMPLES = """examples:
  gemm tune                  calibrate the predictions of "auto", in 30 seconds
  gemm tune --quick          the same in 5 seconds
  gemm tune --level fast     tune kernel parameters, a second for each class
  gemm tune --level full --time-budget 600 --export here.json
  gemm tune --device opencl:0 --kernel sgemm_adreno_image_8x4 --level full
  gemm tune --import there.json     import an equal device's records

Candidates are checked and timed in a worker process. A candidate that hangs or
crashes is not tried again with this driver. Each measurement is stored at once,
and an interrupted run continues when you start it again. See docs/tuning.md.
"""
SHAPES = (
    (1, 1024, 1024, 1024), (1, 512, 512, 512), (1, 256, 256, 256), (1, 2048, 2048, 2048), (1, 64, 4096, 4096),
    (1, 4096, 64, 4096), (1, 4096, 4096, 64), (1, 1, 4096, 4096), (64, 128, 128, 128), (1, 4096, 4096, 4096),
)  # fmt: skip
"""(batch, m, n, k) of the classes that are tuned without --shapes, the most important ones first."""
QUICK, MODEL = 3.7, 28.0
"""Seconds at most for the calibration of the cost model by `gemm tune --level model`, with --quick (QUICK) and without
(MODEL). The whole command takes 5 and 30 seconds."""
CPU_WORK = 1 << 31
"""An OpenCL device on the CPU is tuned only for those products of SHAPES that have at most this many FLOPs."""


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `gemm tune`."""
    add_selection(parser)
    parser.add_argument("--level", choices=("off", "model", "fast", "full"),
                        help="off: measure nothing; model: calibrate the predicted times; fast: tune kernel "
                        "parameters, a second for each class of products; full: search all parameters (default: "
                        "full with --kernel or --shapes, off with --import, else model)")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="measure for 5 s instead of 30 s (with --level model)")
    parser.add_argument("--time-budget", type=_seconds, metavar="SECONDS", default=math.inf,
                        help="stop after about this time (default: no limit)")  # fmt: skip
    parser.add_argument("--shapes", type=shapes, metavar="LIST", help="MxNxK,...: one shape for each class to tune")
    parser.add_argument("--batch", type=positive, default=1, metavar="COUNT", help="products per call, for --shapes")
    parser.add_argument("--trans", type=_layouts, default=["NN"], metavar="LIST",
                        help="layouts of a and b: NN, NT, TN, TT (default: NN)")  # fmt: skip
    parser.add_argument("--dtypes", type=listed, metavar="LIST", help="only kernels of these types")
    parser.add_argument("--import", "--merge", dest="merge", type=Path, action="append", metavar="FILE",
                        help="first import the records of FILE, which --export wrote")  # fmt: skip
    parser.add_argument("--export", type=writable, metavar="FILE",
                        help="at the end, write all records of these devices as JSON")  # fmt: skip


def _seconds(argument: str) -> float:
    try:
        value = float(argument)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, not {argument!r}")
    return value


def _layouts(argument: str) -> list[str]:
    found = [item.upper() for item in listed(argument)]
    if wrong := [item for item in found if item not in LAYOUTS]:
        raise argparse.ArgumentTypeError(f"must be NN, NT, TN or TT, not {wrong[0]}")
    return found


def run(args: argparse.Namespace) -> int:
    """Import, tune and export, and return the exit status."""
    if disk_cache.cache_dir() is None:
        raise Mistake("gemm stores records in the cache folder, but cannot use that folder: see gemm info")
    for file in args.merge or ():
        try:
            count = tuning_db.imported(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise Mistake(f"cannot import {file}: {error}") from None
        print(f"{text.counted(count, 'record')} imported from {file}")
    usual = "model" if args.quick else "off" if args.merge else "full" if args.kernel or args.shapes else "model"
    level, status, devices = args.level or usual, 0, None
    if args.quick and level != "model":
        raise Mistake(f"--quick belongs to --level model, not to --level {level}")
    if level != "off" or args.device or args.backends:
        devices, _ = select(args)
    if devices and level == "model":
        if probe.disturbance() and not args.quick:
            # Other processes disturbed the probe. Its rates, and the calibration based on them, are measured again.
            probe.forget(("probe", "costs"))
            verification.forget_choices()
        _calibrate(devices, min(args.time_budget, QUICK if args.quick else MODEL))
    elif devices and level != "off":
        status = _tune(args, devices, fast=level == "fast")
    if args.export:
        save_text(args.export, tuning_db.text(tuning_db.exported(devices)))
    return status


def _calibrate(devices: list[Device], budget: float) -> None:
    """Calibrate the cost model, and print the ratios of measured to predicted times."""
    probe.facts()
    start = time.monotonic()
    found = []
    with text.Progress(len(calibrate.TYPES) * len(calibrate.SHAPES) * len(devices)) as bar:
        for each in calibrate.calibrate(devices, start + budget):
            found.append(each)
            bar.step(f"{each.problem} on {each.device.key}")
    took = text.seconds(time.monotonic() - start)
    print(f"{text.counted(len(found), 'product')} timed in {took}. Measured ÷ predicted time, median and range:")
    for device in devices:
        for where, own in (("host", False), ("resident", True)):
            errors = sorted(x.error for x in found if x.device == device and (x.problem.device != "host") == own)
            if errors:
                middle = statistics.median(errors)
                print(f"  {device.key:10} {where:9} {middle:5.2f}  {errors[0]:5.2f} … {errors[-1]:5.2f}  {device.name}")


class _Class(NamedTuple):
    """A class of products on a device, and the kernels to tune for it. The shape is (batch, m, n, k)."""

    device: Device
    rows: list[Kernel]
    shape: tuple[int, int, int, int]
    layout: str

    def __str__(self) -> str:
        batch, *sizes = self.shape
        lead = f"{batch} × " if batch > 1 else ""
        return f"{lead}{' × '.join(map(str, sizes))} {self.layout}"

    def size(self) -> int:
        """The largest number of candidates that the tuner may try."""
        names = dict(zip(("batch", "m", "n", "k"), self.shape, strict=True)) | dict(self.device.limits)
        return sum(tuner.size(row, names) for row in self.rows)


def _classes(args: argparse.Namespace, devices: list[Device]) -> list[_Class]:
    """The classes to tune on the devices that have kernels with tunable parameters."""
    given = [(args.batch, *shape) for shape in args.shapes or ()]
    return [
        _Class(device, rows, shape, layout)
        for device in devices if (rows := _rows(args, device))
        for shape in given or [s for s in SHAPES if device.kind != "cpu" or 2 * math.prod(s) <= CPU_WORK]
        for layout in args.trans
    ]  # fmt: skip


def _rows(args: argparse.Namespace, device: Device) -> list[Kernel]:
    """The kernels to tune on `device`: those that the user named, or those that dispatch can choose there.

    The list is empty if none of these kernels has tunable parameters.
    """
    known = [row for row in KERNELS if row.dtype != "*"]
    rows = check_kernels(args.kernel) or [row for row in known if row.chosen_on(device.kind, device.features)]
    rows = [row for row in rows if row.backend == device.backend and not candidates.unavailable(row, device)]
    tunable = {row.dtype for row in rows if row.space}
    return [row for row in rows if row.dtype in (args.dtypes or tunable)] if tunable else []


def _tune(args: argparse.Namespace, devices: list[Device], *, fast: bool) -> int:
    classes = _classes(args, devices)
    if not classes:
        raise Mistake("nothing to tune: no selected kernel that runs here has parameters to tune (see: gemm info)")
    start = time.monotonic()
    until = start + args.time_budget
    total, tried, worked = sum(each.size() for each in classes), 0, False
    failures: list[str] = []
    with Child("gemm.tune.tuner") as child, text.Progress(total, until) as bar:
        for each in classes:
            if time.monotonic() >= until:
                break
            last: dict[str, tuner.Step] = {}
            for step in tuner.tune(child, each.device, each.rows, each.shape, each.layout, fast=fast, until=until):
                last[step.row.name], tried = step, tried + 1
                bar.step(f"{each} {step.row.name}")
                if isinstance(step.trial, str):
                    what = f"{step.row.tuned(step.params).label} on {each.device.key}, {each}"
                    failures.append(f"{what}: {step.trial.removeprefix(tuning_db.HERE)}")
            bar.clear()
            print(f"{each} on {each.device.key}, {each.device.name}")
            for step in sorted(last.values(), key=lambda step: step.record.seconds or math.inf):
                print(f"  {_outcome(step)}", flush=True)
                worked = worked or step.record.seconds is not None
    text.bullets("Failed, and not tried again with this driver:", failures)
    took = text.seconds(time.monotonic() - start)
    finished = "all is tried" if time.monotonic() < until and not fast else "run it again to go on"
    print(f"{text.counted(tried, 'candidate')} in {took}; {finished}.")
    return 0 if worked else 1


def _outcome(step: tuner.Step) -> str:
    record = step.record
    failed = sum(isinstance(trial, str) for trial in record.trials.values())
    notes = text.counted(len(record.trials), "candidate") + (f", {failed} failed" if failed else "")
    if record.seconds is None or record.params is None:
        return f"{step.row.name:34} nothing worked ({notes})"
    rate = 2 * math.prod(record.shape) / record.seconds / 1e9
    chosen = " ".join(f"{name}={value}" for name, value in record.params.items())
    if record.gain is not None and record.gain > 1:
        chosen += f", {text.faster(record.gain)} the default"
    return f"{step.row.name:34} {text.number(rate):>6} GFLOP/s  {chosen}{' ' * bool(chosen)}({notes})"
