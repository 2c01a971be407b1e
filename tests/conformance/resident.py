"""Host arrays → the same views of device memory → the call → back, so that every check runs on resident operands too.

Whole memory blocks travel, poison included, and the views keep their offset and strides: what a kernel does to a
device array, the guard on the host sees.
"""

from types import SimpleNamespace
from typing import Protocol

import numpy as np

from conformance.arena import root


class Library(Protocol):
    """A library of device arrays."""

    def upload(self, memory):
        """A block of device memory with the bytes of `memory`."""

    def download(self, block, size):
        """The block's bytes, after all work enqueued before."""

    def view(self, block, x, offset):
        """The library's array of x's shape, dtype and strides, `offset` bytes into the block.

        None if the library has no such strides.
        """

    def values(self, array):
        """A result of this library as an ndarray; anything else is a TypeError."""


class PyOpenCL:
    """Arrays in a context and a queue of their own, as a program that uses OpenCL itself has them."""

    def __init__(self, device):
        import pyopencl as cl
        import pyopencl.array

        self._context = cl.Context([device])  # Intel's queues do not keep theirs alive
        self._cl, self._queue = cl, cl.CommandQueue(self._context)
        self._array = pyopencl.array.Array

    def upload(self, memory):
        block = self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, max(memory.nbytes, 1))
        if memory.nbytes:
            self._cl.enqueue_copy(self._queue, block, memory)
        return block

    def download(self, block, size):
        memory = np.empty(size, np.uint8)
        if size:
            self._cl.enqueue_copy(self._queue, memory, block)
        return memory

    def view(self, block, x, offset):
        return self._array(self._queue, x.shape, x.dtype, strides=x.strides, data=block, offset=offset)

    def values(self, array):
        if not isinstance(array, self._array):
            raise TypeError(f"the result is a {type(array).__name__}, not a pyopencl Array")
        return array.get(self._queue) if array.size else np.empty(array.shape, array.dtype)


class CuPy:
    def __init__(self):
        import cupy

        self._cupy = cupy

    def upload(self, memory):
        return self._cupy.asarray(memory if memory.size else np.zeros(1, np.uint8))

    def download(self, block, size):
        return self._cupy.asnumpy(block)[:size]

    def view(self, block, x, offset):
        return self._cupy.ndarray(x.shape, x.dtype, block.data + offset, x.strides)

    def values(self, array):
        if not isinstance(array, self._cupy.ndarray):
            raise TypeError(f"the result is a {type(array).__name__}, not a CuPy array")
        return self._cupy.asnumpy(array)


class Torch:
    """PyTorch on CUDA; it has no negative strides."""

    def __init__(self, device):
        import torch

        self._torch, self._device = torch, device

    def upload(self, memory):
        return self._torch.from_numpy(memory.copy()).to(self._device)

    def download(self, block, size):
        return block.cpu().numpy()[:size]

    def view(self, block, x, offset):
        size, dtype = x.dtype.itemsize, getattr(self._torch, x.dtype.name)
        if not x.size:
            return self._torch.empty(x.shape, dtype=dtype, device=self._device)
        if any(step < 0 for step in x.strides):
            return None
        typed = block[: len(block) // size * size].view(dtype)
        return typed.as_strided(x.shape, [step // size for step in x.strides], offset // size)

    def values(self, array):
        if not isinstance(array, self._torch.Tensor):
            raise TypeError(f"the result is a {type(array).__name__}, not a torch Tensor")
        return array.cpu().numpy()


class CudaInterface:
    """Whatever has only the CUDA Array Interface; results are arrays of our own."""

    def __init__(self, device):
        from gemm.backends.cuda.arrays import DeviceArray

        self._array, self._device = DeviceArray, device

    def upload(self, memory):
        block = self._array((max(memory.nbytes, 1),), np.uint8, self._device)
        if memory.nbytes:
            block.copy_from_host(memory)
        return block

    def download(self, block, size):
        return block.copy_to_host()[:size]

    def view(self, block, x, offset):
        start = block.__cuda_array_interface__["data"][0] + offset
        shown = {"shape": x.shape, "strides": x.strides, "typestr": x.dtype.str, "data": (start, False), "version": 3}
        return SimpleNamespace(__cuda_array_interface__={**shown, "stream": 1}, block=block)

    def values(self, array):
        if not isinstance(array, self._array):
            raise TypeError(f"the result is a {type(array).__name__}, not a DeviceArray")
        return array.copy_to_host()


def resident(call, library):
    """`call` with its operands put into device memory; takes and returns host arrays."""

    def on_device(a, b, c=None, *, out=None, **options):
        blocks = {}
        apart = []  # arrays with the values of views that the library cannot have

        def sent(x):
            if x is None:
                return None
            whole = root(x)
            if id(whole) not in blocks:
                blocks[id(whole)] = whole, library.upload(_flat(whole))
            start = x.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
            there = library.view(blocks[id(whole)][1], x, start if x.size else 0)
            if there is None:
                packed = np.ascontiguousarray(x)
                there = library.view(library.upload(_flat(packed)), packed, 0)
                apart.append(there)
            return there

        target = sent(out)
        if "bias" in options:
            options["bias"] = sent(options["bias"])
        result = call(sent(a), sent(b), sent(c), out=target, **options)
        if out is not None and result is not target:
            raise AssertionError("the result is not out itself")
        values = None if out is not None else library.values(result)
        for whole, block in blocks.values():
            flat, now = _flat(whole), library.download(block, whole.nbytes)
            if not np.array_equal(flat, now):
                if not whole.flags.writeable:
                    raise AssertionError("an input was overwritten")
                flat[...] = now
        if any(there is target for there in apart):
            assert out is not None
            out[...] = library.values(target)
        if values is not None:
            return values
        assert out is not None
        return out

    return on_device


def _flat(whole):
    """The bytes of a root array in memory order, as a view."""
    if not whole.flags.forc:
        raise ValueError("a root array has holes")
    flat = whole.ravel(order="K").view(np.uint8)
    assert whole.size == 0 or np.shares_memory(flat, whole)
    return flat
