"""What mypy and pyright find in programs that call gemm: the types of results, and wrong options."""

import json
import os
import re
import subprocess
import sys

import pytest
from helpers import PACKAGE, ROOT

HEAD = """
from typing import Any
import numpy as np
from numpy.typing import NDArray
import gemm

class Tensor:
    def __dlpack__(self, *, stream: Any = None) -> Any: ...

x: NDArray[np.float32] = np.ones((4, 4), np.float32)
y: NDArray[np.float64] = np.ones((4, 4))
t = Tensor()
plan = gemm.plan(x, y)
"""
ARRAY = "ndarray"
RESULTS = {
    "gemm.gemm(x, y)": ARRAY,
    "gemm.gemm(x, x, x, beta=1, out=x, trans_a='T', trans_b=np.True_)": ARRAY,
    "gemm.gemm(x, [[1.0]], dtype='float64', bias=[1, 2], activation='relu', precision='high')": ARRAY,
    "gemm.gemm(x, gemm.prepare(y), backend='opencl:1')": ARRAY,
    "gemm.gemm(gemm.array(x), x, backend='neon')": ARRAY,
    "gemm.gemm(t, t)": "Any",
    "gemm.gemm(t, x)": "Any",
    "gemm.matmul(x, y, reproducible=True)": ARRAY,
    "gemm.matmul(t, t)": "Any",
    "plan(x, y, bias=x[0])": ARRAY,
    "plan(t, t)": "Any",
    "plan.kernel": "str",
    "plan.seconds": "float",
    "gemm.einsum('ij,jk', x, y)": ARRAY,
    "gemm.einsum(x, [0, 1], y, [1, 2], dtype=np.float64)": ARRAY,
    "gemm.einsum('ij,jk', t, t)": "Any",
    "gemm.tensordot(x, y, ([0], [1]), backend='cuda')": ARRAY,
    "gemm.tensordot(t, t)": "Any",
    "gemm.vecdot(x, y, axis=0)": ARRAY,
    "gemm.vecdot(t, t)": "Any",
    "gemm.gemm_many([x, x], y, alpha=2)": "list[ndarray]",
    "gemm.gemm_many([t], [t])": "list[Any]",
    "gemm.explain(x, y, trans_a=True)": "None",
    "gemm.array(x, backend='neon', dtype=np.float32)": "Array",
    "gemm.use(reproducible=True)(abs(1).bit_length)()": "int",
}
WRONG = [
    "gemm.gemm(x, x, precision='low')",
    "gemm.gemm(t, t, precision='low')",
    "gemm.gemm(x, x, activation='tanh')",
    "gemm.gemm(x, x, trans_a='X')",
    "gemm.gemm(x, x, backend=1)",
    "gemm.gemm(x, x, kernal='sgemm_scalar_4x4')",
    "gemm.matmul(x, x, precision='low')",
    "gemm.matmul(x, x, trans_a=True)",
    "gemm.plan(x, x, precision='low')",
    "gemm.prepare(x, precision='low')",
    "gemm.use(precision='low')",
    "gemm.array(x, precision='low')",
    "gemm.explain(x, x, precision='low')",
    "gemm.einsum('ij,jk', x, x, precision='low')",
    "gemm.tensordot(x, x, precision='low')",
    "gemm.vecdot(x, x, precision='low')",
    "gemm.gemm_many([x], [x], precision='low')",
]


PROGRAM = [*(f"reveal_type({call})" for call in RESULTS), *WRONG]


def mypy(folder):
    """(line number, what mypy says about the line) of the program in the folder."""
    # mypy finds an installed package itself, and refuses its folder in MYPYPATH.
    environment = {**os.environ, **({"MYPYPATH": str(ROOT)} if PACKAGE == ROOT else {})}
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        f"--cache-dir={folder / 'cache'}",
        "program.py",
    ]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    said = re.findall(r"^program\.py:(\d+): (.*)$", done.stdout, re.MULTILINE)
    assert said, done.stdout + done.stderr
    return [(int(number), text) for number, text in said]


def pyright(folder):
    """The same from pyright."""
    paths = [] if PACKAGE != ROOT else [str(ROOT)]
    settings = {"typeCheckingMode": "strict", "extraPaths": paths, "reportUnusedExpression": "none"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [(each["range"]["start"]["line"] + 1, f"{each['severity']}: {each['message']}") for each in found]


@pytest.fixture(scope="module", params=[mypy, pyright], ids=lambda checker: checker.__name__)
def found(tmp_path_factory, request):
    """{line of the program: what the type checker says about it}."""
    pytest.importorskip(request.param.__name__, reason="it is a type checker")
    folder = tmp_path_factory.mktemp("typed")
    (folder / "program.py").write_text(HEAD.lstrip() + "\n".join(PROGRAM) + "\n", encoding="utf-8")
    first = HEAD.lstrip().count("\n") + 1
    said: dict[str, str] = {}
    for number, text in request.param(folder):
        assert number >= first, text
        said.setdefault(PROGRAM[number - first], text)
    assert len(said) == len(PROGRAM)
    return said


@pytest.mark.parametrize("call", RESULTS)
def test_results_have_the_operands_type(found, call):
    # mypy quotes the type alone, pyright the expression, too. Other quotation marks are of Literal.
    said = re.sub(r"(\w+\.)+", "", found[f"reveal_type({call})"].rpartition(' is "')[2].rstrip('"'))
    # The details of an array's type depend on NumPy's version; only its class counts.
    arrays = r"ndarray\[tuple\[.*?\], dtype\[Any\]\]|NDArray\[Any\]|ndarray\[_AnyShape, dtype\[Any\]\]"
    assert re.sub(arrays, "ndarray", said) == RESULTS[call]


@pytest.mark.parametrize("call", WRONG)
def test_wrong_options_are_errors(found, call):
    assert found[call].startswith("error: ")
