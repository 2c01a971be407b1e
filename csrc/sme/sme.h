/* panel.h's tile in ZA, the matrix register of Arm's Scalable Matrix Extension (SME). ZA consists of 4 squares of
 * 32-bit sums, or of 8 squares of 64-bit sums. A square has as many rows and columns as a vector has sums: 16 x 16
 * floats if vectors have 512 bits. One instruction, an outer product, multiplies each element of a vector of a by each
 * element of a vector of b, and adds the products to a square. If K_GROUP is above 1, a group of K_GROUP elements
 * takes the place of an element.
 *
 * The length of vectors, 128 to 2048 bits, is known only at run time. The tile has the size of ZA for vectors of 512
 * bits. With shorter vectors, the tile is computed in parts of the size of ZA. With longer vectors, predicates disable
 * the elements outside of the tile. All lengths give the same bits: with FMOPA, each sum is a chain of fused
 * multiply-adds in the order of k. FMOPA keeps subnormals, because the driver clears FPCR.
 *
 *   SUM       type of the sums
 *   SUM_64    defined if SUM has 64 bits, else SUM has 32 bits. K_GROUP elements of a panel have as many bits as SUM.
 *   OUTER     the outer product: one of the codes FMOPA_32 ... below
 *
 * The other parameters of panel.h, except those of the tile, are defined before this header or by a later header.
 */
#include <stdint.h>

#include "panel_compiler.h"

#define TILE
#define ENTER save_za();
#define LEAVE
#define MR (128 / (int)sizeof(SUM))
#ifdef SUM_64
#define NV 4
#define VL 8
#else
#define NV 2
#define VL 16
#endif

/* The instructions of SME are written as codes, because assemblers before binutils 2.38 and LLVM 14 do not know their
 * names. In the parameters, `square`, `x` and `y` (vectors), `rows`, `columns` and `p` (predicates) are the numbers of
 * registers.
 *
 *   ADD_OUTER    adds an outer product to a square
 *   LD1, ST1     load or store row w12 of a square, from or to x13 + (the register with number `at`) * size of a sum.
 *                The predicate selects columns. LD1 sets other columns to 0.
 */
#define CODE(code) ".inst " #code "\n\t"
#define ENCODE(code, by16, by13, by10, by5, by0) \
    CODE(code + ((by16) << 16) + ((by13) << 13) + ((by10) << 10) + ((by5) << 5) + (by0))
#define ADD_OUTER(square, rows, columns, x, y) ENCODE(OUTER, y, columns, rows, x, square)
#define FMOPA_32 0x80800000
#define FMOPA_64 0x80c00000
#define BFMOPA 0x81800000
#define SMOPA 0xa0800000
#define UMOPA 0xa1a00000
#define USMOPA 0xa1800000
#ifdef SUM_64
#define LD1(square, p, at) ENCODE(0xe0c00000, at, 0, p, 13, (square) << 1)
#define ST1(square, p, at) ENCODE(0xe0e00000, at, 0, p, 13, (square) << 1)
#else
#define LD1(square, p, at) ENCODE(0xe0800000, at, 0, p, 13, (square) << 2)
#define ST1(square, p, at) ENCODE(0xe0a00000, at, 0, p, 13, (square) << 2)
#endif
#define SMSTART CODE(0xd503477f)
#define SMSTOP CODE(0xd503467f)
#define ZERO_ZA CODE(0xc00800ff)
#define RDSVL_X13_1 CODE(0x04bf582d)
#define STR_ZA_X12_X10 CODE(0xe1200140) /* str za[w12, 0], [x10] */

/* A part of the tile has 2 vectors of rows, with the predicates p0 and p1, and 2 or 4 vectors of columns, with the
 * predicates p2 to p5. A predicate has a bit for each byte of a vector. Therefore the same predicates suit elements of
 * all sizes, and the vectors of a and b are loaded as bytes. x14, x15 and x16 are the numbers of sums in 1, 2 and 3
 * vectors. As the argument `at` of LD1 and ST1, 31 is the zero register. */
/* clang-format off */
#define LOAD(z, p, from, at) "ld1b {z" #z ".b}, p" #p "/z, [%[" #from "], #" #at ", mul vl]\n\t"
#define LOAD_A(x0, x1) LOAD(x0, 0, x, 0) LOAD(x1, 1, x, 1) "add %[x], %[x], %[panel_a]\n\t"
#define WHILE(p, panel) "whilelt p" #p ".b, %[t], %[" #panel "]\n\t" "add %[t], %[t], %[vector]\n\t"
#ifdef SUM_64
#define SIZE "3"   /* log2 of the number of bytes of a sum */
#define ACROSS "2" /* log2 of the number of vectors of columns */
#define WHILE_COLUMNS WHILE(2, panel_b) WHILE(3, panel_b) WHILE(4, panel_b) WHILE(5, panel_b)
#define EACH_SQUARE(MOVE, square) \
    MOVE(square, 2, 31) MOVE(square + 1, 3, 14) MOVE(square + 2, 4, 15) MOVE(square + 3, 5, 16)
#define ADD_ROW(square, p, x, y0, y1, y2, y3)                             \
    ADD_OUTER(square, p, 2, x, y0) ADD_OUTER(square + 1, p, 3, x, y1)     \
    ADD_OUTER(square + 2, p, 4, x, y2) ADD_OUTER(square + 3, p, 5, x, y3)
#define STEP(x0, x1, y0, y1, y2, y3)                                                \
    LOAD_A(x0, x1)                                                                  \
    LOAD(y0, 2, y, 0) LOAD(y1, 3, y, 1) LOAD(y2, 4, y, 2) LOAD(y3, 5, y, 3)         \
    "add %[y], %[y], %[panel_b]\n\t"                                                \
    ADD_ROW(0, 0, x0, y0, y1, y2, y3) ADD_ROW(4, 1, x1, y0, y1, y2, y3)
#define STEP_1 STEP(0, 1, 2, 3, 4, 5)
#define STEPS_4 STEP_1 STEP(6, 7, 8, 9, 10, 11) STEP(12, 13, 14, 15, 16, 17) STEP(18, 19, 20, 21, 22, 23)
#define SECOND_ROW 4 /* the first square of the second vector of rows */
#else
#define SIZE "2"
#define ACROSS "1"
#define WHILE_COLUMNS WHILE(2, panel_b) WHILE(3, panel_b)
#define EACH_SQUARE(MOVE, square) MOVE(square, 2, 31) MOVE(square + 1, 3, 14)
#define STEP(x0, x1, y0, y1)                                                        \
    LOAD_A(x0, x1)                                                                  \
    LOAD(y0, 2, y, 0) LOAD(y1, 3, y, 1)                                             \
    "add %[y], %[y], %[panel_b]\n\t"                                                \
    ADD_OUTER(0, 0, 2, x0, y0) ADD_OUTER(1, 0, 3, x0, y1)                           \
    ADD_OUTER(2, 1, 2, x1, y0) ADD_OUTER(3, 1, 3, x1, y1)
#define STEP_1 STEP(0, 1, 2, 3)
#define STEPS_4 STEP_1 STEP(4, 5, 6, 7) STEP(8, 9, 10, 11) STEP(12, 13, 14, 15)
#define SECOND_ROW 2
#endif

/* Moves the rows of `square` and of the squares beside it between ZA and the memory at x13, but at most `left` rows.
 * `t` is the distance between rows in memory, in bytes. */
#define MOVE_ROWS(MOVE, square)             \
    "mov w12, #0\n"                         \
    "1: cmp x12, x14\n\t"                   \
    "ccmp x12, %[left], #0, lt\n\t"         \
    "b.ge 2f\n\t"                           \
    EACH_SQUARE(MOVE, square)               \
    "add x13, x13, %[t]\n\t"                \
    "add w12, w12, #1\n\t"                  \
    "b 1b\n"                                \
    "2: sub %[left], %[left], x14\n\t"
/* Moves a part of the tile between ZA and `matrix`. */
#define MOVE_PART(MOVE, matrix)             \
    "mov %[t], %[" #matrix "_step]\n\t"     \
    "madd x13, %[i], %[t], %[" #matrix "]\n\t" \
    "add x13, x13, %[j]\n\t"                \
    "sub %[left], %[rows], %[i]\n\t"        \
    MOVE_ROWS(MOVE, 0) MOVE_ROWS(MOVE, SECOND_ROW)

/* Computes the first `rows` rows of a tile: to = (from or +0) + a * b, in `steps` groups of steps along k. from_step
 * and to_step are the steps from row to row in bytes.
 *
 * The instructions need ZA and the streaming mode, in which vectors have SME's length. Compiled code runs outside of
 * this mode, because many NEON instructions are illegal in it. So one asm statement enters and leaves the mode. Both
 * transitions clear all vector and predicate registers, which are therefore clobbered, and change FPSR, which the
 * driver restores (csrc/driver/environment.h). In the statement, i is the first row of a part of the tile, and j is its
 * first column in bytes. */
static __attribute__((noinline)) void outer_products(int64_t rows, int64_t steps, const void *a, const void *b,
                                                     const void *from, int64_t from_step, void *to, int64_t to_step) {
    const int64_t panel_a = MR * sizeof(SUM), panel_b = NV * VL * sizeof(SUM); /* bytes of a group of steps along k */
    int64_t i, j, t, left, vector;
    const char *x, *y;
    __asm__ volatile(
        ".arch_extension sve\n\t"
        SMSTART
        "cntb %[vector]\n\t"
        "lsr x14, %[vector], #" SIZE "\n\t"
        "lsl x15, x14, #1\n\t"
        "add x16, x14, x15\n\t"
        "mov %[i], #0\n"
        "3: lsl %[t], %[i], #" SIZE "\n\t"
        WHILE(0, panel_a) WHILE(1, panel_a)
        "mov %[j], #0\n"
        "4: mov %[t], %[j]\n\t"
        WHILE_COLUMNS
        ZERO_ZA
        "cbz %[from], 5f\n\t"
        MOVE_PART(LD1, from)
        "5: add %[x], %[a], %[i], lsl #" SIZE "\n\t"
        "add %[y], %[b], %[j]\n\t"
        "subs %[t], %[steps], #4\n\t"
        "b.lt 7f\n"
        "6: " STEPS_4
        "subs %[t], %[t], #4\n\t"
        "b.ge 6b\n"
        "7: adds %[t], %[t], #4\n\t"
        "b.eq 9f\n"
        "8: " STEP_1
        "subs %[t], %[t], #1\n\t"
        "b.gt 8b\n"
        "9: " MOVE_PART(ST1, to)
        "add %[j], %[j], %[vector], lsl #" ACROSS "\n\t"
        "cmp %[j], %[panel_b]\n\t"
        "b.lt 4b\n\t"
        "add %[i], %[i], x14, lsl #1\n\t"
        "cmp %[i], %[rows]\n\t"
        "b.lt 3b\n\t"
        SMSTOP
        : [i] "=&r"(i), [j] "=&r"(j), [t] "=&r"(t), [left] "=&r"(left), [vector] "=&r"(vector), [x] "=&r"(x),
          [y] "=&r"(y)
        : [rows] "r"(rows), [steps] "r"(steps), [a] "r"(a), [b] "r"(b), [from] "r"(from), [from_step] "r"(from_step),
          [to] "r"(to), [to_step] "r"(to_step), [panel_a] "r"(panel_a), [panel_b] "r"(panel_b)
        : "x12", "x13", "x14", "x15", "x16", "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9",
          "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24",
          "v25", "v26", "v27", "v28", "v29", "v30", "v31", "p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9",
          "p10", "p11", "p12", "p13", "p14", "p15");
}
/* clang-format on */

/* Saves the contents of ZA for a function further up the call stack that uses ZA, if there is one. Before such a
 * function calls ordinary functions, it sets TPIDR2_EL0 ("lazy saving" in the procedure call standard, AAPCS64).
 * TPIDR2_EL0 then points to the address of a buffer (8 bytes) and the number of vectors to save (2 bytes). Clearing
 * TPIDR2_EL0 tells that function to restore ZA. The runtime library's __arm_tpidr2_save does the same, but old
 * libraries do not have it. */
static void save_za(void) {
    __asm__ volatile("mrs x9, S3_3_C13_C0_5\n\t" /* TPIDR2_EL0 */
                     "cbz x9, 3f\n\t"
                     "ldr x10, [x9]\n\t"
                     "ldrh w11, [x9, #8]\n\t" RDSVL_X13_1 "mov w12, #0\n"
                     "1: cmp w12, w11\n\t"
                     "b.hs 2f\n\t" STR_ZA_X12_X10 "add x10, x10, x13\n\t"
                     "add w12, w12, #1\n\t"
                     "b 1b\n"
                     "2: msr S3_3_C13_C0_5, xzr\n"
                     "3:"
                     :
                     :
                     : "x9", "x10", "x11", "x12", "x13", "cc", "memory");
}

TARGET INLINE void tile(const int rows, int64_t k, const PA *a, const PB *b, const SUM *from, int64_t from_rs, SUM *to,
                        int64_t to_rs) {
    const int64_t size = sizeof(SUM);
    outer_products(rows, (k + K_GROUP - 1) / K_GROUP, a, b, from, from_rs * size, to, to_rs * size);
}
