"""Numbers as text for people: counts, ratios, rates and times."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun: 1 kernel, 3 kernels."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def faster(ratio: float) -> str:
    """A ratio as text: "2.5 times as fast as"; "as fast as" below 1.02. The caller inverts ratios below 1."""
    return "as fast as" if ratio < 1.02 else f"{ratio:.3g} times as fast as"


def number(value: float | None) -> str:
    """A rate as text, with 3 or 4 digits; "–" for None."""
    return "–" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def seconds(value: float | None) -> str:
    """A time as text, in a suitable unit; "–" for None."""
    if value is None:
        return "–"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"
