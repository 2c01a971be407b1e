"""Descriptions of a product (`Problem`), of a device (`Device`) and of device operands (`DeviceView`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

PRECISIONS = ("highest", "high", "medium")
"""The precisions that `gemm` can be asked for, strictest first."""

ACTIVATIONS = ("", "relu", "gelu", "gelu_tanh")
"""The activations that `gemm` can apply to results; "" is none."""

FP8 = ("float8_e4m3fn", "float8_e5m2")
"""Types of operands only: eight bits are too few for a result."""
EXTRA = ("bfloat16", *FP8)
"""Types that ml_dtypes adds to NumPy; PyTorch has them under the same names."""
NARROW = ("float16", "bfloat16")
"""Types that are summed in float32, and whose epilogue is in float32."""


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
        return hash(self.key)  # hashing all fields would take longer than most lookups by this key


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
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
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


def same_stack(shape: Sequence[int], *strides: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Merge adjacent batch axes if the strides of every operand allow it. Loops over the batch then have fewer levels.

    Args:
        shape: the batch shape.
        strides: one sequence of batch strides per operand, all in the same unit.

    Returns:
        [(length, (stride of operand 0, stride of operand 1, ...)), ...], outermost first. Axes of length 1 are dropped.
        An empty list means a single product.
    """
    axes: list[tuple[int, tuple[int, ...]]] = []
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        step = tuple(s[axis] for s in strides)
        if axes and all(o == s * length for o, s in zip(axes[-1][1], step, strict=True)):
            axes[-1] = (axes[-1][0] * length, step)
        else:
            axes.append((length, step))
    return axes


@dataclass(frozen=True)
class Problem:
    """A product without its data: hashable, the key of every cached decision.

    Attributes:
        dtype: NumPy name of the dtype of operands (unless `inputs` is set), arithmetic and result, e.g. "float32".
        m, n, k: C is m by n, and the sum runs over k.
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
        apart: a pointer batch: each product of the batch has its own addresses in device memory, and the kernel gets a
            table of them.
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
        """The product without bias and activation, for kernels that do not fuse them. A second pass applies both to its
        result.

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
        # Only the fields that differ most often: hashing all fields would take longer than most lookups by this key.
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

    # Not a cached_property: a cached_property accesses the object's __dict__, and later attribute accesses are then
    # slower. Dispatch reads `octaves` only twice.
    @property
    def octaves(self) -> tuple[int, ...]:
        """Rounded logarithms to base 2 of batch, m, n and k. Products with equal octaves take similar times."""
        return octave(self.batch), octave(self.m), octave(self.n), octave(self.k)

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes of all operands: (a, b and c together, out)."""
        a, b, c, out = self.sizes
        return a + b + c, out

    def traffic(self, stay: Sequence[bool]) -> tuple[int, int]:
        """Bytes to transfer: (to a device, from the device).

        `stay` has four entries, for a, b, c and out. True: the operand is not transferred.
        """
        *read, written = (0 if stays else size for stays, size in zip(stay, self.sizes, strict=True))
        return sum(read), written


@lru_cache(maxsize=4096)
def octave(size: int) -> int:
    """The rounded logarithm to base 2 of a size."""
    return round(math.log2(max(1, size)))


@cache
def _itemsizes(dtype: str, inputs: tuple[str, ...]) -> tuple[int, int, int]:
    """Bytes per element of a, b and the result."""
    a, b = inputs or (dtype, dtype)
    return np.dtype(a).itemsize, np.dtype(b).itemsize, np.dtype(dtype).itemsize
