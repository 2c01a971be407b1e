/* int32.h's parameters for two steps of k at a time. Panels hold int16. vpmaddwd adds two products of int16; the result
 * is exact, or exact modulo 2^32 if all four factors are -2^15. (vpmaddubsw, for bytes, would saturate.) Registers: 12
 * accumulators, 2 for b, 1 for a, 1 for the results of vpmaddwd: all 16. */
#define MR 6
#define K_GROUP 2
#define PA int16_t
#define PB int16_t
#define STEP(acc, x, y) _mm256_add_epi32(acc, _mm256_madd_epi16(x, y))
#include "int32.h"
