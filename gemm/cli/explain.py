"""`gemm explain`: which kernel a product would run on, and the predicted times of the candidates."""

from __future__ import annotations

import argparse
import textwrap
from collections import Counter

import numpy as np

from gemm.bench import text
from gemm.catalog import BACKENDS
from gemm.cli.arguments import Mistake, add_shape, arithmetic, shape
from gemm.core import operands
from gemm.core.terminal import columns
from gemm.frontend import api

HELP = "show which kernel would compute a product, and why"
EXAMPLES = """examples:
  gemm explain -M 1024 -N 1024 -K 1024
  gemm explain -M 16 -N 16 -K 16 --batch 1000 --dtype float64
  gemm explain -M 640 -N 640 -K 640 --backend opencl --all
"""

MOST, LEFT_OUT = 10, 8
"""How many candidates, and how many reasons why others cannot run, fit on a screen."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_shape(parser)
    parser.add_argument("--trans-a", action="store_true", help="a is given transposed, k × m")
    parser.add_argument("--trans-b", action="store_true", help="b is given transposed, n × k")
    parser.add_argument("--backend", default="auto", metavar="NAME",
                        help=f"auto, {', '.join(BACKENDS)}, hybrid, a target, a device (opencl:0)")  # fmt: skip
    parser.add_argument("--kernel", metavar="NAME", help="the kernel by name")
    parser.add_argument("--all", action="store_true", help="every candidate, with its terms or why it cannot run")


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
    if args.all:
        print(api.describe(plan))
    else:
        _summarise(plan)
    return 0


def _summarise(plan: api.GemmPlan) -> None:
    """Print the fastest candidates, how many others there are, and the choice."""
    able = sorted((each for each in plan.candidates if each.seconds), key=lambda each: each.seconds or 0)
    lines = [
        [each.kernel.name, each.device.key, *map(text.seconds, (each.seconds, each.launch, each.transfer)),
         text.seconds(each.compute), each.basis] for each in able[:MOST]
    ]  # fmt: skip
    head = ["kernel", "device", "predicted", "launch", "transfer", "compute", "basis"]
    title = api.describe(plan).partition("\n")[0]
    text.table(head, lines, numbers=range(2, 6), title=title, spare=("basis", "launch", "transfer", "compute"))
    problem = plan._problem
    able_not = [
        each for each in plan.candidates if each.why_not and each.kernel.multiplies(problem.dtype, problem.inputs)
    ]
    causes = ((each.device.key, each.why_not.removeprefix(f"{each.device.key}: ")) for each in able_not)
    left_out = Counter((key, why.split(" (")[0].split(", which")[0]) for key, why in causes)
    print()
    if len(able) > MOST:
        print(f"Slower: {text.counted(len(able) - MOST, 'further candidate')}.")
    text.bullets(
        "Not possible (all candidates: gemm explain --all):",
        [
            textwrap.shorten(
                f"{text.counted(count, 'kernel')} on {key}: {why}", min(110, columns() - 2), placeholder=" ..."
            )
            for (key, why), count in left_out.most_common(LEFT_OUT)
        ],
    )
    operands = [f"{name} is {how}" for name, how in plan.operands.items()]
    text.say(*([f"operands: {', '.join(operands)}."] if operands else []),
             f"chosen: {plan.kernel} on {plan.device}: {plan.reason}.")  # fmt: skip
