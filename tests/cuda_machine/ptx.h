// ptx.cuh and wgmma.cuh for the emulated machine: the same functions, without PTX.
#pragma once
#define GEMM_CUDA_PTX
#define GEMM_CUDA_PTX_SM90
#define GEMM_CUDA_WGMMA
#define PTX static inline

PTX unsigned shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}
PTX char *machine_shared(unsigned address) {
    return machine_thread->window + address;
}

PTX unsigned kept(unsigned x) {
    return x;
}
template <class T> PTX void shared_load(T *to, unsigned from) {
    memcpy(to, machine_shared(from), 16);
}
PTX float shared_float(unsigned from) {
    float x;
    memcpy(&x, machine_shared(from), 4);
    return x;
}

template <class T> PTX void accumulate(T &sum, T a, T b) {
    sum = std::fma(a, b, sum);
}

PTX void follow_launch() {
    machine_follow_launch();
}

PTX void bar_sync(int id, int threads) {
    machine_bar(id, threads, true);
}
PTX void bar_arrive(int id, int threads) {
    machine_bar(id, threads, false);
}

// ---- Conversions, by exact integer arithmetic.

PTX unsigned machine_narrow(float value, int exponents, int mantissa) { // to nearest even, overflow to infinity
    const unsigned bits = machine_bits<unsigned>(value), sign = bits >> 31 << (exponents + mantissa);
    const int bias = (1 << (exponents - 1)) - 1;
    const unsigned infinity = ((1u << exponents) - 1) << mantissa;
    if (value != value) return sign | infinity | 1u << (mantissa - 1);
    const double magnitude = std::fabs((double)value);
    if (magnitude == 0) return sign;
    int e;
    std::frexp(magnitude, &e);
    const int unit = (e - 1 < 1 - bias ? 1 - bias : e - 1) - mantissa; // exponent of the last bit
    const double scaled = std::ldexp(magnitude, -unit), whole = std::nearbyint(scaled);
    if (std::isinf(value) || std::ldexp(whole, unit) >= std::ldexp(1., bias + 1)) return sign | infinity;
    return sign | (unsigned)(whole + (double)(unit + mantissa + bias - 1) * (1 << mantissa));
}
PTX float machine_widen(unsigned bits, int exponents, int mantissa) {
    const int bias = (1 << (exponents - 1)) - 1;
    const int e = (int)(bits >> mantissa & ((1u << exponents) - 1));
    const unsigned m = bits & ((1u << mantissa) - 1);
    float value = std::ldexp((float)(e ? m | 1u << mantissa : m), (e ? e : 1) - bias - mantissa);
    if (e == (1 << exponents) - 1) value = m ? NAN : INFINITY;
    return bits >> (exponents + mantissa) & 1 ? -value : value;
}
PTX float f16_to_float(unsigned short bits) {
    return machine_widen(bits, 5, 10);
}
PTX unsigned short float_to_f16(float value) {
    return (unsigned short)machine_narrow(value, 5, 10);
}
PTX unsigned short float_to_bf16(float value) {
    return (unsigned short)machine_narrow(value, 8, 7);
}
PTX unsigned floats_to_f16x2(float low, float high) {
    return float_to_f16(low) | (unsigned)float_to_f16(high) << 16;
}
PTX unsigned floats_to_bf16x2(float low, float high) {
    return float_to_bf16(low) | (unsigned)float_to_bf16(high) << 16;
}

// ---- cp.async.

template <int COUNT> PTX void copy_async(unsigned shared, const void *global, int valid_bytes) {
    static_assert(COUNT == 4 || COUNT == 8 || COUNT == 16, "cp.async copies 4, 8 or 16 bytes");
    machine_copy(shared, global, COUNT, valid_bytes);
}
PTX void copy_commit() {
    machine_copy_commit();
}
template <int PENDING> PTX void copy_wait() {
    machine_copy_wait(PENDING);
}

// ---- Matrices and products of a warp.

PTX void ldmatrix_x4_trans(unsigned (&to)[4], unsigned row) {
    machine_ldmatrix_trans(to, row);
}
PTX void stmatrix_x4(unsigned row, const unsigned (&from)[4]) {
    machine_stmatrix(from, row);
}
PTX void mma_f64(double (&d)[2], double a, double b) {
    machine_mma_f64(d, &a, &b, 8, 4);
}
PTX void mma_f64(double (&d)[4], const double (&a)[2], const double (&b)[1]) {
    machine_mma_f64(d, a, b, 16, 4);
}
PTX void mma_f64(double (&d)[4], const double (&a)[4], const double (&b)[2]) {
    machine_mma_f64(d, a, b, 16, 8);
}
PTX void mma_f64(double (&d)[4], const double (&a)[8], const double (&b)[4]) {
    machine_mma_f64(d, a, b, 16, 16);
}

// ---- Barriers in shared memory, TMA, clusters.

PTX void barrier_init(unsigned bar, unsigned count) {
    machine_barrier_init(bar, count);
}
PTX void barrier_init_fence() {
    machine_barrier_init_fence();
}
PTX void barrier_arrive(unsigned bar) {
    machine_barrier_arrive(bar, machine_thread->rank, 0, false);
}
PTX void barrier_expect(unsigned bar, unsigned bytes) {
    machine_barrier_arrive(bar, machine_thread->rank, bytes, true);
}
PTX void barrier_arrive_remote(unsigned bar, unsigned cta) {
    machine_barrier_arrive(bar, cta, 0, false);
}
PTX bool barrier_try(unsigned bar, unsigned parity) {
    return machine_barrier_wait(bar, parity, false);
}
PTX bool barrier_passed(unsigned bar, unsigned parity) {
    return machine_barrier_passed(bar, parity);
}
PTX void barrier_wait(unsigned bar, unsigned parity) {
    machine_barrier_wait(bar, parity, true);
}
PTX void barrier_wait_cluster(unsigned bar, unsigned parity) {
    machine_barrier_wait(bar, parity, true);
}

struct alignas(64) TensorMap {
    unsigned char opaque[128];
};
PTX void tma_prefetch(const TensorMap *) {}
PTX void tma_load_3d(unsigned to, const TensorMap *map, unsigned bar, int x, int y, int z) {
    machine_tma_load(to, map, bar, x, y, z, 3, 0);
}
PTX void tma_load_2d_multicast(unsigned to, const TensorMap *map, unsigned bar, int x, int y, unsigned short mask) {
    machine_tma_load(to, map, bar, x, y, 0, 2, mask | 1 << 16);
}
PTX void tma_load_3d_multicast(unsigned to, const TensorMap *map, unsigned bar, int x, int y, int z,
                               unsigned short mask) {
    machine_tma_load(to, map, bar, x, y, z, 3, mask | 1 << 16);
}
PTX void tma_store_2d(const TensorMap *map, unsigned from, int x, int y) {
    machine_tma_store(map, from, x, y, 0, 2);
}
PTX void tma_store_3d(const TensorMap *map, unsigned from, int x, int y, int z) {
    machine_tma_store(map, from, x, y, z, 3);
}
PTX void bulk_commit() {
    machine_bulk_commit();
}
template <int PENDING> PTX void bulk_wait() {
    machine_bulk_wait(PENDING, false);
}
template <int PENDING> PTX void bulk_wait_read() {
    machine_bulk_wait(PENDING, true);
}
PTX void fence_async() {
    machine_fence_async();
}
PTX unsigned cluster_rank() {
    return machine_thread->rank;
}
PTX void cluster_meet() {
    machine_cluster_arrive();
    machine_cluster_wait();
}
PTX void remote_store(unsigned to, const float4 &words, unsigned bar, unsigned rank) {
    machine_remote_store(to, &words, bar, rank);
}

template <int N> PTX void registers_up() {
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "registers come in eights");
    __syncwarp();
}
template <int N> PTX void registers_down() {
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "registers come in eights");
    __syncwarp();
}

// ---- wgmma.

PTX unsigned long long descriptor(unsigned shared, unsigned leading_bytes, unsigned stride_bytes, unsigned swizzle) {
    return (unsigned long long)((shared & 0x3ffff) >> 4) | (unsigned long long)(leading_bytes >> 4) << 16 |
           (unsigned long long)(stride_bytes >> 4) << 32 | (unsigned long long)swizzle << 62;
}
PTX void wgmma_fence() {
    machine_wgmma_fence();
}
PTX void wgmma_commit() {
    machine_wgmma_commit();
}
template <int PENDING> PTX void wgmma_wait() {
    machine_wgmma_wait(PENDING);
}
template <class T, int COUNT> PTX void wgmma_hold(T (&)[COUNT]) {}

#define MACHINE_WGMMA(name, type, a_type, b_type)                                                                  \
    template <int A_TRANSPOSED = 0, int B_TRANSPOSED = 0, int COUNT>                                               \
    PTX void name(type(&d)[COUNT], unsigned long long a, unsigned long long b, int scale_d) {                      \
        static_assert(COUNT == 4 || (COUNT % 8 == 0 && COUNT <= 128), "n is 8 or a multiple of 16 up to 256");     \
        machine_wgmma(                                                                                             \
            {d, a, b, nullptr, COUNT * 2, scale_d, A_TRANSPOSED, B_TRANSPOSED, machine::a_type, machine::b_type}); \
    }                                                                                                              \
    template <int B_TRANSPOSED = 0, int COUNT>                                                                     \
    PTX void name(type(&d)[COUNT], const unsigned(&a)[4], unsigned long long b, int scale_d) {                     \
        static_assert(COUNT == 4 || (COUNT % 8 == 0 && COUNT <= 128), "n is 8 or a multiple of 16 up to 256");     \
        machine_wgmma({d, 0, b, a, COUNT * 2, scale_d, 0, B_TRANSPOSED, machine::a_type, machine::b_type});        \
    }
MACHINE_WGMMA(wgmma_bf16, float, BF16, BF16)
MACHINE_WGMMA(wgmma_f16, float, F16, F16)
MACHINE_WGMMA(wgmma_tf32, float, TF32, TF32)
MACHINE_WGMMA(wgmma_e4m3_e4m3, float, E4M3, E4M3)
MACHINE_WGMMA(wgmma_e4m3_e5m2, float, E4M3, E5M2)
MACHINE_WGMMA(wgmma_e5m2_e4m3, float, E5M2, E4M3)
MACHINE_WGMMA(wgmma_e5m2_e5m2, float, E5M2, E5M2)
MACHINE_WGMMA(wgmma_s8_s8, int, S8, S8)
MACHINE_WGMMA(wgmma_s8_u8, int, S8, U8)
MACHINE_WGMMA(wgmma_u8_s8, int, U8, S8)
MACHINE_WGMMA(wgmma_u8_u8, int, U8, U8)

// ---- What single families of kernels add to ptx.cuh.

template <int WORDS> PTX void load_once(unsigned (&to)[WORDS], const void *from) {
    if ((uintptr_t)from % sizeof to) machine_fail("load_once from %p: not aligned to %zu bytes", from, sizeof to);
    memcpy(to, from, sizeof to);
}
