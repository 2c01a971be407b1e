// The integers behind float64 products by residues (gemm_cuda_residues, gemm_cuda_kmajor, gemm_cuda_combine). This is
// the scheme of Ozaki, Uchino and Imamura (arXiv 2504.08009).
//
//     x[i, p] = a[i, p] 2^-e[i],  y[p, j] = b[p, j] 2^-f[j]     rounded to integers of at most 55 bits
//     s[z]    = sum over p of (x mod q) (y w mod q)             in int32, for each modulus q with w = (P / q)^-1 mod q
//     r[z]    = s[z] mod q
//     sum over p of x y  =  sum over z of r[z] P / q - Q P      the integer Q makes the absolute value less than P / 2
//
// The moduli are the 14 largest pairwise coprime integers up to 256. P, their product, is 2^110.16. The exponents e and
// f bound the 2-norms of the rows x[i, :] and the columns y[:, j] by sqrt(P / 2). By the Cauchy-Schwarz inequality,
// the absolute value of each sum is less than P / 2. The residues therefore determine the sum.
#ifndef GEMM_CUDA_RESIDUES
#define GEMM_CUDA_RESIDUES

#include "number.cuh"

enum { COUNT_OF_MODULI = 14 };

static __device__ constexpr unsigned modulus(int z) {
    constexpr unsigned all[COUNT_OF_MODULI] = {256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199};
    return all[z];
}

// An integer below 2^114: high 2^61 + middle 2^20 + low, with middle < 2^41 and low < 2^20. If 14 such parts of P / q
// are each multiplied by a residue, the sums of the high and of the middle parts are below 2^53, exact in double, and
// the sum of the low parts is below 2^32.
struct Parts {
    unsigned long long high, middle, low;
};
#define HIGH_UNIT 0x1p61
#define MIDDLE_UNIT 0x1p20

// Returns P / modulus(z); P itself if z is -1.
static __device__ constexpr Parts cofactor(int z) {
    Parts x = {0, 0, 1};
    for (int i = 0; i < COUNT_OF_MODULI; ++i) {
        if (i == z) continue;
        const unsigned long long low = x.low * modulus(i), middle = x.middle * modulus(i) + (low >> 20);
        x = Parts{x.high * modulus(i) + (middle >> 41), middle & ((1ull << 41) - 1), low & ((1ull << 20) - 1)};
    }
    return x;
}

// Returns (P / q)^-1 mod q for q = modulus(z).
static __device__ constexpr unsigned inverse(int z) {
    unsigned rest = 1, found = 1;
    for (int i = 0; i < COUNT_OF_MODULI; ++i)
        if (i != z) rest = rest * modulus(i) % modulus(z);
    while (rest * found % modulus(z) != 1) ++found;
    return found;
}

// Returns factor * 2^bits mod q for q = modulus(z).
static __device__ constexpr unsigned shifted(int z, unsigned factor, int bits) {
    for (int i = 0; i < bits; ++i) factor = factor * 2 % modulus(z);
    return factor;
}

// Returns the bytes factor * 2^(8 i) mod q for i = first .. first + 3, the lowest byte first.
static __device__ constexpr unsigned weights(int z, unsigned factor, int first) {
    unsigned bytes = 0;
    for (int i = 3; i >= 0; --i) bytes = bytes << 8 | shifted(z, factor, 8 * (first + i));
    return bytes;
}

// In a plane of b, line i of each 64 lines is stored as row `place(i)`. With this order, the residues that a lane of
// gemm_cuda_kmajor holds belong to 16 adjacent columns of out; see `store_residues` there.
INLINE long long place(long long line) {
    const int i = (int)(line % 64);
    return line - i + i / 4 % 4 * 16 + i / 2 % 2 * 8 + i / 16 * 2 + i % 2;
}

// Returns 2^n, for n from -1022 to 1023.
INLINE double power(int n) {
    return __longlong_as_double((long long)(n + 1023) << 52);
}

#endif
