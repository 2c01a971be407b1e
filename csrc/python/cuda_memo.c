/* gemm._cuda.Memo: which Sequence operands like others before are multiplied by, found without Python.
 *
 * For arrays whose library has DLPack's exchange of C functions (PyTorch since 2.10), which tell in some nanoseconds what
 * takes many calls of Python otherwise: address, shape, strides, type and stream. What is not known, or must not be
 * repeated (out overlaps an operand, another alignment), takes the long way, whose result is the same.
 */
#include "cuda.h"
#include "scalar.h"
#include "table.h"

enum { OPERANDS = 4, MOST_AXES = 4, ON_CUDA = 2, COMPLEX = 5, LEGACY_STREAM = 1 };
enum { ALPHA = OPERANDS, BETA, GIVEN, SCALES = 2, EACH = SCALE_BYTES / SCALES }; /* what a call brings */

/* What a product is known by: operands' axes, types, shapes and strides in elements. Unused words are 0. */
typedef struct {
    int64_t role_of_c, device; /* c: absent, an array of its own, or `out` itself */
    int64_t zero[SCALES];      /* alpha is 0; beta is */
    int64_t type[OPERANDS], shape[OPERANDS][MOST_AXES], strides[OPERANDS][MOST_AXES];
} signature;

typedef struct {
    signature key;
    PyObject *sequence;
    PyObject *make;     /* makes a result, where calls bring no output */
    number_type rounds; /* alpha and beta to this, which a launch takes as `form`, the letters of Python's struct */
    char form[3];
    gemm_scalar alpha; /* instead of the call's, where that is 0 */
    uint64_t kept;     /* b's address, where it is prepared */
    int reads_c;
    uint64_t low_bits[OPERANDS]; /* that addresses must not have */
    int64_t span[OPERANDS][2];   /* bytes before and after the first element that an operand may lie at */
} slot;

typedef struct {
    PyObject_HEAD PyObject *kind, *is_neg;
    const exchange *api;
    table slots;
} memo;

const exchange *gemm_exchange(PyObject *capsule) {
    const exchange *api = (const exchange *)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    while (api && api->major != 1) api = (const exchange *)api->older;
    if (api && api->read && api->stream) return api;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the exchange is of another version");
    return NULL;
}

static void let_go(const slot *known) {
    Py_DECREF(known->sequence);
    Py_DECREF(known->make);
}

/* Adds `array` to the signature; 0 for anything but a real array in CUDA's memory that stands for its bits. */
static int read_array(const memo *self, PyObject *array, int at, signature *key, uint64_t *address) {
    dl_tensor x;
    if (Py_TYPE(array) != (PyTypeObject *)self->kind) return 0;
    if (self->api->read(array, &x)) {
        PyErr_Clear();
        return 0;
    }
    const int known = x.device_type == ON_CUDA && x.lanes == 1 && x.code != COMPLEX && x.axes >= 1 &&
                      x.axes <= MOST_AXES && x.strides && (at == A || x.device == key->device);
    if (!known) return 0;
    PyObject *negated = PyObject_CallMethodObjArgs(array, self->is_neg, NULL);
    if (!negated) PyErr_Clear();
    Py_XDECREF(negated);
    if (negated != Py_False) return 0;
    key->device = x.device;
    key->type[at] = (int64_t)x.axes << 16 | x.code << 8 | x.bits;
    for (int axis = 0; axis < x.axes; axis++) {
        key->shape[at][axis] = x.shape[axis], key->strides[at][axis] = x.strides[axis];
        if (!x.shape[axis]) return 0;
    }
    *address = (uint64_t)(uintptr_t)x.data + x.offset;
    return 1;
}

/* The signature and addresses of a, b (None: a prepared one), c and out (None: absent); 0: unknown. */
static int read_operands(const memo *self, PyObject *const *arrays, signature *key, uint64_t *at) {
    memset(key, 0, sizeof *key);
    if (!read_array(self, arrays[A], A, key, &at[A])) return 0;
    if (arrays[B] != Py_None && !read_array(self, arrays[B], B, key, &at[B])) return 0;
    if (arrays[OUT] != Py_None && !read_array(self, arrays[OUT], OUT, key, &at[OUT])) return 0;
    if (arrays[C] == Py_None) return 1;
    key->role_of_c = arrays[C] == arrays[OUT] ? 2 : 1;
    if (key->role_of_c == 1) return read_array(self, arrays[C], C, key, &at[C]);
    at[C] = at[OUT];
    return 1;
}

/* Whether addresses are aligned as the launches expect, and out overlaps nothing that is read. */
static int fitting(const slot *known, const uint64_t *at, int role_of_c) {
    for (int i = 0; i < OPERANDS; i++)
        if (at[i] & known->low_bits[i]) return 0;
    const uint64_t low = at[OUT] + (uint64_t)known->span[OUT][0], high = at[OUT] + (uint64_t)known->span[OUT][1];
    for (int i = 0; i < OUT; i++) {
        const int read = i == C ? known->reads_c && role_of_c == 1 : 1;
        if (read && at[i] + (uint64_t)known->span[i][0] < high && low < at[i] + (uint64_t)known->span[i][1]) return 0;
    }
    return 1;
}

/* alpha and beta as a call brings them; 0: they are no numbers that are read at once. */
static int read_scales(PyObject *const *given, signature *key, number *scales) {
    for (int i = 0; i < SCALES; i++) {
        if (!gemm_read_number(given[ALPHA + i], &scales[i])) return 0;
        key->zero[i] = gemm_is_zero(&scales[i].value);
    }
    return 1;
}

/* Writes a number, of one part or two, as `form` says. */
static void pack(const char *form, const gemm_scalar *x, char *to) {
    const double parts[] = {x->re, x->im};
    const uint32_t word = (uint32_t)(uint64_t)x->integer;
    for (int i = 0; form[i]; i++) {
        const float narrow = (float)parts[i];
        if (form[i] == 'f') memcpy(to + i * (int)sizeof narrow, &narrow, sizeof narrow);
        if (form[i] == 'd') memcpy(to + i * (int)sizeof parts[i], &parts[i], sizeof parts[i]);
        if (form[i] == 'I') memcpy(to, &word, sizeof word);
        if (form[i] == 'Q') memcpy(to, &x->integer, sizeof x->integer);
    }
}

/* Rounds alpha and beta for a launch; 0: it would not be the product that `known` is, or there is none. */
static int round_scales(const slot *known, const number *from, char *scale) {
    memset(scale, 0, SCALE_BYTES);
    for (int i = 0; i < SCALES; i++) {
        gemm_scalar rounded;
        if (!gemm_round_number(&from[i], known->rounds, &rounded) || gemm_is_zero(&rounded) != known->key.zero[i])
            return 0;
        pack(known->form, i == 0 && known->key.zero[0] ? &known->alpha : &rounded, scale + i * EACH);
    }
    return 1;
}

PyDoc_STRVAR(repeat_doc,
             "run(a, b, c, out, alpha, beta, /)\n--\n\n"
             "Enqueue the product, into `out` or (None) a new array, if one like it was learned; else None.");

static PyObject *memo_run(PyObject *object, PyObject *const *arrays, Py_ssize_t count) {
    const memo *self = (memo *)object;
    signature key, ignored;
    uint64_t at[SLOTS] = {0};
    number scales[SCALES];
    char scale[SCALE_BYTES];
    if (count != GIVEN) return PyErr_Format(PyExc_TypeError, "run takes %d arguments, got %zd", GIVEN, count);
    if (!read_operands(self, arrays, &key, at) || !read_scales(arrays, &key, scales)) Py_RETURN_NONE;
    const slot *found = (const slot *)gemm_table_find(&self->slots, &key);
    if (!found || !round_scales(found, scales, scale)) Py_RETURN_NONE;
    const slot known = *found; /* others may learn meanwhile, which moves it */
    Py_INCREF(known.sequence);
    Py_INCREF(known.make);
    PyObject *out = arrays[OUT];
    void *stream = NULL;
    int good = 1, which = 0;
    if (out == Py_None) {
        out = PyObject_CallFunctionObjArgs(known.make, NULL);
        if (!out) PyErr_Clear();
        ignored = key;
        good = out && read_array(self, out, OUT, &ignored, &at[OUT]);
    } else {
        Py_INCREF(out);
    }
    if (arrays[B] == Py_None) at[B] = known.kept;
    if (!known.reads_c) at[C] = 0;
    good = good && fitting(&known, at, (int)key.role_of_c) && !self->api->stream(ON_CUDA, (int32_t)key.device, &stream);
    if (good) {
        if (!stream) stream = (void *)(uintptr_t)LEGACY_STREAM;
        PyThreadState *state = PyEval_SaveThread();
        good = !gemm_sequence_launch(known.sequence, at, stream, scale, &which);
        PyEval_RestoreThread(state);
    }
    Py_DECREF(known.sequence);
    Py_DECREF(known.make);
    if (good) return out;
    if (PyErr_Occurred()) PyErr_Clear();
    Py_XDECREF(out);
    Py_RETURN_NONE; /* the long way meets the same error, and knows what to do */
}

PyDoc_STRVAR(learn_doc,
             "learn(a, b, c, out, alpha, beta, make, sequence, rounds, form, zero, kept, reads_c, aligned, spans, /)\n"
             "--\n\n"
             "Remember that operands like these are multiplied by `sequence`.\n\n"
             "alpha and beta may be others then, but for being 0; they are rounded to a type such as \"f4\", and a "
             "launch takes them as struct packs `form`. `zero` is launched for an alpha of 0.");

static PyObject *memo_learn(PyObject *object, PyObject *arguments) {
    memo *self = (memo *)object;
    slot fresh;
    memset(&fresh, 0, sizeof fresh);
    PyObject *arrays[GIVEN], *zero, *kind;
    uint64_t at[SLOTS] = {0};
    number scales[SCALES], instead;
    const char *rounds, *form;
    char scale[SCALE_BYTES];
    unsigned long long kept, aligned[OPERANDS];
    long long spans[2 * OPERANDS];
    if (!PyArg_ParseTuple(arguments, "OOOOOOOOssOKp(KKKK)(LLLLLLLL):learn", &arrays[A], &arrays[B], &arrays[C],
                          &arrays[OUT], &arrays[ALPHA], &arrays[BETA], &fresh.make, &fresh.sequence, &rounds, &form,
                          &zero, &kept, &fresh.reads_c, &aligned[0], &aligned[1], &aligned[2], &aligned[3], &spans[0],
                          &spans[1], &spans[2], &spans[3], &spans[4], &spans[5], &spans[6], &spans[7]))
        return NULL;
    kind = PyObject_GetAttrString(object, "sequence_type");
    const int ours = kind && PyObject_IsInstance(fresh.sequence, kind) == 1;
    Py_XDECREF(kind);
    if (!ours || strlen(form) >= sizeof fresh.form)
        return PyErr_Format(PyExc_TypeError, "learn wants a Sequence, and a form of one or two letters");
    if (!gemm_read_type(rounds, &fresh.rounds)) return NULL;
    memcpy(fresh.form, form, strlen(form));
    if (!read_operands(self, arrays, &fresh.key, at) || !read_scales(arrays, &fresh.key, scales)) Py_RETURN_FALSE;
    if (!gemm_read_number(zero, &instead) || !gemm_round_number(&instead, fresh.rounds, &fresh.alpha) ||
        !round_scales(&fresh, scales, scale))
        Py_RETURN_FALSE;
    fresh.kept = kept;
    for (int i = 0; i < OPERANDS; i++) {
        fresh.low_bits[i] = aligned[i] - 1;
        fresh.span[i][0] = spans[2 * i], fresh.span[i][1] = spans[2 * i + 1];
    }
    Py_INCREF(fresh.sequence);
    Py_INCREF(fresh.make);
    slot before;
    const int put = gemm_table_put(&self->slots, &fresh, &before);
    if (put == NO_MEMORY) let_go(&fresh);
    if (put == REPLACED) let_go(&before);
    if (put == NO_MEMORY) return PyErr_NoMemory();
    Py_RETURN_TRUE;
}

static PyObject *memo_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *kind, *capsule;
    Py_ssize_t most;
    if (keywords && PyDict_Size(keywords)) return PyErr_Format(PyExc_TypeError, "Memo takes no keyword arguments");
    if (!PyArg_ParseTuple(arguments, "OOn:Memo", &kind, &capsule, &most)) return NULL;
    const exchange *api = gemm_exchange(capsule);
    if (!api) return NULL;
    if (!PyType_Check(kind) || most < 1 || most > 1 << 20)
        return PyErr_Format(PyExc_ValueError, "Memo needs a class and slots");
    memo *self = (memo *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); /* zeroed */
    if (!self) return NULL;
    Py_INCREF(kind);
    self->kind = kind, self->api = api;
    self->is_neg = PyUnicode_InternFromString("is_neg");
    self->slots.key_bytes = sizeof(signature), self->slots.entry_bytes = sizeof(slot);
    self->slots.most = (uint32_t)most;
    if (self->is_neg) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void memo_free(PyObject *object) {
    memo *self = (memo *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (uint32_t i = 0; i < self->slots.count; i++) let_go((const slot *)self->slots.entries + i);
    gemm_table_free(&self->slots);
    Py_XDECREF(self->kind);
    Py_XDECREF(self->is_neg);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef memo_methods[] = {
    {"run", (PyCFunction)(void (*)(void))memo_run, METH_FASTCALL, repeat_doc},
    {"learn", memo_learn, METH_VARARGS, learn_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot memo_slots[] = {
    {Py_tp_doc, (void *)"Memo(kind, exchange, slots, /)\n--\n\n"
                        "Up to `slots` kinds of products of arrays of the class `kind`, whose "
                        "__dlpack_c_exchange_api__ is `exchange`."},
    {Py_tp_new, (void *)memo_new},
    {Py_tp_dealloc, (void *)memo_free},
    {Py_tp_methods, memo_methods},
    {0, NULL},
};

PyType_Spec gemm_memo_type = {"gemm._cuda.Memo", sizeof(memo), 0, Py_TPFLAGS_DEFAULT, memo_slots};
