/* float: FMOPA on 4 squares of ZA (see sme.h). */
#define KERNEL sgemm_sme_32x32
#define SUM float
#include "real.h"
