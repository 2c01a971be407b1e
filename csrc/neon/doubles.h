/* tile.h's parameters that all kernels for doubles share. No include guard: tile.h undefines the parameters. */
#define T double
#define V float64x2_t
#define VL 2
#define LOAD(p) vld1q_f64(p)
#define STORE(p, v) vst1q_f64(p, v)
#define SPLAT(x) vdupq_n_f64(x)
#define MUL(x, y) vmulq_f64(x, y)
#define FMA(x, y, z) vfmaq_f64(z, x, y)
#define ELEMENT(p) neon_element_double(p)
#define FMA_ELEMENT(x, y, z) vfmaq_laneq_f64(z, y, x, 0)
#define PART int
#define PART_OF(count) (count)
#define LOAD_PART(p, part) neon_load_doubles(p, part)
#define STORE_PART(p, part, v) neon_store_doubles(p, part, v)
#define FMA_ONE(x, y, z) __builtin_fma(x, y, z)
#define TRANSPOSE neon_transpose_doubles
#define TRANSPOSE_DEPTH 2
