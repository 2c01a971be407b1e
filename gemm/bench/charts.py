"""The charts of a comparison: which there are, as files, and as SVG for a page. Needs matplotlib."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from gemm.bench import drawings

INK = "#010203"
"""The colour of text and axes; on a page it is that of the text around."""
_STYLE = {
    "svg.fonttype": "none", "font.size": 9.0, "axes.titlesize": 9.0, "legend.fontsize": 7.5, "text.color": INK,
    "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.facecolor": "none",
    "figure.facecolor": "none", "legend.framealpha": 0.0, "axes.grid": True, "grid.alpha": 0.25, "grid.color": "0.5",
    "lines.markersize": 4.0, "lines.linewidth": 1.4,
}  # fmt: skip


def charts(document: dict[str, Any]) -> dict[str, tuple[str, str, Any]]:
    """{name: (title, what it shows, matplotlib Figure)}; those that have nothing to show are absent."""
    import matplotlib as mpl

    makers = {
        "crossover": ("Crossover", "Rate over size in each series: the cpu backend in bold, others from host to host, "
                      "on resident operands, and with operands sent once for several products. Dotted vertical lines "
                      "are offload thresholds.", drawings.crossover),
        "contestants": ("All contestants", "Squares from host to host; the band is between the quartiles.",
                        drawings.contestants),
        "peak": ("Percent of peak", "Squares, resident operands, of the peak of the device's arithmetic.",
                 drawings.peak),
        "roofline": ("Rooflines", "All products, resident, over FLOPs a byte of operands and result; lines are the "
                     "peak of arithmetic and the rate of memory, as far as they are known. Points above the slope "
                     "came from caches.", drawings.roofline),
        "layers": ("Layers", "Layers of networks from host to host.", drawings.layers),
        "choice": ("What auto chooses", "Predictions of the dispatcher for products from host to host, none of them "
                   "measured here. Numbers: the CPU's predicted time ÷ the best device's, where one is considered.",
                   drawings.choice),
    }  # fmt: skip
    found = {}
    with mpl.rc_context(_STYLE):
        for name, (title, caption, make) in makers.items():
            figure = make(document)
            if figure is not None:
                found[name] = title, caption, figure
    return found


def svg(name: str, figure: Any) -> str:
    """An <svg> element for a page: text in the page's colour, names of its own, nothing from elsewhere."""
    import matplotlib as mpl

    text = io.StringIO()
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}):  # the same results give the same file
        figure.savefig(text, format="svg", metadata={"Date": None})
    attributes, _, content = text.getvalue().partition("<svg")[2].partition(">")
    attributes = re.sub(r'\s(xmlns(:\w+)?|width|height|version)="[^"]*"', "", f" {attributes.strip()}")
    content = re.sub(r"<metadata>.*?</metadata>", "", content, flags=re.S)
    content = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", content)
    return f"<svg{attributes}>{content.strip()}".replace(INK, "currentColor")


def save(document: dict[str, Any], folder: Path) -> list[Path]:
    """Write each chart as SVG and as PNG into `folder`, on white. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (_, _, figure) in charts(document).items():
        for kind in ("svg", "png"):
            written.append(folder / f"{name}.{kind}")
            figure.savefig(written[-1], facecolor="white", dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return written
