"""Meters of energy: RAPL and NVML, as they tell and as they are absent."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gemm.compare import energy


def test_rapl(tmp_path: Path) -> None:
    for zone in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl"):
        (tmp_path / zone).mkdir()
    package = tmp_path / "intel-rapl:0"
    for name, text in (("name", "package-0\n"), ("energy_uj", "900000\n"), ("max_energy_range_uj", "1000000\n")):
        (package / name).write_text(text)
    meters, absent = energy.meters(tmp_path)
    assert [meter.name for meter in meters][:1] == ["package-0"]
    assert not any(why.startswith("RAPL") for why in absent)

    def call() -> None:  # 0.1 J, of a counter that begins anew at 1 J
        (package / "energy_uj").write_text(str((int((package / "energy_uj").read_text()) + 100_000) % 1_000_000))

    joules, seconds = energy.spent(call, meters[:1], span=0.0)
    assert joules == {"package-0": pytest.approx(0.1)}
    assert seconds > 0


def test_absences_have_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert energy.meters(tmp_path)[0] == []
    assert [why.partition(":")[0] for why in energy.meters(tmp_path)[1]] == ["RAPL", "NVML"]
    (tmp_path / "intel-rapl:0").mkdir()
    assert "energy_uj" in energy.meters(tmp_path)[1][0]


def test_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = ModuleType("pynvml")
    state = SimpleNamespace(millijoules=0, broken=False)

    def consumed(handle: object) -> int:
        if state.broken:
            raise fake.NVMLError("too old")
        state.millijoules += 500
        return state.millijoules

    fake.NVMLError = type("NVMLError", (Exception,), {})
    fake.nvmlInit, fake.nvmlDeviceGetCount = lambda: None, lambda: 1
    fake.nvmlDeviceGetHandleByIndex, fake.nvmlDeviceGetTotalEnergyConsumption = lambda at: at, consumed
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    (meter,), _ = energy.meters(tmp_path)
    assert energy.spent(lambda: None, [meter], span=0.0)[0] == {"GPU 0": pytest.approx(0.5)}
    state.broken = True
    assert energy.meters(tmp_path) == ([], [energy.meters(tmp_path)[1][0], "NVML: too old"])
