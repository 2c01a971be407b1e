/* gemm._memo: repeats products of NumPy arrays, and of some device arrays, without the checks in Python.
 *
 * For the first product of a kind, gemm/frontend/arguments.py normalises the arguments, and a plan is chosen. A Memo
 * stores the plan under the operands' signature: element types, shapes and strides. Products with the same signature
 * are of one kind. A later call goes directly to the engine if its operands have a known signature and its output
 * overlaps no input (except that c may be the output). All other calls go through the checks in Python. This file makes
 * no choices, and raises no errors about operands.
 *
 * Only arrays of the exact class numpy.ndarray are read: a subclass may give its elements another meaning.
 */
#define GEMM_IMPORTS_NUMPY
#include "memo.h"

#include <math.h>
#include <string.h>

/* Returns the word that represents an array's element type in a signature. For NumPy's own types, this is NumPy's type
 * number. For other types, such as bfloat16, it is the address of the dtype object; gemm.frontend.plan_cache has
 * checked that this object is never freed. Returns 0 for types that cannot be multiplied here. */
static Py_ssize_t type_of(PyArrayObject *array) {
    const int number = PyArray_TYPE(array);
    if ((number >= NPY_BYTE && number <= NPY_CLONGDOUBLE) || number == NPY_HALF) return number;
    return number >= NPY_USERDEF ? (Py_ssize_t)PyArray_DESCR(array) : 0;
}

/* Adds the operand `object` to the signature at position `at`, and stores its extent in `where`. Returns 0 unless
 * `object` is an aligned, non-empty ndarray of numbers with 1 to MOST_AXES axes, or an array that gemm_device_read can
 * read. */
static int read_array(PyObject *object, int at, signature *key, extent *where) {
    if (!PyArray_CheckExact(object)) return gemm_device_read(object, at, key, where);
    PyArrayObject *array = (PyArrayObject *)object;
    const int needs = NPY_ARRAY_ALIGNED | (at == OUT ? NPY_ARRAY_WRITEABLE : 0), axes = PyArray_NDIM(array);
    const Py_ssize_t type = type_of(array), size = (Py_ssize_t)PyArray_ITEMSIZE(array);
    if (!type || axes < 1 || axes > MOST_AXES || key->place) return 0;
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

/* Returns whether `object` is an array with the type, shape and strides of position `at` in the signature. Stores the
 * address of the array's first element in `data`. */
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

/* The current era. A plan that was chosen in an earlier era must not be repeated: its kernel may have failed since. */
static PyObject *era;

int gemm_memo_holds(const memo *self) {
    return self->era == era;
}

/* Reads signature and extents of a, b, c, out and bias (None: absent). Returns 0 if the product cannot be repeated. */
static int read_operands(PyObject *const *arrays, signature *key, extent *where) {
    memset(key, 0, sizeof *key);
    memset(where, 0, ARRAYS * sizeof *where);
    if (!read_array(arrays[A], A, key, &where[A])) return 0;
    const int kept = key->place && arrays[B] == Py_None;
    if (!kept && !read_array(arrays[B], B, key, &where[B])) return 0;
    if (arrays[C] != Py_None) {
        key->role_of_c = arrays[C] == arrays[OUT] ? 2 : 1;
        if (!read_array(arrays[C], C, key, &where[C])) return 0;
    }
    const int biased = arrays[BIAS] != Py_None;
    if (biased && !read_array(arrays[BIAS], BIAS, key, &where[BIAS])) return 0;
    if (arrays[OUT] == Py_None) return 1;
    return read_array(arrays[OUT], OUT, key, &where[OUT]) && gemm_apart(&where[A], &where[OUT]) &&
           (kept || gemm_apart(&where[B], &where[OUT])) &&
           (key->role_of_c != 1 || gemm_apart(&where[C], &where[OUT])) &&
           (!biased || gemm_apart(&where[BIAS], &where[OUT]));
}

static int counted(Py_ssize_t count, Py_ssize_t wanted, const char *name) {
    if (count != wanted) PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", name, wanted, count);
    return count == wanted;
}

/* Reads alpha or beta. Returns 0 if `object` is not a number of a known type. */
static int read_scale(PyObject *object, number *to) {
    if (gemm_read_number(object, to)) return 1;
    const int real = PyArray_IsScalar(object, Floating) && !PyArray_IsScalar(object, LongDouble);
    const int pair = PyArray_IsScalar(object, ComplexFloating) && !PyArray_IsScalar(object, CLongDouble);
    PyObject *plain =
        real || pair || PyArray_IsScalar(object, Integer) ? PyObject_CallMethod(object, "item", NULL) : NULL;
    const int read = plain && gemm_read_number(plain, to);
    Py_XDECREF(plain);
    PyErr_Clear();
    return read;
}

/* Rounds alpha and beta for the computation. Returns 0 if a value does not fit the type. Also returns 0 if rounding
 * makes a value 0, because the signature records which values are 0. */
static int round_scales(const slot *known, const number *from, gemm_scalar *scale) {
    for (int i = 0; i < SCALES; i++)
        if (!gemm_round_number(&from[i], known->rounds, &scale[i]) || gemm_is_zero(&scale[i]) != known->key.zero[i])
            return 0;
    if (known->key.zero[0]) scale[0] = known->alpha;
    return 1;
}

static int read_given(PyObject *const *given, signature *key, extent *at, number *scales) {
    if (!read_operands(given, key, at)) return 0;
    for (int i = 0; i < SCALES; i++) {
        if (!read_scale(given[ALPHA + i], &scales[i])) return 0;
        key->zero[i] = gemm_is_zero(&scales[i].value);
    }
    return 1;
}

/* Returns the work of a plan, in multiply-adds. */
static double work_of(const gemm_plan *plan) {
    double work = (double)plan->m * (double)plan->n * (double)plan->k;
    for (int axis = 0; axis < plan->batch_ndim; axis++) work *= (double)plan->batch_shape[axis];
    return work;
}

/* Computes the product of the operands at the addresses `at`. Returns the engine's status. */
static int compute(const memo *self, const slot *known, const gemm_scalar *scale, const extent *at) {
    const void *c = known->key.zero[1] ? NULL : at[C].data;
    PyThreadState *state = known->work < WORTH_RELEASING ? NULL : PyEval_SaveThread();
    const int status = self->run(known->plan, at[A].data, at[B].data, c, at[OUT].data, &scale[0], &scale[1]);
    if (state) PyEval_RestoreThread(state);
    return status;
}

const slot *gemm_memo_find(const memo *self, PyObject *const *given, extent *at, gemm_scalar *scale) {
    signature key;
    number scales[SCALES];
    if (!gemm_memo_holds(self) || !read_given(given, &key, at, scales)) return NULL;
    const slot *found = (const slot *)gemm_table_find(&self->slots, &key);
    return found && round_scales(found, scales, scale) ? found : NULL;
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

static void hold(const slot *known) {
    Py_INCREF(known->keep);
    Py_INCREF(known->make);
    Py_XINCREF(known->finish);
    Py_XINCREF(known->wide);
}

static void let_go(const slot *known) {
    Py_DECREF(known->keep);
    Py_DECREF(known->make);
    Py_XDECREF(known->finish);
    Py_XDECREF(known->wide);
}

/* Returns a copy of `array` with the dtype `wide` and the same order of axes in memory. Stores the copy's address in
 * `at`. Returns NULL with an error set on failure. */
static PyObject *widened(PyObject *array, PyObject *wide, extent *at) {
    Py_INCREF(wide);
    PyObject *made = PyArray_NewLikeArray((PyArrayObject *)array, NPY_KEEPORDER, (PyArray_Descr *)wide, 0);
    if (made && PyArray_CopyInto((PyArrayObject *)made, (PyArrayObject *)array)) {
        Py_DECREF(made);
        return NULL;
    }
    if (made) at->data = PyArray_BYTES((PyArrayObject *)made);
    return made;
}

/* Returns a new array with the shape of `result` and the dtype `wide`, for the sums of a product whose result has a
 * narrower dtype. Stores the new array's address in `at`. Returns NULL with an error set on failure. */
static PyObject *sums_of(PyObject *result, PyObject *wide, extent *at) {
    PyArrayObject *like = (PyArrayObject *)result;
    Py_INCREF(wide);
    PyObject *made = PyArray_NewFromDescr(&PyArray_Type, (PyArray_Descr *)wide, PyArray_NDIM(like), PyArray_DIMS(like),
                                          NULL, NULL, 0, NULL);
    if (made) at->data = PyArray_BYTES((PyArrayObject *)made);
    return made;
}

/* Computes a product that needs a conversion of operands, a bias or an activation, which the engine cannot do itself.
 * Stores the product in `result`. Returns 0 on failure; an error may or may not be set. */
static int compute_around(const memo *self, const slot *known, const gemm_scalar *scale, PyObject *const *given,
                          extent *at, PyObject *result) {
    PyObject *own[OPERANDS] = {NULL}, *done = NULL;
    const int narrow =
        known->wide && PyArray_ITEMSIZE((PyArrayObject *)result) < PyDataType_ELSIZE((PyArray_Descr *)known->wide);
    int good = 1;
    if (known->wide && !known->key.zero[0])
        for (int i = A; i <= B && good; i++) good = (own[i] = widened(given[i], known->wide, &at[i])) != NULL;
    if (good && narrow && !known->key.zero[1]) good = (own[C] = widened(given[C], known->wide, &at[C])) != NULL;
    if (good && narrow) good = (own[OUT] = sums_of(result, known->wide, &at[OUT])) != NULL;
    good = good && compute(self, known, scale, at) == GEMM_OK;
    if (good && known->finish) {
        PyObject *sums = own[OUT] ? own[OUT] : result;
        done = PyObject_CallFunctionObjArgs(known->finish, sums, result, given[BIAS], NULL);
        good = done != NULL;
        Py_XDECREF(done);
    }
    for (int i = 0; i < OPERANDS; i++) Py_XDECREF(own[i]);
    return good;
}

PyObject *gemm_memo_repeat(PyObject *object, PyObject *const *given) {
    const memo *self = (const memo *)object;
    extent at[ARRAYS];
    gemm_scalar scale[SCALES];
    const slot *found = gemm_memo_find(self, given, at, scale);
    if (!found || !(found->plan || found->key.place)) return NULL;
    const slot known = *found; /* a copy, because another thread's `learn` may move the entry */
    hold(&known);
    if (known.key.place) {
        PyObject *enqueued = gemm_device_repeat(&known, given, at, scale);
        let_go(&known);
        return enqueued;
    }
    PyObject *result = gemm_memo_output(&known, given, at);
    const int done = result && (known.finish || known.wide ? compute_around(self, &known, scale, given, at, result)
                                                           : compute(self, &known, scale, at) == GEMM_OK);
    if (!done) {
        Py_XDECREF(result);
        result = NULL;
    }
    let_go(&known);
    return result;
}

PyDoc_STRVAR(run_doc, "run(a, b, c, out, bias, alpha, beta, /)\n--\n\n"
                      "Compute the product if one like it was learned. Return the result (`out`, or a new array if "
                      "`out` is None), or None if no such product was learned.");

static PyObject *memo_run(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    if (!counted(count, GIVEN, "run")) return NULL;
    PyObject *batch = gemm_batches ? gemm_batch_pause() : NULL;
    if (!batch && PyErr_Occurred()) return NULL;
    PyObject *result = gemm_memo_repeat(object, arguments);
    if (batch) gemm_batch_resume(batch);
    if (result || PyErr_Occurred()) return result;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(clear_doc, "clear()\n--\n\n"
                        "Forget all products.");

static PyObject *memo_clear(PyObject *object, PyObject *ignored) {
    (void)ignored;
    memo *self = (memo *)object;
    /* Entries leave the Memo before their objects are released, because releasing them may run any code, even on this
     * Memo. */
    table left = self->slots;
    memset(&self->slots, 0, sizeof self->slots);
    self->slots.key_bytes = left.key_bytes, self->slots.entry_bytes = left.entry_bytes, self->slots.most = left.most;
    for (uint32_t i = 0; i < left.count; i++) let_go((const slot *)left.entries + i);
    gemm_table_free(&left);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    learn_doc,
    "learn(a, b, c, out, bias, alpha, beta, began, make, plan, rounds, zero, keep, finish, wide, device, /)\n--\n\n"
    "Remember how products of operands like these are computed. Later products may have other values "
    "of alpha and beta, as long as the same scalars are 0.\n"
    "\n"
    "plan: the address of the gemm_plan to run, which stays valid as long as `keep`. If `plan` is 0, "
    "the product is computed elsewhere and `keep` is its number of multiply-adds; only a Batch uses "
    "such an entry.\n"
    "device: None, or (form, address, low, high, bits of a, b, c, out) for a product that the "
    "Sequence `keep` launches. alpha and beta are packed by `form`, one or two letters of the module "
    "struct. `address` is that of b if b is None; b then occupies the bytes from address + `low` to "
    "address + `high`. The addresses of the operands must have none of the `bits`.\n"
    "make: with out=None, the (shape, dtype) of the result; with `device`, the function that makes a "
    "new result.\n"
    "rounds: a type such as \"f4\", to which alpha and beta are rounded. zero: the alpha that is "
    "launched in place of an alpha of 0.\n"
    "finish: None, or finish(sums, out, bias), which is called after the plan has run. `sums` is out "
    "itself, or a new array if `wide` is a wider dtype.\n"
    "wide: None, or the dtype to which a and b, and c if there is one, are converted for the plan.\n"
    "began: the era in which the plan was chosen. Nothing is learned if that era has ended, or if the "
    "product cannot be repeated.");

static PyObject *memo_learn(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    enum { BEGAN = GIVEN, MAKE, PLAN, ROUNDS, ZERO, KEEP, FINISH, WIDE, DEVICE, COUNT };
    memo *self = (memo *)object;
    slot fresh, before;
    extent at[ARRAYS];
    number scales[SCALES], zero;
    gemm_scalar scale[SCALES];
    if (!counted(count, COUNT, "learn")) return NULL;
    memset(&fresh, 0, sizeof fresh);
    if (!read_given(arguments, &fresh.key, at, scales)) Py_RETURN_NONE;
    fresh.plan = (const gemm_plan *)PyLong_AsVoidPtr(arguments[PLAN]);
    if (PyErr_Occurred()) return NULL;
    PyObject *text = PyUnicode_AsASCIIString(arguments[ROUNDS]);
    const int typed = text && gemm_read_type(PyBytes_AsString(text), &fresh.rounds);
    Py_XDECREF(text);
    if (!typed) return NULL;
    if (!gemm_read_number(arguments[ZERO], &zero) || !gemm_round_number(&zero, fresh.rounds, &fresh.alpha) ||
        !round_scales(&fresh, scales, scale))
        Py_RETURN_NONE;
    fresh.keep = arguments[KEEP], fresh.make = Py_None;
    if (fresh.key.place) {
        if (!gemm_device_learn(arguments[DEVICE], &fresh)) return NULL;
        fresh.make = arguments[MAKE];
        fresh.work = INFINITY; /* never pending in a Batch */
    } else {
        fresh.work = fresh.plan ? work_of(fresh.plan) : PyFloat_AsDouble(fresh.keep);
        if (PyErr_Occurred()) return NULL;
    }
    if (!fresh.key.place && arguments[MAKE] != Py_None) {
        PyObject *shape;
        if (!PyArg_ParseTuple(arguments[MAKE], "O!O!", &PyTuple_Type, &shape, &PyArrayDescr_Type, &fresh.make))
            return NULL;
        fresh.axes = (int)PyTuple_Size(shape);
        if (fresh.axes > MOST_AXES) Py_RETURN_NONE;
        for (int i = 0; i < fresh.axes; i++) fresh.shape[i] = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
        if (PyErr_Occurred()) return NULL;
    }
    if (arguments[FINISH] != Py_None) fresh.finish = arguments[FINISH];
    if (arguments[WIDE] != Py_None) fresh.wide = arguments[WIDE];
    if (fresh.wide && !PyObject_TypeCheck(fresh.wide, &PyArrayDescr_Type))
        return PyErr_Format(PyExc_TypeError, "`wide` is a dtype, or None");
    if (self->era != arguments[BEGAN]) {
        Py_XDECREF(memo_clear(object, NULL));
        PyObject *ended = self->era;
        Py_INCREF(arguments[BEGAN]);
        self->era = arguments[BEGAN];
        Py_XDECREF(ended);
    }
    /* The era may have ended since the plan was chosen: memo_clear above may also let another thread call forget. */
    if (era != arguments[BEGAN]) Py_RETURN_NONE;
    hold(&fresh);
    const int put = gemm_table_put(&self->slots, &fresh, &before);
    if (put == NO_MEMORY) let_go(&fresh);
    if (put == REPLACED) let_go(&before);
    if (put == NO_MEMORY) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *memo_length(PyObject *object, PyObject *ignored) {
    (void)ignored;
    const memo *self = (const memo *)object;
    return PyLong_FromUnsignedLong(gemm_memo_holds(self) ? self->slots.count : 0);
}

PyDoc_STRVAR(length_doc, "known()\n--\n\n"
                         "Return the number of known kinds of products.");

static PyObject *memo_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *address, *options = Py_None;
    Py_ssize_t most;
    if (keywords && PyDict_Size(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Memo takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "On|O:Memo", &address, &most, &options)) return NULL;
    void *run = PyLong_AsVoidPtr(address);
    if (!run || most < 1 || most > 1 << 20) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "Memo needs the address of gemm_run and slots");
        return NULL;
    }
    memo *self = (memo *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); /* memory is zeroed */
    if (!self) return NULL;
    self->slots.key_bytes = sizeof(signature), self->slots.entry_bytes = sizeof(slot);
    self->slots.most = (uint32_t)most;
    memcpy(&self->run, &run, sizeof run);
    Py_INCREF(options);
    self->options = options;
    return (PyObject *)self;
}

static void memo_free(PyObject *object) {
    memo *self = (memo *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(memo_clear(object, NULL));
    Py_XDECREF(self->options);
    Py_XDECREF(self->era);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"run", (PyCFunction)(void (*)(void))memo_run, METH_FASTCALL, run_doc},
    {"learn", (PyCFunction)(void (*)(void))memo_learn, METH_FASTCALL, learn_doc},
    {"clear", memo_clear, METH_NOARGS, clear_doc},
    {"known", memo_length, METH_NOARGS, length_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc,
     (void *)"Memo(run, slots, options=None, /)\n--\n\n"
             "Knows how to repeat up to `slots` kinds of products. `run` is the address of gemm_run. `options` "
             "are the options that the products share; a Batch passes them on."},
    {Py_tp_new, (void *)memo_new},
    {Py_tp_dealloc, (void *)memo_free},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec gemm_memo_type = {"gemm._memo.Memo", sizeof(memo), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, type_slots};

PyDoc_STRVAR(since_doc, "since()\n--\n\n"
                        "Return the current era. An era ends when plans that were chosen before must not be repeated.");

static PyObject *since(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    Py_INCREF(era);
    return era;
}

PyDoc_STRVAR(forget_doc, "forget()\n--\n\n"
                         "End the era: products that were chosen before are not repeated.");

static PyObject *forget(PyObject *module, PyObject *ignored) {
    (void)module, (void)ignored;
    static unsigned long long number;
    PyObject *ended = era, *fresh = PyLong_FromUnsignedLongLong(++number);
    if (!fresh) return NULL;
    era = fresh;
    Py_XDECREF(ended);
    gemm_front_forget();
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"since", since, METH_NOARGS, since_doc},
    {"forget", forget, METH_NOARGS, forget_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_memo", NULL, -1, NULL, NULL, NULL, NULL, NULL};

static int add_type(PyObject *to, PyType_Spec *spec, const char *name) {
    PyObject *type = PyType_FromSpec(spec);
    if (type && !PyModule_AddObject(to, name, type)) return 1;
    Py_XDECREF(type);
    return 0;
}

PyMODINIT_FUNC PyInit__memo(void) {
    import_array(); /* this macro returns NULL on failure */
    PyObject *begun = forget(NULL, NULL), *made = begun ? PyModule_Create(&module) : NULL;
    Py_XDECREF(begun);
    if (made && !PyModule_AddFunctions(made, functions) && add_type(made, &gemm_memo_type, "Memo") &&
        add_type(made, &gemm_batch_type, "Batch") && add_type(made, &gemm_sequence_type, "Sequence") &&
        !PyModule_AddFunctions(made, gemm_front_methods) && !PyModule_AddFunctions(made, gemm_batch_methods) &&
        !PyModule_AddFunctions(made, gemm_device_methods)) {
        gemm_sequences = PyObject_GetAttrString(made, "Sequence");
        return made;
    }
    Py_XDECREF(made);
    return NULL;
}
