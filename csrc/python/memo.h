/* What the files of gemm._memo share. Limited API: one build serves every CPython from 3.10. */
#ifndef GEMM_PYTHON_MEMO_H
#define GEMM_PYTHON_MEMO_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

enum { A, B, C, OUT, OPERANDS };

/* The product of the operands a, b, c and out (None: absent), by a Memo that has learned one like it; a new reference.
 * NULL without an error where it has not. */
PyObject *gemm_memo_repeat(PyObject *memo, PyObject *const *operands);

extern PyType_Spec gemm_memo_type;
extern PyMethodDef gemm_front_methods[];

#endif
