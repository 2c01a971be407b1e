/* What the files of gemm._memo share. Limited API: one build serves every CPython from 3.10. */
#ifndef GEMM_PYTHON_MEMO_H
#define GEMM_PYTHON_MEMO_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL gemm_memo_numpy
#ifndef GEMM_IMPORTS_NUMPY /* one file does */
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include <stdint.h>

#include "scalar.h"
#include "table.h"

/* What a call brings: arrays, or None; and numbers. */
enum { A, B, C, OUT, OPERANDS, BIAS = OPERANDS, ARRAYS, ALPHA = ARRAYS, BETA, GIVEN };
enum { SCALES = 2 };
enum { MOST_AXES = 4 }; /* operands of more axes are always unknown */

static const double WORTH_RELEASING = 5e5; /* multiply-adds: below this, releasing the GIL costs more than it gives */

/* What a product is known by: for each array its axes, shape and strides, in bytes. Unused words are 0. */
typedef struct {
    Py_ssize_t place;        /* 0: the host, by NumPy's arrays; else a device, by arrays of another class */
    Py_ssize_t role_of_c;    /* absent, an array of its own, or `out` itself */
    Py_ssize_t zero[SCALES]; /* alpha is 0, so that a and b are not read; beta is 0, so that c is not */
    Py_ssize_t type[ARRAYS], axes[ARRAYS], shape[ARRAYS][MOST_AXES], strides[ARRAYS][MOST_AXES];
} signature;

typedef struct {
    char *data;
    uintptr_t low, high; /* its first byte, and one past its last */
} extent;

/* What launches on a device need besides. */
typedef struct {
    char form[3];                 /* what alpha and beta are packed as, each: letters of Python's struct */
    uintptr_t low_bits[OPERANDS]; /* that addresses must not have */
    extent kept;                  /* b, where it is prepared: then calls bring None for it */
} device_part;

/* A kind of product that a Memo has learned. */
typedef struct {
    signature key;
    const gemm_plan *plan; /* NULL: it is launched on a device, or computed elsewhere, and known to a Batch only */
    number_type rounds;    /* alpha and beta to this */
    gemm_scalar alpha;     /* instead of the call's, where that is 0 */
    PyObject *keep;        /* owns the plan; of a device the Sequence */
    PyObject *make;        /* the dtype of a new result, or None where calls bring an output; a device's makes one */
    PyObject *finish;      /* adds the bias and applies the activation; NULL: there is neither */
    PyObject *wide;        /* the dtype that a and b are converted to, and sums, if the result is narrower; or NULL */
    int axes;              /* of a new result */
    npy_intp shape[MOST_AXES];
    double work; /* multiply-adds */
    device_part device;
} slot;

typedef int run_function(const gemm_plan *, const void *, const void *, const void *, void *, const gemm_scalar *,
                         const gemm_scalar *);

typedef struct {
    PyObject_HEAD run_function *run;
    PyObject *options; /* of all its products, or None */
    PyObject *era;     /* in which its products were chosen; it knows none in another one */
    table slots;
} memo;

/* What the product of what a call brings is known by to a Memo, until that learns more, where its operands are, and its
 * alpha and beta as they are launched; NULL without an error: it is unknown. */
const slot *gemm_memo_find(const memo *self, PyObject *const *given, extent *at, gemm_scalar *scale);

/* The plan by which products of a kind may wait; NULL: others than the engine compute those that have waited. */
static inline const gemm_plan *gemm_memo_plan(const slot *known) {
    return known->finish || known->wide ? NULL : known->plan;
}

/* Whether a Memo's products may be repeated: nothing has been forgotten since they were chosen. */
int gemm_memo_holds(const memo *self);

/* Whether the operands are such as `key`, which has no bias, was read from, and their data; that out is apart is for the
 * caller to see. */
int gemm_memo_alike(const signature *key, PyObject *const *operands, char **data);

/* `out`, or a new array for the result of a kind; a new reference. Fills in where it is. */
PyObject *gemm_memo_output(const slot *kind, PyObject *const *operands, extent *at);

/* The product of a, b, c, out and bias (None: absent), alpha and beta, by a Memo that has learned one like it; a new reference.
 * NULL without an error where it has not. */
PyObject *gemm_memo_repeat(PyObject *memo, PyObject *const *given);

/* Whether two operands share no byte. */
static inline int gemm_apart(const extent *x, const extent *y) {
    return x->high <= y->low || y->high <= x->low;
}

/* For arrays on devices; see cuda_plan.c. Adds one to the signature; 0: it is none that is known. */
int gemm_device_read(PyObject *array, int at, signature *key, extent *where);

/* Reads what a kind of product needs besides; 0: an error is set. */
int gemm_device_learn(PyObject *from, slot *to);

/* The product, enqueued; NULL without an error: the long way meets what is wrong. */
PyObject *gemm_device_repeat(const slot *known, PyObject *const *given, extent *at, const gemm_scalar *scale);

/* Lets go of the Memos that gemm.gemm is known to ask. */
void gemm_front_forget(void);

/* How many Batches are there that some thread has entered: 0 for almost every call. */
extern int gemm_batches;

/* The product as gemm_memo_repeat, but asked for in a thread that may have entered a Batch, which then remembers it. */
PyObject *gemm_batch_take(PyObject *memo, PyObject *const *given);

/* Delivers what this thread's Batch has pending, and takes the thread out of it until gemm_batch_resume; the Batch, a
 * new reference, or NULL: there is none, or (an error is set) it failed. */
PyObject *gemm_batch_pause(void);
void gemm_batch_resume(PyObject *batch);

extern PyType_Spec gemm_memo_type, gemm_batch_type, gemm_sequence_type;
extern PyObject *gemm_sequences; /* the type */
extern PyMethodDef gemm_front_methods[], gemm_batch_methods[], gemm_device_methods[];

#endif
