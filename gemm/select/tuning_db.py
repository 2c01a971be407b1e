"""Which parameters a kernel takes for a product: what was tuned here, else what is shipped, else the catalog's.

This machine's records lie in the cache folder, one entry a device, with those that were imported; gemm/tuned/*.json are
shipped with the package, for devices known by patterns, from the particular to the general. See
gemm.select.tuning_records.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from gemm.catalog import HOST_BACKENDS, Kernel
from gemm.core import disk_cache, engine
from gemm.core.problem import Device, Problem
from gemm.select.tuning_records import FIELDS, HERE, LEVELS, Class, Group, Record, document, key_of, parse

log = logging.getLogger("gemm")

SHIPPED = Path(__file__).resolve().parents[1] / "tuned"
NEAR = 1.0
"""Up to this distance a class's measured rate serves another class: its neighbours along one axis."""


@dataclass(frozen=True)
class Choice:
    """A kernel with its parameters for a product.

    Attributes:
        origin: where they come from, in words.
        here: they were verified on this device with this driver, by the tuner.
        record: the measurement of (nearly) this class on this device and driver, if there is one.
    """

    kernel: Kernel
    origin: str
    here: bool = False
    record: Record | None = None


@lru_cache(maxsize=1024)
def fingerprint(row: Kernel) -> str:
    """Of what the row is compiled from and its fixed parameters: what is measured of another one says nothing of it.

    The CPU's rows are compiled beforehand, all into one engine.
    """
    fixed = {name: value for name, value in row.params.items() if name not in row.space and name not in row.derived}
    compiled = engine.identity() if row.backend in HOST_BACKENDS else disk_cache.compiled(row.source)
    return disk_cache.digest(repr((compiled, sorted(fixed.items()))).encode()).hex()[:16]


def class_of(problem: Problem) -> Class:
    return Class(problem.octaves, problem.layout[:2])


class _Of(NamedTuple):
    """Records of a row on a device: tuned with this driver and version, with others; and shipped, by levels."""

    current: list[Record]
    old: list[Record]
    levels: list[tuple[str, list[Record]]]


@lru_cache(maxsize=1024)
def _of(row: Kernel, device: Device) -> _Of:
    own = [r for r in stored(device) if r.kernel == row.name and r.params is not None]
    current = [r for r in own if r.driver == device.driver and r.source == fingerprint(row)]
    return _Of(current, [r for r in own if r not in current], list(shipped(row.name, device)) if row.space else [])


def timed(row: Kernel, device: Device) -> bool:
    """Whether the tuner has timed `row` on this very device."""
    known = _of(row, device)
    return bool(known.current or known.old)


def choices(row: Kernel, device: Device, problem: Problem) -> tuple[Choice, ...]:
    """The parameters that `row` might take for `problem`, the most trusted first; the catalog's are the last."""
    return _tuned(row, device, class_of(problem)) if row.space and any(_of(row, device)) else _default(row)


@lru_cache(maxsize=1024)
def _default(row: Kernel) -> tuple[Choice]:
    return (Choice(row, "default"),)


@lru_cache(maxsize=4096)
def _tuned(row: Kernel, device: Device, wanted: Class) -> tuple[Choice, ...]:
    known, found = _of(row, device), list[Choice]()
    for record, kernel in _nearest(row, known.current, wanted):
        far = record.cls.distance(wanted)
        origin = "tuned here" if not far else f"tuned here for {' × '.join(map(str, record.shape[1:]))}"
        found.append(Choice(kernel, origin, True, record if far <= NEAR and record.seconds else None))
    found += [Choice(kernel, "tuned with another driver or version") for _, kernel in _nearest(row, known.old, wanted)]
    for level, records in known.levels:
        for record, kernel in _nearest(row, records, wanted):
            found.append(Choice(kernel, f"{'predicted' if record.seconds is None else 'shipped'} for this {level}"))
    return (*found, *_default(row))


def _nearest(row: Kernel, records: Iterable[Record], wanted: Class) -> Iterator[tuple[Record, Kernel]]:
    """Records with `row` as they have it, but those of a space that it no longer has."""
    for record in sorted(records, key=lambda r: r.cls.distance(wanted)):
        kernel = _with(row, tuple((record.params or {}).items()))
        if kernel is not None:
            yield record, kernel


@lru_cache(maxsize=1024)
def _with(row: Kernel, params: tuple[tuple[str, int], ...]) -> Kernel | None:
    try:
        return row.tuned(dict(params))
    except ValueError:
        return None


def variants(row: Kernel, device: Device, most: int = 4) -> list[Kernel]:
    """`row` with the parameters that `choices` may offer unverified, for the probe to verify: at most so many."""
    known, found = _of(row, device), dict[str, Kernel]()
    groups = [known.old, *(records for _, records in known.levels)] if row.space else []
    for records in groups[:2]:  # what was tuned with another driver, the most particular of what is shipped
        for _, kernel in _nearest(row, records, Class.of(1, 1024, 1024, 1024, "NN")):
            if kernel.chosen:
                found.setdefault(kernel.label, kernel)
    return list(found.values())[:most]


def failure(row: Kernel, kernel: Kernel, device: Device, problem: Problem) -> str:
    """Why the tuner found that `kernel`, `row` with some parameters, fails on this device and driver; or ""."""
    key = key_of({name: kernel.params[name] for name in row.space})
    for record in stored(device):
        trial = record.trials.get(key)
        if isinstance(trial, str) and record.kernel == row.name and record.driver == device.driver:
            elsewhere = trial.startswith(HERE) and record.cls != class_of(problem)
            if not elsewhere and record.source == fingerprint(row):
                return trial.removeprefix(HERE)
    return ""


# This machine's records.


def _groups(blob: bytes | None, where: str = "its tuning records") -> list[Group]:
    """Those of a document; none where it is not one of this schema."""
    try:
        return [] if blob is None else parse(json.loads(blob))
    except ValueError as error:
        log.warning("gemm ignores %s: %s", where, error)
        return []


def entry(device: Device) -> str:
    """The cache entry of the device's records."""
    identity = repr((device.backend, device.name, device.platform))
    return f"tuning-{disk_cache.digest(identity.encode()).hex()[:32]}"


@lru_cache(maxsize=64)
def stored(device: Device) -> tuple[Record, ...]:
    """What was tuned on this device, with whatever driver, or imported for it."""
    return _records(disk_cache.load(entry(device)))


def _records(blob: bytes | None) -> tuple[Record, ...]:
    return tuple(record for group in _groups(blob, "its tuning records") for record in group.records)


def save(device: Device, records: Iterable[Record]) -> None:
    """Merge `records` into the device's, also with what another process has written meanwhile."""

    def change(blob: bytes | None) -> bytes:
        known = {record.identity: record for record in _records(blob)}
        for record in records:
            other = known.get(record.identity)
            known[record.identity] = record if other is None else record.merged(other)
        return json.dumps(document([Group.of(device, known.values())])).encode()

    disk_cache.update(entry(device), change)
    forget()


def forget() -> None:
    """Read the records anew at the next need."""
    for each in (stored, _of, _tuned):
        each.cache_clear()


def exported(devices: Iterable[Device] | None = None) -> dict[str, Any]:
    """A document of the best of this machine's records: of `devices`, or of all that were ever tuned here."""
    names = disk_cache.entries("tuning-") if devices is None else [entry(device) for device in devices]
    found = []
    for group in (group for name in names for group in _groups(disk_cache.load(name))):
        best = [
            replace(r, trials={key: trial for key, trial in r.trials.items() if key == key_of(r.params)})
            for r in group.records
            if r.params is not None
        ]
        found += [replace(group, records=tuple(best))] if best else []
    return document(found)


def imported(text: Any) -> int:
    """Merge a document that `exported` made into this machine's records; returns how many. Raises ValueError."""
    groups = parse(text)
    if not all(group.exact for group in groups):
        raise ValueError("its devices are patterns: only records of one exact device can be imported")
    for group in groups:
        if set(group.match) != set(FIELDS):
            raise ValueError(f"a device is told by {', '.join(FIELDS)}, not by {', '.join(group.match)}")
        save(Device(group.match["backend"], "", group.match["name"], group.match["platform"]), group.records)
    return sum(len(group.records) for group in groups)


# Shipped records.


@cache
def _shipped() -> tuple[Group, ...]:
    found: list[Group] = []
    for file in sorted(SHIPPED.glob("*.json")):
        found += _groups(file.read_bytes(), str(file))
    return tuple(found)


def shipped(kernel: str, device: Device) -> Iterator[tuple[str, list[Record]]]:
    """(level, records of `kernel`) of the shipped files that are for `device`, the particular before the general."""
    for level in LEVELS:
        groups = [group for group in _shipped() if group.level == level and group.fits(device)]
        if records := [r for group in groups for r in group.records if r.kernel == kernel and r.params is not None]:
            yield level, records
