"""Compile every CUDA kernel for GPU architectures that the NVRTC library supports, and read the assembler's report.

    python benchmarks/cuda_compile.py [--require sm_53,sm_90a] [--only sm_53,sm_70] [--cuda 12] [--every-form]
                                       [--kernels TEXT] [--json FILE]

The script needs NVRTC but no GPU. It prints registers per thread, bytes of shared memory per block and bytes spilled.

A form of a kernel is a set of values of its macros. The forms differ in the operands' layouts, the types and the
epilogue. By default, each kernel is compiled for up to four architectures: its oldest, its newest and two between. Each
compilation takes the kernel's next form; therefore a default run does not compile all forms. --every-form compiles all
forms for all architectures on which `auto` may choose the kernel. This takes an hour. Each figure printed is the worst
of all compiled forms of a kernel on one architecture.

The exit status is 1 if a kernel does not compile or spills a register, if no kernel was compiled, or if no kernel
compiled for an architecture of --require. NVRTC 12.9 is the last version for sm_50 to sm_70:

    pip install "nvidia-cuda-nvrtc-cu12==12.9.*"
    pip install "nvidia-cuda-nvrtc==13.*"
"""

from __future__ import annotations

import multiprocessing
import re
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorded

from gemm.backends.cuda.compiler import Compiler, compilers
from gemm.backends.cuda.compiler import options as nvrtc_options
from gemm.backends.cuda.launch_plan import types
from gemm.backends.cuda.operand_layout import COMBINE, PACK, PLANES, RESIDUES, SIZES, SPLIT, vector_of
from gemm.catalog import KERNELS, Kernel
from gemm.core import threads
from gemm.core.errors import KernelFailed

ARCHITECTURES = (50, 53, 60, 61, 70, 75, 80, 86, 87, 89, 90, 100, 120)
"""Compute capabilities that the package supports. Hopper is also compiled as sm_90a, for its own instructions."""

Job = tuple[Kernel, str, dict[str, object]]


def architectures(kernel: Kernel, compiler: Compiler) -> list[str]:
    """Supported architectures that this NVRTC compiles for and on which `auto` may choose `kernel`."""
    known = [capability for capability in ARCHITECTURES if capability in compiler.supported]
    needed = [need for need in kernel.needs if need.startswith("sm_")]
    if any(need.endswith("a") for need in needed):
        return [need for need in needed if int(need[3:-1]) in known]
    least = max((int(need[3:]) for need in needed), default=0)
    better = min((int(feature[3:]) for feature in kernel.excluded_features if feature.startswith("sm_")), default=10**3)
    return [f"sm_{capability}" for capability in known if least <= capability < better]


def forms(kernel: Kernel) -> Iterator[dict[str, object]]:
    """Every form of `kernel` that a launch plan may need. A form is the values of the macros, {name: value}."""
    p = kernel.params
    pairs = [types(kernel)[:2]]
    if pairs[0][0] != pairs[0][1]:
        pairs.append(pairs[0][::-1])
    if p.get("MODULI"):
        yield {"A_TYPE": "int8", "B_TYPE": "int8", "OUT_TYPE": "uint8"}
        return
    if p.get("planes") or p.get("widen"):
        pairs = [(PLANES[p.get("planes", 2)],) * 2]
    choices: dict[str, tuple[object, ...]] = {}
    for name in "AB":
        wide = vector_of(kernel, name.lower())
        if wide or p.get(f"{name.lower()}_lies", 3) == 3:
            lies = p.get(f"{name.lower()}_lies", 3)
            choices[f"{name}_TURNED"] = (0, 1) if lies in (3, 7) else (int((lies == 2) == (name == "A")),)
        if wide:
            choices[f"{name}_VECTOR"] = (max(1, wide // SIZES[pairs[0]["AB".index(name)]]), 1)
    if p.get("ordered_form"):
        choices["ORDERED"] = (0, 1)
    if p.get("pointers"):
        choices["POINTERS"] = (0, 1)
    if kernel.fuses:
        choices["EPILOGUE"] = (0, 1)
    for (a, b), values in product(pairs, product(*choices.values())):
        yield {"A_TYPE": a, "B_TYPE": b, "OUT_TYPE": types(kernel)[2], **dict(zip(choices, values, strict=True))}


def resources(report: str) -> dict[str, int]:
    """{registers (per thread), shared (bytes per thread block), spills (bytes)} from the log of a compilation to cubin.

    Raises ValueError if the log has no report by ptxas: a missing report must not be taken for "no spills".
    """
    used = re.search(r"Used (\d+) registers", report)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    if not used or not spills:
        raise ValueError(f"no ptxas report in the log:\n{report}")
    shared = re.search(r"(\d+) bytes smem", report)
    return {
        "registers": int(used[1]), "shared": int(shared[1]) if shared else 0, "spills": sum(map(int, spills)),
    }  # fmt: skip


def forms_of(kernel: Kernel) -> list[dict[str, object]]:
    """The forms to compile for `kernel`. Those of the kernels around a product are listed here, others in `forms`."""
    if kernel.name == PACK.name:
        sizes: list[dict[str, object]] = [{"ELEMENT_BYTES": size} for size in (1, 2, 4, 8)]
        return sizes + [{"ELEMENT_BYTES": 2, "WIDEN": kind} for kind in ("e4m3", "e5m2")]
    if kernel.name == SPLIT.name:
        return [{"TYPE": PLANES[n], "PLANES": n, "TURNED": turned} for n in PLANES for turned in (0, 1)]
    if kernel.name == RESIDUES.name:
        return [{"TURNED": x, "RIGHT": y, "LINES": 16 if x else 2} for x in (0, 1) for y in (0, 1)]
    if kernel.name == COMBINE.name:
        return [{"EPILOGUE": fused} for fused in (0, 1)]
    return list(forms(kernel))


@cache
def is_sibling(kernel: Kernel) -> bool:
    """Whether an earlier kernel differs only in types of the same size, which change the names of instructions."""

    def code(row: Kernel) -> tuple[object, ...]:
        return row.source, row.needs, sorted(row.params.items()), [SIZES.get(each, each) for each in types(row)]

    return kernel in KERNELS and next(row for row in KERNELS if code(row) == code(kernel)) != kernel


def jobs(kernel: Kernel, archs: list[str], *, every: bool) -> list[Job]:
    """The compilations of `kernel` for its architectures `archs`, as the module's docstring describes them.

    every: compile all forms for all architectures. Otherwise, compile one form for each of up to four architectures.
    If `archs` has a single architecture and the kernel has several forms, compile two forms, and one of a sibling.
    """
    wanted = forms_of(kernel)
    if every:
        return [(kernel, arch, form) for arch in archs for form in wanted]
    if not archs:
        return []
    start = zlib.crc32(kernel.name.encode())  # different kernels start with different forms
    between = [archs[1:-1][(start + i) % (len(archs) - 2)] for i in range(min(2, len(archs) - 2))]
    some = list(dict.fromkeys([archs[0], *between, archs[-1]]))
    count = max(len(some), min(1 if is_sibling(kernel) else 2, len(wanted)))
    return [(kernel, some[i % len(some)], wanted[(start + i) % len(wanted)]) for i in range(count)]


def program(job: Job) -> tuple[str, ...]:
    """What NVRTC gets for a job. Kernels whose operands change types, such as e4m3 and e5m2, have common programs."""
    kernel, arch, form = job
    return (kernel.source, *sorted(nvrtc_options(kernel, arch, form)))


def measure(job: Job, major: int) -> dict[str, Any]:
    """Compile one job. Return its row of the table, where `error` is "" if the kernel compiles without spills."""
    kernel, arch, form = job
    row: dict[str, Any] = {"kernel": kernel.name, "arch": arch, "registers": 0, "shared": 0, "spills": 0, "error": ""}
    try:
        row |= resources(chosen(major).compile(kernel, arch, form)[1])
    except (KernelFailed, ValueError) as error:
        return row | {"error": f"{error} ({form})"}
    return row | {"error": f"spills registers ({form})" if row["spills"] else ""}


def chosen(major: int) -> Compiler:
    """The NVRTC of CUDA version `major`, or the newest if `major` is 0. Raises KernelFailed if it is not installed."""
    found = [compiler for compiler in compilers() if major in (0, compiler.major)]
    if not found:
        raise KernelFailed("there is no such NVRTC")
    return found[0]


def worst(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table: a row for each kernel and architecture, with the maximum of each resource and the first error."""
    table: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        known = table.setdefault((row["kernel"], row["arch"]), row | {"forms": 0})
        known["forms"] += 1
        known |= {name: max(known[name], row[name]) for name in ("registers", "shared", "spills")}
        known["error"] = known["error"] or row["error"]
    return list(table.values())


def main() -> int:
    parser = recorded.parser(__doc__)
    parser.add_argument("--require", default="", metavar="ARCH,...", help="fail unless these are compiled")
    parser.add_argument("--only", default="", metavar="ARCH,...", help="compile for these architectures only")
    parser.add_argument("--cuda", type=int, default=0, metavar="MAJOR", help="the NVRTC to use; default: the newest")
    parser.add_argument("--every-form", action="store_true", help="compile all forms for all architectures")
    parser.add_argument("--kernels", default="", metavar="TEXT", help="compile only kernels with this text in the name")
    options = parser.parse_args()
    try:
        compiler = chosen(options.cuda)
    except KernelFailed as error:
        print(error, file=sys.stderr)
        return 1
    version = "{}.{}".format(*compiler.version)
    rows = [
        row
        for row in (PACK, SPLIT, RESIDUES, COMBINE, *KERNELS)
        if row.backend == "cuda" and options.kernels in row.name
    ]
    only = options.only.split(",") if options.only else None
    archs = {row: [x for x in architectures(row, compiler) if only is None or x in only] for row in rows}
    wanted = [job for row in rows for job in jobs(row, archs[row], every=options.every_form)]
    start = time.perf_counter()
    with ProcessPoolExecutor(threads.cores(), multiprocessing.get_context("spawn")) as pool:
        once = {program(job): job for job in wanted}
        found = dict(zip(once, pool.map(partial(measure, major=options.cuda), once.values()), strict=True))
    table = worst(found[program(job)] | {"kernel": job[0].name} for job in wanted)
    took = time.perf_counter() - start
    print(f"NVRTC {version}, {len(once)} compilations in {took:.0f} s")
    print(f"{'kernel':40} {'arch':8} {'forms':>5} {'registers':>9} {'shared':>7} {'spills':>7}")
    for row in table:
        print("{kernel:40} {arch:8} {forms:5} {registers:9} {shared:7} {spills:7}  {error}".format(**row).rstrip())
    recorded.save(options.json, {"nvrtc": version, "kernels": table})
    good = {row["arch"] for row in table if not row["error"]}
    missing = [arch for arch in options.require.split(",") if arch and arch not in good]
    if missing:
        print(f"not compiled: {', '.join(missing)}", file=sys.stderr)
    if not table:
        print("nothing was compiled", file=sys.stderr)
    return 1 if missing or not table or any(row["error"] for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
