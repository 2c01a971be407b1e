"""The data types of a call: the product (`Problem`), devices and device operands, the measured rates of kernels,
candidates with predicted times, and the plan that was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from gemm.catalog import SPREADING, Kernel

Ints = tuple[int, ...]
"""A shape, strides or positions of axes."""
DType = np.dtype[Any]

Precision = Literal["highest", "high", "medium"]
PRECISIONS = get_args(Precision)
"""The precisions that `gemm` can be asked for, strictest first."""

Activation = Literal["relu", "gelu", "gelu_tanh"]
ACTIVATIONS = ("", *get_args(Activation))
"""The activations that `gemm` can apply to results; "" is none."""

FP8 = ("float8_e4m3fn", "float8_e5m2")
"""Types that only a and b can have: eight bits are too few for a result."""
EXTRA = ("bfloat16", *FP8)
"""Types that ml_dtypes adds to NumPy; PyTorch has them under the same names."""
NARROW = ("float16", "bfloat16")
"""Result types whose sums and epilogue are computed in float32."""

PAGE = 4096  # bytes; drivers and caches require no larger alignment
LINE = 64  # bytes of a cache line
WRAPPED_FROM = 1 << 18
"""Size in bytes from which a device uses a user's array in place, wrapped in a buffer. Smaller arrays are copied,
because copying then takes less time than wrapping.
"""

HYBRID = "hybrid"
"""The backend name for the CPU and the fastest other device together; see gemm.execute.split."""
ALL = {f"{name}:all": name for name in SPREADING}
"""{"cuda:all": "cuda"}: the backend names that select all devices of one backend; see gemm.execute.split."""
SPLIT = frozenset((HYBRID, *ALL))
"""The backend names that select several devices."""
Part = tuple[tuple[str, int, int], ...]
"""A part of a product: (axis, start, stop) for each split axis. The axis is a field of Problem: "m", "n" or "batch"."""

CALL = 2e-6
"""The overhead of a call in seconds: the time to enter native code, without the work that the native code does."""


@dataclass(frozen=True)
class Device:
    """A device of one backend, as dispatch, legality rules and `gemm info` see it.

    Attributes:
        key: unique in the process, e.g. "cpu:0", "opencl:1", "cuda:0".
        features: capabilities that kernels may need ("avx2", "fp64", "image", "intel_subgroups", ...).
        limits: numbers that legality rules may use (image_width, local_memory in bytes, ...).
        kind: "cpu" or "gpu". A "cpu" shares cores with the CPU backend.
        unified: host and device share their memory; mapping therefore copies nothing.
        handle: the backend's own object; equality ignores it.
    """

    backend: str
    key: str
    name: str
    platform: str = ""
    driver: str = ""
    kind: str = "cpu"
    unified: bool = False
    features: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(default_factory=dict)
    handle: Any = field(default=None, compare=False, repr=False)

    def __hash__(self) -> int:
        # The key is unique in the process. Hashing all fields would take longer than most lookups in a dictionary whose
        # keys are Devices.
        return hash(self.key)


@dataclass(frozen=True)
class DeviceView:
    """A strided stack of matrices in device memory; the counterpart of an ndarray view.

    Attributes:
        owner: the caller's array. It keeps the memory alive and determines the library.
        data: the object that the backend's launches take: a pyopencl Buffer or SVMPointer, or a CUDA address as an int.
        offset: bytes from `data` to the first element.
        shape, strides: as in NumPy, strides in bytes.
        device: the device of the memory.
        queue: the caller's queue or stream for launches; None for the backend's own.
        readonly: the owner does not allow writing.
    """

    owner: Any
    data: Any
    offset: int
    shape: Ints
    strides: Ints
    dtype: DType
    device: Device
    queue: Any = None
    readonly: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def mT(self) -> DeviceView:
        """The view with its last two axes exchanged."""
        shape, strides = self.shape, self.strides
        return replace(
            self,
            shape=(*shape[:-2], shape[-1], shape[-2]),
            strides=(*strides[:-2], strides[-1], strides[-2]),
        )

    def insert_axis(self, axis: int) -> DeviceView:
        """The view with a new axis of length 1 at `axis` (0 or -1)."""
        at = axis if axis >= 0 else self.ndim + 1 + axis
        shape = (*self.shape[:at], 1, *self.shape[at:])
        strides = (*self.strides[:at], 0, *self.strides[at:])
        return replace(self, shape=shape, strides=strides)

    def broadcast_to(self, shape: Sequence[int]) -> DeviceView:
        """The view broadcast to `shape` with zero strides, by NumPy's rules."""
        lead = len(shape) - self.ndim
        if lead < 0:
            raise ValueError(f"cannot broadcast {self.shape} to {tuple(shape)}")
        strides = [0] * lead
        for have, want, stride in zip(self.shape, shape[lead:], self.strides, strict=True):
            if have != want and have != 1:
                raise ValueError(f"cannot broadcast {self.shape} to {tuple(shape)}")
            strides.append(stride if have == want else 0)
        return replace(self, shape=tuple(shape), strides=tuple(strides))


Operand = np.ndarray | DeviceView
"""What backends receive: a host ndarray or a view of device memory, of shape (*batch, rows, columns)."""


@dataclass(frozen=True)
class Problem:
    """A product without its data: hashable, the key of every cached decision.

    Attributes:
        dtype: NumPy name of the dtype of operands (unless `inputs` is set), arithmetic and result, e.g. "float32".
        m, n, k: the result is m by n, and each of its elements is a sum of k products.
        batch: number of products (1 for plain matrices).
        layout: one letter each for a, b and out: "N" (unit stride within a row), "T" (unit stride within a column) or
            "S" (neither).
        alpha, beta: "0", "1" or "x" for any other value.
        precision: "highest", "high" or "medium".
        reproducible: the caller requires ordered accumulation: one chain of fused multiply-adds in the order of k.
        device: key of the device that holds the operands, or "host".
        inputs: types of a and b if they are narrower than `dtype` and a kernel takes them directly, else ().
        places: one entry each for a, b, c and out. For host memory from `gemm.empty`: the key of the device to which
            the memory belongs. For other host memory that a device may use in place: the alignment of the address in
            bytes, "4096" or "64". Else "". The tuple is () if all entries are "".
        bias: whether a bias is added.
        activation: one of ACTIVATIONS, applied last.
        apart: True for a pointer batch: each product of the batch has its own addresses in device memory, and the
            kernel gets a table of these addresses.
    """

    dtype: str
    m: int
    n: int
    k: int
    batch: int = 1
    layout: str = "NNN"
    alpha: str = "1"
    beta: str = "0"
    precision: str = "highest"
    reproducible: bool = False
    device: str = "host"
    inputs: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    bias: bool = False
    activation: str = ""
    apart: bool = False

    @property
    def itemsize(self) -> int:
        return _itemsizes(self.dtype, self.inputs)[2]

    @property
    def itemsizes(self) -> tuple[int, int]:
        """Bytes per element of a and of b."""
        return _itemsizes(self.dtype, self.inputs)[:2]

    @property
    def fused(self) -> bool:
        """Whether the product has a bias or an activation in addition to alpha·a·b + beta·c."""
        return self.bias or self.activation != ""

    @property
    def unfused(self) -> Problem:
        """The product without bias and activation, for kernels that do not fuse them. A second pass applies bias and
        activation to the result of this product.

        If `dtype` is in NARROW, the unfused product has a float32 result. The final result is then rounded to the
        narrow type only once, after the epilogue.
        """
        if not self.fused:
            return self
        plain = replace(self, bias=False, activation="")
        if self.dtype not in NARROW:
            return plain
        return replace(plain, dtype="float32", inputs=self.inputs or (self.dtype, self.dtype))

    def __hash__(self) -> int:
        # The hash uses only the fields that differ most often. Hashing all fields would take longer than most lookups
        # in a dictionary whose keys are Problems.
        return hash((self.m, self.n, self.k, self.batch, self.dtype, self.layout, self.device))

    @property
    def flops(self) -> float:
        """Number of multiplications and additions."""
        return 2.0 * self.m * self.n * self.k * self.batch

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Bytes of a, b, c and out. c has 0 bytes if beta = 0."""
        m, n, k, batch = self.m, self.n, self.k, self.batch
        a, b, c = _itemsizes(self.dtype, self.inputs)
        out = m * n * c * batch
        return m * k * a * batch, k * n * b * batch, out if self.beta != "0" else 0, out

    # `octaves` is not a cached_property: that would access the object's __dict__, and later attribute accesses would be
    # slower. Dispatch reads `octaves` only twice.
    @property
    def octaves(self) -> Ints:
        """Rounded logarithms to base 2 of batch, m, n and k. Products with equal octaves take similar times."""
        return octave(self.batch), octave(self.m), octave(self.n), octave(self.k)

    @property
    def moved(self) -> tuple[int, int]:
        """(Bytes of a, b and c together, bytes of out)."""
        a, b, c, out = self.sizes
        return a + b + c, out

    def traffic(self, stay: Sequence[bool]) -> tuple[int, int]:
        """Bytes to transfer: (to a device, from the device).

        `stay` has four entries, for a, b, c and out. True: the operand is not transferred.
        """
        *read, written = (0 if stays else size for stays, size in zip(stay, self.sizes, strict=True))
        return sum(read), written


def layout_of(x: Operand) -> str:
    """The layout: "N" for unit stride within a row, "T" for unit stride within a column, "S" for neither."""
    rows, columns = x.shape[-2:]
    row_step, column_step = x.strides[-2:]
    if column_step == x.dtype.itemsize or columns == 1:
        return "N"
    return "T" if row_step == x.dtype.itemsize or rows == 1 else "S"


def place_of(x: Operand | None) -> str:
    """The entry of Problem.places for `x`.

    Arrays that are not from `gemm.empty` have the entry "" if they are smaller than WRAPPED_FROM, if their size is not
    a multiple of LINE, or if they are C-contiguous neither as they are nor with their last two axes exchanged.
    """
    if not isinstance(x, np.ndarray):
        return ""
    base = x.base
    while isinstance(base, np.ndarray):
        base = base.base
    if key := getattr(base, "device_key", ""):
        return str(key)
    if (
        x.nbytes < WRAPPED_FROM
        or x.nbytes % LINE
        or not (x.flags.c_contiguous or x.swapaxes(-1, -2).flags.c_contiguous)
    ):
        return ""
    address = x.__array_interface__["data"][0]
    return next((str(step) for step in (PAGE, LINE) if address % step == 0), "")


@lru_cache(4096)
def octave(size: int) -> int:
    """The rounded logarithm to base 2 of a size."""
    return round(math.log2(max(1, size)))


@cache
def _itemsizes(dtype: str, inputs: tuple[str, ...]) -> tuple[int, int, int]:
    """Bytes per element of a, b and the result."""
    a, b = inputs or (dtype, dtype)
    return np.dtype(a).itemsize, np.dtype(b).itemsize, np.dtype(dtype).itemsize


@dataclass(frozen=True)
class Rates:
    """The rates of a kernel on a device, from which the cost model predicts times.

    The probe (gemm.select.measure) measures them.

    Attributes:
        launch: seconds of a product of negligible size, with operands in the device's memory.
        flops: additions and multiplications per second in a large product.
        upload, download: bytes per second from host to device for large operands, and from device to host for large
            results; 0 if nothing is transferred.
        staged: additional seconds of a small product whose operands are packed first, because they do not have the
            layout that the kernel needs.
        wrapped: host memory with at least this alignment, in bytes, is used in place; 0: host memory is always copied.
        start: seconds that transfers add to a product whatever their size.
        overlaps: transfers overlap with a product whose operands and result have together at least this many bytes; 0:
            they never overlap.
        memory: bytes per second at which the kernel reads an operand from memory once; 0: unknown. Kernels that compute
            in host memory have the rate of host memory. GPU kernels that stream an operand have their measured rate of
            the GPU's memory. Other GPU kernels have the highest rate of the streaming kernels on the device.
        basis: "measured" by the probe, or "guessed" from the catalog.
    """

    launch: float
    flops: float
    upload: float = 0.0
    download: float = 0.0
    staged: float = 0.0
    wrapped: int = 0
    start: float = 0.0
    overlaps: int = 0
    memory: float = 0.0
    basis: str = "measured"


class Candidate(NamedTuple):
    """A kernel on a device, with its predicted time for one problem.

    Attributes:
        seconds: predicted time of the call, transfers included; None if the kernel cannot run.
        launch, transfer, compute: the terms of `seconds`. `transfer` is the time that transfers add to the other two.
        basis: "measured" on this machine by the probe or the tuner; "modelled" from the properties of a GPU and the
            catalog's data about the kernel; or "guessed" from the catalog.
        origin: the source of the values of the kernel's tunable parameters.
        why_not: why the kernel cannot run, or "".
        factor: the calibration factor of the model's prediction; already included in `seconds`.
    """

    kernel: Kernel
    device: Device
    seconds: float | None = None
    launch: float = 0.0
    transfer: float = 0.0
    compute: float = 0.0
    basis: str = ""
    why_not: str = ""
    origin: str = ""
    factor: float = 1.0

    def __repr__(self) -> str:
        outcome = self.why_not if self.seconds is None else f"about {self.seconds:.3g} s"
        return f"<Candidate {self.kernel.name} on {self.device.key}: {outcome}>"


@dataclass(frozen=True, repr=False)
class Plan:
    """The kernel and device chosen for a problem, with the predicted seconds and the reason.

    Attributes:
        factor: the calibration factor of the model's prediction; already included in `seconds`.
        rival: for host operands, predicted seconds of the fastest candidate on another device; infinite if there is
            none.
        meanwhile: True: the plan is used only until the probe has ended, or a faster kernel has been verified. The
            first product after that asks dispatch again.
        searching: True: the probe has not ended. Its results may change the choice.
    """

    problem: Problem
    kernel: Kernel
    device: Device
    seconds: float
    reason: str
    factor: float = 1.0
    rival: float = math.inf
    meanwhile: bool = False
    searching: bool = False

    def __hash__(self) -> int:
        return hash((self.problem, self.kernel.name))  # these two tell most plans apart; hashing all would take longer

    def __repr__(self) -> str:
        where = f"{self.kernel.name} on {self.device.key}"
        return f"<{type(self).__name__} {where}, about {self.seconds:.3g} s: {self.reason}>"


@dataclass(frozen=True, kw_only=True, repr=False)
class Split(Plan):
    """A product split into parts that several devices compute at the same time; see gemm.execute.split.

    A Split is chosen anew for each product, because a device may have failed. `kernel` and `device` are those of the
    first part. `seconds` is the time until the last part is complete.

    Attributes:
        backend: the requested name, one of SPLIT.
        named: the requested kernel, or None.
        sides: the plan of each part.
        cuts: the parts, in the order of `sides`.
    """

    backend: str
    sides: tuple[Plan, ...]
    cuts: tuple[Part, ...]
    named: str | None = None
