/* Declarations that gemm._memo's files share. The files use only Python's limited API, so one build supports every
 * CPython from 3.10 on. */
#ifndef GEMM_PYTHON_MEMO_H
#define GEMM_PYTHON_MEMO_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL gemm_memo_numpy
#ifndef GEMM_IMPORTS_NUMPY /* only memo.c defines it */
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include <stdint.h>

#include "scalar.h"
#include "table.h"

/* The positions of a call's arguments: first the arrays (or None), then the numbers alpha and beta. */
enum { A, B, C, OUT, OPERANDS, BIAS = OPERANDS, ARRAYS, ALPHA = ARRAYS, BETA, GIVEN };
enum { SCALES = 2 };
enum { MOST_AXES = 4 }; /* operands with more axes are never cached */

/* In multiply-adds. For less work, releasing the GIL costs more time than it saves. */
static const double WORTH_RELEASING = 5e5;

/* The key of a product: for each array its type, number of axes, shape and strides in bytes. Unused words are 0. */
typedef struct {
    Py_ssize_t place;     /* 0: NumPy arrays on the host; else a number for the device and the class of the arrays */
    Py_ssize_t role_of_c; /* c is: 0 absent, 1 an array of its own, 2 `out` itself */
    /* Whether alpha is 0 (a and b are then not read), and whether beta is 0 (c is then not read). */
    Py_ssize_t zero[SCALES];
    Py_ssize_t type[ARRAYS], axes[ARRAYS], shape[ARRAYS][MOST_AXES], strides[ARRAYS][MOST_AXES];
} signature;

typedef struct {
    char *data;
    uintptr_t low, high; /* address of the first byte, and of the byte after the last one */
} extent;

/* Additional data for launches on a device. */
typedef struct {
    char form[3];                 /* format of alpha and of beta: one or two letters of Python's struct module */
    uintptr_t low_bits[OPERANDS]; /* bits that must be 0 in the operands' addresses */
    extent kept;                  /* b if it is prepacked; calls then pass None for b */
} device_part;

/* An entry of a Memo: the data with which products with the signature `key` are computed again. */
typedef struct {
    signature key;
    /* The engine's plan. NULL on a device. Also NULL for a product on the host that other code computes: only a Batch
     * uses such an entry. */
    const gemm_plan *plan;
    number_type rounds; /* the type to which alpha and beta are rounded */
    gemm_scalar alpha;  /* replaces an alpha of 0 in calls: 1 or -1, see _factors in gemm/frontend/arguments.py */
    PyObject *keep;     /* owner of the plan; on a device the Sequence; if `plan` is NULL on the host, the work */
    /* The dtype of a new result, or None if calls pass an out. On a device: a function that creates a result. */
    PyObject *make;
    PyObject *finish; /* adds the bias and applies the activation; NULL: neither */
    /* The dtype to which a and b are converted. If the result's dtype is narrower, sums are computed in `wide`, and
     * then rounded. NULL: no conversion. */
    PyObject *wide;
    int axes; /* number of axes of a new result */
    npy_intp shape[MOST_AXES];
    double work; /* in multiply-adds */
    device_part device;
} slot;

typedef int run_function(const gemm_plan *, const void *, const void *, const void *, void *, const gemm_scalar *,
                         const gemm_scalar *);

typedef struct {
    PyObject_HEAD run_function *run;
    PyObject *options; /* the options that all products of the Memo share, or None */
    /* The era in which the Memo's plans were chosen. An era ends when stored plans must no longer be used
     * (gemm._memo.forget). In any other era, the Memo knows no products. */
    PyObject *era;
    table slots;
} memo;

/* Finds the entry for a call's product; the pointer is valid until the Memo changes. Stores the operands' extents in
 * `at`, and the rounded alpha and beta in `scale`. Returns NULL without an error if the product is unknown. */
const slot *gemm_memo_find(const memo *self, PyObject *const *given, extent *at, gemm_scalar *scale);

/* Returns the plan with which the engine computes pending products (see gemm_batch_take) of the entry `known`. Returns
 * NULL if other code computes these products. */
static inline const gemm_plan *gemm_memo_plan(const slot *known) {
    return known->finish || known->wide ? NULL : known->plan;
}

/* Returns whether the Memo's plans were chosen in the current era. If not, the plans must not be used. */
int gemm_memo_holds(const memo *self);

/* Returns whether the operands have the signature `key`, which has no bias. Stores their addresses in `data`. The
 * caller must check that out does not overlap the other operands. */
int gemm_memo_alike(const signature *key, PyObject *const *operands, char **data);

/* Returns the array for the result of a product: operands[OUT], or a new array if that is None. The result is a new
 * reference. Stores the extent of a new array in at[OUT]. */
PyObject *gemm_memo_output(const slot *kind, PyObject *const *operands, extent *at);

/* Computes the product of the arguments `given`: a, b, c, out, bias (None: absent), alpha and beta. Returns the result,
 * a new reference. Returns NULL without an error if the Memo has no entry for this product. */
PyObject *gemm_memo_repeat(PyObject *memo, PyObject *const *given);

/* Returns whether two operands have no byte in common. */
static inline int gemm_apart(const extent *x, const extent *y) {
    return x->high <= y->low || y->high <= x->low;
}

/* The next three functions are for device arrays; see cuda_plan.c. gemm_device_read adds an array to the signature at
 * position `at`, and stores the array's extent. Returns 0 if the array cannot be read. */
int gemm_device_read(PyObject *array, int at, signature *key, extent *where);

/* Stores a device product's data; `from` is Memo.learn's argument `device`. Returns 0 with an error set on failure. */
int gemm_device_learn(PyObject *from, slot *to);

/* Enqueues the product. Returns its result, a new reference. Returns NULL without an error on failure; the Python code
 * then computes the product and reports the error. */
PyObject *gemm_device_repeat(const slot *known, PyObject *const *given, extent *at, const gemm_scalar *scale);

/* Empties front.c's table of options, and releases the table's references to Memos. */
void gemm_front_forget(void);

/* The number of Batches that threads have entered and not left. It is 0 during almost every call. */
extern int gemm_batches;

/* Like gemm_memo_repeat, except if the thread has entered a Batch. A product with little enough work is then pending:
 * the Batch computes it later, together with others. */
PyObject *gemm_batch_take(PyObject *memo, PyObject *const *given);

/* Computes the pending products of this thread's Batch; the thread then has no Batch until gemm_batch_resume. Returns
 * the Batch, a new reference; NULL if the thread has no Batch; or NULL with an error set if the computation failed. */
PyObject *gemm_batch_pause(void);
void gemm_batch_resume(PyObject *batch);

extern PyType_Spec gemm_memo_type, gemm_batch_type, gemm_sequence_type;
extern PyObject *gemm_sequences; /* the type gemm._memo.Sequence */
extern PyMethodDef gemm_front_methods[], gemm_batch_methods[], gemm_device_methods[];

#endif
