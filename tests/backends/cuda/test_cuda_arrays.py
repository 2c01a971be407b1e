"""CUDA arrays of other libraries as operands, and ours as theirs, without a GPU: their memory is the host's."""

import ctypes
import gc
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from helpers import rand

from gemm.backends.cuda import array_metadata, arrays
from gemm.core.errors import BackendUnavailable
from gemm.core.problem import Device
from gemm.frontend import interop


class Gpu:
    """A GPU as a DeviceArray sees it; its memory is the process's, and streams are only counted."""

    def __init__(self, ordinal):
        self.ordinal, self.blocks, self.freed = ordinal, {}, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def allocate(self, size, stream):
        assert stream == 1
        block = np.zeros(size, np.uint8)
        self.blocks[block.ctypes.data] = block
        return block.ctypes.data

    def free(self, address, stream):
        self.freed.append((address, stream))
        del self.blocks[address]


GPUS = [Gpu(0), Gpu(1)]
DEVICES = tuple(Device("cuda", f"cuda:{gpu.ordinal}", "a GPU", handle=gpu) for gpu in GPUS)


def devices():
    return DEVICES


def raising(error):
    def function(*_):
        raise error

    return function


@pytest.fixture
def driver(monkeypatch):
    """The calls that a driver has got from arrays."""
    calls = []

    def free(address):
        calls.append(("free", address))
        for gpu in GPUS:
            gpu.blocks.pop(address, None)

    fake = SimpleNamespace(cuMemFree=free, cuCtxSynchronize=lambda: calls.append("synchronize"))
    monkeypatch.setattr(arrays, "cuda", lambda: fake)
    monkeypatch.setattr(arrays, "follow", lambda stream, other: calls.append((stream, "after", other)))
    return calls


# The CUDA Array Interface.


def seen(array, name="a"):
    return array_metadata.view(array, name, devices)


def interface(**changes):
    fields = {"shape": (3, 4), "typestr": "<f4", "data": (1024, False), "strides": None, "version": 3}
    return SimpleNamespace(__cuda_array_interface__={**fields, **changes})


def test_interface(monkeypatch):
    monkeypatch.setattr(array_metadata, "_ordinal", lambda address: 1)
    array = interface()
    view = seen(array)
    assert (view.owner, view.data, view.offset, view.device) == (array, 1024, 0, DEVICES[1])
    assert (view.shape, view.strides, view.dtype, view.queue) == ((3, 4), (16, 4), np.float32, None)
    for stream in (1, 2, 123456, None):
        found = seen(interface(stream=stream, strides=(4, -12)))
        assert (found.queue, found.strides) == (stream, (4, -12))
    nothing = seen(interface(shape=(0, 4), data=(0, False)))
    assert nothing.size == 0
    frozen = seen(interface(data=(1024, True)))
    assert frozen.readonly


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mask": interface()}, "b has a mask"),
        ({"stream": 0}, "b exports the stream 0"),
        ({"typestr": ">f4"}, "b has dtype >f4 of foreign byte order"),
        ({"typestr": "|V2"}, r"b has dtype \|V2, which is not supported"),
        ({"data": (1022, False)}, "b is not aligned"),
        ({"typestr": "<c8", "data": (1028, False)}, "b is not aligned"),
        ({"strides": (18, 4)}, "b is not aligned"),
    ],
)
def test_interface_refuses(changes, said, monkeypatch):
    monkeypatch.setattr(array_metadata, "_ordinal", lambda address: 0)
    with pytest.raises(TypeError, match=said):
        seen(interface(**changes), "b")


def test_without_a_backend_the_cause_is_told():
    broken = raising(BackendUnavailable("cuda", "no driver"))
    with pytest.raises(BackendUnavailable, match="no driver"):
        array_metadata.view(interface(shape=(0,), data=(0, False)), "a", broken)


def test_host_arrays_are_not_ours():
    for array in (rand(2, 2), [[1.0]], 3.0, memoryview(b"abc"), None):
        assert array_metadata.view(array, "a", raising(AssertionError("devices were looked for"))) is None


# DLPack.


class Exporter:
    """Exports host memory as if it were on a GPU, by DLPack alone."""

    def __init__(self, array, *, dtype="", newest=None, old=False):
        self.array, self.dtype, self.newest, self.old = array, dtype or array.dtype.name, newest, old
        self.asked = {}

    def __dlpack_device__(self):
        return 2, 1

    def __dlpack__(self, **asked):
        if self.old and "max_version" in asked:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.asked = asked
        place = self.array.ctypes.data, 1, self.array.shape
        return arrays.export_dlpack(self.array, *place, self.dtype, version=self.newest)


@pytest.mark.parametrize(("newest", "old"), [(None, False), (None, True), ((1, 0), False), ((1, 3), False)])
def test_dlpack_keeps_the_memory(newest, old):
    array = rand(2, 3, 4, dtype="float64")
    references, kept = sys.getrefcount(array), len(arrays._exported)
    exporter = Exporter(array, newest=newest, old=old)
    view = seen(exporter)
    assert view.owner.array is exporter
    assert (view.data + view.offset, view.shape, view.strides) == (array.ctypes.data, array.shape, array.strides)
    assert (view.dtype, view.device, view.queue, view.readonly) == (array.dtype, DEVICES[1], 1, False)
    assert exporter.asked == {"stream": 1} | ({} if old else {"max_version": (1, 0)})
    assert len(arrays._exported) == kept + 1
    del view
    gc.collect()
    assert len(arrays._exported) == kept
    assert sys.getrefcount(array) == references + 1  # the capsule is gone: only `exporter` is left


@pytest.mark.parametrize("name", ["bool", "int8", "uint16", "int64", "float16", "complex64", "complex128", "bfloat16",
                                  "float8_e4m3fn", "float8_e5m2"])  # fmt: skip
def test_dlpack_types(name):
    itemsize = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}.get(name)
    if itemsize:
        pytest.importorskip("ml_dtypes")
    array = np.zeros((3, 4), f"u{itemsize}" if itemsize else name)
    view = seen(Exporter(array, dtype=name, newest=(1, 0)))
    assert view.dtype.name == name
    assert view.strides == array.strides


def changed(**fields):
    """An exporter whose capsule says other things."""
    exporter = Exporter(rand(2, 2), newest=(1, 0))
    capsule = exporter.__dlpack__()
    managed = arrays._Versioned.from_address(arrays._pointer(capsule, b"dltensor_versioned"))
    for name, value in fields.items():
        setattr(managed.tensor if name == "code" else managed, name, value)
    exporter.__dlpack__ = lambda **_: capsule
    return exporter


def test_dlpack_refuses_what_it_does_not_know():
    for fields, said in (
        ({"code": 7}, "a: DLPack type 7 of 32 bits"),
        ({"major": 2}, r"DLPack version 2\.0 is not known"),
    ):
        with pytest.raises(TypeError, match=said):
            seen(changed(**fields))
    assert seen(changed(flags=1)).readonly


# Arrays of our own.


def exporting(capsule, kind):
    """Something that exports `capsule` for a device of `kind`."""
    return SimpleNamespace(__dlpack__=lambda **_: capsule, __dlpack_device__=lambda: (kind, 1))


def test_device_arrays_are_freed_in_order(driver):
    array = arrays.DeviceArray((3, 4), "float32", DEVICES[0])
    view = array.view()
    assert (view.shape, view.strides, view.queue) == ((3, 4), (16, 4), 1)
    address = view.data
    del array, view
    gc.collect()
    assert GPUS[0].freed[-1] == (address, 1)
    assert driver == []
    lent = arrays.DeviceArray((3, 4), "float32", DEVICES[0])
    address = lent.__cuda_array_interface__["data"][0]
    del lent
    gc.collect()
    assert driver == [("free", address)]  # which waits for streams that only others know
    assert not GPUS[0].blocks


@pytest.mark.parametrize("newest", [None, (1, 0)])
def test_device_arrays_speak_dlpack(driver, newest):
    array = arrays.DeviceArray((3, 4), "float32", DEVICES[1])
    assert array.__dlpack_device__() == (2, 1)
    for stream, waits in ((None, []), (-1, []), (1, []), (2, [(2, "after", 1)]), (4096, [(4096, "after", 1)])):
        driver.clear()
        capsule = array.__dlpack__(stream=stream, max_version=newest)
        assert driver == waits
        view = seen(exporting(capsule, 2))
        assert (view.data, view.shape, view.strides) == (array.view().data, (3, 4), (16, 4))
        view = capsule = None
    for wrong in (0, -2):
        with pytest.raises(ValueError, match=f"stream = {wrong}"):
            array.__dlpack__(stream=wrong)
    for asked in ({"copy": True}, {"dl_device": (1, 0)}):
        with pytest.raises(BufferError, match="only be exported on its own device"):
            array.__dlpack__(**asked)
    with pytest.raises(TypeError, match="copy_to_host"):
        np.asarray(array)
    kept = array.__dlpack__(max_version=newest)
    del array
    gc.collect()
    assert GPUS[1].blocks  # the capsule keeps it
    del kept
    gc.collect()
    assert not GPUS[1].blocks


def test_consumers_that_take_the_memory_over(driver):
    """NumPy takes capsules of host memory: renamed ones are given back by whoever renamed them."""
    array = np.arange(12.0)
    capsule = arrays.export_dlpack(array, array.ctypes.data, 0, (3, 4), "float64", version=None)
    tensor = arrays._Tensor.from_address(arrays._pointer(capsule, b"dltensor"))
    tensor.device_type = 1
    taken = np.from_dlpack(exporting(capsule, 1))
    np.testing.assert_array_equal(taken, array.reshape(3, 4))
    held = len(arrays._exported)
    del capsule
    gc.collect()
    assert len(arrays._exported) == held
    del taken
    gc.collect()
    assert len(arrays._exported) == held - 1


# PyTorch and CuPy, as far as they are asked.


def forget():
    for cached in (array_metadata.library, array_metadata.repeatable):
        cached.cache_clear()


class Tensor:
    """A torch.Tensor as cuda_arrays reads it."""

    def __init__(self, dtype="float32", **changes):
        self.dtype, self.shape, self.is_cuda, self.layout = f"torch.{dtype}", (3, 4), True, "strided"
        self.conj_bit = self.neg_bit = self.requires_grad = False
        self.device = "cuda:1"
        self.__dict__.update(changes)

    def is_conj(self):
        return bool(self.conj_bit)

    def is_neg(self):
        return bool(self.neg_bit)

    def stride(self):
        return (4, 1)

    def get_device(self):
        return 1

    def data_ptr(self):
        return 4096

    def conj(self):
        return Tensor(self.dtype.removeprefix("torch."), conj_bit=True)

    def resolve_conj(self):
        return Tensor(self.dtype.removeprefix("torch."), neg_bit=self.neg_bit, resolved=True)

    def resolve_neg(self):
        return Tensor(self.dtype.removeprefix("torch."), resolved=True)


@pytest.fixture
def torch(monkeypatch):
    """A module of PyTorch's shape, whose current stream is 77 on GPU 1."""
    made = []

    def empty(shape, *, dtype, device):
        made.append((shape, dtype, device))
        return Tensor(dtype)

    module = ModuleType("torch")
    vars(module).update(
        Tensor=Tensor, strided="strided", version=SimpleNamespace(cuda="13.0"), empty=empty, made=made,
        _C=SimpleNamespace(_cuda_getCurrentRawStream={0: 0, 1: 77}.__getitem__),
        float32="float32", bfloat16="bfloat16", int32="int32", is_grad_enabled=lambda: True,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", module)
    forget()
    yield module
    forget()


def test_torch_tensors(torch):
    view = seen(Tensor())
    assert (view.data, view.shape, view.strides, view.device, view.queue) == (4096, (3, 4), (16, 4), DEVICES[1], 77)
    assert seen(Tensor(is_cuda=False)) is None
    with pytest.raises(TypeError, match="a has the layout sparse"):
        seen(Tensor(layout="sparse"))
    with pytest.raises(TypeError, match="a has dtype qint8"):
        seen(Tensor("qint8"))


def test_torch_tensors_that_require_a_gradient_are_refused(torch):
    tensor = Tensor(requires_grad=True)
    for name in ("a", "b", "out"):
        with pytest.raises(TypeError, match=rf"{name} requires a gradient.*pass {name}\.detach"):
            interop.wrap(tensor, name)
    reader = array_metadata.repeatable(Tensor)
    known = reader.facts(tensor)
    torch.is_grad_enabled = lambda: False
    reader._records = torch.is_grad_enabled
    assert reader.facts(tensor) != known, "a repeated product takes the full path, too"


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_types(torch, name, monkeypatch):
    """Their typestr is that of bytes without a meaning; the array's own dtype tells."""
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
    monkeypatch.setattr(array_metadata, "_ordinal", lambda address: 0)
    array = interface(typestr=f"|V{dtype.itemsize}")
    array.dtype = dtype
    for view in (seen(array), seen(Tensor(name))):
        assert (view.dtype, view.strides) == (dtype, (4 * dtype.itemsize, dtype.itemsize))


def test_torch_without_ml_dtypes(torch, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    forget()
    with pytest.raises(TypeError, match=r"^a: bfloat16 needs the package ml_dtypes: pip install ml_dtypes$"):
        seen(Tensor("bfloat16"))


def test_lazy_tensors_are_resolved_unless_written_to(torch):
    for lazy in ({"conj_bit": True}, {"neg_bit": True}):
        view = seen(Tensor("complex64", **lazy), "b")
        assert view.owner.resolved
        with pytest.raises(TypeError, match=r"out is a lazily conjugated or negated"):
            seen(Tensor("complex64", **lazy), "out")
    whole = seen(Tensor("complex64"), "b")
    assert array_metadata.conjugated(whole, devices).owner.resolved


def test_results_are_the_librarys(torch, driver):
    """Of the result's type, not of the operand's: int8 gives int32, say."""
    view = seen(Tensor())
    view.__dict__["dtype"] = np.dtype("int32")
    assert isinstance(array_metadata.empty((5, 6), view), Tensor)
    assert torch.made == [((5, 6), "int32", "cuda:1")]


def test_results_of_other_libraries(driver):
    """An array of the array API gets its library's; what that refuses stays ours."""
    result = arrays.DeviceArray((2, 2), "float32", DEVICES[0])
    taking = SimpleNamespace(__array_namespace__=lambda: SimpleNamespace(from_dlpack=lambda x: ("theirs", x)))
    assert array_metadata.returned(result, taking) == ("theirs", result)
    refusing = SimpleNamespace(__array_namespace__=lambda: SimpleNamespace(from_dlpack=raising(BufferError("no"))))
    assert array_metadata.returned(result, refusing) is result
    assert array_metadata.returned(result, result) is result
    assert array_metadata.returned(result, object()) is result
    foreign = array_metadata.conjugated
    with pytest.raises(TypeError, match="pass its conjugate"):
        foreign(result.view(), devices)


def test_cupy_arrays(monkeypatch):
    class ndarray:
        shape, strides, dtype = (3, 4), (32, 8), np.dtype("float64")
        device, data = SimpleNamespace(id=1), SimpleNamespace(ptr=4096)

    class Module:
        pass

    module = Module
    module.ndarray = ndarray
    stream = SimpleNamespace(ptr=0)
    module.cuda = SimpleNamespace(
        runtime=SimpleNamespace(is_hip=False), get_current_stream=lambda ordinal: stream
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", module)
    forget()
    view = seen(ndarray())
    assert (view.data, view.device, view.queue, view.dtype) == (4096, DEVICES[1], 1, np.float64)
    stream.ptr = 99
    view = seen(ndarray())
    assert view.queue == 99
    forget()


def test_structs_have_the_standards_sizes():
    assert ctypes.sizeof(arrays._Tensor) == 48
    assert ctypes.sizeof(arrays._Managed) == 64
    assert ctypes.sizeof(arrays._Versioned) == 80
