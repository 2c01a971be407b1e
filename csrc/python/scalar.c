/* See scalar.h. Numbers that these functions reject go to the Python code, which rounds them or raises an error. */
#include "scalar.h"

#include <math.h>
#include <string.h>

int gemm_read_number(PyObject *object, number *to) {
    memset(to, 0, sizeof *to);
    if (PyFloat_Check(object)) {
        to->value.re = PyFloat_AsDouble(object);
    } else if (PyLong_Check(object)) { /* bool is a subclass of int */
        int overflow;
        to->value.integer = PyLong_AsLongLongAndOverflow(object, &overflow);
        to->value.re = (double)to->value.integer, to->is = INTEGER;
        if (overflow) return 0;
    } else if (PyObject_TypeCheck(object, &PyComplex_Type)) {
        to->value.re = PyComplex_RealAsDouble(object), to->value.im = PyComplex_ImagAsDouble(object);
        to->is = COMPLEX_NUMBER;
    } else {
        return 0;
    }
    if (!PyErr_Occurred()) return 1;
    PyErr_Clear();
    return 0;
}

int gemm_read_type(const char *text, number_type *to) {
    to->kind = text[0], to->bytes = 0;
    for (const char *digit = text + !!text[0]; *digit >= '0' && *digit <= '9'; digit++)
        to->bytes = 10 * to->bytes + (*digit - '0');
    if (to->kind && strchr("biufcV", to->kind) && to->bytes >= 1 && to->bytes <= 16) return 1;
    PyErr_Format(PyExc_ValueError, "no type of numbers is called %s", text);
    return 0;
}

/* Rounds x to a floating-point type with `bits` bits of precision, the smallest normal exponent `least` and the largest
 * finite number `largest`. Larger results become infinite. */
static double narrow(double x, int bits, int least, double largest) {
    if (x == 0 || !isfinite(x)) return x;
    const int exponent = ilogb(x) > least ? ilogb(x) : least;
    const double rounded = ldexp(rint(ldexp(x, bits - 1 - exponent)), exponent - bits + 1);
    return fabs(rounded) > largest ? copysign(INFINITY, rounded) : rounded;
}

/* Rounds x to a float. `rounded` is volatile because GCC 12 omits the rounding if it converts two doubles at once. */
static double single(double x) {
    volatile float rounded = (float)x;
    return rounded;
}

static int round_integer(const number *from, number_type to, gemm_scalar *rounded) {
    static const double TOO_LARGE = 9223372036854775808.; /* 2^63 */
    int64_t x = from->value.integer;
    if (from->is == REAL) {
        if (!(fabs(from->value.re) < TOO_LARGE) || from->value.re != trunc(from->value.re)) return 0;
        x = (int64_t)from->value.re;
    }
    const int bits = to.kind == 'b' ? 1 : 8 * to.bytes - (to.kind == 'i');
    if ((to.kind != 'i' && x < 0) || (bits < 63 && (x >> bits) != (x < 0 ? -1 : 0))) return 0;
    rounded->re = (double)x, rounded->im = 0, rounded->integer = x;
    return 1;
}

int gemm_round_number(const number *from, number_type to, gemm_scalar *rounded) {
    static const int64_t EXACT = (int64_t)1 << 53;
    if (from->is == COMPLEX_NUMBER && to.kind != 'c') return 0;
    if (strchr("biu", to.kind)) return round_integer(from, to, rounded);
    if (from->is == INTEGER && (from->value.integer > EXACT || from->value.integer < -EXACT)) return 0;
    const double re = from->value.re, im = from->value.im;
    rounded->re = re, rounded->im = im, rounded->integer = 0;
    switch (to.kind == 'V' ? 0 : to.kind == 'c' ? to.bytes / 2 : to.bytes) {
    case 0: /* bfloat16: rounded to float32 first */
        rounded->re = narrow(single(re), 8, -126, 3.3895313892515355e38);
        return to.bytes == 2;
    case 2:
        rounded->re = narrow(re, 11, -14, 65504);
        return 1;
    case 4:
        rounded->re = single(re), rounded->im = single(im);
        return 1;
    case 8:
        return 1;
    default:
        return 0;
    }
}
