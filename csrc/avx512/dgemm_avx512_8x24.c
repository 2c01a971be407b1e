/* 8 rows x 3 zmm of doubles: 24 accumulators, 3 for b, 1 for a: 28 of 32 registers. */
#include "avx512.h"
#include "doubles.h"

#define KERNEL dgemm_avx512_8x24
#define NAME dgemm
#define MR 8
#define NV 3
#define STREAM
#include "tile.h"
