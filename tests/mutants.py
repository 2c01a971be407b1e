"""Small faults in the sources, each with the test that an assertion of must fail: `python tests/mutants.py --help`.

They are data, in mutants.json. `test_mutants.py` asserts that each still applies and that its test is there; this file,
run as a program, plants them one by one in a copy of the checkout, compiles what they change, and runs their tests.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 240  # seconds of a test


class Mutant(NamedTuple):
    """A fault: in `file`, `old`, which is there once, becomes `new`; `test`, a pytest node id, must see it."""

    area: str
    file: str
    old: str
    new: str
    test: str

    def planted(self, text: str) -> str:
        assert text.count(self.old) == 1, f"{self.file}: {self.old!r} is there {text.count(self.old)} times"
        return text.replace(self.old, self.new)


MUTANTS = tuple(Mutant(**entry) for entry in json.loads((ROOT / "tests/mutants.json").read_text(encoding="utf-8")))


class Copy:
    """A copy of the checkout, with what is compiled, in which faults are planted."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        git = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(git, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
        for name in filter(None, listed):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        for path in [*(ROOT / "gemm").glob("*.so"), *(ROOT / "gemm" / "lib").glob("*")]:
            (folder / path.relative_to(ROOT)).parent.mkdir(exist_ok=True)
            shutil.copy2(path, folder / path.relative_to(ROOT))
        self.environment = {
            **os.environ, "PYTHONPATH": str(folder), "GEMM_CACHE_DIR": str(folder / ".cache"),
            "CCACHE_BASEDIR": str(folder), "CCACHE_NOHASHDIR": "1", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip

    def run(self, *command: str, limit: float = 1800) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.root, env=self.environment, text=True, timeout=limit, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _must(self, *command: str) -> None:
        done = self.run(*command)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout[-2000:]}")

    def build(self) -> None:
        """Compile everything, so that the objects of what no fault changes are there."""
        if not any((self.root / "build").glob("temp.*")):
            for library in (self.root / "gemm").glob("*.so"):
                library.unlink()
            self._must(sys.executable, "build.py")

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """`mutant` in the source, and in what is compiled from it."""
        path = self.root / mutant.file
        sound = path.read_text(encoding="utf-8")
        kept = {}
        try:
            if mutant.file.startswith("csrc/") and "/cuda/" not in mutant.file:
                self.build()
                libraries = [*(self.root / "gemm").glob("*.so"), *(self.root / "gemm" / "lib").glob("*.so")]
                kept = {library: library.read_bytes() for library in libraries}
            path.write_text(mutant.planted(sound), encoding="utf-8")
            if kept:
                self._link(mutant)
            yield
        finally:
            path.write_text(sound, encoding="utf-8")
            for library, data in kept.items():
                library.unlink()  # a process may have it mapped
                library.write_bytes(data)

    def _link(self, mutant: Mutant) -> None:
        """Compile the sources that the fault shows in, and link them with the others' objects."""
        if mutant.file.startswith("csrc/cblas/"):
            self._must(sys.executable, "-c",
                       "import build, pathlib; build.make_library(pathlib.Path('gemm'), package=True)")  # fmt: skip
            return
        objects = next((self.root / "build").glob("temp.*"))
        python = mutant.file.startswith("csrc/python/")
        module = "_memo" if python else "_cpu"
        sources = [mutant.file]
        if mutant.file.endswith(".h"):  # of all that include it, the kernel whose test is to see it
            row = re.search(r"\[(\w+?)[-\]]", mutant.test)
            assert row, f"{mutant.test}: the test of a fault in a header names a kernel"
            sources = [str(p.relative_to(self.root)) for p in (self.root / "csrc").glob(f"*/{row[1]}.c")]
        compiler = sysconfig.get_config_var("CC").split()[0]
        includes = [f"-I{sysconfig.get_path('include')}"]
        if python:
            import numpy

            includes.append(f"-I{numpy.get_include()}")
        else:  # csrc/ has a complex.h, which NumPy must not find
            includes.append("-Icsrc")
        flags = ["-fPIC", "-O3", "-g0", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-pthread"]
        fresh = {source: str(self.root / f"mutant{i}.o") for i, source in enumerate(sources)}
        for source, to in fresh.items():
            self._must(compiler, *flags, *includes, "-c", source, "-o", to)
        if python:
            parts = [f"csrc/python/{part}.c" for part in ("memo", "front", "batch", "many", "order")]
        else:
            inner = {p.relative_to(objects).with_suffix(".c").as_posix() for p in objects.rglob("*.o")}
            parts = [p for p in inner if not p.startswith("csrc/python/")]
        linked = [fresh.get(part) or str(objects / Path(part).with_suffix(".o")) for part in parts]
        target = self.root / "gemm" / f"{module}.abi3.so"
        target.unlink()
        self._must(compiler, "-shared", "-pthread", "-Wl,-Bsymbolic", *linked, "-o", str(target), "-lm")

    def fate(self, mutant: Mutant) -> str:
        """What the test says of the planted fault: "killed" by an assertion, "survived", or else."""
        report = self.root / "report.xml"
        report.unlink(missing_ok=True)
        try:
            done = self.run(
                sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--junitxml={report}",
                mutant.test, limit=LIMIT,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "timeout"
        if done.returncode not in (0, 1) or not report.exists():
            return f"crash (exit {done.returncode})" if done.returncode < 0 else f"no test ran: {done.stdout[-300:]}"
        suite = ET.parse(report).getroot().find("testsuite")
        assert suite is not None
        if done.returncode == 0:
            ran = int(suite.get("tests", 0)) - int(suite.get("skipped", 0))
            return "survived" if ran else "skipped"
        message = next((x.get("message", "") for x in suite.iter("failure")), None)
        if message is None:
            return "error: " + next((x.get("message", "") for x in suite.iter("error")), "")[:200]
        by_assertion = message.startswith(
            ("AssertionError", "assert ", "Failed: DID NOT RAISE", "Failed: DID NOT WARN")
        )
        return "killed" if by_assertion else f"failed otherwise: {message[:200]}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant faults one by one in a copy of the checkout; see who notices.")
    parser.add_argument("areas", nargs="*", help="only these areas, or numbers; default: all")
    parser.add_argument("--sample", type=int, metavar="N", help="N of them, by chance")
    parser.add_argument("--seed", type=int, default=int(time.time() // 86400), help="of the sample; default: the day's")
    parser.add_argument("--list", action="store_true", help="what there is")
    parser.add_argument("--in", dest="folder", type=Path, help="where the copy is made; default: a temporary folder")
    given = parser.parse_args()
    chosen = [(i, m) for i, m in enumerate(MUTANTS) if not given.areas or {m.area, str(i)} & {*given.areas}]
    if given.sample:
        chosen = sorted(random.Random(given.seed).sample(chosen, min(given.sample, len(chosen))))
        print(f"seed {given.seed}", flush=True)
    if given.list:
        for i, mutant in chosen:
            print(f"{i:3} {mutant.area:10} {mutant.file}: {mutant.old!r} -> {mutant.new!r} ({mutant.test})")
        return 0
    table: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as work:
        copy = Copy(given.folder or Path(work))
        for i, mutant in chosen:
            start = time.monotonic()
            with copy.planted(mutant):
                fate = copy.fate(mutant)
            table.setdefault(mutant.area, Counter())[fate if fate in ("killed", "skipped") else "not killed"] += 1
            print(f"{i:3} {mutant.area:10} {fate}  {mutant.file}: {mutant.new.strip()[:60]!r} "
                  f"({time.monotonic() - start:.0f} s)", flush=True)  # fmt: skip
    for area, counts in table.items():
        print(f"{area:12} " + ", ".join(f"{count} {fate}" for fate, count in sorted(counts.items())))
    return int(any(counts["not killed"] for counts in table.values()))


if __name__ == "__main__":
    sys.exit(main())
