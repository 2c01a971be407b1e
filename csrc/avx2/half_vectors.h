/* The file that half.h's parameter VECTORS names. No include guard: tile.h undefines the parameters. */
#include "floats.h"
#undef TARGET
#define TARGET HALVES
#define LOAD_C(p) load(p)
#define STORE_C(p, v) store(p, v)
#define LOAD_C_PART(p, part) load_part(p, (part).count)
#define STORE_C_PART(p, part, v) store_part(p, (part).count, v)
#define SPLAT_HALF(x) splat(x)
#define TRANSPOSE_HALVES transpose
#define DEPTH_OF_HALVES 8
#define MR 6
#define NV 2
