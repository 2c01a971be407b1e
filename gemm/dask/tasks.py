"""What runs on workers: products of blocks, their sums, and what follows these. A worker chooses its own backend."""

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
from gemm.dask import ordered_sum
from gemm.frontend.api import at_once as gemm
from gemm.numpy_api.contractions import tensordot

_TARGETS = {row.target for row in KERNELS if row.backend == "cpu"}
_lock = threads.lock()
_used: dict[object, int] = {}
"""{address of a worker of this process, or None: threads that its products have now}."""


def product(a: Any, b: Any, *more: Any, named: Sequence[str], summed: int, tasks: int, options: dict[str, Any]) -> Any:
    """gemm.gemm of blocks, with an axis of length 1 for each of `summed` labels whose blocks are still to be summed.

    more, named: c and bias, as far as there are. tasks: how many such tasks the product has.
    """
    others = dict(zip(named, map(_block, more), strict=True))
    with sharing(tasks):
        result = gemm(_block(a), _block(b), **others, **_settled(options))
    return result.reshape(result.shape + (1,) * summed) if summed else result


def going_on(sums: Any, a: Any, b: Any, *, tasks: int, options: dict[str, Any]) -> Any:
    """The next block of k of ordered products whose sums are `sums` so far, on the CPU; see `gemm.dask.ordered_sum`."""
    backend = _settled(options)["backend"]
    result = np.array(sums, order="C")
    with sharing(tasks):
        ordered_sum.go_on(
            result, _block(a), _block(b), trans_a=options["trans_a"], trans_b=options["trans_b"],
            backend=backend if backend in _TARGETS else "cpu",
        )  # fmt: skip
    return result[()]


def tensors(a: Any, b: Any, *, axes: Any, summed: int, tasks: int, options: dict[str, Any]) -> Any:
    """The same of gemm.tensordot."""
    with sharing(tasks):
        result = tensordot(_block(a), _block(b), axes, **_settled(options))
    return result.reshape(result.shape + (1,) * summed) if summed else result


def part(x: Any, axis: Any, keepdims: bool) -> Any:
    """A term of `total`, as it is."""
    return x


def total(blocks: Any, axis: Any, keepdims: bool) -> Any:
    """The sum of blocks, in their order."""
    first, *others = _flat(blocks)
    result = first
    with np.errstate(all="ignore"):  # NaN and Inf are results, not events
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
    """activation(alpha·x + beta·c + bias) as `kind`, in the type of the sums x. dropped: the result has no rows, no
    columns. ordered: as the chain ends."""
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
    """Let the products of this thread use their share of the threads, which is yielded: the tasks of a product that may
    run at once, out of `tasks`, use no more than there are, nor what others use by then. Every task has one, at least:
    so those beside a product of few tasks, which was given more, may exceed that by one each.

    A worker of dask.distributed has as many as its nthreads; dask's local schedulers share gemm.get_num_threads() among
    num_workers of dask's configuration, or as many as dask counts CPUs. The synchronous one runs a task at a time.
    """
    try:
        limit = engine.get_num_threads()
    except BackendUnavailable:  # what computes then has no threads of ours
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
    """The worker that this thread computes for, None for a local scheduler's, and how many tasks that runs at once."""
    if distributed := sys.modules.get("distributed"):
        with suppress(ValueError):  # this thread is no worker's
            worker = distributed.get_worker()
            return worker.address, worker.state.nthreads
    multiprocessing = sys.modules.get("multiprocessing")
    child = multiprocessing is not None and multiprocessing.parent_process() is not None
    if threading.current_thread() is threading.main_thread() and not child:
        return None, 1
    return None, dask.config.get("num_workers", None) or CPU_COUNT


def _settled(options: dict[str, Any]) -> dict[str, Any]:
    """`options` with this worker's own backend, if it has one and none is asked for."""
    backend = options.get("backend", "auto")
    return {**options, "backend": dask.config.get("gemm.backend", "auto") if backend == "auto" else backend}


def _block(x: Any) -> Any:
    """The block of an operand: dask gives a list, of one here, for each label that the result has not."""
    while isinstance(x, list):
        (x,) = x
    return x


def _flat(blocks: Any) -> list[Any]:
    return [x for block in blocks for x in _flat(block)] if isinstance(blocks, list) else [blocks]
