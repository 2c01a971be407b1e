"""Two builds of gemm make the same random calls: do they agree in every bit, or in the class of the error?

    python benchmarks/same_results.py OLD NEW [--calls 200000] [--seed 0] [--jobs 2]

OLD and NEW are checkouts with a built engine, or folders that hold an installed package. Each call is drawn from its
number and the seed alone. Operands are small integers, so that every kernel computes the same bits. Only calls with
reproducible=True have random floating-point numbers: the contract fixes the bits of their results.

If a call returns a result, these are compared: the result's class, type, shape, strides and bytes, c and out after the
call, and whether a and b have changed. If a call raises an error, the comparison fails only if the other build raises
no error or an error of another class. Errors of the same class whose texts differ, or after which c or out differ, are
counted and shown.

The script prints the number of calls, how many of them gave results and how many gave errors, and the differences. The
exit status is 1 if there are differences.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

BLOCK = 1000
"""The number of calls of one process. A process begins with empty caches, so first calls are compared, too."""
TYPES = ("float32",) * 6 + ("float64", "float64", "complex64", "complex128", "float16", "int8", "uint8", "int16",
                            "int32", "int64", "uint32", "bool", "longdouble")  # fmt: skip
SIZES = (0, 1, 1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33, 48, 64, 65, 100, 129)
FUNCTIONS = (*("gemm",) * 8, "matmul", "plan", "prepare", "many", "batching", "einsum", "tensordot", "use")
OPTIONS: dict[str, tuple[Any, ...]] = {
    "alpha": (1, 1, 1, 2.0, 0, -0.5, 1j, "x", None, float("nan")),
    "beta": (0, 1, -2.0, 0.5, 1j, [1]),
    "trans_a": (False, True, "N", "T", "C", 1, "X"), "trans_b": (False, True, "N", "T", "C", 0),
    "precision": ("highest", "high", "medium", "low"), "reproducible": (True, True, False, 1),
    "backend": ("cpu", "cpu", "numpy", "auto", "auto", "hybrid", "opencl", "cuda", "nothing"),
    "dtype": (*TYPES[5:], "float99"),
    "kernel": ("gemm_scalar_4x4", "sgemm_avx2_6x16", "numpy", "nothing"), "activation": ("relu", "gelu", "wrong"),
}  # fmt: skip


def numbers(rng: Any, shape: tuple[int, ...], dtype: str, exact: bool) -> Any:
    """An array of this shape: small integers if `exact` or if the type is an integer, else normal random numbers."""
    import numpy as np

    if exact or np.dtype(dtype).kind not in "fc":
        found = rng.integers(0 if np.dtype(dtype).kind in "ub" else -4, 5, shape).astype(dtype)
        return found + 1j * rng.integers(-4, 5, shape).astype(dtype) if np.dtype(dtype).kind == "c" else found
    found = rng.standard_normal(shape)
    return (found + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else found).astype(dtype)


def laid_out(rng: Any, array: Any) -> Any:
    """The same values with other strides, or as a list."""
    import numpy as np

    how = rng.integers(0, 9)
    if how == 1:
        return np.asfortranarray(array)
    if how == 2 and array.ndim:
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1] + 1), array.dtype)
        wide[..., : 2 * array.shape[-1] : 2] = array
        return wide[..., : 2 * array.shape[-1] : 2]
    if how == 3 and array.ndim > 1:
        wide = np.zeros((*array.shape[:-2], array.shape[-2] + 3, array.shape[-1] + 5), array.dtype)
        wide[..., 2 : 2 + array.shape[-2], 1 : 1 + array.shape[-1]] = array
        return wide[..., 2 : 2 + array.shape[-2], 1 : 1 + array.shape[-1]]
    if how == 4 and array.ndim:
        return array[..., ::-1]
    if how == 5 and array.ndim:
        return np.broadcast_to(array[:1], array.shape)
    if how == 6 and array.size < 50:
        return array.tolist()
    return array


def drawn(rng: Any) -> tuple[str, list[Any], dict[str, Any]]:
    """A random call: the name of a function (see `called`), its operands and its options."""
    import numpy as np

    name = str(
        rng.choice(["gemm"] * 8 + ["matmul", "plan", "prepare", "many", "batching", "einsum", "tensordot", "use"])
    )
    dtype, (m, n, k) = str(rng.choice(TYPES)), (int(x) for x in rng.choice(SIZES, 3))
    options = {key: OPTIONS[key][rng.integers(len(OPTIONS[key]))] for key in OPTIONS if rng.random() < 0.12}
    exact = options.get("reproducible") is not True or name in ("einsum", "tensordot", "use")  # these take no options
    batch = tuple(int(x) for x in rng.choice((1, 2, 3), rng.integers(0, 3))) if rng.random() < 0.3 else ()
    other = "float32" if rng.random() < 0.03 else dtype
    flipped = [options.get(side) in (True, "T", "C") for side in ("trans_a", "trans_b")]
    a = numbers(rng, (*batch, k, m) if flipped[0] else (*batch, m, k), dtype, exact)
    b = numbers(rng, (*(() if rng.random() < 0.3 else batch), *((n, k) if flipped[1] else (k, n))), other, exact)
    if rng.random() < 0.05:
        a = a[..., 0, :] if a.ndim > 1 and a.shape[-2] else a
    elif rng.random() < 0.05:
        b = b[..., 0] if b.ndim > 1 and b.shape[-1] else b
    elif rng.random() < 0.03:
        b = b[..., :-1, :] if b.ndim > 1 else b
    shape = (*batch, m, n)
    if rng.random() < 0.3 or options.get("beta", 0) not in (0, [1]):
        options["c"] = laid_out(rng, numbers(rng, shape if rng.random() < 0.9 else (m, n + 1), dtype, exact))
    if rng.random() < 0.3:
        options["out"] = laid_out(rng, np.zeros(shape if rng.random() < 0.95 else (n, m + 1), dtype))
        if rng.random() < 0.1 and "c" in options:
            options["out"] = options["c"]
        if rng.random() < 0.05 and isinstance(options["out"], np.ndarray):
            options["out"].flags.writeable = False
        if rng.random() < 0.05 and a.shape == shape:
            options["out"] = a
    if rng.random() < 0.1:
        options["bias"] = numbers(rng, ((n,), (m, 1), (1,), (2, 2, 2))[rng.integers(4)], dtype, exact)
    return name, [laid_out(rng, a), laid_out(rng, b)], options


def called(name: str, operands: list[Any], options: dict[str, Any]) -> Any:
    """Make a call that `drawn` returned, and return its result, or a list or tuple of results."""
    import numpy as np

    import gemm

    def only(*names: str) -> dict[str, Any]:
        return {key: value for key, value in options.items() if key in names}

    a, b = operands
    c = options.pop("c", None)
    if name == "gemm":
        return gemm.gemm(a, b, c, **options)
    if name == "matmul":
        return gemm.matmul(a, b, **only("out", "dtype", "reproducible", "backend"))
    if name == "plan":
        made = gemm.plan(a, b, c, **options)
        return [made(a, b, c, **only("out", "bias")) for _ in range(2)]
    if name == "prepare":
        packed = gemm.prepare(b, **only("trans_b", "dtype", "reproducible", "backend"))
        return [gemm.gemm(a, packed, c, **only("alpha", "beta", "out", "bias")) for _ in range(2)]
    if name == "many":
        out = options.pop("out", None)
        several = [None if x is None else [x] * 5 for x in (c, out)]
        return gemm.gemm_many([a] * 5, [b] * 5, several[0], out=several[1], **options)
    if name == "batching":
        with gemm.batching():
            return [gemm.gemm(a, b, c, **options) for _ in range(4)]
    if name == "einsum":
        return gemm.einsum("...ij,...jk->...ik" if len(np.shape(b)) > 1 else "...ij,j", a, b)
    if name == "tensordot":
        return gemm.tensordot(a, b, 1)
    with gemm.use():
        return np.matmul(a, b), np.dot(a, b)


def image(thing: Any) -> str:
    """The text of a result. Two results are equal if their texts are equal."""
    import numpy as np

    if isinstance(thing, (list, tuple)):
        return "[" + ",".join(map(image, thing)) + "]"
    if isinstance(thing, np.ndarray):
        values = np.ascontiguousarray(thing)
        values = np.where(values != values, np.nan, values) if values.dtype.kind in "fc" else values  # NaNs are equal
        held = values.tobytes()
        if thing.dtype == np.longdouble and thing.dtype.itemsize == 16:  # x87's longdouble uses only 10 of its 16 bytes
            held = values.reshape(-1).view(np.uint8).reshape(-1, 16)[:, :10].tobytes()
        return f"{thing.dtype}{thing.shape}{thing.strides}{hashlib.blake2b(held, digest_size=8).hexdigest()}"
    return f"{type(thing).__name__}:{thing!r}"


def answer(seed: int, number: int) -> str:
    """Make call `number`. Return its outcome as a text, then a tab and a description of the call.

    The outcome is the image of the result or the text of the error, then the images of c and out.
    """
    import numpy as np

    name, operands, options = drawn(np.random.default_rng((seed, number)))
    held = {key: options.get(key) for key in ("c", "out")}
    own = held["out"] is operands[0]
    before = image(operands)
    told = {key: (str(x.dtype), x.shape, x.strides) if hasattr(x, "shape") else x for key, x in options.items()}
    text = f"{name} {[(str(getattr(x, 'dtype', 'list')), np.shape(x)) for x in operands]} {told}"
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            outcome = image(called(name, operands, dict(options)))
    except Exception as error:
        outcome = f"{type(error).__name__}|{error}"
    changed = "" if own or image(operands) == before else " OPERANDS CHANGED"
    return f"{outcome}{changed} {image(list(held.values()))}\t{text}"


def work(seed: int, start: int, stop: int) -> None:
    """Make the calls `start` to `stop` - 1 in this process, whose PYTHONPATH has the build. Print the outcomes."""
    for number in range(start, stop):
        print(json.dumps(answer(seed, number)))


def outcomes(build: Path, seed: int, start: int, stop: int, environment: dict[str, str]) -> list[str]:
    """The outcomes of the calls `start` to `stop` - 1, made by one build in a new process."""
    command = [sys.executable, __file__, str(build), str(build), "--seed", str(seed), "--work", f"{start}:{stop}"]
    done = subprocess.run(
        command, env={**os.environ, **environment, "PYTHONPATH": str(build)}, capture_output=True, text=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines + [f"process ended with {done.returncode}: {done.stderr[-300:]}\t"] * (stop - start - len(lines))


def compare(args: argparse.Namespace) -> int:
    from concurrent.futures import ThreadPoolExecutor
    from tempfile import TemporaryDirectory

    counts: Counter[str] = Counter()
    with TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        base = {"GEMM_ADAPT": "0", "GEMM_NUM_THREADS": str(args.threads)}
        caches = {build: {**base, "GEMM_CACHE_DIR": f"{folder}/{i}"} for i, build in enumerate((args.old, args.new))}

        def both(start: int) -> list[tuple[int, str, str]]:
            stop = min(start + BLOCK, args.first + args.calls)
            old, new = (outcomes(build, args.seed, start, stop, caches[build]) for build in (args.old, args.new))
            return list(zip(range(start, stop), old, new, strict=True))

        for block in pool.map(both, range(args.first, args.first + args.calls, BLOCK)):
            for number, old, new in block:
                (was, call), (now, _) = old.split("\t", 1), new.split("\t", 1)
                is_error = "|" in was
                counts["errors" if is_error else "results"] += 1
                if was != now and was.partition("|")[0] == now.partition("|")[0] and is_error:
                    counts["texts of errors that differ"] += 1
                elif was != now:
                    counts["differences"] += 1
                else:
                    continue
                if counts["differences"] + counts["texts of errors that differ"] <= args.show:
                    print(f"{number}: {call}\n  old {was[:300]}\n  new {now[:300]}", flush=True)
    print(f"{args.calls} calls, seed {args.seed}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    return bool(counts["differences"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first call")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="blocks at a time")
    parser.add_argument("--threads", type=int, default=2, help="of each process")
    parser.add_argument("--show", type=int, default=20, help="differences to print")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.seed, *map(int, args.work.split(":")))
        return 0
    return compare(args)


if __name__ == "__main__":
    sys.exit(main())
