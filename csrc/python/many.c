/* Reads the operands of gemm.gemm_many, on several threads.
 *
 * Loading the headers of three arrays from memory takes longer than a product of 16 x 16 matrices. While the caller
 * holds the GIL, no other thread changes an array or a list of arrays. Therefore the engine's threads, which never take
 * the GIL, read arrays and lists directly from memory. They compare types, shapes, strides and flags with those of the
 * first product, and store the addresses of the data. They take no references to the arrays, because the columns (see
 * batch.h) keep the arrays alive until all products are computed. Reading ends at the first product of another kind.
 */
#include "batch.h"

enum { RUN = 128 }; /* products per job */
/* Nanoseconds to load the header of one array from memory, while other headers are loaded at the same time. */
static const double HEAD_NS = 12;

typedef struct {
    const kind *what;
    PyObject *const *columns; /* each column has enough items: reading past the end would raise a Python error */
    gemm_place *places;
    int64_t from; /* the position in the columns of the first product to read */
    /* count: number of products to read. odd: the index of the first product of another kind, or `count` if there is
     * none; any thread may lower `odd`. */
    int64_t count, odd;
} reading;

static void read_some(void *context, int64_t job, int slot) {
    reading *all = (reading *)context;
    const int64_t start = job * RUN, stop = start + RUN < all->count ? start + RUN : all->count;
    (void)slot;
    if (gemm_least(&all->odd) <= start) return;
    for (int64_t i = start; i < stop; i++) {
        PyObject *operands[OPERANDS];
        for (int operand = 0; operand < OPERANDS; operand++)
            operands[operand] = gemm_column_ahead(all->columns[operand], all->from + i, all->from + all->count);
        if (gemm_kind_alike(all->what, operands, &all->places[i])) continue;
        gemm_lower(&all->odd, i);
        return;
    }
}

static void fetch(const void *what) {
#ifdef __GNUC__
    __builtin_prefetch(what);
#else
    (void)what;
#endif
}

PyObject *gemm_column_ahead(PyObject *column, Py_ssize_t product, Py_ssize_t count) {
    /* How many products ahead the headers (OBJECT) and the shapes (SHAPE) of arrays are prefetched. */
    enum { OBJECT = 12, SHAPE = 6 };
    if (gemm_column_lists(column) && product + OBJECT < count) {
        PyObject *shape = gemm_column_item(column, product + SHAPE);
        fetch(gemm_column_item(column, product + OBJECT));
        if (PyArray_CheckExact(shape)) fetch(PyArray_DIMS((PyArrayObject *)shape));
    }
    return gemm_column_item(column, product);
}

/* Stores the addresses of up to `count` products from `start` on, as long as they are of the kind `what`. Returns the
 * number of products that were stored. */
static Py_ssize_t read_columns(const kind *what, Py_ssize_t start, Py_ssize_t count, PyObject *const *columns,
                               gemm_place *places, share_function *share) {
    Py_ssize_t done = 0, step = FEW; /* the first few are read separately: if their kinds differ, no thread is woken */
    for (int alike = 1; alike && done < count; step = count) {
        reading all = {what, columns, places + done, start + done, count - done < step ? count - done : step, 0};
        int listed = 0;
        for (int operand = 0; operand < OPERANDS; operand++) listed += gemm_column_lists(columns[operand]);
        all.odd = all.count;
        share(read_some, &all, (all.count + RUN - 1) / RUN, HEAD_NS * (double)all.count * listed,
              gemm_kind_ns(what) * (double)(done + all.count));
        done += all.odd;
        alike = all.odd == all.count;
    }
    return done;
}

/* Creates the results of the products that were read. `first` is the first product's result, which exists already.
 * Returns 0 with an error set on failure. */
static int make_results(const kind *what, PyObject *first, Py_ssize_t start, Py_ssize_t count, gemm_place *places,
                        PyObject *results) {
    PyObject *const none[OPERANDS] = {Py_None, Py_None, Py_None, Py_None};
    for (Py_ssize_t i = 0; i < count; i++) {
        extent made[OPERANDS];
        PyObject *result = first;
        if (i)
            result = gemm_memo_output(&what->what, none, made);
        else
            Py_INCREF(first);
        if (!result) return 0;
        places[i].out = PyArray_BYTES((PyArrayObject *)result);
        if (PyList_SetItem(results, start + i, result)) return 0;
    }
    return 1;
}

Py_ssize_t gemm_columns_read(batch *self, memo *by, Py_ssize_t start, Py_ssize_t count, PyObject *const *columns,
                             PyObject *const *scales, PyObject *results, double most_work) {
    PyObject *given[GIVEN] = {[BIAS] = Py_None, [ALPHA] = scales[0], [BETA] = scales[1]};
    extent at[ARRAYS];
    gemm_scalar scale[SCALES];
    pending *now = &self->now;
    /* If an earlier product failed before it became pending, its kind or the memory for entries is still there. */
    if (now->kind_count || now->entries) return 0;
    for (int operand = 0; operand < OPERANDS; operand++)
        if (!(given[operand] = gemm_column_item(columns[operand], start))) return -1;
    const slot *found = gemm_memo_find(by, given, at, scale);
    if (!found || !gemm_memo_plan(found) || found->work > MOST_WORK) return 0;
    if (found->work * (double)(count - start) >= most_work) return 0;
    const kind *what = &now->kinds[gemm_kind_number(now, by, found, given, at, scale)];
    PyObject *first = gemm_memo_output(&what->what, given, at);
    if (!first) return -1;
    count = count - start < MOST_ALIKE ? count - start : MOST_ALIKE;
    if (what->bytes * (double)count > MOST_BYTES) count = 1 + (Py_ssize_t)(MOST_BYTES / what->bytes);
    now->places = (gemm_place *)PyMem_Malloc((size_t)count * sizeof(gemm_place));
    if (!now->places) PyErr_NoMemory();
    Py_ssize_t read = now->places ? read_columns(what, start, count, columns, now->places, self->share) : -1;
    const int make = given[OUT] == Py_None;
    if (read >= 0 && make && !make_results(what, first, start, read, now->places, results)) read = -1;
    Py_DECREF(first);
    if (read < 0) {
        PyMem_Free(now->places);
        now->places = NULL;
        return -1;
    }
    for (int operand = 0; operand < OPERANDS; operand++) {
        now->columns[operand] = operand == OUT ? results : columns[operand];
        Py_INCREF(now->columns[operand]);
    }
    now->from = start, now->count = read, now->bytes = what->bytes * (double)read;
    return read;
}
