/* Declarations that the files of gemm._memo.Batch share. */
#ifndef GEMM_PYTHON_BATCH_H
#define GEMM_PYTHON_BATCH_H

#include "memo.h"
#include "order.h"

enum {
    /* The maximum numbers of pending products: MOST in general; MOST_NATIVE for CPU products, whose array headers
     * then stay in the CPU's cache; and MOST_ALIKE (order.h) for products of gemm_many that are stored as whole
     * columns: for each operand, one list, one tuple, or one object for all products. */
    MOST = 4096,
    MOST_NATIVE = 1024,
    FEW = 64,       /* with fewer products of one kind in sequence, products are added one by one */
    MOST_KINDS = 16 /* the maximum number of kinds of pending products */
};
static const double MOST_BYTES = 64e6; /* the maximum size of all pending products' operands, in bytes */
/* The maximum work of one pending product, in multiply-adds: on the CPU, and elsewhere. A larger product keeps a whole
 * CPU or device busy alone. */
static const double MOST_WORK = 2.1e6, MOST_WORK_ELSEWHERE = 1.4e8;

typedef int many_function(const gemm_plan *, int64_t, const gemm_place *, const gemm_scalar *, const gemm_scalar *);

/* Pending products of one kind have the same Memo, plan, signature, alpha and beta. */
typedef struct {
    slot what; /* a copy; the copy owns `keep` and `make` */
    memo *by;
    gemm_scalar scale[SCALES]; /* alpha and beta, rounded for the launch */
    PyObject *given[SCALES];   /* alpha and beta as the caller passed them */
    reach at;
    double bytes; /* total size of the operands of one product */
} kind;

typedef struct {
    int kind;
    PyObject *held[OPERANDS]; /* c may be NULL */
} entry;

typedef struct {
    kind kinds[MOST_KINDS];
    int kind_count;
    entry *entries;              /* NULL: all products are of kind 0, and their operands are in `columns` */
    PyObject *columns[OPERANDS]; /* product i has the operands `from` + i of the columns */
    Py_ssize_t from;
    gemm_place *places;
    Py_ssize_t count;
    double bytes;
} pending;

typedef struct {
    PyObject_HEAD many_function *run_many;
    share_function *share;
    PyObject *owner; /* owner.deliver() computes the pending products */
    int entered;     /* 1: this Batch is counted in gemm_batches */
    int open;        /* 1: products of gemm.gemm are added */
    pending now;
} batch;

static inline int gemm_kind_of(const pending *all, Py_ssize_t product) {
    return all->entries ? all->entries[product].kind : 0;
}

/* The estimated time of the engine for one product, in nanoseconds of a fast core. */
static inline double gemm_kind_ns(const kind *k) {
    return k->what.plan ? k->what.work / 50 : 0;
}

/* Returns the number of a kind of product, and adds the kind if it is new. The arguments are a call's operands and
 * what gemm_memo_find returned for them. Returns -1 if there are too many kinds. */
int gemm_kind_number(pending *all, memo *by, const slot *found, PyObject *const *given, const extent *at,
                     const gemm_scalar *scale);

/* Whether the operands make a product of kind `k`, and out does not overlap a, b or a separate c. Fills in the
 * addresses; the address of an out that is still to be created stays NULL. The function only reads memory: threads
 * without the GIL may call it while another thread holds the GIL. */
int gemm_kind_alike(const kind *k, PyObject *const *operands, gemm_place *place);

/* Like gemm_column_item. Also prefetches the arrays of later products, up to product `count`. */
PyObject *gemm_column_ahead(PyObject *column, Py_ssize_t product, Py_ssize_t count);

/* Adds the products from `start` on that are of one kind to a Batch without pending products, and stores their
 * results in the list. Returns the number of products. Returns 0 if the first product cannot be pending, or if the
 * work of all products is `most_work` or more. Returns -1 if an error is set. The caller must not change the
 * columns. */
Py_ssize_t gemm_columns_read(batch *self, memo *by, Py_ssize_t start, Py_ssize_t count, PyObject *const *columns,
                             PyObject *const *scales, PyObject *results, double most_work);

#endif
