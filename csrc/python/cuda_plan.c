/* Products of CUDA arrays that a Memo repeats: reads the arrays' metadata, and launches a Sequence for the arrays.
 *
 * The arrays belong to a class whose library has DLPack's C exchange API (PyTorch since 2.10). The API's functions
 * return address, shape, strides, type and stream in some nanoseconds. In Python, the same data takes many calls. */
#include "cuda.h"
#include "order.h"

enum { ON_CUDA = 2, COMPLEX = 5, LEGACY_STREAM = 1, EACH = SCALE_BYTES / SCALES };
/* Arrays on devices whose number is MOST_DEVICES or higher are not read. A signature contains the sum of the class's
 * address and the device number. This sum is unique, because a class object is larger than MOST_DEVICES bytes. */
enum { MOST_DEVICES = 16 };

PyObject *gemm_sequences;

/* `kind`: the class of arrays that can be read; NULL until `reads` registers one. `api`: its library's functions. */
static struct {
    PyObject *kind, *is_neg;
    const exchange *api;
} library;

int gemm_device_read(PyObject *array, int at, signature *key, extent *where) {
    dl_tensor x;
    if (Py_TYPE(array) != (PyTypeObject *)library.kind) return 0;
    if (library.api->read(array, &x)) {
        PyErr_Clear();
        return 0;
    }
    const Py_ssize_t place = (Py_ssize_t)library.kind + x.device, size = x.bits / 8;
    if (x.device_type != ON_CUDA || x.device < 0 || x.device >= MOST_DEVICES || x.lanes != 1 || x.code == COMPLEX ||
        x.axes < 1 || x.axes > MOST_AXES || !x.strides || !(at == A || place == key->place))
        return 0;
    PyObject *negated = PyObject_CallMethodObjArgs(array, library.is_neg, NULL);
    if (!negated) PyErr_Clear();
    Py_XDECREF(negated);
    if (negated != Py_False) return 0;
    key->place = place;
    key->type[at] = (Py_ssize_t)x.code << 8 | x.bits;
    key->axes[at] = x.axes;
    where->data = (char *)x.data + x.offset;
    where->low = (uintptr_t)where->data, where->high = where->low + (uintptr_t)size;
    for (int axis = 0; axis < x.axes; axis++) {
        const Py_ssize_t length = (Py_ssize_t)x.shape[axis], stride = (Py_ssize_t)x.strides[axis];
        if (length <= 0) return 0;
        key->shape[at][axis] = length, key->strides[at][axis] = stride;
        *(stride < 0 ? &where->low : &where->high) += (uintptr_t)(stride * size * (length - 1));
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

/* Writes a number in the format `form`: one letter, or two letters for the real and the imaginary part. */
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
    const Py_ssize_t device = known->key.place - (Py_ssize_t)library.kind;
    if (library.api->stream(ON_CUDA, (int32_t)device, &stream)) return 0;
    if (!stream) stream = (void *)(uintptr_t)LEGACY_STREAM;
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
             "reads(kind, exchange, /)\n--\n\n"
             "From now on read the CUDA arrays of the class `kind` by its __dlpack_c_exchange_api__, which is "
             "`exchange`.");

static PyObject *reads(PyObject *module, PyObject *arguments) {
    PyObject *kind, *capsule;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!O:reads", &PyType_Type, &kind, &capsule)) return NULL;
    const exchange *api = (const exchange *)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    while (api && api->major != 1) api = (const exchange *)api->older;
    if (!api || !api->read || !api->stream) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the exchange is of another version");
        return NULL;
    }
    if (!library.is_neg) library.is_neg = PyUnicode_InternFromString("is_neg");
    if (!library.is_neg) return NULL;
    Py_INCREF(kind); /* never released, so that no other class gets the address of this class */
    library.kind = kind, library.api = api;
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
