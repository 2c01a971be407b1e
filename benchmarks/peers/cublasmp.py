"""cuBLASMp's time of an n × n × n product in slabs of rows, one process a GPU; run by mpiexec.

    mpiexec -n GPUS python benchmarks/peers/cublasmp.py SIZE DTYPE ROUNDS

It needs nvmath-python, its cuBLASMp, mpi4py and PyTorch. The first process prints {"times": [seconds, ...]}: of each
round the slowest process's.
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    """Time, print."""
    import torch
    from mpi4py import MPI
    from nvmath import distributed
    from nvmath.distributed.distribution import Slab
    from nvmath.distributed.linalg.advanced import Matmul

    size, dtype, rounds = int(sys.argv[1]), getattr(torch, sys.argv[2]), int(sys.argv[3])
    world = MPI.COMM_WORLD
    torch.cuda.set_device(world.rank)
    distributed.initialize(world.rank, world, backends=["nccl"])
    rows = size // world.size
    # It takes matrices whose columns are contiguous.
    a, b = (torch.randn(size, rows, device="cuda").to(dtype).t() for _ in range(2))
    times = []
    with Matmul(a, b, distributions=[Slab.X, Slab.X, Slab.X]) as product:
        product.plan()
        for _ in range(rounds + 1):
            torch.cuda.synchronize()
            world.Barrier()
            begun = time.perf_counter()
            product.execute()
            torch.cuda.synchronize()
            times.append(world.allreduce(time.perf_counter() - begun, op=MPI.MAX))
    if world.rank == 0:
        print(json.dumps({"times": times[1:]}))  # the first one warms up


if __name__ == "__main__":
    main()
