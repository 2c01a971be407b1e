"""The data of the tuning database: classes of products, records, and the documents that store them.

The records of this machine, exported files and the files in gemm/tuned have the same format. Each group of records
applies to one exact device ("device") or, in shipped files, to all devices that match ("match" and "level"):

    {"schema": "gemm-tuning/1",
     "devices": [{"device": {"backend", "name", "platform"}, or
                  "match": {field of Device: regular expression, ...}, "level": one of LEVELS,
                  "records": [{"kernel", "shape": [batch, m, n, k], "layout", "params", ...}, ...]}]}
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from gemm.core.problem import Device, octave

SCHEMA = "gemm-tuning/1"
FIELDS = ("backend", "name", "platform")
LEVELS = ("device", "architecture", "vendor", "default")


class Class(NamedTuple):
    """A class of products that use the same parameters.

    Products are in the same class if their sizes round to the same powers of two and the layouts of a and b agree. The
    dtype is not part of the class, because each kernel has one dtype. Nor is it part of the class whether the operands
    are in host or device memory: the measurement includes packing, and the cost model adds the transfer
    (gemm.select.cost).
    """

    sizes: tuple[int, ...]  # Problem.octaves
    layout: str

    @classmethod
    def of(cls, batch: int, m: int, n: int, k: int, layout: str) -> Class:
        return cls(tuple(map(octave, (batch, m, n, k))), layout[:2])

    def distance(self, other: Class) -> float:
        """Return the distance in octaves (factors of 2), plus 0.5 for each operand whose layout differs."""
        octaves = sum(abs(x - y) for x, y in zip(self.sizes, other.sizes, strict=True))
        return octaves + 0.5 * sum(x != y for x, y in zip(self.layout, other.layout, strict=True))


Trial = float | str
"""Seconds of a candidate, or why the candidate failed."""

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
        seconds: the time with `params` for operands in device memory, including packing; None if predicted.
        gain: time with the catalog's values ÷ time with `params`, measured at the end of the search; None before the
            end.
        trials: {key of the values: Trial}. The seconds of a trial may be compared only with those of other trials, not
            with `seconds`: they are a ratio multiplied by the seconds of the best earlier trial. The ratio comes from
            one measurement of this trial and that best one.
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
            raise ValueError(f"{fields!r:.200} is no record of gemm's tuner: {error}") from None

    def merged(self, other: Record) -> Record:
        """Return the union of both records.

        If both have a trial of the same values, a failure has priority, then the faster trial. If both have a result,
        the first rule that decides selects one: the record that has all trials of both; the record whose search is
        finished; the faster one.
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
    """Return a document of `groups`, each of which is for one exact device."""
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
        raise ValueError(f"not a document of the schema {SCHEMA}")
    groups = []
    for item in text["devices"]:
        try:
            exact = "device" in item
            match, level = item["device" if exact else "match"], "device" if exact else item["level"]
            if not match or not set(match) <= {*FIELDS, "driver", "kind", "features"} or level not in LEVELS:
                raise ValueError(f"a device cannot be told by {match!r} at level {level!r}")
            for rule in match.values():
                re.compile(re.escape(rule) if exact else rule)
            groups.append(Group(match, level, tuple(map(Record.read, item["records"])), exact))
        except (KeyError, TypeError, AttributeError, re.error) as error:
            raise ValueError(f"a group of devices has no proper {error}") from None
    return groups
