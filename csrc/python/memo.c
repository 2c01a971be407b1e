/* gemm._memo: repeats products of NumPy arrays without the checks in Python.
 *
 * The first product of a kind goes through gemm/call.py, which checks, normalises and chooses; what came out is learned
 * here under the operands' signature: element type, shapes and strides. A later call whose operands have a known
 * signature, and whose output overlaps no input, runs straight into the engine. Anything else is unknown, and the
 * caller goes the long way: this file decides nothing and raises no error of its own about operands.
 *
 * Arrays are read only if they are exactly numpy.ndarray: a subclass may mean more than its numbers.
 */
#include "memo.h"

#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#include <numpy/arrayobject.h>

#include <stdint.h>
#include <string.h>

#include "../gemm.h" /* by its place: csrc/ has a complex.h, which NumPy must not find */

enum { MOST_AXES = 3 };                    /* operands of more axes are always unknown */
static const double WORTH_RELEASING = 5e5; /* multiply-adds: below this, releasing the GIL costs more than it gives */

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
    PyObject *make; /* the dtype of a new result, or None where calls bring an output */
    int axes;       /* of a new result */
    npy_intp shape[MOST_AXES];
} slot;

typedef int run_function(const gemm_plan *, const void *, const void *, const void *, void *, const gemm_scalar *,
                         const gemm_scalar *);

typedef struct {
    PyObject_HEAD run_function *run;
    Py_ssize_t count;
    slot *slots;
} memo;

static slot *place_of(memo *self, const signature *key) {
    const Py_ssize_t *words = (const Py_ssize_t *)key;
    uint64_t hash = 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i < sizeof *key / sizeof *words; i++) hash = (hash ^ (uint64_t)words[i]) * 0xBF58476D1CE4E5B9u;
    return &self->slots[(hash >> 32) % (uint64_t)self->count];
}

/* The word that stands for an element type: NumPy's number of it; types that are not NumPy's own, such as bfloat16, are
 * known by their dtype, an object that gemm.repeat has found to be the one that lives for ever. 0 for anything else. */
static Py_ssize_t type_of(PyArrayObject *array) {
    const int number = PyArray_TYPE(array);
    if ((number >= NPY_BYTE && number <= NPY_CLONGDOUBLE) || number == NPY_HALF) return number;
    return number >= NPY_USERDEF ? (Py_ssize_t)PyArray_DESCR(array) : 0;
}

/* Adds `object` to the signature; 0 for anything but an aligned ndarray of numbers with few axes and some elements. */
static int read_array(PyObject *object, int at, signature *key, extent *where) {
    if (!PyArray_CheckExact(object)) return 0;
    PyArrayObject *array = (PyArrayObject *)object;
    const int needs = NPY_ARRAY_ALIGNED | (at == OUT ? NPY_ARRAY_WRITEABLE : 0), axes = PyArray_NDIM(array);
    const Py_ssize_t type = type_of(array), size = (Py_ssize_t)PyArray_ITEMSIZE(array);
    if (!type || axes < 1 || axes > MOST_AXES) return 0;
    if ((PyArray_FLAGS(array) & needs) != needs || !PyArray_ISNOTSWAPPED(array)) return 0;
    const npy_intp *shape = PyArray_DIMS(array), *strides = PyArray_STRIDES(array);
    key->type[at] = type;
    key->axes[at] = axes;
    where->data = PyArray_BYTES(array);
    where->low = (uintptr_t)where->data, where->high = where->low + (uintptr_t)size;
    for (int axis = 0; axis < axes; axis++) {
        const Py_ssize_t length = shape[axis], stride = strides[axis];
        if (length <= 0 || stride % size) return 0;
        key->shape[at][axis] = length, key->strides[at][axis] = stride;
        *(stride < 0 ? &where->low : &where->high) += (uintptr_t)(stride * (length - 1));
    }
    return 1;
}

static int apart(const extent *x, const extent *y) {
    return x->high <= y->low || y->high <= x->low;
}

/* The signature and extents of a, b, c and out (None: absent); 0 if their product cannot be repeated from here. */
static int read_operands(PyObject *const *arrays, signature *key, extent *where) {
    memset(key, 0, sizeof *key);
    memset(where, 0, OPERANDS * sizeof *where);
    if (!read_array(arrays[A], A, key, &where[A]) || !read_array(arrays[B], B, key, &where[B])) return 0;
    if (arrays[C] != Py_None) {
        key->role_of_c = arrays[C] == arrays[OUT] ? 2 : 1;
        if (!read_array(arrays[C], C, key, &where[C])) return 0;
    }
    if (arrays[OUT] == Py_None) return 1;
    return read_array(arrays[OUT], OUT, key, &where[OUT]) && apart(&where[A], &where[OUT]) &&
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

/* The product of the operands `at`; its status. */
static int compute(memo *self, const gemm_plan *plan, const gemm_scalar *alpha, const gemm_scalar *beta,
                   const extent *at) {
    const void *c = is_zero(beta) ? NULL : at[C].data;
    double work = (double)plan->m * (double)plan->n * (double)plan->k;
    for (int axis = 0; axis < plan->batch_ndim; axis++) work *= (double)plan->batch_shape[axis];
    if (work < WORTH_RELEASING) return self->run(plan, at[A].data, at[B].data, c, at[OUT].data, alpha, beta);
    PyThreadState *state = PyEval_SaveThread();
    const int status = self->run(plan, at[A].data, at[B].data, c, at[OUT].data, alpha, beta);
    PyEval_RestoreThread(state);
    return status;
}

PyObject *gemm_memo_repeat(PyObject *object, PyObject *const *operands) {
    memo *self = (memo *)object;
    signature key;
    extent at[OPERANDS];
    if (!read_operands(operands, &key, at)) return NULL;
    const slot *found = place_of(self, &key);
    if (!found->keep || memcmp(&found->key, &key, sizeof key)) return NULL;
    const gemm_plan *plan = found->plan;
    const gemm_scalar alpha = found->alpha, beta = found->beta;
    PyObject *result = operands[OUT], *keep = found->keep; /* others may learn over the slot meanwhile */
    Py_INCREF(keep);
    if (result == Py_None) {
        Py_INCREF(found->make);
        result = PyArray_NewFromDescr(&PyArray_Type, (PyArray_Descr *)found->make, found->axes, found->shape, NULL,
                                      NULL, 0, NULL);
        if (result) at[OUT].data = PyArray_BYTES((PyArrayObject *)result);
    } else {
        Py_INCREF(result);
    }
    if (result && compute(self, plan, &alpha, &beta, at) != GEMM_OK) {
        Py_DECREF(result);
        result = NULL;
    }
    Py_DECREF(keep);
    return result;
}

PyDoc_STRVAR(run_doc, "run(a, b, c, out, /)\n--\n\n"
                      "The product, in `out` or (None) in a new array, if one like it was learned; else None.");

static PyObject *memo_run(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    if (!counted(count, OPERANDS, "run")) return NULL;
    PyObject *result = gemm_memo_repeat(object, arguments);
    if (result || PyErr_Occurred()) return result;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    learn_doc,
    "learn(a, b, c, out, make, plan, alpha, beta, keep, /)\n--\n\n"
    "Remember that operands like these are multiplied by the gemm_plan at the address `plan`, which lives as "
    "long as `keep`.\n\nWith out=None, `make` is the result's (shape, dtype). What cannot be repeated is not learned.");

static PyObject *memo_learn(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    enum { MAKE = OPERANDS, PLAN, ALPHA, BETA, KEEP, COUNT };
    memo *self = (memo *)object;
    slot fresh;
    extent at[OPERANDS];
    if (!counted(count, COUNT, "learn")) return NULL;
    if (!read_operands(arguments, &fresh.key, at)) Py_RETURN_NONE;
    fresh.plan = (const gemm_plan *)PyLong_AsVoidPtr(arguments[PLAN]);
    fresh.alpha = scalar_of(arguments[ALPHA]), fresh.beta = scalar_of(arguments[BETA]);
    if (PyErr_Occurred()) return NULL;
    fresh.keep = arguments[KEEP], fresh.make = Py_None, fresh.axes = 0;
    if (arguments[MAKE] != Py_None) {
        PyObject *shape;
        if (!PyArg_ParseTuple(arguments[MAKE], "O!O!", &PyTuple_Type, &shape, &PyArrayDescr_Type, &fresh.make))
            return NULL;
        fresh.axes = (int)PyTuple_Size(shape);
        if (fresh.axes > MOST_AXES) Py_RETURN_NONE;
        for (int i = 0; i < fresh.axes; i++) fresh.shape[i] = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
        if (PyErr_Occurred()) return NULL;
    }
    Py_INCREF(fresh.keep);
    Py_INCREF(fresh.make);
    slot *place = place_of(self, &fresh.key);
    const slot before = *place;
    *place = fresh;
    Py_XDECREF(before.keep);
    Py_XDECREF(before.make);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(clear_doc, "clear()\n--\n\nForget all that was learned.");

static PyObject *memo_clear(PyObject *object, PyObject *ignored) {
    (void)ignored;
    memo *self = (memo *)object;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        PyObject *keep = self->slots[i].keep, *make = self->slots[i].make;
        self->slots[i].keep = self->slots[i].make = NULL;
        Py_XDECREF(keep);
        Py_XDECREF(make);
    }
    Py_RETURN_NONE;
}

static PyObject *memo_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *address;
    Py_ssize_t count;
    if (keywords && PyDict_Size(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Memo takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "On:Memo", &address, &count)) return NULL;
    void *run = PyLong_AsVoidPtr(address);
    if (!run || count < 1) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "Memo needs the address of gemm_run and slots");
        return NULL;
    }
    memo *self = (memo *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); /* zeroed */
    if (!self) return NULL;
    self->count = count;
    memcpy(&self->run, &run, sizeof run);
    self->slots = (slot *)PyMem_Calloc((size_t)count, sizeof(slot));
    if (self->slots) return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_NoMemory();
}

static void memo_free(PyObject *object) {
    memo *self = (memo *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->slots) Py_XDECREF(memo_clear(object, NULL));
    PyMem_Free(self->slots);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"run", (PyCFunction)(void (*)(void))memo_run, METH_FASTCALL, run_doc},
    {"learn", (PyCFunction)(void (*)(void))memo_learn, METH_FASTCALL, learn_doc},
    {"clear", memo_clear, METH_NOARGS, clear_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, (void *)"Memo(run, slots, /)\n--\n\n"
                        "Up to `slots` kinds of products that were computed before, by the gemm_run at the address "
                        "`run`."},
    {Py_tp_new, (void *)memo_new},
    {Py_tp_dealloc, (void *)memo_free},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec gemm_memo_type = {"gemm._memo.Memo", sizeof(memo), 0, Py_TPFLAGS_DEFAULT, type_slots};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_memo", NULL, -1, gemm_front_methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__memo(void) {
    import_array(); /* returns NULL itself where it fails */
    PyObject *made = PyModule_Create(&module);
    PyObject *type = made ? PyType_FromSpec(&gemm_memo_type) : NULL;
    if (type && !PyModule_AddObject(made, "Memo", type)) return made;
    Py_XDECREF(type);
    Py_XDECREF(made);
    return NULL;
}
