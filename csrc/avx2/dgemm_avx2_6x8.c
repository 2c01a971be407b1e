/* 6 rows x 2 ymm of doubles: 12 accumulators, 2 for b, 1 for a: 15 of 16 registers. */
#include "avx2.h"
#include "doubles.h"

#define KERNEL dgemm_avx2_6x8
#define NAME dgemm
#define MR 6
#define NV 2
#define STREAM
#include "tile.h"
