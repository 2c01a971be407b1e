"""The tuning database: which parameters a kernel uses for a product.

There are three sources of parameters. In order of priority: records tuned on this machine, records shipped with the
package, and the values in the catalog.

The records of this machine are stored in the cache folder, one entry for each device. Imported records are stored in
the same entries. The shipped records are the files gemm/tuned/*.json. They select devices by patterns, and the more
specific pattern has priority. gemm.select.tuning_records defines the format.
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
"""Greatest distance at which the measured rate of one class applies to another class. Neighbours along one axis have
this distance.
"""


@dataclass(frozen=True)
class Choice:
    """A kernel with parameters for a product.

    Attributes:
        origin: where the parameters come from, in words.
        here: the tuner verified the parameters on this device with this driver.
        record: the measurement of this class, or of a class at most `NEAR` away, on this device and driver; or None.
    """

    kernel: Kernel
    origin: str
    here: bool = False
    record: Record | None = None


@lru_cache(maxsize=1024)
def fingerprint(row: Kernel) -> str:
    """Return a fingerprint of the source files and the fixed parameters of `row`.

    A measurement made with another fingerprint does not apply to the row. All CPU rows use the identity of the engine
    instead of source files, because the build compiles them into one library.
    """
    fixed = {name: value for name, value in row.params.items() if name not in row.space and name not in row.derived}
    compiled = engine.identity() if row.backend in HOST_BACKENDS else disk_cache.compiled(row.source)
    return disk_cache.digest(repr((compiled, sorted(fixed.items()))).encode()).hex()[:16]


def class_of(problem: Problem) -> Class:
    return Class(problem.octaves, problem.layout[:2])


class _Of(NamedTuple):
    """Records of a row on a device.

    Attributes:
        current: tuned with this driver and this version of the kernel.
        old: tuned with another driver or version.
        levels: shipped records, by level.
    """

    current: list[Record]
    old: list[Record]
    levels: list[tuple[str, list[Record]]]


@lru_cache(maxsize=1024)
def _of(row: Kernel, device: Device) -> _Of:
    own = [r for r in stored(device) if r.kernel == row.name and r.params is not None]
    current = [r for r in own if r.driver == device.driver and r.source == fingerprint(row)]
    return _Of(current, [r for r in own if r not in current], list(shipped(row.name, device)) if row.space else [])


def timed(row: Kernel, device: Device) -> bool:
    """Whether the tuner has timed `row` on this device, with any driver or version."""
    known = _of(row, device)
    return bool(known.current or known.old)


def choices(row: Kernel, device: Device, problem: Problem) -> tuple[Choice, ...]:
    """Return the parameters that `row` could use for `problem`, the most trusted first, the catalog's last."""
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
    """Yield each record with `row` in the record's parameters, nearest class first.

    Records whose parameters are no longer in the row's space are skipped.
    """
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
    """Return `row` with each set of parameters that the probe must verify before `choices` may use them.

    Args:
        most: greatest number of variants to return.
    """
    known, found = _of(row, device), dict[str, Kernel]()
    groups = [known.old, *(records for _, records in known.levels)] if row.space else []
    for records in groups[:2]:  # tuned with another driver or version; shipped at the most specific level
        for _, kernel in _nearest(row, records, Class.of(1, 1024, 1024, 1024, "NN")):
            if kernel.chosen:
                found.setdefault(kernel.label, kernel)
    return list(found.values())[:most]


def failure(row: Kernel, kernel: Kernel, device: Device, problem: Problem) -> str:
    """Return why `kernel` failed in the tuner on this device and driver, or "".

    Args:
        kernel: `row` with some parameters.
    """
    key = key_of({name: kernel.params[name] for name in row.space})
    for record in stored(device):
        trial = record.trials.get(key)
        if isinstance(trial, str) and record.kernel == row.name and record.driver == device.driver:
            elsewhere = trial.startswith(HERE) and record.cls != class_of(problem)
            if not elsewhere and record.source == fingerprint(row):
                return trial.removeprefix(HERE)
    return ""


# Records of this machine.


def _groups(blob: bytes | None, where: str = "its tuning records") -> list[Group]:
    """Return the groups of a document; none, with a warning, if the document does not have this schema."""
    try:
        return [] if blob is None else parse(json.loads(blob))
    except ValueError as error:
        log.warning("gemm ignores %s: %s", where, error)
        return []


def entry(device: Device) -> str:
    """Return the name of the cache entry that stores the records of `device`."""
    identity = repr((device.backend, device.name, device.platform))
    return f"tuning-{disk_cache.digest(identity.encode()).hex()[:32]}"


@lru_cache(maxsize=64)
def stored(device: Device) -> tuple[Record, ...]:
    """Return the records tuned on this device, with any driver, and the records imported for the device."""
    return _records(disk_cache.load(entry(device)))


def _records(blob: bytes | None) -> tuple[Record, ...]:
    return tuple(record for group in _groups(blob, "its tuning records") for record in group.records)


def save(device: Device, records: Iterable[Record]) -> None:
    """Merge `records` into the stored records of `device`, including what another process has written meanwhile."""

    def change(blob: bytes | None) -> bytes:
        known = {record.identity: record for record in _records(blob)}
        for record in records:
            other = known.get(record.identity)
            known[record.identity] = record if other is None else record.merged(other)
        return json.dumps(document([Group.of(device, known.values())])).encode()

    disk_cache.update(entry(device), change)
    forget()


def forget() -> None:
    """Clear the caches in memory; the next use reads the records from disk."""
    for each in (stored, _of, _tuned):
        each.cache_clear()


def exported(devices: Iterable[Device] | None = None) -> dict[str, Any]:
    """Return a document with the best parameters in this machine's records.

    Args:
        devices: the devices to export; None exports every device that was ever tuned on this machine.
    """
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
    """Merge a document from `exported` into this machine's records; return the number of records.

    Raises ValueError if the document is not valid.
    """
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
    """Yield (level, records of `kernel`) from the shipped files that match `device`, the most specific level first."""
    for level in LEVELS:
        groups = [group for group in _shipped() if group.level == level and group.fits(device)]
        if records := [r for group in groups for r in group.records if r.kernel == kernel and r.params is not None]:
            yield level, records
