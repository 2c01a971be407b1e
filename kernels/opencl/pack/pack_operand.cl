/* Copies a strided stack of matrices into the padded buffer or image that a product's kernel reads.
 *
 *   source: any strides (see gemm.clh)       target: row-major, padded
 *                                              +-----------------+------+
 *                                              | cols            | pad  |
 *                                      rows    | matrix z        |      | padded rows
 *                                              +-----------------+      |
 *                                              | pad                    |
 *                                              +------------------------+
 *                                                padded cols; matrix z + 1 follows below
 *
 * Work-item (x, y, z) writes TALL rows of WIDE texels (or elements of a buffer) of matrix z. With TURN, a work-group of
 * 32 x 8 work-items transposes a square of 32 x 32 elements in local memory. If the source's row stride is 1, both the
 * reads and the writes are then whole lines of memory (Ruetsch, Micikevicius: Optimizing Matrix Transpose in CUDA,
 * 2009). The copy does not change a bit of any element, except that images of floats may flush subnormals.
 */

#include "gemm.clh"

#ifndef CHANNELS  /* channels per texel: 1 (R) or 4 (RGBA); 0: the target is a buffer */
#define CHANNELS 0
#endif
#ifndef BITS      /* 1: the image holds unsigned integers with the elements' bits; 0: floats */
#define BITS 0
#endif
#ifndef PANEL     /* columns per panel, if the target is a buffer of consecutive panels; 0: no panels */
#define PANEL 0
#endif
#ifndef DEPTH     /* rows of a panel whose elements of a column are adjacent */
#define DEPTH 1
#endif
#ifndef TALL      /* rows per work-item: 1, or more where work-items are expensive (CPUs) */
#define TALL 1
#endif
#ifndef WIDE      /* columns (texels or elements) per work-item: PANEL if there are panels, else as for TALL */
#define WIDE 1
#endif
#ifndef TURN      /* 1: transposes squares in local memory; the target is a row-major buffer */
#define TURN 0
#endif

/* Elements are copied as unsigned integers of the same size, so that their bits do not change. */
#if PRECISION == 16
#define item ushort
#elif PRECISION == 8
#define item uchar
#elif PRECISION == 32
#define item uint
#else
#define item ulong
#endif

#if CHANNELS
#define TARGET write_only image2d_t
#else
#define TARGET global item *
#endif

#if TURN
#define SIDE 32
__attribute__((reqd_work_group_size(SIDE, SIDE / 4, 1)))
#endif
kernel void pack_operand(
    global const item *source, long4 source_at, TARGET target, int4 size /* rows, cols, padded rows, padded cols */,
    item pad)
{
    const long z = get_global_id(2);
#if TURN
    local item square[SIDE][SIDE + 1]; /* the additional column avoids bank conflicts */
    const int x0 = get_group_id(0) * SIDE, y0 = get_group_id(1) * SIDE, i = get_local_id(0);
    for (int j = get_local_id(1); j < SIDE; j += SIDE / 4)
        square[j][i] = y0 + i < size.s0 && x0 + j < size.s1 ? *AT(source, z, y0 + i, x0 + j) : pad;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int j = get_local_id(1); j < SIDE; j += SIDE / 4)
        if (y0 + j < size.s2 && x0 + i < size.s3) target[(z * size.s2 + y0 + j) * size.s3 + x0 + i] = square[i][j];
#else
    const int x0 = get_global_id(0) * WIDE, y0 = get_global_id(1) * TALL;
    const int x1 = min(x0 + WIDE, size.s3 / max(CHANNELS, 1)), y1 = min(y0 + TALL, size.s2);

    for (int y = y0; y < y1; ++y) {
#if CHANNELS
#define ELEMENT(j) (y < size.s0 && (j) < size.s1 ? *AT(source, z, y, j) : pad)
        for (int x = x0; x < x1; ++x) {
#if CHANNELS == 4
            const uint4 texel = (uint4)(ELEMENT(4 * x), ELEMENT(4 * x + 1), ELEMENT(4 * x + 2), ELEMENT(4 * x + 3));
#else
            const uint4 texel = (uint4)(ELEMENT(x), 0, 0, 0);
#endif
            const int2 place = (int2)(x, z * size.s2 + y);
#if BITS
            write_imageui(target, place, texel);
#elif PRECISION == 16
            const ushort4 halves = convert_ushort4(texel);
            write_imagef(target, place, vload_half4(0, (const half *)&halves));
#else
            write_imagef(target, place, as_float4(texel));
#endif
        }
#else
        global item *to = target + (PANEL ? (z * size.s3 + x0) * size.s2 + y / DEPTH * DEPTH * (long)PANEL + y % DEPTH
                                          : (z * size.s2 + y) * size.s3 + x0);
        global const item *from = AT(source, z, y, x0);
        const int here = y < size.s0 ? clamp(size.s1 - x0, 0, x1 - x0) : 0;
        if (WIDE > 1 && source_at.s2 == 1) /* a loop with unit stride, which the compiler can vectorize */
            for (int x = 0; x < here; ++x) to[x * DEPTH] = from[x];
        else
            for (int x = 0; x < here; ++x) to[x * DEPTH] = from[x * source_at.s2];
        for (int x = here; x < x1 - x0; ++x) to[x * DEPTH] = pad;
#endif
    }
#endif
}
