/* What the files of gemm._cuda share. Limited API: one build serves every CPython from 3.10. */
#ifndef GEMM_PYTHON_CUDA_H
#define GEMM_PYTHON_CUDA_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* What a launch's addresses point into: the operands, and room of its own; as in gemm/backends/cuda/operand_layout.py. */
enum { A, B, C, OUT, BIAS, ROOM, SLOTS };
enum { SCALE_BYTES = 32 }; /* of alpha and beta */

/* Gives the launches of a Sequence for operands at `at`, of which ROOM is filled in; the CUresult, and in `which` the
 * number of the driver's function that it is of. Needs no GIL. */
int gemm_sequence_launch(PyObject *sequence, uint64_t *at, void *stream, const char *scale, int *which);

/* DLPack's DLTensor, and its exchange of C functions as far as it is used. */
typedef struct {
    void *data;
    int32_t device_type, device;
    int32_t axes;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t offset;
} dl_tensor;
typedef struct {
    uint32_t major, minor;
    void *older;
    void *allocate, *from_object, *to_object;
    int (*read)(void *, dl_tensor *);
    int (*stream)(int, int32_t, void **);
} exchange;

/* The exchange of version 1 in a capsule; NULL with an error set: there is none. */
const exchange *gemm_exchange(PyObject *capsule);

extern PyType_Spec gemm_sequence_type, gemm_memo_type;

#endif
