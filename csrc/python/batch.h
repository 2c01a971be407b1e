/* Declarations that the files of gemm._memo.Batch share. */
#ifndef GEMM_PYTHON_BATCH_H
#define GEMM_PYTHON_BATCH_H

#include "memo.h"
#include "order.h"

enum {
    /* Maximum numbers of pending products. MOST: in general. MOST_NATIVE: for CPU products, whose array headers then
     * stay in the CPU's cache. MOST_ALIKE (order.h): for products of gemm_many that are stored as columns. A column is
     * a list or tuple with one operand per product, or one object that is the operand of all products. */
    MOST = 4096,
    MOST_NATIVE = 1024,
    FEW = 64,       /* fewer consecutive products of one kind are not stored as columns, but one by one */
    MOST_KINDS = 16 /* the maximum number of kinds of pending products */
};
static const double MOST_BYTES = 64e6; /* the maximum size of all pending products' operands, in bytes */
/* The maximum work of one pending product, in multiply-adds: MOST_WORK if the engine computes the product, else
 * MOST_WORK_ELSEWHERE. A larger product alone keeps a whole CPU or device busy. */
static const double MOST_WORK = 2.1e6, MOST_WORK_ELSEWHERE = 1.4e8;

typedef int many_function(const gemm_plan *, int64_t, const gemm_place *, const gemm_scalar *, const gemm_scalar *);

/* Pending products of one kind have the same Memo, plan, signature, alpha and beta. */
typedef struct {
    slot what; /* a copy of the Memo's entry; it owns references to `keep` and `make` */
    memo *by;
    gemm_scalar scale[SCALES]; /* alpha and beta, rounded for the computation */
    PyObject *given[SCALES];   /* alpha and beta as the caller passed them */
    reach at;                  /* the bytes that operands of this kind occupy */
    double bytes;              /* total size of the operands of one product */
} kind;

typedef struct {
    int kind;
    PyObject *held[OPERANDS]; /* owned references; NULL for a missing c */
} entry;

typedef struct {
    kind kinds[MOST_KINDS];
    int kind_count;
    entry *entries;              /* NULL: all products are of kind 0, and their operands are in `columns` */
    PyObject *columns[OPERANDS]; /* the operands of product i are item `from` + i of each column */
    Py_ssize_t from;
    gemm_place *places;
    Py_ssize_t count;
    double bytes;
} pending;

typedef struct {
    PyObject_HEAD many_function *run_many;
    share_function *share;
    PyObject *owner; /* owner.deliver() computes the pending products */
    int entered;     /* 1: gemm_batches counts this Batch */
    int open;        /* 1: products of gemm.gemm become pending */
    pending now;
} batch;

static inline int gemm_kind_of(const pending *all, Py_ssize_t product) {
    return all->entries ? all->entries[product].kind : 0;
}

/* Returns the estimated time of one product in the engine on one fast core, in nanoseconds. Returns 0 if other code
 * computes the products. */
static inline double gemm_kind_ns(const kind *k) {
    return k->what.plan ? k->what.work / 50 : 0;
}

/* Returns the number of a product's kind, and adds the kind if it is new. `given` are a call's arguments; `found`, `at`
 * and `scale` are the results of gemm_memo_find for them. Returns -1 if there are too many kinds. */
int gemm_kind_number(pending *all, memo *by, const slot *found, PyObject *const *given, const extent *at,
                     const gemm_scalar *scale);

/* Returns whether the operands form a product of kind `k` whose out does not overlap a, b or a separate c. Stores the
 * operands' addresses in `place`; place->out is NULL if out is still to be created. The function only reads Python
 * objects: threads without the GIL may call it while another thread holds the GIL. */
int gemm_kind_alike(const kind *k, PyObject *const *operands, gemm_place *place);

/* Like gemm_column_item. Also prefetches the headers of two later arrays of products before product `count`. */
PyObject *gemm_column_ahead(PyObject *column, Py_ssize_t product, Py_ssize_t count);

/* Adds products of the columns to the Batch `self`, which must have no pending products. The first is product number
 * `start`. The last is number `count` - 1, or an earlier product if the next product is of another kind or would exceed
 * MOST_ALIKE or MOST_BYTES. Stores new results in the list `results`. The columns must not change until the products
 * are computed.
 *
 * Returns the number of added products. It is 0 if product `start` cannot be pending, or if `count` - `start` products
 * like it have `most_work` multiply-adds or more. Returns -1 with an error set on failure. */
Py_ssize_t gemm_columns_read(batch *self, memo *by, Py_ssize_t start, Py_ssize_t count, PyObject *const *columns,
                             PyObject *const *scales, PyObject *results, double most_work);

#endif
