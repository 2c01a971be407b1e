/* out = alpha * a * b + beta * c on GPUs with a texture cache: b an image, a a buffer, 8 x 4 outputs a
 * work-item, so that two caches feed the ALUs at once.
 *
 *                      x = get_global_id(0)        b: RGBA image, a texel is 4 columns of a row:
 *                      TN = 4                        texel (x, z * b_rows + p) = b[z][p][4x .. 4x+3]
 *                    +--------+                      through the texture pipe and its L1.
 *              pos.. | b0..b3 | 4 texels a step    a: buffer, row-major, a_row elements a row,
 *                    +--------+                      a[z * a_batch + i * a_row + p], through L2.
 *         pos..                                    out, c: buffers, element (z, i, j) at
 *        +------+    +--------+                      offset + z * batch + i * row + j * col.
 * TM = 8 | 8 x  |    | 8 x 4  |
 *        | vec4 |    |  out   |                    A step: 4 texels of b, 8 vec4 of a, 32 float4 lanes
 *        +------+    +--------+                    of multiply-add; all work-items of a group (WGN x WGM
 *                                                  of these tiles) advance along K together.
 *
 * Padded: a's rows to TM, a and b along K to 4, b's columns to 4; `k` here is the padded one. a is padded
 * with -0.0 and b with +0.0 along K: their product -0.0 is what addition leaves every sum unchanged by,
 * a sum of -0.0 too. out and c are not padded: stores are guarded.
 * K in pieces: all but the first have resume = 1 and start from the raw sums in `out`; all but the last
 * have finish = 0 and leave raw sums there. c is read only if beta != 0; a and b only if k > 0.
 */

#ifndef ORDERED   /* 1: each sum is the chain acc = fma(a, b, acc), the same bits on every device */
#define ORDERED 0
#endif
#ifndef FUSED     /* 1: the device has fma in hardware; 0: it may be emulated (25 times slower on some) */
#define FUSED 1
#endif
#ifndef TM        /* rows of out a work-item */
#define TM 8
#endif
#ifndef TN        /* columns of out a work-item: one texel */
#define TN 4
#endif
#ifndef WGM       /* preferred work-group: WGN work-items along n, WGM along m */
#define WGM 8
#endif
#ifndef WGN
#define WGN 8
#endif
#if TM != 8 || TN != 4
#error "the host pads for TM = 8 and TN = 4"
#endif

#if ORDERED || FUSED
#define MAC(x, y, sum) fma((float4)(x), y, sum)
#else
#define MAC(x, y, sum) ((float4)(x) * (y) + (sum))
#endif

/* Reading a float image may flush denormals (OpenCL C, image conversions); the bits of an integer image
   may not change. Same texel size, same speed: ordered results read b as integers. */
#if ORDERED
#define TEXEL(x, y) as_float4(read_imageui(b, exact, (int2)(x, y)))
#else
#define TEXEL(x, y) read_imagef(b, exact, (int2)(x, y))
#endif
constant sampler_t exact = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_NONE | CLK_FILTER_NEAREST;

/* Up to 4 neighbours of a row of c or out, of which `cols` exist. (No private array: PoCL 3.1 loses its halves.) */
float4 gather(global const float *from, long step, int cols)
{
    if (step == 1 && cols == 4) return vload4(0, from);
    return (float4)(from[0], cols > 1 ? from[step] : 0, cols > 2 ? from[2 * step] : 0, cols > 3 ? from[3 * step] : 0);
}

void scatter(float4 values, global float *to, long step, int cols)
{
    if (step == 1 && cols == 4) {
        vstore4(values, 0, to);
        return;
    }
    to[0] = values.x;
    if (cols > 1) to[step] = values.y;
    if (cols > 2) to[2 * step] = values.z;
    if (cols > 3) to[3 * step] = values.w;
}

__attribute__((work_group_size_hint(WGN, WGM, 1)))
kernel void sgemm_adreno_image_8x4(
    global const float *a, long a_offset, long a_row, long a_col /* 1 */, long a_batch,
    read_only image2d_t b, int b_rows /* of a matrix; 0: all share one */,
    global const float *c, long c_offset, long c_row, long c_col, long c_batch,
    global float *out, long out_offset, long out_row, long out_col, long out_batch,
    int m, int n, int k, float alpha, float beta, int resume, int finish)
{
    const int x = get_global_id(0), z = get_global_id(2);
    const long i0 = (long)get_global_id(1) * TM, j0 = (long)x * TN;
    if (i0 >= m || j0 >= n) return;
    const int rows = min((long)TM, m - i0), cols = min((long)TN, n - j0);
    a += a_offset + z * a_batch + i0 * a_row;
    c += c_offset + z * c_batch + i0 * c_row + j0 * c_col;
    out += out_offset + z * out_batch + i0 * out_row + j0 * out_col;

    float4 sum[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i)
        sum[i] = resume && i < rows ? gather(out + i * out_row, out_col, cols) : (float4)(0);

    for (int pos = 0, y = z * b_rows; pos < k; pos += 4, y += 4) {
        const float4 b0 = TEXEL(x, y), b1 = TEXEL(x, y + 1), b2 = TEXEL(x, y + 2), b3 = TEXEL(x, y + 3);
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const float4 ai = vload4(0, a + i * a_row + pos);
            sum[i] = MAC(ai.x, b0, sum[i]);
            sum[i] = MAC(ai.y, b1, sum[i]);
            sum[i] = MAC(ai.z, b2, sum[i]);
            sum[i] = MAC(ai.w, b3, sum[i]);
        }
    }

#pragma unroll
    for (int i = 0; i < TM; ++i) {
        if (i < rows) {
            float4 result = finish ? alpha * sum[i] : sum[i];
            if (finish && beta != 0) result = fma((float4)(beta), gather(c + i * c_row, c_col, cols), result);
            scatter(result, out + i * out_row, out_col, cols);
        }
    }
}
