"""Prepared launches, in C and in Python: both give the driver the same calls, whatever the addresses."""

import ctypes
import importlib
import math
from ctypes import CFUNCTYPE, POINTER, c_int, c_size_t, c_uint, c_uint64, c_void_p
from types import SimpleNamespace

import numpy as np
import pytest

from gemm.backends.cuda import array_metadata, launch_graph
from gemm.backends.cuda.driver import Driver, Function
from gemm.backends.cuda.launch_plan import Layout
from gemm.backends.cuda.operand_layout import Map, Step
from gemm.catalog import Kernel
from gemm.core.errors import KernelFailed
from gemm.frontend import plan_cache
from gemm.frontend.arguments import scalar

CONTEXT, POOL, ROOM_AT, STREAM = 0x1000, 0x2000, 0x70000, 0x3000
A_MAP = Map(0, 64, 2, (40, 30, 2), (160, 4800), (32, 8, 1), 3)
B_MAP = Map(5, 512, 11, (30, 20, 1), (128, 2560), (8, 16, 1), 0)
SCALE = bytes(range(32))


def steps():
    packed = bytes(range(80))
    product = bytes(200) + b"\xff" * 56
    return (
        (0xAB0, 7, 3, 256, 1, 0, 0, packed, -1, ((0, 0, 16), (8, 5, 512)), ()),
        (
            0xAC0,
            132,
            1,
            384,
            2,
            1,
            200_000,
            product,
            224,
            ((0, 0, 0), (8, 5, 512), (16, 2, 0), (24, 3, 4)),
            (A_MAP, B_MAP),
        ),
        (0xAD0, 5, 1, 64, 1, 1, 0, packed, -1, (), ()),
    )


class Fake:
    """The driver's functions as C functions, which write down what they are given."""

    def __init__(self, failing=None, current=CONTEXT):
        self.said = []
        self.failing, self.current = failing or {}, current
        self.kept = []
        out = POINTER(c_void_p)
        kinds = {
            "cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
            "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
            "cuTensorMapEncodeTiled": (c_void_p, c_uint, c_uint, *[c_void_p] * 5, *[c_uint] * 4),
            "cuMemAllocFromPoolAsync": (POINTER(c_uint64), c_size_t, c_void_p, c_void_p),
            "cuMemFreeAsync": (c_uint64, c_void_p),
            "cuMemsetD32Async": (c_uint64, c_uint, c_size_t, c_void_p),
            "cuCtxGetCurrent": (out,), "cuCtxPushCurrent_v2": (c_void_p,), "cuCtxPopCurrent_v2": (out,),
        }  # fmt: skip
        for name, parameters in kinds.items():
            self.kept.append(CFUNCTYPE(c_int, *parameters)(self.answer(name)))
        self.addresses = tuple(int(ctypes.cast(f, c_void_p).value or 0) for f in self.kept)
        self.functions = dict(zip(kinds, self.kept, strict=True))

    def answer(self, name):
        does = getattr(self, name)

        def answered(*given):
            if name in self.failing:
                return self.failing[name]
            does(*given)
            return 0

        return answered

    def parameters(self, given, sizes):
        pointers = (c_void_p * len(sizes)).from_address(given)
        return [ctypes.string_at(pointer, size) for pointer, size in zip(pointers, sizes, strict=True) if pointer]

    def cuLaunchKernel(self, function, *given):
        self.said.append(("launch", function, *given[:7], given[7], self.parameters(given[8], [80])))

    def cuLaunchKernelEx(self, config, function, parameters, extra):
        words = (c_uint * 7).from_address(config)
        stream, attributes = (c_void_p * 2).from_address(config + 32)
        count, address = c_uint.from_address(config + 48).value, attributes or 0
        wanted = [list((c_uint * 5).from_address(address + 72 * i)) for i in range(count)]
        sizes = [256, 128, 128] if function == 0xAC0 else [80]
        self.said.append(("extended", function, list(words), stream, wanted, self.parameters(parameters, sizes)))

    def cuTensorMapEncodeTiled(self, image, kind, rank, address, *rest):
        assert image % 64 == 0
        dims, strides = list((c_uint64 * 3).from_address(rest[0])), list((c_uint64 * 2).from_address(rest[1]))
        box, one = list((c_uint * 3).from_address(rest[2])), list((c_uint * 3).from_address(rest[3]))
        self.said.append(("map", kind, rank, address, dims, strides, box, one, *rest[4:]))
        ctypes.memset(image, kind, 128)

    def cuMemAllocFromPoolAsync(self, address, size, pool, stream):
        address[0] = ROOM_AT
        self.said.append(("allocate", size, pool, stream))

    def cuMemFreeAsync(self, address, stream):
        self.said.append(("free", address, stream))

    def cuMemsetD32Async(self, address, value, count, stream):
        self.said.append(("set", address, value, count, stream))

    def cuCtxGetCurrent(self, context):
        context[0] = self.current

    def cuCtxPushCurrent_v2(self, context):
        self.said.append(("push", context))

    def cuCtxPopCurrent_v2(self, context):
        self.said.append(("pop",))


def native(fake, room=4096, made_of=None):
    """The sequence in C over a Fake."""
    memo = array_metadata.module()
    if memo is None:
        pytest.skip("gemm._memo was not built")
    return memo.Sequence(fake.addresses, CONTEXT, POOL, room, (256, 64) if room else (0, 0), made_of or steps())


@pytest.fixture
def in_python(monkeypatch):
    """Makes the Sequence in Python over a Fake."""

    def made(fake, room=4096):
        driver = Driver.__new__(Driver)
        driver._library = SimpleNamespace(**fake.functions)
        monkeypatch.setattr(launch_graph, "cuda", lambda: driver)

        class Gpu:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def allocate(self, size, stream):
                return int(driver.cuMemAllocFromPoolAsync(size, POOL, stream))

            def free(self, address, stream):
                driver.cuMemFreeAsync(address, stream)

        return launch_graph.Sequence(Gpu(), room, (256, 64) if room else (0, 0), steps())

    return made


def test_both_say_the_same_to_the_driver(in_python):
    fakes = Fake(), Fake()
    for fake, make in zip(fakes, (native, in_python), strict=True):
        sequence = make(fake)
        for shift in (0, 4096):
            assert sequence.run(STREAM, 0x10000 + shift, 0x20000, 0x30000, 0x40000 + shift, 0, SCALE) is None
    assert fakes[0].said == fakes[1].said
    allocate, zero, pack, first, second, product, last, free = fakes[0].said[:8]
    assert allocate == ("allocate", 4096, POOL, STREAM)
    assert zero == ("set", ROOM_AT + 256, 0, 16, STREAM)
    assert pack[:-1] == ("launch", 0xAB0, 7, 3, 1, 256, 1, 1, 0, STREAM)
    packed = pack[-1][0]
    assert int.from_bytes(packed[:8], "little") == 0x10010
    assert int.from_bytes(packed[8:16], "little") == ROOM_AT + 512
    assert packed[16:] == bytes(range(16, 80))
    assert first == ("map", 2, 3, 0x10040, [40, 30, 2], [160, 4800], [32, 8, 1], [1, 1, 1], 0, 3, 3, 0)
    assert second[:4] == ("map", 11, 3, ROOM_AT + 512)
    overlapping = [6, 0, 1, 0, 0]
    in_clusters = [overlapping, [4, 0, 2, 1, 1]]
    assert product[:5] == ("extended", 0xAC0, [132, 1, 1, 384, 1, 1, 200_000], STREAM, in_clusters)
    assert last[:5] == ("extended", 0xAD0, [5, 1, 1, 64, 1, 1, 0], STREAM, [overlapping])
    g, a_map, b_map = product[-1]
    assert (a_map, b_map) == (b"\2" * 128, b"\x0b" * 128)
    assert g[224:] == SCALE
    assert int.from_bytes(g[24:32], "little") == 0x40004
    assert free == ("free", ROOM_AT, STREAM)
    again = fakes[0].said[8:]
    assert again[3][3] == 0x11040


@pytest.mark.parametrize(("tiles", "resident", "overlaps", "shared", "told"), [
    (132, 2, True, 100_000, (1, 116_736)),  # a block for each multiprocessor, alone there
    (133, 2, True, 100_000, (0, 100_000)),
    (133, 1, True, 200_000, (1, 200_000)),
    (132, 1, True, 0, (1, 0)),
    (132, 2, True, 0, (0, 0)),
    (132, 1, False, 100_000, (0, 100_000)),
])  # fmt: skip
def test_who_overlaps_and_who_is_alone(
    tiles, resident, overlaps, shared, told
):  # fmt: skip
    gpu = SimpleNamespace(units=132, overlaps=overlaps, alone=116_736, function=lambda *_: Function(0xAC0, resident))
    kernel = Kernel("sgemm_cuda_x", "cuda", "cuda", "float32", "", params={"THREADS": 64, "shared": shared})
    step = Step(kernel, (), (tiles, 1), 1, bytes(80), ())
    assert launch_graph._prepared(gpu, step)[5:7] == told


def test_clusters_that_do_not_overlap():
    fake = Fake()
    step = (0xAC1, 6, 1, 64, 2, 0, 0, bytes(range(80)), -1, (), ())
    assert native(fake, 0, (step,)).run(STREAM, 1, 2, 3, 4, 0, SCALE) is None
    assert fake.said[0][:5] == ("extended", 0xAC1, [6, 1, 1, 64, 1, 1, 0], STREAM, [[4, 0, 2, 1, 1]])


def test_failures_are_named_and_room_is_given_back(in_python):
    for name in ("cuMemAllocFromPoolAsync", "cuMemsetD32Async", "cuTensorMapEncodeTiled", "cuLaunchKernelEx"):
        fake = Fake({name: 700})
        assert native(fake).run(STREAM, 1, 2, 3, 4, 0, SCALE) == (name, 700)
        allocated = name != "cuMemAllocFromPoolAsync"
        assert [said[0] for said in fake.said].count("free") == allocated
        fake = Fake({name: 700})
        fake.functions |= {"cuGetErrorName": lambda *_: 1, "cuGetErrorString": lambda *_: 1}
        with pytest.raises(KernelFailed, match=f"{name}: error 700") as caught:
            in_python(fake).run(STREAM, 1, 2, 3, 4, 0, SCALE)
        assert caught.value.lost
        assert [said[0] for said in fake.said].count("free") == allocated


def test_context_is_pushed_where_another_is_current():
    fake = Fake(current=0x77)
    assert native(fake).run(STREAM, 1, 2, 3, 4, 0, SCALE) is None
    assert (fake.said[0], fake.said[-1]) == (("push", CONTEXT), ("pop",))
    assert "push" not in [said[0] for said in Fake().said]


def test_arguments_are_checked():
    sequence = native(Fake())
    with pytest.raises(TypeError, match="takes 7 arguments"):
        sequence.run(1)
    with pytest.raises(ValueError, match="32"):
        sequence.run(STREAM, 1, 2, 3, 4, 0, b"short")
    with pytest.raises(TypeError, match="int"):
        sequence.run(STREAM, "1", 2, 3, 4, 0, SCALE)
    made = type(sequence)
    good = Fake().addresses, CONTEXT, POOL, 0, (0, 0), steps()
    made(*good)
    broken = list(steps()[0])
    broken[7] = bytes(600)
    for bad in ((*good[:5], (tuple(broken),)), ((0,) * 9, *good[1:]), (good[0][:3], *good[1:])):
        with pytest.raises(ValueError, match="cannot be launched"):
            made(*bad)
    for slot in (-1, 6):
        wrong = (*steps()[0][:9], ((0, slot, 0),), ())
        with pytest.raises(ValueError, match="cannot be launched"):
            made(*good[:5], (wrong,))


# The memo, over a library of arrays made up here.


class Tensor:
    """An array of a library that has DLPack's exchange of C functions; `stream` is the library's current one."""

    stream = STREAM

    def __init__(self, address, *shape, strides=(), code=2, device=0):
        strides = strides or tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
        self.address, self.code, self.device, self.negated, self.requires_grad = address, code, device, False, False
        self.shape, self.strides = ((ctypes.c_int64 * len(shape))(*values) for values in (shape, strides))

    def is_neg(self):
        return self.negated


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p), ("device_type", c_int), ("device", c_int), ("axes", c_int), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", c_void_p), ("strides", c_void_p),
        ("offset", c_uint64),
    )  # fmt: skip


class Exchange(ctypes.Structure):
    _fields_ = (
        ("major", c_uint), ("minor", c_uint), ("older", c_void_p), ("allocate", c_void_p), ("from_object", c_void_p),
        ("to_object", c_void_p), ("read", c_void_p), ("stream", c_void_p),
    )  # fmt: skip


@CFUNCTYPE(c_int, ctypes.py_object, POINTER(DLTensor))
def read(x, out):
    there = DLTensor(x.address - 256, 2, x.device, len(x.shape), x.code, 32, 1, ctypes.addressof(x.shape), 0, 256)
    there.strides = ctypes.addressof(x.strides)
    out[0] = there
    return 0


@CFUNCTYPE(c_int, c_int, c_int, POINTER(c_void_p))
def current_stream(kind, device, out):
    out[0] = Tensor.stream or None
    return 0


EXCHANGE = Exchange(1, 3, None, None, None, None, *(ctypes.cast(f, c_void_p).value for f in (read, current_stream)))


def capsule(exchange=EXCHANGE):
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (c_void_p, ctypes.c_char_p, c_void_p)
    return new(ctypes.addressof(exchange), b"dlpack_exchange_api", None)


class Lesson:
    """A memo that has learned one product of 4 × 6 tensors, and what it told the driver."""

    def __init__(
        self, *, reads_c = False, with_c = None, kept = 0, new = False, rounds = "f4",
        form = "f", alpha = 1, records = None,
    ):  # fmt: skip
        memo = array_metadata.module()
        if memo is None:
            pytest.skip("gemm._memo was not built")
        self.fake = Fake()
        step = (0xAC0, 1, 1, 256, 1, 0, 0, bytes(80), 48, ((0, 0, 0), (8, 1, 0), (16, 2, 0), (24, 3, 0)), ())
        self.sequence = memo.Sequence(self.fake.addresses, CONTEXT, 0, 0, (0, 0), (step,))
        native = importlib.import_module("gemm._memo")
        native.reads(Tensor, capsule(), None, records)
        self.memo = native.Memo(1, 4)
        self.a, self.b, self.out = (Tensor(at, 4, 6) for at in (0x1000, 0x2000, 0x4000))
        device = form, kept, 0, 96, 15, 15, 15, 3
        make = (lambda: Tensor(0x9000, 4, 6)) if new else None
        self.memo.learn(
            self.a, None if kept else self.b, with_c, None if new else self.out, None, alpha, int(reads_c),
            native.since(), make, 0, rounds, 7, self.sequence, None, None, device,
        )  # fmt: skip
        assert self.memo.known() == 1

    def run(self, a, b, c, out, alpha, beta):
        return self.memo.run(a, b, c, out, None, alpha, beta)

    def addresses(self):
        """Those of the last launch."""
        given = self.fake.said[-1][-1][0]
        return [int.from_bytes(given[at : at + 8], "little") for at in (0, 8, 16, 24)]


def test_memo_repeats_what_it_has_learned():
    known = Lesson()
    a, b, out = (Tensor(at, 4, 6) for at in (0x11000, 0x12000, 0x14004))
    assert known.run(a, b, None, out, 1.0, 0.0) is out
    assert known.addresses() == [0x11000, 0x12000, 0, 0x14004]
    assert known.fake.said[-1][9] == STREAM
    Tensor.stream = 0
    assert known.run(a, b, None, out, 1.0, 0.0) is out
    assert known.fake.said[-1][9] == 1, "the default stream by its explicit handle"
    Tensor.stream = STREAM


def test_memo_makes_results_and_keeps_prepared_matrices():
    known = Lesson(kept=0x7000, new=True)
    made = known.run(known.a, None, None, None, 1.0, 0.0)
    assert made.address == 0x9000
    assert known.addresses() == [0x1000, 0x7000, 0, 0x9000]
    assert known.run(known.a, known.b, None, None, 1.0, 0.0) is None


@pytest.mark.parametrize("reads_c", [False, True])
def test_memo_tells_what_c_is(reads_c):
    c = Tensor(0x6000, 4, 6)
    known = Lesson(reads_c=reads_c, with_c=c)
    beta = float(reads_c)
    assert known.run(known.a, known.b, c, known.out, 1.0, beta) is known.out
    assert known.addresses() == [0x1000, 0x2000, 0x6000 * reads_c, 0x4000]
    assert known.run(known.a, known.b, known.out, known.out, 1.0, beta) is None, "c is out: another product"
    near = Tensor(0x4000 + 16, 4, 6)
    assert known.run(known.a, known.b, near, known.out, 1.0, beta) is None, "overlapping out"


SCALARS = [1, 0, -3, 0.1, 2.5, 65519.0, 1e-60, 1e300, 2**40, True, math.nan, math.inf, 1 + 2j, 0j]


@pytest.mark.parametrize(
    ("dtype", "form"),
    [("f4", "f"), ("f2", "f"), ("bfloat16", "f"), ("f8", "d"), ("c8", "ff"), ("c16", "dd"), ("i4", "I"), ("i8", "Q")],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_memo_rounds_alpha_and_beta_as_the_long_way_does(dtype, form):
    kind = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    packed = launch_graph.Scale({"f2": "float16", "f4": "float32"}.get(dtype, kind.name))
    assert packed.form == form
    known = {zero: Lesson(rounds=f"{kind.kind}{kind.itemsize}", form=form, alpha=1 - zero) for zero in (0, 1)}
    repeated = 0
    for alpha in SCALARS:
        lesson = known[int(alpha == 0)]
        try:
            rounded = scalar("alpha", alpha, kind)
        except (TypeError, ValueError):
            rounded = None
        found = lesson.run(lesson.a, lesson.b, None, lesson.out, alpha, 0.0)
        if rounded is None or (rounded == 0) != (alpha == 0):
            assert found is None, alpha
            continue
        if found is None:
            assert alpha == 2**40, "only what is too large takes the long way"
            continue
        repeated += 1
        launched = (7 if alpha == 0 else rounded.item()), 0
        assert lesson.fake.said[-1][-1][0][48:] == packed(*launched), alpha
    assert repeated >= 4


def test_memo_leaves_the_rest_to_the_long_way():
    known = Lesson()
    a, b, out = known.a, known.b, known.out
    negated, unlike = Tensor(0x1000, 4, 6), SimpleNamespace(address=1)
    negated.negated = True
    strangers = [
        (Tensor(0x1008, 4, 6), b, out), (a, Tensor(0x2000, 4, 7), out), (a, Tensor(0x2000, 4, 6, code=0), out),
        (a, Tensor(0x2000, 4, 6, strides=(12, 1)), out), (Tensor(0x1000, 4, 6, code=5), b, out), (negated, b, out),
        (a, b, Tensor(0x2000 + 64, 4, 6)), (a, Tensor(0x2000, 4, 6, device=1), out), (a, b, unlike), (unlike, b, out),
        (Tensor(0x1000, 1, 1, 1, 4, 6), b, out), (a, b, None),
    ]  # fmt: skip
    for x, y, goal in strangers:
        assert known.run(x, y, None, goal, 1.0, 0.0) is None
    assert not known.fake.said
    known.fake.failing["cuLaunchKernel"] = 700
    assert known.run(a, b, None, out, 1.0, 0.0) is None
    device = "f", 0, 0, 0, 0, 0, 0, 0
    known.memo.learn(
        unlike, b, None, out, None, 1.0, 0.0, plan_cache.since(), None, 0, "f4", 1.0, known.sequence, None, None, device
    )
    assert known.memo.known() == 1


@pytest.mark.parametrize("which", range(4))
def test_memo_leaves_tensors_that_require_a_gradient_to_the_full_path(which):
    """The full path refuses them. Where the library records no gradients, they are operands like others."""
    recording, asked = [True], []
    c = Tensor(0x6000, 4, 6)
    known = Lesson(reads_c=True, with_c=c, records=lambda: asked.append(1) or recording[0])
    arrays = [known.a, known.b, c, known.out]
    assert known.run(*arrays, 1.0, 1.0) is known.out
    assert not asked, "only a tensor that requires a gradient asks"
    arrays[which].requires_grad = True
    assert known.run(*arrays, 1.0, 1.0) is None
    recording[0] = False
    assert known.run(*arrays, 1.0, 1.0) is known.out
    assert len(known.fake.said) == 2
    del arrays[which].requires_grad
    assert known.run(*arrays, 1.0, 1.0) is None


def test_products_of_the_host_and_of_a_device_are_told_apart():
    known, array = Lesson(), np.ones((4, 6), np.float32)
    a, b, out = known.a, known.b, known.out
    for x, y, goal in ((array, b, out), (a, array, out), (a, b, array), (array, array, array), (array, None, None)):
        assert known.run(x, y, None, goal, 1.0, 0.0) is None
    assert known.memo.run(a, b, None, out, array, 1.0, 0.0) is None
    assert known.run(a, None, None, out, 1.0, 0.0) is None, "no b is prepared"
    assert not known.fake.said
    with pytest.raises(TypeError, match="Sequence"):
        known.memo.learn(
            a, b, None, out, None, 1.0, 0.0, plan_cache.since(), None, 0, "f4", 1.0, object(), None, None,
            ("f", 0, 0, 0, 0, 0, 0, 0),
        )  # fmt: skip
    with pytest.raises(TypeError, match="device"):
        known.memo.learn(
            a, b, None, out, None, 1.0, 0.0, plan_cache.since(), None, 0, "f4", 1.0, known.sequence, None, None, None
        )


def test_a_prepared_matrix_that_out_overlaps_takes_the_long_way():
    known = Lesson(kept=0x4000 + 16)
    assert known.run(known.a, None, None, known.out, 1.0, 0.0) is None
    far = Tensor(0x14000, 4, 6)
    assert known.run(known.a, None, None, far, 1.0, 0.0) is far


def test_an_exchange_that_is_not_known_is_refused():
    native = importlib.import_module("gemm._memo")
    with pytest.raises(ValueError, match="another version"):
        native.reads(Tensor, capsule(Exchange(2, 0)))
    newer = Exchange(2, 0, ctypes.addressof(EXCHANGE))
    native.reads(Tensor, capsule(newer))
    with pytest.raises(ValueError, match="PyCapsule"):
        native.reads(Tensor, object())


class Arrays(array_metadata.Library):
    """Reads arrays that have an address."""

    def address(self, x):
        return x.address


@pytest.mark.parametrize(("goal", "repeats"), [(0x1080, True), (0x0FC0, True), (0x107C, False), (0x1000, False)])
def test_neighbours_repeat_and_overlapping_operands_do_not(goal, repeats):
    """a and b of 64 bytes at 0x1000 and 0x1040, as a pool lays them side by side."""
    launched = []
    launches = SimpleNamespace(run=lambda stream, addresses, scale: launched.append(addresses[:4]))
    layout = Layout((4, 4), 4, ((16, 4),) * 4, (4,) * 4)
    a, b, out = (
        SimpleNamespace(address=at, shape=(4, 4), dtype=np.dtype(np.float32), device=None)
        for at in (0x1000, 0x1040, goal)
    )
    known = launch_graph.Launched(launches, layout, (0,) * 5)
    replay = launch_graph.Replay(known, launch_graph.Scale("float32"), Arrays(), (a, b, None, out, None))
    assert replay(a, b, None, out, 1.0, 0.0, None) is (out if repeats else None)
    assert launched == ([(0x1000, 0x1040, 0, goal)] if repeats else [])
