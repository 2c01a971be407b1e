/* alpha and beta as arguments of a call in C: for gemm._memo. */
#ifndef GEMM_PYTHON_SCALAR_H
#define GEMM_PYTHON_SCALAR_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#include "../gemm.h" /* by its place: csrc/ has a complex.h, which NumPy must not find */

typedef enum { REAL, INTEGER, COMPLEX_NUMBER } number_class;

/* A number as it was given. */
typedef struct {
    gemm_scalar value;
    number_class is;
} number;

/* What scalars are rounded to: kind as in NumPy's dtype.kind, "V" for bfloat16. */
typedef struct {
    char kind;
    int bytes;
} number_type;

/* Reads one of Python's own numbers; 0: it is none, or too large. No error is set. */
int gemm_read_number(PyObject *object, number *to);

/* The type that a text such as "f4" tells; 0 with an error set: it is none. */
int gemm_read_type(const char *text, number_type *to);

/* Rounds as NumPy does; 0: the type cannot hold it, or it may not scale such a product. */
int gemm_round_number(const number *from, number_type to, gemm_scalar *rounded);

static inline int gemm_is_zero(const gemm_scalar *x) {
    return x->re == 0 && x->im == 0;
}

#endif
