"""Time work on a GPU's stream by CUDA events. If possible, a CUDA graph replays the work without delays by the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from gemm.backends.cuda.driver import cuda
from gemm.core.errors import KernelFailed

Enqueue = Callable[[], Any]
"""Enqueues one product on the stream."""


class Clock:
    """Times work on `stream`, a stream of `gpu` that belongs to this object."""

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu
        with gpu:
            self.stream = cuda().cuStreamCreate(1)
            self._begin, self._end = cuda().cuEventCreate(0), cuda().cuEventCreate(0)

    def seconds(self, work: Enqueue) -> float:
        """Seconds of all work that `work` enqueues."""
        with self.gpu:
            cuda().cuEventRecord(self._begin, self.stream)
            work()
            cuda().cuEventRecord(self._end, self.stream)
            cuda().cuEventSynchronize(self._end)
            return float(cuda().cuEventElapsedTime(self._begin, self._end)) / 1e3

    def settle(self) -> None:
        """Wait for all work on the GPU."""
        with self.gpu:
            cuda().cuCtxSynchronize()

    def repeated(self, enqueue: Enqueue, times: int) -> tuple[Enqueue, bool]:
        """A function that does `enqueue` `times` times, as a CUDA graph if possible; and whether it is a graph."""
        with self.gpu:
            try:
                cuda().cuStreamBeginCapture(self.stream, 2)  # CU_STREAM_CAPTURE_MODE_RELAXED
                try:
                    for _ in range(times):
                        enqueue()
                finally:
                    graph = cuda().cuStreamEndCapture(self.stream)
                ready = cuda().cuGraphInstantiateWithFlags(graph, 0)
                cuda().cuGraphDestroy(graph)
            except (KernelFailed, RuntimeError):  # the contestant allocates or waits, which a graph cannot capture
                self.settle()
                return lambda: [enqueue() for _ in range(times)], False
        return lambda: cuda().cuGraphLaunch(ready, self.stream), True


def compete(clock: Clock, runs: Mapping[str, Enqueue], rounds: int, sample: float) -> dict[str, dict[str, Any]]:
    """Time the contestants in turn, `rounds` times, each for about `sample` seconds.

    Each round starts with another contestant, and every second round runs in reverse order.

    Returns:
        {name: {seconds (the median), samples, graph}}.
    """
    ready, times, found = {}, {}, {}
    for name, enqueue in runs.items():
        clock.seconds(enqueue)  # load kernels and allocate memory
        alone = min(clock.seconds(enqueue) for _ in range(2))
        times[name] = max(1, min(1000, math.ceil(sample / max(alone, 1e-6))))
        ready[name], graph = clock.repeated(enqueue, times[name])
        found[name] = {"samples": [], "graph": graph}
        clock.seconds(ready[name])
    names = list(runs)
    for turn in range(rounds):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in order if turn % 2 == 0 else reversed(order):
            found[name]["samples"].append(clock.seconds(ready[name]) / times[name])
    for one in found.values():
        one["seconds"] = median(one["samples"])
    return found


def ratio(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """Their time ÷ our time, as the median over the rounds, because a disturbance of a round affects both samples."""
    return median(their / our for our, their in zip(ours["samples"], theirs["samples"], strict=True))
