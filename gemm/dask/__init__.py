"""Products of dask arrays. `gemm.gemm`, `gemm.matmul` and `gemm.tensordot` call this module for dask operands.

    import dask.array as da, gemm.dask

    c = gemm.dask.matmul(da.from_zarr("a.zarr"), da.from_zarr("b.zarr"))
    c.to_zarr("c.zarr")

The functions only build a graph; dask computes the graph when the result is requested. Each worker multiplies on its
best backend, or on the backend that its dask configuration names (`gemm.backend`, or DASK_GEMM__BACKEND in the
environment). The tasks of a worker share the worker's threads: see `gemm.dask.tasks.sharing`. Tasks are named
gemm-matmul and gemm-tensordot. docs/scale.md gives the costs.
"""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import DTypeLike

from gemm.catalog import Backend
from gemm.core import operands
from gemm.core.problem import NARROW, Activation, DType, Precision
from gemm.dask import tasks
from gemm.dask.chunks import Cut, fuses, most_cells, rechunked
from gemm.dask.tasks import COLUMN, DEPTH, ROW, Operand, blockwise, chain, contract, stacked
from gemm.frontend.arguments import (
    Call,
    Given,
    Options,
    Scalar,
    Trans,
    common_dtype,
    named,
    normalise,
    passed,
    transposes,
)
from gemm.numpy_api.tensordot import check, paired
from gemm.select import candidates

__all__ = ["gemm", "matmul", "tensordot"]

CONTRACTIONS = ("auto", "sum", "fused", "chain")
PRODUCT = "gemm-matmul"
"""The name of the tasks that multiply blocks."""


def gemm(
    a: Any, b: Any, c: Any = None, *, alpha: Scalar = 1.0, beta: Scalar = 0.0,
    trans_a: Trans = False, trans_b: Trans = False, dtype: DTypeLike | None = None,
    precision: Precision = "highest", reproducible: bool = False, backend: Backend = "auto", kernel: str | None = None,
    bias: Any = None, activation: Activation | None = None, contraction: str = "auto", chunks: Any = "auto",
) -> Any:  # fmt: skip
    """activation(alpha · op(a) · op(b) + beta · c + bias) as a dask array. See `gemm.gemm` for the arguments.

    Args:
        a, b, c, bias: dask arrays, or objects that dask converts to arrays. All chunk sizes must be known.
        reproducible: compute the bits that `gemm.gemm` computes on one machine with reproducible=True, for any chunks.
        backend: "auto": each worker chooses its own backend, as the module's docstring says.
        contraction: how the blocks along k are summed; docs/scale.md compares the ways.
            "sum": one task for each block of k, and a tree of sums over the tasks' results, as in dask's own matmul.
            Partial sums of float16, bfloat16 and fp8 are float32.
            "fused": merge the blocks of k, and sum over all of k in one task. "fused" needs fewer tasks and no
            partial sums, but each task holds a row of blocks of a and a column of blocks of b in memory.
            "chain": for real floating-point numbers. One task for each block of k continues from the sums of the
            previous task, on the CPU.
            "auto": "fused" if the merged blocks are no larger than a chunk may be (see `chunks`), and if merging moves
            no more elements than the partial sums have; otherwise "sum". With reproducible=True: "fused" or "chain".
        chunks: "auto": keep the operands' chunks if they agree along k, if none exceeds dask's `array.chunk-size`, and
            if each task has enough work. Otherwise `gemm.dask.chunks` chooses the chunks. A size, such as "32 MiB": the
            same as "auto", with this limit instead of dask's. None: always keep the operands' own chunks; along k, the
            chunks of a. A task needs about four times the limit in memory.

    Returns:
        A dask array. Its computed elements are within the error bounds of `gemm.gemm`.

    Raises:
        ValueError, TypeError: an argument is wrong; the message names it. The computation raises later errors.
    """
    arrays = {name: _array(name, x) for name, x in zip("abc", (a, b, c), strict=True) if x is not None}
    if bias is not None:
        arrays["bias"] = _array("bias", bias)
    options = Options(trans_a, trans_b, dtype, precision, reproducible, backend, kernel, activation)
    return _product(arrays, (alpha, beta), options, contraction, chunks)


def product(given: Given, options: Options) -> Any:
    """`gemm.gemm` for operands that include a dask array."""
    if given.out is not None:
        raise TypeError("out must be None for dask arrays, which gemm cannot write to; store the result")
    return gemm(given.a, given.b, given.c, bias=given.bias, **named(options, given.alpha, given.beta))


def matmul(x1: Any, x2: Any, /, **options: Any) -> Any:
    """The matrix product of x1 and x2, with the shape rules of np.matmul. `options` are those of `gemm` except c."""
    return gemm(x1, x2, **options)


def tensordot(a: Any, b: Any, axes: Any = 2, *, dtype: DTypeLike | None = None, contraction: str = "auto",
              **options: Any) -> Any:  # fmt: skip
    """np.tensordot(a, b, axes) as a dask array.

    The operands keep their chunks, except that b gets the chunks of a along summed axes.

    Args:
        a, b, axes, dtype, options: as for `gemm.tensordot`.
        contraction: as for `gemm`, except "chain". With reproducible=True, "auto" is "fused".

    Raises:
        ValueError, TypeError, IndexError: an argument is wrong.
    """
    check(options)
    a, b = _array("a", a), _array("b", b)
    left, right = paired(a.shape, b.shape, axes)
    kind = common_dtype({"a": _nothing(a), "b": _nothing(b)}, dtype, None)
    x, y = (
        Operand(array, tuple(f"k{summed.index(i)}" if i in summed else f"{name}{i}" for i in range(array.ndim)))
        for name, array, summed in (("a", a, left), ("b", b, right))
    )
    names = tuple(f"k{pair}" for pair in range(len(left)))
    y = y.chunked({name: x.chunks[name] for name in names})
    contraction = _contraction(contraction, options.get("reproducible", False), kind)
    if contraction == "chain":
        raise ValueError('contraction must be "auto", "sum" or "fused" for tensordot')
    if contraction in ("fused", "ordered") or (contraction == "auto" and _fuses(x, y, names, kind)):
        x, y = (o.chunked({name: (sum(x.chunks[name]),) for name in names}) for o in (x, y))
    wide = _wide(kind) if any(x.blocks(name) > 1 for name in names) else kind
    kept = tuple(label for label in (*x.labels, *y.labels) if label not in names)
    options |= {"axes": (left, right), "dtype": wide}
    result = contract([x, y], kept, names, wide, "gemm-tensordot", options=options)
    return result if wide == kind else result.astype(kind)


def _fuses(x: Operand, y: Operand, summed: tuple[str, ...], kind: DType) -> bool:
    """The result of `fuses` for the matrix product that computes the tensordot of x and y over the labels `summed`."""
    k, parts = (math.prod(f(x.chunks[name]) for name in summed) for f in (sum, len))
    m, n = (o.array.size // max(k, 1) for o in (x, y))
    rows, columns = (
        math.prod(max(lengths) for label, lengths in o.chunks.items() if label not in summed) for o in (x, y)
    )
    own = Cut(rows, -(-k // max(parts, 1)), columns, 1)
    return fuses(Cut(m, k, n, 1), own, most_cells("auto", kind.itemsize))


def _product(
    arrays: dict[str, Any], scales: tuple[Scalar, Scalar], options: Options, contraction: str, chunks: Any
) -> Any:
    """The result of `gemm`, a dask array. `arrays` has the operands that the caller passed: a, b, maybe c and bias."""
    asked = _checked(arrays, scales, options)
    candidates.check_names(options.backend, options.kernel)
    kind = operands.named(asked.problem.dtype, "the result")
    x, y = (_labelled(arrays[name], name, trans) for name, trans in (("a", options.trans_a), ("b", options.trans_b)))
    batch = stacked(max(len(x.labels), len(y.labels)) - 2)
    kept = (*batch, *(label for label in (ROW, COLUMN) if label in x.labels + y.labels))
    if asked.problem.k == 0:  # a and b are not read; alpha = 0 also leads here, because `normalise` then sets k = 0
        x, y = _without_depth(x), _without_depth(y)
    contraction = _contraction(contraction, options.reproducible, kind)
    if contraction == "ordered" and not all(isinstance(o.array._meta, np.ndarray) for o in (x, y)):
        contraction = "fused"  # a chain runs on the CPU only, but some blocks are not NumPy arrays
    x, y = rechunked(x, y, kind, chunks, contraction)

    sizes = {**y.chunks, **x.chunks}
    ends = {label: sizes[label] for label in kept[len(batch) :]}
    more = {}
    if "c" in arrays and asked.beta != 0:
        z = arrays["c"]
        more["c"] = Operand(z, kept[len(kept) - z.ndim :]).chunked(ends)
    if "bias" in arrays:
        more["bias"] = _bias(arrays["bias"], COLUMN if COLUMN in kept else ROW).chunked(ends)
    if x.blocks(DEPTH) == 1:
        way = named(options._replace(dtype=kind), scales[0], scales[1] if "c" in more else 0)
        return contract([x, y, *more.values()], kept, (DEPTH,), kind, PRODUCT, named=tuple(more), options=way)
    wide, ordered = _wide(kind), contraction in ("ordered", "chain")
    way = named(options._replace(dtype=wide, activation=None, reproducible=options.reproducible or ordered), 1, 0)
    sums = chain(x, y, kept, PRODUCT, way) if ordered else contract([x, y], kept, (DEPTH,), wide, PRODUCT, options=way)
    if not more and asked.alpha == 1 and options.activation is None and wide == kind:
        return sums
    dropped = ROW not in kept, COLUMN not in kept
    to = tasks.Finish(asked.alpha, asked.beta, options.activation, kind, dropped, ordered)
    return blockwise(
        tasks.finish, [Operand(sums, kept), *more.values()], kept, kind, f"{PRODUCT}-finish", named=tuple(more), to=to
    )


def _wide(kind: DType) -> DType:
    """The dtype of partial sums of a product of `kind`."""
    return np.dtype(np.float32) if kind.name in NARROW else kind


def _contraction(asked: str, reproducible: bool, kind: DType) -> str:
    """Check the argument `contraction`, and return it. With reproducible=True, replace "auto".

    Instead of "auto", return "ordered" (see `rechunked`) for real floating-point numbers, and "fused" for complex
    numbers. Sums of integers and booleans have the same bits in any order, so their "auto" remains.

    Raises ValueError if the argument is not valid for these numbers.
    """
    if asked not in CONTRACTIONS:
        raise ValueError(f"contraction must be one of {', '.join(CONTRACTIONS)}, not {asked!r}")
    real = kind.kind == "f" or kind.name in NARROW
    if asked == "chain" and not real:
        raise ValueError(f'contraction="chain" is for real floating-point numbers, not for {kind}')
    if not reproducible or kind.kind in "biu":
        return asked
    if asked == "sum":
        raise ValueError(
            'contraction="sum" does not keep the order of reproducible=True; pass "auto", "fused" or "chain"'
        )
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


def _checked(arrays: dict[str, Any], scales: tuple[Scalar, Scalar], options: Options) -> Call:
    """Check the arguments as `gemm.gemm` does, and return the Call.

    The Call is for a stack of zero products, so nothing is computed. Raises ValueError, TypeError.
    """
    a, b = arrays["a"], arrays["b"]
    ndim = max(a.ndim, b.ndim)
    x, y = (_nothing(x, *((0, *(1,) * (ndim - x.ndim)) if x.ndim > 1 else ()), *x.shape) for x in (a, b))
    c = _nothing(arrays["c"]) if "c" in arrays else None
    bias = _nothing(arrays["bias"], *arrays["bias"].shape) if "bias" in arrays else None
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        shapes = passed((a.shape, b.shape), options)
        raise ValueError(f"{shapes}: the batches of a {a.shape[:-2]} and b {b.shape[:-2]} do not broadcast") from None
    asked = normalise(Given(x, y, c, None, bias, *scales), options, (a.shape, b.shape))
    if c is not None:
        shape, own = (*batch, *(asked.shape[1:][ndim - 2 :] if ndim > 1 else ())), arrays["c"].shape
        try:
            np.broadcast_to(_nothing(c, *own), shape)
        except ValueError:
            raise ValueError(f"c has shape {own}, which does not broadcast to the result's {shape}") from None
    return asked


def _labelled(array: Any, name: str, trans: Any) -> Operand:
    """The array as an Operand with labels for its axes. If `trans` transposes it, the last two labels are exchanged."""
    if array.ndim == 1:
        return Operand(array, (DEPTH,))
    flip, _ = transposes(name, trans)
    matrix = (ROW, DEPTH) if name == "a" else (DEPTH, COLUMN)
    return Operand(array, (*stacked(array.ndim - 2), *(reversed(matrix) if flip else matrix)))


def _without_depth(x: Operand) -> Operand:
    """An operand with the same blocks, but with length 0 along k."""
    chunks = tuple((0,) if label == DEPTH else own for label, own in x.chunks.items())
    return Operand(da.zeros_like(x.array, shape=tuple(map(sum, chunks)), chunks=chunks), x.labels)


def _bias(array: Any, along: str) -> Operand:
    """A bias as an Operand. The axis along which the bias is broadcast has length 1 and gets a label of its own."""
    if array.ndim == 1:
        return Operand(array, (along,))
    return Operand(array, ("every m", COLUMN) if array.shape[0] == 1 else (ROW, "every n"))
