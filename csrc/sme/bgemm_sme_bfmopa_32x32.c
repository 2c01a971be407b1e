/* bfloat16 with BFMOPA, which adds 2 products to each sum: their sum is rounded to odd, then added in float. */
#include "bfloat16.h"

#define KERNEL bgemm_sme_bfmopa_32x32
#define K_GROUP 2
#define OUTER BFMOPA
#include "sme.h"
#include "panel.h"
