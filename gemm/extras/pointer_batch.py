"""Pointer batches: one launch for many products of separate device arrays, for `gemm.gemm_many`.

A launch takes some microseconds on the host, and a small product takes some nanoseconds on the device. gemm therefore
gives consecutive products of one kind to a kernel that reads the operands' addresses from a table. This happens only if
the device has such a kernel and one launch has a shorter predicted time than separate launches. Earlier products on
which these products depend were launched before, on the same stream.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gemm import execute
from gemm.core.errors import BackendUnavailable
from gemm.core.operands import item
from gemm.core.problem import Device, Plan, Problem
from gemm.frontend import plan_cache
from gemm.select import gpu_model

log = logging.getLogger("gemm")

LEAST = 16
"""The minimum number of products for which gemm tries a pointer batch."""
_SOON, _LATE = 4, 64
"""After an attempt that found fewer than LEAST products of one kind, the next attempt comes some products later: _SOON
products later at first, twice as many after each further such attempt, but at most _LATE.
"""


class Products:
    """The products of one call of gemm_many, and their pointer batches.

    Attributes:
        options: a key of plan_cache.memos, or an unhashable object if the products have no plan cache.
        scales: alpha and beta.
        columns: the operands `a`, `b`, `c` and `out` of all products.
        results: the list that receives the results. If the caller passed `out`, `results` is the column of `out`.
    """

    def __init__(self, options: Any, scales: tuple[Any, Any], columns: Sequence[Any], results: list[Any]) -> None:
        self.options, self.scales, self.columns, self.results = options, scales, tuple(columns), results
        # The most products to examine in the next attempt, and the first product at which an attempt is made.
        self._limit, self._from = 1 << 30, 0
        self._pause = _SOON

    def operands(self, number: int) -> list[Any]:
        """a, b, c and out of a product."""
        return [item(column, number) for column in self.columns]

    def launch(self, number: int) -> int:
        """Launch products from `number` on as one pointer batch. Returns the number of launched products; 0: none is
        launched.
        """
        left = len(self.results) - number
        cache = plan_cache.find(self.options) if left >= LEAST and number >= self._from else None
        if cache is None:
            return 0
        found, scales = cache.devices.known((*self.operands(number), None, *self.scales))
        if found is None:
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

        batch = 1 << (count - 1).bit_length()  # a power of two, so that few different sizes need a choice of kernel
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
