"""An mkdocs hook (mkdocs.yml): include in the site every file outside of docs/ that a page links to.

Pages link to sources, results and documents by their paths in the repository, so the links also work in the repository
itself. Each linked file becomes a page below repository/: Markdown stays as it is, a source becomes a listing, a folder
becomes a list of its files. Other files are copied. The hook rewrites the links accordingly. As a result the site is
self-contained, and mkdocs checks every link.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
LANGUAGES = {
    ".py": "python", ".c": "c", ".h": "c", ".cl": "c", ".clh": "c", ".cu": "cuda", ".cuh": "cuda", ".sh": "bash",
    ".txt": "text", ".cff": "yaml", "": "text",
}  # fmt: skip
"""{suffix: language} of the files that are shown as listings."""
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"
_FENCED = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2`*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^()\s#]+)")


HOME = "README.md"
"""The site's home page."""


def place(target: str) -> str:
    """The path among the site's sources of the repository's file or folder `target`."""
    if target == HOME:
        return "index.md"
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    path = ROOT / target
    if path.is_dir():
        return f"repository/{target}/{'README.md' if (path / 'README.md').exists() else 'index.md'}"
    return f"repository/{target}{'.md' if path.suffix in LANGUAGES else ''}"


def origin(source: str) -> str:
    """The repository path of a page with the mkdocs source path `source`; the inverse of `place`."""
    if source == "index.md":
        return HOME
    if not source.startswith("repository/"):
        return f"docs/{source}"
    path = source.removeprefix("repository/")
    return path if (ROOT / path).exists() else path.removesuffix("/index.md").removesuffix(".md")


def text(target: str) -> str | None:
    """The Markdown text of a target outside of docs/; None if the target is copied."""
    path = ROOT / target
    if path.is_dir():
        names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in path.iterdir())
        lines = [f"- [{name}]({name.rstrip('/')})" for name in names if name != "__pycache__/"]
        return f"{UNSEARCHED}# {target}\n\n" + "\n".join(lines) + "\n"
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    if path.suffix not in LANGUAGES:
        return None
    listing = path.read_text(encoding="utf-8").rstrip()
    return f"{UNSEARCHED}# {target}\n\n````````{LANGUAGES[path.suffix]}\n{listing}\n````````\n"


def links(markdown: str) -> Iterator[re.Match[str]]:
    """The relative links of a page, except those in code."""
    code = [found.span() for found in _FENCED.finditer(markdown)]
    for link in _LINK.finditer(markdown):
        if not any(start <= link.start() < end for start, end in code):
            yield link


def leads_to(source: str, link: str) -> str:
    """The repository path that `link` refers to in the page `source`. A folder's page is inside the folder."""
    page = origin(source)
    folder = page if (ROOT / page).is_dir() else posixpath.dirname(page)
    return posixpath.normpath(posixpath.join(folder, link))


def on_files(files: Files, *, config: Any) -> Files:
    """Add all files that pages and the navigation link to, directly or through other added pages."""
    queue = {page.src_uri: page.content_string for page in files.documentation_pages()}
    for page in re.findall(r"'(index.md|repository/[^']+)'", repr(config.nav)):
        add(origin(page), files, queue, config)
    while queue:
        source, markdown = queue.popitem()
        for link in links(markdown):
            add(leads_to(source, link[1]), files, queue, config)
    return files


def add(target: str, files: Files, queue: dict[str, str], config: Any) -> None:
    """Add a target outside of docs/, if it exists and has not been added yet. Its text joins the queue."""
    name = place(target)
    if target.startswith(("docs/", "..")) or not (ROOT / target).exists() or files.get_file_from_path(name):
        return
    markdown = text(target)
    if target == HOME:  # README.md marks code blocks for CI; the marks are no language names
        markdown = re.sub(r"^```sh \w+$", "```sh", markdown or "", flags=re.MULTILINE)
    kept: dict[str, Any] = {"abs_src_path": str(ROOT / target)} if markdown is None else {"content": markdown}
    files.append(File.generated(config, name, inclusion=InclusionLevel.NOT_IN_NAV, **kept))
    if markdown is not None:
        queue[name] = markdown


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page's text with links to the targets' places in the site."""
    source, parts, end = page.file.src_uri, [], 0
    for link in links(markdown):
        target = leads_to(source, link[1])
        if (ROOT / target).exists():
            parts += [markdown[end : link.start()], posixpath.relpath(place(target), posixpath.dirname(source) or ".")]
            end = link.end()
    return "".join(parts) + markdown[end:]
