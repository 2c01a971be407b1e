// wgmma (sm_90a): d = a * b + (scale_d ? d : 0) by a warpgroup. A warpgroup is 4 consecutive warps, starting at a warp
// number that is a multiple of 4. m = 64 and k = 32 bytes. n = 8, or a multiple of 16 up to 256; n is twice the number
// of accumulators. b is in shared memory; a is in shared memory or in registers. The functions are called wgmma_<type
// of a>, or wgmma_<type of a>_<type of b> if a and b are 8-bit types.
//
//     wgmma_hold(d); wgmma_fence(); wgmma_bf16(d, a, b, 1); ... wgmma_commit(); wgmma_wait<0>(); wgmma_hold(d);
//
// wgmma is asynchronous. Before wgmma_wait, the program must not access d or the registers of a, or overwrite the
// tiles. wgmma_hold makes the compiler observe this rule. Without wgmma_hold the compiler moves or copies accumulators
// across the wgmma and then has to serialize the products.
//
// In lane l of warp w, d[4j + 2h + i] is the element of row 16w + l/4 + 8h and column 8j + 2(l%4) + i. If a is in
// registers, it has the fragment layout of mma.sync (16 rows per warp).

#ifndef GEMM_CUDA_WGMMA
#define GEMM_CUDA_WGMMA

// The descriptor of a matrix in shared memory at address `shared`. `swizzle` selects how chunks of 16 bytes are
// permuted, by the bits of their address: over 128 bytes (1), 64 (2), 32 (3) or not at all (0). TMA writes tiles with
// the same swizzles. `leading_bytes` and `stride_bytes` are the distances in bytes to the next atom or core matrix:
//                  k contiguous                                  m or n contiguous (transposed = 1, 16-bit types only)
// swizzled         atom: 8 rows of one swizzle width of k        atom: 8 k of one swizzle width of m or n
//   leading        unused                                        along m or n
//   stride         to the next 8 rows                            along k
// not swizzled     core matrix: 8 rows of 16 bytes of k          core matrix: 8 k of 16 bytes of m or n
//   leading        along k                                       along k
//   stride         to the next 8 rows                            along m or n
// The rows of an atom or core matrix are consecutive in memory. An atom is aligned to its size (1024 bytes for the
// 128-byte swizzle). The swizzle depends only on the address: in an atom, the next 32 bytes of k start at shared + 32.
PTX unsigned long long descriptor(unsigned shared, unsigned leading_bytes, unsigned stride_bytes, unsigned swizzle) {
    return (unsigned long long)((shared & 0x3ffff) >> 4) | (unsigned long long)(leading_bytes >> 4) << 16 |
           (unsigned long long)(stride_bytes >> 4) << 32 | (unsigned long long)swizzle << 62;
}

PTX void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

PTX void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> PTX void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

template <int COUNT> PTX void wgmma_hold(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <int COUNT> PTX void wgmma_hold(int (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

template <int COUNT> PTX void wgmma_hold(unsigned (&a)[COUNT]) { // holds the registers of a, after the wait
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

// The accumulators as asm operands (D4, ...) and as text (T4, ...). 16 columns of n need 8 accumulators per thread.
#define WGMMA_FOUR(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define WGMMA_EIGHT(c, i) WGMMA_FOUR(c, i), WGMMA_FOUR(c, i + 4)
#define WGMMA_D4(c) WGMMA_FOUR(c, 0)
#define WGMMA_D8(c) WGMMA_EIGHT(c, 0)
#define WGMMA_D16(c) WGMMA_EIGHT(c, 0), WGMMA_EIGHT(c, 8)
#define WGMMA_D24(c) WGMMA_D16(c), WGMMA_EIGHT(c, 16)
#define WGMMA_D32(c) WGMMA_D24(c), WGMMA_EIGHT(c, 24)
#define WGMMA_D40(c) WGMMA_D32(c), WGMMA_EIGHT(c, 32)
#define WGMMA_D48(c) WGMMA_D40(c), WGMMA_EIGHT(c, 40)
#define WGMMA_D56(c) WGMMA_D48(c), WGMMA_EIGHT(c, 48)
#define WGMMA_D64(c) WGMMA_D56(c), WGMMA_EIGHT(c, 56)
#define WGMMA_D72(c) WGMMA_D64(c), WGMMA_EIGHT(c, 64)
#define WGMMA_D80(c) WGMMA_D72(c), WGMMA_EIGHT(c, 72)
#define WGMMA_D88(c) WGMMA_D80(c), WGMMA_EIGHT(c, 80)
#define WGMMA_D96(c) WGMMA_D88(c), WGMMA_EIGHT(c, 88)
#define WGMMA_D104(c) WGMMA_D96(c), WGMMA_EIGHT(c, 96)
#define WGMMA_D112(c) WGMMA_D104(c), WGMMA_EIGHT(c, 104)
#define WGMMA_D120(c) WGMMA_D112(c), WGMMA_EIGHT(c, 112)
#define WGMMA_D128(c) WGMMA_D120(c), WGMMA_EIGHT(c, 120)
#define WGMMA_T4 "%0, %1, %2, %3"
#define WGMMA_T8 WGMMA_T4 ", %4, %5, %6, %7"
#define WGMMA_T16 WGMMA_T8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_T24 WGMMA_T16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_T32 WGMMA_T24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_T40 WGMMA_T32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_T48 WGMMA_T40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_T56 WGMMA_T48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_T64 WGMMA_T56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_T72 WGMMA_T64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define WGMMA_T80 WGMMA_T72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_T88 WGMMA_T80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_T96 WGMMA_T88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_T104 WGMMA_T96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define WGMMA_T112 WGMMA_T104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_T120 WGMMA_T112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define WGMMA_T128 WGMMA_T120 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_FLOAT(x) "+f"(x)
#define WGMMA_INT(x) "+r"(x)

// The operands after the `count` accumulators have the numbers i0, i1, ...: a, b, scale_d, then the transpose flags.
#define WGMMA_TEXT(instruction, n, count, a, b, scale_d, rest)                                                   \
    "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #scale_d ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #n instruction \
    " {" WGMMA_T##count "}, " a ", %" #b ", p" rest ";\n\t}"
#define WGMMA_A4 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

#define WGMMA_HALVES(n, count, i0, i1, i2, i3, i4, i5, i6, name, instruction)                                      \
    template <int A_TRANSPOSED = 0, int B_TRANSPOSED = 0>                                                          \
    PTX void name(float(&d)[count], unsigned long long a, unsigned long long b, int scale_d) {                     \
        asm volatile(WGMMA_TEXT(instruction, n, count, "%" #i0, i1, i2, ", 1, 1, %" #i3 ", %" #i4)                 \
                     : WGMMA_D##count(WGMMA_FLOAT)                                                                 \
                     : "l"(a), "l"(b), "r"(scale_d), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED)                          \
                     : "memory");                                                                                  \
    }                                                                                                              \
    template <int B_TRANSPOSED = 0>                                                                                \
    PTX void name(float(&d)[count], const unsigned(&a)[4], unsigned long long b, int scale_d) {                    \
        asm volatile(                                                                                              \
            WGMMA_TEXT(instruction, n, count, "{%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}", i4, i5, ", 1, 1, %" #i6) \
            : WGMMA_D##count(WGMMA_FLOAT)                                                                          \
            : WGMMA_A4, "l"(b), "r"(scale_d), "n"(B_TRANSPOSED)                                                    \
            : "memory");                                                                                           \
    }

#define WGMMA_OTHER(n, count, i0, i1, i2, i3, i4, i5, i6, name, instruction, type, constraint, signs)             \
    PTX void name(type(&d)[count], unsigned long long a, unsigned long long b, int scale_d) {                     \
        asm volatile(WGMMA_TEXT(instruction, n, count, "%" #i0, i1, i2, signs)                                    \
                     : WGMMA_D##count(constraint)                                                                 \
                     : "l"(a), "l"(b), "r"(scale_d)                                                               \
                     : "memory");                                                                                 \
    }                                                                                                             \
    PTX void name(type(&d)[count], const unsigned(&a)[4], unsigned long long b, int scale_d) {                    \
        asm volatile(WGMMA_TEXT(instruction, n, count, "{%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}", i4, i5, signs) \
                     : WGMMA_D##count(constraint)                                                                 \
                     : WGMMA_A4, "l"(b), "r"(scale_d)                                                             \
                     : "memory");                                                                                 \
    }

#define WGMMA_EACH(X, ...)                                      \
    X(8, 4, 4, 5, 6, 7, 8, 9, 10, __VA_ARGS__)                  \
    X(16, 8, 8, 9, 10, 11, 12, 13, 14, __VA_ARGS__)             \
    X(32, 16, 16, 17, 18, 19, 20, 21, 22, __VA_ARGS__)          \
    X(48, 24, 24, 25, 26, 27, 28, 29, 30, __VA_ARGS__)          \
    X(64, 32, 32, 33, 34, 35, 36, 37, 38, __VA_ARGS__)          \
    X(80, 40, 40, 41, 42, 43, 44, 45, 46, __VA_ARGS__)          \
    X(96, 48, 48, 49, 50, 51, 52, 53, 54, __VA_ARGS__)          \
    X(112, 56, 56, 57, 58, 59, 60, 61, 62, __VA_ARGS__)         \
    X(128, 64, 64, 65, 66, 67, 68, 69, 70, __VA_ARGS__)         \
    X(144, 72, 72, 73, 74, 75, 76, 77, 78, __VA_ARGS__)         \
    X(160, 80, 80, 81, 82, 83, 84, 85, 86, __VA_ARGS__)         \
    X(176, 88, 88, 89, 90, 91, 92, 93, 94, __VA_ARGS__)         \
    X(192, 96, 96, 97, 98, 99, 100, 101, 102, __VA_ARGS__)      \
    X(208, 104, 104, 105, 106, 107, 108, 109, 110, __VA_ARGS__) \
    X(224, 112, 112, 113, 114, 115, 116, 117, 118, __VA_ARGS__) \
    X(240, 120, 120, 121, 122, 123, 124, 125, 126, __VA_ARGS__) \
    X(256, 128, 128, 129, 130, 131, 132, 133, 134, __VA_ARGS__)

WGMMA_EACH(WGMMA_HALVES, wgmma_bf16, "k16.f32.bf16.bf16")
WGMMA_EACH(WGMMA_HALVES, wgmma_f16, "k16.f32.f16.f16")
WGMMA_EACH(WGMMA_OTHER, wgmma_tf32, "k8.f32.tf32.tf32", float, WGMMA_FLOAT, ", 1, 1")
WGMMA_EACH(WGMMA_OTHER, wgmma_e4m3_e4m3, "k32.f32.e4m3.e4m3", float, WGMMA_FLOAT, ", 1, 1")
WGMMA_EACH(WGMMA_OTHER, wgmma_e4m3_e5m2, "k32.f32.e4m3.e5m2", float, WGMMA_FLOAT, ", 1, 1")
WGMMA_EACH(WGMMA_OTHER, wgmma_e5m2_e4m3, "k32.f32.e5m2.e4m3", float, WGMMA_FLOAT, ", 1, 1")
WGMMA_EACH(WGMMA_OTHER, wgmma_e5m2_e5m2, "k32.f32.e5m2.e5m2", float, WGMMA_FLOAT, ", 1, 1")
WGMMA_EACH(WGMMA_OTHER, wgmma_s8_s8, "k32.s32.s8.s8", int, WGMMA_INT, "")
WGMMA_EACH(WGMMA_OTHER, wgmma_s8_u8, "k32.s32.s8.u8", int, WGMMA_INT, "")
WGMMA_EACH(WGMMA_OTHER, wgmma_u8_s8, "k32.s32.u8.s8", int, WGMMA_INT, "")
WGMMA_EACH(WGMMA_OTHER, wgmma_u8_u8, "k32.s32.u8.u8", int, WGMMA_INT, "")

#endif
