"""From a problem and a row of the catalog to a recipe: which kernels run on what, in how many blocks.

What the host reads of a CUDA row. Capital parameters are the kernel's (-D macros); of them the host reads

    BM BN BK    the tile of out that a block (or a pair of it, see MULTICAST) computes, and its step along k
    THREADS     threads of a block, which is one-dimensional
    MULTICAST   blocks that form a cluster in order to share operands: each computes its own tile; default 1
    STACK       products of a batch that one block computes; default 1. The grid's y is ceil(batch / STACK)

Small ones are the host's alone, and absent ones are 0:

    shared      bytes of dynamic shared memory (often `derived`)
    blocks      a persistent grid: at most so many blocks a multiprocessor, which walk tiles and batch by themselves
                (grid y is 1). 0: a block a tile and a product
    parts       the most parts of k that a tile is cut into. On sm_90 and newer they are a cluster (parts * MULTICAST
                <= 8), before that they are joined through memory; see join.cuh. 0 or 1: never
    a_lies, b_lies    how an operand may lie: 1 contiguous along k, 2 contiguous along m (b: n), 3 either (when absent),
                7 in any strides. One that lies otherwise is copied so first, by gemm_cuda_pack, and so is one whose
                address or strides are not multiples of 16 bytes where it is read by TMA
    vector      bytes of the widest access to a and b: the kernel gets A_VECTOR and B_VECTOR, the elements of them, or
                1 where address or strides (but the unit one) are not multiples of it. 0: it gets neither
    maps        operands read through tensor maps: 1 a, 2 b, 3 both. The kernel's parameters are (g, the maps of those)
    a_box_k a_box_m b_box_k b_box_n    the boxes of those maps in elements. The extent along the contiguous axis is cut
                to the swizzle's width, so that a kernel then loads several boxes a step
    a_swizzle b_swizzle    bytes: 0, 32, 64 or 128
    tf32        1: maps of float32 round to TF32 on the way
    planes      the operands are split first, by gemm_cuda_split, into so many planes along k: 3 of bfloat16 or 2 of
                float16. A_TYPE and B_TYPE are theirs

Maps have three axes: (the contiguous one, the other one, batch * planes + plane). An operand that is the same for all of
a batch has a_batch (b_batch) 0 and one matrix in its map: its batch coordinate is `g.a_batch ? batch : 0`. What lies
outside reads as 0. Elements travel as unsigned integers of their width (but see tf32), so that no bit changes.

The forms that a kernel is compiled in, besides A_TYPE, B_TYPE and OUT_TYPE: A_TURNED (1: a is contiguous along m, not k),
B_TURNED (1: b is contiguous along k, not n), A_VECTOR and B_VECTOR, EPILOGUE (1: bias and activation). A row whose
a_lies (b_lies) is not 3 needs no A_TURNED (B_TURNED): it gets 0 where operands lie in any strides.

Grid: x = ceil(tiles / MULTICAST) * parts * MULTICAST blocks, where block x is number x % MULTICAST of its pair, part
x / MULTICAST % parts, of the tiles from x / (MULTICAST * parts) * MULTICAST on; less of them if persistent. A cluster
is parts * MULTICAST of them. Batches beyond 65535 in y, and all but one axis of a batch, are launches of their own.
"""
