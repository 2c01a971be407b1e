/* float with the tile of tile_8x12.h: the fastest float kernel for AArch64 CPUs without SME. */
#include "neon.h"
#include "floats.h"
#include "tile_8x12.h"

#define KERNEL sgemm_neon_8x12
#define NAME sgemm
#define STREAM
#include "tile.h"
