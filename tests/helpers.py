"""What tests of many modules do alike: random operands, threads, interpreters of their own, and emulated GPUs."""

import importlib.util
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cuda_machine
import numpy as np
import pytest

import gemm
from gemm.backends.cuda import compiler, driver
from gemm.select import probe

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(gemm.__file__).resolve().parents[1]
"""Where the package is: a checkout, or what was installed from a wheel."""
RNG = np.random.default_rng(12)


def rand(*shape, dtype="float32", seed=0):
    """Standard normal numbers."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def whole(*shape, dtype="float64", seed=None):
    """Small whole numbers, others each time if there is no seed: sums of products are exact in any order and dtype."""
    random = RNG if seed is None else np.random.default_rng([seed, *shape])
    return random.integers(-4, 5, shape).astype(dtype)


def dtypes(*names):
    """Parameters of a test; it is skipped for bfloat16 where ml_dtypes is not there."""
    absent = pytest.mark.skipif(not importlib.util.find_spec("ml_dtypes"), reason="NumPy has bfloat16 by ml_dtypes")
    return [pytest.param(name, marks=absent if name == "bfloat16" else ()) for name in names]


def same(result, expected):
    """`result` is `expected`, also in type, dtype and shape."""
    assert type(result) is type(expected)
    np.testing.assert_array_equal(result, expected, strict=True)


def all_equal(found, expected):
    """Two lists of arrays are."""
    differ = [i for i, (x, y) in enumerate(zip(found, expected, strict=True)) if not np.array_equal(x, y)]
    assert not differ


def at_once(work, arguments):
    """work(x) of each of `arguments`, in so many threads; raises what one of them raises."""
    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(work, arguments))


def run(*command, timeout=300, cwd=None, path=None, **environment):
    """What `command` prints, in either stream. Python runs it and imports the gemm of this process; it must succeed.

    It imports from the folder `path`, too. A variable of the environment that is None is not there. Where the first
    words are "skip: ", the test is skipped, for the reason that follows.
    """
    paths = os.pathsep.join(map(str, filter(None, [PACKAGE, path, os.environ.get("PYTHONPATH")])))
    given = {**os.environ, "PYTHONPATH": paths, **environment}
    done = subprocess.run(
        [sys.executable, *map(str, command)], env={name: str(x) for name, x in given.items() if x is not None}, cwd=cwd,
        timeout=timeout, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    if done.stdout.startswith("skip: "):
        pytest.skip(done.stdout[6:].strip())
    return done.stdout + done.stderr


def python(code, *arguments, prelude="", **options):
    """What `prelude` and `code` print in a new interpreter: see `run`."""
    return run("-c", prelude + textwrap.dedent(code), *arguments, **options)


def machine(capability="9.0", **settings):
    """The variables by which a process finds an emulated GPU; skips the test where it is not built."""
    try:
        return cuda_machine.environment(capability, **settings)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the emulated machine is not built here: {error}")


def emulate(monkeypatch, capability="9.0", **settings):
    """Let this process find an emulated GPU, until `forget_drivers`."""
    for name, value in machine(capability, **settings).items():
        monkeypatch.setenv(name, value)
    forget_drivers()


def forget_drivers(*more):
    """CUDA's driver and compilers, and whatever else is cached, are looked for anew."""
    for cached in (driver.cuda, compiler.compilers, compiler.compiler, *more):
        cached.cache_clear()


def probed(*devices):
    """What a probe finds, as (device, {name of a kernel: its rates, and the error of one that is wrong}) each."""
    lines = []
    for device, kernels in devices:
        about = {name: getattr(device, name) for name in ("backend", "name", "driver", "kind")}
        lines.append({"step": "device", "device": device.key, **about})
        lines += [
            {"step": "kernel", "kernel": name, "device": device.key, "ok": "error" not in found, "error": "", **found}
            for name, found in kernels.items()
        ]
    return probe.Facts(lines)


def remember(monkeypatch, found):
    """Make `found` the results of the probe; no probe runs."""
    monkeypatch.setattr(probe, "recalled", probe.Recalled({probe.entry(): found}))
    monkeypatch.setattr(probe, "facts", lambda *_: found)


def products(m, n, k):
    """{what is special: (operands, options)} of products that backends may cut."""
    a, b, c = rand(m, k), rand(k, n), rand(m, n)
    return {
        "plain": ((a, b), {"out": np.full((m, n), np.nan, "f")}),
        "float64": ((a.astype("d"), rand(k, n, dtype="d")), {"alpha": 1.5}),
        "transposed": ((a.T.copy(), b.T.copy()), {"trans_a": True, "trans_b": True}),
        "columns": ((a, b), {"out": np.empty((n, m), "f").T}),
        "strided": ((rand(2 * m, k)[::-2], rand(k, 2 * n)[:, ::-2]), {}),
        "beta": ((a, b, c), {"alpha": 2.0, "beta": -0.5}),
        "broadcast c": ((a, b, c[0]), {"beta": 2.0}),
        "batch": ((rand(90, 40, 50), rand(90, 50, 60)), {"out": np.empty((90, 40, 60), "f")}),
        "two batch axes": ((rand(3, 30, 40, 50), rand(50, 60), rand(30, 40, 60)), {"beta": 1.0, "bias": rand(40, 1)}),
        "a stack of large ones": ((rand(2, m, k), b), {}),
        "row bias": ((a, b), {"bias": c[0], "activation": "relu"}),
        "column bias": ((a, b), {"bias": c[:, :1]}),
    }
