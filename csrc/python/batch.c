/* gemm._memo.Batch: products that are asked for one by one and computed together.
 *
 * What a Memo knows is remembered as addresses and a kind, and computed at `run`: products of a kind in one pass of the
 * engine, shared among threads. They may be computed in any order as long as none reads or writes what another writes.
 * Whether that is so is found out at `run`, by sorting what is written; where it is not, the first half is computed
 * before the second, each by the same rule. So a chain of products ends as one after another, as it was asked for.
 *
 * A thread's Batch is an entry in the dictionary of its state, so that it ends with the thread.
 */
#include "memo.h"

#include <stddef.h>
#include <string.h>

enum {
    MOST = 4096,        /* pending products, */
    MOST_NATIVE = 1024, /* if they are the CPU's: their arrays' heads stay in its cache; */
    MOST_KINDS = 16     /* and how many kinds of them, of ... */
};
static const double MOST_BYTES = 64e6; /* in all their operands; and multiply-adds, each: */
static const double MOST_WORK = 2.1e6, MOST_WORK_ELSEWHERE = 1.4e8; /* a larger one fills a CPU, or a device, alone */
static const double ASKED_FROM = 5e7; /* in all: below, the CPU is done before a device could be */

typedef int many_function(const gemm_plan *, int64_t, const gemm_place *, const gemm_scalar *, const gemm_scalar *);

typedef struct {
    slot what; /* a copy, which owns `keep` and `make` */
    memo *by;
    ptrdiff_t low[OPERANDS], high[OPERANDS]; /* the bytes that operands lie at, from their first element */
    double bytes;
} kind;

typedef struct {
    int kind;
    PyObject *held[OPERANDS]; /* c may be NULL */
} entry;

typedef struct {
    kind kinds[MOST_KINDS];
    int kind_count;
    entry *entries;
    gemm_place *places; /* of entries */
    Py_ssize_t count;
    double bytes;
} pending;

typedef struct {
    PyObject_HEAD many_function *run_many;
    PyObject *owner; /* whose `deliver` computes what is pending */
    int entered;     /* counts among gemm_batches */
    int open;        /* gemm.gemm's products are remembered; else those of gemm.submit only */
    int64_t asked;   /* products that were pending, ever */
    pending now;
    entry *entries; /* room to be used again */
    gemm_place *places;
} batch;

int gemm_batches;
static PyObject *thread_key;

/* This thread's Batch, borrowed, or NULL. */
static batch *mine(void) {
    PyObject *state = gemm_batches ? PyThreadState_GetDict() : NULL; /* borrowed */
    return state ? (batch *)PyDict_GetItemWithError(state, thread_key) : NULL;
}

/* Makes `fresh` (NULL: none) this thread's Batch; 0 and an error set where that fails. */
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
    PyErr_Fetch(&type, &value, &trace); /* of the product that was computed meanwhile */
    if (!set_mine(self)) PyErr_WriteUnraisable(self);
    PyErr_Restore(type, value, trace);
    Py_DECREF(self);
}

/* The number of a kind of product, known from now on; -1: there are too many. */
static int number_of(pending *all, memo *by, const slot *found, const extent *at) {
    for (int i = all->kind_count; i-- > 0;)
        if (all->kinds[i].by == by && all->kinds[i].what.plan == found->plan &&
            !memcmp(&all->kinds[i].what.key, &found->key, sizeof found->key))
            return i;
    if (all->kind_count == MOST_KINDS) return -1;
    kind *fresh = &all->kinds[all->kind_count];
    fresh->what = *found, fresh->by = by, fresh->bytes = 0;
    for (int i = 0; i < OPERANDS; i++) {
        fresh->low[i] = (ptrdiff_t)(at[i].low - (uintptr_t)at[i].data);
        fresh->high[i] = (ptrdiff_t)(at[i].high - (uintptr_t)at[i].data);
        fresh->bytes += (double)(at[i].high - at[i].low);
    }
    Py_INCREF(found->keep);
    Py_INCREF(found->make);
    Py_INCREF(by);
    return all->kind_count++;
}

static int room(batch *self) {
    pending *all = &self->now;
    if (!all->entries) all->entries = self->entries, self->entries = NULL;
    if (!all->places) all->places = self->places, self->places = NULL;
    if (!all->entries) all->entries = (entry *)PyMem_Malloc(MOST * sizeof(entry));
    if (!all->places) all->places = (gemm_place *)PyMem_Malloc(MOST * sizeof(gemm_place));
    if (all->entries && all->places) return 1;
    PyErr_NoMemory();
    return 0;
}

enum { FAILED = -1, UNKNOWN, LARGE, ADDED };

/* Puts a product of a kind among the pending, whose result `out` is. */
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

static int reads_c(const slot *what) {
    return what->beta.re != 0 || what->beta.im != 0 || what->beta.integer != 0;
}

/* `add` for a product like the one before; 0: it is not. */
static int add_alike(pending *all, const memo *by, PyObject *const *operands, PyObject **result) {
    if (!all->count) return 0;
    const int number = all->entries[all->count - 1].kind;
    const kind *k = &all->kinds[number];
    char *data[OPERANDS];
    if (k->by != by || !gemm_memo_alike(&k->what.key, operands, data)) return 0;
    if (operands[OUT] != Py_None) {
        const char *low = data[OUT] + k->low[OUT], *high = data[OUT] + k->high[OUT];
        for (int i = A; i <= (k->what.key.role_of_c == 1 ? C : B); i++)
            if (data[i] + k->low[i] < high && low < data[i] + k->high[i]) return 0;
    }
    extent made[OPERANDS];
    PyObject *out = gemm_memo_output(&k->what, operands, made);
    if (!out) return FAILED;
    char *to = operands[OUT] == Py_None ? made[OUT].data : data[OUT];
    put(all, number, operands, out, &(gemm_place){data[A], data[B], reads_c(&k->what) ? data[C] : NULL, to});
    *result = out;
    return ADDED;
}

/* Remembers a product, and gives its result, a new reference. */
static int add(batch *self, memo *by, PyObject *const *operands, PyObject **result) {
    extent at[OPERANDS];
    const int most = self->now.kind_count && self->now.kinds[0].what.plan ? MOST_NATIVE : MOST;
    if ((self->now.count >= most || self->now.bytes > MOST_BYTES) && !deliver(self)) return FAILED;
    const int alike = add_alike(&self->now, by, operands, result);
    if (alike) return self->asked += alike == ADDED, alike;
    const slot *found = gemm_memo_find(by, operands, at);
    if (!found) return UNKNOWN;
    if (found->work > (found->plan ? MOST_WORK : MOST_WORK_ELSEWHERE)) return LARGE;
    pending *all = &self->now;
    if (!room(self)) return FAILED;
    PyObject *out = gemm_memo_output(found, operands, at);
    if (!out) return FAILED;
    const int number = number_of(all, by, found, at);
    if (number < 0) {
        Py_DECREF(out);
        return deliver(self) ? add(self, by, operands, result) : FAILED;
    }
    const char *c = reads_c(found) ? at[C].data : NULL;
    put(all, number, operands, out, &(gemm_place){at[A].data, at[B].data, c, at[OUT].data});
    self->asked++;
    *result = out;
    return ADDED;
}

PyObject *gemm_batch_take(PyObject *by, PyObject *const *operands) {
    batch *self = mine();
    if (!self) return gemm_memo_repeat(by, operands);
    Py_INCREF(self);
    PyObject *result = NULL;
    const int done = self->open ? add(self, (memo *)by, operands, &result) : LARGE;
    if (done == LARGE && deliver(self)) result = gemm_memo_repeat(by, operands);
    Py_DECREF(self);
    return result;
}

/* What is written, by address. */
typedef struct {
    uintptr_t low, high;
} written;

/* Sorts by `low`, a digit of eleven bits at a time; `spare` is room for as many. Where they are in the end. */
static written *sort(written *all, written *spare, Py_ssize_t count) {
    enum { BITS = 11, DIGITS = 1 << BITS };
    uintptr_t least = all[0].low, most = all[0].low;
    for (Py_ssize_t i = 1; i < count; i++) {
        if (all[i].low < least) least = all[i].low;
        if (all[i].low > most) most = all[i].low;
    }
    for (int shift = 0; shift < (int)sizeof most * 8 && (most - least) >> shift; shift += BITS) {
        Py_ssize_t ends[DIGITS] = {0}, end = 0;
        for (Py_ssize_t i = 0; i < count; i++) ends[(all[i].low - least) >> shift & (DIGITS - 1)]++;
        for (int digit = 0; digit < DIGITS; digit++) {
            const Py_ssize_t many = ends[digit];
            ends[digit] = end, end += many; /* where it begins */
        }
        for (Py_ssize_t i = 0; i < count; i++) spare[ends[(all[i].low - least) >> shift & (DIGITS - 1)]++] = all[i];
        written *sorted = spare;
        spare = all, all = sorted;
    }
    return all;
}

/* The last of `count` that begins before `end`, or -1; `near` is where the one before was found. */
static Py_ssize_t last_before(const written *all, Py_ssize_t count, uintptr_t end, Py_ssize_t near) {
    for (int step = 0; step < 2 && near < count; step++, near++) /* neighbours mostly come one after another */
        if ((near < 0 || all[near].low < end) && (near + 1 == count || all[near + 1].low >= end)) return near;
    Py_ssize_t low = -1, high = count; /* all[low] begins before, all[high] does not */
    while (high - low > 1) {
        const Py_ssize_t middle = low + (high - low) / 2;
        *(all[middle].low < end ? &low : &high) = middle;
    }
    return low;
}

/* Whether the products from `start` to `stop` may be computed in any order; `outs` is room for twice as many. */
static int independent(const pending *all, Py_ssize_t start, Py_ssize_t stop, written *outs) {
    const Py_ssize_t count = stop - start;
    int sorted = 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        const kind *k = &all->kinds[all->entries[start + i].kind];
        const uintptr_t to = (uintptr_t)all->places[start + i].out;
        outs[i] = (written){to + (uintptr_t)k->low[OUT], to + (uintptr_t)k->high[OUT]};
        sorted &= i == 0 || outs[i - 1].low <= outs[i].low;
    }
    if (!sorted) outs = sort(outs, outs + count, count);
    for (Py_ssize_t i = 1; i < count; i++)
        if (outs[i - 1].high > outs[i].low) return 0;
    Py_ssize_t near[OUT] = {-1, -1, -1};
    for (Py_ssize_t i = start; i < stop; i++) {
        const kind *k = &all->kinds[all->entries[i].kind];
        const gemm_place *at = &all->places[i];
        const void *read[OUT] = {at->a, at->b, k->what.key.role_of_c == 1 ? at->c : NULL};
        for (int operand = 0; operand < OUT; operand++) {
            if (!read[operand]) continue;
            const uintptr_t from = (uintptr_t)read[operand];
            const uintptr_t low = from + (uintptr_t)k->low[operand], high = from + (uintptr_t)k->high[operand];
            const Py_ssize_t found = near[operand] = last_before(outs, count, high, near[operand]);
            if (found >= 0 && outs[found].high > low) return 0;
        }
    }
    return 1;
}

/* Who computes what the engine does not; see batch_run's documentation. */
typedef struct {
    PyObject *goes, *send, *retry;
} others;

/* The products from `start` to `stop` that are of one kind. */
typedef struct {
    const pending *all;
    int number;
    Py_ssize_t start, stop, first, count;
} group;

static group group_of(const pending *all, int number, Py_ssize_t start, Py_ssize_t stop) {
    group some = {all, number, start, stop, start, all->kind_count == 1 ? stop - start : 0};
    for (Py_ssize_t i = stop; i-- > start && all->kind_count > 1;)
        if (all->entries[i].kind == number) some.first = i, some.count++;
    return some;
}

/* others' function of these products; 0 with an error set where it raises. */
static int call_others(PyObject *function, const group *some) {
    const pending *all = some->all;
    PyObject *numbers = PyList_New(some->count), *products = PyList_New(some->count), *done = NULL;
    int ready = numbers && products;
    for (Py_ssize_t i = some->start, at = 0; ready && i < some->stop; i++) {
        if (all->entries[i].kind != some->number) continue;
        PyObject *const *held = all->entries[i].held;
        PyObject *number = PyLong_FromSsize_t(i);
        PyObject *product = PyTuple_Pack(4, held[A], held[B], held[C] ? held[C] : Py_None, held[OUT]);
        ready = number && product;
        if (number) PyList_SetItem(numbers, at, number);
        if (product) PyList_SetItem(products, at++, product);
    }
    if (ready)
        done = PyObject_CallFunctionObjArgs(function, all->kinds[some->number].by->options, numbers, products, NULL);
    Py_XDECREF(numbers);
    Py_XDECREF(products);
    Py_XDECREF(done);
    return done != NULL;
}

/* Whether products are to be computed by others; -1: an error is set. */
static int goes(const others *by, const group *some) {
    const kind *k = &some->all->kinds[some->number];
    if (!k->what.plan) return 1;
    if (k->what.work * (double)some->count < ASKED_FROM) return 0;
    PyObject *const *held = some->all->entries[some->first].held;
    PyObject *size = PyLong_FromSsize_t(some->count), *answer = NULL;
    if (size)
        answer = PyObject_CallFunctionObjArgs(by->goes, k->by->options, size, held[A], held[B],
                                              held[C] ? held[C] : Py_None, held[OUT], NULL);
    const int yes = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(size);
    Py_XDECREF(answer);
    return yes;
}

/* Room for one run over pending products: for twice as many outs, and as many places. */
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
                if (all->entries[i].kind == number) in->places[count++] = all->places[i];
            places = in->places;
        }
        PyThreadState *state = k->what.work * (double)some.count < WORTH_RELEASING ? NULL : PyEval_SaveThread();
        const int status = self->run_many(k->what.plan, some.count, places, &k->what.alpha, &k->what.beta);
        if (state) PyEval_RestoreThread(state);
        if (status != GEMM_OK && !call_others(by->retry, &some)) return 0;
    }
    return 1;
}

static int compute(const batch *self, const pending *all, Py_ssize_t start, Py_ssize_t stop, const others *by,
                   const scratch *in) {
    if (stop - start < 2 || independent(all, start, stop, in->outs))
        return compute_independent(self, all, start, stop, by, in);
    const Py_ssize_t middle = start + (stop - start) / 2;
    return compute(self, all, start, middle, by, in) && compute(self, all, middle, stop, by, in);
}

static void let_go(pending *all) {
    for (Py_ssize_t i = 0; i < all->count; i++)
        for (int operand = 0; operand < OPERANDS; operand++) Py_XDECREF(all->entries[i].held[operand]);
    for (int i = 0; i < all->kind_count; i++) {
        Py_DECREF(all->kinds[i].what.keep);
        Py_DECREF(all->kinds[i].what.make);
        Py_DECREF(all->kinds[i].by);
    }
}

PyDoc_STRVAR(run_doc,
             "run(goes, send, retry, /)\n--\n\n"
             "Compute what is pending.\n\n"
             "goes(options, count, a, b, c, out): whether so many products like this one are to be computed by `send`, "
             "as those always are that were learned without a plan. send(options, numbers, products): these products, "
             "as they were counted, each (a, b, c or None, out). retry: the same, for what the engine had no memory "
             "for. An exception of theirs ends it: what was to come then is not computed.");

static PyObject *batch_run(PyObject *object, PyObject *arguments) {
    batch *self = (batch *)object;
    others by;
    if (!PyArg_ParseTuple(arguments, "OOO:run", &by.goes, &by.send, &by.retry)) return NULL;
    if (!self->now.count) Py_RETURN_NONE;
    pending *all = (pending *)PyMem_Malloc(sizeof *all);
    if (!all) return PyErr_NoMemory();
    *all = self->now; /* what others ask for meanwhile is pending anew */
    memset(&self->now, 0, sizeof self->now);
    const size_t count = (size_t)all->count;
    const scratch in = {(written *)PyMem_Malloc(2 * count * sizeof(written)),
                        (gemm_place *)PyMem_Malloc(count * sizeof(gemm_place))};
    const int good = in.outs && in.places && compute(self, all, 0, all->count, &by, &in);
    if (!good && !PyErr_Occurred()) PyErr_NoMemory();
    PyMem_Free(in.outs);
    PyMem_Free(in.places);
    let_go(all);
    if (!self->entries) self->entries = all->entries, all->entries = NULL;
    if (!self->places) self->places = all->places, all->places = NULL;
    PyMem_Free(all->entries);
    PyMem_Free(all->places);
    PyMem_Free(all);
    if (!good) return NULL;
    Py_RETURN_NONE;
}

/* Brings what will be read of an array soon. */
static void fetch(const void *what) {
#ifdef __GNUC__
    __builtin_prefetch(what);
#else
    (void)what;
#endif
}

/* An item of a list or tuple, borrowed, or what stands for all; NULL and an error set if there is none. */
static PyObject *item_of(PyObject *from, Py_ssize_t i) {
    return PyList_Check(from) ? PyList_GetItem(from, i) : PyTuple_Check(from) ? PyTuple_GetItem(from, i) : from;
}

PyDoc_STRVAR(
    extend_doc,
    "extend(memo, count, a, b, c, out, results, /)\n--\n\n"
    "Remember the products from number len(results) to `count`, and append their results.\n\n"
    "a, b, c and out are lists or tuples of so many arrays, or one (or None) for all. It ends before the first product "
    "that `memo` does not know, or that is too large to gain by waiting.");

static PyObject *batch_extend(PyObject *object, PyObject *arguments) {
    batch *self = (batch *)object;
    PyObject *by, *columns[OPERANDS], *results;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(arguments, "OnOOOOO!:extend", &by, &count, &columns[A], &columns[B], &columns[C],
                          &columns[OUT], &PyList_Type, &results))
        return NULL;
    enum { OBJECT = 12, SHAPE = 6 }; /* products ahead of which their arrays' heads and shapes are fetched */
    for (Py_ssize_t i = PyList_Size(results); i < count; i++) {
        PyObject *operands[OPERANDS], *result;
        for (int operand = 0; operand < OPERANDS; operand++) {
            PyObject *from = columns[operand];
            operands[operand] = item_of(from, i);
            if (!operands[operand]) return PyErr_Format(PyExc_IndexError, "a sequence of operands ends at %zd", i);
            if (i + OBJECT >= count || operands[operand] == from) continue;
            fetch(item_of(from, i + OBJECT));
            PyObject *soon = item_of(from, i + SHAPE);
            if (soon && PyArray_CheckExact(soon)) fetch(PyArray_DIMS((PyArrayObject *)soon));
        }
        PyErr_Clear(); /* of a sequence that has become shorter, ahead */
        for (int operand = 0; operand < OPERANDS; operand++) Py_INCREF(operands[operand]); /* others may change lists */
        const int done = add(self, (memo *)by, operands, &result);
        for (int operand = 0; operand < OPERANDS; operand++) Py_DECREF(operands[operand]);
        if (done == FAILED) return NULL;
        if (done != ADDED) break;
        const int kept = PyList_Append(results, result) == 0;
        Py_DECREF(result);
        if (!kept) return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(enter_doc, "enter()\n--\n\nMake it this thread's Batch.");

static PyObject *batch_enter(PyObject *object, PyObject *ignored) {
    batch *self = (batch *)object;
    (void)ignored;
    if (!set_mine(object)) return NULL;
    if (!self->entered) gemm_batches++;
    self->entered = 1;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(leave_doc, "leave()\n--\n\nLet this thread, whose Batch it is, have none.");

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

PyDoc_STRVAR(open_doc, "remembers(yes, /)\n--\n\nWhether it remembers gemm.gemm's products.");

PyDoc_STRVAR(ask_doc, "ask(function, arguments, options, /)\n--\n\n"
                      "(function(*arguments, **options), the number of the product that this has left pending or -1).");

static PyObject *batch_ask(PyObject *object, PyObject *arguments) {
    batch *self = (batch *)object;
    PyObject *function, *given, *options;
    if (!PyArg_ParseTuple(arguments, "OO!O!:ask", &function, &PyTuple_Type, &given, &PyDict_Type, &options))
        return NULL;
    const int was = self->open;
    const int64_t before = self->asked;
    self->open = 1;
    PyObject *result = PyObject_Call(function, given, options);
    self->open = was;
    if (!result) return NULL;
    return Py_BuildValue("Nn", result, self->asked > before ? self->now.count - 1 : (Py_ssize_t)-1);
}

static PyObject *batch_pending(PyObject *object, PyObject *ignored) {
    (void)ignored;
    return PyLong_FromSsize_t(((batch *)object)->now.count);
}

PyDoc_STRVAR(pending_doc, "pending()\n--\n\nHow many products it remembers.");

static PyObject *batch_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *address, *owner;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OO:Batch", &address, &owner)) return NULL;
    void *run_many = PyLong_AsVoidPtr(address);
    if (!run_many) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "Batch needs the address of gemm_run_many");
        return NULL;
    }
    batch *self = (batch *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); /* zeroed */
    if (!self) return NULL;
    memcpy(&self->run_many, &run_many, sizeof run_many);
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
    PyMem_Free(self->now.entries);
    PyMem_Free(self->now.places);
    PyMem_Free(self->entries);
    PyMem_Free(self->places);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"run", batch_run, METH_VARARGS, run_doc},
    {"extend", batch_extend, METH_VARARGS, extend_doc},
    {"enter", batch_enter, METH_NOARGS, enter_doc},
    {"leave", batch_leave, METH_NOARGS, leave_doc},
    {"remembers", batch_open, METH_O, open_doc},
    {"ask", batch_ask, METH_VARARGS, ask_doc},
    {"pending", batch_pending, METH_NOARGS, pending_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, (void *)"Batch(run_many, owner, /)\n--\n\n"
                        "Products that are pending, for the gemm_run_many at that address; owner.deliver() computes "
                        "them by `run`."},
    {Py_tp_new, (void *)batch_new},
    {Py_tp_dealloc, (void *)batch_free},
    {Py_tp_traverse, (void *)batch_traverse},
    {Py_tp_clear, (void *)batch_clear},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec gemm_batch_type = {"gemm._memo.Batch", sizeof(batch), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                               type_slots};

PyDoc_STRVAR(current_doc, "current()\n--\n\nThe owner of this thread's Batch, or None.");

static PyObject *current(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    batch *found = mine();
    PyObject *owner = found && found->owner ? found->owner : Py_None;
    Py_INCREF(owner);
    return owner;
}

PyDoc_STRVAR(exchange_doc, "exchange(batch, /)\n--\n\nMake `batch` (or None) this thread's; what it was before.");

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
