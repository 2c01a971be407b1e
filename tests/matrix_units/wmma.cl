/* The functions of AMD's compiler that gemm calls for matrix units, in terms of shuffles, for OpenCL devices that have
 * Intel's sub-groups, with sub-groups of 32. They are those of gfx12 if __GFX12__ is defined, else those of gfx11.
 *
 * Each function adds the products of 16 rows of a by 16 columns of b to 16 x 16 sums. A lane has the words (4 bytes) of
 * a row of a and of a column of b, and 8 sums of one column:
 *
 *     gfx12: half of the words. Lanes 16 .. 31 have the other half of the words of the same rows and columns
 *     gfx11: all words. Lanes 16 .. 31 have the same ones; each word is taken from one of the two lanes here, so that
 *            wrong words in either lane are noticed */

#ifdef __GFX12__
#define FIRST_COPY(w) 0
#define LAST_COPY(w) 1
#define ROW_OF(r) (8 * (lane / 16) + (r))
#else
#define FIRST_COPY(w) ((w) % 2)
#define LAST_COPY(w) ((w) % 2)
#define ROW_OF(r) (2 * (r) + lane / 16)
#endif

/* The loops are not unrolled, because compilers for CPUs are slow. */
#define ADD_ROW(ADD, WORDS, r)                                                                          \
    _Pragma("nounroll") for (int w = 0; w < WORDS; ++w)                                                 \
        _Pragma("nounroll") for (int copy = FIRST_COPY(w); copy <= LAST_COPY(w); ++copy)                \
            sums.s##r = ADD(intel_sub_group_shuffle(rows_[w], ROW_OF(r) + 16 * copy),                   \
                            intel_sub_group_shuffle(columns_[w], lane % 16 + 16 * copy), sums.s##r);
#define ADD_ROWS(ADD, WORDS)                                                                            \
    const int lane = get_sub_group_local_id();                                                          \
    ADD_ROW(ADD, WORDS, 0)                                                                              \
    ADD_ROW(ADD, WORDS, 1)                                                                              \
    ADD_ROW(ADD, WORDS, 2)                                                                              \
    ADD_ROW(ADD, WORDS, 3)                                                                              \
    ADD_ROW(ADD, WORDS, 4)                                                                              \
    ADD_ROW(ADD, WORDS, 5)                                                                              \
    ADD_ROW(ADD, WORDS, 6)                                                                              \
    ADD_ROW(ADD, WORDS, 7)                                                                              \
    return sums;

#define FLOATS(NAME, OPERAND, ADD)                                                                      \
    __attribute__((noinline)) float8 NAME(OPERAND a, OPERAND b, float8 sums)                            \
    {                                                                                                   \
        const int4 x = as_int4(a), y = as_int4(b);                                                      \
        const int rows_[4] = {x.s0, x.s1, x.s2, x.s3}, columns_[4] = {y.s0, y.s1, y.s2, y.s3};          \
        ADD_ROWS(ADD, 4)                                                                                \
    }
#define INTEGERS(NAME, OPERAND, WORDS, LIST)                                                            \
    __attribute__((noinline)) int8 NAME(bool a_signed, OPERAND a, bool b_signed, OPERAND b, int8 sums, bool clamp) \
    {                                                                                                   \
        const int rows_[WORDS] = {LIST(a)}, columns_[WORDS] = {LIST(b)};                                \
        if (a_signed) {                                                                                 \
            ADD_ROWS(add_bytes, WORDS)                                                                  \
        } else {                                                                                        \
            ADD_ROWS(add_unsigned, WORDS)                                                               \
        }                                                                                               \
    }
#define TWO(x) (x).s0, (x).s1
#define FOUR(x) (x).s0, (x).s1, (x).s2, (x).s3

#ifdef __GFX12__
FLOATS(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12, half8, add_halves)
FLOATS(__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12, short8, add_bfloat16)
INTEGERS(__builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12, int2, 2, TWO)
#else
INTEGERS(__builtin_amdgcn_wmma_i32_16x16x16_iu8_w32, int4, 4, FOUR)
#endif
