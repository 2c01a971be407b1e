/* float16 or, if BFLOAT16 is defined, bfloat16. Elements are widened to float: packed operands during packing, unpacked
 * operands when the tile reads them. tile.h computes the float sums in the same order as for float operands. The result
 * is rounded once, to the nearest even, and subnormals are kept. Elements have the type uint16_t.
 *
 *   WIDEN_RUN(to, x), RUN       optional: widens RUN contiguous elements to float
 *   VECTORS                     optional: the name of a file that defines tile.h's vector parameters, MR, NV, and
 *                               LOAD_C, STORE_C, LOAD_C_PART, STORE_C_PART. The kernel's file must include that file
 *                               before this header. With VECTORS, operands may be unpacked, and this header defines the
 *                               kernel CATALOG_ROW. Without VECTORS, all operands are packed, and the kernel's file
 *                               includes tile.h itself.
 *   CATALOG_ROW                 with VECTORS: the kernel's name
 *   SPLAT_HALF(x), TRANSPOSE_HALVES, DEPTH_OF_HALVES
 *                               with VECTORS: tile.h's SPLAT_IN, TRANSPOSE and TRANSPOSE_DEPTH for halves
 *
 * Include this header after the definitions of tile.h's vector parameters, MR and NV, and before tile.h.
 */
#include <math.h>

#include "float_bits.h"

#ifdef BFLOAT16

#define widen_half widen_bfloat16
#define narrow_half narrow_bfloat16

#else

static inline float widen_half(uint16_t x) {
    const uint32_t magnitude = (uint32_t)(x & 0x7FFF) << 13, sign = (uint32_t)(x & 0x8000) << 16;
    /* The factor 2^112 corrects the bias of the exponent exactly, also for subnormals. Infinities and NaNs have the
     * largest magnitudes; they get the exponent of a float's infinity instead. */
    const float value = magnitude < 0x0F800000 ? float_of(magnitude) * 0x1p112f : float_of(magnitude | 0x7F800000);
    return float_of(bits_of(value) | sign);
}

static inline uint16_t narrow_half(float x) {
    const uint32_t bits = bits_of(x), magnitude = bits & 0x7FFFFFFF, sign = bits >> 16 & 0x8000;
    if (magnitude > 0x7F800000) return (uint16_t)(sign | 0x7E00 | (magnitude >> 13 & 0x3FF));
    if (magnitude >= 0x477FF000) return (uint16_t)(sign | 0x7C00); /* 65520 and above round to infinity */
    if (magnitude < 0x38800000) /* subnormal: adding 0.5 rounds to a multiple of 2^-24, the smallest subnormal */
        return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
    return (uint16_t)(sign | (magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13);
}

#endif

#define C_T uint16_t
#define A_T uint16_t
#define B_T uint16_t
#define PACK_A pack_a
#define PACK_B pack_b
#define K_GROUP 1
#ifndef RUN
#define RUN 1
#define WIDEN_RUN(to, x) (*(to) = widen_half(*(x)))
#endif
#define WIDEN(x) widen_half(x)
#define P float
#define T_IN uint16_t
#define NAMED(stem) stem##_a
#define WIDTH MR
#include "panel_pack.h"
#define P float
#define T_IN uint16_t
#define NAMED(stem) stem##_b
#define WIDTH ((NV) * (VL))
#include "panel_pack.h"
#undef WIDEN

#ifdef VECTORS
#define LOAD_IN LOAD_C
#define LOAD_IN_PART LOAD_C_PART
#define SPLAT_IN SPLAT_HALF
#define IN uint16_t
#define WIDEN_IN(x) widen_half(x)
#undef TRANSPOSE
#undef TRANSPOSE_DEPTH
#define TRANSPOSE TRANSPOSE_HALVES
#define TRANSPOSE_DEPTH DEPTH_OF_HALVES
#define STREAM
#define NAME in_place
#include "tile.h"

#include VECTORS
#define C_T uint16_t
#define A_T uint16_t
#define B_T uint16_t
#define PACK_A pack_a
#define PACK_B pack_b
#define FLAGS (GEMM_UNPACKED_A | GEMM_UNPACKED_B | GEMM_UNPACKED_DOTS | GEMM_FEW_ROWS | GEMM_FAST_PANELS)
#define COMPUTE compute_dispatch
#define KERNEL CATALOG_ROW
#define NAME panels
#include "tile.h"

static void compute_dispatch(const gemm_block *x) {
    (x->panels ? panels_compute : in_place_compute)(x);
}
#else
#define FLAGS 0
#endif
