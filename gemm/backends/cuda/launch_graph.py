"""Launch graphs: a launch plan (`Recipe`) with its kernels loaded. It can be repeated with other addresses.

gemm._memo implements the graph in C. The class `Sequence` here does the same in Python, for installations without
gemm._memo, and for plans that need workspace on devices without memory pools.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
from functools import cache
from typing import Any

from gemm.backends.cuda.api import OUT_OF_MEMORY, cuda
from gemm.backends.cuda.driver import Gpu, threads
from gemm.backends.cuda.launch_plan import SCALE_AT, Recipe
from gemm.backends.cuda.operand_layout import ROOM, Map, Step
from gemm.catalog import launch_arithmetic

_FUNCTIONS = (
    "cuLaunchKernel", "cuLaunchKernelEx", "cuTensorMapEncodeTiled", "cuMemAllocFromPoolAsync", "cuMemFreeAsync",
    "cuMemsetD32Async", "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
)  # fmt: skip


@cache
def _native() -> Any:
    """Return the class gemm._memo.Sequence, or None if gemm._memo was not built."""
    try:
        return importlib.import_module("gemm._memo").Sequence
    except ImportError:
        return None


@cache
def _addresses() -> tuple[int, ...]:
    return tuple(cuda().address(name) for name in _FUNCTIONS)


class Launches:
    """A launch plan that is ready to run on a GPU. Raises KernelFailed if a kernel does not compile or load.

    Attributes:
        native: the gemm._memo.Sequence, or None if the Python class `Sequence` is used instead.
    """

    def __init__(self, gpu: Gpu, recipe: Recipe) -> None:
        self.gpu, self.recipe = gpu, recipe
        with gpu:
            pool = gpu.pool
            steps = tuple(_prepared(gpu, step) for step in recipe.steps)
        native = _native() if pool or not recipe.room else None
        given = gpu.context, pool, recipe.room, recipe.zeroed, steps
        self._sequence = Sequence(gpu, *given) if native is None else native(_addresses(), *given)
        self.native = None if native is None else self._sequence

    def run(self, stream: int, a: int, b: int, c: int, out: int, bias: int, scale: bytes) -> None:
        """Enqueue the product of the operands at these addresses. `scale` is alpha and beta. Raises KernelFailed."""
        failed = self._sequence.run(stream, a, b, c, out, bias, scale)
        if failed is None:
            return
        # No kernel was launched yet, and trimming the pool may free enough memory: try once more.
        if failed == ("cuMemAllocFromPoolAsync", OUT_OF_MEMORY):
            with self.gpu:
                self.gpu.trim()
            failed = self._sequence.run(stream, a, b, c, out, bias, scale)
        if failed is not None:
            raise cuda().failure(*failed)


def _prepared(gpu: Gpu, step: Step) -> tuple[Any, ...]:
    """Return a step in the format that a Sequence takes.

    If a grid has at most one thread block for each multiprocessor, each block gets so much shared memory that two
    blocks cannot share a multiprocessor. A launch may start before the previous launch has ended only if each of its
    blocks has a multiprocessor to itself. Otherwise its first blocks would crowd on the few multiprocessors that are
    already free.
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


class _Attribute(ctypes.Structure):
    """The C struct CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    """The C struct CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    )  # fmt: skip


class Sequence:
    """The same as gemm._memo.Sequence, in Python."""

    def __init__(
        self, gpu: Gpu, context: int, pool: int, room: int, zeroed: tuple[int, int], steps: tuple[Any, ...]
    ) -> None:
        self._gpu, self._room, self._zeroed, self._steps = gpu, room, zeroed, steps

    def run(self, stream: int, a: int, b: int, c: int, out: int, bias: int, scale: bytes) -> None:
        """Enqueue the launches; see Launches.run."""
        with self._gpu as gpu:
            at = [a, b, c, out, bias, gpu.allocate(self._room, stream) if self._room else 0]
            try:
                offset, size = self._zeroed
                if size:
                    cuda().cuMemsetD32Async(at[ROOM] + offset, 0, size // 4, stream)
                for step in self._steps:
                    _launch(step, at, stream, scale)
            finally:
                if self._room:
                    gpu.free(at[ROOM], stream)


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
    # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION and _CLUSTER_DIMENSION
    wanted = [(6, (1,))] * overlaps + [(4, (cluster, 1, 1))] * (cluster != 1)
    attributes = (_Attribute * len(wanted))(*(_Attribute(i, 0, (ctypes.c_uint * 16)(*value)) for i, value in wanted))
    triples = [(ctypes.c_uint * 3)(*sizes) for sizes in ((x, y, 1), (block, 1, 1))]
    config = _Config(*triples, shared, stream, ctypes.addressof(attributes), len(wanted))
    cuda().cuLaunchKernelEx(ctypes.addressof(config), handle, ctypes.addressof(arguments), None)


def _encoded(x: Map, address: int) -> tuple[Any, int]:
    """Encode a tensor map. Return the memory that contains it, and the map's aligned address in that memory."""
    memory = ctypes.create_string_buffer(128 + 64)
    place = -(-ctypes.addressof(memory) // 64) * 64
    dims, strides = (ctypes.c_uint64 * 3)(*x.dims), (ctypes.c_uint64 * 2)(*x.strides)
    box, one = (ctypes.c_uint32 * 3)(*x.box), (ctypes.c_uint32 * 3)(1, 1, 1)
    arrays = [ctypes.addressof(values) for values in (dims, strides, box, one)]
    cuda().cuTensorMapEncodeTiled(place, x.kind, 3, address, *arrays, 0, x.swizzle, 3, 0)
    return memory, place
