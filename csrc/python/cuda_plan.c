/* Repeats products of CUDA arrays for a Memo: reads the arrays' metadata, and launches a Sequence for the arrays.
 *
 * The arrays belong to classes that `reads` has registered. If a class's library has DLPack's C exchange API (PyTorch
 * since 2.10), the API's functions return address, shape, strides, type and stream in some nanoseconds. Arrays of the
 * other classes (CuPy's and gemm's own) are read through their attributes.
 */
#include "cuda.h"
#include "order.h"

enum { ON_CUDA = 2, COMPLEX = 5, LEGACY_STREAM = 1, EACH = SCALE_BYTES / SCALES };
/* Arrays on devices whose number is MOST_DEVICES or higher are not read. A signature contains the sum of the class's
 * address and the device number. This sum is unique, because a class object is larger than MOST_DEVICES bytes. */
enum { MOST_DEVICES = 16, MOST_KINDS = 8 };
enum { SHAPE, STRIDES, DTYPE, OWNER, ADDRESS, DEVICE, NAMES };

PyObject *gemm_sequences;

/* A class of arrays, and how its arrays are read: through the exchange API, or through attributes. */
typedef struct {
    PyObject *kind; /* never released, so that no other class gets the address of this class */
    const exchange *api;
    PyObject *is_neg, *requires_grad; /* with `api`: the names of a method and of an attribute */
    PyObject *records;      /* with `api`: records() returns whether the library records gradients now; None: never */
    PyObject *names[NAMES]; /* without `api`: the names of the attributes, see `reads`; OWNER may be NULL */
    PyObject *stream; /* without `api`: stream(device) returns the stream for the arrays, or None: the legacy stream */
} reader;

static reader readers[MOST_KINDS];
static int kinds;

/* What `gemm_device_read` needs of an array. Strides are in bytes. */
typedef struct {
    char *data;
    Py_ssize_t type, size, device, axes, shape[MOST_AXES], strides[MOST_AXES];
} metadata;

/* Returns whether the library would record a gradient for a product of the array; -1 with an error set on failure. */
static int recorded(const reader *from, PyObject *array) {
    if (from->records == Py_None) return 0;
    PyObject *found = PyObject_GetAttr(array, from->requires_grad);
    if (found == Py_True) {
        Py_DECREF(found);
        found = PyObject_CallObject(from->records, NULL);
    }
    Py_XDECREF(found); /* True and False are never freed */
    return found ? found != Py_False : -1;
}

/* Reads an array through the exchange API. Returns 0 without an error for an array that cannot be multiplied here. */
static int read_exchanged(const reader *from, PyObject *array, metadata *to) {
    dl_tensor x;
    if (from->api->read(array, &x)) return 0;
    if (x.device_type != ON_CUDA || x.lanes != 1 || x.code == COMPLEX || x.axes < 1 || x.axes > MOST_AXES ||
        !x.strides || !x.bits || x.bits % 8)
        return 0;
    PyObject *negated = PyObject_CallMethodObjArgs(array, from->is_neg, NULL);
    Py_XDECREF(negated);
    if (negated != Py_False || recorded(from, array)) return 0;
    to->data = (char *)x.data + x.offset;
    to->type = (Py_ssize_t)x.code << 8 | x.bits, to->size = x.bits / 8, to->device = x.device, to->axes = x.axes;
    for (int axis = 0; axis < x.axes; axis++)
        to->shape[axis] = (Py_ssize_t)x.shape[axis], to->strides[axis] = (Py_ssize_t)x.strides[axis] * to->size;
    return 1;
}

/* Reads a tuple of at most MOST_AXES integers. Returns their number, or -1. */
static Py_ssize_t read_integers(PyObject *object, Py_ssize_t *to) {
    const Py_ssize_t count = object && PyTuple_Check(object) ? PyTuple_Size(object) : -1;
    if (count > MOST_AXES) return -1;
    for (Py_ssize_t i = 0; i < count; i++) to[i] = PyLong_AsSsize_t(PyTuple_GetItem(object, i));
    return count;
}

/* Stores the number of an element type, and its size, if the type can be multiplied: a type of NumPy or of ml_dtypes.
 * NumPy never gives two types the same number. */
static void read_dtype(PyObject *object, metadata *to) {
    if (!object || !PyArray_DescrCheck(object)) return;
    const PyArray_Descr *dtype = (PyArray_Descr *)object;
    const int number = dtype->type_num;
    const int known = (number >= NPY_BYTE && number <= NPY_CLONGDOUBLE) || number == NPY_HALF || number >= NPY_USERDEF;
    if (known && PyArray_ISNBO(dtype->byteorder)) to->type = number, to->size = (Py_ssize_t)PyDataType_ELSIZE(dtype);
}

/* Reads an array through its attributes. Returns 0 for an array that cannot be multiplied here; an error may be set. */
static int read_attributes(const reader *from, PyObject *array, metadata *to) {
    PyObject *got[NAMES] = {NULL}, *owner = array;
    int read = 1;
    for (int i = 0; i < NAMES && read; i++) {
        if (i == OWNER && !from->names[OWNER]) continue; /* the array itself is the owner */
        got[i] = PyObject_GetAttr(i > OWNER ? owner : array, from->names[i]);
        read = got[i] != NULL;
        if (i == OWNER) owner = got[i];
    }
    if (read) {
        to->size = 0;
        read_dtype(got[DTYPE], to);
        to->axes = read_integers(got[SHAPE], to->shape);
        read = to->size && to->axes > 0 && read_integers(got[STRIDES], to->strides) == to->axes;
        to->data = PyLong_AsVoidPtr(got[ADDRESS]);
        if (read) to->device = PyLong_AsSsize_t(got[DEVICE]);
    }
    for (int i = 0; i < NAMES; i++) Py_XDECREF(got[i]);
    return read && !PyErr_Occurred();
}

int gemm_device_read(PyObject *array, int at, signature *key, extent *where) {
    metadata x;
    const reader *from = readers;
    while (from < readers + kinds && (PyTypeObject *)from->kind != Py_TYPE(array)) from++;
    if (from == readers + kinds) return 0;
    if (!(from->api ? read_exchanged : read_attributes)(from, array, &x)) {
        PyErr_Clear();
        return 0;
    }
    const Py_ssize_t place = (Py_ssize_t)from->kind + x.device;
    if (x.device < 0 || x.device >= MOST_DEVICES || !(at == A || place == key->place)) return 0;
    if ((uintptr_t)x.data % (uintptr_t)(x.size < 16 ? x.size : 16)) return 0; /* the Python code reports the error */
    key->place = place;
    key->type[at] = x.type;
    key->axes[at] = x.axes;
    where->data = x.data;
    where->low = (uintptr_t)where->data, where->high = where->low + (uintptr_t)x.size;
    for (Py_ssize_t axis = 0; axis < x.axes; axis++) {
        const Py_ssize_t length = x.shape[axis], stride = x.strides[axis];
        if (length <= 0) return 0;
        key->shape[at][axis] = length, key->strides[at][axis] = stride;
        *(stride < 0 ? &where->low : &where->high) += (uintptr_t)(stride * (length - 1));
    }
    return 1;
}

int gemm_device_learn(PyObject *from, slot *to) {
    const char *form;
    unsigned long long address, bits[OPERANDS];
    long long low, high;
    device_part *device = &to->device;
    if (!PyTuple_Check(from) ||
        !PyArg_ParseTuple(from, "sKLLKKKK", &form, &address, &low, &high, &bits[A], &bits[B], &bits[C], &bits[OUT])) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "`device` is a tuple, for arrays of a device");
        return 0;
    }
    if (PyObject_IsInstance(to->keep, gemm_sequences) != 1 || strlen(form) >= sizeof device->form) {
        PyErr_SetString(PyExc_TypeError, "learn wants a Sequence, and a form of one or two letters");
        return 0;
    }
    memcpy(device->form, form, strlen(form));
    for (int i = 0; i < OPERANDS; i++) device->low_bits[i] = (uintptr_t)bits[i];
    const uintptr_t at = (uintptr_t)address;
    device->kept = (extent){(char *)at, at + (uintptr_t)low, at + (uintptr_t)high};
    return 1;
}

/* Writes a number to `to` in the format `form`: one letter of Python's struct module, or two letters for the real and
 * the imaginary part. */
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

/* Stores the stream on which a product of arrays at `place` (see signature) must be enqueued. Returns 0 on failure. */
static int stream_of(Py_ssize_t place, void **stream) {
    const reader *from = readers;
    while (place < (Py_ssize_t)from->kind || place >= (Py_ssize_t)from->kind + MOST_DEVICES) from++;
    const Py_ssize_t device = place - (Py_ssize_t)from->kind;
    int found = 1;
    *stream = NULL;
    if (from->api) {
        found = !from->api->stream(ON_CUDA, (int32_t)device, stream);
    } else if (from->stream != Py_None) {
        PyObject *handle = PyObject_CallFunction(from->stream, "n", device);
        if (handle) *stream = PyLong_AsVoidPtr(handle);
        Py_XDECREF(handle);
        found = !PyErr_Occurred();
    }
    if (!*stream) *stream = (void *)(uintptr_t)LEGACY_STREAM;
    return found;
}

/* Launches a product for operands at `at`. Returns 0 if an address is not aligned as required, or if a launch fails. */
static int launch(const slot *known, const extent *at, const gemm_scalar *scale) {
    uint64_t places[SLOTS] = {0};
    char packed[SCALE_BYTES] = {0};
    void *stream = NULL;
    int which = 0;
    for (int i = 0; i < ARRAYS; i++)
        if (i != C || !known->key.zero[1]) places[i] = (uint64_t)(uintptr_t)at[i].data;
    for (int i = 0; i < OPERANDS; i++)
        if (places[i] & known->device.low_bits[i]) return 0;
    for (int i = 0; i < SCALES; i++) pack(known->device.form, &scale[i], packed + i * EACH);
    if (!stream_of(known->key.place, &stream)) return 0;
    PyThreadState *state = PyEval_SaveThread();
    const int status = gemm_sequence_launch(known->keep, places, stream, packed, &which);
    PyEval_RestoreThread(state);
    return !status;
}

PyObject *gemm_device_repeat(const slot *known, PyObject *const *given, extent *at, const gemm_scalar *scale) {
    PyObject *out = given[OUT];
    signature made = {.place = known->key.place};
    if (out == Py_None)
        out = PyObject_CallFunctionObjArgs(known->make, NULL);
    else
        Py_INCREF(out);
    int good = out && (given[OUT] != Py_None || gemm_device_read(out, OUT, &made, &at[OUT]));
    if (given[B] == Py_None) {
        at[B] = known->device.kept;
        good = good && gemm_apart(&at[B], &at[OUT]);
    }
    if (good && launch(known, at, scale)) return out;
    PyErr_Clear();
    Py_XDECREF(out);
    return NULL;
}

PyDoc_STRVAR(reads_doc,
             "reads(kind, source, stream=None, records=None, /)\n--\n\n"
             "From now on read the CUDA arrays of the class `kind`.\n"
             "\n"
             "source: the class's __dlpack_c_exchange_api__, or the names of six attributes: shape, strides in bytes, "
             "dtype, owner, address, device. The address and the number of the device are attributes of the owner, "
             "which is the array itself if that name is None.\n"
             "stream: stream(device) returns the stream for the arrays. None: the legacy stream. Not used with an "
             "exchange API, which tells the stream itself.\n"
             "records: with an exchange API, records() returns whether the library records gradients now. Arrays whose "
             "requires_grad is true are then not read.");

/* Fills in how the arrays of a class are read. Returns 0 with an error set on failure. */
static int read_source(PyObject *source, reader *to) {
    if (PyTuple_Check(source) && PyTuple_Size(source) == NAMES) {
        for (int i = 0; i < NAMES; i++) to->names[i] = PyTuple_GetItem(source, i);
        if (to->names[OWNER] == Py_None) to->names[OWNER] = NULL;
        Py_INCREF(source); /* never released: it holds the names */
        return 1;
    }
    to->api = (const exchange *)PyCapsule_GetPointer(source, "dlpack_exchange_api");
    while (to->api && to->api->major != 1) to->api = (const exchange *)to->api->older;
    if (to->api && to->api->read && to->api->stream) {
        to->is_neg = PyUnicode_InternFromString("is_neg");
        to->requires_grad = PyUnicode_InternFromString("requires_grad");
        return to->is_neg && to->requires_grad;
    }
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the exchange is of another version");
    return 0;
}

static PyObject *reads(PyObject *module, PyObject *arguments) {
    PyObject *source;
    reader fresh = {.stream = Py_None, .records = Py_None};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!O|OO:reads", &PyType_Type, &fresh.kind, &source, &fresh.stream, &fresh.records))
        return NULL;
    if (!read_source(source, &fresh)) return NULL;
    int at = 0;
    while (at < kinds && readers[at].kind != fresh.kind) at++;
    if (at == MOST_KINDS) return PyErr_Format(PyExc_ValueError, "at most %d classes can be read", MOST_KINDS);
    Py_INCREF(fresh.kind);
    Py_INCREF(fresh.stream);
    Py_INCREF(fresh.records);
    readers[at] = fresh;
    if (at == kinds) kinds++;
    Py_RETURN_NONE;
}

static void in_turn(gemm_work *work, void *context, int64_t count, double ns, double more_ns) {
    (void)ns, (void)more_ns;
    for (int64_t i = 0; i < count; i++) work(context, i, 0);
}

PyDoc_STRVAR(independent_doc,
             "independent(places, count, low, high, reads_c, room, share, /)\n--\n\n"
             "Return whether `count` products of one kind may be computed in any order.\n"
             "\n"
             "low, high: for each of a, b, c and out, the number of bytes before and after the address of its "
             "first element. room: the address of 32 bytes of memory per product, which the function "
             "overwrites.");

static PyObject *independent(PyObject *module, PyObject *arguments) {
    unsigned long long places, room, address;
    long long count, low[OPERANDS], high[OPERANDS];
    share_function *share = in_turn;
    reach at;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "KL(LLLL)(LLLL)pKK:independent", &places, &count, &low[A], &low[B], &low[C],
                          &low[OUT], &high[A], &high[B], &high[C], &high[OUT], &at.reads_c, &room, &address))
        return NULL;
    if (count < 1 || count > MOST_ALIKE) return PyErr_Format(PyExc_ValueError, "%lld products at once", count);
    if (address) memcpy(&share, &address, sizeof share);
    for (int operand = 0; operand < OPERANDS; operand++)
        at.low[operand] = (ptrdiff_t)low[operand], at.high[operand] = (ptrdiff_t)high[operand];
    const products all = {(const gemm_place *)(uintptr_t)places, (const char *)&at, 0, NULL, 0};
    return PyBool_FromLong(gemm_independent(&all, 0, count, (written *)(uintptr_t)room, share, 0));
}

PyMethodDef gemm_device_methods[] = {{"reads", reads, METH_VARARGS, reads_doc},
                                     {"independent", independent, METH_VARARGS, independent_doc},
                                     {NULL, NULL, 0, NULL}};
