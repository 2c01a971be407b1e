/* tile.h's parameters that all kernels for floats share. No include guard: tile.h undefines the parameters. */
#define T float
#define V float32x4_t
#define VL 4
#define LOAD(p) vld1q_f32(p)
#define STORE(p, v) vst1q_f32(p, v)
#define SPLAT(x) vdupq_n_f32(x)
#define MUL(x, y) vmulq_f32(x, y)
#define FMA(x, y, z) vfmaq_f32(z, x, y)
#define ELEMENT(p) neon_element_float(p)
#define FMA_ELEMENT(x, y, z) vfmaq_laneq_f32(z, y, x, 0)
#define PART int
#define PART_OF(count) (count)
#define LOAD_PART(p, part) neon_load_floats(p, part)
#define STORE_PART(p, part, v) neon_store_floats(p, part, v)
#define FMA_ONE(x, y, z) __builtin_fmaf(x, y, z)
#define TRANSPOSE neon_transpose_floats
#define TRANSPOSE_DEPTH 4
