"""Products of dask arrays. `gemm.gemm`, `gemm.matmul` and `gemm.tensordot` call this module for dask operands.

    import dask.array as da, gemm.dask

    c = gemm.dask.matmul(da.from_zarr("a.zarr"), da.from_zarr("b.zarr"))
    c.to_zarr("c.zarr")

The functions only build a graph; dask computes it on request. Each worker multiplies on its best backend, or on the
backend that its dask configuration names (`gemm.backend`, or DASK_GEMM__BACKEND in the environment). The tasks of a
worker share the worker's threads: see `gemm.dask.tasks.sharing`. Tasks are named gemm-matmul and gemm-tensordot.
docs/scale.md gives the costs.
"""

from __future__ import annotations

import math
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.utils import parse_bytes
from numpy.typing import DTypeLike

from gemm.core import operands
from gemm.core.problem import NARROW
from gemm.dask import blocks, tasks
from gemm.dask import chunks as cutting
from gemm.dask.graph import COLUMN, DEPTH, ROW, Operand, chain, elementwise, stacked
from gemm.dask.graph import contract as contracted
from gemm.frontend import call
from gemm.frontend.arguments import Given, Options, Scalar, named
from gemm.numpy_api import contractions, matrix_pairs
from gemm.select import candidates

__all__ = ["gemm", "matmul", "tensordot"]

CONTRACTIONS = ("auto", "sum", "fused", "chain")


def gemm(
    a: Any, b: Any, c: Any = None, *, alpha: Scalar = 1.0, beta: Scalar = 0.0,
    trans_a: bool | str = False, trans_b: bool | str = False, dtype: DTypeLike | None = None,
    precision: str = "highest", reproducible: bool = False, backend: str = "auto", kernel: str | None = None,
    bias: Any = None, activation: str | None = None, contraction: str = "auto", chunks: Any = "auto",
) -> Any:  # fmt: skip
    """activation(alpha · op(a) · op(b) + beta · c + bias) as a dask array. See `gemm.gemm` for the arguments.

    Args:
        a, b, c, bias: dask arrays, or objects that dask converts to arrays. All chunk sizes must be known.
        reproducible: give the bits of `gemm.gemm` on one machine with reproducible=True, for all chunks.
        backend: "auto": each worker chooses its own backend, as the module's docstring says.
        contraction: how the blocks along k are summed.
            "sum": one task for each block of k, and a tree of sums over the tasks' results, as in dask's own matmul.
            Partial sums of float16, bfloat16 and fp8 are float32.
            "fused": merge the blocks of k, and contract all of k in one task. "fused" needs fewer tasks and no
            partial sums, but each task holds a row of blocks of a and a column of blocks of b in memory.
            "chain": for real floating-point numbers. One task for each block of k continues from the sums of the task
            before, on the CPU. "chain" keeps the order of a single accumulation chain, and needs the memory of
            three blocks.
            "auto": "fused" if the merged panels are no larger than a block may be, and if merging them moves no more
            elements, k·(m + n), than the partial sums have, m·n for each block of k; otherwise "sum". With
            reproducible=True: "fused" if the merged panels are no larger than a block may be, otherwise "chain".
        chunks: the chunks of the operands that are multiplied.
            "auto": keep the operands' own chunks if these agree along k, if no chunk of an operand or of the result
            exceeds dask's `array.chunk-size` (128 MiB), and if a task computes enough to pay for its scheduling.
            Otherwise `gemm.dask.chunks` chooses the chunks, for the threads of the default client of dask.distributed,
            or for the threads of this machine. A task needs about four times the limit in memory.
            A size, such as "32 MiB": as "auto", with this limit.
            None: always keep the operands' own chunks; along k, the chunks of a.

    Returns:
        A dask array. Its computed elements are within the error bounds of `gemm.gemm`.

    Raises:
        ValueError, TypeError: an argument is wrong; the message names it. Errors that only the computation can detect,
            such as a backend that no worker has, are raised by the computation.
    """
    given = {"a": a, "b": b, "c": c, "bias": bias}
    arrays = {name: _array(name, x) for name, x in given.items() if x is not None}
    options: dict[str, Any] = {
        "trans_a": trans_a, "trans_b": trans_b, "precision": precision, "reproducible": reproducible,
    }  # fmt: skip
    asked = _checked(arrays, alpha, beta, Options(dtype=dtype, activation=activation, **options))
    candidates.check_names(backend, kernel)
    kind = operands.named(asked.problem.dtype, "the result")
    x, y = (_labelled(arrays[name], name, trans) for name, trans in (("a", trans_a), ("b", trans_b)))
    batch = stacked(max(len(x.labels), len(y.labels)) - 2)
    kept = (*batch, *(label for label in (ROW, COLUMN) if label in x.labels + y.labels))
    if asked.problem.k == 0:  # alpha = 0 also gives k = 0 here: neither case reads a and b
        x, y = _without_depth(x), _without_depth(y)
    contraction = _contraction(contraction, reproducible, kind)
    if contraction == "ordered" and not all(isinstance(o.array._meta, np.ndarray) for o in (x, y)):
        contraction = "fused"  # only the CPU backend continues a chain
    x, y = blocks.cut(x, y, kind, chunks, contraction)

    sizes = {label: lengths for o in (y, x) for label, lengths in zip(o.labels, o.array.chunks, strict=True)}
    ends = {label: sizes[label] for label in kept[len(batch) :]}
    more = {}
    if "c" in arrays and asked.beta != 0:
        z = arrays["c"]
        more["c"] = Operand(z, kept[len(kept) - z.ndim :]).chunked(ends)
    if "bias" in arrays:
        more["bias"] = _bias(arrays["bias"], COLUMN if COLUMN in kept else ROW).chunked(ends)
    options |= {"backend": backend, "kernel": kernel}
    if x.blocks(DEPTH) == 1:
        options |= {"alpha": alpha, "beta": beta if "c" in more else 0, "dtype": kind, "activation": activation}
        return contracted(
            tasks.product, [x, y, *more.values()], kept, (DEPTH,), kind, "gemm-matmul", named=tuple(more),
            options=options,
        )  # fmt: skip
    wide = np.dtype(np.float32) if kind.name in NARROW else kind
    options["dtype"] = wide
    ordered = contraction in ("ordered", "chain")
    if ordered:
        sums = chain(x, y, kept, DEPTH, wide, "gemm-matmul", {**options, "reproducible": True})
    else:
        sums = contracted(tasks.product, [x, y], kept, (DEPTH,), wide, "gemm-matmul", named=(), options=options)
    if not more and asked.alpha == 1 and activation is None and wide == kind:
        return sums
    return elementwise(
        tasks.finish, [Operand(sums, kept), *more.values()], kind, "gemm-matmul-finish", named=tuple(more),
        kind=kind, alpha=asked.alpha, beta=asked.beta, activation=activation,
        dropped=(ROW not in kept, COLUMN not in kept), ordered=ordered,
    )  # fmt: skip


def product(given: Given, options: Options) -> Any:
    """`gemm.gemm` for operands that include a dask array."""
    if given.out is not None:
        raise TypeError("out must be None for dask arrays, which nothing is written to; store the result")
    return gemm(given.a, given.b, given.c, bias=given.bias, **named(options, given.alpha, given.beta))


def matmul(x1: Any, x2: Any, /, **options: Any) -> Any:
    """The matrix product of x1 and x2, with the shape rules of np.matmul. `options` are those of `gemm` except c."""
    return gemm(x1, x2, **options)


def tensordot(a: Any, b: Any, axes: Any = 2, *, dtype: DTypeLike | None = None, contraction: str = "auto",
              **options: Any) -> Any:  # fmt: skip
    """np.tensordot(a, b, axes) as a dask array. The chunks stay as they are; along summed axes, a's chunks are used.

    Args:
        a, b, axes, dtype, options: as for `gemm.tensordot`.
        contraction: as for `gemm`, except "chain". With reproducible=True, "auto" is "fused".

    Raises:
        ValueError, TypeError, IndexError: an argument is wrong.
    """
    matrix_pairs.check(options)
    a, b = _array("a", a), _array("b", b)
    left, right = contractions.paired(a.shape, b.shape, axes)
    kind = call.common_dtype({"a": _nothing(a), "b": _nothing(b)}, dtype, None)
    names = [f"k{pair}" for pair in range(len(left))]
    labels = [[f"{name}{axis}" for axis in range(x.ndim)] for name, x in (("a", a), ("b", b))]
    for name, i, j in zip(names, left, right, strict=True):
        labels[0][i] = labels[1][j] = name
    x, y = (Operand(array, tuple(own)) for array, own in ((a, labels[0]), (b, labels[1])))
    y = y.chunked({name: a.chunks[i] for name, i in zip(names, left, strict=True)})
    k = math.prod(a.shape[i] for i in left)
    m, n = a.size // max(k, 1), b.size // max(k, 1)
    parts = math.prod(a.numblocks[i] for i in left)
    free = [math.prod(max(lengths) for lengths, label in zip(o.array.chunks, o.labels, strict=True)
                      if label not in names) for o in (x, y)]  # fmt: skip
    cells = parse_bytes(dask.config.get("array.chunk-size")) // kind.itemsize
    own = cutting.Cut(free[0], -(-k // max(parts, 1)), free[1], 1)
    contraction = _contraction(contraction, options.get("reproducible", False), kind)
    if contraction == "chain":
        raise ValueError('contraction must be "auto", "sum" or "fused" for tensordot')
    if contraction in ("fused", "ordered") or (contraction == "auto" and cutting.fuses(m, k, n, own, cells)):
        x, y = (o.chunked({name: (a.shape[i],) for name, i in zip(names, left, strict=True)}) for o in (x, y))
    several = any(x.blocks(name) > 1 for name in names)
    wide = np.dtype(np.float32) if kind.name in NARROW and several else kind
    kept = tuple(label for label in (*x.labels, *y.labels) if label not in names)
    result = contracted(
        tasks.tensors, [x, y], kept, tuple(names), wide, "gemm-tensordot", axes=(left, right),
        options={**options, "dtype": wide},
    )  # fmt: skip
    return result if wide == kind else result.astype(kind)


def _contraction(asked: str, reproducible: bool, kind: np.dtype[Any]) -> str:
    """The validated `contraction`. "auto" becomes "ordered" or "fused" if reproducible=True fixes the order of sums."""
    if asked not in CONTRACTIONS:
        raise ValueError(f"contraction must be one of {', '.join(CONTRACTIONS)}, not {asked!r}")
    real = kind.kind == "f" or kind.name in NARROW
    if asked == "chain" and not real:
        raise ValueError(f'contraction="chain" is for real floating-point numbers, not for {kind}')
    if not reproducible or kind.kind in "biu":
        return asked
    if asked == "sum":
        raise ValueError('contraction="sum" has not the order of reproducible=True; pass "auto", "fused" or "chain"')
    return ("ordered" if real else "fused") if asked == "auto" else asked


def _array(name: str, x: Any) -> Any:
    """`x` as a dask array with known chunk sizes."""
    array = da.asanyarray(x)
    if any(math.isnan(length) for length in array.shape):
        raise ValueError(f"{name} has chunks of unknown sizes, {array.chunks}; call {name}.compute_chunk_sizes() first")
    return array


def _nothing(x: Any, *shape: int) -> np.ndarray:
    """A NumPy array with the dtype of `x` and this shape, which occupies the memory of a single element."""
    return np.broadcast_to(np.empty((), x.dtype), shape)


def _checked(arrays: dict[str, Any], alpha: Scalar, beta: Scalar, options: Options) -> call.Call:
    """The call as `gemm.gemm` would check it, with a stack of zero products. Raises ValueError, TypeError."""
    ndim = max(arrays["a"].ndim, arrays["b"].ndim)
    stand_ins = {}
    for name in ("a", "b"):
        x = arrays[name]
        stack = (0, *(1,) * (ndim - x.ndim)) if x.ndim > 1 else ()
        stand_ins[name] = _nothing(x, *stack, *x.shape)
    c = _nothing(arrays["c"]) if "c" in arrays else None
    bias = _nothing(arrays["bias"], *arrays["bias"].shape) if "bias" in arrays else None
    stacks = [arrays[name].shape[:-2] for name in ("a", "b")]
    try:
        batch = np.broadcast_shapes(*stacks)
    except ValueError:
        raise ValueError(f"the batches of a {stacks[0]} and b {stacks[1]} do not broadcast") from None
    asked = call.normalise(Given(**stand_ins, c=c, bias=bias, alpha=alpha, beta=beta), options)
    if c is not None:
        ends = asked.shape[1:][ndim - 2 :] if ndim > 1 else asked.shape
        shape, own = (*batch, *ends), arrays["c"].shape
        fits = len(own) <= len(shape) and all(
            length in (1, whole) for length, whole in zip(reversed(own), reversed(shape), strict=False)
        )
        if not fits:
            raise ValueError(f"c has shape {own}, which does not broadcast to the result's {shape}")
    return asked


def _labelled(array: Any, name: str, trans: Any) -> Operand:
    """An operand with its labels. A transposed operand's labels are in the order in which its axes are stored."""
    if array.ndim == 1:
        return Operand(array, (DEPTH,))
    flip = trans.upper() != "N" if isinstance(trans, str) else bool(trans)
    matrix = (ROW, DEPTH) if name == "a" else (DEPTH, COLUMN)
    return Operand(array, (*stacked(array.ndim - 2), *(reversed(matrix) if flip else matrix)))


def _without_depth(x: Operand) -> Operand:
    """An operand with the same blocks, but with length 0 along k."""
    chunks = tuple((0,) if label == DEPTH else own for label, own in zip(x.labels, x.array.chunks, strict=True))
    return Operand(da.zeros_like(x.array, shape=tuple(map(sum, chunks)), chunks=chunks), x.labels)


def _bias(array: Any, along: str) -> Operand:
    """A bias as an operand. An axis of length 1 gets a label of its own, because it is broadcast."""
    if array.ndim == 1:
        return Operand(array, (along,))
    return Operand(array, ("every m", COLUMN) if array.shape[0] == 1 else (ROW, "every n"))
