"""Matrices in blocks over the GPUs of a host, and their products (gemm.dispatch.summa)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from gemm import interop, operands
from gemm.call import common_dtype, normalise
from gemm.dispatch import check_names, registry, several
from gemm.dispatch.plan import ALL
from gemm.errors import BackendUnavailable, delivering
from gemm.operands import Range, Spread
from gemm.problem import Device, DeviceView

EVERY, _BACKEND = next(iter(ALL.items()))
"""The name for all devices that matrices are sharded over, and their backend's."""
_FAR = 1 << 56  # bytes between the places of stand-ins, which have no memory


class Sharded:
    """A matrix whose blocks lie on the GPUs of one host; made by `gemm.shard` and by products of others.

    Attributes:
        shape: (m, n). dtype: as in NumPy.
        grid: (p, q), rows and columns of blocks.
        rows, columns: where the blocks begin and end, p + 1 and q + 1 indices from 0 to m and to n.
        devices: keys of the GPUs, `devices[row][column]`.
        blocks: an array on its GPU each, `blocks[row][column]`; they export `__cuda_array_interface__` and DLPack.
    """

    def __init__(self, spread: Spread) -> None:
        """`spread`: views of its blocks, each of a whole array."""
        self._spread = spread
        self.rows, self.columns = spread.rows, spread.columns
        self.shape, self.dtype = spread.shape, spread.all[0].dtype
        self.grid = len(self.rows) - 1, len(self.columns) - 1
        self.blocks = tuple(tuple(view.owner for view in row) for row in spread.blocks)

    ndim = 2
    size = property(lambda self: math.prod(self.shape))
    nbytes = property(lambda self: self.size * self.dtype.itemsize)
    devices = property(lambda self: tuple(tuple(view.device.key for view in row) for row in self._spread.blocks))

    def __repr__(self) -> str:
        (m, n), (p, q) = self.shape, self.grid
        return f"<{m} × {n} {self.dtype} in {p} × {q} blocks on {', '.join(sum(self.devices, ()))}>"

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a Sharded lies on several GPUs: gemm.gemm multiplies it, copy_to_host() copies it")

    def copy_to_host(self) -> np.ndarray:
        """A NumPy copy, after all work that was enqueued before."""
        found, backend = np.empty(self.shape, self.dtype), registry.backend(_BACKEND)
        for (r0, r1), row in zip(pairwise(self.rows), self._spread.blocks, strict=True):
            for (c0, c1), view in zip(pairwise(self.columns), row, strict=True):
                with delivering(view.device.key):
                    found[r0:r1, c0:c1] = backend.to_host(view)
        return found


def shard(a: Any, grid: tuple[int, int] | None = None, *, devices: Sequence[str] | None = None) -> Sharded:
    """A copy of a matrix in p × q blocks, one on each GPU.

    Args:
        a: (m, n) array: of the host, on one GPU, or Sharded.
        grid: (p, q); default: as near to a square as the number of GPUs allows, with p ≥ q.
        devices: keys of p · q GPUs, "cuda:0" and so on, along the rows of blocks; default: the first ones, all without
            `grid`. One may be named more than once.

    Raises:
        ValueError, TypeError: an argument is wrong. BackendUnavailable: there are not so many GPUs.
        MemoryError: a GPU has no room.
    """
    chosen = _devices(grid, devices)
    p, q = grid = grid or next((p, q) for p, q in sorted(several.grids(len(chosen))) if p >= q)
    if p * q != len(chosen):
        raise ValueError(f"grid {grid} has {p * q} blocks, devices names {len(chosen)} GPUs")
    source = a if isinstance(a, Sharded) else interop.wrap(a, "a")
    if source.ndim != 2:
        raise ValueError(f"a has {source.ndim} axes; only a matrix, of two, is sharded")
    m, n = source.shape
    rows, columns = several.bounds(m, [1] * p), several.bounds(n, [1] * q)
    if isinstance(source, np.ndarray) and not operands.is_number(source.dtype):
        raise TypeError(f"a has dtype {source.dtype}; it must be boolean, integer, real or complex")
    places = [chosen[at * q : (at + 1) * q] for at in range(p)]
    with delivering(EVERY):
        if not isinstance(source, np.ndarray):
            from gemm.dispatch import summa

            made = _empty(rows, columns, source.dtype, places)
            summa.copy(_spread(source), made)
        else:
            native = operands.kernel_ready(source, source.dtype.newbyteorder("="))
            to_device = registry.backend(_BACKEND).to_device
            made = _blocks(rows, columns, places, lambda r, c, on: to_device(native[slice(*r), slice(*c)], on))
    return Sharded(made)


def _blocks(
    rows: several.Bounds, columns: several.Bounds, places: Sequence[Sequence[Device]],
    block: Callable[[Range, Range, Device], DeviceView],
) -> Spread:  # fmt: skip
    """A matrix of these blocks: block(its rows, its columns, its device)."""
    return Spread(rows, columns, tuple(
        tuple(block(r, c, device) for c, device in zip(pairwise(columns), line, strict=True))
        for r, line in zip(pairwise(rows), places, strict=True)
    ))  # fmt: skip


def _empty(
    rows: several.Bounds, columns: several.Bounds, dtype: np.dtype[Any], places: Sequence[Sequence[Device]]
) -> Spread:
    """A matrix in blocks on these devices, not initialised. Raises KernelFailed where one has no room."""

    def block(r: Range, c: Range, device: Device) -> DeviceView:
        shape = r[1] - r[0], c[1] - c[0]
        return registry.backend(_BACKEND).empty(shape, _standing(shape, dtype, 0, device))

    return _blocks(rows, columns, places, block)


def _devices(grid: tuple[int, int] | None, names: Sequence[str] | None) -> list[Device]:
    if grid is not None and (len(grid) != 2 or not all(isinstance(n, int) and n > 0 for n in grid)):
        raise ValueError(f"grid must be two positive numbers, rows and columns of blocks, not {grid!r}")
    if names is None:
        found = several.devices(EVERY)
        count = len(found) if grid is None else grid[0] * grid[1]
        if count > len(found):
            raise BackendUnavailable(EVERY, f"grid {grid} wants {count} GPUs, there are {len(found)}")
        return list(found[:count])
    known = {device.key: device for device in registry.backend(_BACKEND).devices()}
    if missing := [name for name in names if name not in known]:
        raise BackendUnavailable(str(missing[0]), f"no such GPU; there are {', '.join(known)}")
    if not names:
        raise ValueError("devices names no GPU")
    return [known[name] for name in names]


def product(
    a: Any, b: Any, c: Any, out: Any, *, alpha: Any, beta: Any, trans_a: bool | str, trans_b: bool | str, dtype: Any,
    precision: str, reproducible: bool, backend: str, kernel: str | None, bias: Any, activation: str | None,
) -> Any:  # fmt: skip
    """gemm.gemm of operands some of which are Sharded; the others lie on GPUs. See there.

    The result, `out` or a new Sharded, has the grid of a, else of b, and its blocks' edges where they fit. Each block
    is computed by the GPU that holds it.
    """
    from gemm.dispatch import summa

    check_names(backend, kernel)
    if backend not in ("auto", _BACKEND, EVERY):
        raise ValueError(f"backend={backend!r} cannot reach sharded operands; pass {EVERY!r} or nothing")
    if bias is not None or activation is not None:
        raise TypeError("bias and activation are not offered for sharded operands; apply them to the blocks")
    given = {name: _given(x, name) for name, x in (("a", a), ("b", b), ("c", c), ("out", out)) if x is not None}
    for name, trans in (("a", trans_a), ("b", trans_b)):
        if given[name].dtype.kind == "c" and trans in ("C", "c"):
            raise TypeError(f'trans_{name}="C" of complex numbers is not offered for sharded operands')
    spreads = {name: _spread(x) for name, x in given.items()}
    flips = [trans not in (False, "N", "n") for trans in (trans_a, trans_b)]
    shape = given["a"].shape[1 if flips[0] else 0], given["b"].shape[0 if flips[1] else 1]
    model = next(each for each in (a, b, c, out) if isinstance(each, Sharded))
    home = _spread(model).all[0].device
    stands = {name: _stand(x, at, home) for at, (name, x) in enumerate(given.items())}
    kind = common_dtype({name: x for name, x in stands.items() if name != "out"}, dtype, stands.get("out"))
    if c is not None and given["c"].shape != shape:
        raise ValueError(f"c has shape {given['c'].shape}; the result's is {shape}")
    if c is out and c is not None:
        stands["out"], spreads["out"] = stands["c"], spreads["c"]
    example = stands.get("out") or _standing(shape, kind, len(stands), stands["a"].device)
    call = normalise(
        stands["a"], stands["b"], stands.get("c"), alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b,
        out=example, dtype=dtype, precision=precision, reproducible=reproducible,
    )  # fmt: skip
    x, y = (spreads[name].mT if flip else spreads[name] for name, flip in zip("ab", flips, strict=True))
    p, q = model.grid
    rows = x.rows if len(x.rows) == p + 1 else several.bounds(shape[0], [1] * p)
    columns = y.columns if len(y.columns) == q + 1 else several.bounds(shape[1], [1] * q)
    if call.problem.k == 0:  # a and b are not read
        x = Spread.of(operands.nothing_of(x.all[0], shape[0], 0))
        y = Spread.of(operands.nothing_of(y.all[0], 0, shape[1]))
    with delivering(EVERY):
        read = [spreads[name] for name in spreads if name != "out" and not (name == "c" and c is out)]
        direct = "out" in spreads and not _overlap(spreads["out"], read)
        places = _places(_spread(model))
        goal = spreads["out"] if direct else _empty(rows, columns, kind, places)
    if direct and isinstance(out, Sharded):
        rows, columns, places = goal.rows, goal.columns, _places(goal)
    shares = [
        (device, {0: r, 1: s})
        for r, row in zip(pairwise(rows), places, strict=True)
        for s, device in zip(pairwise(columns), row, strict=True)
        if r[0] < r[1] and s[0] < s[1]
    ]
    z = spreads["c"] if call.c is not None else None
    summa.multiply(x, y, z, goal, None, (call.alpha, call.beta), call.problem, shares, kernel)
    if out is not None and not direct:
        summa.copy(goal, spreads["out"])
    return Sharded(goal) if out is None else out


def _places(x: Spread) -> list[list[Device]]:
    return [[view.device for view in row] for row in x.blocks]


def _overlap(out: Spread, others: Iterable[Spread]) -> bool:
    """Whether out shares memory with any of the others."""
    return any(operands.overlap(one, another) for other in others for one in out.all for another in other.all)


def _given(x: Any, name: str) -> Sharded | DeviceView:
    if isinstance(x, Sharded):
        return x
    view = interop.wrap_output(x) if name == "out" else interop.wrap(x, name)
    if not isinstance(view, DeviceView) or view.device.backend != _BACKEND:
        raise TypeError(f"{name} lies on the host and others are sharded; pass gemm.shard({name})")
    if view.ndim != 2:
        raise ValueError(f"{name} has {view.ndim} axes; with sharded operands it must be a matrix, of two")
    return view


def _spread(x: Sharded | DeviceView) -> Spread:
    return x._spread if isinstance(x, Sharded) else Spread.of(x)


def _stand(x: Sharded | DeviceView, at: int, device: Device) -> DeviceView:
    """What stands for an operand where arguments are checked: on one GPU with others, apart from their memory."""
    if isinstance(x, Sharded):
        return _standing(x.shape, x.dtype, at, device)
    return replace(x, owner=None, data=_FAR * (at + 1), offset=0, device=device)


def _standing(shape: tuple[int, ...], dtype: np.dtype[Any], at: int, device: Device) -> DeviceView:
    strides = (max(1, shape[1]) * dtype.itemsize, dtype.itemsize)
    return DeviceView(None, _FAR * (at + 1), 0, shape, strides, dtype, device)
