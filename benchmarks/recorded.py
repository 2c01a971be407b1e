"""What the scripts that record results share: options of the command line, the device, the JSON document."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from gemm.backends import registry
from gemm.cli.arguments import listed, positive, save_json, writable
from gemm.core.errors import BackendUnavailable
from gemm.core.problem import Device
from gemm.frontend import inventory


def parser(description: str | None, *, rounds: int = 0, sample: float = 0.0) -> argparse.ArgumentParser:
    """A parser with the option --json, and with --rounds and --sample (in seconds) if their defaults are given."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if rounds:
        found.add_argument("--rounds", type=positive, default=rounds, help=f"default: {rounds}")
    if sample:
        found.add_argument("--sample", type=float, default=sample, metavar="SECONDS", help=f"default: {sample:g}")
    found.add_argument("--json", type=writable, metavar="FILE", help="also write everything as JSON")
    return found


def counts(argument: str) -> list[int]:
    """Parse an argument that is a comma-separated list of positive numbers; returns them in ascending order."""
    return sorted(map(positive, listed(argument)))


def device_of(key: str, backend: str) -> Device:
    """The device of a backend that the user named. Exits with a message if it is not available."""
    try:
        return next(device for device in registry.backend(backend).devices() if device.key == key)
    except (BackendUnavailable, StopIteration) as error:
        sys.exit(f"{key} is not here: {error}")


def document(schema: str, **facts: Any) -> dict[str, Any]:
    """A document with date, command, commit, versions, machine and `facts`. Devices in `facts` become JSON objects."""
    if "device" in facts:
        facts["device"] = inventory.device_facts(facts["device"])
    if "devices" in facts:
        facts["devices"] = list(map(inventory.device_facts, facts["devices"]))
    return {"schema": schema, **inventory.head(), **facts}


def analysis(format: str, **facts: Any) -> dict[str, Any]:
    """A document of an analysis of compiled code, which needs no device: with date, commit and `facts`."""
    return {"format": format, "date": date.today().isoformat(), "commit": inventory.commit() or "unknown", **facts}


def save(file: Path | None, found: Mapping[str, Any]) -> None:
    """Write the document to `file`, the path of --json; do nothing without --json."""
    if file:
        save_json(file, found)


def spreads(results: Iterable[Mapping[str, Any]]) -> list[float]:
    """The spreads of all contestants of all results."""
    return [spread for row in results for spread in row["spread"].values()]
