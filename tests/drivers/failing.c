/* An OpenCL layer that makes selected calls fail. Use it with OPENCL_LAYERS=failing.so.
 *
 * The OpenCL loader passes the driver's function table to the layer and takes the layer's table instead. The order of
 * the entries belongs to the loader's binary interface (cl_icd.h). No call fails until a test calls `fail`, through
 * ctypes.
 */
#include <stddef.h>
#include <string.h>

enum { ENTRIES = 256, CL_LAYER_API_VERSION = 0x4240, CL_LAYER_API_VERSION_100 = 100 };

static void *table[ENTRIES];
static void *const *below;
static char names[256]; /* of the functions that fail, separated by spaces; "": none */
static int after, code;
static long calls;

/* Makes functions fail with `error` if their names begin with a word of `which`. The first `count` such calls still
 * succeed. */
void fail(const char *which, int count, int error) {
    strncpy(names, which, sizeof names - 1);
    after = count;
    code = error;
}

/* The number of calls so far. */
long called(void) {
    return calls;
}

static int failing(const char *name) {
    ++calls;
    for (const char *word = names; *word; word += strcspn(word, " "), word += *word == ' ') {
        if (strncmp(word, name, strcspn(word, " ")) == 0) { return --after < 0; }
    }
    return 0;
}

#define CALLS(at, name, types, args)                                  \
    static int name types {                                           \
        return failing(#name) ? code : ((int(*) types)below[at])args; \
    }
#define MAKES(at, name, types, args)            \
    static void *name types {                   \
        if (failing(#name)) {                   \
            *error = code;                      \
            return NULL;                        \
        }                                       \
        return ((void *(*)types)below[at])args; \
    }

typedef unsigned long long bits;

MAKES(4, clCreateContext,
      (const void *properties, unsigned n, const void *devices, void *notify, void *data, int *error),
      (properties, n, devices, notify, data, error))
MAKES(9, clCreateCommandQueue, (void *context, void *device, bits properties, int *error),
      (context, device, properties, error))
MAKES(14, clCreateBuffer, (void *context, bits flags, size_t size, void *host, int *error),
      (context, flags, size, host, error))
MAKES(96, clCreateImage, (void *context, bits flags, const void *format, const void *shape, void *host, int *error),
      (context, flags, format, shape, host, error))
MAKES(56, clEnqueueMapBuffer,
      (void *queue, void *buffer, unsigned blocking, bits flags, size_t offset, size_t size, unsigned n,
       const void *events, void *event, int *error),
      (queue, buffer, blocking, flags, offset, size, n, events, event, error))
CALLS(30, clBuildProgram,
      (void *program, unsigned n, const void *devices, const char *options, void *notify, void *data),
      (program, n, devices, options, notify, data))
CALLS(41, clWaitForEvents, (unsigned n, const void *events), (n, events))
CALLS(46, clFlush, (void *queue), (queue))
CALLS(47, clFinish, (void *queue), (queue))
CALLS(49, clEnqueueWriteBuffer,
      (void *queue, void *buffer, unsigned blocking, size_t offset, size_t size, const void *from, unsigned n,
       const void *events, void *event),
      (queue, buffer, blocking, offset, size, from, n, events, event))
CALLS(58, clEnqueueUnmapMemObject, (void *queue, void *memory, void *at, unsigned n, const void *events, void *event),
      (queue, memory, at, n, events, event))
CALLS(59, clEnqueueNDRangeKernel,
      (void *queue, void *kernel, unsigned axes, const size_t *offset, const size_t *extent, const size_t *group,
       unsigned n, const void *events, void *event),
      (queue, kernel, axes, offset, extent, group, n, events, event))

int clGetLayerInfo(unsigned name, size_t room, void *value, size_t *size) {
    if (name != CL_LAYER_API_VERSION) { return -30; /* CL_INVALID_VALUE */ }
    if (value != NULL && room >= sizeof(unsigned)) { *(unsigned *)value = CL_LAYER_API_VERSION_100; }
    if (size != NULL) { *size = sizeof(unsigned); }
    return 0;
}

int clInitLayer(unsigned n, void *const *driver, unsigned *entries, void *const **layer) {
    static const struct {
        int at;
        void *function;
    } ours[] = {
        {4, (void *)clCreateContext},
        {9, (void *)clCreateCommandQueue},
        {14, (void *)clCreateBuffer},
        {30, (void *)clBuildProgram},
        {41, (void *)clWaitForEvents},
        {46, (void *)clFlush},
        {47, (void *)clFinish},
        {49, (void *)clEnqueueWriteBuffer},
        {56, (void *)clEnqueueMapBuffer},
        {58, (void *)clEnqueueUnmapMemObject},
        {59, (void *)clEnqueueNDRangeKernel},
        {96, (void *)clCreateImage},
    };
    below = driver;
    memcpy(table, driver, sizeof(void *) * (n < ENTRIES ? n : ENTRIES));
    for (size_t i = 0; i < sizeof ours / sizeof *ours; ++i) { table[ours[i].at] = ours[i].function; }
    *entries = n < ENTRIES ? n : ENTRIES;
    *layer = table;
    return 0;
}
