/* gemm._memo.Batch: products that are called one by one and computed together. A product that was called but is not yet
 * computed is pending.
 *
 * A product can be pending if a Memo knows it. A Batch stores the addresses of the product's arrays and the number of
 * the product's kind. Products of one kind differ only in their arrays (see `kind` in batch.h). `run` computes all
 * products of one kind in one pass of the engine, shared among threads. Products may be computed in any order if no
 * product reads or writes memory that another product writes (order.c). If this does not hold, `run` cuts the products
 * into pieces of MOST_NATIVE products (or into two halves, if there are at most MOST_NATIVE), computes the pieces in
 * order, and applies the same rule to each piece. If each product depends on the one before, products are therefore
 * computed one by one, in the order of the calls.
 *
 * For gemm.gemm_many, a Batch stores products of one kind together, as columns: the list of all a, the list of all b,
 * and so on (many.c). It stores products one by one if their kinds differ.
 *
 * A thread's Batch is stored in the dictionary of the thread's state. Therefore the Batch is released when the thread
 * ends.
 */
#include "batch.h"

#include <math.h>
#include <string.h>

/* The work, in multiply-adds, from which a device may be faster than the CPU. For less work, `goes` is not called. */
static const double ASKED_FROM = 5e7;

int gemm_batches;
static PyObject *thread_key;

/* Returns this thread's Batch, a borrowed reference, or NULL. */
static batch *mine(void) {
    PyObject *state = gemm_batches ? PyThreadState_GetDict() : NULL; /* borrowed */
    return state ? (batch *)PyDict_GetItemWithError(state, thread_key) : NULL;
}

/* Makes `fresh` this thread's Batch. If `fresh` is NULL, the thread then has no Batch. Returns 0 with an error set on
 * failure. */
static int set_mine(PyObject *fresh) {
    PyObject *state = PyThreadState_GetDict();
    if (!thread_key) thread_key = PyUnicode_InternFromString("gemm.Batch");
    if (!state || !thread_key) return 0;
    if (fresh) return !PyDict_SetItem(state, thread_key, fresh);
    const int there = PyDict_Contains(state, thread_key);
    return there == 0 || (there == 1 && !PyDict_DelItem(state, thread_key));
}

static int deliver(batch *self) {
    PyObject *done = PyObject_CallMethod(self->owner, "deliver", NULL);
    Py_XDECREF(done);
    return done != NULL;
}

PyObject *gemm_batch_pause(void) {
    batch *self = mine();
    if (!self) return NULL;
    Py_INCREF(self);
    if (deliver(self) && set_mine(NULL)) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

void gemm_batch_resume(PyObject *self) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace); /* keep the error, if any, of the product that has just been computed */
    if (!set_mine(self)) PyErr_WriteUnraisable(self);
    PyErr_Restore(type, value, trace);
    Py_DECREF(self);
}

int gemm_kind_number(pending *all, memo *by, const slot *found, PyObject *const *given, const extent *at,
                     const gemm_scalar *scale) {
    for (int i = all->kind_count; i-- > 0;)
        if (all->kinds[i].by == by && all->kinds[i].what.plan == gemm_memo_plan(found) &&
            !memcmp(all->kinds[i].scale, scale, sizeof all->kinds[i].scale) &&
            !memcmp(&all->kinds[i].what.key, &found->key, sizeof found->key))
            return i;
    if (all->kind_count == MOST_KINDS) return -1;
    kind *fresh = &all->kinds[all->kind_count];
    fresh->what = *found, fresh->what.plan = gemm_memo_plan(found), fresh->by = by, fresh->bytes = 0,
    fresh->at.reads_c = found->key.role_of_c == 1;
    for (int i = 0; i < OPERANDS; i++) {
        fresh->at.low[i] = (ptrdiff_t)(at[i].low - (uintptr_t)at[i].data);
        fresh->at.high[i] = (ptrdiff_t)(at[i].high - (uintptr_t)at[i].data);
        fresh->bytes += (double)(at[i].high - at[i].low);
    }
    for (int i = 0; i < SCALES; i++) {
        fresh->scale[i] = scale[i], fresh->given[i] = given[ALPHA + i];
        Py_INCREF(fresh->given[i]);
    }
    Py_INCREF(found->keep);
    Py_INCREF(found->make);
    Py_INCREF(by);
    return all->kind_count++;
}

static int make_room(pending *all) {
    if (!all->entries) all->entries = (entry *)PyMem_Malloc(MOST * sizeof(entry));
    if (!all->places) all->places = (gemm_place *)PyMem_Malloc(MOST * sizeof(gemm_place));
    if (all->entries && all->places) return 1;
    PyErr_NoMemory();
    return 0;
}

/* Results of `add`. FAILED: an error is set. UNKNOWN: the Memo does not know the product. LARGE: the product must be
 * computed at once. ADDED: the product is pending. */
enum { FAILED = -1, UNKNOWN, LARGE, ADDED };

/* Appends a product of a known kind to the pending products. `out` is the array for its result. */
static void put(pending *all, int number, PyObject *const *operands, PyObject *out, const gemm_place *place) {
    entry *last = &all->entries[all->count];
    *last = (entry){number, {operands[A], operands[B], operands[C] == Py_None ? NULL : operands[C], out}};
    Py_INCREF(operands[A]);
    Py_INCREF(operands[B]);
    Py_XINCREF(last->held[C]);
    Py_INCREF(out);
    all->places[all->count++] = *place;
    all->bytes += all->kinds[number].bytes;
}

int gemm_kind_alike(const kind *k, PyObject *const *operands, gemm_place *place) {
    char *data[OPERANDS];
    if (!gemm_memo_alike(&k->what.key, operands, data)) return 0;
    *place = (gemm_place){data[A], data[B], k->what.key.zero[1] ? NULL : data[C], NULL};
    if (operands[OUT] == Py_None) return 1;
    place->out = data[OUT];
    const char *low = data[OUT] + k->at.low[OUT], *high = data[OUT] + k->at.high[OUT];
    for (int i = A; i <= (k->at.reads_c ? C : B); i++)
        if (data[i] + k->at.low[i] < high && low < data[i] + k->at.high[i]) return 0;
    return 1;
}

/* Like `add`, for a product of the same kind as the last pending product. Returns 0 for a product of another kind. */
static int add_alike(pending *all, const memo *by, PyObject *const *given, PyObject **result) {
    if (!all->count) return 0;
    const int number = all->entries[all->count - 1].kind;
    const kind *k = &all->kinds[number];
    gemm_place place;
    if (k->by != by || k->given[0] != given[ALPHA] || k->given[1] != given[BETA]) return 0;
    if (!gemm_kind_alike(k, given, &place)) return 0;
    extent made[OPERANDS];
    PyObject *out = gemm_memo_output(&k->what, given, made);
    if (!out) return FAILED;
    if (given[OUT] == Py_None) place.out = made[OUT].data;
    put(all, number, given, out, &place);
    *result = out;
    return ADDED;
}

/* Adds a product to the pending products. `result` receives the product's result array, a new reference. */
static int add(batch *self, memo *by, PyObject *const *given, PyObject **result) {
    extent at[ARRAYS];
    gemm_scalar scale[SCALES];
    if (given[BIAS] != Py_None) return LARGE; /* a product with a bias cannot be pending */
    const int most = self->now.kind_count && self->now.kinds[0].what.plan ? MOST_NATIVE : MOST;
    const int columns =
        self->now.count && !self->now.entries; /* 1: after an exception, products are still stored as columns */
    if ((columns || self->now.count >= most || self->now.bytes > MOST_BYTES) && !deliver(self)) return FAILED;
    if (!gemm_memo_holds(by)) return UNKNOWN;
    const int alike = add_alike(&self->now, by, given, result);
    if (alike) return alike;
    const slot *found = gemm_memo_find(by, given, at, scale);
    if (!found) return UNKNOWN;
    if (found->work > (gemm_memo_plan(found) ? MOST_WORK : MOST_WORK_ELSEWHERE)) return LARGE;
    pending *all = &self->now;
    if (!make_room(all)) return FAILED;
    const int number = gemm_kind_number(all, by, found, given, at, scale);
    if (number < 0) return deliver(self) ? add(self, by, given, result) : FAILED;
    const slot *known = &all->kinds[number].what; /* use this copy, because another thread's `learn` may move `found` */
    PyObject *out = gemm_memo_output(known, given, at);
    if (!out) return FAILED;
    const char *c = known->key.zero[1] ? NULL : at[C].data;
    put(all, number, given, out, &(gemm_place){at[A].data, at[B].data, c, at[OUT].data});
    *result = out;
    return ADDED;
}

PyObject *gemm_batch_take(PyObject *by, PyObject *const *given) {
    batch *self = mine();
    if (!self) return gemm_memo_repeat(by, given);
    Py_INCREF(self);
    PyObject *result = NULL;
    const int done = self->open ? add(self, (memo *)by, given, &result) : LARGE;
    if (done == LARGE && deliver(self)) result = gemm_memo_repeat(by, given);
    Py_DECREF(self);
    return result;
}

/* The callbacks of one call of `run`. `goes` returns whether `send`, not the engine, computes a group of products of
 * one kind. `retry` computes a group for which the engine had no memory.
 *
 * If `goes` is NULL, the engine computes all products. The GIL is then not released: at_once holds no references to the
 * operands, so another thread could free them. */
typedef struct {
    PyObject *goes, *send, *retry;
} others;

/* The pending products of kind `number` among the products `start` to `stop` - 1. first: the index of the first one.
 * count: how many there are. */
typedef struct {
    const pending *all;
    int number;
    Py_ssize_t start, stop, first, count;
} group;

static group group_of(const pending *all, int number, Py_ssize_t start, Py_ssize_t stop) {
    group some = {all, number, start, stop, start, all->kind_count == 1 ? stop - start : 0};
    for (Py_ssize_t i = stop; i-- > start && all->kind_count > 1;)
        if (gemm_kind_of(all, i) == number) some.first = i, some.count++;
    return some;
}

/* Stores borrowed references to a product's operands (c may be None). Returns 0 with an error set if a column is too
 * short. */
static int operands_of(const pending *all, Py_ssize_t product, PyObject **operands) {
    for (int operand = 0; operand < OPERANDS; operand++) {
        if (!all->entries) {
            operands[operand] = gemm_column_item(all->columns[operand], all->from + product);
            if (!operands[operand]) return 0;
            continue;
        }
        PyObject *held = all->entries[product].held[operand];
        operands[operand] = held ? held : Py_None;
    }
    return 1;
}

/* Calls `function`, a callback of `others`, with the products of `some`. Returns 0 with an error set on failure. */
static int call_others(PyObject *function, const group *some) {
    const pending *all = some->all;
    PyObject *numbers = PyList_New(some->count), *products = PyList_New(some->count), *done = NULL;
    int ready = numbers && products;
    for (Py_ssize_t i = some->start, at = 0; ready && i < some->stop; i++) {
        PyObject *x[OPERANDS];
        if (gemm_kind_of(all, i) != some->number) continue;
        PyObject *number = PyLong_FromSsize_t(i);
        PyObject *product = operands_of(all, i, x) ? PyTuple_Pack(OPERANDS, x[A], x[B], x[C], x[OUT]) : NULL;
        ready = number && product;
        if (number) PyList_SetItem(numbers, at, number);
        if (product) PyList_SetItem(products, at++, product);
    }
    const kind *k = &all->kinds[some->number];
    if (ready)
        done =
            PyObject_CallFunctionObjArgs(function, k->by->options, k->given[0], k->given[1], numbers, products, NULL);
    Py_XDECREF(numbers);
    Py_XDECREF(products);
    Py_XDECREF(done);
    return done != NULL;
}

/* Returns whether the callback `send` computes the products of `some`; -1 with an error set on failure. */
static int goes(const others *by, const group *some) {
    const kind *k = &some->all->kinds[some->number];
    if (!by->goes) return 0;
    if (!k->what.plan) return 1;
    if (k->what.work * (double)some->count < ASKED_FROM) return 0;
    PyObject *x[OPERANDS], *size = PyLong_FromSsize_t(some->count), *answer = NULL;
    if (size && operands_of(some->all, some->first, x))
        answer = PyObject_CallFunctionObjArgs(by->goes, k->by->options, k->given[0], k->given[1], size, x[A], x[B],
                                              x[C], x[OUT], NULL);
    const int yes = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(size);
    Py_XDECREF(answer);
    return yes;
}

/* Buffers for one call of `run`. `outs` has two elements for each pending product, `places` has one. `places` is NULL
 * if all products are of one kind. */
typedef struct {
    written *outs;
    gemm_place *places;
} scratch;

static int compute_independent(const batch *self, const pending *all, Py_ssize_t start, Py_ssize_t stop,
                               const others *by, const scratch *in) {
    for (int number = 0; number < all->kind_count; number++) {
        const kind *k = &all->kinds[number];
        const group some = group_of(all, number, start, stop);
        if (!some.count) continue;
        const int away = goes(by, &some);
        if (away < 0 || (away && !call_others(by->send, &some))) return 0;
        if (away) continue;
        const gemm_place *places = all->places + start;
        if (some.count < stop - start) {
            Py_ssize_t count = 0;
            for (Py_ssize_t i = start; i < stop; i++)
                if (gemm_kind_of(all, i) == number) in->places[count++] = all->places[i];
            places = in->places;
        }
        const int keep = !by->goes || k->what.work * (double)some.count < WORTH_RELEASING;
        PyThreadState *state = keep ? NULL : PyEval_SaveThread();
        const int status = self->run_many(k->what.plan, some.count, places, &k->scale[0], &k->scale[1]);
        if (state) PyEval_RestoreThread(state);
        if (status != GEMM_OK && !call_others(by->retry, &some)) return 0;
    }
    return 1;
}

static int independent(const batch *self, const pending *all, Py_ssize_t start, Py_ssize_t stop, written *outs) {
    const products listed = {all->places, (const char *)&all->kinds[0].at, sizeof all->kinds[0],
                             all->entries ? (const char *)&all->entries[0].kind : NULL, sizeof all->entries[0]};
    const double ns = gemm_kind_ns(&all->kinds[0]) * (double)(stop - start);
    return gemm_independent(&listed, start, stop, outs, self->share, ns);
}

static int compute(const batch *self, const pending *all, Py_ssize_t start, Py_ssize_t stop, const others *by,
                   const scratch *in) {
    if (stop - start < 2 || independent(self, all, start, stop, in->outs))
        return compute_independent(self, all, start, stop, by, in);
    const Py_ssize_t piece = stop - start > MOST_NATIVE ? MOST_NATIVE : (stop - start + 1) / 2;
    for (Py_ssize_t at = start; at < stop; at += piece)
        if (!compute(self, all, at, stop - at < piece ? stop : at + piece, by, in)) return 0;
    return 1;
}

static void let_go(pending *all) {
    for (Py_ssize_t i = 0; i < all->count && all->entries; i++)
        for (int operand = 0; operand < OPERANDS; operand++) Py_XDECREF(all->entries[i].held[operand]);
    for (int operand = 0; operand < OPERANDS; operand++) Py_XDECREF(all->columns[operand]);
    for (int i = 0; i < all->kind_count; i++) {
        Py_DECREF(all->kinds[i].what.keep);
        Py_DECREF(all->kinds[i].what.make);
        Py_DECREF(all->kinds[i].by);
        for (int scale = 0; scale < SCALES; scale++) Py_DECREF(all->kinds[i].given[scale]);
    }
    PyMem_Free(all->entries);
    PyMem_Free(all->places);
}

/* Computes the pending products. Returns 0 with an error set on failure. */
static int run(batch *self, const others *by) {
    pending *all = (pending *)PyMem_Malloc(sizeof *all);
    if (!all) return PyErr_NoMemory() != NULL;
    *all = self->now; /* products that are called during this run are pending for the next run */
    memset(&self->now, 0, sizeof self->now);
    const size_t count = (size_t)all->count;
    const int mixed = all->kind_count > 1;
    const scratch in = {(written *)PyMem_Malloc(2 * count * sizeof(written)),
                        mixed ? (gemm_place *)PyMem_Malloc(count * sizeof(gemm_place)) : NULL};
    const int good = in.outs && (in.places || !mixed) && compute(self, all, 0, all->count, by, &in);
    if (!good && !PyErr_Occurred()) PyErr_NoMemory();
    PyMem_Free(in.outs);
    PyMem_Free(in.places);
    let_go(all);
    PyMem_Free(all);
    return good;
}

PyDoc_STRVAR(run_doc, "run(goes, send, retry, /)\n--\n\n"
                      "Compute the pending products.\n"
                      "\n"
                      "goes(options, alpha, beta, count, a, b, c, out): whether `send` shall compute `count` products "
                      "like this one. It is not asked about products that were learned without a plan: `send` always "
                      "computes those.\n"
                      "send(options, alpha, beta, numbers, products): computes the products, each (a, b, c or None, "
                      "out). `numbers` are their positions in the order of the calls.\n"
                      "retry: takes the same arguments, for products for which the engine had no memory.\n"
                      "An exception that one of the three raises ends the run. The products that would have come later "
                      "are then not computed.");

static PyObject *batch_run(PyObject *object, PyObject *arguments) {
    batch *self = (batch *)object;
    others by;
    if (!PyArg_ParseTuple(arguments, "OOO:run", &by.goes, &by.send, &by.retry)) return NULL;
    if (self->now.count && !run(self, &by)) return NULL;
    Py_RETURN_NONE;
}

/* Returns the number of operands in a column, or -1 if the column is one operand for all products. */
static Py_ssize_t length_of(PyObject *column) {
    return PyList_Check(column) ? PyList_Size(column) : PyTuple_Check(column) ? PyTuple_Size(column) : -1;
}

PyDoc_STRVAR(at_once_doc,
             "at_once(memo, count, a, b, c, out, alpha, beta, retry, /)\n--\n\n"
             "Compute `count` products while the GIL is held, if all are of one kind and few enough; else "
             "compute nothing.\n"
             "\n"
             "a, b, c and out are lists or tuples of `count` arrays, or one array (or None) for all products. "
             "No references to the arrays are taken, because that would take longer than the products. retry: "
             "as for `run`.\n"
             "Returns the results (`out` itself, or a list), or None if nothing was computed.");

static PyObject *batch_at_once(PyObject *object, PyObject *arguments) {
    batch *self = (batch *)object;
    PyObject *by, *columns[OPERANDS], *scales[SCALES];
    Py_ssize_t count;
    others retries = {NULL, NULL, NULL};
    if (!PyArg_ParseTuple(arguments, "OnOOOOOOO:at_once", &by, &count, &columns[A], &columns[B], &columns[C],
                          &columns[OUT], &scales[0], &scales[1], &retries.retry))
        return NULL;
    int fits = count > 0 && count <= MOST_ALIKE && !self->now.count;
    for (int operand = 0; operand < OPERANDS; operand++) {
        const Py_ssize_t length = length_of(columns[operand]);
        fits &= length < 0 || length == count;
    }
    const int given = columns[OUT] != Py_None;
    if (!fits || (given && gemm_column_item(columns[OUT], 0) == Py_None)) Py_RETURN_NONE;
    PyObject *results = given ? columns[OUT] : PyList_New(count);
    if (!results) return NULL;
    for (Py_ssize_t i = 0; i < count && !given; i++) {
        Py_INCREF(Py_None);
        PyList_SetItem(results, i, Py_None);
    }
    const Py_ssize_t read = gemm_columns_read(self, (memo *)by, 0, count, columns, scales, results, ASKED_FROM);
    const int done = read == count && run(self, &retries);
    if (!done) { /* nothing stays pending, neither after an error nor if the products are not of one kind */
        let_go(&self->now);
        memset(&self->now, 0, sizeof self->now);
    }
    PyObject *found = done ? results : read >= 0 && read < count ? Py_None : NULL;
    Py_XINCREF(found);
    if (!given) Py_DECREF(results);
    return found;
}

PyDoc_STRVAR(extend_doc,
             "extend(memo, start, count, a, b, c, out, alpha, beta, results, /)\n--\n\n"
             "Make the products number `start` to `count` - 1 pending, and put their results into the list "
             "`results`.\n"
             "\n"
             "a, b and c are tuples of `count` arrays, or one array (or None) for all products; out is None or "
             "`results` itself. The function stops before a product that `memo` does not know, or that is too "
             "large to gain from waiting.\n"
             "Returns the number of the first product that is not pending.");

static PyObject *batch_extend(PyObject *object, PyObject *arguments) {
    batch *self = (batch *)object;
    PyObject *by, *columns[OPERANDS], *scales[SCALES], *results;
    Py_ssize_t start, count;
    if (!PyArg_ParseTuple(arguments, "OnnOOOOOOO!:extend", &by, &start, &count, &columns[A], &columns[B], &columns[C],
                          &columns[OUT], &scales[0], &scales[1], &PyList_Type, &results))
        return NULL;
    Py_ssize_t least = PyList_Size(results);
    for (int operand = 0; operand < OUT; operand++)
        if (PyTuple_Check(columns[operand]) && PyTuple_Size(columns[operand]) < least)
            least = PyTuple_Size(columns[operand]);
    if (start < 0 || count > least) return PyErr_Format(PyExc_IndexError, "a sequence of operands ends at %zd", least);
    Py_ssize_t i = start, single = start; /* products before product `single` are added one by one */
    while (i < count) {
        if (i >= single) {
            if (self->now.count && !deliver(self)) return NULL;
            const Py_ssize_t read = gemm_columns_read(self, (memo *)by, i, count, columns, scales, results, INFINITY);
            if (read < 0 || (read && !deliver(self))) return NULL;
            i += read;
            if (read < FEW) single = i + MOST_NATIVE;
            continue;
        }
        PyObject *given[GIVEN] = {[BIAS] = Py_None, [ALPHA] = scales[0], [BETA] = scales[1]}, *result;
        for (int operand = 0; operand < OPERANDS; operand++) {
            given[operand] = gemm_column_ahead(columns[operand], i, count);
            if (!given[operand]) return NULL;
        }
        const int done = add(self, (memo *)by, given, &result);
        if (done == FAILED) return NULL;
        if (done != ADDED) break;
        if (PyList_SetItem(results, i++, result)) return NULL;
    }
    return PyLong_FromSsize_t(i);
}

PyDoc_STRVAR(enter_doc, "enter()\n--\n\n"
                        "Make this Batch the current one of this thread.");

static PyObject *batch_enter(PyObject *object, PyObject *ignored) {
    batch *self = (batch *)object;
    (void)ignored;
    if (!set_mine(object)) return NULL;
    if (!self->entered) gemm_batches++;
    self->entered = 1;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(leave_doc, "leave()\n--\n\n"
                        "Make this thread have no current Batch. This Batch must be the current one.");

static PyObject *batch_leave(PyObject *object, PyObject *ignored) {
    batch *self = (batch *)object;
    (void)ignored;
    if (self->entered) gemm_batches--;
    self->entered = 0;
    if (!set_mine(NULL)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *batch_open(PyObject *object, PyObject *yes) {
    batch *self = (batch *)object;
    const int is = PyObject_IsTrue(yes);
    if (is < 0) return NULL;
    self->open = is;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(open_doc, "remembers(yes, /)\n--\n\n"
                       "Set whether products of gemm.gemm in this thread become pending in this Batch.");

static PyObject *batch_pending(PyObject *object, PyObject *ignored) {
    (void)ignored;
    return PyLong_FromSsize_t(((batch *)object)->now.count);
}

PyDoc_STRVAR(pending_doc, "pending()\n--\n\n"
                          "Return the number of pending products.");

static PyObject *batch_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *addresses[2], *owner;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OOO:Batch", &addresses[0], &addresses[1], &owner)) return NULL;
    void *run_many = PyLong_AsVoidPtr(addresses[0]), *share = run_many ? PyLong_AsVoidPtr(addresses[1]) : NULL;
    if (!share) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "Batch needs the addresses of the engine's functions");
        return NULL;
    }
    batch *self = (batch *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); /* memory is zeroed */
    if (!self) return NULL;
    memcpy(&self->run_many, &run_many, sizeof run_many);
    memcpy(&self->share, &share, sizeof share);
    Py_INCREF(owner);
    self->owner = owner;
    return (PyObject *)self;
}

static int batch_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(((batch *)object)->owner);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int batch_clear(PyObject *object) {
    Py_CLEAR(((batch *)object)->owner);
    return 0;
}

static void batch_free(PyObject *object) {
    batch *self = (batch *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->entered) gemm_batches--;
    Py_CLEAR(self->owner);
    let_go(&self->now);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"run", batch_run, METH_VARARGS, run_doc},
    {"at_once", batch_at_once, METH_VARARGS, at_once_doc},
    {"extend", batch_extend, METH_VARARGS, extend_doc},
    {"enter", batch_enter, METH_NOARGS, enter_doc},
    {"leave", batch_leave, METH_NOARGS, leave_doc},
    {"remembers", batch_open, METH_O, open_doc},
    {"pending", batch_pending, METH_NOARGS, pending_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, (void *)"Batch(run_many, share, owner, /)\n--\n\n"
                        "Pending products. `run_many` and `share` are the addresses of gemm_run_many and gemm_share. "
                        "owner.deliver() computes the products by calling `run`."},
    {Py_tp_new, (void *)batch_new},
    {Py_tp_dealloc, (void *)batch_free},
    {Py_tp_traverse, (void *)batch_traverse},
    {Py_tp_clear, (void *)batch_clear},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec gemm_batch_type = {"gemm._memo.Batch", sizeof(batch), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                               type_slots};

PyDoc_STRVAR(current_doc, "current()\n--\n\n"
                          "Return the owner of this thread's current Batch, or None.");

static PyObject *current(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    batch *found = mine();
    PyObject *owner = found && found->owner ? found->owner : Py_None;
    Py_INCREF(owner);
    return owner;
}

PyDoc_STRVAR(exchange_doc, "exchange(batch, /)\n--\n\n"
                           "Make `batch` (or None) this thread's current Batch. Return the previous one.");

static PyObject *exchange(PyObject *module, PyObject *fresh) {
    (void)module;
    PyObject *before = (PyObject *)mine();
    if (!before) before = Py_None;
    Py_INCREF(before);
    if (set_mine(fresh == Py_None ? NULL : fresh)) return before;
    Py_DECREF(before);
    return NULL;
}

PyMethodDef gemm_batch_methods[] = {
    {"current", current, METH_NOARGS, current_doc},
    {"exchange", exchange, METH_O, exchange_doc},
    {NULL, NULL, 0, NULL},
};
