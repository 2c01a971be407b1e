"""Who may import whom: docs/architecture.md, "Layers"."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import gemm
from gemm.backends.base import Backend
from gemm.catalog import BACKENDS, HOLDING, SPREADING
from gemm.dispatch import registry

ROOT = Path(gemm.__file__).parent
PURE = ("catalog", "errors", "operands", "plain", "problem", "rates", "version")
"""Data and arithmetic."""
MACHINE = (*PURE, "engine", "sources", "threads")
"""And what is so of this machine and of its files."""
RULES: dict[str, tuple[str, ...]] = {
    "catalog": ("catalog",),
    "errors": (), "plain": (), "problem": (), "rates": (), "version": (), "operands": ("problem",),
    "threads": MACHINE, "engine": MACHINE, "sources": MACHINE,
    "backends": ("backends", *MACHINE),
    "arguments": (), "interop": ("backends.base", "dispatch.registry", *PURE),
    "regimes": PURE, "epilogue": ("backends.base", *PURE), "verify": ("verify", "backends.base", "regimes", *PURE),
    "measure": ("backends.base", "verify", *PURE),
    "dispatch": ("dispatch", "backends.base", "epilogue", "measure", "verify", *MACHINE),
}  # fmt: skip
"""{module or package: what it may import of gemm}. What is not named is above them, and may import them all."""
ABOVE = ("cli", "compare", "dask", "doctor", "report", "timing")
"""Imported by each other, and by the public face within functions."""
OWN = {"chain": {"backends.cpu"}, "doctor": {"backends.cpu"}}
"""{who knows a backend: which}: the engine is part of the package, and is asked for what no other backend has."""
FILES = {path: path.relative_to(ROOT).with_suffix("").parts for path in sorted(ROOT.rglob("*.py"))}


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The modules of gemm that a file imports, without "gemm.", and whether it does so as it is imported itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    first = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == "gemm":
            inner = str(node.module).removeprefix("gemm").lstrip(".")
            for name in [alias.name for alias in node.names]:
                below = ROOT.joinpath(*inner.split(".")) / name
                is_module = below.is_dir() or below.with_suffix(".py").exists()
                yield ".".join(filter(None, (inner, name if is_module else ""))), id(node) in first
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "gemm":
                    yield alias.name.removeprefix("gemm").lstrip("."), id(node) in first


def under(module: str, names: tuple[str, ...] | set[str]) -> bool:
    """Whether a module is one of those, or in one."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


@pytest.mark.parametrize("layer", RULES)
def test_a_layer_imports_what_is_below(layer: str) -> None:
    paths = [path for path, parts in FILES.items() if parts[0] == layer]
    assert paths
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in paths
        for module, _ in imports(path)
        if not under(module, RULES[layer])
    ]
    assert not wrong


def test_nothing_imports_the_face() -> None:
    """Its names are for callers; the package imports the modules that define them."""
    asking = {parts[0] for path, parts in FILES.items() for module, _ in imports(path) if not module}
    assert not asking


def test_backends_are_known_by_their_interface() -> None:
    """Above them, too."""
    known: dict[str, set[str]] = {}
    for path, parts in FILES.items():
        concrete = {name for name, _ in imports(path) if under(name, {"backends"})} - {"backends.base"}
        if concrete and parts[0] != "backends":
            known.setdefault(parts[0], set()).update(concrete)
    assert known == OWN


def test_backends_with_memory_are_not_named_above_them() -> None:
    """What one of them alone has, its interface or the catalog tells."""
    named = [
        f"{path.relative_to(ROOT)}, line {node.lineno}: {node.value!r}"
        for path, parts in FILES.items()
        if parts[0] not in (*ABOVE, "__main__", "backends", "catalog", "errors")  # whose are links to the documentation
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in HOLDING
    ]
    assert not named


def test_what_is_above_is_loaded_by_the_face_alone() -> None:
    """When it is used: within functions."""
    for path, parts in FILES.items():
        if parts[0] not in (*ABOVE, "__main__"):
            above = [first for module, first in imports(path) if under(module, ABOVE)]
            assert not (any(above) if parts[0] == "__init__" else above), path


def test_no_module_imports_itself_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a folder; imports within functions count."""
    monkeypatch.syspath_prepend(str(ROOT.parent / "benchmarks"))
    house = importlib.import_module("house")
    graph = {name: house.imports(name) for name in house.MODULES}
    assert "gemm.problem" in graph["gemm.operands"]
    assert house.circles(graph) == []
    assert house.circles(house.folded(graph)) == []


def test_the_catalog_names_the_backends_with_memory() -> None:
    assert [name for name in BACKENDS if type(registry.backend(name)).view is not Backend.view] == list(HOLDING)


def test_the_catalog_names_the_backends_that_spread_products() -> None:
    assert [name for name in BACKENDS if registry.backend(name).copying] == list(SPREADING)
