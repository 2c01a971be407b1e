/* For gemm._memo: the check for independent products, and functions that read columns of operands (see batch.h). */
#ifndef GEMM_PYTHON_ORDER_H
#define GEMM_PYTHON_ORDER_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>
#include <stdint.h>

#include "../gemm.h" /* a relative path: NumPy must not find csrc/complex.h on the include path */

enum { MOST_ALIKE = 16384 }; /* the maximum number of products in one check */

typedef void share_function(gemm_work *, void *, int64_t, double, double);

/* For each operand (a, b, c, out) of a product: the offsets of its first byte, and of the byte after its last, from the
 * address of its first element. `low` is negative if a stride is. reads_c: c is read, and is not out. */
typedef struct {
    ptrdiff_t low[4], high[4];
    int reads_c;
} reach;

/* A range of addresses, from `low` to `high` (exclusive). */
typedef struct {
    uintptr_t low, high;
} written;

/* The addresses and kinds of a list of products. */
typedef struct {
    const gemm_place *places;
    const char *reaches; /* the `reach` of kind 0; the `reach` of kind i is i * `next_reach` bytes later */
    size_t next_reach;
    /* The kind of product 0, an int; the kind of product i is i * `next_kind` bytes later. NULL: all are of kind 0. */
    const char *kinds;
    size_t next_kind;
} products;

/* Returns whether the products `start` to `stop` - 1, at most MOST_ALIKE, may be computed in any order. `outs` is
 * working memory: two ranges per product. `share` is gemm_share. `ns` is the estimated time of computing the products
 * after this check, in nanoseconds. */
int gemm_independent(const products *all, int64_t start, int64_t stop, written *outs, share_function *share, double ns);

/* Returns a product's operand from a column: an item of a tuple or list, or the one object that is the operand of all
 * products. Returns a borrowed reference, or NULL with an error set if the column is too short. If the column is long
 * enough, the function only reads Python objects: threads without the GIL may call it while another thread holds the
 * GIL. */
static inline PyObject *gemm_column_item(PyObject *column, Py_ssize_t product) {
    return PyList_Check(column)    ? PyList_GetItem(column, product)
           : PyTuple_Check(column) ? PyTuple_GetItem(column, product)
                                   : column;
}

/* Returns whether a column is a tuple or list. */
static inline int gemm_column_lists(PyObject *column) {
    return PyList_Check(column) || PyTuple_Check(column);
}

/* Reads a number that several threads may lower at the same time. The engine has threads only if the compiler has the
 * atomic functions below; see csrc/driver/pool.c. */
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
