"""An OpenCL device in a context: its queue, its programs (built once and cached on disk) and its staging memory."""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gemm.core import disk_cache, threads
from gemm.core.errors import KernelFailed

_KEPT = 256 << 20  # bytes of unused staging memory that a device keeps between calls
KEEP_PROGRAMS = ("Portable Computing Language",)
"""Platforms whose drivers keep compiled programs on disk. PoCL compiles all kernels once more to return a binary."""
_IMAGE_PITCH_ALIGNMENT, _IMAGE_BASE_ADDRESS_ALIGNMENT = 0x104A, 0x104B


def numbers(cl_device: Any, query: int, kind: Any) -> list[int]:
    """Query a device property that pyopencl does not know. Return its value as numbers of the ctypes type `kind`.

    Returns [] if the query fails.
    """
    import pyopencl as cl

    try:
        ask = ctypes.CDLL("OpenCL.dll" if os.name == "nt" else cl._cl.__file__).clGetDeviceInfo
    except (OSError, AttributeError):
        return []
    found, written = (kind * 16)(), ctypes.c_size_t()
    ask.argtypes = (ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)
    status = ask(cl_device.int_ptr, query, ctypes.sizeof(found), ctypes.byref(found), ctypes.byref(written))
    return list(found)[: written.value // ctypes.sizeof(kind)] if status == 0 else []


def unmapped(mapping: Any, queue: Any) -> Any:
    """Unmap `mapping`, and return the event of the unmap command. Raises cl.Error.

    When Python frees a mapping, pyopencl unmaps it, and aborts the process if this fails. If unmapping fails here
    because the device is lost, the mapping is therefore never freed.
    """
    keep(mapping)
    event = mapping.release(queue)
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(mapping))
    return event


def keep(thing: Any) -> None:
    """Make sure that Python never frees the object `thing`."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


@dataclass(eq=False)
class Memory:
    """A buffer or image of the memory pool.

    Attributes:
        kind: (channels of a texel, or 0 for a buffer; bytes of a channel; whether texels are integers; whether the
            host can map the memory). Memory of equal kind is interchangeable.
        width, height: the size in texels. For a buffer, the width is its size in bytes, and the height is 1.
        after: the events of the last command that used the memory.
        nbytes: the size in bytes. This is a field, because the pool reads it often.
    """

    data: Any
    kind: tuple[int, int, bool, bool]
    width: int
    height: int
    after: list[Any] = field(default_factory=list)
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = self.width * self.height * (self.kind[0] * self.kind[1] or 1)


class Latest(threading.local):
    """The last launch of each thread.

    There is one for each device, not one for each launcher: the commands keep staging memory alive.

    Attributes:
        launch: (the launcher, the commands of the launch), if the launch may be repeated; else None.
    """

    launch: tuple[Any, Any] | None = None


class Handle:
    """One device in one context. gemm creates the context on first use, unless the caller gives one."""

    def __init__(self, cl_device: Any, context: Any = None) -> None:
        self.cl_device = cl_device
        self._context = context
        self._queue: Any = None
        self._programs: dict[tuple[str, str], Any] = {}
        self._spare: list[Memory] = []
        self._lock = threads.lock(threading.RLock)
        self._process = os.getpid()
        self._own = threading.local()
        self.latest = Latest()
        # {Replay or HostReplay: bytes of memory that it holds}, oldest first
        self._charged: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.copied = {"filled": 0, "packed": 0, "fetched": 0}

    @contextmanager
    def reported(self, what: str) -> Iterator[None]:
        """Convert pyopencl's errors inside the block to KernelFailed("what: ...")."""
        import pyopencl as cl

        self.use()
        try:
            yield
        except KernelFailed as error:
            error.args = (f"{what}: {error}",)
            raise
        except cl.Error as error:
            code = cl.status_code
            full = (code.MEM_OBJECT_ALLOCATION_FAILURE, code.OUT_OF_RESOURCES, code.OUT_OF_HOST_MEMORY,
                    code.INVALID_BUFFER_SIZE, code.INVALID_IMAGE_SIZE)  # fmt: skip
            lost = error.code == code.DEVICE_NOT_AVAILABLE or not self._works()
            raise KernelFailed(f"{what}: {error}", memory=error.code in full and not lost, lost=lost) from error
        except MemoryError as error:
            raise KernelFailed(f"{what}: out of host memory", memory=True) from error
        except UnicodeError as error:  # the driver's error message is not valid UTF-8
            raise KernelFailed(f"{what}: {error}") from error

    @property
    def inherited(self) -> bool:
        """Whether the parent of this forked process used the device. If so, this process must not call the driver."""
        return self._process != os.getpid()

    def use(self) -> None:
        """Check before a driver call that this process is not the child of a fork. In a child, the call might hang.

        Raises KernelFailed in a child.
        """
        if self.inherited:
            raise KernelFailed("OpenCL was in use when this process was forked, and does not survive a fork", lost=True)

    def _works(self) -> bool:
        """Return whether the device can still copy a byte. A lack of memory for this test counts as yes.

        The test is necessary because error codes do not tell whether a device is lost. If a device hangs, was reset or
        is gone, drivers return many codes, such as OUT_OF_RESOURCES and INVALID_COMMAND_QUEUE. A product that is only
        too large can cause the same codes.
        """
        import pyopencl as cl

        try:
            context = self._context or cl.Context([self.cl_device])
            queue = cl.CommandQueue(context, self.cl_device)  # a new queue: no other commands are ahead
            buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 1)
            cl.enqueue_copy(queue, buffer, np.zeros(1, np.uint8), is_blocking=True)
        except cl.Error as error:
            return bool(error.code in (cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE, cl.status_code.OUT_OF_HOST_MEMORY))
        return True

    @property
    def context(self) -> Any:
        import pyopencl as cl

        self.use()
        with self._lock:
            if self._context is None:
                with self.reported("no OpenCL context"):
                    self._context = cl.Context([self.cl_device])
            return self._context

    @property
    def queue(self) -> Any:
        """gemm's own in-order queue."""
        import pyopencl as cl

        self.use()
        with self._lock:
            if self._queue is None:
                with self.reported("no OpenCL queue"):
                    self._queue = cl.CommandQueue(self.context, self.cl_device)
            return self._queue

    @threads.once
    def runs_on_cpu(self) -> bool:
        """Whether work-items run on the host's cores. There, each work-item costs a function call.

        Some tools, such as Oclgrind, report a device that is both a CPU and a GPU. Such a device counts as a GPU.
        """
        import pyopencl as cl

        return not self.cl_device.type & (cl.device_type.GPU | cl.device_type.ACCELERATOR)

    @threads.once
    def image_alignment(self) -> tuple[int, int]:
        """The alignment that an image over a buffer needs: (row pitch in texels, address in bytes).

        (0, 0) if the device does not support images over buffers.
        """
        if "cl_khr_image2d_from_buffer" not in self.cl_device.extensions.split():
            return 0, 0
        queries = _IMAGE_PITCH_ALIGNMENT, _IMAGE_BASE_ADDRESS_ALIGNMENT
        pitch, base = ((*numbers(self.cl_device, query, ctypes.c_uint), 0)[0] for query in queries)
        return pitch, max(16 * base, self.cl_device.mem_base_addr_align // 8)  # 16: bytes of the widest texel

    def count(self, how: str, nbytes: int) -> None:
        """Count copied bytes of operands: "filled" by the host, "packed" on the device, or "fetched" to the host."""
        with self._lock:
            self.copied[how] += nbytes

    def owns(self, context: Any) -> bool:
        return self._context is not None and bool(self._context == context)

    def program(self, source: str, options: str) -> Any:
        """Return the program that is `source`, built with `options`.

        A process builds a program, or loads it from the disk cache, only once. Raises KernelFailed.
        """
        with self._lock:
            built = self._programs.get((source, options))
            if built is None:
                built = self._programs[source, options] = self._build(source, options)
            return built

    def kernel(self, source: str, options: str, entry: str) -> Any:
        """Return this thread's object of the kernel `entry` of the program (see `program`).

        Each thread has its own kernel object, because setting a kernel's arguments is not thread-safe.
        """

        kernels: dict[tuple[str, str], Any] = self._own.__dict__.setdefault("kernels", {})
        if (source, options) not in kernels:
            kernels[source, options] = self.fresh(source, options, entry)
        return kernels[source, options]

    def fresh(self, source: str, options: str, entry: str) -> Any:
        """Return a new object of the kernel `entry`. Nobody but the caller sets its arguments."""
        import pyopencl as cl

        return cl.Kernel(self.program(source, options), entry)

    def _build(self, source: str, options: str) -> Any:
        import pyopencl as cl

        device = self.cl_device
        facts = (source, options, device.platform.name, device.platform.version, device.name, device.version,
                 device.driver_version)  # fmt: skip
        entry = f"opencl-{hashlib.sha256(repr(facts).encode()).hexdigest()[:40]}.bin"
        with warnings.catch_warnings():
            # pyopencl warns about every build log that is not empty, and many drivers write needless logs.
            warnings.simplefilter("ignore", cl.CompilerWarning)
            binary = disk_cache.load(entry)
            if binary is not None:
                try:
                    return cl.Program(self.context, [device], [binary]).build(options)
                except cl.Error:  # the driver rejects the cached binary: build again below
                    pass
            with self.reported("the kernel did not build"):
                # cache_dir=False, because pyopencl's own cache unpickles files from the user's cache folder.
                program = cl.Program(self.context, source).build(options, cache_dir=False)
                kept = device.platform.name in KEEP_PROGRAMS
                binaries = [] if kept else program.get_info(cl.program_info.BINARIES)
        if binaries and binaries[0]:
            disk_cache.store(entry, bytes(binaries[0]))
        return program

    def take(self, need: Memory) -> Memory:
        """Return a buffer or image of the kind and at least the size of `need`, from the pool if possible, else new.

        Raises cl.Error.
        """
        with self._lock:
            fits = [
                spare for spare in self._spare
                if spare.kind == need.kind and spare.width >= need.width and spare.height >= need.height
                and spare.nbytes <= 4 * need.nbytes + (64 << 10)
            ]  # fmt: skip
            if fits:
                best = min(fits, key=lambda spare: spare.nbytes)
                self._spare.remove(best)
                return best
        need.data = self.allocate(need)
        return need

    @property
    def replay_limit(self) -> int:
        """The maximum number of bytes that all repeated products of the device (class Replay) may hold together."""
        return max(_KEPT, int(self.cl_device.global_mem_size) // 32)

    @property
    def replay_bytes(self) -> int:
        """The bytes that repeated products of the device hold now."""
        return sum(self._charged.values())

    def charge(self, holder: Any, nbytes: int) -> None:
        """Record that `holder` (a Replay) holds `nbytes` of memory, which must be at most `replay_limit`.

        If the total exceeds `replay_limit`, the oldest holders drop their memory.
        """
        with self._lock:
            for oldest in list(self._charged):
                if self.replay_bytes + nbytes <= self.replay_limit:
                    break
                oldest.drop()
                del self._charged[oldest]
            self._charged[holder] = nbytes

    def allocate(self, need: Memory) -> Any:
        """Return a new buffer or image of the kind and size of `need`. Raises cl.Error."""
        import pyopencl as cl

        channels, itemsize, bits, host = need.kind
        flags = cl.mem_flags.READ_WRITE | (cl.mem_flags.ALLOC_HOST_PTR if host else 0)
        if not channels:
            return cl.Buffer(self.context, flags, need.width)
        return self.image((channels, itemsize, bits), need.width, need.height, flags=flags)

    def image(
        self, texel: tuple[int, int, bool], width: int, height: int, memory: Any = None, pitch: int = 0, *,
        flags: int = 0,
    ) -> Any:  # fmt: skip
        """Return a new 2D image. Raises cl.Error.

        Args:
            texel: the first three items of Memory.kind.
            width, height: the size in texels.
            memory: a buffer that the image uses as its memory, or None.
            pitch: bytes from one row to the next in `memory`.
        """
        import pyopencl as cl

        channels, itemsize, bits = texel
        order = cl.channel_order.RGBA if channels == 4 else cl.channel_order.R
        kinds = cl.channel_type
        kind = {2: (kinds.HALF_FLOAT, kinds.UNSIGNED_INT16), 4: (kinds.FLOAT, kinds.UNSIGNED_INT32)}[itemsize][bits]
        shape = cl.ImageDescriptor()
        shape.image_type = cl.mem_object_type.IMAGE2D
        shape.shape = (width, height, 1)
        shape.array_size = shape.num_mip_levels = shape.num_samples = 0
        shape.pitches = (pitch, 0)
        shape.buffer = memory
        return cl.Image(self.context, flags, cl.ImageFormat(order, kind), desc=shape)

    def give(self, memory: Memory, after: list[Any]) -> None:
        """Return `memory` to the pool. The last use of the memory ends with the events `after`.

        If the pool then has more than _KEPT bytes, the oldest memory in it is freed.
        """
        memory.after = after
        with self._lock:
            self._spare.append(memory)
            while sum(spare.nbytes for spare in self._spare) > _KEPT:
                self._spare.pop(0)
