"""The result of a product that waits; see gemm.pending."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("gemm")


class Future:
    """The result of a product that `submit` was given: its methods are those of concurrent.futures.Future.

    Asking for it, from any thread, computes what is pending.
    """

    __slots__ = ("_calls", "_deliver", "_done", "_error", "_result")

    def __init__(self, deliver: Callable[[], None] | None, result: Any) -> None:
        """`deliver` computes the product, among others; None: it is computed."""
        self._deliver, self._result = deliver, result
        self._done = deliver is None
        self._error: BaseException | None = None
        self._calls: list[Callable[[Future], Any]] | None = None

    def result(self, timeout: float | None = None) -> Any:
        """The array, complete. Raises what the product raised. `timeout` is there for the interface: nothing waits."""
        if error := self.exception():
            raise error
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the product raised, or None."""
        if not self._done and self._deliver is not None:
            self._deliver()
        return self._error

    def done(self) -> bool:
        """Whether the result is there without waiting."""
        return self._done

    def running(self) -> bool:
        return False

    def cancel(self) -> bool:
        """False: a product that was asked for is computed."""
        return False

    def cancelled(self) -> bool:
        return False

    def add_done_callback(self, call: Callable[[Future], Any]) -> None:
        """Call `call(self)` when the product is done, or now; in the thread that computes it."""
        if self._done:
            call(self)
        else:
            self._calls = [*(self._calls or ()), call]

    def settle(self, error: BaseException | None) -> None:
        """The product is done."""
        self._error, self._deliver, self._done = error, None, True
        calls, self._calls = self._calls, None
        for call in calls or ():
            try:
                call(self)
            except Exception:  # the caller's code may raise anything, and other callbacks are to be called
                log.exception("a callback of a product raised")
