"""The charts of a comparison, as image files and as SVG elements for a page. Needs matplotlib."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from gemm.bench import drawings

INK = "#010203"
"""The colour of text and axes. On a page, the colour of the surrounding text replaces it."""
_STYLE = {
    "svg.fonttype": "none", "font.size": 9.0, "axes.titlesize": 9.0, "legend.fontsize": 7.5, "text.color": INK,
    "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.facecolor": "none",
    "figure.facecolor": "none", "legend.framealpha": 0.0, "axes.grid": True, "grid.alpha": 0.25, "grid.color": "0.5",
    "lines.markersize": 4.0, "lines.linewidth": 1.4,
}  # fmt: skip


def charts(document: dict[str, Any]) -> dict[str, tuple[str, str, Any]]:
    """{name: (title, caption, matplotlib Figure)}. Charts without data are absent."""
    import matplotlib as mpl

    makers = {
        "crossover": ("Crossover", "Rate over size in each series: the cpu backend in bold, others from host to host, "
                      "on resident operands, and with operands sent once for several products. Dotted vertical lines "
                      "are offload thresholds.", drawings.crossover),
        "contestants": ("All contestants", "Squares from host to host; the band is the range between the quartiles.",
                        drawings.contestants),
        "peak": ("Percent of peak", "Squares on resident operands, relative to the peak of the device's arithmetic.",
                 drawings.peak),
        "roofline": ("Rooflines", "All products on resident operands. The horizontal axis is the FLOPs per byte of "
                     "operands and result. The lines are the peak of the arithmetic and the bandwidth of the memory, "
                     "if known. Points above the sloping line took their operands from caches.", drawings.roofline),
        "layers": ("Layers", "Layers of neural networks, from host to host.", drawings.layers),
        "choice": ("What auto chooses", "Choices that the dispatcher predicts for products from host to host; none is "
                   "measured here. The numbers are the CPU's predicted time ÷ the best device's, if a device is "
                   "considered.",
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
    """An <svg> element for a page. Text has the page's colour, ids are unique in the page, nothing is loaded."""
    import matplotlib as mpl

    text = io.StringIO()
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}):  # a fixed salt makes the output deterministic
        figure.savefig(text, format="svg", metadata={"Date": None})
    attributes, _, content = text.getvalue().partition("<svg")[2].partition(">")
    attributes = re.sub(r'\s(xmlns(:\w+)?|width|height|version)="[^"]*"', "", f" {attributes.strip()}")
    content = re.sub(r"<metadata>.*?</metadata>", "", content, flags=re.S)
    content = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", content)
    return f"<svg{attributes}>{content.strip()}".replace(INK, "currentColor")


def save(document: dict[str, Any], folder: Path) -> list[Path]:
    """Write each chart as SVG and as PNG into `folder`, on a white background. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (_, _, figure) in charts(document).items():
        for kind in ("svg", "png"):
            written.append(folder / f"{name}.{kind}")
            figure.savefig(written[-1], facecolor="white", dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return written
