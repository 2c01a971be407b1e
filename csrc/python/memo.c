/* gemm._memo: repeats products of NumPy arrays without the checks in Python.
 *
 * The first product of a kind goes through gemm/call.py, which checks, normalises and chooses; what came out is learned
 * here under the operands' signature: element type, shapes and strides. A later call whose operands have a known
 * signature, and whose output overlaps no input, runs straight into the engine. Anything else is unknown, and the
 * caller goes the long way: this file decides nothing and raises no error of its own about operands.
 *
 * Arrays are read only if they are exactly numpy.ndarray: a subclass may mean more than its numbers.
 */
#define GEMM_IMPORTS_NUMPY
#include "memo.h"

#include <string.h>

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

/* Whether `object` is an array such as was read into the signature at that place; its data. */
static int array_alike(const signature *key, int at, PyObject *object, char **data) {
    if (!PyArray_CheckExact(object)) return 0;
    PyArrayObject *array = (PyArrayObject *)object;
    const int needs = NPY_ARRAY_ALIGNED | (at == OUT ? NPY_ARRAY_WRITEABLE : 0);
    const Py_ssize_t axes = key->axes[at];
    if (PyArray_NDIM(array) != axes || type_of(array) != key->type[at]) return 0;
    if ((PyArray_FLAGS(array) & needs) != needs || !PyArray_ISNOTSWAPPED(array)) return 0;
    const npy_intp *shape = PyArray_DIMS(array), *strides = PyArray_STRIDES(array);
    for (Py_ssize_t axis = 0; axis < axes; axis++)
        if (shape[axis] != key->shape[at][axis] || strides[axis] != key->strides[at][axis]) return 0;
    *data = PyArray_BYTES(array);
    return 1;
}

int gemm_memo_alike(const signature *key, PyObject *const *operands, char **data) {
    const Py_ssize_t role_of_c = operands[C] == Py_None ? 0 : operands[C] == operands[OUT] ? 2 : 1;
    if (key->role_of_c != role_of_c || (key->axes[OUT] != 0) != (operands[OUT] != Py_None)) return 0;
    if (!array_alike(key, A, operands[A], &data[A]) || !array_alike(key, B, operands[B], &data[B])) return 0;
    if (role_of_c && !array_alike(key, C, operands[C], &data[C])) return 0;
    return operands[OUT] == Py_None || array_alike(key, OUT, operands[OUT], &data[OUT]);
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

/* The multiply-adds of a plan. */
static double work_of(const gemm_plan *plan) {
    double work = (double)plan->m * (double)plan->n * (double)plan->k;
    for (int axis = 0; axis < plan->batch_ndim; axis++) work *= (double)plan->batch_shape[axis];
    return work;
}

/* The product of the operands `at`; its status. */
static int compute(memo *self, const gemm_plan *plan, const gemm_scalar *alpha, const gemm_scalar *beta, double work,
                   const extent *at) {
    const void *c = is_zero(beta) ? NULL : at[C].data;
    if (work < WORTH_RELEASING) return self->run(plan, at[A].data, at[B].data, c, at[OUT].data, alpha, beta);
    PyThreadState *state = PyEval_SaveThread();
    const int status = self->run(plan, at[A].data, at[B].data, c, at[OUT].data, alpha, beta);
    PyEval_RestoreThread(state);
    return status;
}

const slot *gemm_memo_find(memo *self, PyObject *const *operands, extent *at) {
    signature key;
    if (!read_operands(operands, &key, at)) return NULL;
    if (memcmp(&self->last->key, &key, sizeof key)) self->last = place_of(self, &key); /* else no need for a hash */
    const slot *found = self->last;
    return found->keep && !memcmp(&found->key, &key, sizeof key) ? found : NULL;
}

PyObject *gemm_memo_output(const slot *kind, PyObject *const *operands, extent *at) {
    PyObject *result = operands[OUT];
    if (result != Py_None) {
        Py_INCREF(result);
        return result;
    }
    Py_INCREF(kind->make);
    result =
        PyArray_NewFromDescr(&PyArray_Type, (PyArray_Descr *)kind->make, kind->axes, kind->shape, NULL, NULL, 0, NULL);
    if (!result) return NULL;
    at[OUT].data = PyArray_BYTES((PyArrayObject *)result);
    at[OUT].low = (uintptr_t)at[OUT].data,
    at[OUT].high = at[OUT].low + (uintptr_t)PyArray_NBYTES((PyArrayObject *)result);
    return result;
}

PyObject *gemm_memo_repeat(PyObject *object, PyObject *const *operands) {
    memo *self = (memo *)object;
    extent at[OPERANDS];
    const slot *found = gemm_memo_find(self, operands, at);
    if (!found || !found->plan) return NULL;
    const gemm_plan *plan = found->plan;
    const gemm_scalar alpha = found->alpha, beta = found->beta;
    const double work = found->work;
    PyObject *keep = found->keep; /* others may learn over the slot meanwhile */
    Py_INCREF(keep);
    PyObject *result = gemm_memo_output(found, operands, at);
    if (result && compute(self, plan, &alpha, &beta, work, at) != GEMM_OK) {
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
    PyObject *batch = gemm_batches ? gemm_batch_pause() : NULL;
    if (!batch && PyErr_Occurred()) return NULL;
    PyObject *result = gemm_memo_repeat(object, arguments);
    if (batch) gemm_batch_resume(batch);
    if (result || PyErr_Occurred()) return result;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(learn_doc,
             "learn(a, b, c, out, make, plan, alpha, beta, keep, /)\n--\n\n"
             "Remember that operands like these are multiplied by the gemm_plan at the address `plan`, which lives as "
             "long as `keep`; or (0) elsewhere, by `keep` multiply-adds, which only a Batch makes use of.\n\nWith "
             "out=None, `make` is the result's (shape, dtype). What cannot be repeated is not learned.");

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
    fresh.work = fresh.plan ? work_of(fresh.plan) : PyFloat_AsDouble(fresh.keep);
    if (PyErr_Occurred()) return NULL;
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
    PyObject *address, *options = Py_None;
    Py_ssize_t count;
    if (keywords && PyDict_Size(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Memo takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "On|O:Memo", &address, &count, &options)) return NULL;
    void *run = PyLong_AsVoidPtr(address);
    if (!run || count < 1) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "Memo needs the address of gemm_run and slots");
        return NULL;
    }
    memo *self = (memo *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); /* zeroed */
    if (!self) return NULL;
    self->count = count;
    memcpy(&self->run, &run, sizeof run);
    Py_INCREF(options);
    self->options = options;
    self->slots = self->last = (slot *)PyMem_Calloc((size_t)count, sizeof(slot));
    if (self->slots) return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_NoMemory();
}

static void memo_free(PyObject *object) {
    memo *self = (memo *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->slots) Py_XDECREF(memo_clear(object, NULL));
    PyMem_Free(self->slots);
    Py_XDECREF(self->options);
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
    {Py_tp_doc, (void *)"Memo(run, slots, options=None, /)\n--\n\n"
                        "Up to `slots` kinds of products that were computed before, by the gemm_run at the address "
                        "`run`; a Batch tells what they have in common by `options`."},
    {Py_tp_new, (void *)memo_new},
    {Py_tp_dealloc, (void *)memo_free},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec gemm_memo_type = {"gemm._memo.Memo", sizeof(memo), 0, Py_TPFLAGS_DEFAULT, type_slots};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_memo", NULL, -1, NULL, NULL, NULL, NULL, NULL};

static int add_type(PyObject *to, PyType_Spec *spec, const char *name) {
    PyObject *type = PyType_FromSpec(spec);
    if (type && !PyModule_AddObject(to, name, type)) return 1;
    Py_XDECREF(type);
    return 0;
}

PyMODINIT_FUNC PyInit__memo(void) {
    import_array(); /* returns NULL itself where it fails */
    PyObject *made = PyModule_Create(&module);
    if (made && add_type(made, &gemm_memo_type, "Memo") && add_type(made, &gemm_batch_type, "Batch") &&
        !PyModule_AddFunctions(made, gemm_front_methods) && !PyModule_AddFunctions(made, gemm_batch_methods))
        return made;
    Py_XDECREF(made);
    return NULL;
}
