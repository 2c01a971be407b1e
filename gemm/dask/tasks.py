"""The tasks that run on workers: products of blocks, their sums, and the epilogue. A worker chooses its backend."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import dask
import numpy as np
from dask.system import CPU_COUNT

from gemm.catalog import KERNELS
from gemm.core import engine, epilogue, threads
from gemm.core.errors import BackendUnavailable
from gemm.extras import ordered_sum
from gemm.frontend.api import at_once as gemm
from gemm.numpy_api.contractions import tensordot

_TARGETS = {row.target for row in KERNELS if row.backend == "cpu"}
_lock = threads.lock()
_used: dict[object, int] = {}
"""{address of a worker in this process, or None: threads that its products use at present}."""


def product(a: Any, b: Any, *more: Any, named: Sequence[str], summed: int, tasks: int, options: dict[str, Any]) -> Any:
    """gemm.gemm of blocks. The result has an axis of length 1 for each of the `summed` labels that dask still sums.

    Args:
        more, named: the blocks and the names of c and bias, if given.
        tasks: the number of tasks like this one in the whole product.
    """
    others = dict(zip(named, map(_block, more), strict=True))
    with sharing(tasks):
        result = gemm(_block(a), _block(b), **others, **_settled(options))
    return result.reshape(result.shape + (1,) * summed) if summed else result


def going_on(sums: Any, a: Any, b: Any, *, tasks: int, options: dict[str, Any]) -> Any:
    """Continue an ordered product from `sums` with the next block of k, on the CPU; see `gemm.extras.ordered_sum`."""
    backend = _settled(options)["backend"]
    result = np.array(sums, order="C")
    with sharing(tasks):
        ordered_sum.go_on(
            result, _block(a), _block(b), trans_a=options["trans_a"], trans_b=options["trans_b"],
            backend=backend if backend in _TARGETS else "cpu",
        )  # fmt: skip
    return result[()]


def tensors(a: Any, b: Any, *, axes: Any, summed: int, tasks: int, options: dict[str, Any]) -> Any:
    """gemm.tensordot of blocks; the arguments are as for `product`."""
    with sharing(tasks):
        result = tensordot(_block(a), _block(b), axes, **_settled(options))
    return result.reshape(result.shape + (1,) * summed) if summed else result


def part(x: Any, axis: Any, keepdims: bool) -> Any:
    """A term of `total`, unchanged: dask.array.reduction asks for a function of each block."""
    return x


def total(blocks: Any, axis: Any, keepdims: bool) -> Any:
    """The sum of `blocks`, added in order."""
    first, *others = _flat(blocks)
    result = first
    with np.errstate(all="ignore"):  # NaN and Inf are results, not errors
        for count, term in enumerate(others):
            if count:
                result += term
            else:
                result = result + term
    return result if keepdims else result.squeeze(axis)[()]


def finish(
    x: Any, *more: Any, named: Sequence[str], alpha: Any, beta: Any, activation: str | None, kind: np.dtype[Any],
    dropped: tuple[bool, bool], ordered: bool,
) -> Any:  # fmt: skip
    """activation(alpha·x + beta·c + bias) as `kind`, computed in the type of the sums x.

    Args:
        dropped: whether the result lacks the axis of rows, and whether it lacks the axis of columns.
        ordered: round as the end of an ordered accumulation does.
    """
    others = dict(zip(named, map(_block, more), strict=True))
    with np.errstate(all="ignore"):
        if ordered:
            result = ordered_sum.scale(np.asarray(x), others.get("c"), alpha, beta)
        else:
            result = x.copy() if alpha == 1 else x * x.dtype.type(alpha)
            if "c" in others:
                c = others["c"].astype(x.dtype)
                result = result + (c if beta == 1 else c * x.dtype.type(beta))
            if isinstance(result, np.generic):
                result = np.asarray(result)
        bias = others.get("bias")
        if bias is not None and bias.ndim == 2:
            bias = bias[tuple(0 if gone else slice(None) for gone in dropped)]
        elif bias is not None and all(dropped):
            bias = bias[0]
        epilogue.apply(result, bias, activation or "")
        return result.astype(kind, copy=False)[()]


@contextmanager
def sharing(tasks: int) -> Iterator[int]:
    """Limit the products of this thread to their share of the threads. Yields the number of threads of the share.

    The tasks of a product that can run at the same time, at most `tasks`, share the threads that no other product of
    the worker uses. Every task gets at least one thread. A product of few tasks takes more threads per task, so a later
    task can exceed the limit by one thread.

    A worker of dask.distributed has `nthreads` threads. dask's local schedulers share gemm.get_num_threads() among
    num_workers of dask's configuration, or among as many workers as dask counts CPUs. The synchronous scheduler runs
    one task at a time.
    """
    try:
        limit = engine.get_num_threads()
    except BackendUnavailable:  # there is no engine: the backend that computes uses no threads of this package
        yield 1
        return
    owner, at_once = _where()
    most = limit if owner is None else min(limit, at_once)
    with _lock:
        free = most - _used.get(owner, 0)
        share = max(1, min(most // max(1, min(at_once, tasks)), free))
        _used[owner] = _used.get(owner, 0) + share
    try:
        with engine.leaving(limit - share):
            yield share
    finally:
        with _lock:
            _used[owner] -= share


def _where() -> tuple[object, int]:
    """The worker of this thread, or None for a local scheduler, and the number of tasks that it runs at once."""
    if distributed := sys.modules.get("distributed"):
        with suppress(ValueError):  # raised if this thread does not belong to a worker
            worker = distributed.get_worker()
            return worker.address, worker.state.nthreads
    multiprocessing = sys.modules.get("multiprocessing")
    child = multiprocessing is not None and multiprocessing.parent_process() is not None
    if threading.current_thread() is threading.main_thread() and not child:
        return None, 1
    return None, dask.config.get("num_workers", None) or CPU_COUNT


def _settled(options: dict[str, Any]) -> dict[str, Any]:
    """`options` with the worker's own backend, if the worker has one and the caller names none."""
    backend = options.get("backend", "auto")
    return {**options, "backend": dask.config.get("gemm.backend", "auto") if backend == "auto" else backend}


def _block(x: Any) -> Any:
    """The block of an operand. dask wraps it in a list of one item for each label that the result lacks."""
    while isinstance(x, list):
        (x,) = x
    return x


def _flat(blocks: Any) -> list[Any]:
    return [x for block in blocks for x in _flat(block)] if isinstance(blocks, list) else [blocks]
