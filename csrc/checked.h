/* A second descriptor, CHECKED, of a bfloat16 kernel, for precision="highest". Include this header after panel.h.
 *
 * The kernel's instructions round sums to nearest, like an FMA, but they replace operands and sums below the least normal
 * float, 2^-126, by zero. An element of a with the biased exponent e is a multiple of 2^(e - 134), because it has 8
 * significant bits. If e and f are the least exponents of the nonzero elements of a and b, every product is a multiple of
 * 2^(e + f - 268), and so is every sum, rounded or not. If this number is at least 2^-126, no sum is replaced.
 * csrc/driver/range.c checks e + f.
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
