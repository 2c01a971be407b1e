/* bfloat16 with BFMOPA, which adds 2 products to each float sum. BFMOPA first adds the two products and rounds the
 * result to odd. */
#include "bfloat16.h"

#define KERNEL bgemm_sme_bfmopa_32x32
#define K_GROUP 2
#define OUTER BFMOPA
#include "sme.h"
#include "panel.h"
