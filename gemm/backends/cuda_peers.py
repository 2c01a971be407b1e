"""Several GPUs of one process: access to each other's memory, copies between them, and what these take."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cache
from itertools import product
from typing import NamedTuple

from gemm.backends.cuda_api import cuda
from gemm.backends.cuda_driver import Gpu
from gemm.backends.cuda_travel import DEVICE, Rows2D
from gemm.errors import KernelFailed
from gemm.problem import DeviceView

SLOW = 10e9
"""Bytes a second that are assumed of a link that could not be timed."""
_READ_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_TIMED = 64 << 20


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("kind", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int))


class _Side(ctypes.Structure):
    """Half of CUDA_MEMCPY3D_PEER."""

    _fields_ = (
        ("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("z", ctypes.c_size_t), ("level", ctypes.c_size_t),
        ("kind", ctypes.c_uint), ("host", ctypes.c_void_p), ("device", ctypes.c_void_p), ("array", ctypes.c_void_p),
        ("context", ctypes.c_void_p), ("pitch", ctypes.c_size_t), ("height", ctypes.c_size_t),
    )  # fmt: skip


class _Box(ctypes.Structure):
    """CUDA_MEMCPY3D_PEER."""

    _fields_ = (
        ("source", _Side), ("to", _Side), ("width", ctypes.c_size_t), ("rows", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
    )  # fmt: skip


@cache
def connect(gpu: Gpu, other: Gpu) -> bool:
    """Let copies and kernels of `gpu` reach the memory of `other` directly; whether they can.

    Where they cannot, the driver takes copies through the host's memory.
    """
    if gpu is other:
        return True
    if not cuda().cuDeviceCanAccessPeer(gpu.id, other.id):
        return False
    with gpu:
        try:
            cuda().cuCtxEnablePeerAccess(other.context, 0)
        except KernelFailed as error:
            if "ALREADY_ENABLED" not in str(error):  # by another library
                return False
    if other.pools:  # whose memory is not the context's
        with other, suppress(KernelFailed):
            access = _Access(1, gpu.id, _READ_WRITE)  # CU_MEM_LOCATION_TYPE_DEVICE
            cuda().cuMemPoolSetAccess(other.pool, ctypes.addressof(access), 1)
    return True


@cache
def rate(gpu: Gpu, other: Gpu) -> float:
    """Bytes a second that `gpu` fetches from `other`, timed once."""
    connect(gpu, other)
    try:
        with ExitStack() as given:  # back, whatever fails

            def made(on: Gpu, make: str, size: int, give_back: str) -> int:
                with on:
                    handle = int(getattr(cuda(), make)(size))
                given.callback(_without_errors, on, give_back, handle)
                return handle

            to, source = (made(each, "cuMemAlloc", _TIMED, "cuMemFree") for each in (gpu, other))
            stream = made(gpu, "cuStreamCreate", 1, "cuStreamDestroy")
            events = [made(gpu, "cuEventCreate", 0, "cuEventDestroy") for _ in range(2)]
            with gpu:
                for at in (-1, 0, 1):  # the first one wakes the link
                    cuda().cuMemcpyPeerAsync(to, gpu.context, source, other.context, _TIMED, stream)
                    if at < 1:
                        cuda().cuEventRecord(events[at + 1], stream)
                cuda().cuEventSynchronize(events[1])
                took = float(cuda().cuEventElapsedTime(*events))
        return 1e3 * _TIMED / max(took, 1e-3)
    except KernelFailed:  # no memory, say: whoever needs it says so
        return SLOW


def _without_errors(gpu: Gpu, function: str, handle: int) -> None:
    with suppress(KernelFailed), gpu:
        getattr(cuda(), function)(handle)


class Rows(NamedTuple):
    """A copy of `rows` rows of `width` bytes; `pitches` are the bytes between them, there and here."""

    to: int
    source: int
    width: int
    rows: int
    pitches: tuple[int, int]


def rows(to: DeviceView, source: DeviceView) -> Iterator[Rows]:
    """to[...] = source in as few copies as two-dimensional ones can be.

    Both have one shape, and strides of the same signs; where those of `source` are 0, one element stands for all.
    """
    places, axes = [x.data + x.offset for x in (to, source)], []
    for n, *steps in zip(source.shape, to.strides, source.strides, strict=True):
        if n == 1 or not steps[1]:
            continue
        if steps[1] < 0:  # from its other end
            places = [place + (n - 1) * step for place, step in zip(places, steps, strict=True)]
        axes.append((n, abs(steps[0]), abs(steps[1])))
    axes.sort(key=lambda axis: -axis[2])
    width = source.dtype.itemsize
    while axes and axes[-1][1:] == (width, width):
        width *= axes.pop()[0]
    count, *pitches = axes.pop() if axes else (1, width, width)
    for at in product(*(range(n) for n, *_ in axes)):
        there, here = (
            place + sum(i * axis[side] for i, axis in zip(at, axes, strict=True))
            for side, place in zip((1, 2), places, strict=True)
        )
        yield Rows(there, here, width, count, (pitches[0], pitches[1]))


def copy(to: DeviceView, source: DeviceView, stream: int) -> None:
    """Enqueue to[...] = source on `stream` of the GPU whose context is current; see `rows`. Raises KernelFailed."""
    if source.size:
        send = _within if to.device.handle is source.device.handle else _between
        for each in rows(to, source):
            send(each, to.device.handle, source.device.handle, stream)


def _within(what: Rows, gpu: Gpu, _: Gpu, stream: int) -> None:
    if what.rows == 1:
        cuda().cuMemcpyDtoDAsync(what.to, what.source, what.width, stream)
        return
    box = Rows2D(
        from_kind=DEVICE, from_device=what.source, from_pitch=what.pitches[1],
        to_kind=DEVICE, to_device=what.to, to_pitch=what.pitches[0], width=what.width, rows=what.rows,
    )  # fmt: skip
    cuda().cuMemcpy2DAsync(ctypes.addressof(box), stream)


def _between(what: Rows, gpu: Gpu, other: Gpu, stream: int) -> None:
    if what.rows == 1:
        cuda().cuMemcpyPeerAsync(what.to, gpu.context, what.source, other.context, what.width, stream)
        return
    there, here = (
        _Side(kind=DEVICE, device=address, context=each.context, pitch=pitch, height=what.rows)
        for address, each, pitch in zip((what.to, what.source), (gpu, other), what.pitches, strict=True)
    )
    box = _Box(here, there, what.width, what.rows, 1)
    cuda().cuMemcpy3DPeerAsync(ctypes.addressof(box), stream)
