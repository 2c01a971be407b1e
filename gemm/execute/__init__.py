"""Choose the plan of a product and run the plan.

The plan uses the candidate kernel whose measured or predicted time is the shortest.
"""

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
