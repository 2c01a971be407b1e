/* Whether products may be computed in any order, and what reads them in columns: for gemm._memo. */
#ifndef GEMM_PYTHON_ORDER_H
#define GEMM_PYTHON_ORDER_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>
#include <stdint.h>

#include "../gemm.h" /* by its place: csrc/ has a complex.h, which NumPy must not find */

enum { MOST_ALIKE = 16384 }; /* products whose order is looked at together */

typedef void share_function(gemm_work *, void *, int64_t, double, double);

/* The bytes that a product's operands a, b, c and out lie at, from their first element, and whether c is read where it
 * lies by itself. */
typedef struct {
    ptrdiff_t low[4], high[4];
    int reads_c;
} reach;

/* What is written, by address. */
typedef struct {
    uintptr_t low, high;
} written;

/* Products: where they lie, and of what kind they are. */
typedef struct {
    const gemm_place *places;
    const char *reaches; /* the first kind's `reach`, and bytes to the next one's */
    size_t next_reach;
    const char *kinds; /* the first product's kind, an int, and bytes to the next one's; NULL: all are of kind 0 */
    size_t next_kind;
} products;

/* Whether the products from `start` to `stop`, MOST_ALIKE at most, may be computed in any order. `outs` is room for
 * twice as many; ns: what they will take. */
int gemm_independent(const products *all, int64_t start, int64_t stop, written *outs, share_function *share, double ns);

/* A product's operand in a column: a tuple or list of them, or what stands for all. Borrowed; NULL with an error set
 * where the column has ended. Touches nothing but memory where it has not: threads without the GIL may call it, while
 * another holds that. */
static inline PyObject *gemm_column_item(PyObject *column, Py_ssize_t product) {
    return PyList_Check(column)    ? PyList_GetItem(column, product)
           : PyTuple_Check(column) ? PyTuple_GetItem(column, product)
                                   : column;
}

/* Whether it is a tuple or list. */
static inline int gemm_column_lists(PyObject *column) {
    return PyList_Check(column) || PyTuple_Check(column);
}

/* The least number that threads have told each other. Threads there are only where these are; see csrc/driver/pool.c. */
static inline int64_t gemm_least(const int64_t *shared) {
#ifdef __GNUC__
    return __atomic_load_n(shared, __ATOMIC_RELAXED);
#else
    return *shared;
#endif
}

static inline void gemm_lower(int64_t *shared, int64_t to) {
#ifdef __GNUC__
    int64_t was = gemm_least(shared);
    while (to < was && !__atomic_compare_exchange_n(shared, &was, to, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
#else
    if (to < *shared) *shared = to;
#endif
}

#endif
