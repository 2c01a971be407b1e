"""Rechunk the operands of a product: keep the operands' own chunks, or choose chunks by `gemm.dask.chunks`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import dask
import numpy as np
from dask.system import CPU_COUNT
from dask.utils import parse_bytes

from gemm.core.problem import NARROW
from gemm.dask.chunks import Cut, choose, fuses, least_side, pieces, stacks, suits
from gemm.dask.graph import COLUMN, DEPTH, ROW, Operand


def cut(x: Operand, y: Operand, kind: np.dtype[Any], chunks: Any, contraction: str) -> tuple[Operand, Operand]:
    """The operands, rechunked for the product; see `gemm.dask.gemm`.

    contraction: as for `gemm.dask.gemm`, or "ordered": "fused" if the merged panels fit into a block, else a chain.
    """
    lengths: dict[str, int] = {}
    own: dict[str, tuple[int, ...]] = {}
    for operand in (y, x):  # a label that both operands have takes the chunks of x
        for label, length, blocks in zip(operand.labels, operand.array.shape, operand.array.chunks, strict=True):
            if length != 1 or label not in lengths:
                lengths[label], own[label] = length, blocks
    agree = x.array.chunks[x.labels.index(DEPTH)] == y.array.chunks[y.labels.index(DEPTH)]
    stack = [label for label in max(x.labels, y.labels, key=len) if label not in (ROW, DEPTH, COLUMN)]
    m, k, n = (lengths.get(label, 1) for label in (ROW, DEPTH, COLUMN))
    batch = math.prod(lengths[label] for label in stack)

    def blocks_of(length: Callable[[tuple[int, ...]], int]) -> Cut:
        rows, depth, columns = (length(own.get(label, (1,))) for label in (ROW, DEPTH, COLUMN))
        return Cut(rows, depth, columns, math.prod(length(own[label]) for label in stack))

    mean, largest = blocks_of(lambda blocks: -(-sum(blocks) // len(blocks))), blocks_of(max)
    limit = dask.config.get("array.chunk-size") if chunks in ("auto", None) else chunks
    sums = 4 if kind.name in NARROW else kind.itemsize
    cells = max(1, parse_bytes(limit) // max(sums, *(o.array.dtype.itemsize for o in (x, y))))
    threads, engine = _threads()
    least = least_side(m * k * n * batch, threads, engine)

    def fused(blocks: Cut) -> bool:
        if contraction in ("auto", "ordered"):
            return fuses(m, k, n, blocks, cells, ordered=contraction == "ordered")
        return contraction == "fused"

    if chunks is None:
        wanted = {DEPTH: (k,) if fused(largest) else own[DEPTH]}
        return x.chunked(wanted), y.chunked(wanted)
    if agree and suits(mean, largest, whole=Cut(m, k, n, batch), cells=cells, least=least):
        if not fused(largest):
            return x, y
        if largest._replace(k=k).most_cells() <= cells:
            return x.chunked({DEPTH: (k,)}), y.chunked({DEPTH: (k,)})
    args: dict[str, Any] = {"cells": cells, "threads": threads, "least": least}
    cut = choose(m, k, n, batch, fused=contraction == "fused", **args)
    if contraction != "fused" and fused(cut):
        cut = choose(m, k, n, batch, fused=True, **args)
    sides: dict[str, int] = dict(zip((ROW, DEPTH, COLUMN), cut, strict=False))
    sides |= dict(zip(stack, stacks([lengths[label] for label in stack], cut.batch), strict=True))
    wanted = {label: pieces(length, sides[label]) for label, length in lengths.items()}
    return x.chunked(wanted), y.chunked(wanted)


def _threads() -> tuple[int, str]:
    """The number of threads that will compute, and the scheduler of the default client, else a local scheduler."""
    if distributed := sys.modules.get("distributed"):
        try:
            client = distributed.default_client()
        except ValueError:
            pass
        else:
            if not client.asynchronous:  # an asynchronous client's answer would have to be awaited
                return max(1, sum(client.nthreads().values())), "distributed"
    return dask.config.get("num_workers", None) or CPU_COUNT, "local"
