/* 6 rows x 2 ymm of floats: 12 accumulators, 2 for b, 1 for a: 15 of 16 registers. Two FMA ports of latency 4 to 5 need
 * 8 to 10 independent chains of FMAs; this tile has 12. */
#include "avx2.h"
#include "floats.h"

#define KERNEL sgemm_avx2_6x16
#define NAME sgemm
#define MR 6
#define NV 2
#define STREAM
#include "tile.h"
