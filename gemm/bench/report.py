"""The report of a comparison: its tables, and one HTML page without scripts or external resources.

The page has light or dark colours, as the reader's browser prefers. gemm.cli.compare prints the same tables in the
terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib import resources
from string import Template
from typing import Any

from gemm.bench import charts, verdicts
from gemm.bench.contest import SPREADS
from gemm.bench.peaks import LINKS
from gemm.bench.products import FAMILIES, FLOAT32, Arithmetic, Shape
from gemm.bench.sweep import REPEATS
from gemm.bench.verdicts import Document, Row, find, offloaded
from gemm.core import text

THRESHOLDS = (
    "Each number is the smallest size from which a device stays ahead of the cpu backend; the number in brackets is "
    "the next smaller size, at which the device is not ahead. –: the device is not ahead at the largest size."
)
LINKS_TITLE = "Transfers to and from devices"
ROUGH = 0.3
ROUGH_RATES = f"~: the middle half of the times spans more than {ROUGH:.0%} of the median."
"""The explanation of the mark ~, for rates whose times have an interquartile range ÷ median above ROUGH."""
NO_DEVICE = "There are no thresholds: a threshold needs the cpu backend and a device with its own memory."
NONE_AHEAD = "No device is ahead of the cpu backend at the largest size of any series."
_WAYS = {("host", 1): "host to host", ("resident", 1): "resident",
         **{("once", n): text.counted(n, "product") for n in REPEATS}}  # fmt: skip


def links(links: Mapping[str, Mapping[str, float]]) -> tuple[list[str], list[list[str]]]:
    """The table of the rates of transfers and the latencies of launches: see gemm.bench.peaks.LINKS."""
    ways = (f"{way} GB/s, {memory}" for memory in ("pageable", "page-locked") for way in ("to", "from"))
    lines = [
        [key, *(text.number(each[name]) for name in LINKS[:-1]), text.seconds(each[LINKS[-1]])]
        for key, each in links.items()
    ]
    return ["device", *ways, "launch and wait"], lines


def arithmetic(document: Document) -> Arithmetic:
    """How the products of a comparison were computed. Files of earlier versions only have the type."""
    usual = asdict(FLOAT32)
    known = {name: document.get(name, usual[name]) for name in usual}
    return Arithmetic(**known | {"inputs": tuple(known["inputs"])})


def busy(document: Document) -> list[str]:
    """Why the machine was too busy for a statement about which contestant is faster; [] if it was not."""
    return [each for each in document["quiet"]["warnings"] if not each.startswith(SPREADS)]


def headline(document: Document) -> str:
    """The advice of the comparison: for each device, the size from which the device is faster than the cpu backend.

    The sizes are those of the first series of products, usually squares. If the machine was too busy for advice, the
    result says why. A wide spread of the ratios does not prevent advice, because most rounds agree on which device is
    faster at a threshold.
    """
    spread = [each for each in document["quiet"]["warnings"] if each.startswith(SPREADS)]
    if noise := busy(document):
        return f"No advice, because {'; '.join(noise)}. {verdicts.ADVICE}"
    kinds = {device["key"]: device["kind"] for device in document["devices"]}
    rows = [row for row in document["thresholds"] if row["contestant"] in kinds and row["mode"] != "once"]
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        if row["series"] == rows[0]["series"]:
            found.setdefault(row["contestant"], {})[_WAYS[row["mode"], 1]] = row["size"]
    power = "³" if rows and rows[0]["series"].startswith("squares") else f" ({rows[0]['series']})" if rows else ""
    none, sentences = f"at sizes up to {max(rows[0]['sizes'])}{power}" if rows else "", []
    for key, sizes in found.items():
        ways = [f"from {size}{power} {way}" for way, size in sizes.items() if size]
        name = f"the GPU ({key})" if kinds[key] == "gpu" else f"{key}, which is OpenCL on the CPU,"
        verb = "Use" if ways else "Do not use"
        sentences.append(f"{verb} {name} {', '.join(ways) or none}.")
    if found and spread:
        sentences.append(f"These sizes are rough, because {spread[0]}.")
    return " ".join(sentences) or NO_DEVICE


def no_thresholds(document: Document) -> str:
    """Why the table of thresholds is empty."""
    return NONE_AHEAD if document["thresholds"] else NO_DEVICE


def thresholds(document: Document) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table of thresholds: series, contestant, and a column for each mode. Devices that are
    never ahead in a series have no line.
    """
    found: dict[tuple[str, str], dict[tuple[str, int], str]] = {}
    for row in document["thresholds"]:
        if size := row["size"]:
            shown = f"{size} ({row['below']})" if row["below"] else f"{size}, the smallest"
            found.setdefault((row["series"], row["contestant"]), {})[row["mode"], row["products"]] = shown
    ways = [way for way in _WAYS if any(way in line for line in found.values())]
    lines = [[*names, *(line.get(way, "–") for way in ways)] for names, line in found.items()]
    return ["series", "device", *(_WAYS[way] for way in ways)], lines


def family(document: Document, name: str) -> tuple[list[str], list[tuple[str, str, list[Row | None]]]]:
    """Head and lines of a family's table. A line has a product's name, its shape, and a list with a result or None for
    each contestant and mode.
    """
    rows = find(document["results"], family=name)
    columns: list[tuple[str, str, int]] = []
    found: dict[tuple[str, Shape], dict[tuple[str, str, int], Row]] = {}
    for row in rows:
        column = row["contestant"], row["mode"], row["products"]
        if row["products"] in (1, 64) and column[1:] != ("once", 1) and column not in columns:
            columns.append(column)
        product = row["name"], Shape(row["m"], row["n"], row["k"], row["batch"])
        found.setdefault(product, {})[column] = row
    with_memory = offloaded(rows)
    titles = [f"{one}, {_WAYS[mode, times]}" if one in with_memory else one for one, mode, times in columns]
    lines = [(name, str(shape), [own.get(column) for column in columns]) for (name, shape), own in found.items()]
    return ["product", "m × n × k", *titles], lines


def rate(row: Row | None) -> str:
    """The GFLOP/s of a result as text, with the mark ~ that ROUGH_RATES explains; "–" if there is no result."""
    return f"{text.number(row['gflops'])}{'~' * _rough(row)}" if row else "–"


def _rough(row: Row) -> bool:
    return (row["spread"] or 0) > ROUGH


def failures(document: Document) -> list[str]:
    """One line for each contestant that failed or computed a wrong result, without duplicates."""
    return list(dict.fromkeys(
        f"{r['name']} ({r['family']}), {r['contestant']}: {r['error'] or 'its result is wrong'}"
        for r in document["results"] if r["error"] or r["valid"] is False
    ))  # fmt: skip


def notes(document: Document) -> list[str]:
    """Warnings that a reader needs before reading the figures."""
    found = []
    if not any(device["kind"] == "gpu" for device in document["devices"]):
        stand_in = any(device["backend"] == "opencl" for device in document["devices"])
        found.append("There is no GPU on this machine." + (
            " OpenCL devices on the CPU take its place: thresholds show the gain of OpenCL on the same cores."
            if stand_in else ""))  # fmt: skip
    restless = dict.fromkeys(row["device"] for row in document["results"] if row.get("unsettled"))
    if restless:
        found.append(f"Resident times vary: the clocks of {', '.join(restless)} did not settle in some rounds.")
    if failed := failures(document):
        found.append(f"Failed: {'; '.join(failed)}.")
    if document["left_out"]:
        found.append(f"Left out: {'; '.join(document['left_out'])}.")
    return found


def page(document: Document) -> str:
    """The report as a complete HTML page."""
    gpus = dict.fromkeys(device["name"] for device in document["devices"] if device["kind"] == "gpu")
    title = f"gemm: {' and '.join([document['machine']['cpu'], *gpus])}, {document['date'][:10]}"
    return Template(_file("page.html")).substitute(
        title=escape(title), style=_file("page.css"), body=_sections(document)
    )


def body(document: Document) -> str:
    """The report as an HTML element for a notebook."""
    return f"<style>{_file('page.css')}</style>{_sections(document)}"


def _file(name: str) -> str:
    return resources.files("gemm.bench").joinpath(name).read_text(encoding="utf-8")


def _sections(document: Document) -> str:
    parts = [f'<section id="headline">{_headline(document)}</section>']
    narrow = charts.charts(document, narrow=True)
    for name, (title, caption, figure) in charts.charts(document).items():
        wide, small = charts.svg(name, figure), charts.svg(f"{name}-narrow", narrow[name][2])
        shown = f'<div class="on-wide">{wide}</div><div class="on-narrow">{small}</div>'
        shown = f"<figure>{shown}\n<figcaption>{escape(caption)}</figcaption></figure>"
        parts.append(_section(f"chart-{name}", title, shown))
    parts.insert(2, _section("thresholds", "Offload thresholds", _thresholds(document)))
    parts += [_section(f"family-{name}", f"Results: {name}", _family(document, name)) for name in document["families"]]
    parts += [_machine(document), _section("method", "Method", f"<p>{escape(document['method'])}</p>")]
    return f'<div class="gemm-compare">{"".join(parts)}</div>'


def _headline(document: Document) -> str:
    """The headline as HTML. Advice on how to measure again follows in smaller letters, if there is any.

    The browser does not break a line within the option --seconds 60 of this advice.
    """
    advice, then, _ = headline(document).partition(verdicts.ADVICE)
    then = escape(then).replace("--seconds 60", '<span class="whole">--seconds 60</span>')
    return f'<p class="headline">{escape(advice.strip())}</p>' + (f"<p>{then}</p>" if then else "")


def _section(name: str, title: str, content: str) -> str:
    return f'\n<section id="{name}"><h2>{escape(title)}</h2>\n{content}</section>'


def _machine(document: Document) -> str:
    machine, versions = document["machine"], document["versions"]
    facts = {
        "machine": f"{machine['cpu']}, {text.counted(machine['cpus'], 'hardware thread')}; {machine['system']}",
        "made": f"{document['date']}, commit {document['commit'] or 'unknown'}, {arithmetic(document)}, "
        f"at most {document['rounds']} rounds{', quick' if document['quick'] else ''}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        **document["contestants"],
        **{f"without {name}": why.removeprefix(f"{name}: ") for name, why in document["absent"].items()},
        **_roofs(document["roofs"]),
    }
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(what)}</dd>" for name, what in facts.items())
    warnings = "".join(f'<p class="warning">{escape(note)}</p>' for note in notes(document))
    head, lines = links(document.get("links", {}))  # files of earlier versions have no links
    cells = [[_cell(cell, "number" if at else "") for at, cell in enumerate(line)] for line in lines]
    transfers = f"<p>{LINKS_TITLE}</p>{_table(head, cells)}" if lines else ""
    return _section("machine", "Machine", f"{warnings}<dl>{listed}</dl>{transfers}")


def _roofs(roofs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """{devices: their limits in words}."""
    same: dict[str, list[str]] = {}
    for key, roof in roofs.items():
        peak, rate = roof["gflops"], roof["memory_gbs"]
        arithmetic = f"{text.number(peak)} GFLOP/s, {roof['gflops_basis']}" if peak else "peak not known"
        memory = f"memory {text.number(rate)} GB/s, {roof['memory_basis']}" if rate else "rate of its memory not known"
        same.setdefault(f"{arithmetic}; {memory}", []).append(key)
    return {f"roofs of {', '.join(keys)}": words for words, keys in same.items()}


def _thresholds(document: Document) -> str:
    head, lines = thresholds(document)
    if not lines:
        return f"<p>{escape(no_thresholds(document))}</p>"
    cells = [[_cell(cell, "" if at < 2 else "number") for at, cell in enumerate(line)] for line in lines]
    return f"<p>{escape(THRESHOLDS)}</p>" + _table(head, cells)


def _family(document: Document, name: str) -> str:
    head, lines = family(document, name)
    cells = []
    for product, shape, rows in lines:
        sure = [row["gflops"] for row in rows if row and not _rough(row) and not busy(document)]
        most = max(sure, default=None)
        cells.append([_cell(product), _cell(shape), *(_rate(row, most) for row in rows)])
    about = FAMILIES.get(name, "")
    marked = "" if busy(document) else ", the fastest contestant marked"
    return f"<p>GFLOP/s{marked}; {escape(about)}. {ROUGH_RATES}</p>" + _table(head, cells)


def _rate(row: Row | None, most: float | None) -> str:
    if row is None:
        return _cell("–", "number")
    apart = "fewer than three samples" if row["spread"] is None else f"quartiles {100 * row['spread']:.0f} % apart"
    spread = f"{text.seconds(row['seconds'])}, {apart}"
    percent = "" if row["percent_of_peak"] is None else f", {row['percent_of_peak']:.0f} % of peak"
    classes = "number best" if row["gflops"] == most else "number"
    return _cell(rate(row), classes, f"{spread}{percent}, {row['kernel']}")


def _cell(content: str, classes: str = "", tooltip: str = "") -> str:
    attributes = "".join(
        f' {name}="{escape(value)}"' for name, value in (("class", classes), ("title", tooltip)) if value
    )
    return f"<td{attributes}>{escape(content)}</td>"


def _table(head: Sequence[str], lines: Iterable[Iterable[str]]) -> str:
    titles = "".join(f"<th>{escape(name)}</th>" for name in head)
    rows = "\n".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return f'<div class="wide"><table><thead><tr>{titles}</tr></thead>\n<tbody>{rows}</tbody></table></div>'
