/* 12 rows x 2 zmm of floats: 24 accumulators, 2 for b, 1 for a: 27 of 32 registers. A panel of 32 columns fits L1 for
 * twice as many steps along k as one of 64. An unpacked b is read 64 columns at a time, because long rows need fewer prefetches
 * and fewer entries of the TLB; the tiles then have 6 rows. */
#include "avx512.h"
#include "floats.h"

#define KERNEL sgemm_avx512_12x32
#define NAME sgemm
#define MR 12
#define NV 2
#define NV_UNPACKED 4
#define STREAM
#define STREAM_AHEAD 256
#include "tile.h"
