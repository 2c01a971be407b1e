"""What the documents show is what happens: sessions, the worked kernel, the notebook; what is generated is current."""

import ast
import doctest
import importlib
import pkgutil
import re
import shutil

import helpers
import pytest
import sessions
from helpers import ROOT, python

import gemm
from gemm.catalog import KERNELS
from gemm.frontend import inventory

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_SESSIONS = [page for page in PAGES if sessions.session(page) and page.name != "zero-copy.md"]
"""zero-copy.md wants an OpenCL device that shares the host's memory: tests/extras/test_zero_copy.py."""


@pytest.mark.parametrize("page", WITH_SESSIONS, ids=lambda page: page.name)
def test_session(page):
    assert sessions.run(sessions.session(page), page.name) >= 2


def modules():
    """All of the package, but those of libraries that are not installed."""
    found = [gemm]
    for module in pkgutil.walk_packages(gemm.__path__, "gemm."):
        if not module.name.endswith("__main__"):
            try:
                found.append(importlib.import_module(module.name))
            except ImportError as error:
                if str(error.name).startswith("gemm"):
                    raise
    return found


def test_docstrings():
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = [test for module in modules() for test in finder.find(module, module.__name__) if test.examples]
    assert "gemm" in {test.name for test in tests}
    for test in tests:
        assert not doctest.DocTestRunner().run(test).failed, test.name


def test_the_reference_has_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^::: gemm\.([\w.]+)$", page, re.MULTILINE)
    assert set(gemm.__all__) <= set(shown)
    for name in set(shown) - {"dask"}:  # which wants its extra
        assert pkgutil.resolve_name(f"gemm.{name}").__doc__, name


def test_readme_has_one_command_for_each_purpose():
    for tag in ("run", "test"):
        (command,) = re.findall(rf"^```sh {tag}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
        *before, _ = command.splitlines()
        assert all(line.endswith(" &&") for line in before)


def test_settings_name_every_environment_variable():
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in inventory.VARIABLES)


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md")], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    """In the repository; that they do so on the site, anchors included, is what ci/docs.sh checks."""
    text = re.sub(r"^(```+).*?^\1$|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", text):
        assert (page.parent / target).exists(), target


def test_the_page_of_kernels_has_each():
    """With a link to its source; that the site has the page is what ci/docs.sh checks."""
    pytest.importorskip("mkdocs", reason="the extra docs has it")
    code = "import kernels; print(kernels.document())"
    told = python(code, cwd=ROOT / "docs")
    found = dict(re.findall(r"^\| \[(\w+)\]\((\S+)\) \|", told, re.MULTILINE))
    assert found == {row.name: f"../{row.source}" for row in KERNELS}


@pytest.mark.parametrize("script", ["make_peers_page", "make_crossover"])
def test_what_is_made_from_records_is_current(script):
    helpers.run(ROOT / f"docs/{script}.py", "--check")


@pytest.mark.slow
def test_the_gallery_is_drawn(tmp_path):
    """That the site has it is what ci/docs.sh checks."""
    pytest.importorskip("matplotlib", reason="it draws the charts")
    pytest.importorskip("mkdocs", reason="the extra docs has it")
    code = f"import gallery, pathlib; gallery.draw(pathlib.Path({str(tmp_path)!r})); print(gallery.PAGE)"
    told = python(code, cwd=ROOT / "docs")
    shown = set(re.findall(r"\]\(([\w-]+\.(?:svg|html))\)", told))
    assert shown == {file.name for file in tmp_path.iterdir()}
    for name, words in ("regret.svg", "time of what auto chose"), ("batching.svg", "gemm_many"):
        assert words in (tmp_path / name).read_text(encoding="utf-8")


def test_version_of_the_citation():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {gemm.__version__}\n" in citation


@pytest.mark.slow
def test_notebook():
    nbformat = pytest.importorskip("nbformat", reason="the extra docs has it")
    nbclient = pytest.importorskip("nbclient", reason="the extra docs has it")
    pytest.importorskip("ipykernel", reason="the extra docs has it")
    notebook = nbformat.read(ROOT / "examples" / "report.ipynb", 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code), "it is stored without outputs"
    nbclient.NotebookClient(notebook, timeout=300).execute()
    shown = ["".join(output.data.get("text/html", "")) for cell in code for output in cell.outputs if "data" in output]
    assert any("gemm-compare" in html and "<svg" in html for html in shown)
    assert any(html.startswith("<p>256 × 256 × 256 float32") for html in shown)


# docs/write-a-kernel.md: one file and one row, in a copy of the package.

KERNEL = "sgemm_generic_strip_8x4"


def titled(page):
    """{file: block} of the page's blocks that name one."""
    return dict(re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```', page, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package and its tests, with the page's file and row."""
    if why_not := gemm.backends()["opencl"]:
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("kernel")
    for name in ("gemm", "kernels", "csrc", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    blocks = titled((ROOT / "docs" / "write-a-kernel.md").read_text(encoding="utf-8"))
    (source, kernel), (catalog, row) = blocks.items()
    assert not (folder / source).exists()
    (folder / source).write_text(kernel, encoding="utf-8")
    text = (folder / catalog).read_text(encoding="utf-8")
    end = next(n.end_lineno for n in ast.parse(text).body if isinstance(n, ast.AnnAssign) and n.target.id == "OPENCL")
    lines = text.splitlines(keepends=True)
    (folder / catalog).write_text("".join([*lines[: end - 1], row, *lines[end - 1 :]]), encoding="utf-8")
    return folder


def commands():
    page = (ROOT / "docs" / "write-a-kernel.md").read_text(encoding="utf-8")
    return re.findall(r"^python (-m .*)$", page.replace("\\\n", ""), re.MULTILINE)


def run(command, folder):
    """What Python prints, run with these words in the copy, but of smaller products, and of fewer."""
    command = command.replace("512", "96").replace("--time-budget 20", "--time-budget 5")
    settings = {"PYTHONPATH": folder, "GEMM_CACHE_DIR": folder / "cache", "PYTEST_ADDOPTS": "--thin"}
    return helpers.run(*command.split(), cwd=folder, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_the_worked_kernel(command, copy):
    assert ("passed" if "pytest" in command else KERNEL) in run(command, copy)


@pytest.mark.slow
def test_the_worked_kernel_keeps_the_rules_of_the_house(copy):
    """Its name, and its defaults, which are its row's."""
    done = run("-m pytest -q tests/core/test_sources.py -k strip", copy)
    assert "3 passed" in done
