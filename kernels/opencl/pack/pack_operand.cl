/* Copies a strided stack of matrices into the padded buffer or image that a product's kernel reads.
 *
 *   source: any strides,                     target: row-major, padded
 *   offset + z * batch + i * row + j * col     +-----------------+------+
 *                                              | cols            | pad  |
 *                                      rows    | matrix z        |      | padded_rows
 *                                              +-----------------+      |
 *                                              | pad                    |
 *                                              +------------------------+
 *                                                padded_cols; matrix z + 1 follows below
 *
 * A work-item writes one texel, or one element of a buffer: (x, y, z) = (texel, padded row, matrix).
 * A copy: no bit of an element changes, except that a FLOAT image may flush denormals.
 */

#ifndef REAL      /* type of every element: float or double; images: float */
#define REAL float
#endif
#ifndef CHANNELS  /* of a texel: 1 (R) or 4 (RGBA); 0: the target is a buffer */
#define CHANNELS 0
#endif
#ifndef BITS      /* 1: the image holds UNSIGNED_INT32 with the floats' bits; 0: FLOAT */
#define BITS 0
#endif

#ifndef PANEL     /* columns of a panel, which of a buffer lie one after the other; 0: row-major */
#define PANEL 0
#endif

#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#if CHANNELS
#define TARGET write_only image2d_t
#else
#define TARGET global REAL *
#endif

kernel void pack_operand(
    global const REAL *source, long offset, long row, long col, long batch,
    TARGET target, int rows, int cols, int padded_rows, int padded_cols, REAL pad)
{
    const int x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
    source += offset + z * batch + y * row;
#define ELEMENT(j) (y < rows && (j) < cols ? source[(j) * col] : pad)

#if CHANNELS == 4
    const float4 texel = (float4)(ELEMENT(4 * x), ELEMENT(4 * x + 1), ELEMENT(4 * x + 2), ELEMENT(4 * x + 3));
#elif CHANNELS == 1
    const float4 texel = (float4)(ELEMENT(x), 0, 0, 0);
#endif

#if !CHANNELS
#if PANEL
    target[((long)z * padded_cols + x / PANEL * PANEL) * padded_rows + y * PANEL + x % PANEL] = ELEMENT(x);
#else
    target[((long)z * padded_rows + y) * padded_cols + x] = ELEMENT(x);
#endif
#elif BITS
    write_imageui(target, (int2)(x, z * padded_rows + y), as_uint4(texel));
#else
    write_imagef(target, (int2)(x, z * padded_rows + y), texel);
#endif
}
