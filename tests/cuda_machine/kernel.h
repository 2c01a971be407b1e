// Included before a kernel that is compiled as C++ for the CPU: CUDA's words and functions, as far as the kernels use
// them, and the emulated ptx.cuh and wgmma.cuh (the real ones are kept out by their guards).
#pragma once
#include "machine.h"
#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>

#define __device__
#define __host__
#define __global__ __attribute__((visibility("default")))
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __shared__ static
#define __restrict__ __restrict
#define __align__(x) __attribute__((aligned(x)))

#define threadIdx (machine_thread->thread)
#define blockIdx (machine_thread->block)
#define blockDim (machine_thread->block_size)
#define gridDim (machine_thread->grid)
#define warpSize 32

// ---- Shared memory: a module's static variables. `extern __shared__` arrays become pointers into the arena.

extern "C" __attribute__((visibility("hidden"))) char __bss_start, _end;
alignas(1024) static char machine_arena[232448 + 1024];

// No more aligned than its declaration asks.
template <int ALIGN> inline char *machine_dynamic() {
    static_assert(ALIGN <= 1024 && (ALIGN & (ALIGN - 1)) == 0, "alignment of dynamic shared memory");
    return machine_arena + ALIGN % 1024;
}

// ---- Vector types.

#define MACHINE_VECTORS(T, name, align2, align4)               \
    struct alignas(align2) name##2 {                           \
        T x, y;                                                \
    };                                                         \
    struct alignas(align4) name##4 {                           \
        T x, y, z, w;                                          \
    };                                                         \
    static inline name##2 make_##name##2(T x, T y) {           \
        return {x, y};                                         \
    }                                                          \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { \
        return {x, y, z, w};                                   \
    }
MACHINE_VECTORS(float, float, 8, 16)
MACHINE_VECTORS(double, double, 16, 16)
MACHINE_VECTORS(int, int, 8, 16)
MACHINE_VECTORS(unsigned, uint, 8, 16)
MACHINE_VECTORS(short, short, 4, 8)
MACHINE_VECTORS(unsigned short, ushort, 4, 8)
MACHINE_VECTORS(signed char, char, 2, 4)
MACHINE_VECTORS(unsigned char, uchar, 2, 4)
MACHINE_VECTORS(long long, longlong, 16, 16)
MACHINE_VECTORS(unsigned long long, ulonglong, 16, 16)

// ---- Arithmetic.

static inline float __fmaf_rn(float x, float y, float z) {
    return __builtin_fmaf(x, y, z);
}
static inline double __fma_rn(double x, double y, double z) {
    return __builtin_fma(x, y, z);
}
static inline float __fmul_rn(float x, float y) {
    return x * y;
}
static inline double __dmul_rn(double x, double y) {
    return x * y;
}
static inline float __fadd_rn(float x, float y) {
    return x + y;
}
static inline double __dadd_rn(double x, double y) {
    return x + y;
}
static inline float __fsub_rn(float x, float y) {
    return x - y;
}
static inline double __dsub_rn(double x, double y) {
    return x - y;
}
static inline float __fdiv_rn(float x, float y) {
    return x / y;
}
static inline double __ddiv_rn(double x, double y) {
    return x / y;
}
template <class To, class From> static inline To machine_bits(From from) {
    To to;
    static_assert(sizeof to == sizeof from);
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x) {
    return machine_bits<unsigned>(x);
}
static inline int __float_as_int(float x) {
    return machine_bits<int>(x);
}
static inline float __uint_as_float(unsigned x) {
    return machine_bits<float>(x);
}
static inline float __int_as_float(int x) {
    return machine_bits<float>(x);
}
static inline long long __double_as_longlong(double x) {
    return machine_bits<long long>(x);
}
static inline double __longlong_as_double(long long x) {
    return machine_bits<double>(x);
}
#define MACHINE_MIN_MAX(T)          \
    static inline T min(T x, T y) { \
        return y < x ? y : x;       \
    }                               \
    static inline T max(T x, T y) { \
        return x < y ? y : x;       \
    }
MACHINE_MIN_MAX(int)
MACHINE_MIN_MAX(unsigned)
MACHINE_MIN_MAX(long)
MACHINE_MIN_MAX(unsigned long)
MACHINE_MIN_MAX(long long)
MACHINE_MIN_MAX(unsigned long long)
static inline float min(float x, float y) {
    return fminf(x, y);
}
static inline float max(float x, float y) {
    return fmaxf(x, y);
}
static inline double min(double x, double y) {
    return fmin(x, y);
}
static inline double max(double x, double y) {
    return fmax(x, y);
}
static inline unsigned min(int x, unsigned y) {
    return min((unsigned)x, y);
}
static inline unsigned min(unsigned x, int y) {
    return min(x, (unsigned)y);
}
static inline long long min(int x, long long y) {
    return min((long long)x, y);
}
static inline long long min(long long x, int y) {
    return min(x, (long long)y);
}
static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
static inline int __clz(int x) {
    return x ? __builtin_clz(x) : 32;
}
static inline int __ffs(int x) {
    return __builtin_ffs(x);
}
static inline unsigned __umulhi(unsigned x, unsigned y) {
    return (unsigned)((unsigned long long)x * y >> 32);
}
static inline int __mulhi(int x, int y) {
    return (int)((long long)x * y >> 32);
}
static inline long long __double2ll_rn(double x) {
    return llrint(x);
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long bytes = (unsigned long long)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned s = selector >> 4 * i & 15, byte = (unsigned)(bytes >> 8 * (s & 7)) & 255;
        result |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return result;
}
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i) c += (signed char)(a >> 8 * i) * (signed char)(b >> 8 * i);
    return c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
    return c;
}

// ---- Memory.

template <class T> static inline T __ldg(const T *from) {
    return *from;
}
template <class T> static inline T __ldcs(const T *from) {
    return *from;
}
template <class T> static inline T __ldcg(const T *from) {
    return *from;
}
template <class T> static inline void __stcs(T *to, T value) {
    *to = value;
}
template <class T> static inline void __stcg(T *to, T value) {
    *to = value;
}
static inline void __threadfence() {
    machine_threadfence();
    machine_yield();
}
static inline void __threadfence_block() {}
static inline size_t __cvta_generic_to_shared(const void *pointer) {
    return (size_t)((const char *)pointer - machine_thread->window);
}
#define MACHINE_UNWATCHED __attribute__((no_sanitize("thread"))) // see races.cpp
#define MACHINE_ATOMIC(name, body)                                                       \
    template <class T, class U> static inline MACHINE_UNWATCHED T name(T *at, U given) { \
        machine_yield();                                                                 \
        machine_atomic(at);                                                              \
        const T old = *at, x = (T)given;                                                 \
        *at = body;                                                                      \
        return old;                                                                      \
    }
MACHINE_ATOMIC(atomicAdd, old + x)
MACHINE_ATOMIC(atomicSub, old - x)
MACHINE_ATOMIC(atomicExch, x)
MACHINE_ATOMIC(atomicMax, old < x ? x : old)
MACHINE_ATOMIC(atomicMin, x < old ? x : old)
MACHINE_ATOMIC(atomicOr, old | x)
MACHINE_ATOMIC(atomicAnd, old &x)
MACHINE_ATOMIC(atomicInc, old >= x ? 0 : old + 1)
template <class T, class U, class V> static inline MACHINE_UNWATCHED T atomicCAS(T *at, U expected, V value) {
    machine_yield();
    machine_atomic(at);
    const T old = *at;
    if (old == (T)expected) *at = (T)value;
    return old;
}

// ---- What a block or a warp does together.

static inline void __syncthreads() {
    machine_bar(0, 0, true);
}

template <class T> struct MachineShuffle {
    T value;
    int from;
};
template <class T> static inline T machine_shuffle(unsigned mask, T value, int from, const char *name) {
    MachineShuffle<T> mine = {value, from};
    machine_warp(
        mask, &mine,
        [](void *const *lanes, unsigned met) {
            T values[32] = {};
            for (int i = 0; i < 32; ++i)
                if (met >> i & 1) values[i] = ((MachineShuffle<T> *)lanes[i])->value;
            for (int i = 0; i < 32; ++i) {
                if (!(met >> i & 1)) continue;
                auto *lane = (MachineShuffle<T> *)lanes[i];
                if (!(met >> lane->from & 1)) machine_fail("a shuffle reads lane %d, which takes no part", lane->from);
                lane->value = values[lane->from];
            }
        },
        name);
    return mine.value;
}
template <class T> static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    const int lane = machine_thread->lane;
    return machine_shuffle(mask, value, (lane & ~(width - 1)) | (from & (width - 1)), "__shfl_sync");
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    const int lane = machine_thread->lane, from = lane ^ bits;
    return machine_shuffle(mask, value, from < (lane & ~(width - 1)) + width ? from : lane, "__shfl_xor_sync");
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const int lane = machine_thread->lane, from = lane + (int)by;
    return machine_shuffle(mask, value, from < (lane & ~(width - 1)) + width ? from : lane, "__shfl_down_sync");
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const int lane = machine_thread->lane, from = lane - (int)by;
    return machine_shuffle(mask, value, from >= (lane & ~(width - 1)) ? from : lane, "__shfl_up_sync");
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    unsigned mine = predicate != 0;
    machine_warp(
        mask, &mine,
        [](void *const *lanes, unsigned met) {
            unsigned all = 0;
            for (int i = 0; i < 32; ++i)
                if (met >> i & 1) all |= *(unsigned *)lanes[i] << i;
            for (int i = 0; i < 32; ++i)
                if (met >> i & 1) *(unsigned *)lanes[i] = all;
        },
        "__ballot_sync");
    return mine;
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
    machine_warp(
        mask, &value,
        [](void *const *lanes, unsigned met) {
            unsigned most = 0;
            for (int i = 0; i < 32; ++i)
                if (met >> i & 1 && *(unsigned *)lanes[i] > most) most = *(unsigned *)lanes[i];
            for (int i = 0; i < 32; ++i)
                if (met >> i & 1) *(unsigned *)lanes[i] = most;
        },
        "__reduce_max_sync");
    return value;
}
static inline int __any_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, !predicate) == 0;
}
static inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
    machine_warp(mask, nullptr, [](void *const *, unsigned) {}, "__syncwarp");
}
static inline MACHINE_UNWATCHED int machine_block_vote(int predicate, int kind) {
    static int count[2]; // in the block's shared memory, as the votes of a real one
    if (machine_thread->thread.x + machine_thread->thread.y + machine_thread->thread.z == 0) count[0] = count[1] = 0;
    __syncthreads();
    ++count[predicate != 0];
    __syncthreads();
    const int yes = count[1], no = count[0];
    __syncthreads();
    return kind == 0 ? yes != 0 : kind == 1 ? no == 0 : yes;
}
static inline int __syncthreads_or(int predicate) {
    return machine_block_vote(predicate, 0);
}
static inline int __syncthreads_and(int predicate) {
    return machine_block_vote(predicate, 1);
}
static inline int __syncthreads_count(int predicate) {
    return machine_block_vote(predicate, 2);
}
static inline unsigned __activemask() {
    return (unsigned)machine_active();
}

// ---- Entry points: what libcuda calls, once a thread, and needs to know of the parameters.

template <class... P, size_t... I>
static inline void machine_call(void (*kernel)(P...), void *const *arguments, std::index_sequence<I...>) {
    kernel(*(std::remove_const_t<P> *)arguments[I]...);
}
template <class... P> static inline void machine_enter(void (*kernel)(P...), void *const *arguments) {
    machine_call(kernel, arguments, std::index_sequence_for<P...>());
}
template <class... P> static inline size_t machine_parameters(void (*)(P...), size_t *sizes, size_t *aligns) {
    const size_t all[] = {sizeof(P)..., 0}, needed[] = {alignof(P)..., 0};
    for (size_t i = 0; i < sizeof...(P); ++i) sizes[i] = all[i], aligns[i] = needed[i];
    return sizeof...(P);
}
// `bounds` are those of __launch_bounds__, or 0.
#define MACHINE_ENTRY(kernel, ...)                                              \
    MACHINE void machine_enter_##kernel(void *const *arguments) {               \
        machine_enter(kernel, arguments);                                       \
    }                                                                           \
    MACHINE size_t machine_parameters_##kernel(size_t *sizes, size_t *aligns) { \
        return machine_parameters(kernel, sizes, aligns);                       \
    }                                                                           \
    MACHINE int machine_bounds_##kernel() {                                     \
        const int bounds[] = {__VA_ARGS__};                                     \
        return bounds[0];                                                       \
    }

MACHINE const machine::Memory machine_memory;
const machine::Memory machine_memory = {&__bss_start, &_end, machine_arena, machine_arena + sizeof machine_arena};

#include "ptx.h"
