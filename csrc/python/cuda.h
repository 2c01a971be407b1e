/* What the files for products of CUDA arrays share. */
#ifndef GEMM_PYTHON_CUDA_H
#define GEMM_PYTHON_CUDA_H

#include "memo.h"

#include <string.h>

/* What a launch's addresses point into: the operands, and room of its own; as in gemm/backends/cuda/operand_layout.py. */
enum { ROOM = ARRAYS, SLOTS };
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

#endif
