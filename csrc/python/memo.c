/* gemm._memo: repeats products of NumPy arrays without the checks in Python.
 *
 * The first product of a kind goes through gemm/call.py, which checks, normalises and chooses; what came out is learned
 * here under the operands' signature: element type, shapes and strides. A later call whose operands have a known
 * signature, and whose output overlaps no input, runs straight into the engine. Anything else is unknown, and the
 * caller goes the long way: this file decides nothing and raises no error of its own about operands.
 *
 * Arrays are read through the array interface (__array_struct__), and only if they are exactly numpy.ndarray: a
 * subclass may mean more than its numbers. Limited API: one build serves every CPython from 3.10.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#include "gemm.h"

enum { A, B, C, OUT, OPERANDS };
enum { MOST_AXES = 3 }; /* operands of more axes are always unknown */
enum { ALIGNED = 0x100, NATIVE = 0x200, WRITEABLE = 0x400 };
static const double WORTH_RELEASING = 5e5; /* multiply-adds: below this, releasing the GIL costs more than it gives */

/* NumPy's documented PyArrayInterface. */
typedef struct {
    int two, nd;
    char kind;
    int itemsize, flags;
    Py_ssize_t *shape, *strides;
    void *data;
    PyObject *descr;
} array_interface;

/* What a product is known by: for each operand its axes, shape and strides, in bytes. Unused words are 0. */
typedef struct {
    Py_ssize_t role_of_c; /* absent, an array of its own, or `out` itself */
    Py_ssize_t type[OPERANDS], axes[OPERANDS], shape[OPERANDS][MOST_AXES], strides[OPERANDS][MOST_AXES];
} signature;

typedef struct {
    char *data;
    uintptr_t low, high; /* its first byte, and one past its last */
} extent;

typedef struct {
    signature key;
    const gemm_plan *plan;
    gemm_scalar alpha, beta;
    PyObject *keep; /* owns the plan; NULL: the slot is free */
    PyObject *make; /* arguments of numpy.empty for a result, or None where calls bring an output */
} slot;

typedef int run_function(const gemm_plan *, const void *, const void *, const void *, void *, const gemm_scalar *,
                         const gemm_scalar *);

typedef struct {
    PyObject_HEAD PyObject *ndarray, *empty, *interface_name;
    run_function *run;
    Py_ssize_t count;
    slot *slots;
} memo;

static slot *place_of(memo *self, const signature *key) {
    const Py_ssize_t *words = (const Py_ssize_t *)key;
    uint64_t hash = 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i < sizeof *key / sizeof *words; i++) hash = (hash ^ (uint64_t)words[i]) * 0xBF58476D1CE4E5B9u;
    return &self->slots[(hash >> 32) % (uint64_t)self->count];
}

/* The word that stands for an element type: kind and size of NumPy's own numbers; bfloat16, a void type of two bytes to
 * the array interface, is known by its dtype, an object that gemm.repeat has found to be the one that lives for ever.
 * 0 for anything else. */
static Py_ssize_t type_of(PyObject *array, const array_interface *x) {
    if (x->kind == 'f' || x->kind == 'i' || x->kind == 'u' || x->kind == 'c')
        return (Py_ssize_t)x->kind << 16 | x->itemsize;
    if (x->kind != 'V' || x->itemsize != 2) return 0;
    PyObject *dtype = PyObject_GetAttrString(array, "dtype");
    if (!dtype) PyErr_Clear();
    Py_XDECREF(dtype);
    return (Py_ssize_t)dtype;
}

/* Adds `array` to the signature; 0 for anything but an aligned ndarray of numbers with few axes and some elements. */
static int read_array(memo *self, PyObject *array, int at, signature *key, extent *where) {
    if (Py_TYPE(array) != (PyTypeObject *)self->ndarray) return 0;
    PyObject *capsule = PyObject_GetAttr(array, self->interface_name);
    const array_interface *x = capsule ? (array_interface *)PyCapsule_GetPointer(capsule, NULL) : NULL;
    const int needs = ALIGNED | NATIVE | (at == OUT ? WRITEABLE : 0);
    const Py_ssize_t type = x ? type_of(array, x) : 0;
    int known = type && x->nd >= 1 && x->nd <= MOST_AXES && (x->flags & needs) == needs;
    if (known) {
        key->type[at] = type;
        key->axes[at] = x->nd;
        where->data = (char *)x->data;
        where->low = (uintptr_t)x->data, where->high = where->low + (uintptr_t)x->itemsize;
        for (int axis = 0; axis < x->nd; axis++) {
            const Py_ssize_t length = x->shape[axis], stride = x->strides[axis];
            known = known && length > 0 && stride % x->itemsize == 0;
            key->shape[at][axis] = length, key->strides[at][axis] = stride;
            *(stride < 0 ? &where->low : &where->high) += (uintptr_t)(stride * (length - 1));
        }
    }
    if (!x) PyErr_Clear();
    Py_XDECREF(capsule);
    return known;
}

static int apart(const extent *x, const extent *y) {
    return x->high <= y->low || y->high <= x->low;
}

/* The signature and extents of a, b, c and out (None: absent); 0 if their product cannot be repeated from here. */
static int read_operands(memo *self, PyObject *const *arrays, signature *key, extent *where) {
    memset(key, 0, sizeof *key);
    memset(where, 0, OPERANDS * sizeof *where);
    if (!read_array(self, arrays[A], A, key, &where[A]) || !read_array(self, arrays[B], B, key, &where[B])) return 0;
    if (arrays[C] != Py_None) {
        key->role_of_c = arrays[C] == arrays[OUT] ? 2 : 1;
        if (!read_array(self, arrays[C], C, key, &where[C])) return 0;
    }
    if (arrays[OUT] == Py_None) return 1;
    return read_array(self, arrays[OUT], OUT, key, &where[OUT]) && apart(&where[A], &where[OUT]) &&
           apart(&where[B], &where[OUT]) && (key->role_of_c != 1 || apart(&where[C], &where[OUT]));
}

static int counted(Py_ssize_t count, Py_ssize_t wanted, const char *name) {
    if (count != wanted) PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", name, wanted, count);
    return count == wanted;
}

/* A Python number as every kind of element may want it; an error is set if it is none. */
static gemm_scalar scalar_of(PyObject *number) {
    gemm_scalar value = {.re = PyComplex_RealAsDouble(number), .im = PyComplex_ImagAsDouble(number)};
    if (PyLong_Check(number)) value.integer = (int64_t)PyLong_AsUnsignedLongLongMask(number);
    return value;
}

static int is_zero(const gemm_scalar *x) {
    return x->re == 0 && x->im == 0;
}

/* The product of the operands `at`, by a slot that stays as it is; its status. */
static int compute(memo *self, const slot *known, const extent *at) {
    const gemm_plan *plan = known->plan;
    const void *c = is_zero(&known->beta) ? NULL : at[C].data;
    double work = (double)plan->m * (double)plan->n * (double)plan->k;
    for (int axis = 0; axis < plan->batch_ndim; axis++) work *= (double)plan->batch_shape[axis];
    if (work < WORTH_RELEASING)
        return self->run(plan, at[A].data, at[B].data, c, at[OUT].data, &known->alpha, &known->beta);
    PyThreadState *state = PyEval_SaveThread();
    const int status = self->run(plan, at[A].data, at[B].data, c, at[OUT].data, &known->alpha, &known->beta);
    PyEval_RestoreThread(state);
    return status;
}

PyDoc_STRVAR(run_doc, "run(a, b, c, out, /)\n--\n\n"
                      "The product, in `out` or (None) in a new array, if one like it was learned; else None.");

static PyObject *memo_run(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    memo *self = (memo *)object;
    signature key;
    extent at[OPERANDS];
    if (!counted(count, OPERANDS, "run")) return NULL;
    if (!read_operands(self, arguments, &key, at)) Py_RETURN_NONE;
    const slot *found = place_of(self, &key);
    if (!found->keep || memcmp(&found->key, &key, sizeof key)) Py_RETURN_NONE;
    const slot known = *found; /* other code, run below or in other threads, may learn over it meanwhile */
    Py_INCREF(known.keep);
    Py_INCREF(known.make);
    int status = GEMM_OK;
    PyObject *result = arguments[OUT];
    if (result == Py_None) {
        signature ignored;
        result = PyObject_CallObject(self->empty, known.make);
        if (result && !read_array(self, result, OUT, &ignored, &at[OUT])) status = GEMM_UNALIGNED;
    } else {
        Py_INCREF(result);
    }
    if (result && status == GEMM_OK) status = compute(self, &known, at);
    Py_DECREF(known.keep);
    Py_DECREF(known.make);
    if (!result || status == GEMM_OK) return result;
    Py_DECREF(result);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(learn_doc,
             "learn(a, b, c, out, make, plan, alpha, beta, keep, /)\n--\n\n"
             "Remember that operands like these are multiplied by the gemm_plan at the address `plan`, which lives as "
             "long as `keep`.\n\nWith out=None, `make` holds the arguments of numpy.empty for the result. What cannot "
             "be repeated is not learned.");

static PyObject *memo_learn(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    enum { MAKE = OPERANDS, PLAN, ALPHA, BETA, KEEP, COUNT };
    memo *self = (memo *)object;
    slot fresh;
    extent at[OPERANDS];
    if (!counted(count, COUNT, "learn")) return NULL;
    if (!read_operands(self, arguments, &fresh.key, at)) Py_RETURN_NONE;
    fresh.plan = (const gemm_plan *)PyLong_AsVoidPtr(arguments[PLAN]);
    fresh.alpha = scalar_of(arguments[ALPHA]), fresh.beta = scalar_of(arguments[BETA]);
    if (PyErr_Occurred()) return NULL;
    fresh.keep = arguments[KEEP], fresh.make = arguments[MAKE];
    Py_INCREF(fresh.keep);
    Py_INCREF(fresh.make);
    slot *place = place_of(self, &fresh.key);
    const slot before = *place;
    *place = fresh;
    Py_XDECREF(before.keep);
    Py_XDECREF(before.make);
    Py_RETURN_NONE;
}

static PyObject *memo_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *ndarray, *empty, *address;
    Py_ssize_t count;
    if (keywords && PyDict_Size(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Memo takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "OOOn:Memo", &ndarray, &empty, &address, &count)) return NULL;
    void *run = PyLong_AsVoidPtr(address);
    if (!run || count < 1) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "Memo needs the address of gemm_run and slots");
        return NULL;
    }
    memo *self = (memo *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); /* zeroed */
    if (!self) return NULL;
    Py_INCREF(ndarray);
    Py_INCREF(empty);
    self->ndarray = ndarray, self->empty = empty, self->count = count;
    memcpy(&self->run, &run, sizeof run);
    self->interface_name = PyUnicode_InternFromString("__array_struct__");
    self->slots = (slot *)PyMem_Calloc((size_t)count, sizeof(slot));
    if (self->interface_name && self->slots) return (PyObject *)self;
    if (!self->slots) PyErr_NoMemory();
    Py_DECREF(self);
    return NULL;
}

static void memo_free(PyObject *object) {
    memo *self = (memo *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (Py_ssize_t i = 0; self->slots && i < self->count; i++) {
        Py_XDECREF(self->slots[i].keep);
        Py_XDECREF(self->slots[i].make);
    }
    PyMem_Free(self->slots);
    Py_XDECREF(self->ndarray);
    Py_XDECREF(self->empty);
    Py_XDECREF(self->interface_name);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"run", (PyCFunction)(void (*)(void))memo_run, METH_FASTCALL, run_doc},
    {"learn", (PyCFunction)(void (*)(void))memo_learn, METH_FASTCALL, learn_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, (void *)"Memo(ndarray, empty, run, slots, /)\n--\n\n"
                        "Up to `slots` kinds of products that were computed before, for numpy's `ndarray` and `empty` "
                        "and the gemm_run at the address `run`."},
    {Py_tp_new, (void *)memo_new},
    {Py_tp_dealloc, (void *)memo_free},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec type_spec = {"gemm._memo.Memo", sizeof(memo), 0, Py_TPFLAGS_DEFAULT, type_slots};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_memo", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__memo(void) {
    PyObject *made = PyModule_Create(&module);
    PyObject *type = made ? PyType_FromSpec(&type_spec) : NULL;
    if (type && !PyModule_AddObject(made, "Memo", type)) return made;
    Py_XDECREF(type);
    Py_XDECREF(made);
    return NULL;
}
