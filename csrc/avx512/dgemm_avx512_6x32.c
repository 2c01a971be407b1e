/* 6 rows x 4 zmm of doubles: 24 accumulators, 4 for b, 1 for a: 29 of 32 registers. A wide tile needs fewer loads than a tall
 * one: here 4 loads of b and 6 broadcasts of a for 24 FMAs, far fewer than two per cycle, the CPU's limit. */
#include "avx512.h"
#include "doubles.h"

#define KERNEL dgemm_avx512_6x32
#define NAME dgemm
#define MR 6
#define NV 4
#define STREAM
#include "tile.h"
