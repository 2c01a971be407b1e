"""The OpenCL backend: runs the kernels of kernels/opencl/ on every device that pyopencl finds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from gemm.backends.opencl.context import Handle
from gemm.backends.opencl.devices import broken, describe, discover, usable
from gemm.backends.opencl.launch import Launcher
from gemm.backends.opencl.layout import layouts
from gemm.backends.opencl.mapped import empty, shared_from
from gemm.backends.opencl.staging import Traffic
from gemm.catalog import Kernel
from gemm.core import threads
from gemm.core.backend import Backend, Drivers, Launch
from gemm.core.operands import expanded, extent
from gemm.core.problem import Device, DeviceView, Operand, Problem


class OpenCLBackend(Backend):
    """GPUs, accelerators and CPUs through pyopencl. Device operands are of the class pyopencl.array.Array."""

    name = "opencl"

    def __init__(self) -> None:
        self.left_out = left_out = dict[str, str]()
        self._drivers = Drivers("opencl", "OpenCL", lambda: usable(discover(), left_out))
        self._foreign: WeakValueDictionary[str, Device] = WeakValueDictionary()
        self._lock = threads.lock()

    def devices(self) -> tuple[Device, ...]:
        return self._drivers.devices()

    def broken(self) -> list[str]:
        return broken()

    def launcher(self, kernel: Kernel, device: Device, problem: Problem) -> Launch:
        return Launcher(kernel, device, problem)

    def view(self, array: Any, name: str) -> DeviceView | None:
        library = sys.modules.get("pyopencl.array")
        if library is None or not isinstance(array, library.Array):
            kind = type(array).__name__
            if hasattr(array, "get_sub_region"):
                raise TypeError(
                    f"{name} is a pyopencl {kind}, without a shape or dtype; pass a pyopencl.array.Array over it"
                )
            return None
        itemsize = array.dtype.itemsize
        if any(step % itemsize for step in (array.offset, *array.strides)):
            raise ValueError(
                f"{name} has offset {array.offset} and strides {array.strides}: "
                f"they must be whole elements of {itemsize} bytes; pass {name}.copy()"
            )
        device = self._device_of(array.context, array.queue)
        return DeviceView(
            owner=array, data=array.base_data, offset=array.offset, shape=tuple(array.shape),
            strides=tuple(array.strides), dtype=array.dtype, device=device, queue=array.queue,
        )  # fmt: skip

    def _device_of(self, context: Any, queue: Any) -> Device:
        """Return the Device for a context and queue.

        If gemm created `context`, the result is one of the backend's own devices. Otherwise it is a Device that keeps
        the caller's context alive.
        """
        self._drivers.use()
        for device in self._drivers.known:
            if device.handle.owns(context):
                return device
        members = context.devices
        cl_device = members[0] if queue is None else queue.device
        key = f"opencl:ctx{context.int_ptr}" + (f".{members.index(cl_device)}" if len(members) > 1 else "")
        with self._lock:
            known = self._foreign.get(key)
            if known is None:
                known = self._foreign[key] = describe(cl_device, key, Handle(cl_device, context))
            return known

    def empty(self, shape: tuple[int, ...], like: DeviceView) -> DeviceView:
        import pyopencl.array as cla

        with like.device.handle.reported("no memory for a result"):
            queue = like.queue or like.device.handle.queue
            array = cla.Array(queue, shape, like.dtype, allocator=like.owner.allocator)
        if like.queue is None:
            array = array.with_queue(None)
        view = self.view(array, "out")
        assert view is not None
        return view

    def shared(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: Device) -> np.ndarray | None:
        return empty(shape, dtype, device)

    def wraps(self, device: Device) -> int:
        return shared_from(device.handle) if device.unified else 0

    def copied(self) -> dict[str, dict[str, int]]:
        return {device.key: dict(device.handle.copied) for device in (*self._drivers.known, *self._foreign.values())}

    def keep(self, kernel: Kernel, device: Device, b: Operand, *, reproducible: bool) -> DeviceView:
        queue, events = (b.queue, b.owner.events) if isinstance(b, DeviceView) else (None, ())
        layout = layouts(kernel.params, reproducible)[1]
        with device.handle.reported(f"preparing b for {kernel.name} on {device.name}"):
            traffic = Traffic(device.handle, queue or device.handle.queue, list(events))
            kept = traffic.keep(expanded(b, 0), layout)
        strides = (b.shape[1] * b.dtype.itemsize, b.dtype.itemsize)
        return DeviceView(kept, kept.memory.data, 0, b.shape, strides, b.dtype, device, readonly=True)

    def to_device(self, array: np.ndarray, device: Device) -> DeviceView:
        import pyopencl.array as cla

        with device.handle.reported("no memory for an operand"):
            view = self.view(cla.to_device(device.handle.queue, np.ascontiguousarray(array)), "array")
        assert view is not None
        return view

    def to_host(self, view: DeviceView) -> np.ndarray:
        import pyopencl as cl

        result: np.ndarray = np.empty(view.shape, view.dtype)
        if view.size:
            low, high = extent(view)
            raw = np.empty(high - low, np.uint8)
            with view.device.handle.reported("reading from the device"):
                data = (
                    view.data if isinstance(view.data, cl.Buffer) else view.data.as_buffer(view.device.handle.context)
                )
                cl.enqueue_copy(
                    view.queue or view.device.handle.queue, raw, data, src_offset=view.offset + low,
                    wait_for=view.owner.events, is_blocking=True,
                )  # fmt: skip
            result[...] = np.ndarray(view.shape, view.dtype, raw, -low, view.strides)
        return result

    def copies(self, device: Device, nbytes: int) -> list[Callable[[], object]]:
        import pyopencl as cl

        context, queue, flags = device.handle.context, device.handle.queue, cl.mem_flags
        buffer, host = (cl.Buffer(context, flags.READ_WRITE | x, nbytes) for x in (0, flags.ALLOC_HOST_PTR))
        both = cl.map_flags.READ | cl.map_flags.WRITE
        locked, _ = cl.enqueue_map_buffer(queue, host, both, 0, nbytes, np.uint8, is_blocking=True)
        return [
            partial(cl.enqueue_copy, queue, to, source, is_blocking=True)
            for memory in (np.ones(nbytes, np.uint8), locked)
            for to, source in ((buffer, memory), (memory, buffer))
        ]

    def synchronize(self, device: Device) -> None:
        with device.handle.reported("waiting for the device"):
            device.handle.queue.finish()
