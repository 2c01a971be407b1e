"""Small faults in the sources, each with the test that an assertion of must fail: `python tests/mutants.py --help`.

They are data, in mutants.json. `test_mutants.py` asserts that each still applies and that its test is there; this file,
run as a program, compiles a copy of the checkout, sees that the tests pass there, plants the faults one by one,
compiles what they change, sees that Python loads it, and runs their tests. It takes what builds the package, and OpenCL
and g++ for the tests of `opencl` and `cuda`. A test of hardware that is not there is skipped; that is an error unless
the fault is in `kernels`.

On two shared cores all take some 15 minutes, 2 to 7 s each, and a sample of 12 takes one and a half; another two where
no cache of ccache has the engine yet.
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
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 240  # seconds of a test


class Mutant(NamedTuple):
    """A fault: in `file`, `old`, which is there once, becomes `new`.

    Attributes:
        area: of the project. test: the pytest node id that must see it. options: of pytest, for that test.
        survives: why no test can see it, or none does; "" for all others.
    """

    area: str
    file: str
    old: str
    new: str
    test: str
    options: tuple[str, ...] = ()
    survives: str = ""

    def planted(self, text):
        assert text.count(self.old) == 1, f"{self.file}: {self.old!r} is there {text.count(self.old)} times"
        return text.replace(self.old, self.new)


def _read():
    entries = json.loads((ROOT / "tests/mutants.json").read_text(encoding="utf-8"))
    return tuple(Mutant(**{**entry, "options": tuple(entry.get("options", ()))}) for entry in entries)


MUTANTS = _read()
LIBRARIES = "_cpu", "_memo"


class Copy:
    """A copy of the checkout, in which everything is compiled and faults are planted."""

    def __init__(self, folder):
        self.root = folder
        git = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(git, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
        for name in filter(None, listed):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        self.environment = {
            **os.environ, "PYTHONPATH": str(folder), "GEMM_CACHE_DIR": str(folder / ".cache"),
            "CCACHE_BASEDIR": str(folder), "CCACHE_NOHASHDIR": "1", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        self._must(sys.executable, "build.py")
        self.parts = self._parts()
        for library in LIBRARIES:  # the objects suffice for a library that can be loaded
            self._link(library)
        self._load()

    def run(self, *command, limit=1800):
        return subprocess.run(
            command, cwd=self.root, env=self.environment, text=True, timeout=limit, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _must(self, *command):
        done = self.run(*command)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout[-2000:]}")
        return done.stdout

    def _parts(self):
        """The sources of each of LIBRARIES."""
        words = "import build, json; print(json.dumps({x.name: x.sources for x in build.extensions()}))"
        python = {
            name.removeprefix("gemm."): x for name, x in json.loads(self._must(sys.executable, "-c", words)).items()
        }
        self.objects = next((self.root / "build").glob("temp.*"))
        sources = [path.relative_to(self.objects).with_suffix(".c").as_posix() for path in self.objects.rglob("*.o")]
        return {"_cpu": [x for x in sources if not x.startswith("csrc/python/")], **python}

    def _load(self):
        """See that Python loads the libraries that lie in the copy."""
        words = "; ".join(f"import gemm.{name}; print(gemm.{name}.__file__)" for name in LIBRARIES)
        printed = self._must(sys.executable, "-c", words).split()
        assert [*map(Path, printed)] == [self._library(name) for name in LIBRARIES], printed

    def _library(self, name):
        return self.root / "gemm" / f"{name}.abi3.so"

    @contextmanager
    def planted(self, mutant):
        """`mutant` in the source, and in what is compiled from it."""
        path = self.root / mutant.file
        sound = path.read_text(encoding="utf-8")
        kept = {}
        try:
            path.write_text(mutant.planted(sound), encoding="utf-8")
            if mutant.file.startswith("csrc/") and "/cuda/" not in mutant.file:
                libraries = [*(self.root / "gemm").glob("*.so"), *(self.root / "gemm" / "lib").glob("*.so")]
                kept = {library: library.read_bytes() for library in libraries}
                self._compile(mutant)
                self._load()
            yield
        finally:
            path.write_text(sound, encoding="utf-8")
            for library, data in kept.items():
                library.unlink()  # a process may have it mapped
                library.write_bytes(data)

    def _compile(self, mutant):
        """Compile the sources that the fault shows in, and link them with the others' objects."""
        if mutant.file.startswith("csrc/cblas/"):
            self._must(sys.executable, "-c",
                       "import build, pathlib; build.make_library(pathlib.Path('gemm'), {})")  # fmt: skip
            return
        if mutant.file.endswith(".c"):
            changed = {mutant.file}
        elif re.match(r"csrc/(driver|python)/", mutant.file):
            changed = {x for parts in self.parts.values() for x in parts if x.startswith(str(Path(mutant.file).parent))}
        else:  # of all kernels that include it, the one whose test is to see it
            changed = {x for x in self.parts["_cpu"] if Path(x).stem in re.findall(r"\w+", mutant.test)}
        assert changed, f"{mutant.file} is compiled into no library, or the test of a fault in a header names no kernel"
        for library, parts in self.parts.items():
            if changed & {*parts}:
                self._link(library, changed)

    def _link(self, library, changed=()):
        """Link `library` anew, of the objects that are there and of what `changed` compiles to."""
        # csrc/ has a complex.h, which NumPy must not find.
        includes = [sysconfig.get_path("include"), "csrc" if library == "_cpu" else numpy.get_include()]
        flags = ["-fPIC", "-O3", "-g0", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-pthread"]
        compiler = sysconfig.get_config_var("CC").split()[0]
        objects = []
        for i, part in enumerate(self.parts[library]):
            at = self.objects / Path(part).with_suffix(".o")
            if part in changed:
                at = self.root / f"mutant{i}.o"
                self._must(compiler, *flags, *(f"-I{x}" for x in includes), "-c", part, "-o", str(at))
            objects.append(str(at))
        target = self._library(library)
        target.unlink()
        self._must(compiler, "-shared", "-pthread", "-Wl,-Bsymbolic", *objects, "-o", str(target), "-lm")

    def sound(self, mutants):
        """What fails of the tests of `mutants` while none is planted; "": nothing."""
        by_options = {}
        for mutant in mutants:
            by_options.setdefault(mutant.options, {})[mutant.test] = None
        for options, tests in by_options.items():
            done = self.run(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options, *tests)
            if done.returncode:
                return done.stdout[-3000:]
        return ""

    def fate(self, mutant):
        """What the test says of the planted fault: "killed" by an assertion, "survived", or else."""
        report = self.root / "report.xml"
        report.unlink(missing_ok=True)
        try:
            done = self.run(
                sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--junitxml={report}",
                *mutant.options, mutant.test, limit=LIMIT,
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


def main():
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
    table = {}
    with tempfile.TemporaryDirectory() as work:
        start = time.monotonic()
        copy = Copy(given.folder or Path(work))
        print(f"copied and compiled ({time.monotonic() - start:.0f} s)", flush=True)
        start = time.monotonic()
        if wrong := copy.sound([mutant for _, mutant in chosen]):
            print(f"Without a fault a test fails:\n{wrong}")
            return 1
        print(f"their tests pass without a fault ({time.monotonic() - start:.0f} s)", flush=True)
        for i, mutant in chosen:
            start = time.monotonic()
            with copy.planted(mutant):
                fate = copy.fate(mutant)
            right = fate == ("survived" if mutant.survives else "killed") or (fate, mutant.area) == (
                "skipped",
                "kernels",
            )
            table.setdefault(mutant.area, Counter())[fate if right else "WRONG"] += 1
            print(f"{i:3} {mutant.area:10} {'' if right else 'WRONG: '}{fate}  {mutant.file}: "
                  f"{mutant.new.strip()[:60]!r} ({time.monotonic() - start:.0f} s)", flush=True)  # fmt: skip
    for area, counts in table.items():
        print(f"{area:12} " + ", ".join(f"{count} {fate}" for fate, count in sorted(counts.items())))
    return int(any(counts["WRONG"] for counts in table.values()))


if __name__ == "__main__":
    sys.exit(main())
