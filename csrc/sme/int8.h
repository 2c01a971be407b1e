/* wrap.h's parameters for 8-bit operands and int32 sums. An outer product adds 4 products to each sum, exactly. */
#define SUM uint32_t
#define PA A
#define PB B
#define K_GROUP 4
#include "sme.h"
#include "wrap.h"
