"""A row of the catalog, and what its name says."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from types import CodeType

BUSY = 8
"""Groups a compute unit that keep a device busy."""


@dataclass(frozen=True)
class Kernel:
    """A row of the catalog.

    Attributes:
        name: `<op>_<target>_<technique or tile>`; also the test id and the tuning key.
        backend, target: a key of BACKENDS and the family within it; users may name either as backend=.
        dtype: of the result, and of the operands but for `inputs`; "*" for anything NumPy does. Rows of a signed
            integer serve the unsigned one of its width as well: modulo a power of two both have the same bits.
        source: its file. Its stem is the entry point: `name`, or `name` with the type letter s/d generalised to
            "gemm" where one parametrised file serves several types.
        inputs: types of a and b where they are not `dtype`.
        needs: features that a Device must have.
        params: fixed parameters (tile sizes, blocking), visible to `legal`; uppercase ones are -D options of
            run-time compiled kernels, where the file's #ifndef defaults agree with them.
        space: what a tuner may try for a parameter, {name: values}; the row's own value is the default.
        derived: parameters that follow from others, {name: expression}, such as a_rows from BM; they join `params`.
        chosen: the parameters that `tuned` has changed.
        legal: expressions over m n k batch, params and the device's limits; all must hold.
        swap: an expression over m n a b (the letters of Problem.layout), which says where the transposed product, of b
            transposed and a transposed, suits it better; "" for never. See `swaps`.
        ordered: offers reproducible=True, the ORDERED chain.
        ordered_needs: features that it needs for that.
        gflops: what one device (a CPU row: one core) may reach, a guess until it is measured. A CUDA row: an H200.
        startup: microseconds that a product takes before and after its main loop, of a CUDA row on an H200.
        scattered: nanoseconds that a multiprocessor takes to store an element of the result where its rows are not
            aligned, of a CUDA row on an H200.
        about: one line for tables.
        precision: the strictest that it offers; see `gemm.gemm`.
        auto: kinds of devices ("cpu", "gpu") on which it may be chosen though nobody named it. The others are verified
            when they are named: a form that another one beats is not worth every user's wait for the probe.
        fuses: adds a bias and applies an activation as it stores; for others that is a pass over the result.
        late: it is verified when it is first to be chosen, not by the probe, as its backend has too many to wait for.
        beaten: features of devices on which it is chosen by name only, too: other rows are always better there, or its
            outputs do not fit into their registers.
        suits: an expression over m n k batch and params, the products for which it may be chosen though unnamed:
            it computes all others, but slower than its `gflops` tell. "" for all.
        label: the name, and what was tuned of it: sgemm_adreno_image_8x4[WGM=4,WGN=16].
        group: rows and columns of the result (of the transposed one, if swapped) that a device's work-group computes.
    """

    name: str
    backend: str
    target: str
    dtype: str
    source: str
    needs: tuple[str, ...] = ()
    params: Mapping[str, int] = field(default_factory=dict, hash=False)
    space: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    derived: Mapping[str, str] = field(default_factory=dict, hash=False)
    chosen: Mapping[str, int] = field(default_factory=dict, hash=False)
    legal: tuple[str, ...] = ()
    swap: str = ""
    ordered: bool = True
    ordered_needs: tuple[str, ...] = ()
    gflops: float = 1.0
    startup: float = 0.0
    scattered: float = 0.6
    about: str = ""
    inputs: tuple[str, ...] = ()
    precision: str = "highest"
    fuses: bool = False
    late: bool = False
    auto: tuple[str, ...] = ("cpu", "gpu")
    beaten: tuple[str, ...] = ()
    suits: str = ""
    label: str = field(init=False, repr=False, compare=False)
    group: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = {name: eval(_compiled(rule), {"__builtins__": {}}, self.params) for name, rule in self.derived.items()}
        p = {**self.params, **values}
        changed = ",".join(f"{name}={value}" for name, value in self.chosen.items())
        tall = p.get("WGM") or p.get("GH") or p.get("BS", 1)
        wide = p.get("WGN") or p.get("GW") or p.get("SG") or p.get("BS", 1)
        group = p.get("BM") or p.get("TM", 1) * tall, p.get("BN") or p.get("TN", 1) * wide
        object.__setattr__(self, "params", p)
        object.__setattr__(self, "label", f"{self.name}[{changed}]" if changed else self.name)
        object.__setattr__(self, "group", group)

    def __hash__(self) -> int:
        return hash(self.name)  # of all fields it would take longer than most of what is looked up by it

    def tuned(self, chosen: Mapping[str, int]) -> Kernel:
        """This row of the catalog with other values for some parameters of its space. Raises ValueError for others."""
        for name, value in chosen.items():
            if value not in self.space.get(name, ()):
                raise ValueError(f"{self.name} cannot be tuned to {name} = {value}; its space is {dict(self.space)}")
        changed = {name: value for name, value in sorted(chosen.items()) if value != self.params[name]}
        return replace(self, params={**self.params, **changed}, chosen=changed) if changed else self

    def multiplies(self, dtype: str, inputs: tuple[str, ...] = ()) -> bool:
        """Whether it computes products of `dtype`. Operands of types `inputs` that it does not take are converted."""
        return self.dtype in ("*", dtype.removeprefix("u")) and self.inputs in ((), inputs)

    @property
    def apart(self) -> bool:
        """Whether it computes products each of which lies by itself: Problem.apart."""
        return bool(self.params.get("pointers"))

    def chosen_on(self, kind: str, features: Set[str]) -> bool:
        """Whether it may be chosen on a device of that kind with those features though nobody named it."""
        return kind in self.auto and features.isdisjoint(self.beaten)

    def suited(self, sizes: Mapping[str, int]) -> bool:
        """Whether it may be chosen for a product of those m, n, k and batch though nobody named it."""
        return not self.suits or bool(eval(_compiled(self.suits), {"__builtins__": {}}, {**sizes, **self.params}))

    @property
    def entry(self) -> str:
        """The C or device function to call: the stem of the source file (the CPU's rows: the name)."""
        return self.source.rsplit("/", 1)[-1].rsplit(".", 1)[0]

    def swaps(self, m: int, n: int, layout: str) -> bool:
        """Whether its launches compute out' = b' a' for such operands: the m, n and operands of all else are those."""
        names = {"m": m, "n": n, "a": layout[0], "b": layout[1]}
        return bool(self.swap) and bool(eval(_compiled(self.swap), {"__builtins__": {}}, names))

    def groups(self, m: int, n: int, batch: int = 1) -> int:
        """Work-groups of so many m by n results."""
        rows, columns = self.group
        return -(-m // rows) * -(-n // columns) * batch

    def share(self, k: int, groups: int, units: int) -> int:
        """How much of k each group sums on a device of so many compute units.

        Less than all of it where groups are so few, or so few in the last wave of them, that units would be idle:
        several then share a tile of the result. A second launch adds them up, which takes as long as `split` steps
        along k of every unit; rows without `split` are never cut.
        """
        worth = self.params.get("split", 0)
        most = min(BUSY * units // groups, k // 64) if worth else 1

        def steps(parts: int) -> int:
            return -(-groups * parts // units) * -(-k // parts) + worth * (parts > 1)

        # Of equals the most parts, which hide each other's waits.
        parts = min(range(max(most, 1), 0, -1), key=steps)
        if parts == 1:
            return k
        grain = self.params.get("BK", 1)
        return -(-k // (parts * grain)) * grain

    def illegal(self, names: Mapping[str, int]) -> str | None:
        """The first rule that does not hold for `names` (problem and device limits), or None."""
        scope = {**names, **self.params}
        for rule in self.legal:
            if not eval(_compiled(rule), {"__builtins__": {}}, scope):
                values = ", ".join(f"{v} = {scope[v]}" for v in _compiled(rule).co_names)
                return f"needs {rule} ({values})"
        return None


@cache
def _compiled(rule: str) -> CodeType:
    return compile(rule, "<legality rule>", "eval")


TYPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "s": ("float32", ()), "d": ("float64", ()), "h": ("float16", ()), "b": ("bfloat16", ()),
    "c": ("complex64", ()), "z": ("complex128", ()),
    "i8": ("int8", ()), "i16": ("int16", ()), "i32": ("int32", ()), "i64": ("int64", ()),
    "s8s32": ("int32", ("int8", "int8")), "u8s32": ("int32", ("uint8", "int8")),
    "h32": ("float32", ("float16", "float16")), "b32": ("float32", ("bfloat16", "bfloat16")),
}  # fmt: skip
"""What an operation's letters before "gemm" mean: Kernel.dtype and Kernel.inputs.

Of fp8 they name the operands' formats, one if both have the same, and the result: e4m3b, e4m3e5m2s.
"""
_FP8 = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}  # by the names that NumPy knows ml_dtypes' types by
for _a, _b in product(_FP8, repeat=2):
    for _out, _dtype in ("b", "bfloat16"), ("s", "float32"):
        TYPES[_a + _b * (_a != _b) + _out] = (_dtype, (_FP8[_a], _FP8[_b]))


def typed_row(
    name: str, backend: str, source: str, about: str, *,
    needs: tuple[str, ...] = (), legal: tuple[str, ...] = (), swap: str = "",
    space: Mapping[str, tuple[int, ...]] | None = None,
    derived: Mapping[str, str] | None = None, ordered_needs: tuple[str, ...] = (), gflops: float = 1.0,
    startup: float = 0.0, scattered: float = 0.6, precision: str = "highest", ordered: bool = True,
    fuses: bool = False, late: bool = False,
    auto: tuple[str, ...] = ("cpu", "gpu"), beaten: tuple[str, ...] = (), suits: str = "", **params: int,
) -> Kernel:  # fmt: skip
    """A row whose types and target are read off its name."""
    op, target, _ = name.split("_", 2)
    dtype, inputs = TYPES[op.removesuffix("gemm")]
    ordered = ordered and "float" in dtype and precision == "highest"
    return Kernel(name, backend, target, dtype, source, needs, params, space or {}, derived or {}, legal=legal,
                  swap=swap, ordered=ordered, ordered_needs=ordered_needs, gflops=gflops, startup=startup,
                  scattered=scattered, about=about, inputs=inputs, precision=precision, fuses=fuses, late=late,
                  auto=auto, beaten=beaten, suits=suits)  # fmt: skip
