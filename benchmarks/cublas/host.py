"""The cost on the host: calls for tiny products, and transfers of operands in host memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import gemm
from gemm.backends.cuda.arrays import DeviceArray
from gemm.backends.cuda.driver import cuda
from gemm.backends.cuda.pinned import locked

from .clock import Clock


def calls(clock: Clock, device: Any, *, quick: bool) -> dict[str, float]:
    """{call: median seconds until the call returns}, for 64 × 64 products on the device.

    A call returns when its product is enqueued, and does not wait for the result.
    """
    size, times, rounds = 64, 20 if quick else 200, 2 if quick else 15
    host = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    own = [DeviceArray(host.shape, host.dtype, device) for _ in range(3)]
    for array in own:
        array.copy_from_host(host)
    found: dict[str, Callable[[], Any]] = {
        "gemm(a, b, out=) on DeviceArrays": lambda: gemm.gemm(own[0], own[1], out=own[2], backend=device.key),
        "gemm.plan's handle on DeviceArrays": _plan(own, device.key),
    }
    for library, multiply in (("torch", "mm"), ("cupy", "matmul")):
        try:
            module = __import__(library)
            convert = module.from_dlpack if library == "torch" else module.asarray
            x, y, z = (convert(array) for array in own)
        except Exception:  # the library is missing, or does not work here
            continue
        name = {"torch": "PyTorch tensors", "cupy": "CuPy arrays"}[library]
        call = getattr(module, multiply)
        found[f"gemm(a, b, out=) on {name}"] = lambda x=x, y=y, z=z: gemm.gemm(x, y, out=z, backend=device.key)
        found[f"gemm.plan's handle on {name}"] = _plan([x, y, z], device.key)
        found[f"{library}.{multiply}(out=)"] = lambda call=call, x=x, y=y, z=z: call(x, y, out=z)
    samples: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds):
        for name, call in found.items():
            call()
            clock.settle()
            start = time.perf_counter()
            for _ in range(times):
                call()
            samples[name].append((time.perf_counter() - start) / times)
            clock.settle()
    return {name: median(values) for name, values in samples.items()}


def _plan(arrays: list[Any], key: str) -> Callable[[], Any]:
    a, b, out = arrays
    made = gemm.plan(a, b, out=out, backend=key)
    return lambda: made(a, b, out=out)


def transfers(clock: Clock, device: Any, sizes: list[int], *, quick: bool) -> list[dict[str, Any]]:
    """Time products of NumPy arrays, from host to host. Return and print a row for each product.

    The parts of a product are timed on their own, too: the transfers, in pinned memory, and the arithmetic.
    """
    rows = []
    for dtype in ("float32",) if quick else ("float32", "float64"):
        for size in sizes:
            rows.append(_transfer(clock, device, size, dtype, quick=quick))
            ratio, *times = (rows[-1][name] for name in ("ratio", "seconds", "copies", "compute"))
            whole, copies, compute = (f"{1e3 * x:.2f} ms" for x in times)
            print(f"host to host {size}³ {dtype}: {whole}, {ratio:.2f} of copies {copies}, arithmetic {compute}")
    return rows


def _transfer(clock: Clock, device: Any, size: int, dtype: str, *, quick: bool) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size)).astype(dtype) for _ in range(2))
    out = np.zeros((size, size), dtype)
    x, y, z = (DeviceArray((size, size), dtype, device) for _ in range(3))
    # A quick run passes the kernel's name. Without a name, gemm chooses a kernel for host operands and first looks for
    # all devices. This takes a minute on the tests' emulated GPU.
    kernel, rounds = (gemm.plan(x, y, out=z, backend=device.key).kernel, 3) if quick else (None, 9)
    whole = [_timed(lambda: gemm.gemm(a, b, out=out, backend=device.key, kernel=kernel)) for _ in range(rounds)]
    x.copy_from_host(a)
    y.copy_from_host(b)
    with device.handle:
        memory = locked(a.nbytes)
    host, place = memory.__array_interface__["data"][0], z.__cuda_array_interface__["data"][0]
    up = min(clock.seconds(lambda: cuda().cuMemcpyHtoDAsync(place, host, a.nbytes, clock.stream)) for _ in range(5))
    down = min(clock.seconds(lambda: cuda().cuMemcpyDtoHAsync(host, place, a.nbytes, clock.stream)) for _ in range(5))
    resident = []
    for _ in range(5):
        clock.settle()
        resident.append(_timed(lambda: (gemm.gemm(x, y, out=z, backend=device.key), clock.settle())))
    copies, compute, seconds = 2 * up + down, median(resident), median(whole[1:])
    return {
        "dtype": dtype, "m": size, "n": size, "k": size, "seconds": seconds, "copies": copies, "compute": compute,
        "ratio": seconds / max(copies, compute), "upload_gbs": a.nbytes / max(up, 1e-9) / 1e9,
        "download_gbs": a.nbytes / max(down, 1e-9) / 1e9,
    }  # fmt: skip


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def copy_rate(clock: Clock, device: Any, *, quick: bool) -> float:
    """Bytes per second of a copy within the device's memory: the bytes that it reads plus those that it writes."""
    nbytes = 1 << (20 if quick else 30)
    x, y = (DeviceArray((nbytes,), "uint8", device) for _ in range(2))
    places = [array.__cuda_array_interface__["data"][0] for array in (y, x)]
    stream = clock.stream
    taken = min(clock.seconds(lambda: cuda().cuMemcpyDtoDAsync(*places, nbytes, stream)) for _ in range(5))
    return 2 * nbytes / max(taken, 1e-9)
