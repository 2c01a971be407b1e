/* The module gemm._cuda. */
#include "cuda.h"
#include "order.h"

static void in_turn(gemm_work *work, void *context, int64_t count, double ns, double more_ns) {
    (void)ns, (void)more_ns;
    for (int64_t i = 0; i < count; i++) work(context, i, 0);
}

static share_function *share_at(unsigned long long address) {
    share_function *share = in_turn;
    if (address) memcpy(&share, &address, sizeof share);
    return share;
}

PyDoc_STRVAR(independent_doc,
             "independent(places, count, low, high, reads_c, room, share, /)\n--\n\n"
             "Whether so many products, of one kind, may be computed in any order.\n\n"
             "low, high: the bytes before and after the first element that a, b, c and out lie at. room: 32 bytes a "
             "product to write to.");

static PyObject *independent(PyObject *module, PyObject *arguments) {
    unsigned long long places, room, share;
    long long count, low[OUT + 1], high[OUT + 1];
    reach at;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "KL(LLLL)(LLLL)pKK:independent", &places, &count, &low[A], &low[B], &low[C],
                          &low[OUT], &high[A], &high[B], &high[C], &high[OUT], &at.reads_c, &room, &share))
        return NULL;
    if (count < 1 || count > MOST_ALIKE) return PyErr_Format(PyExc_ValueError, "%lld products at once", count);
    for (int operand = 0; operand <= OUT; operand++)
        at.low[operand] = (ptrdiff_t)low[operand], at.high[operand] = (ptrdiff_t)high[operand];
    const products all = {(const gemm_place *)(uintptr_t)places, (const char *)&at, 0, NULL, 0};
    return PyBool_FromLong(gemm_independent(&all, 0, count, (written *)(uintptr_t)room, share_at(share), 0));
}

static PyMethodDef methods[] = {{"independent", independent, METH_VARARGS, independent_doc}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_cuda", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__cuda(void) {
    PyObject *made = PyModule_Create(&module);
    PyObject *sequences = made ? PyType_FromSpec(&gemm_sequence_type) : NULL;
    PyObject *memos = sequences ? PyType_FromSpec(&gemm_memo_type) : NULL;
    if (memos && !PyObject_SetAttrString(memos, "sequence_type", sequences) &&
        !PyModule_AddObject(made, "Memo", memos)) {
        if (!PyModule_AddObject(made, "Sequence", sequences)) return made;
        memos = NULL; /* the module's now */
    }
    Py_XDECREF(memos);
    Py_XDECREF(sequences);
    Py_XDECREF(made);
    return NULL;
}
