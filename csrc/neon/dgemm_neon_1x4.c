/* The 1 x 4 tile in double: four columns are two vectors. b is loaded as vectors, a as a scalar. */
#include "neon.h"
#include "doubles.h"

#define KERNEL dgemm_neon_1x4
#define NAME dgemm
#define MR 1
#define NV 2
#define ACCUMULATORS 2
#define TALLEST 1
#define TILES(X) X(1) X(2)
#include "tile.h"
