// gemm_cuda_combine: the last step of a float64 product by residues. residues.cuh describes the scheme.
//
//     sum = sum over z of r[z] P / q - Q P, an exact integer that is rounded once
//     out = epilogue of sum * 2^(e[i] + f[j])
//
// Each thread computes four adjacent elements of a row of out from four bytes of each plane of residues.
//
// g.a, g.b and their strides are those of the operands. g.memory points to the residues: planes of g.m rows of bytes,
// each row padded to a multiple of 64 columns. g.arrivals points to the exponents e of a's rows, then f of b's columns.
// If one of the two exponents is SPECIAL, the kernel computes the result from the operands, with one fma for each k, as
// IEEE arithmetic requires.

#ifndef A_TYPE
#define A_TYPE double
#endif
#ifndef B_TYPE
#define B_TYPE double
#endif
#ifndef OUT_TYPE
#define OUT_TYPE double
#endif
#ifndef THREADS
#define THREADS 256
#endif

#include "gemm.cuh"
#include "planes.cuh"
#include "ptx.cuh"
#include "residues.cuh"

// Returns x + y. If the sum is not exact, the result is the one of the two neighbouring doubles whose last bit is 1. If
// it is rounded again, at a higher bit, the second result is then the double nearest to the exact sum.
INLINE double add_to_odd(double x, double y) {
    const double sum = x + y, back = sum - x;
    const double rest = (x - (sum - back)) + (y - back); // sum + rest is x + y exactly
    const long long bits = __double_as_longlong(sum);
    if (rest == 0 || bits % 2) return sum;
    return __longlong_as_double((rest > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

// The sum of the integers r[z] * P / q, exact in three parts. A residue of 0 may be stored as q.
struct Sum {
    double high = 0, middle = 0;
    unsigned low = 0;

    // Adds the products of the moduli Z, Z + 1, ... The residues are byte `byte` of the words.
    template <int Z> __device__ __forceinline__ void add(const unsigned (&words)[COUNT_OF_MODULI], int byte) {
        constexpr Parts parts = cofactor(Z);
        const unsigned residue = words[Z] >> 8 * byte & 0xFF;
        // 2^52 + residue has the residue in its low bits.
        const double r = __longlong_as_double(0x4330000000000000ll | residue) - 0x1p52;
        high = multiply_add(r, (double)parts.high, high);
        middle = multiply_add(r, (double)parts.middle, middle);
        low += residue * (unsigned)parts.low;
        if constexpr (Z + 1 < COUNT_OF_MODULI) add<Z + 1>(words, byte);
    }

    // Returns the integer, reduced to -P / 2 .. P / 2 and rounded to the nearest double.
    __device__ __forceinline__ double rounded() const {
        constexpr Parts whole = cofactor(-1);
        const double q = rint(high * (1 / ((double)whole.high + 0.5)));
        const double x = multiply_add(-q, (double)whole.high, high) * HIGH_UNIT;
        const double y = multiply_add(-q, (double)whole.middle, middle) * MIDDLE_UNIT;
        const double z = multiply_add(-q, (double)whole.low, (double)low);
        const double sum = x + y, back = sum - x; // sum + rest is x + y exactly
        const double rest = (x - (sum - back)) + (y - back);
        return sum + add_to_odd(rest, z);
    }
};

// Returns x * 2^n, rounded once. |x| is 0 or from 1 to P, and n from -2300 to 2046.
INLINE double times_power(double x, int n) {
    if (n < 0) return x * power(max(n, -1022)) * power(max(min(n + 1022, 0), -1022));
    return x * power(min(n, 1023)) * power(max(n - 1023, 0));
}

static __device__ __noinline__ double chain(const Gemm &g, long long i, long long j) {
    double sum = 0;
    for (long long p = 0; p < g.k; ++p)
        sum = multiply_add(g.a[i * g.a_row + p * g.a_col], g.b[p * g.b_row + j * g.b_col], sum);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) gemm_cuda_combine(ARGUMENT Gemm g) {
    follow_launch();
    const unsigned across = (unsigned)((g.n + 63) / 64) * 16; // words of a row
    const unsigned word = blockIdx.x * THREADS + threadIdx.x;
    const long long i = word / across, j = word % across * 4;
    if (i >= g.m || j >= g.n) return;
    const unsigned *const from = (const unsigned *)g.memory + word;
    const long long plane = g.m * across;
    unsigned residues[COUNT_OF_MODULI];
#pragma unroll
    for (int z = 0; z < COUNT_OF_MODULI; ++z) residues[z] = from[z * plane];
    const int *const of_a = (const int *)g.arrivals, *const of_b = of_a + g.m;
    const int row = of_a[i];
    double results[4];
#pragma unroll
    for (int x = 0; x < 4; ++x) {
        Sum sum;
        sum.add<0>(residues, x);
        const int column = of_b[min(j + x, g.n - 1)];
        const bool special = row == SPECIAL || column == SPECIAL;
        results[x] = special ? 0 : times_power(sum.rounded(), row + column);
        if (special && j + x < g.n) results[x] = chain(g, i, j + x);
    }
    const Output<2> output(g, 0);
    output.put(i, j, {results[0], results[1]});
    output.put(i, j + 2, {results[2], results[3]});
}
