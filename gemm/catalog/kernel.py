"""A row of the catalog (`Kernel`), and the types that its name encodes."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import product
from types import CodeType
from typing import Any

BUSY = 8
"""Work-groups per compute unit that keep a device busy."""


@dataclass(frozen=True)
class Kernel:
    """A row of the catalog.

    Attributes:
        name: `<op>gemm_<target>_<technique or tile>`, where <op> encodes the types (see TYPES). The name is also the
            test id and the key in the tuning database.
        backend: a key of BACKENDS; users may name it as backend=.
        target: the family within the backend; users may name it as backend=, too.
        dtype: type of the result, and of the operands unless `inputs` is set; "*" for all types of NumPy. A row of a
            signed integer type also computes products of the unsigned type of the same width, because their results
            have the same bits.
        source: the kernel's file. The file's stem is the name of the function in OpenCL and CUDA files: see `entry`.
            One file may serve several rows with different parameters or types.
        inputs: types of a and b if they differ from `dtype`.
        needs: features that a Device must have.
        params: fixed parameters (tile sizes, blocking), which the expressions in `legal` may use. If the kernel is
            compiled at run time, uppercase parameters are its -D options. Each of them has an #ifndef default in the
            file; the defaults are the values of one of the file's rows.
        space: the values that a tuner may try for a parameter, {name: values}; the row's own value is the default.
        derived: parameters computed from others, {name: expression}, such as a_rows from BM; their values
            are added to `params`.
        chosen: {name: value} of the parameters that `tuned` has changed.
        legal: expressions over m n k batch, params and the device's limits. The row can compute a product on a device
            only if all of them are true.
        swap: an expression over m n a b (a and b are the letters of Problem.layout). It is true for products that are
            faster as the transposed product, b^T times a^T. "" for never. See `swaps`.
        ordered: the row offers reproducible=True, which is ordered accumulation: one chain of fused multiply-adds in
            the order of k.
        ordered_needs: features that a Device must have for ordered accumulation.
        gflops: peak GFLOP/s. In CUDA rows, this is the rate of an H200. In other rows, it is a guess that dispatch uses
            until the probe has measured the rate; in CPU rows, the guess is for one core. In OpenCL rows, the guess
            only ranks the rows of a device: see catalog/opencl.py.
        startup: microseconds that a product takes in addition to its main loop. In CUDA rows, this is the time before
            and after the loop, on an H200. In NumPy's rows, this is the time of gemm's Python code, which repeated
            products by our own kernels do not run.
        scattered: nanoseconds that a multiprocessor takes to store an element of the result if the result's rows are
            not aligned; for CUDA rows, on an H200.
        about: one line for tables.
        precision: the strictest precision that the row offers; see `gemm.gemm`.
        prepares: the row reads matrices of `gemm.prepare`.
        auto_kinds: kinds of devices ("cpu", "gpu") on which dispatch may choose the row if the user does not name it.
            On other kinds the row is verified and runs only when the user names it: verifying a row that is never the
            fastest would only make the probe longer.
        fuses: the row adds a bias and applies an activation while it stores the result. Other rows need another
            pass over the result.
        lazy_verify: the row is verified when dispatch first chooses it, not by the probe, because its backend has too
            many rows to verify them all in advance.
        excluded_features: on devices with one of these features the row runs only when the user names it, because other
            rows are always faster there, or because the row's sums do not fit into the registers.
        suits: an expression over m n k batch and params. If the user does not name the row, dispatch may choose it only
            for products for which the expression is true; "" is true for all products. The row computes all other
            products, too, but slower than `gflops` says. The expression may also use alpha and beta (of `Problem`), a,
            b and out (the letters of Problem.layout), fused (whether a bias or an activation is given) and limited
            (whether threads are limited, see gemm.core.engine). On the CPU, dispatch chooses a row with `suits` only
            after the probe has verified and measured it.
        third_party: the code is not ours. Dispatch therefore requires a verification of the row even on the CPU, where
            it trusts our own rows, and takes the row only if it is clearly faster than our own rows.
        label: the name with the tuned parameters, such as sgemm_adreno_image_8x4[WGM=4,WGN=16].
        group: rows and columns of the result (if swapped: of the transposed result) that a work-group computes.
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
    prepares: bool = True
    fuses: bool = False
    lazy_verify: bool = False
    auto_kinds: tuple[str, ...] = ("cpu", "gpu")
    excluded_features: tuple[str, ...] = ()
    suits: str = ""
    third_party: bool = False
    label: str = field(init=False, repr=False, compare=False)
    group: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = {name: _value(rule, self.params) for name, rule in self.derived.items()}
        p = {**self.params, **values}
        changed = ",".join(f"{name}={value}" for name, value in self.chosen.items())
        tall = p.get("WGM") or p.get("GH") or p.get("BS", 1)
        wide = p.get("WGN") or p.get("GW") or p.get("SG") or p.get("BS", 1)
        group = p.get("BM") or p.get("TM", 1) * tall, p.get("BN") or p.get("TN", 1) * wide
        object.__setattr__(self, "params", p)
        object.__setattr__(self, "label", f"{self.name}[{changed}]" if changed else self.name)
        object.__setattr__(self, "group", group)

    def __hash__(self) -> int:
        return hash(self.name)  # hashing all fields would take longer than most lookups by this key

    def tuned(self, chosen: Mapping[str, int]) -> Kernel:
        """This row with other values for some parameters of its space. Raises ValueError for values outside of the
        space.
        """
        for name, value in chosen.items():
            if value not in self.space.get(name, ()):
                raise ValueError(f"{self.name} cannot be tuned to {name} = {value}; its space is {dict(self.space)}")
        changed = {name: value for name, value in sorted(chosen.items()) if value != self.params[name]}
        return replace(self, params={**self.params, **changed}, chosen=changed) if changed else self

    def multiplies(self, dtype: str, inputs: tuple[str, ...] = ()) -> bool:
        """Whether this row computes products of `dtype` whose operands have the types `inputs`.

        The operands may first have to be converted to `dtype`. () means that they have this type.
        """
        return self.dtype in ("*", dtype.removeprefix("u")) and self.inputs in ((), inputs)

    @property
    def apart(self) -> bool:
        """Whether this row can compute pointer batches, in which each product has operands at its own addresses."""
        return bool(self.params.get("pointers"))

    def chosen_on(self, kind: str, features: Set[str]) -> bool:
        """Whether dispatch may choose this row on a device with this kind and features if the user does not name it."""
        return kind in self.auto_kinds and features.isdisjoint(self.excluded_features)

    def suited(self, sizes: Mapping[str, object]) -> bool:
        """Whether dispatch may choose this row for a product if the user does not name the row.

        sizes: the values of all names that `suits` may contain, except params.
        """
        return not self.suits or bool(_value(self.suits, {**sizes, **self.params}))

    @property
    def entry(self) -> str:
        """The name of the device function: the stem of the source file. (For CPU rows, the C function is `name`.)"""
        return self.source.rsplit("/", 1)[-1].rsplit(".", 1)[0]

    def swaps(self, m: int, n: int, layout: str) -> bool:
        """Whether launches compute the transposed product, b^T a^T. m, n and layout describe the original product."""
        names = {"m": m, "n": n, "a": layout[0], "b": layout[1]}
        return bool(self.swap) and bool(_value(self.swap, names))

    def groups(self, m: int, n: int, batch: int = 1) -> int:
        """Number of work-groups for `batch` results of m by n."""
        rows, columns = self.group
        return -(-m // rows) * -(-n // columns) * batch

    def share(self, k: int, groups: int, units: int) -> int:
        """The number of elements of k that each work-group sums, on a device with `units` compute units.

        `groups` is the number of tiles of the result. The share is less than k if units would otherwise be idle because
        there are few tiles, or few tiles for the last wave of work-groups. Several work-groups then share a tile
        (split-K), and a second launch adds their partial sums. The parameter `split` is the time of the second launch;
        its unit is the time that a work-group takes for one element along k. Rows without `split` never split k.
        """
        worth = self.params.get("split", 0)
        most = min(BUSY * units // groups, k // 64) if worth else 1

        def steps(parts: int) -> int:
            return -(-groups * parts // units) * -(-k // parts) + worth * (parts > 1)

        # If several numbers of parts take the same time, use the largest: more groups hide more latency.
        parts = min(range(max(most, 1), 0, -1), key=steps)
        if parts == 1:
            return k
        grain = self.params.get("BK", 1)
        return -(-k // (parts * grain)) * grain

    def illegal(self, names: Mapping[str, int]) -> str | None:
        """The first rule of `legal` that is false, as a message; None if all rules are true.

        names: the values of the sizes m, n, k and batch, and the device's limits.
        """
        scope = {**names, **self.params}
        for rule in self.legal:
            if not _value(rule, scope):
                values = ", ".join(f"{v} = {scope[v]}" for v in _compiled(rule).co_names)
                return f"needs {rule} ({values})"
        return None


@cache
def _compiled(rule: str) -> CodeType:
    return compile(rule, "<legality rule>", "eval")


def _value(rule: str, names: Mapping[str, object]) -> Any:
    return eval(_compiled(rule), {"__builtins__": {}}, names)


TYPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "s": ("float32", ()), "d": ("float64", ()), "h": ("float16", ()), "b": ("bfloat16", ()),
    "c": ("complex64", ()), "z": ("complex128", ()),
    "i8": ("int8", ()), "i16": ("int16", ()), "i32": ("int32", ()), "i64": ("int64", ()),
    "s8s32": ("int32", ("int8", "int8")), "u8s32": ("int32", ("uint8", "int8")),
    "h32": ("float32", ("float16", "float16")), "b32": ("float32", ("bfloat16", "bfloat16")),
}  # fmt: skip
"""{letters before "gemm" in a kernel's name: (Kernel.dtype, Kernel.inputs)}.

For fp8 the letters name the operands' formats (one if both are the same) and the result type: e4m3b, e4m3e5m2s.
"""
_FP8 = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}  # the names of ml_dtypes' types in NumPy
for _a, _b in product(_FP8, repeat=2):
    for _out, _dtype in ("b", "bfloat16"), ("s", "float32"):
        TYPES[_a + _b * (_a != _b) + _out] = (_dtype, (_FP8[_a], _FP8[_b]))


_FIELDS = frozenset(each.name for each in fields(Kernel))


def typed_row(name: str, backend: str, source: str, about: str, **given: Any) -> Kernel:
    """A row whose types and target are taken from its name.

    Args:
        given: attributes of Kernel. All other names are parameters of the row (Kernel.params); their values are ints.

    Raises:
        TypeError: a parameter is no int; its name may be a misspelt attribute.
    """
    op, target, _ = name.split("_", 2)
    dtype, inputs = TYPES[op.removesuffix("gemm")]
    ordered = given.pop("ordered", True) and "float" in dtype and given.get("precision", "highest") == "highest"
    attributes = {key: value for key, value in given.items() if key in _FIELDS}
    params = {key: value for key, value in given.items() if key not in _FIELDS}
    if strange := [key for key, value in params.items() if type(value) is not int]:
        raise TypeError(f"{name}: {', '.join(strange)}: neither an attribute of Kernel nor an int")
    return Kernel(name, backend, target, dtype, source, params=params, ordered=ordered, about=about, inputs=inputs,
                  **attributes)  # fmt: skip
