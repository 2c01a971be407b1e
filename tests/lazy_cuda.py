"""A CUDA driver whose streams do nothing before they must, and then in any order that the events allow.

It stands for libcuda where products of host operands are tested without a GPU: what is enqueued runs when somebody
waits for it, or by chance earlier, so that a forgotten wait shows as a wrong result. Memory is the process's own.
"""

import ctypes
import random
from collections import deque

import numpy as np

from gemm.core.errors import KernelFailed


class LazyCuda:
    """The functions that staging calls. `faults`: {function: the number of the call that fails, from 1}."""

    def __init__(self, seed=0, memory=1 << 40, **faults):
        self.random = random.Random(seed)
        self.streams = {}
        self.recorded = {}  # event: its latest record's number, whether that happened
        self.blocks = {}
        self.pinned = set()
        self.left, self.faults, self.calls = memory, faults, dict.fromkeys(faults, 0)
        self.sent = self.fetched = 0
        self._next = 1 << 16

    def _number(self):
        self._next += 8
        return self._next

    def _called(self, name):
        if name in self.faults:
            self.calls[name] += 1
            if self.calls[name] == self.faults[name]:
                memory = "Alloc" in name
                raise KernelFailed(f"{name}: injected", memory=memory, lost=not memory)

    # Streams and events.

    def cuStreamCreate(self, flags):
        assert flags == 1
        stream = self._number()
        self.streams[stream] = deque()
        return stream

    def cuStreamDestroy(self, stream):
        self.drain()
        del self.streams[stream]

    def cuEventCreate(self, flags):
        assert flags == 2
        event = self._number()
        self.recorded[event] = (0, True)
        return event

    def cuEventDestroy(self, event):
        del self.recorded[event]

    def cuEventRecord(self, event, stream):
        number = self.recorded[event][0] + 1
        self.recorded[event] = (number, False)

        def record():
            if self.recorded[event][0] == number:
                self.recorded[event] = (number, True)
            self.happened.add((event, number))
            return True

        self.streams[stream].append(record)

    @property
    def happened(self):
        return self.__dict__.setdefault("_happened", set())

    def cuStreamWaitEvent(self, stream, event, flags):
        number = self.recorded[event][0]
        self.streams[stream].append(lambda: number == 0 or (event, number) in self.happened)

    def cuEventQuery(self, event):
        for _ in range(self.random.randrange(4)):
            self.step()
        return self.recorded[event][1]

    def cuEventSynchronize(self, event):
        self._called("cuEventSynchronize")
        while not self.recorded[event][1]:
            assert self.step(), "waits for ever"

    def cuStreamSynchronize(self, stream):
        self._called("cuStreamSynchronize")
        while self.streams[stream]:
            assert self.step(), "waits for ever"

    def step(self):
        """Do one thing that any stream may do now."""
        order = [stream for stream, work in self.streams.items() if work]
        self.random.shuffle(order)
        for stream in order:
            if self.streams[stream][0]():
                self.streams[stream].popleft()
                return True
        return False

    def drain(self):
        """Do all that is left."""
        while self.step():
            pass
        assert not any(self.streams.values()), "waits for ever"

    def enqueue(self, stream, work):
        """`work` in order on `stream`."""

        def run():
            work()
            return True

        self.streams[stream].append(run)

    # Memory.

    def allocate(self, size, stream):
        """As a Gpu's."""
        self._called("cuMemAlloc")
        if size > self.left:
            raise KernelFailed("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY", memory=True)
        block = np.full(size + 256, 0xEE, np.uint8)
        address = -(-block.ctypes.data // 256) * 256
        self.blocks[address] = block
        self.left -= size
        return address

    def free(self, address, stream):
        self.left += self.blocks[address].nbytes - 256
        self.enqueue(stream, lambda: self.blocks.pop(address).fill(0xDD))

    def cuMemHostAlloc(self, size, flags):
        self._called("cuMemHostAlloc")
        block = np.full(size, 0xCC, np.uint8)
        self.blocks[block.ctypes.data] = block
        self.pinned.add(block.ctypes.data)
        return block.ctypes.data

    def cuMemFreeHost(self, address):
        self.pinned.remove(address)
        del self.blocks[address]

    def cuMemcpyHtoDAsync(self, to, source, size, stream):
        self._called("cuMemcpyHtoDAsync")
        self.sent += size
        self.enqueue(stream, lambda: _move(to, source, size))

    def cuMemcpyDtoHAsync(self, to, source, size, stream):
        self._called("cuMemcpyDtoHAsync")
        self.fetched += size
        self.enqueue(stream, lambda: _move(to, source, size))

    def cuMemcpy2DAsync(self, address, stream):
        from gemm.backends.cuda.transfer import Rows2D

        rows = Rows2D.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(Rows2D)))
        source, target = rows.source.host or rows.source.device, rows.target.host or rows.target.device
        assert (rows.source.kind, rows.target.kind) in ((1, 2), (2, 1))
        assert (rows.source.kind == 1) == bool(rows.source.host)
        if rows.source.kind == 1:
            self.sent += rows.width * rows.rows
        else:
            self.fetched += rows.width * rows.rows

        def work():
            for row in range(rows.rows):
                _move(target + row * rows.target.pitch, source + row * rows.source.pitch, rows.width)

        self.enqueue(stream, work)


def _move(to, source, size):
    ctypes.memmove(to, source, size)


class LazyGpu:
    """A Gpu as staging sees it, of `driver`, and the launches of its kernels."""

    ordinal, units = 0, 132

    def __init__(self, driver):
        self.driver = driver
        self.allocate, self.free = driver.allocate, driver.free
        self.facts = {"clock_khz": 1980000}
        self.launched = []
        self.computed = 0

    def enqueue(self, work, stream):
        """out = alpha·a·b + beta·c + bias on `stream`."""
        a, b, c, out, alpha, beta, bias = work
        self.driver._called("cuLaunchKernel")
        self.launched.append((*out.shape, a.shape[-1]))

        def compute():
            x, y, z, w, added = (None if view is None else _array(view) for view in (a, b, c, out, bias))
            total = alpha * (x @ y) if z is None else alpha * (x @ y) + beta * z
            if added is not None:
                total += added
            w[...] = total
            self.computed += 1

        self.driver.enqueue(stream, compute)


def _array(view):
    if not view.size:
        return np.zeros(view.shape, view.dtype)
    low = sum(min(0, (n - 1) * step) for n, step in zip(view.shape, view.strides, strict=True))
    high = sum(max(0, (n - 1) * step) for n, step in zip(view.shape, view.strides, strict=True)) + view.dtype.itemsize
    memory = (ctypes.c_char * (high - low)).from_address(view.data + view.offset + low)
    return np.ndarray(view.shape, view.dtype, memory, -low, view.strides)
