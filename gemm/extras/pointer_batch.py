"""Products of device arrays that each lie by themselves, many in one launch: for `gemm.gemm_many`.

A launch takes the host microseconds, a small product the device some nanoseconds. So those that come one after another
and are alike are given to a kernel that reads where their operands lie from a table, where there is one and it is
predicted to take less time. What they depend on was launched before, on the same stream.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gemm import execute
from gemm.core.errors import BackendUnavailable
from gemm.core.operands import item
from gemm.core.plan import Plan
from gemm.core.problem import Device, Problem
from gemm.frontend import plan_cache
from gemm.frontend.arguments import named
from gemm.select import gpu_model

log = logging.getLogger("gemm")

LEAST = 16
"""Products that are worth the look."""
_SOON, _LATE = 4, 64
"""Products after which it is worth another one, where few were alike and independent: at first, and later on."""


class Together:
    """The products of one call of gemm_many."""

    def __init__(self, options: Any, scales: tuple[Any, Any], columns: Sequence[Any], results: list[Any]) -> None:
        """`options`: a key of repeat.memos; `scales`: alpha and beta. `results` has those of products whose out
        is new, and is their column else."""
        self._options, self._scales, self._columns, self._results = options, scales, tuple(columns), results
        self._limit, self._from = 1 << 30, 0  # how many products to look at, and from which number on
        self._pause = _SOON

    def launch(self, number: int) -> int:
        """How many products from `number` on were launched as one, whose results are there; 0: that one is not."""
        left = len(self._results) - number
        known = plan_cache.memos.get(self._options) if left >= LEAST and number >= self._from else None
        if known is None:
            return 0
        a, b, c, out = (item(column, number) for column in self._columns)
        found, scales = known.devices.known((a, b, c, out, None, *self._scales))
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
        asked, done = named(self._options, *self._scales), 0
        where = asked["backend"], asked["kernel"], found.device
        problem = found.problem

        def attempt(plan: Plan) -> None:
            nonlocal done
            together = getattr(execute.launcher(plan), "together", None)
            done, made = (
                (0, None) if together is None else together(found.replay, self._columns, number, count, *scales)
            )
            if made is not None:
                self._results[number : number + done] = made[:done]

        batch = 1 << (count - 1).bit_length()  # few numbers need a choice of their own
        many = replace(problem, batch=batch, apart=True)
        try:
            if problem.batch == 1 and problem.k and _worth(many, problem, where):
                execute.deliver(many, *where, attempt)
        except (BackendUnavailable, MemoryError, TypeError, ValueError) as error:
            log.debug("%d products are launched one by one: %s", count, error)
        return done


def _worth(many: Problem, one: Problem, where: tuple[str, str | None, Device]) -> bool:
    """Whether one launch is predicted to take less time than as many as it has products.

    These take the host a call each, and the device what is left, at the same time.
    """
    single = execute.choose(one, *where).seconds
    return execute.choose(many, *where).seconds < many.batch * max(gpu_model.CALL, single - gpu_model.CALL)
