"""The contestants: gemm, and cuBLAS through PyTorch, CuPy and cublasLt, on the same memory and the same stream."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import gemm
from gemm.backends.cuda.arrays import DeviceArray
from gemm.core.errors import BackendUnavailable

from .clock import Clock, Enqueue
from .lt import Absent, CublasLt
from .products import Family, Product

UNABLE = (Absent, BackendUnavailable, ValueError, TypeError, RuntimeError, NotImplementedError, AttributeError)
"""Exceptions that a contestant may raise if it cannot compute a product."""

Contestant = Callable[[Family, Product, Any, Any, Any], Enqueue]
"""(family, product, a, b, out) → a function that enqueues the product; a, b and out are DeviceArrays."""


def on_stream(array: DeviceArray, stream: int) -> Any:
    """An array interface of `array` that requests work on `stream`."""
    interface = {**array.__cuda_array_interface__, "stream": stream}
    return SimpleNamespace(__cuda_array_interface__=interface, dtype=array.dtype, keeps=array)


def ours(clock: Clock, key: str, kernel: str | None = None) -> Contestant:
    """gemm on the device `key`, with the kernel `kernel`, or with the kernel that dispatch chooses."""

    def prepare(family: Family, product: Product, a: Any, b: Any, out: Any) -> Enqueue:
        x, y, z = (on_stream(array, clock.stream) for array in (a, b, out))
        options = {"backend": key, "kernel": kernel, "precision": family.precision, "trans_b": family.turned}
        return lambda: gemm.gemm(x, y, out=z, dtype=out.dtype, **options)

    return prepare


class Torch:
    """PyTorch with one of its BLAS libraries."""

    def __init__(self, clock: Clock, library: str) -> None:
        self.torch, self.clock, self.library = importlib.import_module("torch"), clock, library
        if not self.torch.cuda.is_available():
            raise Absent("this PyTorch has no CUDA")
        self.torch.set_grad_enabled(False)

    def __call__(self, family: Family, product: Product, a: Any, b: Any, out: Any) -> Enqueue:
        torch = self.torch
        torch.backends.cuda.matmul.allow_tf32 = family.peer == "tf32"
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        x, y, z = (torch.from_dlpack(array) for array in (a, b, out))
        multiply: Enqueue
        if family.dtype == "int8":
            multiply = partial(torch._int_mm, x, y.mT, out=z)
        elif family.turned:
            scale = torch.ones((), device=x.device)
            multiply = partial(torch._scaled_mm, x, y.mT, scale, scale, out_dtype=z.dtype, out=z)
        else:
            multiply = partial(torch.bmm if product[0] else torch.mm, x, y, out=z)
        stream = torch.cuda.ExternalStream(self.clock.stream)

        def enqueue() -> None:
            torch.backends.cuda.preferred_blas_library(self.library)
            with torch.cuda.stream(stream):
                multiply()

        return enqueue


class CuPy:
    """cupy.matmul(out=)."""

    def __init__(self, clock: Clock) -> None:
        self.cupy, self.clock = importlib.import_module("cupy"), clock

    def __call__(self, family: Family, product: Product, a: Any, b: Any, out: Any) -> Enqueue:
        if family.turned or family.peer or family.dtype == "bfloat16":
            raise Absent("CuPy has no such product")
        cupy = self.cupy
        x, y, z = (cupy.asarray(array) for array in (a, b, out))
        stream = cupy.cuda.ExternalStream(self.clock.stream)

        def enqueue() -> None:
            with stream:
                cupy.matmul(x, y, out=z)

        return enqueue


class Lt:
    """The fastest of the algorithms that cublasLt's heuristics propose."""

    def __init__(self, clock: Clock, device: Any) -> None:
        self.clock, self.library = clock, CublasLt(device)

    def __call__(self, family: Family, product: Product, a: Any, b: Any, out: Any) -> Enqueue:
        offers = self.library.offers(family, product, a, b, out, self.clock.stream)
        found: list[tuple[float, int]] = []
        for at, enqueue in enumerate(offers):
            try:
                self.clock.seconds(enqueue)
                found.append((min(self.clock.seconds(enqueue) for _ in range(3)), at))
            except Absent:  # this algorithm does not run
                continue
        if not found:
            raise Absent("none of cublasLt's offers runs")
        return offers[min(found)[1]]


def peers(clock: Clock, device: Any) -> Iterator[tuple[str, Contestant | str]]:
    """(name, contestant), or (name, why it is missing)."""
    makers: dict[str, Callable[[], Contestant]] = {
        "torch": lambda: Torch(clock, "cublas"), "torch, cublasLt": lambda: Torch(clock, "cublaslt"),
        "cupy": lambda: CuPy(clock), "cublasLt": lambda: Lt(clock, device),
    }  # fmt: skip
    for name, make in makers.items():
        try:
            yield name, make()
        except Exception as error:  # a broken installation, of any kind, counts as a missing peer
            yield name, f"{type(error).__name__}: {error}"
