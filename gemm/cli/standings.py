"""The outcome of a contest: the figures for files, a table for the terminal, and the speed ratios in words."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict
from typing import Any

from gemm.bench import phrases
from gemm.bench.contest import Contestant, Shape
from gemm.bench.peak import Peak
from gemm.cli import text
from gemm.core.problem import Device

COLUMNS = (
    "m", "n", "k", "batch", "trans", "backend", "device", "kernel", "cold_s", "host_s", "host_best_s", "host_gflops",
    "resident_s", "resident_best_s", "resident_gflops", "percent_of_peak", "valid", "worst_error", "checked", "sha256",
    "error",
)  # fmt: skip
"""Columns of a result except its samples. gemm.cli.bench defines them."""


def row(shape: Shape, device: Device, kernel: str, **known: Any) -> dict[str, Any]:
    """A result with the values `known`; all other values are null."""
    return {
        **dict.fromkeys(COLUMNS), **asdict(shape), "backend": device.backend, "device": device.key, "kernel": kernel,
        "host_samples_s": [], "resident_samples_s": [], **known,
    }  # fmt: skip


def figures(shape: Shape, one: Contestant, peak: Peak | None, checked: str | None) -> dict[str, Any]:
    """The result of a contestant that ran."""
    resident = one.resident or one.host
    host_s, resident_s = statistics.median(one.host), statistics.median(resident)
    rate = shape.flops / resident_s / 1e9
    return row(
        shape, one.device, one.kernel, cold_s=one.cold, host_s=host_s, host_best_s=min(one.host),
        host_gflops=shape.flops / host_s / 1e9, resident_s=resident_s, resident_best_s=min(resident),
        resident_gflops=rate, percent_of_peak=100 * rate / peak.gflops if peak else None,
        valid=None if one.worst is None else one.worst <= 1, checked=checked, sha256=one.sha256 or None,
        worst_error=one.worst if one.worst is not None and math.isfinite(one.worst) else None,
        host_samples_s=one.host, resident_samples_s=resident,
    )  # fmt: skip


def ratios(shape: Shape, entered: list[Contestant]) -> list[dict[str, Any]]:
    """For each contestant, the median over the rounds of (time of the cpu backend's fastest kernel ÷ its own time)."""
    cpu = _cpu(entered)
    if cpu is None:
        return []
    return [
        {**asdict(shape), "device": one.device.key, "kernel": one.kernel, "host": _ratio(cpu, one.host),
         "resident": _ratio(cpu, one.resident or one.host)}
        for one in entered if one is not cpu
    ]  # fmt: skip


def _ratio(reference: Contestant, samples: list[float]) -> float:
    """The host-to-host time of `reference` divided by the sample, as the median over the rounds.

    Ratios within a round cancel disturbances, because a disturbance of a round affects both samples.
    """
    return statistics.median(its / own for its, own in zip(reference.host, samples, strict=True))


def _cpu(entered: list[Contestant]) -> Contestant | None:
    ours = [one for one in entered if one.device.backend == "cpu"]
    return min(ours, key=lambda one: statistics.median(one.host), default=None)


def show(shape: Shape, rows: list[dict[str, Any]]) -> None:
    """Print the table of one shape, then the failures."""
    validated = any(result["valid"] is not None for result in rows)
    head = ["device", "kernel", "cold", "host-to-host", "GFLOP/s", "resident", "GFLOP/s", "of peak"]
    lines = []
    for result in rows:
        peak = result["percent_of_peak"]
        hosted = result["resident_samples_s"] is result["host_samples_s"]
        cells = [result["device"], result["kernel"], phrases.seconds(result["cold_s"]),
                 phrases.seconds(result["host_s"]), phrases.number(result["host_gflops"]),
                 "=" if hosted else phrases.seconds(result["resident_s"]),
                 "=" if hosted else phrases.number(result["resident_gflops"]),
                 "–" if peak is None else f"{peak:.0f} %"]  # fmt: skip
        verdict = {None: "–", True: "ok", False: "WRONG"}[result["valid"]]
        lines.append([*cells, *([verdict] if validated else [])])
    print()
    text.table([*head, *(["checked"] if validated else [])], lines, numbers=range(2, 8), title=str(shape))
    for result in rows:
        name = f"{result['kernel']} on {result['device']}"
        if result["error"]:
            print(f"FAILED {name}: {result['error']}")
        if result["valid"] is False:
            worst = result["worst_error"]
            much = "not a number" if worst is None else f"{worst:.3g} times the bound"
            print(f"FAILED {name}: the result is wrong, its largest error {much}")
    checked = [result for result in rows if result["valid"] is not None]
    if checked and all(result["valid"] for result in checked):
        worst = max(result["worst_error"] for result in checked)
        what = phrases.counted(len(checked), "result")
        print(f"Checked {checked[0]['checked']} of {what}: largest error {worst:.2g} of the bound.")


def compare(entered: list[Contestant], ratios: list[dict[str, Any]], *, reproducible: bool) -> None:
    """Print how the cpu backend compares with the other contestants, and which contestant is fastest."""
    cpu = _cpu(entered)
    others = [one for one in entered if one is not cpu]
    for one, ratio in zip(others, ratios, strict=False):  # without a cpu backend there are no ratios
        line = f"CPU against {_title(one)}: {_against(ratio['host'], one)}"
        if one.resident:
            line += f" host-to-host; with resident operands, {_against(ratio['resident'], one)}"
        print(f"{line}.")
    if len(entered) > 1:
        reference = cpu or entered[0]
        ranked = sorted(((_ratio(reference, one.host), one) for one in entered), key=lambda pair: -pair[0])
        (best, first), (second, _) = ranked[:2]
        print(f"Fastest host-to-host: {first.kernel} on {first.device.key}, {phrases.faster(best / second)} the next.")
    ordered = [one for one in entered if one.device.backend != "numpy"]
    if reproducible and len(ordered) > 1:
        same = len({one.sha256 for one in ordered}) == 1
        how = f"have the same bits, sha256 {ordered[0].sha256[:16]}" if same else "DIFFER"
        print(f"The reproducible results of {phrases.counted(len(ordered), 'contestant')} {how}.")


def _title(one: Contestant) -> str:
    """What the CPU is compared with: GPU (cuda:0, sgemm_cuda_tile), OpenCL on the CPU (...), NumPy, another kernel."""
    if one.device.backend in ("numpy", "cpu"):
        return _name(one)
    return f"{'GPU' if one.device.kind == 'gpu' else 'OpenCL on the CPU'} ({one.device.key}, {one.kernel})"


def _name(one: Contestant) -> str:
    if one.device.backend == "cpu":
        return one.kernel
    return "NumPy" if one.device.backend == "numpy" else "the GPU" if one.device.kind == "gpu" else one.device.key


def _against(ratio: float, one: Contestant) -> str:
    """A phrase that says which of the two is faster, and by which factor."""
    if ratio >= 1:
        return f"{_name(one)} is {phrases.faster(ratio)} the cpu backend"
    return f"the cpu backend is {phrases.faster(1 / ratio)} {_name(one)}"
