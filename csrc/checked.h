/* A second descriptor, CHECKED, of a bfloat16 kernel, for precision="highest". Include this header after panel.h.
 *
 * The kernel's instructions round sums to nearest, like an FMA, but they replace operands and sums below 2^-126, the
 * least normal float, by zero. Let e and f be the least biased exponents of the nonzero elements of a and b. The
 * instructions replace nothing if two conditions hold, which csrc/driver/range.c checks:
 *
 *   e > 0, f > 0   No operand is subnormal.
 *   e + f >= 142   Elements have 8 significant bits. Those of a are multiples of 2^(e - 134), those of b of 2^(f - 134).
 *                  All products are therefore multiples of u = 2^(e + f - 268), and so are their exact sums. A sum that
 *                  does not fit 24 bits is rounded to a multiple of a power of two above u. So every sum is a multiple
 *                  of u, rounded or not: it is zero, or at least u, which is at least 2^-126.
 *
 * Infinities and NaN have the greatest exponent. The instructions treat them as an FMA does.
 *
 *   CHECKED     the descriptor's name
 *   OTHERWISE   the descriptor of the kernel that computes all other products
 */
extern const gemm_kernel OTHERWISE;

TARGET static int32_t least_exponent(const void *matrix, int64_t rs, int64_t ps, int64_t rows, int64_t k) {
    const uint16_t *x = (const uint16_t *)matrix;
    if (ps == 1 && rs == k) k *= rows, rows = rows > 0; /* rows without a gap are one long row */
    uint16_t least = 0xFFFF; /* magnitude - 1, so that zero, which wraps around, is the largest */
    for (int64_t i = 0; i < rows; i++, x += rs) {
        if (ps == 1) {
            for (int64_t p = 0; p < k; p++) {
                const uint16_t magnitude = (uint16_t)((x[p] & 0x7FFF) - 1);
                least = magnitude < least ? magnitude : least;
            }
        } else {
            for (int64_t p = 0; p < k; p++) {
                const uint16_t magnitude = (uint16_t)((x[p * ps] & 0x7FFF) - 1);
                least = magnitude < least ? magnitude : least;
            }
        }
    }
    return (least + 1) >> 7;
}

const gemm_kernel CHECKED = {DESCRIPTOR(CHECKED), least_exponent, &OTHERWISE};
