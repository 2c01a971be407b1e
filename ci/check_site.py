"""check_site.py FOLDER: check that the built documentation is complete and self-contained.

Every link of every page, including the reference and the pictures, must lead to an existing file and anchor of the
site. Opening a page must load nothing from other sites. Links to other sites are not checked. The exit status is 1 if a
check fails.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

LOADS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data"), ("link", "href")}
"""(element, attribute) pairs that a browser loads by itself. A <link> to another page is checked as if it loaded it."""


class Page(HTMLParser):
    """The anchors, links and loaded resources of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors, self.links, self.loads = {""}, [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif (tag, name) in LOADS and value:
                self.loads.append(value)
            elif (tag, name) == ("a", "href") and value is not None:
                self.links.append(value)


def faults(folder: Path) -> list[str]:
    """The violations, one line for each."""
    pages = {path.resolve(): Page(path) for path in sorted(folder.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        for load in page.loads:
            if urlsplit(load).scheme not in ("", "data") or load.startswith("//"):
                wrong.append(f"{name} loads {load}")
        for link in [*page.links, *(load for load in page.loads if not urlsplit(load).scheme)]:
            target, anchor = urldefrag(link)
            if urlsplit(target).scheme or (name.name == "404.html" and target.startswith("/")):
                continue  # 404.html is shown at any depth, so its links begin at the site's root
            file = (path.parent / unquote(target)).resolve() if target else path
            file = file / "index.html" if file.is_dir() else file
            if not file.exists():
                wrong.append(f"{name} leads to {link}, which is not there")
            elif anchor and file in pages and unquote(anchor) not in pages[file].anchors:
                wrong.append(f"{name} leads to {link}, which has no such anchor")
    for path in folder.rglob("*.css"):
        for url in re.findall(r"(?:url\(|@import\s*)[\"']?((?:https?:)?//[^\"')]+)", path.read_text(encoding="utf-8")):
            wrong.append(f"{path.relative_to(folder)} loads {url}")
    if len(pages) < 20:
        wrong.append(f"there are only {len(pages)} pages")
    return wrong


def main(folder: str) -> int:
    wrong = faults(Path(folder))
    print("\n".join(wrong) or "every link leads somewhere, and nothing is loaded from elsewhere")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
