"""Kernels compiled and launched on the emulated machine by hand, without the package: for tests of both.

machine = Machine()
kernel = machine.kernel('#include "ptx.cuh"\nextern "C" __global__ void twice(float *x) {...}', "twice")
kernel((1,), (32,), array)                 # arrays are copied to the device and back
"""

import ctypes
import os
from pathlib import Path

import numpy as np

from . import HERE, build

_SOURCES = HERE.parent.parent / "csrc" / "cuda"
_TYPES = ("uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64", "bfloat16")


class Failed(Exception):
    """A call that did not return 0."""


class Machine:
    """One process has one; its settings are read from the environment (README.md) at each call."""

    def __init__(self):
        folder = build()
        self._driver = ctypes.CDLL(str(folder / "libcuda.so.1"))
        self._compiler = ctypes.CDLL(str(folder / "libnvrtc.so.12"))
        self._kernels = {}
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name, *arguments):
        """Call a function of libcuda. Raises Failed with its words for the error."""
        status = getattr(self._driver, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            raise Failed(f"{name}: {status} {(text.value or b'').decode()}")

    def kernel(
        self, source, name, macros = None, arch = "sm_90a",
        headers = None,
    ):  # fmt: skip
        """`name` of `source`, which may include the headers of csrc/cuda, some of which `headers` may replace. Raises
        Failed with the compiler's words."""
        key = (source, name, arch, *(macros or {}).items(), *(headers or {}).items(), watched())
        if key not in self._kernels:
            self._kernels[key] = self._compile(source, name, macros or {}, arch, headers or {})
        return self._kernels[key]

    def _compile(self, source, name, macros, arch, changed):
        headers = {path.name: path.read_text(encoding="utf-8") for path in _SOURCES.glob("*.cuh")} | changed
        program = ctypes.c_void_p()
        self._compiler.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), f"{name}.cu".encode(), len(headers),
            (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values())),
            (ctypes.c_char_p * len(headers))(*(header.encode() for header in headers)),
        )  # fmt: skip
        flags = [f"--gpu-architecture={arch}", *(f"-D{macro}={value}" for macro, value in macros.items())]
        texts = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        if self._compiler.nvrtcCompileProgram(program, len(flags), texts):
            raise Failed(self._take(program, "ProgramLog").rstrip(b"\0").decode())
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), self._take(program, "CUBIN"))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return Kernel(self, function)

    def _take(self, program, what):
        size = ctypes.c_size_t()
        getattr(self._compiler, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self._compiler, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw

    def to_device(self, array):
        return Device(self, array)

    def tensor_map(self, device, box, swizzle=0, kind=None):
        """A map of a C-contiguous array: `box` from its last axis on, `swizzle` 0, 32, 64 or 128 bytes."""
        array = device.array
        rank = len(box)
        memory = ctypes.create_string_buffer(192)
        at = (ctypes.addressof(memory) + 63) // 64 * 64
        words = (ctypes.c_uint64 * rank)(*array.shape[::-1])
        strides = (ctypes.c_uint64 * rank)(*array.strides[::-1][1:], 0)
        number = 11 if kind == "tf32" else _TYPES.index(kind or array.dtype.name)
        ones = (ctypes.c_uint * rank)(*[1] * rank)
        which = {0: 0, 32: 1, 64: 2, 128: 3}[swizzle]
        self.call(
            "cuTensorMapEncodeTiled", ctypes.c_void_p(at), number, rank, ctypes.c_void_p(device.address), words,
            strides, (ctypes.c_uint * rank)(*box), ones, 0, which, 0, 0,
        )  # fmt: skip
        return (ctypes.c_char * 128).from_buffer_copy(ctypes.string_at(at, 128))


class Device:
    """An array's copy in the memory of the emulated GPU."""

    def __init__(self, machine, array):
        self.machine, self.array = machine, np.ascontiguousarray(array)
        address = ctypes.c_uint64()
        machine.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(1, self.array.nbytes)))
        self.address = address.value
        source = ctypes.c_void_p(self.array.ctypes.data)
        machine.call("cuMemcpyHtoD_v2", ctypes.c_void_p(self.address), source, ctypes.c_size_t(self.array.nbytes))

    def get(self):
        result = np.empty_like(self.array)
        size = ctypes.c_size_t(result.nbytes)
        self.machine.call("cuMemcpyDtoH_v2", ctypes.c_void_p(result.ctypes.data), ctypes.c_void_p(self.address), size)
        return result

    def free(self):
        self.machine.call("cuMemFree_v2", ctypes.c_void_p(self.address))


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    )  # fmt: skip


class Kernel:
    """A function of a module."""

    def __init__(self, machine, function):
        self._machine, self._function = machine, function

    def __call__(
        self, grid, block, *arguments, shared = 0, cluster = 1,
        overlaps = False,
    ):  # fmt: skip
        """Launch and wait. Arguments: ctypes values, bytes of structures, Device, or arrays, which are updated."""
        devices = {id(x): self._machine.to_device(x) for x in arguments if isinstance(x, np.ndarray)}
        values = [_argument(devices.get(id(x), x)) for x in arguments]
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        if shared > 48 << 10:
            self._machine.call("cuFuncSetAttribute", self._function, 8, shared)
        attributes = (_Attribute * 2)(
            _Attribute(4, 0, (ctypes.c_uint * 16)(cluster, 1, 1)), _Attribute(6, 0, (ctypes.c_uint * 16)(overlaps)),
        )  # fmt: skip
        config = _Config(
            (ctypes.c_uint * 3)(*grid, *[1] * (3 - len(grid))), (ctypes.c_uint * 3)(*block, *[1] * (3 - len(block))),
            shared, None, attributes, 2,
        )  # fmt: skip
        self._machine.call("cuLaunchKernelEx", ctypes.byref(config), self._function, pointers, None)
        self._machine.call("cuCtxSynchronize")
        for x in arguments:
            if isinstance(x, np.ndarray):
                x[...] = devices[id(x)].get()
        for device in devices.values():
            device.free()


def _argument(value):
    if isinstance(value, Device):
        return ctypes.c_uint64(value.address)
    return ctypes.create_string_buffer(value, len(value)) if isinstance(value, bytes) else value


def watched():
    """Whether races are looked for, in what is compiled now and then runs."""
    return os.environ.get("CUDA_MACHINE_RACES", "0") not in ("", "0")


def source(name):
    """The text of a kernel of csrc/cuda."""
    return Path(_SOURCES, name).read_text(encoding="utf-8")
