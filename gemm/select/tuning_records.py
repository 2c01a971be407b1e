"""What was tuned, as data: classes of products, records, and the documents that hold them.

This machine's records, exports and the files of gemm/tuned are documents of one form:

    {"schema": "gemm-tuning/1",
     "devices": [{"device": {"backend", "name", "platform"}    exactly this one; or, in shipped files,
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
    """Products that one set of parameters serves: each size to the nearest power of two, and how a and b lie.

    The dtype is the kernel's own. Where a and b are makes no class: packing is part of what is measured, and what it
    takes to move them the cost model adds (gemm.select.cost).
    """

    sizes: tuple[int, ...]  # Problem.octaves
    layout: str

    @classmethod
    def of(cls, batch: int, m: int, n: int, k: int, layout: str) -> Class:
        return cls(tuple(map(octave, (batch, m, n, k))), layout[:2])

    def distance(self, other: Class) -> float:
        """How far apart: octaves, and half of one for an operand that lies otherwise."""
        octaves = sum(abs(x - y) for x, y in zip(self.sizes, other.sizes, strict=True))
        return octaves + 0.5 * sum(x != y for x, y in zip(self.layout, other.layout, strict=True))


Trial = float | str
"""Seconds, or why it failed."""

HERE = "here: "
"""Starts a cause that says nothing of other classes of products, such as a lack of memory."""


@dataclass
class Record:
    """What is known of one kernel for one class of products on one device.

    Attributes:
        shape: (batch, m, n, k) that was measured. layout: of a and b.
        driver, source: with which driver and which kernel source (`fingerprint`).
        params: the best values of the kernel's space; None if none worked.
        seconds: theirs, on resident operands, packing included; None if predicted.
        gain: how many times as fast as the catalog's they were at the end of the search; None before that.
        trials: {key of the values: Trial}. Their seconds are to be compared with each other only: each is its ratio to
            the best before it, which was timed beside it, times that one's seconds.
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
        """From JSON. Raises ValueError for what is none."""
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
        """Both: of two trials a failure counts, else the faster.

        Of two results the one that knew the other's trials, else the one of a whole search, else the faster.
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
    """Parameter values as a key: "WGM=8,WGN=4"."""
    return ",".join(f"{name}={value}" for name, value in sorted(params.items()))


@dataclass(frozen=True)
class Group:
    """Records of a device, or of those that match: `match` is the JSON of "device" or of "match"."""

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
    """A document of groups of exact devices."""
    found = [{"device": dict(group.match), "records": list(map(asdict, group.records))} for group in groups]
    return {"schema": SCHEMA, "devices": found}


def text(whole: Mapping[str, Any]) -> str:
    """A document as JSON of one line a record."""
    groups = []
    for group in whole["devices"]:
        lines = ",\n".join(f"    {json.dumps(record, allow_nan=False)}" for record in group["records"])
        head = json.dumps({name: value for name, value in group.items() if name != "records"})
        groups.append(f'  {head[:-1]}, "records": [\n{lines}\n  ]}}')
    return f'{{"schema": {json.dumps(whole["schema"])}, "devices": [\n' + ",\n".join(groups) + "\n]}\n"


def parse(text: Any) -> list[Group]:
    """The groups of a document. Raises ValueError for what is none."""
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
