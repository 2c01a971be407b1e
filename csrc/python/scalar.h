/* Reads alpha and beta from Python objects, and rounds them. For gemm._memo. */
#ifndef GEMM_PYTHON_SCALAR_H
#define GEMM_PYTHON_SCALAR_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#include "../gemm.h" /* a relative path: NumPy must not find csrc/complex.h on the include path */

typedef enum { REAL, INTEGER, COMPLEX_NUMBER } number_class;

/* A number as the caller passed it. */
typedef struct {
    gemm_scalar value;
    number_class is;
} number;

/* A type to which scalars are rounded. `kind` is NumPy's dtype.kind; "V" is bfloat16. */
typedef struct {
    char kind;
    int bytes;
} number_type;

/* Reads a Python float, int or complex. Returns 0, without an error, for other objects and ints beyond int64. */
int gemm_read_number(PyObject *object, number *to);

/* Reads a type such as "f4". Returns 0 with an error set if the text names no type. */
int gemm_read_type(const char *text, number_type *to);

/* Rounds `from` to the type `to`, as NumPy does. Returns 0 in these cases: `from` is complex and `to` is not; `to` is
 * an integer type (or bool) that cannot hold `from` exactly; `to` is a floating-point or complex type, and `from` is an
 * integer beyond 2**53 in magnitude; gemm has no numbers of the type `to`. */
int gemm_round_number(const number *from, number_type to, gemm_scalar *rounded);

static inline int gemm_is_zero(const gemm_scalar *x) {
    return x->re == 0 && x->im == 0;
}

#endif
