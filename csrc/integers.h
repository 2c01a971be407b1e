/* tile.h's parameters for integers whose sums have the type of the operands. Integers wrap like NumPy's, so the order
 * of a sum's terms does not matter. No include guard, because tile.h undefines the parameters at its end. */
#define ONE(s) ((s)->integer == 1)
#define SCALAR(s) ((T)(s)->integer)
#define FMA_ONE(x, y, z) ((z) + (x) * (y))
#define STREAM
