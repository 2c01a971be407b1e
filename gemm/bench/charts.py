"""The charts of a comparison, as image files and as SVG elements for a page. Needs matplotlib.

There is one function for each chart. It takes a Sheet and returns a matplotlib Figure, or None without data.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gemm.bench.verdicts import Document, Row, find, offloaded
from gemm.core.operands import named

INK = "#010203"
"""The colour of text and axes. On a page, the colour of the surrounding text replaces it."""
_STYLE = {
    "svg.fonttype": "none", "font.size": 9.0, "axes.titlesize": 9.0, "legend.fontsize": 7.5, "text.color": INK,
    "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.facecolor": "none",
    "figure.facecolor": "none", "legend.framealpha": 0.0, "axes.grid": True, "grid.alpha": 0.25, "grid.color": "0.5",
    "lines.markersize": 4.0, "lines.linewidth": 1.4,
}  # fmt: skip


class Sheet(NamedTuple):
    """A comparison to draw. A narrow sheet is for phones: its panels are one below the other."""

    document: Document
    narrow: bool

    def rows(self, **wanted: Any) -> list[Row]:
        """The results that have times and whose columns have the values `wanted`."""
        return find(self.document["results"], **wanted)

    @property
    def colours(self) -> dict[str, str]:
        """A fixed colour for each contestant, the same in all charts."""
        return {name: f"C{at}" for at, name in enumerate(self.document["contestants"])}

    def panels(self, count: int, width: float, height: float, columns: int = 2) -> tuple[Any, list[Any]]:
        """Return (a figure with `count` panels, the list of its panels).

        Each panel has this width and height in inches, and a line has at most `columns` panels. On a narrow sheet, each
        panel has a line of its own and is as wide as a phone.
        """
        from matplotlib.figure import Figure

        if self.narrow:
            width, columns = 3.9, 1
        columns = min(columns, count)
        lines = -(-count // columns)
        figure = Figure(figsize=(width * columns, height * lines), layout="constrained")
        panels = list(figure.subplots(lines, columns, squeeze=False).flat)
        for spare in panels[count:]:
            spare.set_visible(False)
        return figure, panels[:count]


def charts(document: Document, narrow: bool = False) -> dict[str, tuple[str, str, Any]]:
    """{name: (title, caption, matplotlib Figure)}. Charts without data are absent."""
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        drawn = {make.__name__: (title, caption, make(Sheet(document, narrow))) for title, caption, make in _CHARTS}
    return {name: chart for name, chart in drawn.items() if chart[2] is not None}


def svg(name: str, figure: Any) -> str:
    """The figure as an <svg> element for an HTML page.

    Its text has the page's colour. Its ids begin with `name`, so that they are unique in the page. It loads no files.
    """
    import matplotlib as mpl

    text = io.StringIO()
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}):  # a fixed salt makes the output deterministic
        figure.savefig(text, format="svg", metadata={"Date": None})
    attributes, _, content = text.getvalue().partition("<svg")[2].partition(">")
    attributes = re.sub(r'\s(xmlns(:\w+)?|width|height|version)="[^"]*"', "", f" {attributes.strip()}")
    content = re.sub(r"<metadata>.*?</metadata>", "", content, flags=re.S)
    content = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", content)
    return f"<svg{attributes}>{content.strip()}".replace(INK, "currentColor")


def save(document: Document, folder: Path) -> list[Path]:
    """Write each chart as SVG and as PNG into `folder`, on a white background.

    Returns the paths of the written files. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (_, _, figure) in charts(document).items():
        for kind in ("svg", "png"):
            written.append(folder / f"{name}.{kind}")
            figure.savefig(written[-1], facecolor="white", dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return written


def crossover(sheet: Sheet) -> Any:
    """Rate against size for the first series of products: square products, unless the user chose other series."""
    return _series(sheet, slice(0, 1), 9.0)


def series(sheet: Sheet) -> Any:
    """Rate against size for all series except the first."""
    return _series(sheet, slice(1, None), 5.0)


def _series(sheet: Sheet, some: slice, width: float) -> Any:
    """Rate against size, with a panel for each series in `some`.

    The names of the contestants stand at the ends of the curves. A narrow figure, which has no room for these names,
    has a legend instead.
    """
    names = [name for name in _by(sheet.rows(), "series") if name][some]
    if not names:
        return None
    colours = sheet.colours
    figure, panels = sheet.panels(len(names), width, 4.6)
    curves: dict[str, Any] = {}
    for axes, name in zip(panels, names, strict=True):
        rows, ends = sheet.rows(series=name), []
        for contestant, own in _by(rows, "contestant").items():
            for mode, style in (("host", "-"), ("resident", "--")):
                points = sorted((row["size"], row["gflops"]) for row in find(own, mode=mode))
                if points:
                    bold = 2.6 if contestant == "cpu:0" else 1.4
                    label = contestant if mode == "host" else f"{contestant}, resident"
                    curve = axes.plot(*zip(*points, strict=True), style, marker="o", color=colours[contestant],
                                      linewidth=bold, label=label)  # fmt: skip
                    curves.setdefault(label, curve[0])
                    ends.append((*points[-1], label, colours[contestant]))
        axes.set(title=name, xlabel="s", ylabel="GFLOP/s", yscale="log")
        _sizes(axes, rows)
        if not sheet.narrow:
            _label(axes, ends)
    if sheet.narrow:
        figure.legend(handles=list(curves.values()), loc="outside lower center", ncols=2)
    return figure


def _label(axes: Any, ends: Iterable[tuple[float, float, str, str]]) -> None:
    """Write each curve's name to the right of its end (x, y), from the top down, without overlaps. A line in the
    curve's colour leads from the end to the beginning of the name.
    """
    low, high = axes.get_ylim()
    line = (high / low) ** 0.055  # the height of a line of text on the logarithmic axis
    above = high * line
    for x, y, name, colour in sorted(ends, key=lambda end: -end[1]):
        above = min(y, above / line)
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "relpos": (0, 0.5), "shrinkA": 1}
        axes.annotate(name, (x, y), (1.05, above), textcoords=("axes fraction", "data"), va="center", arrowprops=leader)


def peak(sheet: Sheet) -> Any:
    rows = [row for row in _best(sheet.rows(family="squares")) if row["percent_of_peak"]]
    if not rows:
        return None
    figure, (axes,) = sheet.panels(1, 9.0, 3.4)
    for name, own in _by(rows, "contestant").items():
        points = sorted((row["size"], row["percent_of_peak"]) for row in own)
        axes.plot(*zip(*points, strict=True), marker="o", color=sheet.colours[name], label=name)
    axes.set(xlabel="s, of s × s × s", ylabel="% of peak", ylim=(0, None))
    _sizes(axes, rows)
    axes.legend()
    return figure


def roofline(sheet: Sheet) -> Any:
    from matplotlib.ticker import NullFormatter

    document, colours = sheet.document, sheet.colours
    dtype = document["dtype"]
    inputs = document.get("inputs") or [dtype, dtype]  # files of earlier versions only have the type
    sizes = [named(name, "dtype").itemsize for name in (*inputs, dtype)]
    # NumPy runs on the same cores as the cpu backend.
    rows = [row | {"device": "cpu:0"} if row["backend"] == "numpy" else row for row in _best(sheet.rows())]
    on = {key: own for key, own in _by(rows, "device").items() if key in document["roofs"]}
    if not on:
        return None
    figure, panels = sheet.panels(len(on), 5.0, 3.4)
    for axes, (key, own) in zip(panels, on.items(), strict=True):
        roof = document["roofs"][key]
        reach = [_intensity(row, sizes) for row in own]
        low, high = 0.6 * min(reach), 1.6 * max(reach)
        peak, rate = (roof[name] or float("inf") for name in ("gflops", "memory_gbs"))
        if min(peak, rate) < float("inf"):
            line = [low, *([peak / rate] if low < peak / rate < high else []), high]
            axes.plot(line, [min(peak, rate * x) for x in line], color="0.5", linewidth=1.2)
        for name, some in _by(own, "contestant").items():
            points = [_intensity(row, sizes) for row in some], [row["gflops"] for row in some]
            axes.plot(*points, "o", color=colours[name], label=name, alpha=0.7)
        limits = (("its peak", peak), ("its memory's rate", rate))
        unknown = " and ".join(what for what, value in limits if value == float("inf"))
        title = f"{key}{f' ({unknown} not known)' if unknown else ''}"
        axes.set(title=title, xlabel="FLOPs per byte", ylabel="GFLOP/s", xscale="log", yscale="log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.legend()
    return figure


def layers(sheet: Sheet) -> Any:
    families = _by([row for row in sheet.rows(mode="host") if not row["series"]], "family")
    if not families:
        return None
    most = max(len(_by(rows, "name")) for rows in families.values())
    figure, panels = sheet.panels(len(families), 5.0, 1.4 + 0.24 * most)
    for axes, (family, rows) in zip(panels, families.items(), strict=True):
        heights = {name: -at for at, name in enumerate(_by(rows, "name"))}
        for name, own in _by(rows, "contestant").items():
            points = [row["gflops"] for row in own], [heights[row["name"]] for row in own]
            axes.plot(*points, "o", color=sheet.colours[name], label=name)
        axes.set_yticks(list(heights.values()), list(heights))
        axes.set(title=family, xlabel="GFLOP/s", xscale="log", ylim=(0.6 - len(heights), 0.4))
    entries = {name: dot for axes in panels for dot, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    columns = 2 if sheet.narrow else len(entries)
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)
    return figure


def choice(sheet: Sheet) -> Any:
    from matplotlib.colors import ListedColormap, to_rgb
    from matplotlib.patches import Patch

    grid, colours = sheet.document["choice"], sheet.colours
    keys, chosen = np.unique(grid["chosen"], return_inverse=True)
    # The colours are mixed with white to keep the numbers on them readable.
    shades = [tuple(0.5 + 0.5 * part for part in to_rgb(colours.get(key, "0.5"))) for key in keys]
    figure, panels = sheet.panels(len(grid["k"]), 3.9, 4.1, columns=3)
    ticks = [at + 0.5 for at in range(len(grid["sizes"]))]
    for axes, k, plane, lead in zip(panels, grid["k"], chosen.reshape(np.shape(grid["chosen"])), grid["lead"],
                                    strict=True):  # fmt: skip
        axes.pcolormesh(plane, cmap=ListedColormap(shades), vmin=-0.5, vmax=len(keys) - 0.5, edgecolors="white",
                        linewidth=0.5)  # fmt: skip
        for (i, j), ratio in np.ndenumerate(np.array(lead, float)):
            if not np.isnan(ratio):
                number = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
                axes.text(j + 0.5, i + 0.5, number, ha="center", va="center", fontsize=6, color="#101010")
        axes.set_xticks(ticks, grid["sizes"], rotation=90)
        axes.set_yticks(ticks, grid["sizes"])
        axes.grid(visible=False)
        axes.set(title=f"k = {k}", xlabel="n")
    panels[0].set_ylabel("m")
    patches = [Patch(color=shade, label=key) for key, shade in zip(keys, shades, strict=True)]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(keys))
    return figure


_CHARTS = (
    ("Crossover", "Rate over size: solid from host to host, dashed with operands on the device; the cpu backend in "
     "bold. Where a device's solid curve is above the bold one, the device is worth its transfers.", crossover),
    ("Other series", "As above, for the other products that grow with one size.", series),
    ("Percent of peak", "Squares on resident operands, relative to the peak of the device's arithmetic.", peak),
    ("Rooflines", "All products on resident operands. The horizontal axis is the FLOPs per byte of operands and "
     "result. The lines are the peak of the arithmetic and the bandwidth of the memory, if known. Points above the "
     "sloping line took their operands from caches.", roofline),
    ("Layers", "Layers of neural networks, from host to host.", layers),
    ("What auto chooses", "Choices that the dispatcher predicts for products from host to host; none is measured here. "
     "The numbers are the CPU's predicted time ÷ the best device's, if a device is considered.", choice),
)  # fmt: skip
"""(title, caption, function) of each chart. The function's name is the name of the chart."""


def _by(rows: Iterable[Row], column: str) -> dict[str, list[Row]]:
    """{value in `column`: the rows that have this value}."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[column], []).append(row)
    return found


def _best(rows: list[Row]) -> list[Row]:
    """The "resident" rows of contestants on devices with their own memory, and the "host" rows of all others."""
    with_memory = offloaded(rows)
    return [row for row in rows if row["mode"] == ("resident" if row["contestant"] in with_memory else "host")]


def _intensity(row: Row, sizes: Sequence[int]) -> float:
    """FLOPs per byte of memory traffic, if a, b and the result are each transferred once.

    sizes: the bytes of an element of a, of b and of the result.
    """
    m, n, k = row["m"], row["n"], row["k"]
    moved = sum(count * size for count, size in zip((m * k, k * n, m * n), sizes, strict=True))
    return float(2 * m * n * k / moved)


def _sizes(axes: Any, rows: Iterable[Row]) -> None:
    """Give `axes` a logarithmic horizontal axis with ticks at the sizes of `rows`."""
    axes.set_xscale("log", base=2)
    sizes = sorted({row["size"] for row in rows})
    shown = sizes[:: max(1, len(sizes) // 6)]
    axes.set_xticks(shown, shown)
    axes.minorticks_off()
