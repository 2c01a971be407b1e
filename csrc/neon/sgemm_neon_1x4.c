/* The row kernel: four outputs of one row, b a vector, a a scalar. The one chain of FMAs stays in order. */
#include "neon.h"
#include "floats.h"

#define KERNEL sgemm_neon_1x4
#define NAME sgemm
#define MR 1
#define NV 1
#define ACCUMULATORS 1
#define TALLEST 1
#define TILES(X) X(1)
#include "tile.h"
