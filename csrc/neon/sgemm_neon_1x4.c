/* The 1 x 4 tile in float. b is loaded as one vector, a as a scalar. One chain of FMAs, in the order of k. */
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
