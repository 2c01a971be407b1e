"""The graphs of products: blockwise over labelled axes, then a sum over the blocks along the contracted axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from gemm.dask import tasks

ROW, DEPTH, COLUMN = "m", "k", "n"
"""Labels of the axes of matrices."""


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
    task: Callable[..., Any], operands: Sequence[Operand], labels: tuple[str, ...], dtype: np.dtype[Any], name: str,
    **options: Any,
) -> Any:  # fmt: skip
    """A dask array with these labels: `task` applied to all blocks."""
    meta = meta_from_array(operands[0].array._meta, len(labels), dtype)
    return da.blockwise(
        task, labels, *(x for operand in operands for x in operand), dtype=dtype, meta=meta, token=name,
        concatenate=False, **options,
    )  # fmt: skip


def contract(
    operands: Sequence[Operand], kept: tuple[str, ...], summed: tuple[str, ...], dtype: np.dtype[Any], name: str,
    **options: Any,
) -> Any:  # fmt: skip
    """A dask array with the labels `kept`: `tasks.product` of all blocks, then a sum over the blocks along `summed`."""
    cut = tuple(label for label in summed if any(operand.blocks(label) > 1 for operand in operands))
    count = math.prod(max(operand.blocks(label) for operand in operands) for label in (*kept, *cut))
    left = summed if cut else ()
    products = blockwise(
        tasks.product, operands, (*kept, *left), dtype, name, adjust_chunks=dict.fromkeys(left, 1) or None,
        summed=len(left), tasks=count, **options,
    )  # fmt: skip
    if not cut:
        return products
    return da.reduction(
        products, tasks.part, tasks.total, axis=tuple(range(len(kept), products.ndim)), concatenate=False, dtype=dtype,
        meta=meta_from_array(products._meta, len(kept), dtype), name=name,
    )  # fmt: skip


def chain(x: Operand, y: Operand, kept: tuple[str, ...], name: str, options: dict[str, Any]) -> Any:
    """The dask array x · y with the labels `kept`, as an ordered accumulation along DEPTH.

    Each block along DEPTH has one task, which continues from the sums of the task before it.
    """
    sizes, arrays = da.core.unify_chunks(*x, *y)
    x, y = (Operand(array, own.labels) for array, own in zip(arrays, (x, y), strict=True))
    token = tokenize(x.array.name, y.array.name, kept, options)
    counts = [max(operand.blocks(label) for operand in (x, y)) for label in kept]
    common: dict[str, Any] = {"tasks": math.prod(counts), "options": options}
    begin, go_on = partial(tasks.product, **common), partial(tasks.continued, **common)
    last = x.blocks(DEPTH) - 1
    layer: dict[Any, Any] = {}
    for index in itertools.product(*map(range, counts)):
        before: Any = None
        for part in range(last + 1):
            at = {**dict(zip(kept, index, strict=True)), DEPTH: part}
            blocks = [operand.key(at) for operand in (x, y)]
            key = (f"{name}-{token}", *index) if part == last else (f"{name}-part-{token}", *index, part)
            layer[key] = (go_on, before, *blocks) if part else (begin, *blocks)
            before = key
    graph = HighLevelGraph.from_collections(f"{name}-{token}", layer, dependencies=[x.array, y.array])
    meta = meta_from_array(x.array._meta, len(kept), options["dtype"])
    return da.Array(graph, f"{name}-{token}", [sizes[label] for label in kept], meta=meta)
