"""Many small products, computed together: `gemm.batching` and `gemm.gemm_many`.

The arithmetic of a product of 16 × 16 matrices takes a tenth of a microsecond. The call itself, waking a thread, or a
launch on a GPU takes longer. gemm therefore collects products until their results are needed or many products are
pending. It then computes products of one kind in one pass of the CPU engine (gemm._memo.Batch, csrc/python/batch.c), or
as one batched product on a device.

If `gemm_many` gets lists of arrays, all threads of the engine together read the lists (csrc/python/many.c). Products of
single device arrays are not collected, because reading the metadata of three arrays takes as long as one more launch.

Lists of device arrays become pointer batches: one launch for many products of separate arrays. A launch takes some
microseconds on the host, and a small product takes some nanoseconds on the device. gemm therefore gives consecutive
products of one kind to a kernel that reads the operands' addresses from a table. This happens only if the device has
such a kernel and one launch has a shorter predicted time than separate launches. Earlier products on which these
products depend were launched before, on the same stream.
"""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gemm import execute
from gemm.catalog import HOST_BACKENDS
from gemm.core import threads
from gemm.core.errors import BackendUnavailable
from gemm.core.operands import item
from gemm.core.problem import Device, Plan, Problem
from gemm.frontend import plan_cache
from gemm.frontend.api import at_once, gemm
from gemm.frontend.arguments import DEFAULTS, Given, Host, Keywords, Options, Unpack, check_options, named, normalise
from gemm.select import gpu_model

log = logging.getLogger("gemm")

_COLUMNS = (tuple, list)

Product = tuple[Any, Any, Any, Any]
"""The operands a, b, c (or None) and out of a product."""


class Batch:
    """The pending products of one thread. See `batching`."""

    def __init__(self) -> None:
        self._lock = threads.lock(threading.RLock)  # another thread may call flush
        self._pending = plan_cache.pending(self)
        self._failed: dict[int, BaseException] = {}  # {number of a product in the current computation: its error}
        self._failures: list[BaseException] = []  # errors of earlier products, not raised yet
        self._depth = 0

    def __len__(self) -> int:
        """The number of pending products."""
        return int(self._pending.pending())

    def __enter__(self) -> Batch:
        if self._depth == 0:
            self._pending.enter()
            self._pending.remembers(True)
        self._depth += 1
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        self._pending.remembers(False)
        self.deliver()
        if error is None:
            self._raise()
        elif self._failures:
            log.warning("%d products failed in a block that raised: %s", len(self._failures), self._failures[0])
            self._failures.clear()

    def flush(self) -> None:
        """Compute all pending products; afterwards all results are complete.

        Raises the first error of a product; the message names the product. All other products are complete.
        """
        self.deliver()
        self._raise()

    def deliver(self) -> None:
        """Compute all pending products, but keep their errors for the next `flush`."""
        self._compute(lambda pending: pending.run(self._suits_device, self._send, self._retry))

    def _compute(self, how: Callable[[Any], Any]) -> Any:
        """Compute all pending products by calling how(gemm._memo.Batch), and return the result of this call."""
        with self._lock:
            before = plan_cache.exchange(None)  # products during the computation are not collected
            self._failed = {}
            try:
                found = how(self._pending)
            finally:
                plan_cache.exchange(before)
                failed, self._failed = self._failed, {}
            if self._depth == 0 and before is self._pending:
                self._pending.leave()
            self._failures += [_named(error, number) for number, error in failed.items()]
            return found

    def _raise(self) -> None:
        failures, self._failures = self._failures, []
        if failures:
            raise failures[0]

    def at_once(self, key: object, scales: tuple[Any, Any], count: int, columns: Sequence[Any]) -> list[Any] | None:
        """Compute `count` products and return their results; or compute nothing and return None.

        The products are computed only if no other products are pending, if all of them have the shapes, types and plan
        of a product that gemm already knows, if the batch has room for them, and if their predicted total time is so
        short that the GIL need not be released.
        """
        memo = plan_cache.find(key)
        if memo is None or len(self):
            return None
        found = self._compute(lambda pending: pending.at_once(memo, count, *columns, *scales, self._retry))
        # If `found` is a list, it is the caller's `out`. It is not copied: copying 10 000 references takes 0.1 ms.
        return list(found) if type(found) is tuple else found

    def take(self, products: Products, options: dict[str, Any]) -> None:
        """Put the result array of every product in `products.results`.

        Products are collected, launched together, or computed immediately. The results of collected products are not
        complete yet.
        """
        results = products.results
        number, count = 0, len(results)
        while True:
            if (memo := plan_cache.find(products.options)) is not None:
                # Collect products up to the first one that gemm._memo does not know.
                number = self._pending.extend(memo, number, count, *products.columns, *products.scales, results)
            if number >= count:
                return
            if launched := products.launch(number):
                number += launched
                continue
            x, y, z, target = products.operands(number)
            try:
                results[number] = gemm(x, y, z, out=target, **options)
            except (TypeError, ValueError) as error:
                raise type(error)(f"product {number}: {error}") from error
            number += 1

    # The callbacks of gemm._memo.Batch.run. `options` is a key of plan_cache.memos.

    def _suits_device(self, options: Options, alpha: Any, beta: Any, count: int, *product: Any) -> bool:
        """Whether a device should compute `count` products like `product`, instead of the CPU engine."""
        a, b, c, _ = product
        if options.backend != "auto" or options.kernel is not None or min(a.ndim, b.ndim) < 2:
            return False
        axes = max(a.ndim, b.ndim)
        # x, y and z have the shape of the stack, but are views: the operands are not copied.
        x, y, z = (None if x is None else _stack([x] * count, axes) for x in (a, b, c))
        try:
            call = normalise(Given(x, y, z, alpha=alpha, beta=beta), options)
            return execute.choose(call.problem).device.backend not in HOST_BACKENDS
        except (BackendUnavailable, MemoryError):
            return False

    def _send(self, options: Any, alpha: Any, beta: Any, numbers: list[int], products: list[Product]) -> None:
        """Compute `products` as one batched product of stacked operands.

        A single product, products of vectors, and a stack whose product fails are computed one by one (`_retry`).
        """
        if len(products) == 1 or min(products[0][0].ndim, products[0][1].ndim) < 2:
            self._retry(options, alpha, beta, numbers, products)
            return
        try:
            a, b, c, out = zip(*products, strict=True)
            axes = max(a[0].ndim, b[0].ndim)
            operand_c = None if c[0] is None else _stack(c, axes)
            results = at_once(_stack(a, axes), _stack(b, axes), operand_c, **named(options, alpha, beta))
        except Exception as error:  # one product failed, or the stack was too large
            log.debug("a stack of %d products failed, which are computed one by one: %s", len(products), error)
            self._retry(options, alpha, beta, numbers, products)
        else:
            for array, result in zip(out, results, strict=True):
                array[...] = result

    def _retry(self, options: Any, alpha: Any, beta: Any, numbers: list[int], products: list[Product]) -> None:
        """Compute each of `products` separately. Store an error in `self._failed`, under the number of its product."""
        for number, (a, b, c, out) in zip(numbers, products, strict=True):
            try:
                at_once(a, b, c, out=out, **named(options, alpha, beta))
            # Any error belongs to this product and is reported with its number. The other products are still computed.
            except Exception as error:
                self._failed[number] = error


def _stack(arrays: Sequence[np.ndarray], axes: int) -> np.ndarray:
    """Stack arrays of one shape and dtype along a new first axis. Axes of length 1 are inserted after this axis, so
    that each array has `axes` axes.

    The result is a view if all the arrays are the same object.
    """
    first = arrays[0]
    ones = (1,) * (axes - first.ndim)
    if all(x is first for x in arrays):
        return np.broadcast_to(first.reshape(*ones, *first.shape), (len(arrays), *ones, *first.shape))
    return np.concatenate(arrays).reshape(len(arrays), *ones, *first.shape)


def _named(error: BaseException, number: int) -> BaseException:
    """Return an error whose message names the product. Its class is that of `error`, if a message is enough to create
    such an error; else RuntimeError.
    """
    kind = type(error) if type(error) in (MemoryError, TypeError, ValueError, RuntimeError) else RuntimeError
    named = kind(f"product {number} of those that were pending: {error}")
    named.__cause__ = error
    return named


def batching() -> Batch:
    """A context manager. In its block, gemm collects small products of this thread and computes them together.

        with gemm.batching() as batch:
            for x, y, z in triples:
                gemm.gemm(x, y, out=z)

    Inside the block, `gemm.gemm` and `gemm.matmul` return their result array (or `out`) immediately. The contents of
    the result are valid after the block, or after batch.flush(). Until then the caller must not change any operand.
    Each product is checked when it is called. On the CPU, a product has the same bits as without the block. (Exception:
    bfloat16 on CPUs with AMX, unless reproducible=True.) Products that depend on each other are computed in the order
    of the calls: a product may read or write what an earlier product writes.

    Some products are computed immediately, after all earlier ones: the first product of each kind, a product so large
    that computing it together with others saves no time, and a product that cannot be delayed (for example with a bias,
    or of device arrays). Products of einsum, tensordot, `gemm.use`, plans and prepared operands are also computed
    immediately. When some thousands of products are pending, gemm computes them as it does at the end of the block. A
    block inside another block is part of the outer block. Other threads are not affected.

    If an exception leaves the block, the pending products are computed first, and then the exception propagates. An
    error in a pending product is raised at the end of the block (or by flush), and its message names the product; all
    other products are complete.
    """
    found: Batch | None = plan_cache.current()
    return Batch() if found is None else found


@overload
def gemm_many(
    a: Iterable[Host], b: Iterable[Host], c: Iterable[Host] | None = None, *, out: Iterable[np.ndarray] | None = None,
    dtype: DTypeLike | None = None, **options: Unpack[Keywords],
) -> list[NDArray[Any]]: ...  # fmt: skip
@overload
def gemm_many(
    a: Any, b: Any, c: Any = None, *, out: Iterable[Any] | None = None, dtype: DTypeLike | None = None,
    **options: Unpack[Keywords],
) -> list[Any]: ...  # fmt: skip
def gemm_many(a: Any, b: Any, c: Any = None, *, out: Iterable[Any] | None = None, **options: Any) -> list[Any]:
    """[gemm.gemm(a[0], b[0], c[0], out=out[0], **options), ...], computed together.

    This is the fastest way to compute many small products, especially if products of one kind follow each other. The
    lists are read when the function is called; later changes of the lists have no effect.

    Args:
        a, b, c: an iterable of operands, one for each product; or one array (with any number of axes), which all
            products use. c may be None.
        out: an iterable of arrays that receive the results. Default: new arrays.
        options: keyword arguments of `gemm.gemm`, the same for all products.

    Returns:
        The complete results: `out` itself if `out` is a list of the result arrays, else a new list. As in `batching`, a
        product may read what an earlier product writes. Products of device arrays are enqueued, as with `gemm.gemm`.
        Many consecutive products of one kind, of device arrays, become one launch. Their new results are slices of one
        array, whose memory is freed with the last slice.

    Raises:
        ValueError, TypeError: as for `gemm.gemm`. The message names the product, and the products before it are
            complete.
    """
    check_options(options, ("bias", *DEFAULTS))
    columns = [_column(x) for x in (a, b, c, out)]
    count = _length(columns)
    alpha, beta, *values = (options.get(name, default) for name, default in DEFAULTS.items())
    key: Any = Options(*values, *map(type, (*values[:2], values[4]))) if "bias" not in options else []
    with batching() as batch:
        results = batch.at_once(key, (alpha, beta), count, columns)
        if results is None:
            results = [None] * count if out is None else list(columns[-1])
            # Copy the caller's lists, because other code may change them before the products are computed.
            columns = [tuple(x) if type(x) is list else x for x in columns[:3]]
            columns.append(None if out is None else results)
            batch.take(Products(key, (alpha, beta), columns, results), options)
            if type(out) is list and len(out) == count and all(map(operator.is_, out, results)):
                results = out
        batch.flush()
    return results


def _column(given: Any) -> Any:
    """The operands as a list or tuple with one item per product, or as one operand for all products."""
    return given if given is None or hasattr(given, "shape") or type(given) in _COLUMNS else tuple(given)


def _length(columns: Sequence[Any]) -> int:
    """The number of products in the columns a, b, c and out. Raises TypeError or ValueError if the columns do not
    agree.
    """
    lengths = {name: len(x) for name, x in zip(("a", "b", "c", "out"), columns, strict=True) if type(x) in _COLUMNS}
    if not lengths:
        raise TypeError("one of a, b, c and out must be an iterable with one array for each product")
    if columns[-1] is not None and "out" not in lengths:
        raise TypeError("out must be an iterable with one array for each product, not an array")
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} has {count}" for name, count in lengths.items())
        raise ValueError(f"the lists must have the same number of operands, but {counts}")
    return next(iter(lengths.values()))


LEAST = 16
"""The minimum number of products for which gemm tries a pointer batch."""
_SOON, _LATE = 4, 64
"""After a failed attempt, which found fewer than LEAST products of one kind, gemm makes the next attempt some products
later: _SOON products after the first failed attempt, and twice as many after each further one, but at most _LATE. The
next attempt examines at most _LATE products.
"""


class Products:
    """The products of one call of gemm_many, and their pointer batches.

    Attributes:
        options: a key of plan_cache.memos; or an unhashable object, if the products cannot use the plan cache.
        scales: alpha and beta.
        columns: the operands `a`, `b`, `c` and `out` of all products.
        results: the list that receives the results. If the caller passed `out`, `results` is the column of `out`.
    """

    def __init__(self, options: Any, scales: tuple[Any, Any], columns: Sequence[Any], results: list[Any]) -> None:
        self.options, self.scales, self.columns, self.results = options, scales, tuple(columns), results
        # The next attempt examines at most `_limit` products, and starts at product `_from` or later.
        self._limit, self._from = 1 << 30, 0
        self._pause = _SOON

    def operands(self, number: int) -> list[Any]:
        """a, b, c and out of a product."""
        return [item(column, number) for column in self.columns]

    def launch(self, number: int) -> int:
        """Launch products from product `number` on as one pointer batch. Return the number of launched products, which
        may be 0.
        """
        left = len(self.results) - number
        cache = plan_cache.find(self.options) if left >= LEAST and number >= self._from else None
        if cache is None:
            return 0
        found, scales = cache.devices.known((*self.operands(number), None, *self.scales))
        if found is None or found.device is None:
            return 0
        count = self._delivered(number, min(left, self._limit), found, scales)
        if count < LEAST:
            self._from, self._limit = number + self._pause, _LATE
            self._pause = min(_LATE, 2 * self._pause)
        else:
            self._limit, self._pause = max(2 * self._limit, 4 * count), _SOON
        return count

    def _delivered(self, number: int, count: int, found: plan_cache.Known, scales: tuple[Any, ...]) -> int:
        done, problem = 0, found.problem
        assert found.device is not None
        where = self.options.backend, self.options.kernel, found.device

        def attempt(plan: Plan) -> None:
            nonlocal done
            together = getattr(execute.launcher(plan), "together", None)
            if together is None:
                done = 0
                return
            done, made = together(found.replay, self.columns, number, count, *scales)
            if made is not None:
                self.results[number : number + done] = made[:done]

        batch = 1 << (count - 1).bit_length()  # a power of two: a kernel is chosen for only a few different sizes
        many = replace(problem, batch=batch, apart=True)
        try:
            if problem.batch == 1 and problem.k and _worth(many, problem, where):
                execute.deliver(many, *where, attempt)
        except (BackendUnavailable, MemoryError, TypeError, ValueError) as error:
            log.debug("%d products are launched one by one: %s", count, error)
        return done


def _worth(many: Problem, one: Problem, where: tuple[str, str | None, Device]) -> bool:
    """Whether one launch for all products has a shorter predicted time than one launch for each product.

    With single launches, host and device work at the same time. The time of each product is therefore the larger of two
    times: gpu_model.CALL on the host, and the rest of the product's predicted time on the device.
    """
    single = execute.choose(one, *where).seconds
    return execute.choose(many, *where).seconds < many.batch * max(gpu_model.CALL, single - gpu_model.CALL)
