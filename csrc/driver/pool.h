/* The thread pools. A call uses them in three steps: gemm_acquire_threads decides how many threads are worthwhile and
 * reserves the pool, gemm_parallel runs jobs, gemm_release_threads frees the pool for the next call. All functions are
 * re-entrant. They also work in the child of a fork, whenever the fork happened. */
#ifndef GEMM_POOL_H
#define GEMM_POOL_H

#include "../gemm.h"

enum { GEMM_SHORT_NS = 10000 }; /* shorter work always runs on one thread */

/* Copies have a separate pool: a copy for a device neither waits for a product nor takes the product's threads. */
typedef enum gemm_pool_kind { GEMM_PRODUCT_POOL, GEMM_COPY_POOL, GEMM_POOLS } gemm_pool_kind;

typedef struct gemm_acquired {
    int threads;              /* for gemm_parallel, including the calling thread */
    void *pool;               /* NULL: work too short, or pool not available; if `threads` > 1, the call holds it */
    int64_t start, serial_ns; /* time of the acquisition, and the estimated time of the work on one thread */
} gemm_acquired;

/* Acquires as many threads as are worthwhile at this moment for work that takes `ns` nanoseconds on one thread: at most
 * `most`, at most gemm_get_num_threads, and only the calling thread while another call uses the pool. A copy gets at
 * most the threads that the current product does not use. If more than two threads are free, one of them is left for
 * the thread that controls the device. The caller may use fewer threads than it acquired. */
gemm_acquired gemm_acquire_threads(gemm_pool_kind kind, double ns, int most);
void gemm_release_threads(gemm_acquired acquired);

/* Returns the most threads that gemm_acquire_threads may acquire for a product that takes `ns` nanoseconds on one
 * thread. Starts no threads. */
int gemm_useful_threads(double ns, int most);

/* Calls work(context, index, slot) for each index below `count`, and returns when all calls are done. Uses up to
 * `threads` threads; `threads` must be at most acquired.threads. `slot` is the number of the thread that calls `work`;
 * the thread that calls gemm_parallel has slot 0. */
void gemm_parallel(gemm_acquired acquired, gemm_work *work, void *context, int64_t count, int threads);

#endif
