"""Many small products, computed together: `gemm.batching` and `gemm.gemm_many`.

A product of 16 × 16 matrices takes a tenth of a microsecond; calling for it, waking a thread or launching it on a
GPU takes longer. So products wait, until their results are wanted or there are many of them, and then those that are
alike are one pass of the CPU engine (gemm._memo.Batch, csrc/python/batch.c), or one batched product on a device. Whole
lists of them are read by all threads at once (csrc/python/many.c). Those of device arrays do not wait: to read three of
them one by one takes as long as to launch one more product. Of lists of them `gemm.extras.pointer_batch` makes one
launch.
"""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from gemm import execute
from gemm.catalog import HOST_BACKENDS
from gemm.core import threads
from gemm.core.errors import BackendUnavailable
from gemm.core.operands import item
from gemm.extras.pointer_batch import Together
from gemm.frontend import plan_cache
from gemm.frontend.api import at_once, gemm
from gemm.frontend.arguments import DEFAULTS, Given, Options, named
from gemm.frontend.call import normalise

log = logging.getLogger("gemm")

_COLUMNS = (tuple, list)

Product = tuple[Any, Any, Any, Any]
"""The caller's a, b, c (or None) and out."""


class Batch:
    """The products that wait in one thread. See `batching`."""

    def __init__(self) -> None:
        self._lock = threads.lock(threading.RLock)  # another thread may flush it
        self._pending = plan_cache.pending(self)
        self._failed: dict[int, BaseException] = {}  # of the products being computed, by their numbers
        self._failures: list[BaseException] = []  # of those before, which nobody was told of
        self._depth = 0

    def __len__(self) -> int:
        """How many products wait."""
        return int(self._pending.pending()) if self._pending is not None else 0

    def __enter__(self) -> Batch:
        if self._depth == 0 and self._pending is not None:
            self._pending.enter()
            self._pending.remembers(True)
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth:
            return
        if self._pending is not None:
            self._pending.remembers(False)
        self.deliver()
        if error is None:
            self._raise()
        elif self._failures:
            log.warning("%d products failed in a block that raised: %s", len(self._failures), self._failures[0])
            self._failures.clear()

    def flush(self) -> None:
        """Compute what waits; then every result so far is there.

        Raises what one of the products raised, and names it; all others are complete.
        """
        self.deliver()
        self._raise()

    def deliver(self) -> None:
        """`flush`, but what products raise is kept for the next one."""
        self._compute(lambda pending: pending.run(self._goes, self._send, self._retry))

    def _compute(self, how: Callable[[Any], Any]) -> Any:
        """What `how` returns for the gemm._memo.Batch, all of which it computes, if there is one."""
        with self._lock:
            before = plan_cache.exchange(None)  # nothing waits that is asked for meanwhile
            self._failed = {}
            try:
                found = how(self._pending) if self._pending is not None else None
            finally:
                plan_cache.exchange(before)
                failed, self._failed = self._failed, {}
            if self._depth == 0 and self._pending is not None and before is self._pending:
                self._pending.leave()
            self._failures += [_named(error, number) for number, error in failed.items()]
            return found

    def _raise(self) -> None:
        failures, self._failures = self._failures, []
        if failures:
            raise failures[0]

    def at_once(self, key: object, scales: tuple[Any, Any], count: int, columns: Sequence[Any]) -> list[Any] | None:
        """The results of so many products, if they take so little time that nobody else need come to his turn."""
        memo = _memo(key)
        if memo is None or len(self):
            return None
        found = self._compute(lambda pending: pending.at_once(memo, count, *columns, *scales, self._retry))
        return list(found) if type(found) is tuple else found  # a list of `out` as it is: 10 000 references take 0.1 ms

    def extend(
        self, key: object, scales: tuple[Any, Any], start: int, columns: Sequence[Any], results: list[Any]
    ) -> int:
        """Remember the products from number `start` on, up to one that gemm._memo does not know, whose number it is."""
        memo = _memo(key)
        if memo is None or self._pending is None:
            return start
        return int(self._pending.extend(memo, start, len(results), *columns, *scales, results))

    def take(
        self, key: object, scales: tuple[Any, Any], columns: Sequence[Any], results: list[Any], options: dict[str, Any]
    ) -> None:
        """Put every product's result in `results`: products are remembered, launched together, or computed at once."""
        together, number = Together(key or None, scales, columns, results), 0
        while (number := self.extend(key, scales, number, columns, results)) < len(results):
            if launched := together.launch(number):
                number += launched
                continue
            x, y, z, target = (item(column, number) for column in columns)
            try:
                results[number] = gemm(x, y, z, out=target, **options)
            except (TypeError, ValueError) as error:
                raise type(error)(f"product {number}: {error}") from error
            number += 1

    # What gemm._memo.Batch.run asks for. Options are a key of repeat.memos.

    def _goes(self, options: Options, alpha: Any, beta: Any, count: int, *product: Any) -> bool:
        """Whether so many products like this one are to be computed elsewhere than by the CPU engine."""
        a, b, c, _ = product
        if options.backend != "auto" or options.kernel is not None or min(a.ndim, b.ndim) < 2:
            return False
        axes = max(a.ndim, b.ndim)
        x, y, z = (None if x is None else _stack([x] * count, axes) for x in (a, b, c))  # of its shape, without a copy
        try:
            call = normalise(Given(x, y, z, alpha=alpha, beta=beta), options)
            return execute.choose(call.problem).device.backend not in HOST_BACKENDS
        except (BackendUnavailable, MemoryError):
            return False

    def _send(self, options: Any, alpha: Any, beta: Any, numbers: list[int], products: list[Product]) -> None:
        """These products as one, a stack."""
        if len(products) == 1 or min(products[0][0].ndim, products[0][1].ndim) < 2:
            self._retry(options, alpha, beta, numbers, products)
            return
        try:
            a, b, c, out = zip(*products, strict=True)
            axes = max(a[0].ndim, b[0].ndim)
            operand_c = None if c[0] is None else _stack(c, axes)
            results = at_once(_stack(a, axes), _stack(b, axes), operand_c, **named(options, alpha, beta))
        except Exception as error:  # of one of them, or it was too much at once
            log.debug("a stack of %d products failed, which are computed one by one: %s", len(products), error)
            self._retry(options, alpha, beta, numbers, products)
        else:
            for array, result in zip(out, results, strict=True):
                array[...] = result

    def _retry(self, options: Any, alpha: Any, beta: Any, numbers: list[int], products: list[Product]) -> None:
        """Each of these products by itself."""
        for number, (a, b, c, out) in zip(numbers, products, strict=True):
            try:
                at_once(a, b, c, out=out, **named(options, alpha, beta))
            except Exception as error:  # whatever it is, it is this product's, and told of it; the others are computed
                self._failed[number] = error


def _stack(arrays: Sequence[np.ndarray], axes: int) -> np.ndarray:
    """Arrays of one shape and dtype as one with a new first axis, and ones until each has `axes`.

    A view where all are the same.
    """
    first = arrays[0]
    ones = (1,) * (axes - first.ndim)
    if all(x is first for x in arrays):
        return np.broadcast_to(first.reshape(*ones, *first.shape), (len(arrays), *ones, *first.shape))
    return np.concatenate(arrays).reshape(len(arrays), *ones, *first.shape)


def _named(error: BaseException, number: int) -> BaseException:
    """`error` with the product in its message, if its class is made of a message alone."""
    kind = type(error) if type(error) in (MemoryError, TypeError, ValueError, RuntimeError) else RuntimeError
    named = kind(f"product {number} of those that were pending: {error}")
    named.__cause__ = error
    return named


def batching() -> Batch:
    """A block in which small products of this thread wait, and are computed together.

        with gemm.batching() as batch:
            for x, y, z in triples:
                gemm.gemm(x, y, out=z)

    In it `gemm.gemm` and `gemm.matmul` return their result array (or `out`) at once. What it holds is valid at the end
    of the block, or after batch.flush(); until then the caller must change no operand. Products that depend on each
    other are computed in their order: one may read, or write, what another before it writes. Each is checked when it
    is called; its bits on the CPU are those that it has without the block.

    The first product of a kind, one so large that others beside it gain nothing, and one that cannot wait (with a bias,
    say, or of device arrays) are computed at once, after all before them. So are those of einsum, tensordot,
    `gemm.use`, plans and prepared operands. Some thousands wait at most: then they are computed, as at the end. A block
    within a block is a part of the outer one; other threads are not concerned.

    An exception that leaves the block goes on, after the products that were asked for are computed. An error that
    computing them meets is raised at the end (or by flush) and names the product; all others are complete.
    """
    found: Batch | None = plan_cache.current()
    return Batch() if found is None else found


def gemm_many(a: Any, b: Any, c: Any = None, *, out: Iterable[Any] | None = None, **options: Any) -> list[Any]:
    """[gemm.gemm(a[0], b[0], c[0], out=out[0], **options), ...], computed together.

    The quickest way for many small products; most so if those of a kind come one after another. What is in the lists
    when this is called is computed, whatever becomes of them.

    Args:
        a, b, c: each an iterable of operands, one a product, or an array (of any axes), which is that of all products.
        out: an iterable of arrays, in which the results go. Default: new ones.
        options: those of `gemm.gemm`; the same for all.

    Returns:
        The results, complete: `out` itself if that is a list which holds them, else a list. Products are computed as in
        `batching`: one may read what another before it wrote. Those of device arrays are enqueued, as gemm's are; many
        that are alike, one after another, are one launch, and new results are then slices of one array, whose memory
        is free when the last of them is.

    Raises:
        ValueError, TypeError: as `gemm.gemm`; the message names the product, and those before it are complete.
    """
    if unknown := options.keys() - {*DEFAULTS, "bias"}:
        raise TypeError(f"unexpected {', '.join(sorted(unknown))}; options are bias, {', '.join(DEFAULTS)}")
    columns = [_column(x) for x in (a, b, c, out)]
    count = _length(columns)
    alpha, beta, *values = (options.get(name, default) for name, default in DEFAULTS.items())
    key: Any = Options(*values, *map(type, values[:2])) if "bias" not in options else []
    scales = alpha, beta
    with batching() as batch:
        results = batch.at_once(key, scales, count, columns)
        if results is None:
            results = [None] * count if out is None else list(columns[-1])
            columns = [tuple(x) if type(x) is list else x for x in columns[:3]]  # others may change what was given
            columns.append(None if out is None else results)
            batch.take(key, scales, columns, results, options)
            if type(out) is list and len(out) == count and all(map(operator.is_, out, results)):
                results = out
        batch.flush()
    return results


def _column(given: Any) -> Any:
    """A list or tuple of operands, or an operand of all products."""
    return given if given is None or hasattr(given, "shape") or type(given) in _COLUMNS else tuple(given)


def _length(columns: Sequence[Any]) -> int:
    """How many products the columns a, b, c and out have. Raises TypeError, ValueError."""
    lengths = {name: len(x) for name, x in zip(("a", "b", "c", "out"), columns, strict=True) if type(x) in _COLUMNS}
    if not lengths:
        raise TypeError("one of a, b, c and out must be an iterable of arrays, one a product")
    if columns[-1] is not None and "out" not in lengths:
        raise TypeError("out must be an iterable of arrays, one a product, not one array")
    if len(set(lengths.values())) > 1:
        raise ValueError(f"as many operands must be given of each, but {lengths}")
    return next(iter(lengths.values()))


def _memo(key: object) -> Any:
    """The gemm._memo.Memo of a key of repeat.memos, if there is one."""
    try:
        return plan_cache.memos.get(key)
    except TypeError:  # an option without a hash
        return None
