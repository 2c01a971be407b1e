"""Products of CUDA arrays, many at once: alike ones of `gemm.gemm_many` in one launch, all others at once, on the
device. On a GPU, or by --cuda-machine."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import gemm
from gemm import execute
from gemm.backends import registry
from gemm.backends.cuda import driver, pointer_table
from gemm.backends.cuda.backend import Launcher
from gemm.core.errors import KernelFailed
from gemm.core.problem import Plan
from gemm.extras import batching
from gemm.frontend import plan_cache
from gemm.select import verification

RNG = np.random.default_rng(23)
COUNT = 40


class Ours:
    """DeviceArrays."""

    def __init__(self, backend):
        self._backend, self._device = backend, backend.devices()[0]

    def array(self, x):
        return self._backend.to_device(x, self._device).owner

    def values(self, x):
        return self._backend.to_host(x.view())


class CuPy:
    def __init__(self, backend):
        self._cupy = pytest.importorskip("cupy")

    def array(self, x):
        return self._cupy.asarray(x)

    def values(self, x):
        return np.asarray(self._cupy.asnumpy(x))


class Torch:
    def __init__(self, backend):
        self._torch = pytest.importorskip("torch")
        if not self._torch.cuda.is_available():
            pytest.skip("this PyTorch has no GPU")

    def array(self, x):
        return self._torch.from_numpy(x.copy()).cuda()

    def values(self, x):
        return np.asarray(x.cpu().numpy())


@pytest.fixture(autouse=True)
def verified(monkeypatch):
    """All kernels count as verified: else others stand in meanwhile, and products are chosen for anew afterwards."""
    monkeypatch.setattr(verification, "record", lambda *_, **__: {"ok": True, "error": ""})
    verification.forget_choices()


@pytest.fixture
def cuda():
    if gemm.backends()["cuda"]:
        pytest.skip(gemm.backends()["cuda"])
    return registry.backend("cuda")


@pytest.fixture(params=[Ours, CuPy, Torch])
def library(request, cuda):
    return request.param(cuda)


@pytest.fixture
def ours(cuda):
    return Ours(cuda)


@pytest.fixture
def together(monkeypatch):
    """How many products each launch of several had."""
    counts = []
    launch = pointer_table.launch

    def counted(gpu, launches, slot, table, *more):
        launch(gpu, launches, slot, table, *more)
        counts.append(table.many)

    monkeypatch.setattr(pointer_table, "launch", counted)
    plan_cache.forget()
    yield counts
    plan_cache.forget()


def matrices(count=COUNT, shape=(8, 8), dtype="float32"):
    return list(RNG.standard_normal((count, *shape)).astype(dtype))


def sent(library, *stacks):
    return [[library.array(x) for x in stack] for stack in stacks]


def expected(a, b, c=None, **options):
    """One by one, on the CPU: with reproducible=True the same bits."""
    third = c or [None] * len(a)
    return np.stack(
        [gemm.gemm(x, y, z, reproducible=True, backend="cpu", **options) for x, y, z in zip(a, b, third, strict=True)]
    )


def check(library, found, right):
    assert_array_equal(np.stack([library.values(x) for x in found]), right)


def test_in_one_launch(library, together):
    p, q = matrices(), matrices()
    a, b, out = sent(library, p, q, matrices())
    assert gemm.gemm_many(a, b, out=out, reproducible=True) is out
    check(library, out, expected(p, q))
    assert together == [COUNT - 1], "the first one of a kind is looked at alone"
    assert gemm.gemm_many(b, a, out=out, reproducible=True) is out
    check(library, out, expected(q, p))
    assert together == [COUNT - 1, COUNT]


def test_new_results(library, together):
    p, q = matrices(shape=(5, 7)), matrices(shape=(7, 3))
    a, b = sent(library, p, q)
    for _ in range(2):
        found = gemm.gemm_many(a, b, reproducible=True)
        check(library, found, expected(p, q))
        assert {type(x) for x in found} == {type(a[0])}
        assert len({tuple(x.shape) for x in found}) == 1
    assert together == [COUNT - 1, COUNT]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("size", [3, 16, 33, 70])
def test_types_and_tiles(ours, together, dtype, size):
    p, q, r = (matrices(20, (size, size), dtype) for _ in range(3))
    a, b, c = sent(ours, p, q, r)
    many = gemm.gemm_many(a, b, c, alpha=0.5, beta=-2, trans_b=True)
    single = [
        gemm.gemm(*three, alpha=0.5, beta=-2, trans_b=True, reproducible=True) for three in zip(a, b, c, strict=True)
    ]
    found, right = (np.stack([ours.values(x) for x in some]).astype(float) for some in (many, single))
    np.testing.assert_allclose(found, right, atol=1e-5 if dtype != "float16" else 2e-2 * size**0.5)
    if dtype != "float64" or size < 70:  # whose tiles for small products are small
        assert together == [19]


def test_c_and_operands_of_all(library, together):
    p, q, r = matrices(), matrices(1), matrices()
    a, (b,), c, out = sent(library, p, q, r, matrices())
    options = {"alpha": 0.5, "beta": -2.0, "trans_b": True}
    right = expected(p, q * COUNT, r, **options)
    for given in ((c, out), (c, None), (c, c)):
        found = gemm.gemm_many(a, b, given[0], out=given[1], reproducible=True, **options)
        check(library, found, right)
    assert together == [COUNT - 1] * 3
    found = gemm.gemm_many(a, b, c[0], out=out, beta=1, reproducible=True)
    check(library, found, expected(p, q * COUNT, [right[0]] * COUNT, beta=1))
    del together[:]
    found = gemm.gemm_many(a, b, [*c[:20], *out[20:]], out=out, reproducible=True)
    check(library, found, expected(p, q * COUNT))
    assert together, "c is not read"


def test_runs_of_several_kinds(ours, together):
    p = [*matrices(), *matrices(shape=(4, 8)), *matrices(3, (2, 8)), *matrices()]
    q = matrices(len(p))
    a, b = sent(ours, p, q)
    found = gemm.gemm_many(a, b, reproducible=True)
    for x, y, z in zip(p, q, found, strict=True):
        assert_array_equal(ours.values(z), expected([x], [y])[0])
    assert together == [COUNT - 1, COUNT - 1, COUNT - 2], "a run too short ends the looking for a while"


def test_dependent_ones_keep_their_order(library, together):
    count = 3 * batching._LATE
    p, q = matrices(1), [x / 4 for x in matrices(count)]
    (first,), b = sent(library, p, q)
    chain = [first, *(library.array(x) for x in matrices(count))]
    gemm.gemm_many(chain[:-1], b, out=chain[1:], reproducible=True)
    x = p[0]
    for y, z in zip(q, chain[1:], strict=True):
        x = gemm.gemm(x, y, reproducible=True, backend="cpu")
        assert_array_equal(library.values(z), x)
    assert not together


@pytest.mark.parametrize("at", [1, 70, 128])
def test_up_to_one_that_depends(ours, together, at):
    p, q = matrices(130), matrices(130)
    a, b, out = sent(ours, p, q, matrices(130))
    a[at] = out[at - 1]
    gemm.gemm_many(a, b, out=out, reproducible=True)
    p[at] = expected(p[at - 1 : at], q[at - 1 : at])[0]
    check(ours, out, expected(p, q))
    assert together
    out[at] = out[at - 1]
    gemm.gemm_many(b, b, out=out, reproducible=True)
    assert_array_equal(ours.values(out[at]), expected([q[at]], [q[at]])[0])


def test_out_that_is_an_operand(ours, together):
    p, q = matrices(), matrices()
    a, b = sent(ours, p, q)
    for _ in range(2):
        gemm.gemm_many(a, b, out=a, reproducible=True)
        p = list(expected(p, q))
        check(ours, a, np.stack(p))
    assert not together


def test_mistakes_name_their_product(ours, together):
    p, q = matrices(), matrices()
    a, b, out = sent(ours, p, q, matrices())
    gemm.gemm(a[0], b[0], out=out[0], reproducible=True)
    b[30] = ours.array(matrices(1, (9, 8))[0])
    with pytest.raises(ValueError, match=r"^product 30: a has shape \(8, 8\) and b has shape \(9, 8\)"):
        gemm.gemm_many(a, b, out=out, reproducible=True)
    assert together == [30]
    check(ours, out[:30], expected(p[:30], q[:30]))
    b[30] = None  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"^product 30"):
        gemm.gemm_many(a, b, reproducible=True)


def failing(times):
    """What `cuda_table.launch` may meet."""
    launch, left = pointer_table.launch, [times]

    def fails(*given, **options):
        if left[0]:
            left[0] -= 1
            raise KernelFailed("cuLaunchKernel: injected")
        launch(*given, **options)

    return fails


@pytest.mark.parametrize("times", [1, 100])
def test_failures_are_retried_or_done_without(ours, monkeypatch, times):
    p, q = matrices(), matrices()
    a, b, out = sent(ours, p, q, matrices())
    demoted = []
    monkeypatch.setattr(verification, "demote", lambda kernel, *_: demoted.append(kernel.name))
    monkeypatch.setattr(pointer_table, "launch", failing(times))
    check(ours, gemm.gemm_many(a, b, out=out, reproducible=True), expected(p, q))
    assert demoted
    assert (len(demoted) == 1) == (times == 1)
    assert all("small" in name for name in demoted)


def test_no_memory_for_a_table(ours, monkeypatch):
    p, q = matrices(), matrices()
    a, b, out = sent(ours, p, q, matrices())
    gemm.gemm(a[0], b[0], out=out[0], reproducible=True)

    def none(*_):
        raise KernelFailed("cuMemAllocFromPoolAsync: injected", memory=True)

    gpu = type(registry.backend("cuda").devices()[0].handle)
    monkeypatch.setattr(gpu, "allocate", none)
    check(ours, gemm.gemm_many(a, b, out=out, reproducible=True), expected(p, q))


def test_a_table_is_not_captured(ours, together, monkeypatch):
    """Graphs read it when they run, and it is others' by then."""
    p, q = matrices(), matrices()
    a, b, out = sent(ours, p, q, matrices())
    for status in (1, None):

        def asked(stream, status=status):
            if status is None:
                raise KernelFailed("CUDA_ERROR_STREAM_CAPTURE_IMPLICIT")
            return status

        monkeypatch.setattr(driver.cuda(), "cuStreamIsCapturing", asked, raising=False)
        check(ours, gemm.gemm_many(a, b, out=out, reproducible=True), expected(p, q))
    assert not together


def test_large_ones_are_launched_by_themselves(cuda):
    device = cuda.devices()[0]
    where = "auto", None, device
    worth = []
    for size in (16, 64, 512, 2048):
        one = gemm.core.problem.Problem("float32", size, size, size, device=device.key)
        many = gemm.core.problem.Problem("float32", size, size, size, batch=32, device=device.key, apart=True)
        worth.append(batching._worth(many, one, where))
    assert worth[0]
    assert not worth[-1]
    assert worth == sorted(worth, reverse=True)


def test_more_than_a_table_has(ours, together, monkeypatch):
    monkeypatch.setattr(pointer_table, "MOST", 32)
    p, q = matrices(100), matrices(100)
    a, b = sent(ours, p, q)
    check(ours, gemm.gemm_many(a, b, reproducible=True), expected(p, q))
    assert together == [32, 32, 32]


def test_tables_follow_each_other(ours, together):
    """More of them than there are slots of page-locked memory."""
    p, q = matrices(), matrices()
    a, b, out = sent(ours, p, q, matrices())
    for _ in range(5):
        gemm.gemm_many(a, b, out=out, reproducible=True)
        gemm.gemm_many(out, b, out=a, reproducible=True)
    once = p
    for _ in range(10):
        once = list(expected(once, q))
    check(ours, a, np.stack(once))
    assert len(together) == 10


def test_a_stack_through_a_table(cuda):
    device = cuda.devices()[0]
    row = next(row for row in gemm.catalog.KERNELS if row.params.get("pointers"))
    problem = gemm.core.problem.Problem(row.dtype, 5, 6, 7, 12, device=device.key, reproducible=True, apart=True)
    run = execute.launcher(Plan(problem, row, device, 0.0, ""))
    assert isinstance(run, Launcher)
    p, q = (RNG.standard_normal(shape).astype(np.float32) for shape in ((3, 4, 5, 7), (3, 4, 7, 6)))
    a, b, out = (cuda.to_device(x, device) for x in (p, q, np.zeros((3, 4, 5, 6), np.float32)))
    run(a, b, None, out, 1.0, 0.0)
    assert_array_equal(cuda.to_host(out), gemm.gemm(p, q, reproducible=True, backend="cpu"))


@pytest.mark.parametrize("count", [1, 16, 17, 31, 1000, 16384])
def test_few_sizes_of_tables(count):
    size = pointer_table.rounded(count)
    assert count <= size <= min(count * 9 / 8, pointer_table.MOST)
    assert len({pointer_table.rounded(x) for x in range(1, 16385)}) < 100


def test_otherwise_they_do_not_wait(ours):
    p, q = matrices(12), matrices(12)
    a, b, out = sent(ours, p, q, matrices(12))
    with gemm.batching() as batch:
        for x, y, z in zip(a, b, out, strict=True):
            assert gemm.gemm(x, y, out=z, reproducible=True) is z
            assert len(batch) == 0
    check(ours, out, expected(p, q))


def test_those_of_the_host_that_wait_beside_them(ours):
    p, q = matrices(12), matrices(12)
    a, b = sent(ours, p, q)
    host = np.zeros((12, 8, 8), np.float32)
    gemm.gemm(p[0], q[0], out=host[0], backend="cpu")
    with gemm.batching():
        found = []
        for i in range(12):
            gemm.gemm(p[i], q[i], out=host[i], backend="cpu")
            found.append(gemm.gemm(a[i], b[i], reproducible=True))
    check(ours, found, host)
