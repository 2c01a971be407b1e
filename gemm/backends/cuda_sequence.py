"""A recipe with its kernels loaded: launches that are given again and again, each time for other addresses.

gemm._cuda does it in C. `Sequence` here does the same in Python, for where that was not built and for devices without
memory pools, which need more than a few calls.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
from functools import cache
from typing import Any

from gemm.backends.cuda_api import OUT_OF_MEMORY, cuda
from gemm.backends.cuda_driver import Gpu, threads
from gemm.backends.cuda_operand import ROOM, Map
from gemm.backends.cuda_recipe import SCALE_AT, Recipe

_FUNCTIONS = (
    "cuLaunchKernel", "cuLaunchKernelEx", "cuTensorMapEncodeTiled", "cuMemAllocFromPoolAsync", "cuMemFreeAsync",
    "cuMemsetD32Async", "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
)  # fmt: skip


@cache
def _native() -> Any:
    """gemm._cuda.Sequence, or None where it was not built."""
    try:
        return importlib.import_module("gemm._cuda").Sequence
    except ImportError:
        return None


@cache
def _addresses() -> tuple[int, ...]:
    return tuple(cuda().address(name) for name in _FUNCTIONS)


class Launches:
    """A recipe ready to run on a GPU. Raises KernelFailed where a kernel does not compile or load.

    Attributes:
        native: the gemm._cuda.Sequence, or None where one in Python stands for it.
    """

    def __init__(self, gpu: Gpu, recipe: Recipe) -> None:
        self.gpu, self.recipe = gpu, recipe
        with gpu:
            pool = gpu.pool
            steps = tuple(
                (
                    gpu.function(step.kernel, dict(step.form)).handle, *step.grid, threads(step.kernel), step.cluster,
                    step.kernel.params.get("shared", 0), step.parameters, SCALE_AT if step.scaled else -1,
                    step.pointers, step.maps,
                )
                for step in recipe.steps
            )  # fmt: skip
        native = _native() if pool or not recipe.room else None
        given = gpu.context, pool, recipe.room, recipe.zeroed, steps
        self._sequence = Sequence(gpu, *given) if native is None else native(_addresses(), *given)
        self.native = None if native is None else self._sequence

    def run(self, stream: int, a: int, b: int, c: int, out: int, bias: int, scale: bytes) -> None:
        """Enqueue the product of what lies at these addresses; `scale` is alpha and beta. Raises KernelFailed."""
        failed = self._sequence.run(stream, a, b, c, out, bias, scale)
        if failed is None:
            return
        # The pool, or what waits to be freed, may have what is missing; and nothing was launched yet.
        if failed == ("cuMemAllocFromPoolAsync", OUT_OF_MEMORY):
            with self.gpu:
                self.gpu.trim()
            failed = self._sequence.run(stream, a, b, c, out, bias, scale)
        if failed is not None:
            raise cuda().failure(*failed)


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, of which only a cluster's dimensions are used."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    )  # fmt: skip


class Sequence:
    """gemm._cuda.Sequence in Python."""

    def __init__(
        self, gpu: Gpu, context: int, pool: int, room: int, zeroed: tuple[int, int], steps: tuple[Any, ...]
    ) -> None:
        self._gpu, self._room, self._zeroed, self._steps = gpu, room, zeroed, steps

    def run(self, stream: int, a: int, b: int, c: int, out: int, bias: int, scale: bytes) -> None:
        """As Launches.run."""
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
    handle, x, y, block, cluster, shared, parameters, scale_at, pointers, maps = step
    filled = bytearray(parameters)
    if scale_at >= 0:
        filled[scale_at : scale_at + len(scale)] = scale
    for offset, slot, distance in pointers:
        struct.pack_into("Q", filled, offset, at[slot] + distance)
    images = [_encoded(one, at[one.slot] + one.at) for one in maps]
    given = ctypes.create_string_buffer(bytes(filled), len(filled))
    addresses = [ctypes.addressof(given), *(address for _, address in images)]
    arguments = (ctypes.c_void_p * len(addresses))(*addresses)
    if cluster == 1:
        cuda().cuLaunchKernel(handle, x, y, 1, block, 1, 1, shared, stream, ctypes.addressof(arguments), None)
        return
    attribute = _Attribute(4, 0, (ctypes.c_uint * 16)(cluster, 1, 1))  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    triples = [(ctypes.c_uint * 3)(*sizes) for sizes in ((x, y, 1), (block, 1, 1))]
    config = _Config(*triples, shared, stream, ctypes.addressof(attribute), 1)
    cuda().cuLaunchKernelEx(ctypes.addressof(config), handle, ctypes.addressof(arguments), None)


def _encoded(x: Map, address: int) -> tuple[Any, int]:
    """A tensor map: the memory that holds it, and the aligned address in there."""
    memory = ctypes.create_string_buffer(128 + 64)
    place = -(-ctypes.addressof(memory) // 64) * 64
    dims, strides = (ctypes.c_uint64 * 3)(*x.dims), (ctypes.c_uint64 * 2)(*x.strides)
    box, one = (ctypes.c_uint32 * 3)(*x.box), (ctypes.c_uint32 * 3)(1, 1, 1)
    arrays = [ctypes.addressof(values) for values in (dims, strides, box, one)]
    cuda().cuTensorMapEncodeTiled(place, x.kind, 3, address, *arrays, 0, x.swizzle, 3, 0)
    return memory, place
