"""Right-hand sides kept on a GPU as a kernel reads them, for many products: `gemm.prepare`."""

from __future__ import annotations

from dataclasses import dataclass

from gemm.backends.cuda.api import LEGACY_STREAM, cuda
from gemm.backends.cuda.arrays import DeviceArray
from gemm.backends.cuda.launch_graph import Launches
from gemm.backends.cuda.launch_plan import Recipe, types
from gemm.backends.cuda.operand_layout import BIAS, A, Operand, copied, lying, planes_of, split
from gemm.catalog import Kernel
from gemm.core.backend import Kept
from gemm.core.problem import Device, DeviceView


@dataclass(frozen=True, eq=False)
class Planes(Kept):
    """A prepared matrix that was split; `planes` of them. Such a one can be used whole only."""

    planes: int


def keep(row: Kernel, device: Device, b: DeviceView) -> DeviceView:
    """The (k, n) matrix `b` of that device as `row` reads it: itself where it lies so already. Raises KernelFailed."""
    k, n = b.shape
    size = b.dtype.itemsize
    x = Operand("b", A, 0, types(row)[1], n, k, 1, b.strides[0] // size, b.strides[1] // size, 0,
                (b.data + b.offset) & -(b.data + b.offset) & 31 or 16)  # fmt: skip
    x = x._replace(aligned=min(16, x.aligned))
    planes = row.params.get("planes", 0)
    if row.params.get("widen"):
        raise TypeError(f"{row.name} takes no prepared b")
    if not planes and lying(row, x) is not None:
        return DeviceView(Kept(b.owner), b.data, b.offset, b.shape, b.strides, b.dtype, device, readonly=True)
    if planes:
        y, nbytes = planes_of(row, x, BIAS, 0)
        step = split(x, y)
    else:
        y, step, nbytes = copied(row, x, 0)
        step = step._replace(pointers=(step.pointers[0], (8, BIAS, 0)))
    memory = DeviceArray((nbytes,), "uint8", device)
    launches = Launches(device.handle, Recipe((step,), row, False, 0, (0, 0), "b"))
    stream = LEGACY_STREAM if b.queue is None else b.queue
    launches.run(stream, b.data + b.offset, 0, 0, 0, memory.view().data, bytes(32))
    with device.handle:
        cuda().cuStreamSynchronize(stream)  # products on any stream may follow
    memory._lent = True  # and be at work when it is given up
    owner = Planes(memory, planes) if planes else Kept(memory)
    strides = (y.along * size, y.across * size)
    if planes:  # which strides cannot tell of; these only say along which axis the planes are contiguous
        strides = (max(n, 2) * size, size) if y.turned else (size, max(k, 2) * size)
    return DeviceView(owner, memory.view().data, 0, b.shape, strides, b.dtype, device, readonly=True)
