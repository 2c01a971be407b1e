"""The graphs of products, and the tasks that run on workers.

A graph has two steps: a dask blockwise operation over labelled axes, and a sum over the blocks along the summed axes.
The tasks are products of blocks, sums of these products, and the epilogue. Each worker chooses its own backend.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT

from gemm import execute
from gemm.backends.cpu import CpuLaunch
from gemm.catalog import KERNELS
from gemm.core import engine, epilogue, threads
from gemm.core.errors import BackendUnavailable, delivering
from gemm.core.problem import DType
from gemm.frontend.api import at_once as gemm
from gemm.frontend.arguments import Given, Options, Trans, normalise
from gemm.numpy_api.tensordot import tensordot

ROW, DEPTH, COLUMN = "m", "k", "n"
"""Labels of the axes of matrices."""

_TARGETS = {row.target for row in KERNELS if row.backend == "cpu"}
_lock = threads.lock()
_used: dict[object, int] = {}
"""{address of a worker in this process (None: a local scheduler): number of threads that its products now use}."""


def product(
    a: Any, b: Any, *more: Any, tasks: int, options: dict[str, Any], named: Sequence[str] = (), summed: int = 0
) -> Any:
    """Compute gemm.gemm of the blocks a and b, or gemm.tensordot if `options` contains "axes".

    Args:
        more, named: the blocks and the names of c and bias, if given.
        tasks: the number of tasks like this one in the whole product.
        summed: the number of labels that dask sums over afterwards. The result has an axis of length 1 for each.
    """
    others = dict(zip(named, map(_block, more), strict=True))
    settled = _settled(options)
    with sharing(tasks):
        multiply: Any = tensordot if "axes" in options else gemm
        result = multiply(_block(a), _block(b), **others, **settled)
    return result.reshape(result.shape + (1,) * summed) if summed else result


def continued(sums: Any, a: Any, b: Any, *, tasks: int, options: dict[str, Any]) -> Any:
    """Return the sums of an ordered product that continues from `sums` with the next block of k, on the CPU.

    a and b are the blocks of the operands for this block of k. See `go_on`.
    """
    backend = _settled(options)["backend"]
    result = np.array(sums, order="C")
    with sharing(tasks):
        go_on(
            result, _block(a), _block(b), trans_a=options["trans_a"], trans_b=options["trans_b"],
            backend=backend if backend in _TARGETS else "cpu",
        )  # fmt: skip
    return result[()]


def go_on(
    sums: np.ndarray, a: Any, b: Any, *, trans_a: Trans = False, trans_b: Trans = False, backend: str = "cpu"
) -> None:
    """Continue the accumulation in `sums` with the fused multiply-adds of a · b, in place.

        sums = gemm.gemm(a[:, :k], b[:k], reproducible=True)
        go_on(sums, a[:, k:], b[k:])        # the bits of gemm.gemm(a, b, reproducible=True)

    The CPU computes this, because its engine can continue from stored sums: in every product, the engine splits k into
    blocks and adds each further block to the sums that it has stored.

    Args:
        sums: the accumulated products of all earlier k, a C-contiguous array of float32 or float64.
        a, b, trans_a, trans_b: as for `gemm.gemm`, for the next range of k, in host memory. Narrower types are
            converted to the type of `sums` first.
        backend: "cpu", or a target of the CPU, such as "avx2".

    Raises:
        ValueError, TypeError: an argument is wrong.
        BackendUnavailable: the C extension is missing.
        MemoryError: not enough memory.
    """
    if not isinstance(sums, np.ndarray) or sums.dtype not in (np.float32, np.float64) or not sums.flags.c_contiguous:
        raise TypeError("sums must be a NumPy array of float32 or float64 in C's order")
    left, right = (np.asarray(x).astype(sums.dtype, casting="same_kind", copy=False) for x in (a, b))
    call = normalise(Given(left, right, out=sums), Options(trans_a, trans_b, sums.dtype, reproducible=True))
    if call.out.size and call.problem.k:
        plan = execute.choose(call.problem, backend)
        with delivering(plan.kernel.name):
            launch = CpuLaunch(engine.engine(), plan.kernel, call.problem, goes_on=True)
            launch(call.a, call.b, None, call.out, 1.0, 0.0)


def scale(sums: np.ndarray, c: np.ndarray | None, alpha: Any, beta: Any, backend: str = "cpu") -> np.ndarray:
    """alpha · sums + beta · c as a new array, rounded as at the end of an ordered accumulation.

    Ordered accumulation ends with two rounded operations: t = alpha · sums, then fma(beta, c, t).

    Args:
        sums: as for `go_on`.
        c: an array that broadcasts to the shape of `sums`. None: there is no addend, and `beta` is not used.
        alpha, beta: numbers.
    """
    kind = sums.dtype.type
    with np.errstate(all="ignore"):  # NaN and Inf are results, not errors
        scaled = np.array(sums if alpha == 1 else sums * kind(alpha), order="C")
    if c is not None and scaled.size:
        rows = scaled.reshape(-1, 1, scaled.shape[-1] if scaled.ndim else 1)
        addend = np.broadcast_to(c, scaled.shape).astype(sums.dtype).reshape(rows.shape)
        # fma(beta, c, t) for each row: a product of beta (1 × 1) by a row of c (1 × n) that continues from `rows`.
        go_on(rows, np.broadcast_to(kind(beta), (len(rows), 1, 1)), addend, backend=backend)
    return scaled


def part(x: Any, axis: Any, keepdims: bool) -> Any:
    """Return the block `x` unchanged. dask.array.reduction needs a function to apply to each block before `total`."""
    return x


def total(blocks: Any, axis: Any, keepdims: bool) -> Any:
    """The sum of `blocks`, nested lists of arrays, added in the order of the lists."""
    first, *others = _flat(blocks)
    with np.errstate(all="ignore"):  # NaN and Inf are results, not errors
        result = first + others[0] if others else first
        for term in others[1:]:
            result += term
    return result if keepdims else result.squeeze(axis)[()]


class Finish(NamedTuple):
    """What `finish` does to sums of products.

    Attributes:
        alpha, beta, activation: as for `gemm.gemm`.
        dtype: the dtype of the result.
        dropped: whether the result lacks the axis of rows, and whether it lacks the axis of columns.
        ordered: whether to round as the end of an ordered accumulation does.
    """

    alpha: Any
    beta: Any
    activation: str | None
    dtype: DType
    dropped: tuple[bool, bool]
    ordered: bool


def finish(x: Any, *more: Any, named: Sequence[str], to: Finish) -> Any:
    """activation(alpha·x + beta·c + bias), computed in the type of the sums x. `more`, `named`: as for `product`."""
    others = dict(zip(named, map(_block, more), strict=True))
    c, bias = others.get("c"), others.get("bias")
    with np.errstate(all="ignore"):
        if to.ordered:
            result = scale(np.asarray(x), c, to.alpha, to.beta)
        else:
            result = x.copy() if to.alpha == 1 else x * x.dtype.type(to.alpha)
            if c is not None:
                c = c.astype(x.dtype)
                result = result + (c if to.beta == 1 else c * x.dtype.type(to.beta))
            if isinstance(result, np.generic):
                result = np.asarray(result)
        if bias is not None and bias.ndim == 2:
            bias = bias[tuple(0 if gone else slice(None) for gone in to.dropped)]
        elif bias is not None and all(to.dropped):
            bias = bias[0]
        epilogue.apply(result, bias, to.activation or "")
        return result.astype(to.dtype, copy=False)[()]


@contextmanager
def sharing(tasks: int) -> Iterator[int]:
    """Limit gemm's products in this thread to a share of the threads. Yields the number of threads in the share.

    The worker's threads are divided by the number of tasks that can run at the same time, at most `tasks`. A share does
    not contain threads that other tasks of the worker already use, but it has at least one thread. If tasks with larger
    shares use all threads, a further task therefore exceeds the worker's number of threads by one.

    A worker of dask.distributed has `nthreads` threads. dask's local schedulers divide gemm.get_num_threads() by
    num_workers of dask's configuration, or, without this setting, by dask's count of CPUs. The synchronous scheduler
    runs one task at a time.
    """
    try:
        limit = engine.get_num_threads()
    except BackendUnavailable:  # there is no CPU engine, and no other backend uses the threads of this package
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
    """The address of this thread's worker (None: a local scheduler), and the number of tasks that run there at once."""
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
    if options.get("backend", "auto") != "auto":
        return options
    return {**options, "backend": dask.config.get("gemm.backend", "auto")}


def _block(x: Any) -> Any:
    """Return the block of an operand without the lists around it: dask wraps a block in a list of one item for each
    label that the result lacks.
    """
    while isinstance(x, list):
        (x,) = x
    return x


def _flat(blocks: Any) -> list[Any]:
    return [x for block in blocks for x in _flat(block)] if isinstance(blocks, list) else [blocks]


def stacked(axes: int) -> tuple[str, ...]:
    """Labels of the axes of a stack, numbered from the innermost axis."""
    return tuple(f"stack{axis}" for axis in range(axes, 0, -1))


class Operand(NamedTuple):
    """A dask array with a label for each axis.

    In all operands of a product, axes with the same label have the same length, or length 1.
    """

    array: Any
    labels: tuple[str, ...]

    @property
    def chunks(self) -> dict[str, tuple[int, ...]]:
        """{label: lengths of the chunks}."""
        return dict(zip(self.labels, self.array.chunks, strict=True))

    def blocks(self, label: str) -> int:
        """The number of blocks along `label`; 1 if no axis has this label."""
        return len(self.chunks.get(label, (1,)))

    def key(self, at: dict[str, int]) -> tuple[Any, ...]:
        """The key of the block at the position `at`, {label: block number}."""
        return (self.array.name, *(at[label] if len(own) > 1 else 0 for label, own in self.chunks.items()))

    def chunked(self, chunks: dict[str, Any]) -> Operand:
        """The operand rechunked along its labels in `chunks`. Axes that broadcast one element are not rechunked."""
        wanted = {
            axis: chunks[label]
            for axis, (label, own) in enumerate(self.chunks.items())
            if label in chunks and sum(own) == sum(chunks[label])
        }
        return Operand(self.array.rechunk(wanted), self.labels)


def blockwise(
    task: Callable[..., Any], operands: Sequence[Operand], labels: tuple[str, ...], dtype: DType, name: str,
    **options: Any,
) -> Any:  # fmt: skip
    """A dask array whose axes have the labels `labels`, and whose blocks are the results of `task` for the operands'
    blocks.
    """
    meta = meta_from_array(operands[0].array._meta, len(labels), dtype)
    return da.blockwise(
        task, labels, *(x for operand in operands for x in operand), dtype=dtype, meta=meta, token=name,
        concatenate=False, **options,
    )  # fmt: skip


def contract(
    operands: Sequence[Operand], kept: tuple[str, ...], summed: tuple[str, ...], dtype: DType, name: str,
    **options: Any,
) -> Any:  # fmt: skip
    """A dask array with the labels `kept`: `product` of all pairs of blocks, summed over the blocks along `summed`."""
    cut = tuple(label for label in summed if any(operand.blocks(label) > 1 for operand in operands))
    count = math.prod(max(operand.blocks(label) for operand in operands) for label in (*kept, *cut))
    left = summed if cut else ()
    products = blockwise(
        product, operands, (*kept, *left), dtype, name, adjust_chunks=dict.fromkeys(left, 1) or None,
        summed=len(left), tasks=count, **options,
    )  # fmt: skip
    if not cut:
        return products
    return da.reduction(
        products, part, total, axis=tuple(range(len(kept), products.ndim)), concatenate=False, dtype=dtype,
        meta=meta_from_array(products._meta, len(kept), dtype), name=name,
    )  # fmt: skip


def chain(x: Operand, y: Operand, kept: tuple[str, ...], name: str, options: dict[str, Any]) -> Any:
    """The dask array x · y with the labels `kept`, as an ordered accumulation along DEPTH.

    For each block of the result, there is one task for each block along DEPTH. A task continues from the sums of the
    previous task.
    """
    sizes, arrays = da.core.unify_chunks(*x, *y)
    x, y = (Operand(array, own.labels) for array, own in zip(arrays, (x, y), strict=True))
    token = tokenize(x.array.name, y.array.name, kept, options)
    counts = [max(operand.blocks(label) for operand in (x, y)) for label in kept]
    common: dict[str, Any] = {"tasks": math.prod(counts), "options": options}
    begin, continues = partial(product, **common), partial(continued, **common)
    last = x.blocks(DEPTH) - 1
    layer: dict[Any, Any] = {}
    for index in itertools.product(*map(range, counts)):
        before: Any = None
        for depth in range(last + 1):
            at = {**dict(zip(kept, index, strict=True)), DEPTH: depth}
            blocks = [operand.key(at) for operand in (x, y)]
            key = (f"{name}-{token}", *index) if depth == last else (f"{name}-part-{token}", *index, depth)
            layer[key] = (continues, before, *blocks) if depth else (begin, *blocks)
            before = key
    graph = HighLevelGraph.from_collections(f"{name}-{token}", layer, dependencies=[x.array, y.array])
    meta = meta_from_array(x.array._meta, len(kept), options["dtype"])
    return da.Array(graph, f"{name}-{token}", [sizes[label] for label in kept], meta=meta)
