/* wrap.h's parameters for all integer types in plain C: a vector has one element. */
#define PA SUM
#define PB SUM
#define FACTOR SUM
#define MR 4
#define NV 4
#define VL 1
#define K_GROUP 1
#define ACC SUM
#define X SUM
#define Y SUM
#define ZERO 0
#define GET(p) (*(p))
#define PUT(p, v) (*(p) = (v))
#define SPLAT(p) (*(p))
#define ROW(p) (*(p))
#define STEP(acc, x, y) ((acc) + (x) * (y))
#include "wrap.h"
