/* tile.h's parameters for integers that are their own sums and wrap as NumPy's do, so that any order is as good; no
 * guard: tile.h undefines them. */
#define ONE(s) ((s)->integer == 1)
#define SCALAR(s) ((T)(s)->integer)
#define FMA_ONE(x, y, z) ((z) + (x) * (y))
#define STREAM
