"""Each command that the README, the pages of docs/ and the help of `gemm` show works as it is written.

Commands of `gemm` run here, but with smaller products, on fewer kernels, and for a shorter time. CI runs the README's
command for a first look and its test command (ci/test.sh), and test_documents.py runs the commands of the worked
kernel. Commands that install software are checked for the names in them: ci/package.sh installs the package.
"""

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys

import helpers
import pytest
from helpers import ROOT

import gemm
from gemm import cli

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(gemm [a-z][^`]*)`")
EXAMPLE = re.compile(r"^  (gemm .*)$", re.MULTILINE)
SMALLER = {
    "-M": "33", "-N": "20", "-K": "17", "--sizes": "32,48", "--shapes": "48x40x32", "--time-budget": "2",
    "--stress": "1", "--iterations": "2", "--families": "squares,gemv",
}  # fmt: skip
SIMPLE = {"cpu": "sgemm_scalar_4x4", "opencl": "sgemm_generic_naive", "cuda": "sgemm_cuda_tile"}
INSTALLS = {"pip", "pkg", "apt-get", "usermod"}
PREPARES = {"python3 -m venv .venv", ". .venv/bin/activate"}
TESTED = ("c-api.md", "write-a-kernel.md")
"""Pages whose blocks are run as they stand: below, and in test_documents.py."""


def blocks():
    """(page, lines) of each shell block, without the README's two commands, which have a tag of their own."""
    return [(page, block.splitlines()) for page in PAGES for block in BLOCK.findall(page.read_text(encoding="utf-8"))]


def words(line):
    return shlex.split(line, comments=True)


def commands():
    """Each command of gemm that is shown anywhere, once."""
    shown = [line for _, lines in blocks() for line in lines if line.startswith("gemm ")]
    for page in PAGES:
        shown += INLINE.findall(page.read_text(encoding="utf-8"))
    for name in cli.COMMANDS:
        shown += EXAMPLE.findall(helpers.run("-m", "gemm", name, "--help"))
    return sorted({shlex.join(words(re.split(r"  ", line)[0])) for line in shown})


def smaller(command):
    """The words of a command, for less work."""
    given = command.split()[1:]
    for at, word in enumerate(given):
        if word in SMALLER and at + 1 < len(given):
            given[at + 1] = SMALLER[word]
    name, options = given[0], set(given)
    if name == "bench" and options & {"--compare", "--compare-to"}:
        given += ["--backends", "cpu,numpy", "--peers", "none", "--seconds", "1", "--iterations", "3"]
        given += ["--quick", *([] if "--sizes" in options else ["--sizes", "32"])] if "--compare" in options else []
    elif name == "bench":
        given += ["--iterations", "2", *([] if options & {"-M", "--sizes", "--shapes"} else ["--sizes", "32"])]
    elif name == "explain" and "-M" not in options:
        given += ["-M", "33", "-N", "20", "-K", "17"]
    elif name == "tune" and "--import" not in options:
        given += ["--time-budget", "2"]
        if "--level" in options:  # only kernels of devices have parameters
            given += [] if "--device" in options else ["--backends", "opencl"]
        elif "--device" not in options:
            given += ["--backends", "cpu", *([] if "--quick" in options else ["--quick"])]
    elif name == "verify" and "--kernel" not in options:
        backend = "opencl" if "--stress" in options else "cpu"
        backend = given[given.index("--backends") + 1] if "--backends" in options else backend
        given += ["--quick"] if "--stress" not in options else []
        given += ["--kernel", SIMPLE[backend]]
    return given


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the commands read, made by the commands that write them, and a cache of devices."""
    path = tmp_path_factory.mktemp("commands")
    settings = {"GEMM_CACHE_DIR": path / "cache"}
    helpers.run("-m", "gemm", *smaller("gemm bench --compare --sizes 32 --json yesterday.json"), cwd=path, **settings)
    if not gemm.backends()["opencl"]:
        helpers.run("-m", "gemm", *smaller("gemm tune --level fast --export there.json"), cwd=path, **settings)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_command(command, folder):
    if {"--html", "--plots"} & {*command.split()}:
        pytest.importorskip("matplotlib", reason="it draws the charts")
    given = smaller(command)
    if ("opencl" in " ".join(given) or "--import" in given) and (why_not := gemm.backends()["opencl"]):
        pytest.skip(why_not)
    done = subprocess.run(
        [sys.executable, "-m", "gemm", *given], cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"PYTHONPATH": str(helpers.PACKAGE), "GEMM_CACHE_DIR": str(folder / "cache")},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert not done.stderr.startswith("usage:")
    if "cuda" in given and gemm.backends()["cuda"]:
        assert done.returncode == 2
        assert "driver" in done.stderr
        return
    assert done.returncode in ((0, 1) if "--check" in given else (0,)), done.stdout + done.stderr  # 1: it found a fault
    assert done.stdout
    for option, file in itertools.pairwise(given):
        if option in ("--html", "--json", "--export"):
            assert (folder / file).stat().st_size


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the blocks are for POSIX shells")
@pytest.mark.parametrize("at", range(sum(page.name == "c-api.md" for page, _ in blocks())))
def test_block_of_the_page_about_libgemm(at, tmp_path):
    """As it stands, in a checkout. The program is the page's own."""
    lines = [lines for page, lines in blocks() if page.name == "c-api.md"][at]
    script = "\n".join(lines)
    for tool in {"cc", "cmake", "pkg-config", "Rscript"} & {*re.findall(r"[\w-]+", script)}:
        if not shutil.which(tool):
            pytest.skip(f"there is no {tool}")
    page = (ROOT / "docs" / "c-api.md").read_text(encoding="utf-8")
    program = re.search(r"^```c\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "program.c").write_text(program[1], encoding="utf-8")
    (tmp_path / "program.py").write_text("print(999)\n", encoding="utf-8")
    (tmp_path / "program.R").write_text("cat(999)\n", encoding="utf-8")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(p C)\nfind_package(gemm REQUIRED)\n", encoding="utf-8"
    )
    for name, words_of in {"gemm": [sys.executable, "-m", "gemm"], "python": [sys.executable]}.items():
        wrapper = tmp_path / name
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(words_of)} "$@"\n', encoding="utf-8")
        wrapper.chmod(0o755)
    script = script.replace("build.py", shlex.quote(str(ROOT / "build.py"))).replace("DIR", "library-folder")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(helpers.PACKAGE)}
    done = subprocess.run(
        ["sh", "-ec", f"{script}\n[ ! -x program ] || ./program"], cwd=tmp_path, env=os.environ | environment,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    if "program.c" in script:
        assert done.stdout.endswith("999\n")


def test_every_other_command_installs_something():
    """No block has a command that no test runs. The extras that pip is given exist."""
    tomllib = pytest.importorskip("tomllib", reason="Python before 3.11 has no tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    others = [line for page, lines in blocks() if page.name not in TESTED for line in lines]
    for line in others:
        for command in " ".join(words(line)).split(" && "):
            first = command.partition(" ")[0]
            assert first in {"gemm", *INSTALLS} or command in PREPARES or first == "export", line
            assert {name for names in re.findall(r"\[(.*?)\]", command) for name in names.split(",")} <= {*extras}, line
    assert sum(line.startswith("pip install") for line in others) > 5
