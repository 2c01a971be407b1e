/* tile.h's parameters for integers whose sums have the same type. Integers wrap like NumPy's, so the order of a sum
 * does not matter. This header has no include guard, because tile.h undefines the parameters. */
#define ONE(s) ((s)->integer == 1)
#define SCALAR(s) ((T)(s)->integer)
#define FMA_ONE(x, y, z) ((z) + (x) * (y))
#define STREAM
