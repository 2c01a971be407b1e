/* The threads of a product: gemm_acquire_threads says how many pay, gemm_parallel runs jobs in them, gemm_release_threads frees them for
 * the next product. Re-entrant, and sound in the child of a fork at any moment. */
#ifndef GEMM_POOL_H
#define GEMM_POOL_H

#include "../gemm.h"

enum { GEMM_SHORT_NS = 10000 }; /* work of so many nanoseconds is never shared */

/* Each has a pool of its own, so that copies for a device neither wait for a product nor take its threads. */
typedef enum gemm_pool_kind { GEMM_PRODUCT_POOL, GEMM_COPY_POOL, GEMM_POOLS } gemm_pool_kind;

typedef struct gemm_acquired {
    int threads;              /* for gemm_parallel, the caller's included */
    void *pool;               /* NULL when threads could not pay at all; in_use when `threads` is above 1 */
    int64_t start, serial_ns; /* the moment of the mustering, and what the caller alone would take from then on */
} gemm_acquired;

/* The threads, up to `most` and gemm_get_num_threads, that pay at this moment for work of `ns` nanoseconds on one: 1
 * while another call has the pool. Copies get those that a product leaves meanwhile, but for one, which drives the
 * device or waits for it. Fewer may be used than were mustered, none need be. */
gemm_acquired gemm_acquire_threads(gemm_pool_kind kind, double ns, int most);
void gemm_release_threads(gemm_acquired acquired);

/* Calls work(context, index, slot) for each index below `count`, in up to `threads` threads of the acquired, no more than
 * were mustered, of which the caller is slot 0; returns when all are done. */
void gemm_parallel(gemm_acquired acquired, gemm_work *work, void *context, int64_t count, int threads);

#endif
