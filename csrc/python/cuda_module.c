/* The module gemm._cuda. */
#include "cuda.h"

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_cuda", NULL, -1, gemm_heads_methods, NULL, NULL, NULL, NULL};

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
