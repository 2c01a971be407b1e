"""`gemm explain`: which kernel a product would run on, and the predicted times of the candidates."""

from __future__ import annotations

import argparse

import numpy as np

from gemm.catalog import BACKENDS
from gemm.cli.arguments import Mistake, add_shape, arithmetic, shape
from gemm.core import operands
from gemm.frontend import api

HELP = "show which kernel would compute a product, and why"
EXAMPLES = """examples:
  gemm explain -M 1024 -N 1024 -K 1024
  gemm explain -M 16 -N 16 -K 16 --batch 1000 --dtype float64
  gemm explain -M 640 -N 640 -K 640 --backend opencl --all
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `gemm explain`."""
    add_shape(parser)
    parser.add_argument("--trans-a", action="store_true", help="a is given transposed, k × m")
    parser.add_argument("--trans-b", action="store_true", help="b is given transposed, n × k")
    parser.add_argument("--backend", default="auto", metavar="NAME",
                        help=f"auto, {', '.join(BACKENDS)}, hybrid, a target, a device (opencl:0)")  # fmt: skip
    parser.add_argument("--kernel", metavar="NAME", help="only this kernel")
    parser.add_argument("--all", action="store_true",
                        help="show every candidate, with the terms of its time or why it cannot run")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Print the description of the plan and return the exit status."""
    sizes = shape(args)
    if sizes is None:
        raise Mistake("give the product's sizes: -M 1024 -N 1024 -K 1024")
    how = arithmetic(args)
    m, n, k = sizes
    lead = (args.batch,) if args.batch > 1 else ()
    # The arrays are neither written nor read, so the system allocates no memory for their pages.
    first, second = (operands.named(name, "--dtype") for name in how.types)
    a = np.empty((*lead, *((k, m) if args.trans_a else (m, k))), first)
    b = np.empty((*lead, *((n, k) if args.trans_b else (k, n))), second)
    try:
        plan = api.plan(
            a, b, trans_a=args.trans_a, trans_b=args.trans_b, dtype=how.dtype if how.inputs else None,
            precision=how.precision, reproducible=how.reproducible, backend=args.backend, kernel=args.kernel,
        )  # fmt: skip
    except (ValueError, TypeError) as error:  # the message of api.plan names the argument
        raise Mistake(str(error)) from None
    api.show(plan, every=args.all)
    return 0
