/* gemm._memo.Sequence: kernel launches that are prepared once and repeated with different addresses.
 *
 * gemm/backends/cuda/launch_plan.py makes the launch plan of a product. A Sequence stores the plan's functions, grids
 * and parameters. The parameters are bytes; only the addresses, tensor maps and scalars among them differ between
 * products. Running a Sequence takes only a few calls of the CUDA driver. Python passes the addresses of the driver's
 * functions, so this file links to no CUDA library. Without this extension, gemm/backends/cuda/launch_graph.py does the
 * same in Python.
 */
#include "cuda.h"

enum { MOST_MAPS = 3, MOST_POINTERS = 8, MAP_BYTES = 128, MAP_ALIGNMENT = 64, MOST_PARAMETERS = 512 };
/* CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION and CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
enum { CLUSTER_DIMENSION = 4, OVERLAP = 6 };

typedef int launch_function(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                            void **, void **);
/* The layouts of CUlaunchAttribute and CUlaunchConfig. */
typedef struct {
    int id;
    char pad[4];
    union {
        unsigned words[16];
        uint64_t whole[8];
    } value;
} attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    attribute *attributes;
    unsigned count;
} launch_config;
typedef int launch_ex_function(const launch_config *, void *, void **, void **);
typedef int encode_function(void *, unsigned, unsigned, void *, const uint64_t *, const uint64_t *, const unsigned *,
                            const unsigned *, unsigned, unsigned, unsigned, unsigned);
typedef int allocate_function(uint64_t *, size_t, void *, void *);
typedef int free_function(uint64_t, void *);
typedef int memset_function(uint64_t, unsigned, size_t, void *);
typedef int current_function(void **);
typedef int push_function(void *);

/* The driver's functions, in the order in which Python passes their addresses. `launch`, `current`, `push` and `pop`
 * are required. `allocate`, `free` and `set` are required only for a workspace, `encode` only for tensor maps, and
 * `launch_ex` only for clusters and overlapping launches. */
typedef struct {
    launch_function *launch;
    launch_ex_function *launch_ex;
    encode_function *encode;
    allocate_function *allocate;
    free_function *free;
    memset_function *set;
    current_function *current;
    push_function *push;
    current_function *pop;
} driver;

static const char *const names[] = {"cuLaunchKernel",          "cuLaunchKernelEx", "cuTensorMapEncodeTiled",
                                    "cuMemAllocFromPoolAsync", "cuMemFreeAsync",   "cuMemsetD32Async",
                                    "cuCtxGetCurrent",         "cuCtxPushCurrent", "cuCtxPopCurrent"};
enum { LAUNCH, LAUNCH_EX, ENCODE, ALLOCATE, FREE, SET, CURRENT, PUSH, POP, FUNCTIONS };

typedef struct {
    int slot;
    unsigned kind, box[3], swizzle;
    uint64_t at, dims[3], strides[2];
} map;

typedef struct {
    int offset, slot;
    uint64_t at;
} pointer;

typedef struct {
    void *function;
    unsigned grid[2], threads, cluster, overlaps, shared;
    int size, scale_at, pointers, maps;
    pointer pointer[MOST_POINTERS];
    map map[MOST_MAPS];
    char parameters[MOST_PARAMETERS];
} step;

typedef struct {
    PyObject_HEAD driver api;
    void *context, *pool;
    size_t room, zeroed_at, zeroed;
    int count;
    step *steps;
} sequence;

/* Launches the step `x` for the addresses `at`. Returns the CUresult, and fills in `which`, as gemm_sequence_launch
 * does. */
static int launch(const sequence *self, const step *x, const uint64_t *at, void *stream, const char *scale,
                  int *which) {
    char given[MOST_PARAMETERS], unaligned[MOST_MAPS * MAP_BYTES + MAP_ALIGNMENT];
    char *const maps = unaligned + (MAP_ALIGNMENT - (uintptr_t)unaligned % MAP_ALIGNMENT);
    void *parameters[1 + MOST_MAPS] = {given};
    memcpy(given, x->parameters, (size_t)x->size);
    if (x->scale_at >= 0) memcpy(given + x->scale_at, scale, SCALE_BYTES);
    for (const pointer *p = x->pointer; p < x->pointer + x->pointers; p++) {
        const uint64_t address = at[p->slot] + p->at;
        memcpy(given + p->offset, &address, sizeof address);
    }
    for (int i = 0; i < x->maps; i++) {
        const map *m = &x->map[i];
        static const unsigned one[3] = {1, 1, 1};
        *which = ENCODE;
        /* rank 3, element strides 1, no interleaving, L2 promotion of 256 bytes, zeros outside the matrix */
        const int status = self->api.encode(maps + i * MAP_BYTES, m->kind, 3, (void *)(uintptr_t)(at[m->slot] + m->at),
                                            m->dims, m->strides, m->box, one, 0, m->swizzle, 3, 0);
        if (status) return status;
        parameters[1 + i] = maps + i * MAP_BYTES;
    }
    if (x->cluster == 1 && !x->overlaps) {
        *which = LAUNCH;
        return self->api.launch(x->function, x->grid[0], x->grid[1], 1, x->threads, 1, 1, x->shared, stream, parameters,
                                NULL);
    }
    attribute attributes[2] = {{.id = OVERLAP, .value.words = {1}},
                               {.id = CLUSTER_DIMENSION, .value.words = {x->cluster, 1, 1}}};
    const launch_config config = {.grid = {x->grid[0], x->grid[1], 1},
                                  .block = {x->threads, 1, 1},
                                  .shared = x->shared,
                                  .stream = stream,
                                  .attributes = attributes + !x->overlaps,
                                  .count = x->overlaps + (x->cluster != 1)};
    *which = LAUNCH_EX;
    return self->api.launch_ex(&config, x->function, parameters, NULL);
}

/* Allocates the workspace, zeroes the part of it that must begin as zeros, and launches all steps. Always frees the
 * workspace. */
static int run_steps(const sequence *self, uint64_t *at, void *stream, const char *scale, int *which) {
    int status = 0;
    if (self->room) {
        *which = ALLOCATE;
        status = self->api.allocate(&at[ROOM], self->room, self->pool, stream);
        if (status) return status;
    }
    if (self->zeroed) {
        *which = SET;
        status = self->api.set(at[ROOM] + self->zeroed_at, 0, self->zeroed / 4, stream);
    }
    for (int i = 0; i < self->count && !status; i++) status = launch(self, &self->steps[i], at, stream, scale, which);
    if (self->room) {
        const int freed = self->api.free(at[ROOM], stream);
        if (!status && freed) *which = FREE, status = freed;
    }
    return status;
}

int gemm_sequence_launch(PyObject *object, uint64_t *at, void *stream, const char *scale, int *which) {
    const sequence *self = (const sequence *)object;
    void *current = NULL;
    *which = CURRENT;
    int status = self->api.current(&current);
    if (status) return status;
    const int foreign = current != self->context;
    if (foreign) {
        *which = PUSH;
        status = self->api.push(self->context);
        if (status) return status;
    }
    status = run_steps(self, at, stream, scale, which);
    if (foreign) self->api.pop(&current);
    return status;
}

PyDoc_STRVAR(run_doc,
             "run(stream, a, b, c, out, bias, scale, /)\n--\n\n"
             "Launch all kernels on `stream`, with operands at these addresses.\n"
             "\n"
             "scale: alpha and beta, 16 bytes each. Returns None, or (name of the driver function that failed, "
             "its CUresult).");

static PyObject *sequence_run(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    uint64_t at[SLOTS] = {0};
    if (count != 2 + ROOM) return PyErr_Format(PyExc_TypeError, "run takes %d arguments, got %zd", 2 + ROOM, count);
    void *stream = PyLong_AsVoidPtr(arguments[0]);
    for (int slot = 0; slot < ROOM; slot++) at[slot] = PyLong_AsUnsignedLongLong(arguments[1 + slot]);
    char *scale;
    Py_ssize_t size;
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(arguments[1 + ROOM], &scale, &size)) return NULL;
    if (size != SCALE_BYTES) return PyErr_Format(PyExc_ValueError, "scale has %zd bytes, not 32", size);
    int which = 0;
    /* The GIL is released to avoid a deadlock: a launch waits for the device if the device's queue is full, and the
     * device may wait for a callback that needs the GIL. */
    PyThreadState *state = PyEval_SaveThread();
    const int status = gemm_sequence_launch(object, at, stream, scale, &which);
    PyEval_RestoreThread(state);
    if (!status) Py_RETURN_NONE;
    return Py_BuildValue("si", names[which], status);
}

static int read_map(PyObject *from, map *to) {
    unsigned long long at, d0, d1, d2, s0, s1;
    if (!PyArg_ParseTuple(from, "iKI(KKK)(KK)(III)I", &to->slot, &at, &to->kind, &d0, &d1, &d2, &s0, &s1, &to->box[0],
                          &to->box[1], &to->box[2], &to->swizzle))
        return 0;
    to->at = at;
    to->dims[0] = d0, to->dims[1] = d1, to->dims[2] = d2;
    to->strides[0] = s0, to->strides[1] = s1;
    return to->slot >= 0 && to->slot < SLOTS;
}

static int read_pointer(PyObject *from, pointer *to, int size) {
    unsigned long long at;
    if (!PyArg_ParseTuple(from, "iiK", &to->offset, &to->slot, &at)) return 0;
    to->at = at;
    return to->slot >= 0 && to->slot < SLOTS && to->offset >= 0 && to->offset + 8 <= size;
}

static int read_step(PyObject *from, step *to, const driver *api) {
    PyObject *function, *pointers, *maps;
    const char *parameters;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(from, "OIIIIIIy#iO!O!", &function, &to->grid[0], &to->grid[1], &to->threads, &to->cluster,
                          &to->overlaps, &to->shared, &parameters, &size, &to->scale_at, &PyTuple_Type, &pointers,
                          &PyTuple_Type, &maps))
        return 0;
    to->function = PyLong_AsVoidPtr(function);
    const Py_ssize_t addresses = PyTuple_Size(pointers), images = PyTuple_Size(maps);
    if (PyErr_Occurred() || size > MOST_PARAMETERS || addresses > MOST_POINTERS || images > MOST_MAPS ||
        to->scale_at + SCALE_BYTES > size || (images && !api->encode) || to->overlaps > 1 ||
        ((to->cluster != 1 || to->overlaps) && !api->launch_ex))
        return 0;
    memcpy(to->parameters, parameters, (size_t)size);
    to->size = (int)size, to->pointers = (int)addresses, to->maps = (int)images;
    for (int i = 0; i < addresses; i++)
        if (!read_pointer(PyTuple_GetItem(pointers, i), &to->pointer[i], to->size)) return 0;
    for (int i = 0; i < images; i++)
        if (!read_map(PyTuple_GetItem(maps, i), &to->map[i])) return 0;
    return 1;
}

static PyObject *sequence_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *api, *context, *pool, *steps;
    Py_ssize_t room, zeroed_at, zeroed;
    if (keywords && PyDict_Size(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Sequence takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "O!OOn(nn)O!:Sequence", &PyTuple_Type, &api, &context, &pool, &room, &zeroed_at,
                          &zeroed, &PyTuple_Type, &steps))
        return NULL;
    sequence *self = (sequence *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); /* memory is zeroed */
    if (!self) return NULL;
    self->context = PyLong_AsVoidPtr(context), self->pool = PyLong_AsVoidPtr(pool);
    self->room = (size_t)room, self->zeroed_at = (size_t)zeroed_at, self->zeroed = (size_t)zeroed;
    self->count = (int)PyTuple_Size(steps);
    self->steps = (step *)PyMem_Calloc((size_t)self->count + 1, sizeof(step));
    int good = self->steps && PyTuple_Size(api) == FUNCTIONS && sizeof(driver) == FUNCTIONS * sizeof(void *);
    for (int i = 0; i < FUNCTIONS && good; i++) {
        void *function = PyLong_AsVoidPtr(PyTuple_GetItem(api, i));
        memcpy((char *)&self->api + (size_t)i * sizeof function, &function, sizeof function);
    }
    good = good && self->api.launch && self->api.current && self->api.push && self->api.pop;
    good = good && (!self->room || (self->api.allocate && self->api.free && self->api.set));
    for (int i = 0; i < self->count && good; i++)
        good = read_step(PyTuple_GetItem(steps, i), &self->steps[i], &self->api);
    if (good && !PyErr_Occurred()) return (PyObject *)self;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "Sequence: these steps cannot be launched");
    Py_DECREF(self);
    return NULL;
}

static void sequence_free(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyMem_Free(((sequence *)object)->steps);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"run", (PyCFunction)(void (*)(void))sequence_run, METH_FASTCALL, run_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, (void *)"Sequence(functions, context, pool, room, zeroed, steps, /)\n--\n\n"
                        "The launches of a product, in order. gemm.backends.cuda.launch_graph makes the arguments."},
    {Py_tp_new, (void *)sequence_new},
    {Py_tp_dealloc, (void *)sequence_free},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec gemm_sequence_type = {"gemm._memo.Sequence", sizeof(sequence), 0, Py_TPFLAGS_DEFAULT, type_slots};
