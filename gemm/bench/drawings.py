"""One function for each chart of a comparison, from the document to a matplotlib Figure, or to None without data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemm.bench.sweep import Row, find
from gemm.bench.threshold import quartiles

_WAYS = {("host", 1): ("host to host", "-"), ("resident", 1): ("resident", "--"),
         ("once", 8): ("8 products", "-."), ("once", 64): ("64 products", ":")}  # fmt: skip
"""{(mode, products): (legend, line style)} of the crossover curves. "once" with one product is nearly "host"."""


def _panels(count: int, width: float, height: float, columns: int = 2) -> tuple[Any, list[Any]]:
    """A figure of `count` panels, each of this width and height in inches."""
    from matplotlib.figure import Figure

    columns = min(columns, count)
    lines = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for spare in panels[count:]:
        spare.set_visible(False)
    return figure, panels[:count]


_LETTER, _HANDLE = 0.055, 0.55
"""Inches of a legend's entry: for each letter, and for the line sample with the space around it."""


def _legend(figure: Any, panels: Sequence[Any], columns: int) -> None:
    """Add one legend for all panels, below the panels. The legend has `columns` columns if there is room."""
    entries = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    longest = _LETTER * max(map(len, entries), default=0) + _HANDLE
    columns = max(1, min(columns, int(figure.get_figwidth() / longest)))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)


def _colours(document: dict[str, Any]) -> dict[str, str]:
    """A fixed colour for each contestant, the same in all charts."""
    return {name: f"C{at}" for at, name in enumerate(document["contestants"])}


def _sizes(axes: Any, rows: Sequence[Row], ylabel: str) -> None:
    axes.set_xscale("log", base=2)
    sizes = sorted({row["size"] for row in rows})
    shown = sizes[:: max(1, len(sizes) // 6)]
    axes.set_xticks(shown, [str(size) for size in shown])
    axes.minorticks_off()
    axes.set_ylabel(ylabel)


def _line(axes: Any, rows: Sequence[Row], value: str, style: str, **options: Any) -> None:
    points = sorted((row["size"], row[value]) for row in rows if row[value] is not None)
    if points:
        axes.plot(*zip(*points, strict=True), style, marker="o", **options)


def crossover(document: dict[str, Any]) -> Any:
    rows, colours = find(document["results"]), _colours(document)
    series = list(dict.fromkeys(row["series"] for row in rows if row["series"]))
    away = list(dict.fromkeys(row["contestant"] for row in find(rows, mode="resident")))
    if not series:
        return None
    figure, panels = _panels(len(series), *((9.0, 4.6) if len(series) == 1 else (5.0, 3.2)))
    for axes, name in zip(panels, series, strict=True):
        some = find(rows, series=name)
        _line(axes, find(some, contestant="cpu:0", mode="host"), "gflops", "-", color=colours.get("cpu:0"),
              label="cpu:0", linewidth=2.4)  # fmt: skip
        for contestant in away:
            for (mode, products), (way, style) in _WAYS.items():
                own = find(some, contestant=contestant, mode=mode, products=products)
                _line(axes, own, "gflops", style, color=colours[contestant], label=f"{contestant}, {way}")
            marks = (x["size"] for x in document["thresholds"] if (x["series"], x["contestant"]) == (name, contestant))
            for size in {size for size in marks if size}:
                axes.axvline(size, color=colours[contestant], linewidth=1, linestyle=":")
        _sizes(axes, some, "GFLOP/s")
        axes.set_yscale("log")
        axes.set_title(name)
        axes.set_xlabel("s")
    _legend(figure, panels, 4)
    return figure


def contestants(document: dict[str, Any]) -> Any:
    rows, colours = find(document["results"], family="squares", mode="host"), _colours(document)
    if not rows:
        return None
    figure, (axes,) = _panels(1, 9, 4)
    for name in dict.fromkeys(row["contestant"] for row in rows):
        own = sorted(find(rows, contestant=name), key=lambda row: int(row["size"]))
        _line(axes, own, "gflops", "-", color=colours[name], label=name)
        work = [row["seconds"] * row["gflops"] for row in own]
        low, high = ([each / quartiles(row["samples_s"])[at] for each, row in zip(work, own, strict=True)]
                     for at in (2, 0))  # fmt: skip
        axes.fill_between([row["size"] for row in own], low, high, color=colours[name], alpha=0.15, linewidth=0)
    _sizes(axes, rows, "GFLOP/s")
    axes.set_yscale("log")
    axes.set_xlabel("s, of s × s × s")
    axes.legend()
    return figure


def best(rows: Sequence[Row]) -> list[Row]:
    """The rows on resident operands of each contestant with its own memory; the host-to-host rows of all others."""
    away = {row["contestant"] for row in find(rows, mode="resident")}
    return [r for r in find(rows) if r["mode"] == ("resident" if r["contestant"] in away else "host")]


def peak(document: dict[str, Any]) -> Any:
    rows, colours = best(find(document["results"], family="squares")), _colours(document)
    if not any(row["percent_of_peak"] for row in rows):
        return None
    figure, (axes,) = _panels(1, 9, 3.4)
    for name in dict.fromkeys(row["contestant"] for row in rows):
        _line(axes, find(rows, contestant=name), "percent_of_peak", "-", color=colours[name], label=name)
    _sizes(axes, rows, "% of peak")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("s, of s × s × s")
    axes.legend()
    return figure


def intensity(row: Row, itemsize: int) -> float:
    """FLOPs per byte of a, b and the result, if each is transferred once."""
    m, n, k = row["m"], row["n"], row["k"]
    return float(2 * m * n * k / ((m * k + k * n + m * n) * itemsize))


def roofline(document: dict[str, Any]) -> Any:
    from matplotlib.ticker import NullFormatter

    rows, colours = best(document["results"]), _colours(document)
    itemsize = {"float32": 4, "float64": 8}[document["dtype"]]
    on: dict[str, list[Row]] = {}
    for row in rows:
        key = "cpu:0" if row["backend"] == "numpy" else row["device"]  # NumPy runs on the same cores
        if key in document["roofs"]:
            on.setdefault(key, []).append(row)
    if not on:
        return None
    figure, panels = _panels(len(on), 5.0, 3.4)
    for axes, (key, own) in zip(panels, on.items(), strict=True):
        roof = document["roofs"][key]
        reach = [intensity(row, itemsize) for row in own]
        low, high = 0.6 * min(reach), 1.6 * max(reach)
        peak, rate = (roof[name] or float("inf") for name in ("gflops", "memory_gbs"))
        if min(peak, rate) < float("inf"):
            bend = [peak / rate] if low < peak / rate < high else []
            line = [low, *bend, high]
            axes.plot(line, [min(peak, rate * x) for x in line], color="0.5", linewidth=1.2)
        for name in dict.fromkeys(row["contestant"] for row in own):
            points = [(intensity(row, itemsize), row["gflops"]) for row in find(own, contestant=name)]
            axes.plot(*zip(*points, strict=True), "o", color=colours[name], label=name, alpha=0.7)
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_yscale("log")
        unknown = " and ".join(
            what for what, value in (("its peak", peak), ("its memory's rate", rate)) if value == float("inf")
        )
        axes.set_title(f"{key}{f' ({unknown} not known)' if unknown else ''}")
        axes.set_xlabel("FLOPs per byte")
        axes.set_ylabel("GFLOP/s")
        axes.legend()
    return figure


def layers(document: dict[str, Any]) -> Any:
    rows = [row for row in find(document["results"], mode="host") if not row["series"]]
    colours = _colours(document)
    families = list(dict.fromkeys(row["family"] for row in rows))
    if not families:
        return None
    names = {family: list(dict.fromkeys(r["name"] for r in find(rows, family=family))) for family in families}
    most = max(map(len, names.values()))
    figure, panels = _panels(len(families), 5.0, 1.4 + 0.24 * most)
    for axes, family in zip(panels, families, strict=True):
        places = {name: -at for at, name in enumerate(names[family])}
        for name in dict.fromkeys(row["contestant"] for row in rows):
            own = find(rows, family=family, contestant=name)
            rates, heights = [r["gflops"] for r in own], [places[r["name"]] for r in own]
            axes.plot(rates, heights, "o", color=colours[name], label=name)
        axes.set_yticks(list(places.values()), list(places))
        axes.set_ylim(0.6 - len(places), 0.4)
        axes.set_xscale("log")
        axes.set_xlabel("GFLOP/s")
        axes.set_title(family)
    _legend(figure, panels, 6)
    return figure


def choice(document: dict[str, Any]) -> Any:
    from matplotlib.colors import ListedColormap, to_rgb
    from matplotlib.patches import Patch

    grid, colours = document["choice"], _colours(document)
    sizes, sums = grid["sizes"], grid["k"]
    keys = sorted({key for plane in grid["chosen"] for line in plane for key in line})
    # The colours are mixed with white to keep the numbers on them readable.
    shades = [tuple(0.5 + 0.5 * part for part in to_rgb(colours.get(key, "0.5"))) for key in keys]
    figure, panels = _panels(len(sums), 3.9, 4.1, columns=3)
    for axes, k, chosen, lead in zip(panels, sums, grid["chosen"], grid["lead"], strict=True):
        axes.pcolormesh([[keys.index(key) for key in line] for line in chosen], cmap=ListedColormap(shades),
                        vmin=-0.5, vmax=len(keys) - 0.5, edgecolors="white", linewidth=0.5)  # fmt: skip
        for i, line in enumerate(lead):
            for j, ratio in enumerate(line):
                if ratio is not None:
                    number = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
                    axes.text(j + 0.5, i + 0.5, number, ha="center", va="center", fontsize=6, color="#101010")
        at = [position + 0.5 for position in range(len(sizes))]
        axes.set_xticks(at, [str(size) for size in sizes], rotation=90)
        axes.set_yticks(at, [str(size) for size in sizes])
        axes.grid(visible=False)
        axes.set_title(f"k = {k}")
        axes.set_xlabel("n")
    panels[0].set_ylabel("m")
    patches = [Patch(color=shade, label=key) for key, shade in zip(keys, shades, strict=True)]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(keys))
    return figure
