"""The call with b packed first by gemm.prepare, with a canary behind its panels."""

from unittest.mock import patch

import numpy as np

import gemm
from conformance.arena import POISON
from gemm.catalog import BY_NAME
from gemm.core.operands import aligned
from gemm.core.problem import NARROW

MOST = 1 << 22


def prepared(kernel, precision, call):
    """`call` by `kernel`, b prepared; `call` itself where b is no single matrix or what is asked is not offered so."""

    def packed(a, b, c=None, *, out=None, **options):
        fused = options.get("bias") is not None or options.get("activation") is not None
        offered = BY_NAME[kernel].prepares and b.ndim == 2 and not (fused and b.dtype.name in NARROW)
        if not (offered and b.size):
            return call(a, b, c, out=out, **options)
        canaries = []

        def followed(nbytes):
            """Memory as `aligned` gives it, and a canary from its very end on."""
            behind = min(64 * nbytes, MOST) + 65536  # a panel may be of 64 columns, and b of one
            memory = aligned(nbytes + behind)
            memory[nbytes:] = POISON
            canaries.append(memory[nbytes:])
            return memory[:nbytes]

        with patch("gemm.backends.cpu.aligned", followed):
            right = gemm.prepare(b, trans_b=options.pop("trans_b", False), kernel=kernel, precision=precision)
        if len(canaries) != 1:
            raise AssertionError(f"{len(canaries)} buffers were made for one matrix")
        if out is None:  # what was learned of the first serves the second
            gemm.gemm(a, right, c, kernel=kernel, precision=precision, **options)
        result = gemm.gemm(a, right, c, out=out, kernel=kernel, precision=precision, **options)
        if not (canaries[0] == POISON).all():
            at = int(np.flatnonzero(canaries[0] != POISON)[0])
            raise AssertionError(f"byte {at} behind the prepared matrix was overwritten")
        return result

    return packed
