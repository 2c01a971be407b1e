/* gemm.gemm as it is called: a product that was computed before is found without a line of Python.
 *
 * gemm.frontend.plan_cache keeps a Memo for each set of options (all arguments but the arrays, alpha and beta). A call is looked up twice: by where it
 * comes from, as a line of code passes the same tuple of keywords each time, and mostly the very same options; else by
 * the options' values, in the dictionary that gemm.frontend.plan_cache fills. What is not found there goes to the function in Python,
 * whose result is the same.
 */
#include "memo.h"

#include <string.h>

enum { OPTIONS = 8, CLASSES = 2, FIXED = SCALES + OPTIONS, KEYWORDS = FIXED + 3, LINES = 64 };
enum { OPTION = GIVEN }; /* what a keyword is, besides C, OUT, BIAS, ALPHA and BETA */

/* A line of code that has called before. */
typedef struct {
    PyObject *keywords, *memo; /* memo NULL: the place is free */
    Py_ssize_t positional;
    int role[KEYWORDS];
    PyObject *value[KEYWORDS]; /* of options */
} line;

/* One a process, so that the function has no `self` and is pickled by its name. */
static struct {
    PyObject *python, *memos, *names[KEYWORDS], *defaults[FIXED]; /* alpha, beta, the options; and c, out and bias */
    PyMethodDef method, at_once;
    line lines[LINES];
} front;

/* Puts `fresh` in the place of what is let go of, which may run anything. */
static void put(line *place, const line *fresh) {
    const line before = *place;
    *place = *fresh;
    Py_XDECREF(before.keywords);
    Py_XDECREF(before.memo);
    for (int i = 0; i < KEYWORDS; i++) Py_XDECREF(before.value[i]);
}

/* Whether this is a call from `from`; fills in c, out, bias, alpha and beta. */
static int comes_from(const line *from, PyObject *const *arguments, Py_ssize_t positional, PyObject *keywords,
                      Py_ssize_t count, PyObject **given) {
    if (!from->memo || from->keywords != keywords || from->positional != positional) return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *value = arguments[positional + i];
        if (from->role[i] < GIVEN)
            given[from->role[i]] = value;
        else if (from->value[i] != value)
            return 0;
    }
    return 1;
}

/* Which of the names a keyword is; -1: none. */
static int number_of(PyObject *keyword) {
    for (int i = 0; i < KEYWORDS; i++)
        if (front.names[i] == keyword) return i;
    for (int i = 0; i < KEYWORDS; i++)
        if (PyUnicode_Compare(front.names[i], keyword) == 0) return i;
    return -1;
}

/* The Memo for a call's options, a new reference, and c, out, bias, alpha and beta; fills in `from`. NULL without an
 * error: there is none. */
static PyObject *look_up(line *from, PyObject *const *arguments, Py_ssize_t positional, PyObject *keywords,
                         Py_ssize_t count, PyObject **given) {
    PyObject *option[OPTIONS];
    int role[KEYWORDS];
    if (count > KEYWORDS) return NULL;
    for (int i = 0; i < OPTIONS; i++) option[i] = front.defaults[SCALES + i];
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *value = arguments[positional + i];
        const int number = number_of(PyTuple_GetItem(keywords, i));
        if (number < 0) return NULL; /* the function in Python says so */
        role[i] = number < SCALES       ? ALPHA + number
                  : number < FIXED      ? OPTION
                  : number == FIXED     ? C
                  : number == FIXED + 1 ? OUT
                                        : BIAS;
        if (role[i] == C && positional > C) return NULL; /* given twice */
        if (role[i] == OPTION)
            option[number - SCALES] = value;
        else if (role[i] < GIVEN)
            given[role[i]] = value;
    }
    PyObject *key = PyTuple_New(OPTIONS + CLASSES);
    if (!key) return NULL;
    for (int i = 0; i < OPTIONS + CLASSES; i++) {
        PyObject *item = i < OPTIONS ? option[i] : (PyObject *)Py_TYPE(option[i - OPTIONS]);
        Py_INCREF(item);
        PyTuple_SetItem(key, i, item);
    }
    PyObject *memo = PyDict_GetItemWithError(front.memos, key);
    Py_XINCREF(memo);
    Py_DECREF(key);
    if (!memo) {
        PyErr_Clear(); /* an option without a hash: the function in Python says what is wrong with it */
        return NULL;
    }
    line fresh = {.keywords = keywords, .memo = memo, .positional = positional};
    Py_XINCREF(keywords);
    Py_INCREF(memo);
    for (Py_ssize_t i = 0; i < count; i++) {
        fresh.role[i] = role[i];
        if (role[i] < GIVEN) continue;
        fresh.value[i] = arguments[positional + i];
        Py_INCREF(fresh.value[i]);
    }
    put(from, &fresh);
    return memo;
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
    if (positional == C || positional == OUT) { /* a and b, or these and c */
        PyObject *const bare[GIVEN] = {arguments[A],     arguments[B], positional > C ? arguments[C] : Py_None,
                                       Py_None,          Py_None,      front.defaults[0],
                                       front.defaults[1]};
        PyObject *given[GIVEN];
        memcpy(given, bare, sizeof given);
        line *from = &front.lines[((uintptr_t)keywords / sizeof(void *) + (uintptr_t)positional) % LINES];
        PyObject *memo = NULL;
        if (comes_from(from, arguments, positional, keywords, count, given)) {
            memo = from->memo;
            Py_INCREF(memo);
        } else {
            memcpy(given, bare, sizeof given);
            memo = look_up(from, arguments, positional, keywords, count, given);
        }
        if (memo) {
            PyObject *result = gemm_batches ? gemm_batch_take(memo, given) : gemm_memo_repeat(memo, given);
            Py_DECREF(memo);
            if (result || PyErr_Occurred()) return result;
            static const line nothing;
            if (from->memo == memo) put(from, &nothing); /* it may be out of date */
        }
    }
    return call_python(arguments, positional, keywords, count);
}

/* `call` for who reads the result at once. */
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
             "Twice the function `python`, the second time for results that are wanted at once: called only "
             "where no Memo of `memos` knows the product.\n\n"
             "`names` are alpha, beta, the options' in the order in which they make the keys of `memos`, and c, "
             "out and bias; `defaults` are those of all but the last three. The functions made before call "
             "this `python` from then on, where gemm was imported anew.");

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
    static const line nothing;
    for (int i = 0; i < LINES; i++) put(&front.lines[i], &nothing); /* of a gemm that was imported before */
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
    Py_INCREF(arguments); /* owns the texts, for ever */
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
