/* Block functions over packed panels. Elements in memory, elements in panels and sums may have different types.
 * bfloat16.h, wrap.h (integers) and complex.h define the arithmetic of a family of types. A kernel's file defines the
 * instructions. The result is the descriptor KERNEL with its block function and its packing functions.
 *
 * Types and sizes:
 *
 *   KERNEL, TARGET  name of the kernel's row in the catalog; function attributes that enable the instruction set
 *   MR, NV, VL      rows of the tile; vectors per row; columns per vector
 *   K_GROUP         steps along k that one STEP consumes
 *   A, B, C, SUM    types in memory of a, of b, of c and out, and of raw sums
 *   PA, PB          types of a and b in panels
 *   C_IS_SUM        1 if C and SUM are the same type, else 0. With 1, the tile stores sums that need no epilogue
 *                   directly to C.
 *
 * The tile:
 *
 *   ACC, ZERO       an accumulator of VL columns, and its initial value
 *   GET(p), PUT(p, v)   load and store an accumulator from and to VL contiguous sums
 *   X, SPLAT(p)     type and load of K_GROUP elements of one row of a, broadcast to all columns
 *   Y, ROW(p)       type and load of K_GROUP x VL elements of b
 *   STEP(acc, x, y) adds K_GROUP products of x and y to each of the VL sums in acc
 *   TILE            defined if the kernel's file has its own function `tile`; then the other parameters of this list
 *                   are not required
 *
 * The arithmetic:
 *
 *   WIDEN_A(x), WIDEN_B(x), WIDEN_C(x)   convert an element of a, b or c from memory to PA, PB or SUM
 *   NARROW(s)                            convert a finished sum to C
 *   SCALAR(s), IS_ONE(s)                 the value of a gemm_scalar as SUM, and whether it is 1
 *   MUL(s, t), FMA(s, t, u)              the arithmetic of the epilogue
 *
 * Optional parameters:
 *
 *   OFFSET          an X that holds, in each element, the constant that WIDEN_A adds to the elements of a. For each
 *                   column, the tile sums OFFSET * b over k in `extra`, and subtracts the sum at the end.
 *   SUBTRACT(acc, extra)   acc - extra; required with OFFSET
 *   REORDER_B(p)    puts VL elements of a panel of b, at p, into the order that ROW expects
 *   FLAGS           flags of gemm.h (default: 0)
 *   PACK            if defined, the kernel's file has its own packing functions pack_a and pack_b
 *   COMPUTE         the descriptor's block function (default: `compute`). The kernel's file defines this function
 *                   after it includes this header; the function may call `compute`.
 *   ENTER, LEAVE    statements that `compute` executes before and after the block
 *   FMA_VARIANT     for plain C. If defined, the block function is compiled a second time for CPUs with FMA, and the
 *                   CPU's features decide at run time.
 *
 * parameters.h reports a missing parameter.
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
/* Computes a tile of `rows` x NR sums: to = (from or +0) + a * b. `rows` is a constant after inlining. */
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

/* Computes a tile of at least `rows` rows: rounds `rows` up to 1, 2, 4, 8 or MR. */
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

/* Applies the epilogue to `count` sums of one row: alpha, beta * c, conversion to C. Overwrites `sums`. */
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
    const int unscaled = C_IS_SUM && IS_ONE(x->alpha) && !x->c;
    for (int64_t j = 0; j < x->n; j += NR)
        for (int64_t i = 0; i < x->m; i += MR) {
            const int64_t rows = x->m - i < MR ? x->m - i : MR, columns = x->n - j < NR ? x->n - j : NR;
            const PA *a = (const PA *)x->a + i / MR * x->a_ts;
            const PB *b = (const PB *)x->b + j / NR * x->b_ts;
            const SUM *from = x->from ? (const SUM *)x->from + i * x->from_rs + j : NULL;
            SUM sums[MR][NR]; /* a partial tile, or a tile that needs the epilogue, is computed in this buffer */
            const int whole = rows == MR && columns == NR;
            if (whole && (x->raw || unscaled)) {
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
static void COMPUTE(const gemm_block *x); /* defined by the kernel's file */
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
/* The fields that each descriptor has. checked.h adds more. */
#define DESCRIPTOR(name)                                                                                            \
    QUOTED(name), sizeof(A), sizeof(B), sizeof(C), sizeof(SUM), sizeof(PA), sizeof(PB), MR, NR, NR, K_GROUP, FLAGS, \
        COMPUTE, pack_a, pack_b
const gemm_kernel KERNEL = {DESCRIPTOR(KERNEL)};
