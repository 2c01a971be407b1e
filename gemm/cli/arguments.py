"""Arguments that several sub-commands share, and the checks of their values."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gemm.backends import registry
from gemm.bench.contest import Pace
from gemm.bench.peers import Absent
from gemm.bench.peers.host import set_numpy_threads
from gemm.bench.products import Arithmetic
from gemm.catalog import BACKENDS, BY_NAME, KERNELS, Kernel
from gemm.core import operands, threads
from gemm.core.engine import engine
from gemm.core.errors import BackendUnavailable, unknown
from gemm.core.problem import PRECISIONS, Device
from gemm.frontend.inventory import all_devices
from gemm.select import candidates
from gemm.select.worker import timeout

DTYPES = tuple(dict.fromkeys(row.dtype for row in KERNELS if row.dtype != "*"))
LAYOUTS = ("NN", "NT", "TN", "TT")
"""Layouts of a and b, one letter for each. N: the operand is stored as it is. T: it is stored transposed."""


class Mistake(ValueError):
    """The user asked for something impossible. The text of the exception is the single line that is printed."""


def positive(text: str) -> int:
    """Parse an argument that is a count or a size."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text!r}")
    return value


def listed(text: str) -> list[str]:
    """Parse a comma-separated argument into its items, without duplicates. At least one item is required."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise argparse.ArgumentTypeError("must name something")
    return list(dict.fromkeys(items))


def shapes(argument: str) -> list[tuple[int, int, int]]:
    """Parse an argument of the form MxNxK,MxNxK,..."""
    found: list[tuple[int, int, int]] = []
    for item in listed(argument):
        try:
            m, n, k = item.lower().split("x")
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be like 256x256x256, not {item!r}") from None
        found.append((positive(m), positive(n), positive(k)))
    return found


def writable(text: str) -> Path:
    """Parse the path of a file that the command writes at its end. The folder must already exist."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder of {text!r} does not exist")
    return path


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """Return a function that parses an argument. The argument must be one of `names`."""

    def parse(name: str) -> str:
        if name not in names:
            raise argparse.ArgumentTypeError(unknown("the name", name, names))
        return name

    return parse


def some_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a function that parses a comma-separated argument. Each item must be one of `names`."""
    return lambda text: list(map(one_of(names), listed(text)))


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe one product: -M -N -K --batch, and those that `arithmetic` reads."""
    for name, meaning in (("M", "rows of the result"), ("N", "columns of the result"), ("K", "length of the sums")):
        parser.add_argument(f"-{name}", type=positive, metavar=name.lower(), help=meaning)
    parser.add_argument("--batch", type=positive, default=1, metavar="COUNT", help="products per call (default: 1)")
    parser.add_argument("--dtype", type=one_of(DTYPES), default="float32", metavar="TYPE",
                        help=f"type of the result and of a and b: {', '.join(DTYPES)} (default: float32)")  # fmt: skip
    parser.add_argument("--inputs", type=listed, default=[], metavar="TYPES",
                        help="types of a and b if they are narrower, such as int8 with --dtype int32")  # fmt: skip
    parser.add_argument("--precision", type=one_of(PRECISIONS), default="highest", metavar="NAME",
                        help=f"{', '.join(PRECISIONS)}: the error bound (default: highest)")  # fmt: skip
    parser.add_argument("--reproducible", action="store_true", help="compute the same bits on every device")
    parser.add_argument("--threads", type=positive, metavar="COUNT",
                        help="threads of the cpu backend and NumPy (default: one for each core)")  # fmt: skip


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add --backends --kernel --device, which select kernels and devices."""
    parser.add_argument("--backends", type=some_of(BACKENDS), metavar="LIST",
                        help=f"comma-separated: {', '.join(BACKENDS)} (default: all that work here)")  # fmt: skip
    parser.add_argument("--kernel", action="append", metavar="NAME", help="a kernel's name; may be given several times")
    parser.add_argument("--device", metavar="KEY", help='only this device, such as "opencl:1" (see: gemm info)')


def arithmetic(args: argparse.Namespace) -> Arithmetic:
    """Return the Arithmetic that the options describe. Also limits this process to --threads threads, if given.

    Raises Mistake if the types of --dtype and --inputs are unknown or do not fit together.
    """
    pair = tuple((args.inputs * 2)[:2])
    pairs = {row.inputs for row in KERNELS if row.dtype == args.dtype and row.inputs}
    if len(args.inputs) > 2 or (pair and pair not in pairs):
        able = " or ".join(sorted(",".join(dict.fromkeys(types)) for types in pairs)) or "none"
        raise Mistake(f"--inputs {','.join(args.inputs)} does not fit --dtype {args.dtype}, which permits {able}")
    try:
        for name in (args.dtype, *pair):
            operands.named(name, "--dtype")
    except (TypeError, ValueError, ImportError) as error:
        raise Mistake(str(error)) from None
    if args.threads:
        os.environ["GEMM_NUM_THREADS"] = str(args.threads)  # the probe's results depend on this variable
        if args.threads >= threads.cores():  # as in set_num_threads, a limit of all cores counts as no limit
            del os.environ["GEMM_NUM_THREADS"]
        with suppress(BackendUnavailable):
            engine().lib.gemm_grant_threads(threads.granted())
        with suppress(Absent):
            set_numpy_threads(threads.granted())
    return Arithmetic(args.dtype, pair, args.precision, args.reproducible)


def pace(args: argparse.Namespace, usual: Pace) -> Pace:
    """Return the Pace that --iterations and --seconds ask for. A value that is not given comes from `usual`.

    There is one exception: with --seconds alone, only the time limits the number of rounds.
    """
    return Pace(args.iterations or (1 << 20 if args.seconds else usual.rounds), args.seconds or usual.seconds)


def shape(args: argparse.Namespace) -> tuple[int, int, int] | None:
    """(m, n, k) from -M -N -K; None if none of them is given. Raises Mistake if only some of them are given."""
    sizes = (args.M, args.N, args.K)
    if None not in sizes:
        return sizes
    if any(size is not None for size in sizes):
        raise Mistake("-M, -N and -K belong together; give all three")
    return None


def check_kernels(names: Iterable[str] | None) -> list[Kernel]:
    """The catalog's kernels with these names, without duplicates.

    Raises Mistake if there is no kernel with one of the names. The message lists similar names.
    """
    try:
        for name in names or ():
            candidates.check_names("auto", name)
    except ValueError as error:
        raise Mistake(str(error)) from None
    return [BY_NAME[name] for name in dict.fromkeys(names or ())]


def check_environment() -> None:
    """Raise Mistake if an environment variable of the package has a wrong value."""
    try:
        threads.granted()
        timeout()
    except ValueError as error:
        raise Mistake(str(error)) from None


def select(args: argparse.Namespace) -> tuple[list[Device], dict[str, str]]:
    """The devices that --backends, --kernel and --device select, and {backend: why it is missing}.

    Raises:
        Mistake: a name is unknown, the options contradict each other, or no backend works here.
        BackendUnavailable: a backend or device that the user named is not available here.
    """
    kernels = check_kernels(args.kernel)
    named = args.backends or list(dict.fromkeys(row.backend for row in kernels))
    if args.device:
        owner = args.device.partition(":")[0]
        if owner not in BACKENDS:
            raise Mistake(unknown("--device", args.device, [each.key for each in all_devices()[0]]))
        if named and owner not in named:
            raise Mistake(f"--device {args.device} does not belong to {', '.join(named)}")
        named = [owner]
    if foreign := [row.name for row in kernels if row.backend not in named]:
        raise Mistake(f"--kernel {foreign[0]} does not belong to {', '.join(named)}")
    if not named:
        found, missing = all_devices()
        if not found:
            raise Mistake("no backend works here: see gemm info")
        return found, missing
    devices = [device for name in named for device in registry.backend(name).devices()]
    found = [device for device in devices if args.device in (None, device.key)]
    if args.device and not found:
        raise registry.absent(args.device)
    return found, {}


def save_json(path: Path, document: Mapping[str, Any], indent: int | None = 1) -> None:
    """Write `document` as strict JSON. Raises ValueError for NaN and infinities, which JSON lacks, and Mistake."""
    save_text(path, json.dumps(document, indent=indent, allow_nan=False, ensure_ascii=False) + "\n")


def save_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write `columns` of `rows` as comma-separated values with a header line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    save_text(path, text.getvalue())


def save_text(path: Path, text: str) -> None:
    """Write `text` to a file that the user named. Raises Mistake if the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Mistake(f"cannot write {path}: {error.strerror}") from None
