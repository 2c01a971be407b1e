"""The tables that the comparison prints."""

from __future__ import annotations

from gemm.core import text

from .families import Row

_NOTES = {
    "contention": " with a process on one core", "call": ": ratios of plan(a, b, out=c)",
    "rotation": ": ratios of gemm(a, b, out=c), every shape up to m × n × k in turn",
    "beside": ", just after a product of the other library of the process",
    "prepare": ": ratios of gemm(a, prepare(b), out=c); gain: gemm(a, b, out=c) ÷ it, in time",
}  # fmt: skip
_CALLS = ("plan", "gemm()", "gemm(), new", "numpy", "numpy, new")


def show(family: str, dtype: str, threads: int, rows: list[Row]) -> None:
    """Print the table of a family, for one type and one number of threads."""
    names = list(dict.fromkeys(name for row in rows for name in row["ratios"]))
    own = list(dict.fromkeys(name for row in rows for name in row.get("speedup") or row.get("slowdown") or ()))
    head = ["product", *names, "best peer", "ours ÷ best", "± spread"]
    head += {
        "scaling": [f"{name} 1→{threads}" for name in own],
        **{family: [f"{name} slower" for name in own] for family in ("contention", "beside")},
        "rotation": [f"{name}, a call" for name in rows[0].get("call_seconds", ())],
        "call": ["gemm() ÷ numpy", "without out=", *(f"{name} time" for name in _CALLS)],
        "prepare": ["gain", "time"],
    }.get(family, ["GFLOP/s", "of peak", "of read"])  # fmt: skip
    lines = []
    for row in rows:
        best = row["best_peer"]
        line = [shape(row), *(ratio(row["ratios"].get(name)) for name in names), best or "–", ratio(row["ratio"])]
        line += [f"{100 * row['spreads'][best]:.0f} %" if best else "–"]
        if family == "call":
            line += [ratio(row["plain_ratios"].get(name)) for name in ("numpy", "numpy, new")]
            line += [text.seconds(row["seconds"].get(name)) for name in _CALLS]
        elif family == "rotation":
            line += map(text.seconds, row["call_seconds"].values())
        elif family == "prepare":
            line += [ratio(row["gain"]), text.seconds(row["seconds"]["prepared"])]
        elif own:
            table = row.get("slowdown") or {x: speeds[str(threads)] for x, speeds in row["speedup"].items()}
            line += [ratio(table.get(name)) for name in own]
        else:
            percents = (_percent(row[name]) for name in ("percent_of_peak", "percent_of_read"))
            line += [text.number(next(iter(row["gflops"].values()))), *percents]
        lines.append(line)
    note = _NOTES.get(family, "")
    numbers = set(range(1, len(head))) - {len(names) + 1}
    print()
    text.table(head, lines, numbers=numbers, title=f"{family}, {dtype}, {text.counted(threads, 'thread')}{note}")


def show_means(means: list[Row]) -> None:
    """Print the geometric means of the ratios, as `families.summary` returns them."""
    names = list(dict.fromkeys(name for mean in means for name in mean["peers"]))
    lines = [
        [m["family"], m["dtype"], str(m["threads"]), *(ratio(m["peers"].get(name)) for name in names),
         ratio(m["best"]), ratio(m["least"]), f"{m['lost']} of {m['rows']}", str(m["low"])]
        for m in means
    ]  # fmt: skip
    head = ["family", "dtype", "threads", *names, "best peer", "least", "below 1", "below 0.9"]
    print()
    text.table(head, lines, numbers=range(2, len(head)), title="Geometric means of peer's time ÷ ours")


def show_worst(rows: list[Row], count: int) -> None:
    """Print the `count` products with the lowest ratios to their best peers, of all tables."""
    some = sorted((row for row in rows if row["best_peer"]), key=lambda row: row["ratio"])[:count]
    lines = [
        [row["family"], row["dtype"], str(row["threads"]), shape(row), row["kernel"], row["best_peer"],
         ratio(row["ratio"]), f"{100 * row['spreads'][row['best_peer']]:.0f} %", text.seconds(row["seconds"][ours])]
        for row in some for ours in list(row["seconds"])[:1]
    ]  # fmt: skip
    head = ["family", "dtype", "threads", "product", "kernel", "best peer", "ours ÷ best", "± spread", "our time"]
    print()
    text.table(head, lines, numbers={2, 6, 7, 8}, title="The lowest ratios")


def show_roofs(peaks: Row, reads: Row) -> None:
    """Print the FMA peaks and the read rates that the percentages refer to."""
    for dtype, by_threads in peaks.items():
        for threads, peak in by_threads.items():
            count = text.counted(int(threads), "thread")
            print(f"FMA peak, {dtype}, {count}: {peak['gflops']:.1f} GFLOP/s, {peak['basis']}")
    for threads, by_size in reads.items():
        for size, rate in by_size.items():
            if rate:
                print(f"Reads of {int(size) >> 20} MiB, {text.counted(int(threads), 'thread')}: {rate:.1f} GB/s")


def shape(row: Row) -> str:
    """The row's product as text."""
    stack = f"{row['batch']} × " * bool(row["batch"])
    return f"{stack}{row['m']} × {row['n']} × {row['k']}{', ' * bool(row['layout'])}{row['layout']}"


def ratio(value: float | None) -> str:
    """A ratio as text, with two decimals below 100; a dash for None."""
    return "–" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} %"
