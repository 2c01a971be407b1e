"""The tuning database: which parameters a kernel uses for a product.

There are three sources of parameters. In order of priority: records tuned on this machine, records shipped with the
package, and the values in the catalog. In this module, a row is a kernel with the parameters from the catalog.

The records of this machine are stored in the cache folder, one entry for each device. Imported records are stored in
the same entries. The shipped records are the files gemm/tuned/*.json. They select devices by patterns. A pattern's
level is "device", "architecture", "vendor" or "default"; records of the most specific level have priority.

All records are stored as JSON documents of one format. Each group of records applies to one exact device ("device") or,
in shipped files, to all devices that match a pattern ("match" and "level"):

    {"schema": "gemm-tuning/1",
     "devices": [{"device": {"backend", "name", "platform"}, or
                  "match": {field of Device: regular expression, ...}, "level": one of LEVELS,
                  "records": [{"kernel", "shape": [batch, m, n, k], "layout", "params", ...}, ...]}]}
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from gemm.catalog import HOST_BACKENDS, Kernel
from gemm.core import disk_cache, engine
from gemm.core.problem import Device, Ints, Problem, octave

log = logging.getLogger("gemm")

SHIPPED = Path(__file__).resolve().parents[1] / "tuned"
NEAR = 1.0
"""Greatest distance (`Class.distance`) at which the measured rate of one class applies to another class. Two classes
have this distance if one of their sizes differs by a factor of 2.
"""
SCHEMA = "gemm-tuning/1"
FIELDS = ("backend", "name", "platform")
LEVELS = ("device", "architecture", "vendor", "default")


class Class(NamedTuple):
    """A class of products that use the same parameters.

    Products are in the same class if their sizes round to the same powers of two and the layouts of a and b agree. The
    dtype is not part of the class, because each kernel has one dtype. The memory of the operands (host or device) is
    not part of the class either: the measurement includes packing, and the cost model adds the time of transfers
    (gemm.select.cost).
    """

    sizes: Ints  # Problem.octaves
    layout: str

    @classmethod
    def of(cls, batch: int, m: int, n: int, k: int, layout: str) -> Class:
        return cls(tuple(map(octave, (batch, m, n, k))), layout[:2])

    def distance(self, other: Class) -> float:
        """Return the distance in octaves (factors of 2), plus 0.5 for each operand whose layout differs."""
        octaves = sum(abs(x - y) for x, y in zip(self.sizes, other.sizes, strict=True))
        return octaves + 0.5 * sum(x != y for x, y in zip(self.layout, other.layout, strict=True))


Trial = float | str
"""Seconds of a kernel with the parameter values that the tuner tried, or why the kernel failed with these values."""

HERE = "here: "
"""Prefix of a cause of failure that does not apply to other classes of products, such as a lack of memory."""


@dataclass
class Record:
    """What the tuner knows about one kernel for one class of products on one device.

    Attributes:
        shape: the measured (batch, m, n, k).
        layout: the layouts of a and b.
        driver, source: the driver and the kernel's source (`tuning_db.fingerprint`) of the measurement.
        params: the best values of the kernel's space; None if no values worked.
        seconds: the measured time with `params` for operands in device memory, including packing; None if `params` are
            predicted, not measured.
        gain: time with the catalog's values ÷ time with `params`, measured at the end of the search; None before the
            end.
        trials: {key of the values: Trial}. A trial's seconds are not an absolute time. The tuner measures each trial
            together with the best earlier trial. The trial's seconds are the ratio of these two times, multiplied by
            the seconds of that best trial. The result may be compared only with the seconds of other trials, not with
            `seconds`.
    """

    kernel: str
    shape: tuple[int, int, int, int]
    layout: str = "NN"
    driver: str = ""
    source: str = ""
    params: dict[str, int] | None = None
    seconds: float | None = None
    gain: float | None = None
    trials: dict[str, Trial] = field(default_factory=dict)

    @property
    def cls(self) -> Class:
        return Class.of(*self.shape, self.layout)

    @property
    def identity(self) -> tuple[Any, ...]:
        return self.kernel, self.cls, self.driver, self.source

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Record:
        """Make a record from JSON. Raises ValueError if `fields` is not a valid record."""
        try:
            shape = tuple(map(int, fields["shape"]))
            params, seconds, gain = (fields.get(name) for name in ("params", "seconds", "gain"))
            if len(shape) != 4 or min(shape) < 1 or not re.fullmatch("[NTS]{2}", fields.get("layout", "NN")):
                raise ValueError("no such shape")
            return cls(
                str(fields["kernel"]), shape, fields.get("layout", "NN"), str(fields.get("driver", "")),
                str(fields.get("source", "")),
                None if params is None else {str(name): int(value) for name, value in params.items()},
                None if seconds is None else float(seconds), None if gain is None else float(gain),
                {str(key): t if isinstance(t, str) else float(t) for key, t in fields.get("trials", {}).items()},
            )  # fmt: skip
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{fields!r:.200} is not a record of gemm's tuner: {error}") from None

    def merged(self, other: Record) -> Record:
        """Return the union of both records.

        If both have a trial of the same values, a failure has priority, then the faster trial. If both have `params`,
        the union has those of the better record. These rules say which record is better; the first rule that decides
        counts: the record that has all trials of both; the record whose search is finished; the faster record.
        """
        trials = dict(self.trials)
        for key, trial in other.trials.items():
            known = trials.get(key, trial)
            trials[key] = min(known, trial, key=lambda t: -math.inf if isinstance(t, str) else t)
        works = [r for r in (self, other) if r.params is not None and not isinstance(trials.get(key_of(r.params)), str)]

        def rank(record: Record) -> tuple[bool, bool, float]:
            return record.trials.keys() != trials.keys(), record.gain is None, record.seconds or math.inf

        best = min(works, key=rank, default=replace(self, params=None, seconds=None, gain=None))
        return replace(best, trials=trials)


def key_of(params: Mapping[str, int]) -> str:
    """Return the parameter values as a key such as "WGM=8,WGN=4"."""
    return ",".join(f"{name}={value}" for name, value in sorted(params.items()))


@dataclass(frozen=True)
class Group:
    """Records of one exact device, or of all devices that match patterns.

    Attributes:
        match: the JSON object "device" if `exact`, else the JSON object "match".
    """

    match: Mapping[str, str]
    level: str
    records: tuple[Record, ...]
    exact: bool = True

    @classmethod
    def of(cls, device: Device, records: Iterable[Record]) -> Group:
        return cls({name: getattr(device, name) for name in FIELDS}, "device", tuple(records))

    def fits(self, device: Device) -> bool:
        facts = {**vars(device), "features": " ".join(sorted(device.features))}
        if self.exact:
            return all(facts[name] == value for name, value in self.match.items())
        return all(re.search(rule, facts[name], re.IGNORECASE) for name, rule in self.match.items())


def document(groups: Iterable[Group]) -> dict[str, Any]:
    """Return the JSON document of `groups`. Each group must be for one exact device."""
    found = [{"device": dict(group.match), "records": list(map(asdict, group.records))} for group in groups]
    return {"schema": SCHEMA, "devices": found}


def text(whole: Mapping[str, Any]) -> str:
    """Return a document as JSON text with one line for each record."""
    groups = []
    for group in whole["devices"]:
        lines = ",\n".join(f"    {json.dumps(record, allow_nan=False)}" for record in group["records"])
        head = json.dumps({name: value for name, value in group.items() if name != "records"})
        groups.append(f'  {head[:-1]}, "records": [\n{lines}\n  ]}}')
    return f'{{"schema": {json.dumps(whole["schema"])}, "devices": [\n' + ",\n".join(groups) + "\n]}\n"


def parse(text: Any) -> list[Group]:
    """Return the groups of a document. Raises ValueError if the document is not valid."""
    if not isinstance(text, Mapping) or text.get("schema") != SCHEMA or not isinstance(text.get("devices"), list):
        raise ValueError(f"the document does not have the schema {SCHEMA}")
    groups = []
    for item in text["devices"]:
        try:
            exact = "device" in item
            match, level = item["device" if exact else "match"], "device" if exact else item["level"]
            if not match or not set(match) <= {*FIELDS, "driver", "kind", "features"} or level not in LEVELS:
                raise ValueError(f"a device cannot be identified by {match!r} at level {level!r}")
            for rule in match.values():
                re.compile(re.escape(rule) if exact else rule)
            groups.append(Group(match, level, tuple(map(Record.read, item["records"])), exact))
        except (KeyError, TypeError, AttributeError, re.error) as error:
            raise ValueError(f"a group of devices lacks a field or has a wrong one: {error}") from None
    return groups


class Choice(NamedTuple):
    """A kernel with parameters for a product.

    Attributes:
        origin: where the parameters come from, in words.
        here: whether the tuner verified the parameters on this device with this driver.
        record: the measurement of this class, or of a class at most `NEAR` away, on this device and driver; or None.
    """

    kernel: Kernel
    origin: str
    here: bool = False
    record: Record | None = None


@lru_cache(1024)
def fingerprint(row: Kernel) -> str:
    """Return a fingerprint of the source files and the fixed parameters of `row`.

    A measurement made with another fingerprint does not apply to the row. All CPU rows use the identity of the engine
    instead of source files, because the build compiles all their sources into one library.
    """
    fixed = {name: value for name, value in row.params.items() if name not in row.space and name not in row.derived}
    compiled = engine.identity() if row.backend in HOST_BACKENDS else disk_cache.compiled(row.source)
    return disk_cache.digest(repr((compiled, sorted(fixed.items()))).encode()).hex()[:16]


def class_of(problem: Problem) -> Class:
    return Class(problem.octaves, problem.layout[:2])


class _Of(NamedTuple):
    """Records of a row on a device.

    Attributes:
        current: records tuned with this driver and this version of the kernel.
        old: records tuned with another driver or another version of the kernel.
        levels: [(level, the shipped records of this level), ...], the most specific level first.
    """

    current: list[Record]
    old: list[Record]
    levels: list[tuple[str, list[Record]]]


@lru_cache(1024)
def _of(row: Kernel, device: Device) -> _Of:
    own = [r for r in stored(device) if r.kernel == row.name and r.params is not None]
    current = [r for r in own if r.driver == device.driver and r.source == fingerprint(row)]
    return _Of(current, [r for r in own if r not in current], list(shipped(row.name, device)) if row.space else [])


def timed(row: Kernel, device: Device) -> bool:
    """Whether the tuner has timed `row` on this device, with any driver and any version of the kernel."""
    known = _of(row, device)
    return bool(known.current or known.old)


def choices(row: Kernel, device: Device, problem: Problem) -> tuple[Choice, ...]:
    """Return `row` with each set of parameters that it could use for `problem`, the most trusted first.

    The catalog's parameters are the last.
    """
    tuned = _tuned(row, device, class_of(problem)) if any(_of(row, device)) else ()
    return (*tuned, Choice(row, "default"))


@lru_cache(4096)
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
    return tuple(found)


def _nearest(row: Kernel, records: Iterable[Record], wanted: Class) -> Iterator[tuple[Record, Kernel]]:
    """Yield (record, `row` with the record's parameters) for each of `records`, the nearest class first.

    Records whose parameters are no longer in the row's space are skipped.
    """
    for record in sorted(records, key=lambda r: r.cls.distance(wanted)):
        kernel = _with(row, tuple((record.params or {}).items()))
        if kernel is not None:
            yield record, kernel


@lru_cache(1024)
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


def _groups(blob: bytes | None, where: str = "its tuning records") -> list[Group]:
    """Return the groups of the document `blob`. If the document is not valid, log a warning and return []."""
    try:
        return [] if blob is None else parse(json.loads(blob))
    except ValueError as error:
        log.warning("gemm ignores %s: %s", where, error)
        return []


def entry(device: Device) -> str:
    """Return the name of the cache entry that stores the records of `device`."""
    identity = repr((device.backend, device.name, device.platform))
    return f"tuning-{disk_cache.digest(identity.encode()).hex()[:32]}"


@lru_cache(64)
def stored(device: Device) -> tuple[Record, ...]:
    """Return the records tuned on this device, with any driver, and the records imported for the device."""
    return _records(disk_cache.load(entry(device)))


def _records(blob: bytes | None) -> tuple[Record, ...]:
    return tuple(record for group in _groups(blob) for record in group.records)


def save(device: Device, records: Iterable[Record]) -> None:
    """Merge `records` into the stored records of `device`. Keep records that another process has stored meanwhile."""

    def change(blob: bytes | None) -> bytes:
        known = {record.identity: record for record in _records(blob)}
        for record in records:
            other = known.get(record.identity)
            known[record.identity] = record if other is None else record.merged(other)
        return json.dumps(document([Group.of(device, known.values())])).encode()

    disk_cache.update(entry(device), change)
    forget()


def forget() -> None:
    """Clear the caches in memory, so that the next use reads the records from disk."""
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
        keys = [(r, key_of(r.params)) for r in group.records if r.params is not None]
        best = tuple(replace(r, trials={key: r.trials[key]} if key in r.trials else {}) for r, key in keys)
        found += [replace(group, records=best)] if best else []
    return document(found)


def imported(text: Any) -> int:
    """Merge a document from `exported` into this machine's records; return the number of records.

    Raises ValueError if the document is not valid.
    """
    groups = parse(text)
    if not all(group.exact for group in groups):
        raise ValueError("the document has patterns of devices; gemm imports only records of exact devices")
    for group in groups:
        if set(group.match) != set(FIELDS):
            raise ValueError(f"a device is identified by {', '.join(FIELDS)}, not by {', '.join(group.match)}")
        save(Device(group.match["backend"], "", group.match["name"], group.match["platform"]), group.records)
    return sum(len(group.records) for group in groups)


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
