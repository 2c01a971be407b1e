/* What the files of gemm._memo.Batch share. */
#ifndef GEMM_PYTHON_BATCH_H
#define GEMM_PYTHON_BATCH_H

#include "memo.h"
#include "order.h"

enum {
    MOST = 4096,        /* pending products, */
    MOST_NATIVE = 1024, /* if they are the CPU's: their arrays' heads stay in its cache, */
                        /* and MOST_ALIKE if columns have them; */
    FEW = 64,           /* unless so few are alike that more are of other kinds; */
    MOST_KINDS = 16     /* and how many kinds of them, of ... */
};
static const double MOST_BYTES = 64e6; /* in all their operands; and multiply-adds, each: */
static const double MOST_WORK = 2.1e6, MOST_WORK_ELSEWHERE = 1.4e8; /* a larger one fills a CPU, or a device, alone */

typedef int many_function(const gemm_plan *, int64_t, const gemm_place *, const gemm_scalar *, const gemm_scalar *);

typedef struct {
    slot what; /* a copy, which owns `keep` and `make` */
    memo *by;
    gemm_scalar scale[SCALES]; /* alpha and beta as they are launched, */
    PyObject *given[SCALES];   /* and as they were given */
    reach at;
    double bytes; /* of all operands */
} kind;

typedef struct {
    int kind;
    PyObject *held[OPERANDS]; /* c may be NULL */
} entry;

typedef struct {
    kind kinds[MOST_KINDS];
    int kind_count;
    entry *entries;              /* NULL: products are of kind 0, and ... */
    PyObject *columns[OPERANDS]; /* have their operands here, from number `from` on */
    Py_ssize_t from;
    gemm_place *places;
    Py_ssize_t count;
    double bytes;
} pending;

typedef struct {
    PyObject_HEAD many_function *run_many;
    share_function *share;
    PyObject *owner; /* whose `deliver` computes what is pending */
    int entered;     /* counts among gemm_batches */
    int open;        /* gemm.gemm's products are remembered */
    pending now;
} batch;

static inline int gemm_kind_of(const pending *all, Py_ssize_t product) {
    return all->entries ? all->entries[product].kind : 0;
}

/* What the engine will take for a product, in nanoseconds of a fast core. */
static inline double gemm_kind_ns(const kind *k) {
    return k->what.plan ? k->what.work / 50 : 0;
}

/* The number of a kind of product, known from now on, by what a call brings and what gemm_memo_find has told of it; -1:
 * there are too many. */
int gemm_kind_number(pending *all, memo *by, const slot *found, PyObject *const *given, const extent *at,
                     const gemm_scalar *scale);

/* Whether the operands' product is of a kind, and its out apart from the others; fills in where they are, but for an
 * out that is to be made. Touches nothing but memory: threads without the GIL may call it, while another holds that. */
int gemm_kind_alike(const kind *k, PyObject *const *operands, gemm_place *place);

/* gemm_column_item, which brings what will be read soon of those up to number `count`. */
PyObject *gemm_column_ahead(PyObject *column, Py_ssize_t product, Py_ssize_t count);

/* Makes pending, in a Batch that has nothing pending, the products from `start` on that are of one kind, and puts their
 * results in the list; 0 where the first few are not, or where all would be more than `most_work`. -1: an error is set.
 * Columns must stay as they are. */
Py_ssize_t gemm_columns_read(batch *self, memo *by, Py_ssize_t start, Py_ssize_t count, PyObject *const *columns,
                             PyObject *const *scales, PyObject *results, double most_work);

#endif
