/* 32-bit Arm with NEON and VFPv4: 6 rows x 2 vectors. Registers: 12 accumulators, 2 vectors of b, 1 element of a: 15 of
 * 16. The vector FMA cannot take a factor from one lane, so the load broadcasts an element of a. Sums keep the order of
 * k. But 32-bit NEON always flushes subnormals to zero, so a result with a subnormal operand or sum may differ from
 * that of other kernels. */
#pragma GCC target("fpu=neon-vfpv4")
#include "../neon/neon.h"
#include "../neon/floats.h"
#undef ELEMENT
#undef FMA_ELEMENT

#define KERNEL sgemm_armv7_6x8
#define NAME sgemm
#define MR 6
#define NV 2
#define ACCUMULATORS 12
#define TALLEST 12
#define TILES(X) X(1) X(2) X(3) X(4)
#define STREAM
#include "tile.h"
