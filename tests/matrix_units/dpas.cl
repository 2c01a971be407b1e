/* The functions of cl_intel_subgroup_matrix_multiply_accumulate and of cl_intel_subgroup_2d_block_io that gemm calls, in
 * terms of shuffles and loads, for OpenCL devices that have Intel's sub-groups but no matrix units.
 *
 * Each matrix_mad function adds the products of 8 rows of a by SG columns of b to 8 x SG sums, where SG is the size of the
 * sub-group. A row of a and a column of b have 8 words of 4 bytes, which are 2 halves or bfloat16s, or 4 bytes. A lane
 * has one word of each row of a (SG 8) or half a word (SG 16), 8 words of one column of b, and 8 sums of one column.
 * The sums are rounded after each product: the matrix units round after each word, or less often. */

#define WORD8(row, w) intel_sub_group_shuffle(row, w)
#define WORD16(row, w)                                                                                  \
    (intel_sub_group_shuffle((int)(row), 2 * (w)) & 0xffff | intel_sub_group_shuffle((int)(row), 2 * (w) + 1) << 16)

/* The loop is not unrolled, because compilers for CPUs are slow. */
#define ROW(WORD, ADD, r)                                                                               \
    _Pragma("nounroll") for (int w = 0; w < 8; ++w) sums.s##r = ADD(WORD(a.s##r, w), words[w], sums.s##r);
#define EMULATED(NAME, SUMS, ROWS, WORD, ADD)                                                           \
    SUMS __attribute__((overloadable, noinline)) NAME(ROWS a, int8 b, SUMS sums)                                  \
    {                                                                                                   \
        const int words[8] = {b.s0, b.s1, b.s2, b.s3, b.s4, b.s5, b.s6, b.s7};                          \
        ROW(WORD, ADD, 0)                                                                               \
        ROW(WORD, ADD, 1)                                                                               \
        ROW(WORD, ADD, 2)                                                                               \
        ROW(WORD, ADD, 3)                                                                               \
        ROW(WORD, ADD, 4)                                                                               \
        ROW(WORD, ADD, 5)                                                                               \
        ROW(WORD, ADD, 6)                                                                               \
        ROW(WORD, ADD, 7)                                                                               \
        return sums;                                                                                    \
    }

EMULATED(intel_sub_group_f16_f16_matrix_mad_k16, float8, int8, WORD8, add_halves)
EMULATED(intel_sub_group_f16_f16_matrix_mad_k16, float8, short8, WORD16, add_halves)
EMULATED(intel_sub_group_bf16_bf16_matrix_mad_k16, float8, int8, WORD8, add_bfloat16)
EMULATED(intel_sub_group_bf16_bf16_matrix_mad_k16, float8, short8, WORD16, add_bfloat16)
EMULATED(intel_sub_group_i8_i8_matrix_mad_k32, int8, int8, WORD8, add_bytes)
EMULATED(intel_sub_group_i8_i8_matrix_mad_k32, int8, short8, WORD16, add_bytes)
EMULATED(intel_sub_group_u8_i8_matrix_mad_k32, int8, uint8, WORD8, add_unsigned)
EMULATED(intel_sub_group_u8_i8_matrix_mad_k32, int8, ushort8, WORD16, add_unsigned)

#if BLOCK_IO
/* Reads of blocks of a matrix with `height` rows of `width` bytes, which begin `pitch` bytes apart. `at` is the first
 * column and row, in elements. Elements outside of the matrix are 0. What the hardware does not permit gives garbage. */
#define GARBAGE 0x7e7e
#define VALID(from) (((ulong)(from) & 63) == 0 && width >= 64 && width % 4 == 0 && pitch >= width && pitch % 16 == 0)
#define INSIDE(size, x, y) ((x) >= 0 && (x) * size < width && (y) >= 0 && (y) < height)
#define AT_(type, x, y) ((global const type *)((global const char *)from + (long)(y) * pitch))[x]
#define ELEMENT(type, x, y)                                                                             \
    (!valid ? (type)GARBAGE : INSIDE(sizeof(type), x, y) ? AT_(type, x, y) : (type)0)

/* BLOCKS blocks, one right of the other, of 32 rows of 32 bytes: a lane has two bytes of each row. */
#define READ(NAME, BLOCKS, SIZE)                                                                        \
    __attribute__((overloadable)) void NAME(global void *from, int width, int height, int pitch,        \
                                            int2 at, private ushort *to)                                \
    {                                                                                                   \
        const int valid = VALID(from), x = at.x * SIZE / 2 + (int)get_sub_group_local_id();             \
        _Pragma("nounroll") for (int i = 0; i < 32 * BLOCKS; ++i)                                       \
            to[i] = ELEMENT(ushort, x + i / 32 * 16, at.y + i % 32);                                    \
    }

/* BLOCKS blocks of ROWS rows of 16 columns: a lane has one column, of which it packs DEPTH elements into a word. */
#define TRANSFORM(NAME, ROWS, BLOCKS, DEPTH, TYPE)                                                      \
    __attribute__((overloadable)) void NAME(global void *from, int width, int height, int pitch,        \
                                            int2 at, private uint *to)                                  \
    {                                                                                                   \
        const int valid = VALID(from), x = at.x + (int)get_sub_group_local_id(), words = ROWS / DEPTH;  \
        _Pragma("nounroll") for (int i = 0; i < words * BLOCKS; ++i)                                    \
        {                                                                                               \
            uint word = 0;                                                                              \
            for (int e = 0; e < DEPTH; ++e)                                                             \
                word |= (uint)ELEMENT(TYPE, x + i / words * 16, at.y + i % words * DEPTH + e) << 32 / DEPTH * e; \
            to[i] = word;                                                                               \
        }                                                                                               \
    }

#if PRECISION == 16
READ(intel_sub_group_2d_block_read_16b_32r16x1c, 1, 2)
READ(intel_sub_group_2d_block_read_16b_32r16x2c, 2, 2)
TRANSFORM(intel_sub_group_2d_block_read_transform_16b_16r16x2c, 16, 2, 2, ushort)
TRANSFORM(intel_sub_group_2d_block_read_transform_16b_32r16x2c, 32, 2, 2, ushort)
#else
READ(intel_sub_group_2d_block_read_8b_32r32x1c, 1, 1)
READ(intel_sub_group_2d_block_read_8b_32r32x2c, 2, 1)
TRANSFORM(intel_sub_group_2d_block_read_transform_8b_32r16x2c, 32, 2, 4, uchar)
TRANSFORM(intel_sub_group_2d_block_read_transform_8b_32r16x4c, 32, 4, 4, uchar)
#endif
#endif
