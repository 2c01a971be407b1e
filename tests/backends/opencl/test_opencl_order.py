"""Repeated products in an OpenCL queue without an order: each command waits for those that it must come after.

A driver may run such commands in the order they came, whatever they wait for, so that results show nothing. Looked at
is what each was told to wait for. Planted faults show that this sees what is missing.
"""

import inspect

import numpy as np
import pytest

import gemm
from gemm.backends import registry
from gemm.backends.opencl import launch, replay
from gemm.core.errors import BackendUnavailable
from gemm.frontend import plan_cache

cl = pytest.importorskip("pyopencl")
cla = pytest.importorskip("pyopencl.array")
PLAIN = "sgemm_generic_naive"  # one command
SPLIT = "sgemm_generic_skinny_4x4"  # parts of k, which lie in memory of the replay's own, and their sum
DEEP = 800
SHAPES = {name: (rows, columns) for names, rows, columns in (
    ("au", 3, DEEP), ("bv", DEEP, 16), ("cwxyz", 3, 16), ("e", 3, 8), ("f", 8, DEEP), ("g", DEEP, 8), ("h", 8, 16),
) for name in names}  # fmt: skip
# out, a, b, c of SPLIT and PLAIN in turns: PLAIN writes what SPLIT reads as a, b or c, or writes; then it reads that.
PRODUCTS = ("xabc", "uef", "xabc", "uef", "xubc", "vgh", "xavc", "weh", "xabw", "xeh", "xabc", "yehx", "zabc")


class Recorder:
    """Commands of products, by number: what each waits for, itself or through others."""

    def __init__(self, monkeypatch):
        self.before = []
        self._events = []
        enqueue = cl.enqueue_nd_range_kernel

        def recorded(*given, wait_for=None, **options):
            told = [number for event in wait_for or () for number, known in enumerate(self._events) if known == event]
            self.before.append({*told}.union(*(self.before[number] for number in told)))
            event = enqueue(*given, wait_for=wait_for, **options)
            self._events.append(event)
            return event

        monkeypatch.setattr(cl, "enqueue_nd_range_kernel", recorded)

    def product(self, a, b, c, out, kernel):
        """The numbers of the commands of out = a·b, or a·b + c."""
        first = len(self.before)
        gemm.gemm(a, b, c, beta=int(c is not None), out=out, kernel=kernel)
        return range(first, len(self.before))


def looked_at(monkeypatch):
    """What is missing in a row of products by two kernels, in turns, whose replays know nothing of each other."""
    try:
        context = registry.backend("opencl").devices()[0].handle.queue.context
    except BackendUnavailable as error:
        pytest.skip(str(error))
    free = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    if not context.devices[0].queue_properties & free:
        pytest.skip("the device has no queues without an order")
    queue = cl.CommandQueue(context, properties=free)
    rng = np.random.default_rng(0)
    values = {name: rng.integers(-2, 3, shape).astype(np.float32) for name, shape in SHAPES.items()}
    arrays = {name: cla.to_device(queue, x) for name, x in values.items()}
    queue.finish()
    recorder, missing = Recorder(monkeypatch), []
    wrote = {}  # the last command that wrote an array, or was SPLIT's
    plan_cache.forget()
    for turn, names in enumerate(PRODUCTS):
        out, left, right, c = (arrays.get(name) for name in names.ljust(4))
        split = turn % 2 == 0
        commands = recorder.product(left, right, c, out, SPLIT if split else PLAIN)
        assert len(commands) == 1 + split
        told, before = f"product {turn} does not wait for", recorder.before[commands[0]]
        missing += [f"{told} {name}" for name in names if name in wrote and wrote[name] not in before]
        if split:
            if turn > 2 and wrote[SPLIT] not in before:  # product 0 made the replay
                missing.append(f"{told} the one whose parts lie in the same memory")
            if commands[0] not in recorder.before[commands[1]]:
                missing.append(f"{told} its own parts")
            wrote[SPLIT] = commands[-1]
        wrote[names[0]] = commands[-1]
    queue.finish()
    return missing


@pytest.fixture(autouse=True)
def replays():
    yield
    plan_cache.forget()


def test_commands_wait_for_what_they_need(monkeypatch):
    assert looked_at(monkeypatch) == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[*a.events, *b.events]", "[*b.events]", "product 4 does not wait for u"),
        ("[*a.events, *b.events]", "[*a.events]", "product 6 does not wait for v"),
        ("            after += c.events\n", "            pass\n", "product 8 does not wait for w"),
        ("after += [*pending, *(", "after += [*(", "product 10 does not wait for x"),
        ("*([] if self._last is None else [self._last])", "", "in the same memory"),
        (
            "self._last = cl.enqueue_nd_range_kernel(self._queue, kernel, extent, group, wait_for=after)\n"
            "            after = [self._last]",
            "after = [cl.enqueue_nd_range_kernel(self._queue, kernel, extent, group, wait_for=after)]",
            "in the same memory",
        ),
        ("            after = [self._last]\n", "", "does not wait for its own parts"),
        ("        pending[:] = after\n", "", "product 11 does not wait for x"),
    ],
)
def test_planted_faults_are_seen(monkeypatch, old, new, told):
    text = inspect.getsource(replay)
    assert text.count(old) == 1
    planted = {"__name__": replay.__name__}
    exec(compile(text.replace(old, new), replay.__file__, "exec"), planted)
    monkeypatch.setattr(launch, "Replay", planted["Replay"])
    assert any(told in line for line in looked_at(monkeypatch))
