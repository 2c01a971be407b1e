"""Who may import whom: docs/architecture.md, "Layers"."""

import ast
import importlib
from functools import cache
from pathlib import Path

import pytest

import gemm
from gemm.backends import registry
from gemm.catalog import BACKENDS, HOLDING, SPREADING
from gemm.core.backend import Backend

ROOT = Path(gemm.__file__).parent
LAYERS = (
    {"catalog"}, {"core"}, {"backends"}, {"select"}, {"execute"}, {"frontend"}, {"extras", "numpy_api"}, {"dask"},
    {"bench", "tune"}, {"compare"}, {"cli"},
)  # fmt: skip
"""The folders of gemm, the lowest first; one imports itself and what is below it, a lazy import included."""
PURE = {"core": (), "core.errors": (), "core.problem": ("catalog",), "core.numpy_original": (),
        "core.operands": ("core.problem",)}  # fmt: skip
"""{module of data and arithmetic: what it may import}."""
ABOVE = ("bench", "cli", "compare", "dask", "tune")
"""Imported by each other, and by the public face within functions."""
NAMING = (*ABOVE, "__main__", "backends", "catalog", "core.errors")
"""Which may name a backend: core.errors has links to their pages."""
OWN = {"cli": {"backends.cpu"}, "dask": {"backends.cpu"}}
"""{who knows a backend: which}: the engine is part of the package, and is asked for what no other backend has."""
FILES = {path: path.relative_to(ROOT).with_suffix("").parts for path in sorted(ROOT.rglob("*.py"))}


@cache
def imports(path):
    """The modules of gemm that a file imports, without "gemm.", and whether it does so as it is imported itself."""
    return tuple(_imports(ast.parse(path.read_text(encoding="utf-8"))))


def _imports(tree):
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


def under(module, names):
    """Whether a module is one of those, or in one."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


@pytest.mark.parametrize("layer", range(len(LAYERS)))
def test_a_folder_imports_what_is_below(layer):
    below = set().union(*LAYERS[:layer])
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path, parts in FILES.items()
        for module, _ in imports(path)
        if parts[0] in LAYERS[layer] and module.partition(".")[0] not in below | {parts[0]}
    ]
    assert not wrong


def test_each_folder_has_its_layer():
    assert {parts[0] for parts in FILES.values()} - {"__init__", "__main__"} == set().union(*LAYERS)


@pytest.mark.parametrize("module", PURE)
def test_data_knows_data_only(module):
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    assert {name for name, _ in imports(file)} <= set(PURE[module])


def test_the_picture_in_the_documents_is_drawn_from_the_code(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT.parent / "benchmarks"))
    drawn = importlib.import_module("house").picture()
    page = (ROOT.parent / "docs/architecture.md").read_text(encoding="utf-8")
    assert f"```imports\n{drawn}\n```" in page, "python benchmarks/house.py --picture draws it"
    order = [name for layer in reversed(LAYERS) for name in layer]
    assert {line.split()[0] for line in drawn.splitlines()} == set(order)


def test_nothing_imports_the_face():
    """Its names are for callers; the package imports the modules that define them."""
    asking = {parts[0] for path, parts in FILES.items() for module, _ in imports(path) if not module}
    assert not asking


def test_backends_are_known_by_their_interface():
    """Above them, too."""
    known = {}
    for path, parts in FILES.items():
        concrete = {name for name, _ in imports(path) if under(name, {"backends"})} - {"backends.registry"}
        if concrete and parts[0] != "backends":
            known.setdefault(parts[0], set()).update(concrete)
    assert known == OWN


def test_backends_with_memory_are_not_named_above_them():
    """What one of them alone has, its interface or the catalog tells."""
    named = [
        f"{path.relative_to(ROOT)}, line {node.lineno}: {node.value!r}"
        for path, parts in FILES.items()
        if not under(".".join(parts), NAMING)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in HOLDING
    ]
    assert not named


def test_what_is_above_is_loaded_by_the_face_alone():
    """When it is used: within functions."""
    for path, parts in FILES.items():
        if not under(".".join(parts), (*ABOVE, "__main__")):
            above = [first for module, first in imports(path) if under(module, ABOVE)]
            assert not (any(above) if parts[0] == "__init__" else above), path


def test_no_module_imports_itself_by_others(monkeypatch):
    """Nor does a folder; imports within functions count."""
    monkeypatch.syspath_prepend(str(ROOT.parent / "benchmarks"))
    house = importlib.import_module("house")
    graph = {name: house.imports(name) for name in house.MODULES}
    assert "gemm.core.problem" in graph["gemm.core.operands"]
    assert house.circles(graph) == []
    assert house.circles(house.folded(graph)) == []


def test_the_catalog_names_the_backends_with_memory():
    assert [name for name in BACKENDS if type(registry.backend(name)).view is not Backend.view] == list(HOLDING)


def test_the_catalog_names_the_backends_that_spread_products():
    assert [name for name in BACKENDS if registry.backend(name).copying] == list(SPREADING)
