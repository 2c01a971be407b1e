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
 * A work-item writes one texel, or one element of a buffer: (x, y, z) = (texel, padded row, matrix).
 * A copy: no bit of an element changes, except that images of floats may flush denormals.
 */

#include "gemm.clh"

#ifndef CHANNELS  /* of a texel: 1 (R) or 4 (RGBA); 0: the target is a buffer */
#define CHANNELS 0
#endif
#ifndef BITS      /* 1: the image holds unsigned integers with the elements' bits; 0: floats */
#define BITS 0
#endif
#ifndef PANEL     /* columns of a panel, which of a buffer lie one after the other; 0: row-major */
#define PANEL 0
#endif

/* Halves are copied as what they are: bits. */
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

kernel void pack_operand(
    global const item *source, long4 source_at, TARGET target, int4 size /* rows, cols, padded rows, padded cols */,
    item pad)
{
    const int x = get_global_id(0), y = get_global_id(1);
    const long z = get_global_id(2);
#define ELEMENT(j) (y < size.s0 && (j) < size.s1 ? *AT(source, z, y, j) : pad)

#if CHANNELS == 4
    const uint4 texel = (uint4)(ELEMENT(4 * x), ELEMENT(4 * x + 1), ELEMENT(4 * x + 2), ELEMENT(4 * x + 3));
#elif CHANNELS == 1
    const uint4 texel = (uint4)(ELEMENT(x), 0, 0, 0);
#endif

#if !CHANNELS
#if PANEL
    target[(z * size.s3 + x / PANEL * PANEL) * size.s2 + y * PANEL + x % PANEL] = ELEMENT(x);
#else
    target[(z * size.s2 + y) * size.s3 + x] = ELEMENT(x);
#endif
#elif BITS
    write_imageui(target, (int2)(x, z * size.s2 + y), texel);
#elif PRECISION == 16
    const ushort4 halves = convert_ushort4(texel);
    write_imagef(target, (int2)(x, z * size.s2 + y), vload_half4(0, (const half *)&halves));
#else
    write_imagef(target, (int2)(x, z * size.s2 + y), as_float4(texel));
#endif
}
