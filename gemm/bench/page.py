"""The report: one HTML page without scripts and external resources, in the reader's light or dark colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any, NamedTuple

from gemm.bench import charts, phrases, tables
from gemm.bench.families import FAMILIES


class Cell(NamedTuple):
    """A table cell: its text, its CSS classes, and its tooltip `more`."""

    text: str
    classes: str = ""
    more: str = ""


def page(document: dict[str, Any]) -> str:
    """The report as a complete HTML page."""
    title = f"gemm: {document['machine']['cpu']}, {document['date'][:10]}"
    return Template(_file("page.html")).substitute(
        title=escape(title), style=_file("page.css"), body=_sections(document)
    )


def body(document: dict[str, Any]) -> str:
    """The report as an HTML element for a notebook."""
    return f"<style>{_file('page.css')}</style>{_sections(document)}"


def _file(name: str) -> str:
    return resources.files("gemm.bench").joinpath(name).read_text(encoding="utf-8")


def _sections(document: dict[str, Any]) -> str:
    parts = [_machine(document), _thresholds(document), *_charts(document)]
    parts += [_family(document, family) for family in document["families"]]
    parts.append(_section("method", "Method", f"<p>{escape(document['method'])}</p>"))
    return f'<div class="gemm-compare">{"".join(parts)}</div>'


def _section(name: str, title: str, content: str) -> str:
    return f'\n<section id="{name}"><h2>{escape(title)}</h2>\n{content}</section>'


def _machine(document: dict[str, Any]) -> str:
    machine, versions = document["machine"], document["versions"]
    facts = {
        "machine": f"{machine['cpu']}, {phrases.counted(machine['cpus'], 'hardware thread')}; {machine['system']}",
        "made": f"{document['date']}, commit {document['commit'] or 'unknown'}, {document['dtype']}, "
        f"at most {document['rounds']} rounds{', quick' if document['quick'] else ''}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        **document["contestants"],
        **{f"without {name}": why.removeprefix(f"{name}: ") for name, why in document["absent"].items()},
        **tables.roofs(document),
    }
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(what)}</dd>" for name, what in facts.items())
    notes = [f'<p class="warning">{escape(note)}</p>' for note in tables.notes(document)]
    return f'<section id="machine">{"".join(notes)}<dl>{listed}</dl></section>'


def _thresholds(document: dict[str, Any]) -> str:
    head, lines = tables.thresholds(document)
    if not lines:
        return _section("thresholds", "Offload thresholds", f"<p>{escape(tables.NO_DEVICE)}</p>")
    note = f"<p>{escape(tables.THRESHOLDS)}</p>"
    return _section("thresholds", "Offload thresholds", note + _table(head, map(_line, lines)))


def _charts(document: dict[str, Any]) -> Iterable[str]:
    for name, (title, caption, figure) in charts.charts(document).items():
        drawn = charts.svg(name, figure)
        content = f"<figure>{drawn}\n<figcaption>{escape(caption)}</figcaption></figure>"
        yield _section(f"chart-{name}", title, content)


def _family(document: dict[str, Any], family: str) -> str:
    head, lines = tables.family(document, family)
    cells = []
    for name, shape, *rates in lines:
        most = max((rate["gflops"] for rate in rates if rate), default=None)
        cells.append([Cell(name), Cell(shape), *(_rate(rate, most) for rate in rates)])
    about = FAMILIES[family][1] if family in FAMILIES else ""
    note = f"<p>GFLOP/s, the fastest contestant marked; {escape(about)}.</p>"
    return _section(f"family-{family}", f"Results: {family}", note + _table(head, cells))


def _rate(row: Mapping[str, Any] | None, most: float | None) -> Cell:
    if row is None:
        return Cell("–", "number")
    spread = f"{phrases.seconds(row['seconds'])}, quartiles {100 * row['spread']:.0f} % apart"
    percent = "" if row["percent_of_peak"] is None else f", {row['percent_of_peak']:.0f} % of peak"
    return Cell(phrases.number(row["gflops"]), "number best" if row["gflops"] == most else "number",
                f"{spread}{percent}, {row['kernel']}")  # fmt: skip


def _line(cells: Sequence[str]) -> list[Cell]:
    """The cells of a line: two texts, then numbers."""
    return [Cell(cell, "" if at < 2 else "number") for at, cell in enumerate(cells)]


def _table(head: Sequence[str], lines: Iterable[Sequence[Cell]]) -> str:
    def element(cell: Cell) -> str:
        classes = f' class="{cell.classes}"' if cell.classes else ""
        more = f' title="{escape(cell.more)}"' if cell.more else ""
        return f"<td{classes}{more}>{escape(cell.text)}</td>"

    titles = "".join(f"<th>{escape(name)}</th>" for name in head)
    rows = "\n".join(f"<tr>{''.join(map(element, line))}</tr>" for line in lines)
    return f'<div class="wide"><table><thead><tr>{titles}</tr></thead>\n<tbody>{rows}</tbody></table></div>'
