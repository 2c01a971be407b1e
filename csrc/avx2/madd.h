/* Sums of 8 int32 in a ymm, two k a step: operands are int16 in their panels, and vpmaddwd adds two products of theirs
 * exactly, or modulo 2^32 where all four are -2^15. (vpmaddubsw, on bytes, saturates.) 12 accumulators, 2 for b,
 * 1 for a, 1 for the products: all 16 registers. */
#define MR 6
#define K_GROUP 2
#define PA int16_t
#define PB int16_t
#define STEP(acc, x, y) _mm256_add_epi32(acc, _mm256_madd_epi16(x, y))
#include "int32.h"
