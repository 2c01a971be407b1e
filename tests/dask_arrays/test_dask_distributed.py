"""gemm.dask on dask.distributed: names, threads, unlike workers, a worker that is killed, arrays larger than memory."""

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from helpers import rand
from oracle import check_same_bits, ordered

import gemm

distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed (the extra `scale`)")
dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

import gemm.dask  # noqa: E402
from gemm.dask import chunks, tasks  # noqa: E402

MIB = 1 << 20


@contextmanager
def workers(*environments, **options):
    """The client of processes, one with each of these environments and one thread unless `options` have more."""
    options = {"nthreads": 1, "memory_limit": "1 GiB", **options}
    cluster = distributed.SpecCluster(
        scheduler={"cls": distributed.Scheduler, "options": {"dashboard": False, "dashboard_address": ":0", "port": 0}},
        workers={
            number: {"cls": distributed.Nanny, "options": {**options, "env": environment}}
            for number, environment in enumerate(environments)
        },
        silence_logs=50,
    )  # fmt: skip
    with cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(len(environments), timeout=180)
        yield client


@pytest.fixture(scope="module")
def pair():
    """A client of two workers of one thread each."""
    with workers({}, {}) as client:
        yield client


def test_bits_and_names(pair):
    a, b, c = rand(90, 400), rand(400, 80), rand(90, 80)
    x, y = da.from_array(a, chunks=(30, 70)), da.from_array(b, chunks=(50, 40))
    assert chunks._threads() == (2, "distributed")
    found = gemm.dask.gemm(x, y, c, alpha=0.3, beta=-1.7, reproducible=True, chunks=None).compute()
    check_same_bits(found, ordered(a, b, c, alpha=0.3, beta=-1.7))
    small = da.ones((20, 20), chunks=10)
    summed = gemm.dask.gemm(small, small, small, beta=1, chunks=None, contraction="sum") + gemm.tensordot(
        small, small, 1
    )
    np.testing.assert_array_equal(summed.compute(), np.full((20, 20), 41.0))
    # what the dashboard's progress and task stream show
    names = set(pair.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.task_prefixes)))
    assert {"gemm-matmul", "gemm-matmul-aggregate"} <= names
    assert [name for name in names if name.startswith(("gemm-tensordot", "gemm-matmul-finish"))]


def cap(tasks_of_it):
    """(the share of a task, what gemm.get_num_threads says meanwhile) on the worker that computes this."""
    with tasks.sharing(tasks_of_it) as share:
        return share, gemm.get_num_threads()


def threads_started():
    """How many threads a large product starts in the process."""
    import psutil

    a = np.ones((1500, 1500), np.float32)
    before = psutil.Process().num_threads()
    with tasks.sharing(1):
        gemm.gemm(a, a, backend="cpu")
    return int(psutil.Process().num_threads() - before)


def test_a_worker_of_one_thread_uses_one(pair):
    pair.run(gemm.set_num_threads, 8)  # of a machine with as many cores
    try:
        assert pair.submit(cap, 1, pure=False).result() == (1, 1)
        assert pair.submit(cap, 64, pure=False).result() == (1, 1)
        assert pair.submit(threads_started, pure=False).result() == 0
    finally:
        pair.run(gemm.set_num_threads, None)


@pytest.mark.slow
def test_a_worker_of_several_threads_shares_them():
    with workers({}, nthreads=4) as client:
        client.run(gemm.set_num_threads, 8)
        assert client.submit(cap, 1, pure=False).result() == (4, 4)
        assert client.submit(cap, 2, pure=False).result() == (2, 2)
        assert client.submit(cap, 64, pure=False).result() == (1, 1)
        assert client.submit(threads_started, pure=False).result() == 3
        gemm.dask.matmul(da.ones((400, 50), chunks=10), da.ones((50, 50)), chunks=None).compute()
        assert client.run(lambda: sum(tasks._used.values())).popitem()[1] == 0


@pytest.mark.slow
def test_unlike_workers_give_one_result():
    unlike = [{"DASK_GEMM__BACKEND": "scalar"}, {"DASK_GEMM__BACKEND": "cpu"}]
    if not gemm.backends()["opencl"]:
        unlike.append({"DASK_GEMM__BACKEND": "opencl"})
    a, b = rand(640, 500), rand(500, 640)
    x, y = da.from_array(a, chunks=(40, 500)), da.from_array(b, chunks=(500, 40))
    with workers(*unlike) as client:
        product = client.persist(gemm.dask.matmul(x, y, reproducible=True, chunks=None))
        distributed.wait(product)
        holders = client.who_has(product)
        assert {worker for held in holders.values() for worker in held} == set(client.run(os.getpid))
        backends = client.run(lambda: tasks._settled({})["backend"])
        assert sorted(backends.values()) == sorted(own["DASK_GEMM__BACKEND"] for own in unlike)
        check_same_bits(product.compute(), gemm.gemm(a, b, reproducible=True))


def finished(client):
    """How many products are done and held."""

    def count(dask_scheduler):
        return sum(
            task.state == "memory" and task.prefix.name == "gemm-matmul" for task in dask_scheduler.tasks.values()
        )

    return int(client.run_on_scheduler(count))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"reproducible": True}, {"contraction": "sum"}], ids=["ordered", "sum"])
def test_a_killed_worker_changes_nothing(tmp_path, options):
    a, b = rand(720, 720), rand(720, 720)
    x, y = (da.from_array(z, chunks=120) for z in (a, b))
    killed = tmp_path / "killed"

    def held_back(block, block_id):
        end = time.monotonic() + 60
        while block_id == (5, 5) and not killed.exists() and time.monotonic() < end:
            time.sleep(0.01)
        return block

    x = x.map_blocks(held_back, meta=np.empty((0, 0), np.float32))
    product = gemm.dask.matmul(x, y, chunks=None, **options)
    killed.touch()
    expected = product.compute(scheduler="synchronous")
    killed.unlink()
    with workers({}, {}) as client:
        future = client.compute(product, optimize_graph=False)  # else several products would wait for one block
        end = time.monotonic() + 60
        while not (products := finished(client)) and time.monotonic() < end:
            time.sleep(0.01)
        assert products
        assert not future.done()
        held = {name: len(keys) for name, keys in client.has_what().items()}
        victim = max(held, key=held.__getitem__)
        assert held[victim]
        os.kill(client.run(os.getpid, workers=[victim])[victim], signal.SIGKILL)
        killed.touch()
        check_same_bits(future.result(timeout=120), expected)


def peak():
    """The most memory that this process has had, in bytes (getrusage's counts that of the process that started it)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def stored(folder, kind, name, shape, chunks, axis):
    """A random array on disk, as dask reads it; npy: a file for each block along `axis`."""
    if kind == "npy":
        chunks = (shape[0], chunks[1]) if axis else (chunks[0], shape[1])
    made = da.random.default_rng(sum(shape)).standard_normal(shape, chunks=chunks).astype(np.float32)
    if kind == "npy":
        da.to_npy_stack(folder / name, made, axis)
        return da.from_npy_stack(folder / name)
    zarr = pytest.importorskip("zarr", reason="zarr is not installed (the extra `scale`)")
    made.to_zarr(zarr.create_array(folder / name, shape=shape, chunks=chunks, dtype="float32", compressors=None))
    return da.from_zarr(folder / name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"), [("zarr", {"reproducible": True}), ("npy", {"contraction": "sum"})], ids=["zarr", "npy"]
)
def test_arrays_larger_than_the_workers_memory(tmp_path, kind, options):
    m, k, n, step, limit = 2048, 65536, 512, 2048, 512 * MIB
    a = stored(tmp_path, kind, "a", (m, k), (m // 2, step), 1)
    b = stored(tmp_path, kind, "b", (k, n), (step, n), 0)
    assert a.nbytes + b.nbytes >= 1.25 * limit
    with workers({}, memory_limit=limit) as client:
        before = client.run(os.getpid)
        product = gemm.dask.matmul(a, b, chunks="8 MiB", **options)
        assert len(product.dask) > 32
        if kind == "zarr":
            product.to_zarr(tmp_path / "c")
        else:
            da.to_npy_stack(tmp_path / "c", product)
        assert client.run(os.getpid) == before  # no worker ran out of memory and was replaced
        (most,) = client.run(peak).values()
        assert most < limit
    found = (da.from_zarr if kind == "zarr" else da.from_npy_stack)(tmp_path / "c").compute(scheduler="synchronous")
    assert found.shape == (m, n)
    vector = np.random.default_rng(0).choice([-1.0, 1.0], n)
    projected = np.zeros(m)
    for start in range(0, k, step):
        left, right = dask.compute(a[:, start : start + step], b[start : start + step], scheduler="synchronous")
        projected += left.astype(float) @ (right @ vector)
    error = found.astype(float) @ vector - projected
    assert 0 < abs(error).max() <= (k + 2) * 2.0**-24 * np.sqrt(k) * n  # of terms of about 1, n of them a row
    if "reproducible" in options:
        rows, columns = slice(100, 103), slice(7, 12)
        left, right = dask.compute(a[rows], b[:, columns], scheduler="synchronous")
        check_same_bits(found[rows, columns], gemm.gemm(left, right, reproducible=True))
