/* Functions shared by the NEON kernels: partial vectors, elements of a, and transposition. */
#ifndef GEMM_NEON_H
#define GEMM_NEON_H

#include <arm_neon.h>
#include <stdint.h>

#ifdef __GNUC__
#define NEON_INLINE static inline __attribute__((always_inline))
#else
#define NEON_INLINE static __forceinline
#endif

/* Attributes that enable instruction set extensions, for functions that run only if the CPU has the extension. */
#ifdef __GNUC__
#define NEON_DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))
#define NEON_I8MM __attribute__((target("arch=armv8.2-a+i8mm")))
#define NEON_BF16 __attribute__((target("arch=armv8.2-a+bf16")))
#else
#define NEON_DOTPROD
#define NEON_I8MM
#define NEON_BF16
#endif

/* Loads an element of a into lane 0, for an FMA by lane. A plain load does not occupy an execution unit that the FMAs
 * need. For most other formulations, compilers emit ld1r or dup, which do occupy such a unit. */
#if defined(__GNUC__) && defined(__aarch64__)
#define NEON_ELEMENT(name, vector, type, load)                 \
    NEON_INLINE vector name(const void *p) {                   \
        vector element;                                        \
        __asm__(load : "=w"(element) : "m"(*(const type *)p)); \
        return element;                                        \
    }
NEON_ELEMENT(neon_element_double, float64x2_t, double, "ldr %d0, %1")
NEON_ELEMENT(neon_element_float, float32x4_t, float, "ldr %s0, %1")
NEON_ELEMENT(neon_element_short, int16x8_t, int16_t, "ldr %h0, %1")
typedef struct neon_four_bytes {
    int8_t byte[4];
} neon_four_bytes;
NEON_ELEMENT(neon_element_bytes, int8x16_t, neon_four_bytes, "ldr %s0, %1")
#undef NEON_ELEMENT
#else
#define neon_element_double(p) vdupq_n_f64(*(p))
#define neon_element_float(p) vdupq_n_f32(*(p))
#define neon_element_short(p) vdupq_n_s16(*(p))
#define neon_element_bytes(p) vreinterpretq_s8_s32(vld1q_dup_s32((const int32_t *)(p)))
#endif

/* Loads the first `count` elements, 1 to 4. The other elements are zero. */
NEON_INLINE float32x4_t neon_load_floats(const float *p, int count) {
    if (count == 4) return vld1q_f32(p);
    const float32x2_t none = vdup_n_f32(0);
    if (count == 1) return vcombine_f32(vld1_lane_f32(p, none, 0), none);
    return vcombine_f32(vld1_f32(p), count == 3 ? vld1_lane_f32(p + 2, none, 0) : none);
}

NEON_INLINE void neon_store_floats(float *p, int count, float32x4_t v) {
    if (count == 4) {
        vst1q_f32(p, v);
    } else if (count == 1) {
        vst1q_lane_f32(p, v, 0);
    } else {
        vst1_f32(p, vget_low_f32(v));
        if (count == 3) vst1q_lane_f32(p + 2, v, 2);
    }
}

/* transposed[p] = x[0 ... 3][p] for p < 4. The distance between rows is rs elements. Rows i >= count are zero. */
NEON_INLINE void neon_transpose_floats(float32x4_t *transposed, const float *x, int64_t rs, int count) {
    const float32x4_t none = vdupq_n_f32(0);
    const float32x4_t a = count > 0 ? vld1q_f32(x) : none, b = count > 1 ? vld1q_f32(x + rs) : none;
    const float32x4_t c = count > 2 ? vld1q_f32(x + 2 * rs) : none, d = count > 3 ? vld1q_f32(x + 3 * rs) : none;
    const float32x4x2_t ac = vzipq_f32(a, c), bd = vzipq_f32(b, d);
    const float32x4x2_t low = vzipq_f32(ac.val[0], bd.val[0]), high = vzipq_f32(ac.val[1], bd.val[1]);
    transposed[0] = low.val[0], transposed[1] = low.val[1], transposed[2] = high.val[0], transposed[3] = high.val[1];
}

#ifndef __arm__ /* 32-bit Arm has no vectors of doubles */
NEON_INLINE float64x2_t neon_load_doubles(const double *p, int count) {
    return count == 2 ? vld1q_f64(p) : vcombine_f64(vld1_f64(p), vdup_n_f64(0));
}

NEON_INLINE void neon_store_doubles(double *p, int count, float64x2_t v) {
    if (count == 2)
        vst1q_f64(p, v);
    else
        vst1q_lane_f64(p, v, 0);
}

/* transposed[p] = x[0 ... 1][p] for p < 2. The distance between rows is rs elements. Rows i >= count are zero. */
NEON_INLINE void neon_transpose_doubles(float64x2_t *transposed, const double *x, int64_t rs, int count) {
    const float64x2_t none = vdupq_n_f64(0);
    const float64x2_t a = count > 0 ? vld1q_f64(x) : none, b = count > 1 ? vld1q_f64(x + rs) : none;
    transposed[0] = vzip1q_f64(a, b), transposed[1] = vzip2q_f64(a, b);
}
#endif

#endif
