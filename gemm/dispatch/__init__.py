"""Which kernel, on which device: candidates → measured or predicted time → the least."""

from gemm.dispatch.choice import candidates
from gemm.dispatch.delivery import choose, deliver, forget, launcher, run
from gemm.dispatch.entrants import check_names, unavailable
from gemm.dispatch.plan import Candidate, Plan

__all__ = [
    "Candidate",
    "Plan",
    "candidates",
    "check_names",
    "choose",
    "deliver",
    "forget",
    "launcher",
    "run",
    "unavailable",
]
