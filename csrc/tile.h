/* The register tile, written once. A kernel's file defines the parameters below and includes this; what comes out is
 * a static function NAME that fulfils the contract of gemm.h, every accumulator in a register:
 *
 *                 b: NV vectors of VL columns
 *                +------+------+------+
 *      a: MR     | acc  | acc  | acc  |    per k: load NV vectors of b, broadcast each of MR elements of a,
 *      rows      | acc  | acc  | acc  |    MR x NV fused multiply-adds
 *                +------+------+------+
 *
 *   KERNEL    name of its row: defines the descriptor; without it only the function is made
 *   NAME      of the function          TARGET  its attributes: the instruction set, for this function alone
 *   T         element type             V, VL   vector type and how many elements it holds
 *   MR, NV    rows, vectors per row    LOAD(p), STORE(p, v), SPLAT(x), MUL(x, y), FMA(x, y, z) = x*y + z
 *             without V these are plain C, only FMA is to be given
 *   STEP4(acc, a, b)                   optional: the kernel's own four k in one, in order; `acc` is V[MR][NV]
 *
 * All are undefined again at the end, so that a file may include this several times.
 */
#include "gemm.h"

/* Loops over the tile must vanish, or the accumulators live in memory. */
#if defined(__clang__)
#define EACH(i, count) _Pragma("clang loop unroll(full)") for (int i = 0; i < (count); i++)
#elif defined(__GNUC__)
#define EACH(i, count) _Pragma("GCC unroll 64") for (int i = 0; i < (count); i++)
#else
#define EACH(i, count) for (int i = 0; i < (count); i++)
#endif
#ifndef TARGET
#define TARGET
#endif
#ifndef V
#define V T
#define VL 1
#define LOAD(p) (*(p))
#define STORE(p, v) (*(p) = (v))
#define SPLAT(x) (x)
#define MUL(x, y) ((x) * (y))
#endif

TARGET static void NAME(int64_t k, const void *a_panel, const void *b_panel, const gemm_tile *tile) {
    const T *a = (const T *)a_panel, *b = (const T *)b_panel;
    const T *from = (const T *)tile->from, *c = (const T *)tile->c;
    T *to = (T *)tile->to;
    V acc[MR][NV];

    EACH(i, MR)
        EACH(j, NV) acc[i][j] = from ? LOAD(from + i * tile->from_rs + j * VL) : SPLAT((T)0);

    int64_t p = 0;
#ifdef STEP4
    for (; p + 4 <= k; p += 4, a += 4 * MR, b += 4 * NV * VL) { STEP4(acc, a, b); }
#endif
    for (; p < k; p++, a += MR, b += NV * VL) {
        V row[NV];
        EACH(j, NV) row[j] = LOAD(b + j * VL);
        EACH(i, MR) {
            const V element = SPLAT(a[i]);
            EACH(j, NV) acc[i][j] = FMA(element, row[j], acc[i][j]);
        }
    }

    if (tile->alpha != 1) { /* so a NaN multiplies; 1 is no multiplication only to save it */
        const V alpha = SPLAT((T)tile->alpha);
        EACH(i, MR)
            EACH(j, NV) acc[i][j] = MUL(alpha, acc[i][j]);
    }
    if (c) {
        const V beta = SPLAT((T)tile->beta);
        EACH(i, MR)
            EACH(j, NV) acc[i][j] = FMA(beta, LOAD(c + i * tile->c_rs + j * VL), acc[i][j]);
    }
    EACH(i, MR)
        EACH(j, NV) STORE(to + i * tile->to_rs + j * VL, acc[i][j]);
}

#ifdef KERNEL
#define QUOTE(name) #name
#define QUOTED(name) QUOTE(name)
const gemm_kernel KERNEL = {QUOTED(KERNEL), sizeof(T), MR, (NV) * (VL), NAME};
#undef QUOTE
#undef QUOTED
#endif

#undef KERNEL
#undef NAME
#undef TARGET
#undef T
#undef V
#undef VL
#undef MR
#undef NV
#undef LOAD
#undef STORE
#undef SPLAT
#undef MUL
#undef FMA
#undef STEP4
#undef EACH
