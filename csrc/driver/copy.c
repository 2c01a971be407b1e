/* gemm_copy: copies strided elements between arrays, in a thread pool of its own. */
#include "driver.h"
#include "pool.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum {
    MOST_AXES = 64,         /* NumPy's limit */
    JOB_BYTES = 128 * 1024, /* fits a core's share of the L2 cache */
    STREAM_LINE = 256       /* bytes; in shorter lines (see `copying`), too few of the stores fill whole cache lines */
};

/* A copy. A line is `length` elements along the innermost axis. The other axes, `axes` in number, enumerate the `lines`
 * lines. A job copies several lines, or one piece of a long line. */
typedef struct copying {
    char *to;
    const char *from;
    /* whole: the elements of a line are contiguous in both arrays; stream: stores bypass the caches */
    int axes, whole, stream;
    int64_t shape[MOST_AXES], to_strides[MOST_AXES], from_strides[MOST_AXES]; /* outermost axis first */
    int64_t lines, length, to_step, from_step, size;
    int64_t lines_a_job, pieces, piece; /* pieces: the number of pieces of a line; piece: elements per piece */
} copying;

#define STEPS(bytes)                                                                                    \
    case bytes:                                                                                         \
        for (int64_t i = 0; i < length; i++, to += to_step, from += from_step) memcpy(to, from, bytes); \
        return;

static void copy_line(char *to, const char *from, int64_t length, int64_t to_step, int64_t from_step, int64_t size) {
    switch (size) {
        STEPS(1)
        STEPS(2)
        STEPS(4)
        STEPS(8)
        STEPS(16)
    }
    for (int64_t i = 0; i < length; i++, to += to_step, from += from_step) memcpy(to, from, (size_t)size);
}

/* memcpy with stores that bypass the caches. Such stores do not first read the memory that they overwrite. */
static void stream_line(char *to, const char *from, size_t bytes) {
#ifdef __SSE2__
    const size_t unaligned = (size_t)(-(uintptr_t)to % 16), head = unaligned < bytes ? unaligned : bytes;
    memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= 64; bytes -= 64, to += 64, from += 64) {
        __m128i x[4];
        memcpy(x, from, sizeof x);
        for (int i = 0; i < 4; i++) _mm_stream_si128((__m128i *)to + i, x[i]);
    }
#endif
    memcpy(to, from, bytes);
}

static void copy_job(void *context, int64_t index, int slot) {
    const copying *all = (const copying *)context;
    const int64_t first = index / all->pieces * all->lines_a_job, start = index % all->pieces * all->piece;
    const int64_t last = min64(first + all->lines_a_job, all->lines), length = min64(all->piece, all->length - start);
    (void)slot;
    for (int64_t line = first; line < last; line++) {
        int64_t to = start * all->to_step, from = start * all->from_step, left = line;
        for (int axis = all->axes - 1; axis >= 0; axis--) {
            const int64_t at = left % all->shape[axis];
            to += at * all->to_strides[axis], from += at * all->from_strides[axis];
            left /= all->shape[axis];
        }
        if (all->stream)
            stream_line(all->to + to, all->from + from, (size_t)(length * all->size));
        else if (all->whole)
            memcpy(all->to + to, all->from + from, (size_t)(length * all->size));
        else
            copy_line(all->to + to, all->from + from, length, all->to_step, all->from_step, all->size);
    }
#ifdef __SSE2__
    if (all->stream) _mm_sfence(); /* the stores become visible before the job counts as done */
#endif
}

void gemm_copy(void *to, const void *from, int32_t ndim, const int64_t *shape, const int64_t *to_strides,
               const int64_t *from_strides, int64_t size, int32_t stream) {
    const double ns_per_byte = 0.1; /* a core copies 10 GB/s */
    copying all = {(char *)to, (const char *)from, 0, 0, 0, {0}, {0}, {0}, 1, 1, size, size, size, 1, 1, 1};
    for (int axis = 0; axis < ndim; axis++) { /* merges an axis with the axis before, if both arrays allow that */
        const int64_t length = shape[axis], step = to_strides[axis], other = from_strides[axis];
        const int before = all.axes - 1;
        if (length == 0) return;
        if (length == 1) continue;
        if (before >= 0 && all.to_strides[before] == step * length && all.from_strides[before] == other * length) {
            all.shape[before] *= length, all.to_strides[before] = step, all.from_strides[before] = other;
        } else {
            all.shape[all.axes] = length, all.to_strides[all.axes] = step, all.from_strides[all.axes] = other;
            all.axes++;
        }
    }
    if (all.axes) { /* the elements along the innermost axis form a line */
        const int inner = --all.axes;
        all.length = all.shape[inner], all.to_step = all.to_strides[inner], all.from_step = all.from_strides[inner];
    }
    for (int axis = 0; axis < all.axes; axis++) all.lines *= all.shape[axis];
    all.whole = all.to_step == size && all.from_step == size;
    const int64_t line_bytes = all.length * size;
    all.stream = stream && all.whole && line_bytes >= STREAM_LINE;
    all.pieces = ceil_div(line_bytes, JOB_BYTES);
    all.piece = ceil_div(all.length, all.pieces);
    all.pieces = ceil_div(all.length, all.piece);
    all.lines_a_job = line_bytes < JOB_BYTES ? JOB_BYTES / line_bytes : 1;

    const int64_t count = ceil_div(all.lines, all.lines_a_job) * all.pieces;
    const double ns = (double)all.lines * (double)line_bytes * ns_per_byte;
    const gemm_acquired acquired = gemm_acquire_threads(GEMM_COPY_POOL, ns, (int)min64(count, INT32_MAX));
    gemm_parallel(acquired, copy_job, &all, count, acquired.threads);
    /* A serial copy holds no pool. It must not call gemm_release_threads, which would use the copy's time to estimate
     * the speed of products. */
    if (acquired.threads > 1) gemm_release_threads(acquired);
}
