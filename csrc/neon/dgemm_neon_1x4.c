/* The row kernel in double: four outputs of one row are two vectors; b vectors, a a scalar. */
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
