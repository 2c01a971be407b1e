"""Choose the plan of a product and run it: candidate kernels, their measured or predicted times, the fastest one."""

from gemm.core.plan import Candidate, Plan
from gemm.execute.delivery import choose, deliver, forget, launcher, run
from gemm.select.candidates import check_names, unavailable
from gemm.select.choice import candidates

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
