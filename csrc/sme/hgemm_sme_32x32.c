/* float16 with the tile of sgemm_sme_32x32. Packing widens elements to float. */
#define KERNEL hgemm_sme_32x32
#define SUM float
#define ELEMENT __fp16
#define FROM_ELEMENT(x) ((float)(x))
#define TO_ELEMENT(s) ((__fp16)(s))
#include "real.h"
