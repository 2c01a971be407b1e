/* tile.h's parameters for the scalar kernels. No include guard: tile.h undefines the parameters. */
#define MR 4
#define NV 4
#define ACCUMULATORS 16
#define TALLEST 4
#define TILES(X) X(1) X(2) X(3) X(4)
