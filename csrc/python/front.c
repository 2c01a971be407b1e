/* The C function gemm.gemm. For a product of a known kind, it runs the stored plan without executing Python code.
 *
 * gemm.frontend.plan_cache keeps a Memo for each set of options (all arguments except the arrays, alpha and beta). The
 * first lookup of a Memo uses the identities of the option objects, because a line of code that is executed again
 * passes the same objects. The second lookup uses the options' values, in the dictionary that gemm.frontend.plan_cache
 * fills. If both fail, or if the Memo does not know the product, the Python function computes it, with the same result.
 */
#include "memo.h"

#include <string.h>

enum { OPTIONS = 8, CLASSES = 3, FIXED = SCALES + OPTIONS, KEYWORDS = FIXED + 3, SETS = 64 };

/* Options of an earlier call, and their Memo. The set owns the options, so no other object can get their addresses. */
typedef struct {
    PyObject *option[OPTIONS], *memo;
} set;

/* One instance per process: the C function needs no `self`, and can be pickled by its name. */
static struct {
    /* names: the names of alpha, beta, the options, c, out and bias. defaults: the default values of alpha, beta and
     * the options. */
    PyObject *python, *memos, *names[KEYWORDS], *defaults[FIXED];
    PyMethodDef method, at_once;
    table sets;
} front = {.sets = {.key_bytes = sizeof(PyObject *[OPTIONS]), .entry_bytes = sizeof(set), .most = SETS}};

static void let_go(const set *known) {
    for (int i = 0; i < OPTIONS; i++) Py_DECREF(known->option[i]);
    Py_DECREF(known->memo);
}

void gemm_front_forget(void) {
    /* The sets leave `front` before their objects are released, because releasing objects may run any Python code. */
    table left = front.sets;
    front.sets = (table){.key_bytes = left.key_bytes, .entry_bytes = left.entry_bytes, .most = left.most};
    for (uint32_t i = 0; i < left.count; i++) let_go((const set *)left.entries + i);
    gemm_table_free(&left);
}

/* Returns the index of a keyword in front.names, or -1 if the keyword is unknown. */
static int number_of(PyObject *keyword) {
    for (int i = 0; i < KEYWORDS; i++)
        if (front.names[i] == keyword) return i;
    for (int i = 0; i < KEYWORDS; i++)
        if (PyUnicode_Compare(front.names[i], keyword) == 0) return i;
    return -1;
}

/* Distributes a call's arguments to `given` and `option`. Returns 0 if the arguments are wrong: the Python function
 * then raises the error. */
static int read_arguments(PyObject *const *arguments, Py_ssize_t positional, PyObject *keywords, Py_ssize_t count,
                          PyObject **given, PyObject **option) {
    static const int last[] = {C, OUT, BIAS};
    if (positional != C && positional != OUT) return 0; /* the positional arguments are a and b, or a, b and c */
    given[A] = arguments[A], given[B] = arguments[B], given[C] = positional > C ? arguments[C] : Py_None;
    given[OUT] = given[BIAS] = Py_None, given[ALPHA] = front.defaults[0], given[BETA] = front.defaults[1];
    memcpy(option, front.defaults + SCALES, OPTIONS * sizeof *option);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *value = arguments[positional + i];
        const int number = number_of(PyTuple_GetItem(keywords, i));
        if (number < 0 || (number == FIXED && positional > C)) return 0; /* an unknown keyword, or c was passed twice */
        if (number < SCALES)
            given[ALPHA + number] = value;
        else if (number < FIXED)
            option[number - SCALES] = value;
        else
            given[last[number - FIXED]] = value;
    }
    return 1;
}

/* Returns the Memo for options with the values in `option`, a new reference. Stores the Memo in front.sets under the
 * objects in `option`. Returns NULL without an error if there is no such Memo. */
static PyObject *look_up(PyObject *const *option) {
    static const int classed[CLASSES] = {0, 1, 4}; /* trans_a, trans_b, reproducible: valid if True, not if 1 */
    PyObject *key = PyTuple_New(OPTIONS + CLASSES);
    if (!key) return NULL;
    for (int i = 0; i < OPTIONS + CLASSES; i++) {
        PyObject *item = i < OPTIONS ? option[i] : (PyObject *)Py_TYPE(option[classed[i - OPTIONS]]);
        Py_INCREF(item);
        PyTuple_SetItem(key, i, item);
    }
    set fresh, before;
    fresh.memo = PyDict_GetItemWithError(front.memos, key);
    Py_XINCREF(fresh.memo);
    Py_DECREF(key);
    if (!fresh.memo) {
        PyErr_Clear(); /* an option is not hashable: the Python function raises the error */
        return NULL;
    }
    memcpy(fresh.option, option, sizeof fresh.option);
    for (int i = 0; i < OPTIONS; i++) Py_INCREF(option[i]);
    PyObject *memo = fresh.memo;
    Py_INCREF(memo);
    const int put = gemm_table_put(&front.sets, &fresh, &before);
    if (put != FRESH) let_go(put == REPLACED ? &before : &fresh);
    return memo;
}

/* Computes the product with a Memo, or makes it pending. Returns the product's result, or NULL without an error if the
 * Memo does not know the product. Releases the caller's reference to the Memo. */
static PyObject *by(PyObject *memo, PyObject *const *given) {
    PyObject *result = gemm_batches ? gemm_batch_take(memo, given) : gemm_memo_repeat(memo, given);
    Py_DECREF(memo);
    return result;
}

static PyObject *call_python(PyObject *const *arguments, Py_ssize_t positional, PyObject *keywords, Py_ssize_t count) {
    PyObject *given = PyTuple_New(positional), *named = count ? PyDict_New() : NULL, *result = NULL;
    int ready = given && (named || !count);
    for (Py_ssize_t i = 0; ready && i < positional; i++) {
        Py_INCREF(arguments[i]);
        PyTuple_SetItem(given, i, arguments[i]);
    }
    for (Py_ssize_t i = 0; ready && i < count; i++)
        ready = PyDict_SetItem(named, PyTuple_GetItem(keywords, i), arguments[positional + i]) == 0;
    if (ready) result = PyObject_Call(front.python, given, named);
    Py_XDECREF(given);
    Py_XDECREF(named);
    return result;
}

static PyObject *call(PyObject *module, PyObject *const *arguments, Py_ssize_t positional, PyObject *keywords) {
    (void)module;
    const Py_ssize_t count = keywords ? PyTuple_Size(keywords) : 0;
    PyObject *given[GIVEN], *option[OPTIONS];
    if (read_arguments(arguments, positional, keywords, count, given, option)) {
        const set *known = (const set *)gemm_table_find(&front.sets, option);
        PyObject *memo = known ? known->memo : NULL, *before = memo, *result = NULL;
        Py_XINCREF(memo);
        if (memo) result = by(memo, given);
        if (result || PyErr_Occurred()) return result;
        memo = look_up(option); /* front.memos may have another Memo for these options by now */
        if (memo && memo != before) result = by(memo, given);
        if (memo == before) Py_XDECREF(memo);
        if (result || PyErr_Occurred()) return result;
    }
    return call_python(arguments, positional, keywords, count);
}

/* Like `call`, for callers that read the result at once: the product never becomes pending. */
static PyObject *call_at_once(PyObject *module, PyObject *const *arguments, Py_ssize_t positional, PyObject *keywords) {
    PyObject *batch = gemm_batches ? gemm_batch_pause() : NULL;
    if (!batch && PyErr_Occurred()) return NULL;
    PyObject *result = call(module, arguments, positional, keywords);
    if (batch) gemm_batch_resume(batch);
    return result;
}

static void replace(PyObject **place, PyObject *fresh) {
    PyObject *before = *place;
    *place = fresh;
    Py_XDECREF(before);
}

PyDoc_STRVAR(made_doc,
             "front(python, memos, names, defaults, module, signature, doc, /)\n--\n\n"
             "Return two functions that take the arguments of `python`. They call `python` only if no Memo of "
             "`memos` knows the product. The second function returns results that are already computed, even "
             "inside a Batch.\n"
             "\n"
             "names: alpha, beta, the options in the order in which they make the keys of `memos`, then c, out "
             "and bias. defaults: the defaults of all of them except the last three. Functions that were made "
             "earlier call this `python` from now on, in case gemm was imported anew.");

static PyObject *made(PyObject *self, PyObject *arguments) {
    (void)self;
    PyObject *python, *memos, *names, *defaults, *module;
    const char *name, *doc;
    if (!PyArg_ParseTuple(arguments, "OO!O!O!Uss:front", &python, &PyDict_Type, &memos, &PyTuple_Type, &names,
                          &PyTuple_Type, &defaults, &module, &name, &doc))
        return NULL;
    if (PyTuple_Size(names) != KEYWORDS || PyTuple_Size(defaults) != FIXED) {
        PyErr_SetString(PyExc_ValueError, "front is made of as many names and defaults as it has options");
        return NULL;
    }
    gemm_front_forget(); /* discards the sets of an earlier import of gemm */
    for (int i = 0; i < KEYWORDS; i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        Py_INCREF(name);
        PyUnicode_InternInPlace(&name);
        replace(&front.names[i], name);
    }
    for (int i = 0; i < FIXED; i++) {
        PyObject *value = PyTuple_GetItem(defaults, i);
        Py_INCREF(value);
        replace(&front.defaults[i], value);
    }
    Py_INCREF(python);
    Py_INCREF(memos);
    Py_INCREF(arguments); /* `arguments` owns the strings `name` and `doc`, and is never released */
    replace(&front.python, python);
    replace(&front.memos, memos);
    front.method.ml_name = name, front.method.ml_doc = doc;
    front.method.ml_meth = (PyCFunction)(void (*)(void))call;
    front.method.ml_flags = METH_FASTCALL | METH_KEYWORDS;
    front.at_once = front.method;
    front.at_once.ml_meth = (PyCFunction)(void (*)(void))call_at_once;
    return Py_BuildValue("NN", PyCFunction_NewEx(&front.method, NULL, module),
                         PyCFunction_NewEx(&front.at_once, NULL, module));
}

PyMethodDef gemm_front_methods[] = {{"front", made, METH_VARARGS, made_doc}, {NULL, NULL, 0, NULL}};
