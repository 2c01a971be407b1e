"""Products of host operands on the emulated GPU: geometry against NumPy, and streams that run as late as they may."""

import ctypes
import gc
import random
import threading
import time

import numpy as np
import pytest
from helpers import at_once, emulate, forget_drivers

from gemm.backends.cuda import driver, pinned, staging, transfer
from gemm.backends.cuda import panels as cuda_panels
from gemm.backends.cuda.backend import CudaBackend
from gemm.backends.cuda.panels import Shape, panels, rectangles, seconds, steps
from gemm.backends.cuda.transfer import block, pieces
from gemm.core.errors import KernelFailed
from gemm.core.operands import Work, extent, parts


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Everything in the small, so that products of 40 rows go every way."""
    for module, name, value in (
        (transfer, "SLOT", 1000), (pinned, "SLOT", 2048), (staging, "SMALL", 2048),
        (staging, "_GRAIN", 4), (staging, "_LEAST", 100), (cuda_panels, "_NARROWEST", 8),
        (cuda_panels, "_GRAIN", 4), (cuda_panels, "_GROUP", 300), (cuda_panels, "_LARGE", 5000),
        (cuda_panels, "LINK", 1e3), (staging, "LINE", 16), (pinned, "_THREADED_FROM", 256),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    panels.cache_clear()
    pinned.channels.cache_clear()
    yield
    panels.cache_clear()
    pinned.channels.cache_clear()


class Gpu:
    """The emulated GPU with another kernel: NumPy's product, which runs when its stream comes to it."""

    def __init__(self, monkeypatch, log, *, seed=0, room=1 << 40, **faults):
        """`room`: the most bytes of an allocation. `faults`: {function: the number of its call that fails}."""
        emulate(monkeypatch, streams=("late", "mixed", "mixed")[seed % 3], log=log)
        self.real, self.room, self.log, self._setenv = CudaBackend().devices()[0].handle, room, log, monkeypatch.setenv
        self.launched, self.computed, self._kernels = [], 0, []
        self.fail(**faults)
        self.unused = self.left()
        log.write_text("")

    def __getattr__(self, name):
        return getattr(self.real, name)

    def fail(self, **faults):
        each = [f"{name}:{number}:{2 if 'Alloc' in name else 719}" for name, number in faults.items()]
        self._setenv("CUDA_MACHINE_FAIL", ",".join(each))

    def left(self):
        """Bytes of memory that are free after all work."""
        left, total = ctypes.c_size_t(), ctypes.c_size_t()
        with self.real:
            driver.cuda().cuCtxSynchronize()
            assert driver.cuda()._library.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total)) == 0
        return left.value

    def calls(self):
        return [line.split()[0] for line in self.log.read_text().splitlines()]

    def allocate(self, size, stream):
        if size > self.room:
            raise KernelFailed("no room", memory=True)
        return self.real.allocate(size, stream)

    def stage(self, work, *, cuts_k=True):
        with self.real:
            staging.stage(self, self.enqueue, work, cuts_k=cuts_k)

    def enqueue(self, work, stream):
        self.launched.append((*work.out.shape, work.a.shape[-1]))

        def compute(_):
            gc.disable()  # CUDA forbids driver calls here, such as those that free memory
            a, b, c, out, bias = (None if x is None else on_host(x) for x in (*work[:4], work.bias))
            total = work.alpha * (a @ b) + (0 if c is None else work.beta * c)
            out[...] = total + (0 if bias is None else bias)
            self.computed += 1
            gc.enable()

        self._kernels.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(compute))
        library = driver.cuda()
        status = library._library.cuLaunchHostFunc(ctypes.c_void_p(stream), self._kernels[-1], None)
        if status:
            raise library.failure("cuLaunchHostFunc", status)


def on_host(view):
    """A view of the emulated GPU's memory, which is the process's own."""
    low, high = extent(view)
    memory = (ctypes.c_char * (high - low)).from_address(view.data + view.offset + low) if view.size else None
    return np.ndarray(view.shape, view.dtype, memory, -low, view.strides if view.size else None)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Makes a Gpu with such options."""
    yield lambda **options: Gpu(monkeypatch, tmp_path / "calls", **options)
    monkeypatch.undo()
    forget_drivers()


def strided(values, chance):
    """The values in another layout."""
    kind = chance.randrange(6)
    if kind == 1:
        return np.asfortranarray(values)
    if kind == 2:
        return np.repeat(values, 2, axis=-1)[..., ::2]
    if kind == 3 and values.ndim > 2:
        return np.broadcast_to(values[:1], values.shape)
    if kind == 4:
        return np.ascontiguousarray(values[..., ::-1, :])[..., ::-1, :]
    return values


class Case:
    """Operands of a random product, with what it must give."""

    def __init__(self, seed, with_c="", shape=()):
        chance = random.Random(seed)
        batch = [chance.choice([1, 2, 5, 9]) for _ in range(chance.choice([0, 0, 1, 2]))]
        *batch, m, n, k = shape or [*batch, *(chance.choice([1, 2, 7, 16, 33, 40]) for _ in range(3))]
        dtype = chance.choice(["float32", "float64", "int32", "int16"])
        rng = np.random.default_rng(seed)

        def values(*size):
            return rng.integers(-4, 5, size).astype(dtype)

        self.a, self.b = strided(values(*batch, m, k), chance), strided(values(*batch, k, n), chance)
        turned = chance.random() < 0.3
        self.out = values(*batch, n, m).swapaxes(-1, -2) if turned else values(*batch, m, n)
        self.c = None
        if with_c == "matrix":
            self.c = strided(values(*batch, m, n), chance)
        elif with_c == "row":
            self.c = np.broadcast_to(values(n), (*batch, m, n))
        elif with_c == "out":
            self.c = self.out
        self.beta = 0 if self.c is None else 3
        self.bias = {0: None, 1: values(1, n), 2: values(m, 1)}[chance.randrange(3)]
        self.before = [None if x is None else x.copy() for x in (self.a, self.b, self.c)]
        self.result = 2 * (self.a @ self.b) + (0 if self.c is None else self.beta * self.c)
        self.result += 0 if self.bias is None else self.bias
        self.cuts_k = self.bias is None and chance.random() < 0.7

    def run(self, gpu):
        work = Work(self.a, self.b, self.c, self.out, 2, self.beta, self.bias)
        gpu.stage(work, cuts_k=self.cuts_k)

    def delivered(self, gpu):
        """It is right, operands are as they were, and nothing is left on the device or its streams."""
        self.run(gpu)
        np.testing.assert_array_equal(self.out, self.result)
        assert self.unharmed(but_c=self.c is self.out)
        clean(gpu)

    def unharmed(self, *, but_c=False):
        now = (self.a, self.b, None if but_c else self.c)
        return all(x is None or np.array_equal(x, y) for x, y in zip(now, self.before, strict=True))


def clean(gpu):
    """Nothing is left on the device."""
    gpu.fail()
    assert gpu.left() == gpu.unused


def destroyed(gpu, failed=0):
    """Every stream and event is destroyed with the channels. `failed`: calls of cuStreamCreate that failed."""
    with gpu.real:
        pinned.channels(gpu).trim()
    calls = gpu.calls()
    assert calls.count("cuStreamCreate") - failed == calls.count("cuStreamDestroy_v2") > 0
    assert calls.count("cuEventCreate") == calls.count("cuEventDestroy_v2") > 0


@pytest.mark.parametrize("with_c", ["", "matrix", "row", "out"])
@pytest.mark.parametrize("room", [1 << 40, 6000])
def test_any_order_of_the_streams_gives_the_product(machine, with_c, room):
    launches = 0
    for seed in range(16):
        gpu, case = machine(seed=seed, room=room), Case(seed, with_c)
        case.delivered(gpu)
        launches += len(gpu.launched)
    assert launches > 32


@pytest.mark.parametrize("name", ["cuLaunchHostFunc", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuStreamCreate",
                                  "cuEventSynchronize", "cuStreamSynchronize", "cuMemAllocFromPoolAsync",
                                  "cuMemHostAlloc"])  # fmt: skip
@pytest.mark.parametrize("with_c", ["matrix", "out"])
@pytest.mark.parametrize("shape", [(40, 40, 40), (7, 7, 7), (9, 16, 16, 16)])
def test_nothing_is_lost_when_a_call_fails(machine, name, with_c, shape):
    failed = 0
    for number in (1, 2, 3, 5, 8):
        gpu, case = machine(seed=number, **{name: number}), Case(number, with_c, shape)
        spoilt = False
        try:
            case.run(gpu)
        except KernelFailed as error:
            failed, spoilt = failed + 1, error.spoilt
            assert not spoilt or with_c == "out"
        else:  # it never came to this call, or memory was found otherwise
            np.testing.assert_array_equal(case.out, case.result)
        assert case.unharmed(but_c=spoilt or (with_c == "out" and np.array_equal(case.out, case.result)))
        clean(gpu)
        Case(number, with_c, shape).delivered(gpu)
        destroyed(gpu, failed=int(name == "cuStreamCreate" and number <= 4))
    assert failed or name not in ("cuLaunchHostFunc", "cuMemcpyHtoDAsync_v2")


def copy_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("gemm-copy")]


@pytest.fixture
def copying(monkeypatch):
    """Puts something before each copy between arrays and slots."""

    def install(before):
        plain = pinned.copy

        def copy(to, source, *, stream=False):
            before(to, source)
            plain(to, source, stream=stream)

        monkeypatch.setattr(pinned, "copy", copy)

    return install


@pytest.mark.parametrize("with_c", ["", "matrix", "out"])
def test_slow_copies_are_waited_for(machine, copying, with_c):
    """Both ways: a slot leaves when it is full, and comes back when it is empty; nothing is at work afterwards."""
    for seed in range(8):
        chance, gpu, case = random.Random(seed), machine(seed=seed), Case(seed, with_c, (40, 33, 40))
        copying(lambda to, source, chance=chance: time.sleep(chance.choice([0, 0, 0.002])))
        case.delivered(gpu)


def test_results_are_copied_while_operands_are(machine, copying):
    """By one thread, which is not the caller's; where out is c, only when all has been computed."""
    for with_c in ("matrix", "out"):
        gpu, case = machine(seed=1), Case(1, with_c, (40, 40, 40))
        ways = []

        def before(to, source, gpu=gpu, case=case, ways=ways):
            assert threading.current_thread() in copy_threads()
            ways.append(np.may_share_memory(to, case.out))
            if case.c is case.out and ways[-1]:
                assert gpu.computed == len(gpu.launched) > 1

        copying(before)
        case.delivered(gpu)
        first = ways.index(True)
        assert all(ways[first:]) == (with_c == "out")


def test_no_copy_goes_on_after_a_failure(machine, monkeypatch):
    ended = []

    def slow(to, source, *, stream=False):
        ended.append(False)
        time.sleep(0.003)
        ended[-1] = True

    monkeypatch.setattr(pinned, "copy", slow)
    for number in (1, 2, 3):
        gpu, case = machine(cuLaunchHostFunc=number), Case(number, "", (40, 40, 40))
        with pytest.raises(KernelFailed):
            case.run(gpu)
        assert all(ended)
        clean(gpu)


@pytest.mark.parametrize("with_c", ["matrix", "out"])
@pytest.mark.parametrize("back", [False, True])
def test_a_copy_that_fails_is_told_of(machine, copying, with_c, back):
    for number in (1, 2, 3, 4):
        gpu, case, left = machine(seed=number), Case(number, with_c, (40, 40, 40)), [number]

        def before(to, source, left=left, case=case):
            left[0] -= np.may_share_memory(to, case.out) == back
            if not left[0]:
                left[0] = -1
                raise MemoryError("injected")

        copying(before)
        with pytest.raises(KernelFailed if back and with_c == "out" else MemoryError, match="injected"):
            case.run(gpu)
        assert case.unharmed(but_c=with_c == "out")
        clean(gpu)
        Case(number, with_c, (40, 40, 40)).delivered(gpu)


@pytest.mark.parametrize("room", [1 << 40, 6000])
def test_a_copy_that_fails_after_c_was_written_spoils_c(machine, copying, room):
    gpu, case = machine(room=room), Case(2, "out", (40, 40, 40))

    def before(to, source):
        if not np.array_equal(case.out, case.before[2]):
            raise MemoryError("injected")

    copying(before)
    with pytest.raises(KernelFailed, match="injected") as failed:
        case.run(gpu)
    assert failed.value.spoilt
    assert failed.value.memory
    clean(gpu)


def test_copy_threads_end_with_their_channels_and_can_be_done_without(machine, monkeypatch):
    before = copy_threads()
    gpu, case = machine(), Case(3, "matrix", (40, 40, 40))
    case.run(gpu)
    mine = [thread for thread in copy_threads() if thread not in before]
    assert len(mine) == 1
    with gpu.real:
        pinned.channels(gpu).trim()
    mine[0].join(10)
    assert not mine[0].is_alive()

    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    Case(4, "out", (40, 40, 40)).delivered(gpu)


def test_page_locked_memory_is_freed_where_no_context_is_current(machine):
    """After a failure, the traceback may keep a slot until the caller has left the context."""
    gpu = machine()
    with gpu.real:
        memory = pinned.locked(4096)
    address = memory.__array_interface__["data"][0]
    assert is_locked(address)
    del memory
    assert not is_locked(address)


def is_locked(address):
    kind = ctypes.c_uint()
    return driver.cuda()._library.cuPointerGetAttribute(ctypes.byref(kind), 2, ctypes.c_uint64(address)) == 0


def test_what_repeats_is_sent_once(machine, monkeypatch):
    gpu, moved, transfer_piece = machine(), {False: 0, True: 0}, transfer._transfer

    def counted(piece, *where, to_host):
        moved[to_host] += piece.width * piece.rows
        transfer_piece(piece, *where, to_host=to_host)

    monkeypatch.setattr(transfer, "_transfer", counted)
    row, matrix = np.ones(64, np.float32), np.ones((40, 64), np.float32)
    a, b = np.ones((20, 16, 40), np.float32), np.broadcast_to(matrix, (20, 40, 64))
    out = np.empty((20, 16, 64), np.float32)
    gpu.stage(Work(a, b, np.broadcast_to(row, out.shape), out, 1, 1))
    assert (out == 41).all()
    assert moved == {False: a.nbytes + matrix.nbytes + row.nbytes, True: out.nbytes}


def test_small_operands_travel_together(machine):
    gpu = machine()
    a, b, out = np.ones((4, 5), np.float32), np.ones((5, 6), np.float32), np.empty((4, 6), np.float32)
    gpu.stage(Work(a, b, None, out, 1, 0))
    for name in ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuLaunchHostFunc"):
        assert gpu.calls().count(name) == 1
    assert (out == 5).all()


def test_no_terms(machine):
    gpu = machine()
    a, b, c, out = np.ones((3, 0)), np.ones((0, 4)), np.ones((3, 4)), np.empty((3, 4))
    gpu.stage(Work(a, b, c, out, -1.0, 2.0))
    assert (out == 2).all()


def test_channels_are_few_and_come_back(machine):
    gpu, seen = machine(), set()

    def work(seed):
        with gpu.real, pinned.channels(gpu).one() as channel:
            seen.add(id(channel))
        case = Case(seed, "matrix")
        case.run(gpu)
        np.testing.assert_array_equal(case.out, case.result)

    at_once(work, range(12))
    assert len(seen) <= 4
    clean(gpu)
    destroyed(gpu)


def test_pieces_cover_a_part_once():
    chance = random.Random(0)
    for _ in range(1500):
        shape = [chance.choice([1, 1, 2, 3, 5, 17, 33, 70]) for _ in range(chance.randint(1, 4))]
        order = chance.sample(range(len(shape)), len(shape))
        base = np.arange(int(np.prod(shape)), dtype=chance.choice(["float32", "int8", "float64"]))
        array = base.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))
        if chance.random() < 0.3:
            axis = chance.randrange(len(shape))
            first = array[(*[slice(None)] * axis, slice(0, 1))]
            array = np.broadcast_to(first, [7 if x == axis else n for x, n in enumerate(shape)])
        of = block(array)
        cut = {}
        for axis in chance.sample(range(array.ndim), chance.randint(0, min(2, array.ndim))):
            start = chance.randrange(array.shape[axis]) if of.whole[axis] else 0
            cut[axis] = (start, chance.randint(start + 1, array.shape[axis]) if of.whole[axis] else array.shape[axis])
        limit = chance.choice([8, 64, 256, 1000, 4096, 10**6])
        device, host = np.zeros(of.nbytes, np.uint8), of.on_host(array)
        for piece in pieces(of, of.ranges(cut), limit):
            assert piece.width * piece.rows <= limit
            staged, source = np.zeros(piece.width * piece.rows, np.uint8), host[piece.place]
            np.ndarray(source.shape, array.dtype, staged, 0, piece.strides)[...] = source
            for row in range(piece.rows):
                at = piece.offset + row * piece.pitch
                device[at : at + piece.width] = staged[row * piece.width : (row + 1) * piece.width]
        index = tuple(slice(*cut.get(axis, (0, n))) for axis, n in enumerate(array.shape))
        found = np.ndarray(array.shape, array.dtype, device, 0, of.whole)
        np.testing.assert_array_equal(found[index], array[index])


def test_steps_cover_out_once_and_after_their_operands():
    for batch in ((), (3,), (40,), (2, 30)):
        for m, n, k in ((40, 40, 40), (64, 8, 100), (5, 90, 3), (33, 65, 20)):
            shape = Shape(m, n, k, 4, 4, 4, False, 1e6, 4)
            done = np.zeros((*batch, m, n), int)
            a, b = np.zeros((*batch, m, 1), bool), np.zeros((*batch, 1, n), bool)
            for step in steps(shape, batch):
                a_part, _, _, _ = parts(a, b, None, done, step.a)
                _, b_part, _, _ = parts(a, b, None, done, step.b)
                a_part[...], b_part[...] = True, True
                for job in step.jobs:
                    left, right, _, target = parts(a, b, None, done, job)
                    assert left.all()
                    assert right.all()
                    target += 1
            assert (done == 1).all()


def test_cuts_across_memory_leave_long_lines(machine, monkeypatch):
    """Rows of a transposed a, columns of a plain b; panels along memory may be as narrow as they like."""
    seen = []
    monkeypatch.setattr(staging, "LINE", 64)
    monkeypatch.setattr(staging, "steps", lambda shape, batch: seen.append(shape) or steps(shape, batch))
    for turned in (False, True):
        a, b, out = np.ones((40, 40), np.float32), np.ones((40, 40), np.float32), np.empty((40, 40), np.float32)
        gpu = machine()
        work = Work(a.T if turned else a, b.T if turned else b, None, out, 1, 0)
        gpu.stage(work, cuts_k=False)
        assert (out == 40).all()
        assert (seen[-1].rows, seen[-1].columns) == ((16, 1) if turned else (1, 16))
        for cuts in cuda_panels._candidates(seen[-1]):
            for along, grain in zip(cuts, (seen[-1].rows, seen[-1].columns), strict=True):
                assert all(cut % grain == 0 or cut == 40 for cut in along)


def test_panels_pay(monkeypatch):
    """By the model: copies of large products hide behind their arithmetic, or it behind them."""
    monkeypatch.undo()
    panels.cache_clear()
    for size, itemsize, rate in (
        (2048, 4, 30e12),
        (4096, 4, 30e12),
        (8192, 4, 26e12),
        (8192, 2, 4e14),
        (8192, 8, 15e12),
    ):
        shape = Shape(size, size, size, itemsize, itemsize, itemsize, False, rate, 132)
        rows, columns = panels(shape)
        copies = 3 * size * size * itemsize / min(cuda_panels.LINK, cuda_panels.HOST)
        assert seconds(shape, rows, columns) <= 1.2 * max(copies, size**3 / rate)
        assert sum((r1 - r0) * (c1 - c0) for step in range(len(rows) - 1)
                   for (r0, r1), (c0, c1) in rectangles(rows, columns, step)) == size * size  # fmt: skip


def test_copy_of_any_strides():
    rng = np.random.default_rng(0)
    for dtype in ("int8", "int16", "float32", "complex64", "complex128", "V3"):
        for shape in ((70, 90), (3, 1, 5000), (6000,), (17, 33, 5)):
            source = rng.integers(0, 255, (*shape, np.dtype(dtype).itemsize), dtype=np.uint8).view(dtype)[..., 0]
            for take in (source, source.T, source[..., ::-1], source[::2]):
                for to in (np.zeros(take.shape, dtype), np.zeros(take.shape[::-1], dtype).T):
                    for stream in (False, True):
                        to[...] = np.zeros((), dtype)
                        pinned.copy(to, take, stream=stream)
                        np.testing.assert_array_equal(to, take)
