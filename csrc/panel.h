/* Blocks over packed panels for the types whose sums are not their operands' own type, written once: half.h (float16,
 * bfloat16), wrap.h (integers) and complex.h give the arithmetic of a family, a kernel's file the instructions. What
 * comes out is the row KERNEL, with its block function and its packing.
 *
 *   MR, NV, VL    rows, vectors a row, columns a vector        K_GROUP   k that one STEP takes
 *   A, B, C, SUM  element types in memory, of c and out, and of raw sums; PA, PB: in panels
 *   ACC, ZERO     accumulator of VL columns       GET(p), PUT(p, v)  from and to VL adjacent sums
 *   X, SPLAT(p)   a's K_GROUP elements of one row, for all columns
 *   Y, ROW(p)     b's K_GROUP x VL elements
 *   STEP(acc, x, y)                               acc + x * y over the group
 *   OFFSET, SUBTRACT(acc, extra)                      optional: what was added to each element of a in its panel; the
 *                                                 product of that with b is taken off the sums
 *   WIDEN_A(x), WIDEN_B(x), WIDEN_C(x)            an element of memory as one of a panel, or as a sum
 *   NARROW(s)                                     a finished sum as an element of C
 *   REORDER_B(p)   optional: puts VL elements of b at p, in memory's order, into the order in which ROW takes them
 *   TILE          optional: defined where the kernel's file has a function `tile` of its own, and X to STEP with it
 *   SCALAR(s), IS_ONE(s), MUL(s, t), FMA(s, t, u) scalars of type SUM, and the epilogue's arithmetic
 *   C_IS_SUM          C and SUM are one type: finished sums may go straight to memory
 *   FLAGS         flags of gemm.h; default 0
 *   PACK          optional: defined where the file has packing functions of its own, pack_a and pack_b
 *   COMPUTE       optional: the file's own block function, to follow, which may call `compute`
 *   ENTER, LEAVE  optional: statements before and after a block
 *   FMA_VARIANT       optional, for plain C: the block once more for CPUs that have the instruction, which are asked
 *
 * parameters.h names one that is missing.
 */
#include "gemm.h"

#include <string.h>

#include "panel_compiler.h"
#include "parameters.h"

#ifndef FLAGS
#define FLAGS 0
#endif
#ifndef ENTER
#define ENTER
#define LEAVE
#endif

enum { NR = (NV) * (VL) };

#ifndef TILE
/* The tile of `rows` x NR, a constant once inlined: to = (from or +0) + a * b. */
TARGET INLINE void tile(const int rows, int64_t k, const PA *a, const PB *b, const SUM *from, int64_t from_rs, SUM *to,
                        int64_t to_rs) {
    ACC acc[MR][NV];
    EACH(i, rows)
        EACH(j, NV) acc[i][j] = from ? GET(from + i * from_rs + j * (VL)) : ZERO;
#ifdef OFFSET
    ACC extra[NV];
    EACH(j, NV) extra[j] = ZERO;
#endif
    for (int64_t p = 0; p < k; p += K_GROUP, a += MR * K_GROUP, b += NR * K_GROUP) {
        Y y[NV];
        EACH(j, NV) y[j] = ROW(b + j * (VL)*K_GROUP);
#ifdef OFFSET
        EACH(j, NV) extra[j] = STEP(extra[j], OFFSET, y[j]);
#endif
        EACH(i, rows) {
            const X x = SPLAT(a + i * K_GROUP);
            EACH(j, NV) acc[i][j] = STEP(acc[i][j], x, y[j]);
        }
    }
    EACH(i, rows)
        EACH(j, NV) {
#ifdef OFFSET
            acc[i][j] = SUBTRACT(acc[i][j], extra[j]);
#endif
            PUT(to + i * to_rs + j * (VL), acc[i][j]);
        }
}
#endif

/* A tile of no more rows than are there, to the next power of two: row vectors are frequent, and deserve their own. */
TARGET INLINE void tile_of(int64_t rows, int64_t k, const PA *a, const PB *b, const SUM *from, int64_t from_rs, SUM *to,
                           int64_t to_rs) {
    if (rows == 1) {
        tile(1, k, a, b, from, from_rs, to, to_rs);
    } else if (rows == 2) {
        tile(2, k, a, b, from, from_rs, to, to_rs);
    } else if (rows <= 4 && 4 < MR) {
        tile(4 < MR ? 4 : MR, k, a, b, from, from_rs, to, to_rs);
    } else if (rows <= 8 && 8 < MR) {
        tile(8 < MR ? 8 : MR, k, a, b, from, from_rs, to, to_rs);
    } else {
        tile(MR, k, a, b, from, from_rs, to, to_rs);
    }
}

/* One row of `count` <= NR sums, scaled, with its row of c added, in the type of C. */
TARGET INLINE void finish(const gemm_block *x, int64_t count, SUM *sums, const C *c, C *to) {
    if (!IS_ONE(x->alpha)) {
        const SUM alpha = SCALAR(x->alpha);
        for (int64_t i = 0; i < count; i++) sums[i] = MUL(alpha, sums[i]);
    }
    if (c) {
        const SUM beta = SCALAR(x->beta);
        for (int64_t i = 0; i < count; i++) sums[i] = FMA(beta, WIDEN_C(c[i]), sums[i]);
    }
    for (int64_t i = 0; i < count; i++) to[i] = NARROW(sums[i]);
}

TARGET INLINE void block(const gemm_block *x) {
    const int plain = C_IS_SUM && IS_ONE(x->alpha) && !x->c;
    for (int64_t j = 0; j < x->n; j += NR)
        for (int64_t i = 0; i < x->m; i += MR) {
            const int64_t rows = x->m - i < MR ? x->m - i : MR, columns = x->n - j < NR ? x->n - j : NR;
            const PA *a = (const PA *)x->a + i / MR * x->a_ts;
            const PB *b = (const PB *)x->b + j / NR * x->b_ts;
            const SUM *from = x->from ? (const SUM *)x->from + i * x->from_rs + j : NULL;
            SUM sums[MR][NR]; /* partial tiles have whole ones here */
            const int whole = rows == MR && columns == NR;
            if (whole && (x->raw || plain)) {
                tile(MR, x->k, a, b, from, x->from_rs, (SUM *)x->to + i * x->to_rs + j, x->to_rs);
                continue;
            }
            if (from && !whole) {
                memset(sums, 0, sizeof sums);
                for (int64_t row = 0; row < rows; row++)
                    memcpy(sums[row], from + row * x->from_rs, (size_t)columns * sizeof(SUM));
                tile_of(rows, x->k, a, b, sums[0], NR, sums[0], NR);
            } else {
                tile_of(rows, x->k, a, b, from, x->from_rs, sums[0], NR);
            }
            for (int64_t row = 0; row < rows; row++) {
                const int64_t at = (i + row) * x->to_rs + j;
                if (x->raw)
                    memcpy((SUM *)x->to + at, sums[row], (size_t)columns * sizeof(SUM));
                else
                    finish(x, columns, sums[row], x->c ? (const C *)x->c + (i + row) * x->c_rs + j : NULL,
                           (C *)x->to + at);
            }
        }
}

TARGET static void compute(const gemm_block *x) {
    ENTER
    block(x);
    LEAVE
}

#ifdef COMPUTE
static void COMPUTE(const gemm_block *x); /* of the file itself */
#elif defined(FMA_VARIANT)
__attribute__((target("fma"))) static void compute_by_fma(const gemm_block *x) {
    block(x);
}

static void compute_dispatch(const gemm_block *x) {
    (gemm_features() & GEMM_FMA ? compute_by_fma : compute)(x);
}
#define COMPUTE compute_dispatch
#else
#define COMPUTE compute
#endif

#ifndef PACK
#define P PA
#define T_IN A
#define NAMED(stem) stem##_a
#define WIDTH MR
#undef WIDEN
#define WIDEN(x) WIDEN_A(x)
#include "panel_pack.h"

#define P PB
#define T_IN B
#define NAMED(stem) stem##_b
#define WIDTH NR
#undef WIDEN
#define WIDEN(x) WIDEN_B(x)
#ifdef REORDER_B
#define REORDER(p) REORDER_B(p)
#endif
#include "panel_pack.h"
#endif

#define QUOTE(name) #name
#define QUOTED(name) QUOTE(name)
const gemm_kernel KERNEL = {QUOTED(KERNEL), sizeof(A),  sizeof(B), sizeof(C), sizeof(SUM),
                            sizeof(PA),     sizeof(PB), MR,        NR,        K_GROUP,
                            FLAGS,          COMPUTE,    pack_a,    pack_b};
