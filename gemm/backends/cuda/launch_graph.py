"""Launch plans whose kernels are loaded, and products that repeat such plans with other addresses. This module does not
use CUDA graphs.

`Launches` is a launch plan (`Recipe`) whose kernels are loaded. gemm._memo.Sequence enqueues its launches in C. The
class `Sequence` here does the same in Python: for free-threaded Python, which has no gemm._memo, and for plans that
need workspace on devices without memory pools.

`Replay` is what the plan cache stores for a product of device arrays. The full path checks the arguments, chooses a
kernel and plans its launches. This takes longer than a small product runs. Operands with equal library, types, shapes,
strides and device need the same launches, if their addresses have at least the same alignment and out overlaps no
input.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache, partial
from typing import Any, NamedTuple

from gemm.backends.cuda import array_metadata
from gemm.backends.cuda.array_metadata import Library
from gemm.backends.cuda.driver import OUT_OF_MEMORY, Gpu, cuda, threads
from gemm.backends.cuda.launch_plan import SCALE_AT, Layout, Recipe
from gemm.backends.cuda.operand_layout import OUT, WORKSPACE, C, Map, Step
from gemm.catalog import launch_arithmetic
from gemm.core.errors import KernelFailed
from gemm.core.operands import span
from gemm.core.problem import Ints

_FUNCTIONS = (
    "cuLaunchKernel", "cuLaunchKernelEx", "cuTensorMapEncodeTiled", "cuMemAllocFromPoolAsync", "cuMemFreeAsync",
    "cuMemsetD32Async", "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
)  # fmt: skip


@cache
def _addresses() -> Ints:
    return tuple(cuda().address(name) for name in _FUNCTIONS)


class Launches:
    """A launch plan that is ready to run on a GPU.

    The constructor raises KernelFailed if a kernel does not compile or load.

    Attributes:
        native: the gemm._memo.Sequence, or None if the Python class `Sequence` is used instead.
    """

    def __init__(self, gpu: Gpu, recipe: Recipe) -> None:
        self.gpu, self.recipe = gpu, recipe
        with gpu:
            pool = gpu.pool
            steps = tuple(_prepared(gpu, step) for step in recipe.steps)
        memo = array_metadata.module() if pool or not recipe.workspace else None
        given = recipe.workspace, recipe.zeroed, steps
        self.native = None if memo is None else memo.Sequence(_addresses(), gpu.context, pool, *given)
        self._sequence = self.native or Sequence(gpu, *given)

    def run(self, stream: int, addresses: Ints, scale: bytes) -> None:
        """Enqueue the product. Raises KernelFailed.

        Args:
            stream: the handle of a CUDA stream.
            addresses: the device addresses of a, b, c, out and bias; 0 for an operand that is None.
            scale: alpha and beta as `Scale` packs them.
        """
        failed = self._sequence.run(stream, *addresses, scale)
        # The allocation failed before any kernel was launched. Trimming the pool may free enough memory: try once more.
        if failed == ("cuMemAllocFromPoolAsync", OUT_OF_MEMORY):
            with self.gpu:
                self.gpu.trim()
            failed = self._sequence.run(stream, *addresses, scale)
        if failed is not None:
            raise cuda().failure(*failed)


def _prepared(gpu: Gpu, step: Step) -> tuple[Any, ...]:
    """Return a step in the format that a Sequence takes.

    A launch may start before the previous launch has ended only if each block of the new launch has a multiprocessor to
    itself. Otherwise the first blocks would share the few multiprocessors that are already free. If a grid has at
    most one thread block for each multiprocessor, each block therefore requests so much shared memory that two blocks
    cannot share a multiprocessor.
    """
    function, kernel = gpu.function(step.kernel, dict(step.form)), step.kernel
    shared, count = kernel.params.get("shared", 0), step.grid[0] * step.grid[1]
    alone = function.resident == 1
    if gpu.overlaps and launch_arithmetic.spread(kernel, count // step.cluster, gpu.units, step.cluster):
        alone, shared = True, max(shared, gpu.alone)
    return (
        function.handle, *step.grid, threads(kernel), step.cluster, int(gpu.overlaps and alone), shared,
        step.parameters, SCALE_AT if step.scaled else -1, step.pointers, step.maps,
    )  # fmt: skip


class Sequence:
    """Enqueues the launches of a plan, as gemm._memo.Sequence does in C."""

    def __init__(self, gpu: Gpu, workspace: int, zeroed: tuple[int, int], steps: tuple[Any, ...]) -> None:
        self._gpu, self._workspace, self._zeroed, self._steps = gpu, workspace, zeroed, steps

    def run(self, stream: int, *given: Any) -> None:
        """Enqueue the launches. `given` are the addresses of a, b, c, out and bias, and the scale; see Launches.run."""
        *addresses, scale = given
        with self._gpu as gpu:
            at = [*addresses, gpu.allocate(self._workspace, stream) if self._workspace else 0]
            try:
                offset, size = self._zeroed
                if size:
                    cuda().cuMemsetD32Async(at[WORKSPACE] + offset, 0, size // 4, stream)
                for step in self._steps:
                    _launch(step, at, stream, scale)
            finally:
                if self._workspace:
                    gpu.free(at[WORKSPACE], stream)


def _launch(step: tuple[Any, ...], at: list[int], stream: int, scale: bytes) -> None:
    handle, x, y, block, cluster, overlaps, shared, parameters, scale_at, pointers, maps = step
    filled = bytearray(parameters)
    if scale_at >= 0:
        filled[scale_at : scale_at + len(scale)] = scale
    for offset, slot, distance in pointers:
        struct.pack_into("Q", filled, offset, at[slot] + distance)
    images = [_encoded(one, at[one.slot] + one.at) for one in maps]
    given = ctypes.create_string_buffer(bytes(filled), len(filled))
    addresses = [ctypes.addressof(given), *(address for _, address in images)]
    arguments = (ctypes.c_void_p * len(addresses))(*addresses)
    if cluster == 1 and not overlaps:
        cuda().cuLaunchKernel(handle, x, y, 1, block, 1, 1, shared, stream, ctypes.addressof(arguments), None)
        return
    # 6: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 4: CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    wanted = [(6, 1, 0, 0)] * overlaps + [(4, cluster, 1, 1)] * (cluster != 1)
    attributes = ctypes.create_string_buffer(b"".join(struct.pack("i4x3I52x", *each) for each in wanted))
    fields = x, y, 1, block, 1, 1, shared, stream, ctypes.addressof(attributes), len(wanted)
    config = ctypes.create_string_buffer(struct.pack("7IPPI4x", *fields))  # CUlaunchConfig
    cuda().cuLaunchKernelEx(ctypes.addressof(config), handle, ctypes.addressof(arguments), None)


def _encoded(x: Map, address: int) -> tuple[Any, int]:
    """Encode a tensor map. Return the memory that contains it, and the map's aligned address in that memory."""
    memory = ctypes.create_string_buffer(128 + 64)
    place = -(-ctypes.addressof(memory) // 64) * 64
    given = ctypes.create_string_buffer(struct.pack("5Q6I", *x.dims, *x.strides, *x.box, 1, 1, 1))
    arrays = [ctypes.addressof(given) + offset for offset in (0, 24, 40, 52)]
    cuda().cuTensorMapEncodeTiled(place, x.kind, 3, address, *arrays, 0, x.swizzle, 3, 0)
    return memory, place


_FORMS = {"float64": "d", "complex64": "ff", "complex128": "dd", "int64": "Q"}


class Scale:
    """Packs alpha and beta in the format of gemm.cuh: 16 bytes each.

    Attributes:
        form: the format of alpha, and of beta, in the notation of the module struct, without padding.
    """

    def __init__(self, dtype: str) -> None:
        self.form = _FORMS.get(dtype) or ("I" if "int" in dtype else "f")
        self._both = struct.Struct(2 * f"{self.form}{16 - struct.calcsize(self.form)}x")

    def __call__(self, alpha: Any, beta: Any) -> bytes:
        if self.form in "IQ":  # integers wrap
            mask = (1 << 8 * struct.calcsize(self.form)) - 1
            return self._both.pack(int(alpha) & mask, int(beta) & mask)
        if len(self.form) == 1:
            return self._both.pack(alpha, beta)
        x, y = complex(alpha), complex(beta)
        return self._both.pack(x.real, x.imag, y.real, y.imag)


def signature(a: Any, b: Any, c: Any, out: Any, bias: Any = None) -> tuple[Any, ...] | None:
    """Return the signature of a product: everything that determines its launches, except the addresses.

    All arrays must have the same class. b is None for a prepacked matrix, which is the same in each call. c or out is
    None if it is not given. Returns None if such products cannot be repeated.
    """
    reader = array_metadata.repeatable(a.__class__)
    if reader is None:
        return None
    facts = reader.facts
    return (
        facts(a), None if b is None else facts(b), None if c is None else c is out or facts(c),
        None if out is None else facts(out), None if bias is None else facts(bias),
    )  # fmt: skip


class Launched(NamedTuple):
    """A launched product that a Replay may repeat. `addresses` are those of a, b, c, out and bias; 0 for None."""

    launches: Launches
    layout: Layout
    addresses: Ints

    @property
    def overwrites_c(self) -> bool:
        """Whether out is c and several launches write out.

        If a launch fails after an earlier launch has overwritten c, no kernel can compute the product any more. A
        Replay must not repeat such a product: after a failure, the caller of the Replay would compute the product
        again, from the overwritten c.
        """
        return self.addresses[C] == self.addresses[OUT] and sum(step.scaled for step in self.launches.recipe.steps) > 1


class Replay:
    """A product of device arrays that can be repeated, in any thread, for arrays with the same metadata.

    Attributes:
        layout: the layout of the product that was launched.
        reader: reads the arrays' metadata.
        spans: (low, high) for each of a, b, c and out, and for bias if there is one. low is where the lowest element
            begins (0 or negative), high is where the highest element ends, in bytes from the address of the first
            element.
    """

    def __init__(self, launched: Launched, scale: Scale, reader: Library, arrays: tuple[Any, ...]) -> None:
        """`arrays` are a, b, c, out and bias of the launch."""
        self._launches, layout, addresses = launched
        self._scale, self._kept, self.layout = scale, addresses[1], layout
        self.reader, self._address = reader, reader.address
        self._make, self._shape = reader.maker(arrays[3]), tuple(arrays[3].shape)
        self._masks = [least - 1 for least in layout.aligned]  # the low bits that must be 0 in the addresses
        *batch, m, n = layout.shape
        shapes = [(*batch, m, layout.k), (*batch, layout.k, n), layout.shape, layout.shape, (m, n)]
        sizes = [16 if x is None else _itemsize(x) for x in arrays]
        self._unit = min(16, sizes[4])  # bytes of which the bias's address must be a multiple
        strides = list(layout.strides)
        if layout.bias is not None:
            strides.append(tuple(sizes[4] * step for step in layout.bias))
        self.spans = [span(*each) for each in zip(shapes, strides, sizes, strict=False)]

    def results(self, count: int) -> Any:
        """Return new arrays for the results of `count` products."""
        return self.reader.several(self._make, self._shape, count)

    @property
    def native(self) -> tuple[Any, ...] | None:
        """What gemm._memo needs to repeat the product in C code, or None if gemm._memo cannot repeat it.

        A tuple: the function that makes a new result, the gemm._memo.Sequence, and a tuple of (format of the scalars,
        address of a prepacked b, low and high of b's span, the low bits that must be 0 in the addresses).
        """
        if not self.reader.native or self._launches.native is None:
            return None
        make = partial(self._make, self._shape)
        return make, self._launches.native, (self._scale.form, self._kept, *self.spans[1], *self._masks)

    def __call__(self, *given: Any) -> Any:
        """Enqueue the product. `given` are a, b, c, out, alpha, beta and bias. b is None for a prepacked matrix.

        Returns `out`, or a new array if `out` is None. Returns None if alignment, overlap or an error prevents the
        launches. The caller must then compute the product without the Replay.
        """
        a, b, c, out, alpha, beta, bias = given
        address, masks, created = self._address, self._masks, out is None
        if created:
            out = self._make(self._shape)
        x, y, goal = address(a), self._kept if b is None else address(b), address(out)
        z = 0 if c is None or not self.layout.reads_c else goal if c is out else address(c)
        w = 0 if bias is None else address(bias)
        if x & masks[0] or y & masks[1] or z & masks[2] or goal & masks[3] or w % self._unit:
            return None
        if not created:
            low, high = self.spans[OUT]
            inputs = x, y, 0 if c is out else z, 0, w
            for at, (first, last) in zip(inputs, self.spans, strict=False):
                if at and at + first < goal + high and goal + low < at + last:
                    return None
        try:
            self._launches.run(self.reader.stream(out), (x, y, z, goal, w), self._scale(alpha, beta))
        except KernelFailed:
            return None  # the caller computes the product without the Replay, meets the same error and handles it
        return out


def _itemsize(x: Any) -> int:
    """Return the element size, in bytes, of an array of any library."""
    return int(x.element_size() if hasattr(x, "element_size") else x.dtype.itemsize)
