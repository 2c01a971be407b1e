/* Declarations that the files for products of CUDA arrays share. */
#ifndef GEMM_PYTHON_CUDA_H
#define GEMM_PYTHON_CUDA_H

#include "memo.h"

#include <string.h>

/* The numbers of the memory areas to which pointers in a launch refer: the operands (A to BIAS, see memo.h), and the
 * workspace (ROOM). gemm/backends/cuda/operand_layout.py uses the same numbers. */
enum { ROOM = ARRAYS, SLOTS };
enum { SCALE_BYTES = 32 }; /* alpha and beta together */

/* Launches all steps of a Sequence for operands at the addresses `at`, and fills in at[ROOM]. Needs no GIL. `scale` has
 * SCALE_BYTES bytes. Returns the CUresult; `which` receives the number of the driver function that returned it. */
int gemm_sequence_launch(PyObject *sequence, uint64_t *at, void *stream, const char *scale, int *which);

/* DLPack's DLTensor, and the used part of DLPack's table of C exchange functions. */
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
