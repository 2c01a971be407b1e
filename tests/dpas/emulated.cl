/* The functions of cl_intel_subgroup_matrix_multiply_accumulate that gemm calls, in terms of shuffles, for OpenCL
 * devices that have Intel's sub-groups but no matrix units.
 *
 * Each function adds the products of 8 rows of a by SG columns of b to 8 x SG sums, where SG is the size of the
 * sub-group. A row of a and a column of b have 8 words of 4 bytes, which are 2 halves or bfloat16s, or 4 bytes. A lane
 * has one word of each row of a (SG 8) or half a word (SG 16), 8 words of one column of b, and 8 sums of one column.
 * The sums are rounded after each product: the matrix units round after each word, or less often. */

#pragma OPENCL EXTENSION cl_khr_fp16 : enable

#define WORD8(row, w) intel_sub_group_shuffle(row, w)
#define WORD16(row, w)                                                                                  \
    (intel_sub_group_shuffle((int)(row), 2 * (w)) & 0xffff | intel_sub_group_shuffle((int)(row), 2 * (w) + 1) << 16)

float add_halves(int x, int y, float sum)
{
    const half2 a = as_half2(x), b = as_half2(y);
    return fma((float)a.y, (float)b.y, fma((float)a.x, (float)b.x, sum));
}

/* The matrix units may treat a subnormal bfloat16 as zero. */
float from_bfloat16(int bits)
{
    return (bits & 0x7f80) == 0 ? 0 : as_float(bits << 16);
}

float add_bfloat16(int x, int y, float sum)
{
    sum = fma(from_bfloat16(x & 0xffff), from_bfloat16(y & 0xffff), sum);
    return fma(from_bfloat16(x >> 16 & 0xffff), from_bfloat16(y >> 16 & 0xffff), sum);
}

int add_bytes(int x, int y, int sum)
{
    const int4 products = convert_int4(as_char4(x)) * convert_int4(as_char4(y));
    return sum + products.x + products.y + products.z + products.w;
}

int add_unsigned(int x, int y, int sum)
{
    const int4 products = convert_int4(as_uchar4(x)) * convert_int4(as_char4(y));
    return sum + products.x + products.y + products.z + products.w;
}

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
