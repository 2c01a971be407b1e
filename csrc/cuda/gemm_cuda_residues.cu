// gemm_cuda_residues: replaces an operand in float64 by planes of int8, its residues modulo 14 numbers. residues.cuh
// describes the scheme.
//
//     x = from[line, p] 2^-e[line], rounded to an integer
//     to[z, line, p] = a remainder of x by q = modulus(z), from -128 to 127
//
// e is the least exponent for which the 2-norm of the line (a row of a, or a column of b) is below sqrt(P / 2), with
// some room for roundings. The norm is then more than sqrt(P / 2) / 2, and rounding changes an element by at most
// 2^-54.58 times the norm of its line. If RIGHT, the remainders are those of x times (P / q)^-1, and the lines of `to`
// have the order of `place`.
//
// For a line with an infinity or NaN, the kernel stores the exponent SPECIAL. gemm_cuda_combine computes the results of
// such a line from the operands.
//
//     TURNED 0   `from` is contiguous along p: adjacent lanes read adjacent runs of RUN elements of a line
//     TURNED 1   `from` is contiguous across lines: adjacent lanes read adjacent lines
//
// Each thread stores RUN bytes of a plane at once. A block reads its LINES lines twice. Short lines are still in the
// caches the second time. Grid: x counts groups of LINES lines.

#ifndef TURNED
#define TURNED 0 // 1: adjacent lines are adjacent in memory
#endif
#ifndef LINES
#define LINES 2 // lines per block
#endif
#ifndef RIGHT
#define RIGHT 0 // 1: the operand is b
#endif
#ifndef THREADS
#define THREADS 256
#endif

#include "planes.cuh"
#include "ptx.cuh"
#include "residues.cuh"

#define RUN (TURNED ? 16 : 8)
#define WORKERS (THREADS / LINES) // threads for each line

struct Residues {
    const double *from;
    unsigned char *to;
    int *exponents;
    long long lines, length;
    long long across, along; // strides of `from` in elements: from line to line, and along a line. May be negative
    long long pitch, plane;  // bytes of `to` from line to line, and from plane to plane
};

enum : int { NOTHING = -4096 }; // less than the exponent of any number
// P / 2, reduced by more than all roundings can add to the square of a norm.
#define LIMIT ((double)cofactor(-1).high * (HIGH_UNIT / 2) * (1 - 0x1p-20))

INLINE bool is_finite(double x) {
    return (__double_as_longlong(x) >> 52 & 0x7FF) != 0x7FF;
}

// Returns the exponent of x > 0: 2^exponent <= x < 2^(exponent + 1). For subnormal numbers, the result is -1023. That is
// enough: if a subnormal number is multiplied by 2^1023, its square is a normal number.
INLINE int exponent(double x) {
    return (int)(__double_as_longlong(x) >> 52) - 1023;
}

// Returns x * 2^n for |n| < 2044. Two factors, because double cannot represent 2^n for every such n.
INLINE double times_power(double x, int n) {
    return x * power(n / 2) * power(n - n / 2);
}

// The sum of the squares of some numbers is sum * 4^top. All these numbers are below 2^(top + 1).
struct Squares {
    int top;
    double sum;

    __device__ __forceinline__ void raise(int to) {
        if (to <= top) return;
        sum = to - top < 500 ? sum * power(2 * (top - to)) : 0;
        top = to;
    }
};

// Calls each(x, at) for each run of this thread: the elements x[0] to x[RUN - 1] of its line from `at` on. Elements
// beyond the end are 0.
template <class EACH>
INLINE void sweep(const Residues &r, const double *from, long long length, int worker, EACH each) {
    const bool pairs = !TURNED && r.along == 1 && (unsigned long long)from % 16 == 0;
    for (long long at = (long long)worker * RUN; at < length; at += WORKERS * RUN) {
        double x[RUN];
        if (pairs && at + RUN <= length) {
#pragma unroll
            for (int i = 0; i < RUN; i += 2) {
                const Vector<double, 2> two = *(const Vector<double, 2> *)(from + at + i);
                x[i] = two.at[0], x[i + 1] = two.at[1];
            }
        } else {
#pragma unroll
            for (int i = 0; i < RUN; ++i) x[i] = at + i < length ? from[(at + i) * r.along] : 0;
        }
        each(x, at);
    }
}

// Stores the residues of the RUN integers `x` in the planes Z, Z + 1, ...
template <int Z> INLINE void store(const Residues &r, unsigned char *to, const long long (&x)[RUN]) {
    constexpr unsigned q = modulus(Z), factor = RIGHT ? inverse(Z) : 1;
    // `low` and `high` are the weights of the bytes of x + 2^63, mod q. `start` has the bits of the float 2^23, plus a
    // number that makes the 2^63 and the 2^23 multiples of q.
    constexpr unsigned low = weights(Z, factor, 0), high = weights(Z, factor, 4);
    constexpr unsigned start = 0x4B000000 + 2 * q - shifted(Z, factor, 63) - shifted(Z, 1, 23);
    Vector<unsigned, RUN / 4> words;
#pragma unroll
    for (int i = 0; i < RUN / 4; ++i) {
        unsigned rest[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const unsigned long long bits = (unsigned long long)x[4 * i + j] ^ 1ull << 63;
            const unsigned sum = __dp4a((unsigned)(bits >> 32), high, __dp4a((unsigned)bits, low, start));
            // If v < 2^20 is added to the bits of the float 2^23, the result has the bits of the float 2^23 + v. The fma
            // rounds (2^23 + v) / q to an integer, which is in the low bits of its result. The error of 1.f / q shifts a
            // remainder by less than 0.56. Only for q = 255 does this change a byte: -128 replaces 127.
            const unsigned quotient = __float_as_uint(multiply_add(__uint_as_float(sum), 1.f / q, 0x1.8p23f));
            rest[j] = sum - quotient * q;
        }
        const unsigned two = __byte_perm(rest[0], rest[1], 0x0040), more = __byte_perm(rest[2], rest[3], 0x0040);
        words.at[i] = __byte_perm(two, more, 0x5410);
    }
    *(Vector<unsigned, RUN / 4> *)(to + Z * r.plane) = words;
    if constexpr (Z + 1 < COUNT_OF_MODULI) store<Z + 1>(r, to, x);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) gemm_cuda_residues(ARGUMENT Residues r) {
    __shared__ int top[LINES], special[LINES], exponents[LINES];
    __shared__ double sums[THREADS];
    follow_launch();
    const int mine = TURNED ? threadIdx.x % LINES : threadIdx.x / WORKERS;
    const int worker = TURNED ? threadIdx.x / LINES : threadIdx.x % WORKERS;
    const long long line = blockIdx.x * (long long)LINES + mine, length = line < r.lines ? r.length : 0;
    const double *const from = r.from + (length ? line * r.across : 0);
    if (threadIdx.x < LINES) top[threadIdx.x] = NOTHING, special[threadIdx.x] = 0;
    __syncthreads();
    Squares squares = {NOTHING, 0};
    bool strange = false;
    sweep(r, from, length, worker, [&](double(&x)[RUN], long long) {
        double largest = 0;
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            strange |= !is_finite(x[i]);
            x[i] = is_finite(x[i]) ? fabs(x[i]) : 0;
            largest = max(largest, x[i]);
        }
        if (largest == 0) return;
        squares.raise(exponent(largest));
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            const double scaled = times_power(x[i], -squares.top);
            squares.sum = multiply_add(scaled, scaled, squares.sum);
        }
    });
    atomicMax(top + mine, squares.top);
    if (strange) atomicMax(special + mine, 1);
    __syncthreads();
    squares.raise(top[mine]);
    const int slot = worker * LINES + mine;
    sums[slot] = squares.sum;
    for (int half = WORKERS / 2; half; half /= 2) {
        __syncthreads();
        if (worker < half) sums[slot] += sums[slot + half * LINES];
    }
    if (worker == 0) {
        // The least e with (sum 4^top) 4^-e < LIMIT.
        constexpr double limit = LIMIT;
        const int found = sums[slot] > 0 ? top[mine] + (exponent(sums[slot] / limit) >> 1) + 1 : 0;
        exponents[mine] = found;
        if (line < r.lines) r.exponents[line] = special[mine] ? (int)SPECIAL : found;
    }
    __syncthreads();
    unsigned char *const to = r.to + (RIGHT ? place(line) : line) * r.pitch;
    sweep(r, from, length, worker, [&](double(&x)[RUN], long long at) {
        long long whole[RUN];
#pragma unroll
        for (int i = 0; i < RUN; ++i)
            whole[i] = __double2ll_rn(times_power(is_finite(x[i]) ? x[i] : 0, -exponents[mine]));
        store<0>(r, to + at, whole);
    });
}
