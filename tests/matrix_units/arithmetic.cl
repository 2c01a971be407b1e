/* The sums of the emulated matrix units: the products of two words of 4 bytes are added to a sum. The sums are rounded
 * after each product: the matrix units round at most as often. */

#pragma OPENCL EXTENSION cl_khr_fp16 : enable

float add_halves(int x, int y, float sum)
{
    const half2 a = as_half2(x), b = as_half2(y);
    return fma((float)a.y, (float)b.y, fma((float)a.x, (float)b.x, sum));
}

/* The matrix units may treat a subnormal bfloat16 as zero. */
float from_bfloat16(int bits)
{
    return (bits & 0x7f80) == 0 ? 0 : as_float(bits << 16);
}

float add_bfloat16(int x, int y, float sum)
{
    sum = fma(from_bfloat16(x & 0xffff), from_bfloat16(y & 0xffff), sum);
    return fma(from_bfloat16(x >> 16 & 0xffff), from_bfloat16(y >> 16 & 0xffff), sum);
}

int add_bytes(int x, int y, int sum)
{
    const int4 products = convert_int4(as_char4(x)) * convert_int4(as_char4(y));
    return sum + products.x + products.y + products.z + products.w;
}

int add_unsigned(int x, int y, int sum)
{
    const int4 products = convert_int4(as_uchar4(x)) * convert_int4(as_char4(y));
    return sum + products.x + products.y + products.z + products.w;
}

