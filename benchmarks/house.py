"""Print the size and the structure of the code in this checkout: the table that docs/architecture.md sets goals for.

    python benchmarks/house.py [--json FILE | --picture]

Tokens are Python tokens without comments, strings and layout. A circle is a strongly connected group of modules, or of
gemm's top-level folders and modules. Imports inside functions count; imports for type checkers do not. Calls are the
calls of gemm's Python functions during one product on the CPU: a product of a new shape, and the same product repeated.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
LAYOUT = {
    tokenize.COMMENT, tokenize.STRING, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip
LONG, MANY = 40, 7
"""Limits: functions with more than LONG lines, or with MANY parameters or more, are listed."""
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "gemm").rglob("*.py"))
}
Graph = dict[str, set[str]]


def tokens(folder: str) -> int:
    """The number of Python tokens in all files of a folder."""
    count = 0
    for path in (ROOT / folder).rglob("*.py"):
        with tokenize.open(path) as file:
            count += sum(token.type not in LAYOUT for token in tokenize.generate_tokens(file.readline))
    return count


def lines(folder: str, suffixes: Iterable[str]) -> int:
    """The number of lines in all files of a folder with these suffixes."""
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    return sum(path.read_text(encoding="utf-8").count("\n") for path in files)


def imports(name: str) -> set[str]:
    """The modules of gemm that the module `name` imports."""
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]

    def of(nodes: Iterable[ast.AST]) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                yield from of(node.orelse)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                inner = ".".join([*parts, *filter(None, [node.module])])
                for alias in node.names:
                    yield f"{inner}.{alias.name}" if f"{inner}.{alias.name}" in MODULES else inner
            else:
                yield from of(ast.iter_child_nodes(node))

    found = of(ast.parse(MODULES[name].read_text(encoding="utf-8")).body)
    return {module for module in found if module in MODULES} - {name}


def circles(graph: Graph) -> list[list[str]]:
    """Groups of two or more nodes that can all reach each other."""
    reach: Graph = {}
    for start in graph:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for node in graph[waiting.pop()] - seen:
                seen.add(node)
                waiting.append(node)
        reach[start] = seen
    groups = {tuple(sorted(b for b in reach[a] if a in reach[b])) for a in graph if a in reach[a]}
    return sorted(map(list, groups))


def folded(graph: Graph) -> Graph:
    """The same graph with one node for each folder and module directly below gemm, and for gemm itself."""
    found: Graph = {}
    for name, others in graph.items():
        here = ".".join(name.split(".")[:2])
        found.setdefault(here, set()).update({".".join(other.split(".")[:2]) for other in others} - {here})
    return found


def picture() -> str:
    """A line for each folder and module directly below gemm, with those that it imports.

    Lines with longer chains of imports come first.
    """
    graph = {name.removeprefix("gemm."): others for name, others in folded({m: imports(m) for m in MODULES}).items()}
    below = {name: sorted(other.removeprefix("gemm.") for other in others) for name, others in graph.items()}
    below = {name: others for name, others in below.items() if not name.startswith("__") and name != "gemm"}

    def height(name: str) -> int:
        return 1 + max(map(height, below[name]), default=0)

    order = sorted(below, key=lambda name: (-height(name), name))
    return "\n".join(f"{name:10} → {' '.join(sorted(below[name], key=order.index)) or 'nothing'}" for name in order)


def functions() -> list[tuple[str, int, int]]:
    """(name, lines, parameters) of every function in gemm."""
    found = []
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                names = [x.arg for x in (*given.posonlyargs, *given.args, *given.kwonlyargs) if x.arg != "self"]
                found.append((f"{name}.{node.name}", (node.end_lineno or 0) - node.lineno + 1, len(names)))
    return found


def calls() -> dict[str, tuple[int, int, int]]:
    """{product: (number of calls of gemm's Python functions, number of distinct functions, number of their files)}."""
    import gemm

    def counted(a: Any, b: Any) -> tuple[int, int, int]:
        seen: list[tuple[str, int]] = []

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                seen.append((frame.f_code.co_filename, frame.f_code.co_firstlineno))

        sys.setprofile(note)
        try:
            gemm.gemm(a, b)
        finally:
            sys.setprofile(None)
        seen = [each for each in seen if str(ROOT / "gemm") in each[0]]
        return len(seen), len(set(seen)), len({file for file, _ in seen})

    a, b = np.ones((96, 96), np.float32), np.ones((96, 96), np.float32)
    for size in (8, 48, 96):  # a process's first products also do work that is done only once
        gemm.gemm(a[:size], b)
    first = counted(a[:51], b)
    for _ in range(3):
        gemm.gemm(a[:51], b)
    return {"first": first, "repeated": counted(a[:51], b)}


def measured() -> dict[str, Any]:
    """{figure: value}. The values of functions and circles are lists of names."""
    import gemm

    graph = {name: imports(name) for name in MODULES}
    rows = functions()
    return {
        "Python tokens in gemm/": tokens("gemm"), "Python tokens in tests/": tokens("tests"),
        "lines of C and CUDA in csrc/": lines("csrc", {".c", ".h", ".cu", ".cuh"}),
        "modules": len(MODULES), "names in dir(gemm)": len([x for x in dir(gemm) if not x.startswith("_")]),
        "module circles": circles(graph), "folder circles": circles(folded(graph)),
        "functions over 40 lines": [f"{name}: {size}" for name, size, _ in rows if size > LONG],
        "functions with 7 parameters or more": [f"{name}: {count}" for name, _, count in rows if count >= MANY],
        "calls, functions, files of a new shape": calls()["first"],
        "calls, functions, files of a repeated product": calls()["repeated"],
    }  # fmt: skip


def main() -> int:
    """Print the figures, or with --picture the imports. With --json, also write the figures to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--picture", action="store_true", help="print which folder imports which")
    options = parser.parse_args()
    if options.picture:
        print(picture())
        return 0
    found = measured()
    for name, value in found.items():
        shown = len(value) if isinstance(value, list) else value
        print(f"{name:48} {shown:,}" if isinstance(shown, int) else f"{name:48} {', '.join(map(str, shown))}")
        for each in value if isinstance(value, list) else ():
            print(f"    {each if isinstance(each, str) else ' '.join(each)}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
