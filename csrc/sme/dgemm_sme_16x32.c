/* double: FMOPA on 8 squares of ZA (see sme.h). FMOPA for double is an optional feature of SME, FEAT_SME_F64F64. */
#define KERNEL dgemm_sme_16x32
#define SUM double
#define SUM_64
#include "real.h"
