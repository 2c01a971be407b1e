"""What a product needs (`Problem`) and where device operands lie (`DeviceView`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

PRECISIONS = ("highest", "high", "medium")
"""What `gemm` may be asked to keep, strictest first."""

ACTIVATIONS = ("", "relu", "gelu", "gelu_tanh")
"""What `gemm` may apply to results; "" is none."""

FP8 = ("float8_e4m3fn", "float8_e5m2")
"""Types of operands only: eight bits are too few for a sum."""
EXTRA = ("bfloat16", *FP8)
"""Types that NumPy knows by ml_dtypes, and PyTorch by the same names."""
NARROW = ("float16", "bfloat16")
"""Types whose sums and epilogue are float32's."""


@dataclass(frozen=True)
class Device:
    """A device of one backend: what dispatch, legality rules and `info` know of it.

    Attributes:
        key: unique in the process, e.g. "cpu:0", "opencl:1", "cuda:0".
        features: capabilities that kernels may need ("avx2", "fp64", "image", "intel_subgroups", ...).
        limits: numbers that legality rules may name (image_width, local_memory in bytes, ...).
        kind: "cpu" or "gpu", i.e. whether it shares cores with the CPU backend.
        unified: host and device share their memory, so that mapping copies nothing.
        handle: the backend's own object; takes no part in equality.
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
        return hash(self.key)  # of all fields it would take longer than most of what is looked up by it


@dataclass(frozen=True)
class DeviceView:
    """A strided stack of matrices in device memory; the counterpart of an ndarray view.

    Attributes:
        owner: the caller's array, which keeps the memory alive and names its library.
        data: what the backend's launches take: a pyopencl Buffer or SVMPointer, or a CUDA address as an int.
        offset: bytes from `data` to the first element.
        shape, strides: as in NumPy, strides in bytes.
        device: the device that holds it.
        queue: the caller's queue or stream to launch on; None for the backend's own.
        readonly: its owner forbids writing.
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
        """The view repeated with zero strides to `shape`, by NumPy's rules."""
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
"""What backends receive: a host ndarray or a view of device memory; (*batch, rows, columns)."""


def same_stack(shape: Sequence[int], *strides: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Merge batch axes that every operand walks evenly, so that loops over batches are short.

    Args:
        shape: the batch shape.
        strides: one sequence of batch strides an operand, in any one unit.

    Returns:
        [(length, (stride of operand 0, stride of operand 1, ...)), ...], outermost first; axes of
        length 1 are dropped. An empty list is a single product.
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
        dtype: NumPy name of the dtype of operands (but see inputs), arithmetic and result, e.g. "float32".
        m, n, k: C is m by n, the sum runs over k.
        batch: how many products (1 for plain matrices).
        layout: "N" (unit stride along the row), "T" (along the column) or "S" (neither) for a, b and the output.
        alpha, beta: "0", "1" or "x" for any other value.
        precision: "highest", "high" or "medium".
        reproducible: the ORDERED chain was asked for.
        device: key of the device that holds the operands, or "host".
        inputs: types of a and b where they are narrower than `dtype` and a kernel takes them so, else ().
        places: of a, b, c and out in host memory that a device may use where it lies: the key of the device whose
            memory it is (`gemm.empty`), else the bytes that its address is a multiple of, "4096" or "64", else "".
            () where all are "".
        bias: one is added. activation: one of ACTIVATIONS, applied last.
        apart: each product of the batch lies by itself on the device, and a kernel is told of their addresses.
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
        """Bytes of an element of a and of b."""
        return _itemsizes(self.dtype, self.inputs)[:2]

    @property
    def fused(self) -> bool:
        """Whether there is more to do than alpha·a·b + beta·c."""
        return self.bias or self.activation != ""

    @property
    def unfused(self) -> Problem:
        """What a kernel computes that adds no bias and applies no activation, as the operands of those passes.

        Narrow floats stay float32 until the end, so that results are rounded once, whoever computes them.
        """
        if not self.fused:
            return self
        plain = replace(self, bias=False, activation="")
        if self.dtype not in NARROW:
            return plain
        return replace(plain, dtype="float32", inputs=self.inputs or (self.dtype, self.dtype))

    def __hash__(self) -> int:
        # Of those fields in which most differ: of all, it would take longer than most of what is looked up by it.
        return hash((self.m, self.n, self.k, self.batch, self.dtype, self.layout, self.device))

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.n * self.k * self.batch

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Bytes of a, b, c and out; c has none where beta = 0."""
        m, n, k, batch = self.m, self.n, self.k, self.batch
        a, b, c = _itemsizes(self.dtype, self.inputs)
        out = m * n * c * batch
        return m * k * a * batch, k * n * b * batch, out if self.beta != "0" else 0, out

    # No cached_property: an object whose __dict__ was asked for is slower from then on, and a choice asks twice.
    @property
    def octaves(self) -> tuple[int, ...]:
        """Logarithms to base 2 of batch, m, n and k, rounded: products that are alike in time have them alike."""
        return octave(self.batch), octave(self.m), octave(self.n), octave(self.k)

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes (in, out) of all operands."""
        a, b, c, out = self.sizes
        return a + b + c, out

    def traffic(self, stay: Sequence[bool]) -> tuple[int, int]:
        """Bytes (in, out) that a device must be sent and send back, but for those of a, b, c and out that `stay`."""
        *read, written = (0 if stays else size for stays, size in zip(stay, self.sizes, strict=True))
        return sum(read), written


@lru_cache(maxsize=4096)
def octave(size: int) -> int:
    """The logarithm of a size to base 2, rounded."""
    return round(math.log2(max(1, size)))


@cache
def _itemsizes(dtype: str, inputs: tuple[str, ...]) -> tuple[int, int, int]:
    """Bytes of an element of a, b and the result."""
    a, b = inputs or (dtype, dtype)
    return np.dtype(a).itemsize, np.dtype(b).itemsize, np.dtype(dtype).itemsize
