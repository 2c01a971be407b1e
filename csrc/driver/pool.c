/* The thread pool: started by the first product that is worth it, shared by all, given up by a fork.
 *
 * One call at a time owns the pool; a second concurrent caller finds it busy and works alone, which is right, for the
 * cores are busy too. Work is an atomic counter of jobs: the caller takes part, nobody waits for anybody but the
 * caller, at the end, for jobs that still run. A worker that wakes too late finds the call closed and misses it.
 *
 * The pool lies on the heap and a fork's child forgets it: whatever state other threads had left its locks in, the
 * child's next call builds another. Workers block all signals and are never joined: exit() ends them where they wait.
 */
#include "driver.h"

static void run_alone(gemm_work *work, void *context, int64_t count) {
    for (int64_t index = 0; index < count; index++) work(context, index, 0);
}

#ifdef _WIN32 /* no POSIX threads */

void gemm_parallel(gemm_work *work, void *context, int64_t count, int threads) {
    (void)threads;
    run_alone(work, context, count);
}

#else

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum {
    SPIN_NS = 50000, /* how long a thread burns its core before it sleeps: about what waking it costs */
    WORKER_STACK = 1024 * 1024
};

typedef struct pool {
    atomic_flag busy;     /* held by the one call that uses the pool */
    pthread_mutex_t lock; /* guards what follows but the atomics */
    pthread_cond_t call, done;
    int started, startable; /* workers; startable shrinks when the system refuses one */
    int next_slot, slots;   /* of the current call; equal when it takes no more workers */
    gemm_work *work;
    void *context;
    int64_t count;
    atomic_llong next;  /* job of the current call */
    atomic_uint calls;  /* so far: workers wait for a change */
    atomic_int working; /* workers inside the current call */
} pool;

static _Atomic(pool *) the_pool;
static pthread_once_t fork_handler = PTHREAD_ONCE_INIT;

static void forget_pool(void) {
    atomic_store(&the_pool, NULL);
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, forget_pool);
}

static pool *get_pool(void) {
    pool *x = atomic_load(&the_pool);
    if (x) return x;
    pthread_once(&fork_handler, watch_forks);
    x = (pool *)calloc(1, sizeof *x);
    if (!x) return NULL;
    atomic_flag_clear(&x->busy);
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->call, NULL);
    pthread_cond_init(&x->done, NULL);
    x->startable = INT32_MAX;
    pool *first = NULL;
    if (atomic_compare_exchange_strong(&the_pool, &first, x)) return x;
    free(x); /* another thread's was first */
    return first;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits for `condition` to end, but only briefly. */
#define SPIN_WHILE(condition)                                              \
    for (int64_t end = now_ns() + SPIN_NS; (condition) && now_ns() < end;) \
        for (int pause = 0; pause < 16; pause++) relax();

static void take_jobs(pool *x, gemm_work *work, void *context, int64_t count, int slot) {
    for (int64_t index; (index = atomic_fetch_add(&x->next, 1)) < count;) work(context, index, slot);
}

static void *worker(void *argument) {
    pool *x = (pool *)argument;
    unsigned seen = 0;
    for (;;) {
        SPIN_WHILE(atomic_load(&x->calls) == seen)
        pthread_mutex_lock(&x->lock);
        while (atomic_load(&x->calls) == seen) pthread_cond_wait(&x->call, &x->lock);
        seen = atomic_load(&x->calls);
        if (x->next_slot < x->slots) {
            const int slot = x->next_slot++;
            gemm_work *work = x->work;
            void *context = x->context;
            const int64_t count = x->count;
            atomic_fetch_add(&x->working, 1);
            pthread_mutex_unlock(&x->lock);
            take_jobs(x, work, context, count, slot);
            pthread_mutex_lock(&x->lock);
            if (atomic_fetch_sub(&x->working, 1) == 1) pthread_cond_signal(&x->done);
        }
        pthread_mutex_unlock(&x->lock);
    }
    return NULL;
}

/* Starts workers up to `wanted` in all; goes on with fewer where the system refuses. */
static void start_workers(pool *x, int wanted) {
    if (x->started >= wanted || x->started >= x->startable) return;
    sigset_t all, before;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited: signals are for the program's own threads */
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, WORKER_STACK);
    while (x->started < wanted && x->started < x->startable) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, worker, x))
            x->startable = x->started;
        else
            x->started++;
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void gemm_parallel(gemm_work *work, void *context, int64_t count, int threads) {
    if (count < threads) threads = (int)count;
    pool *x = threads > 1 ? get_pool() : NULL;
    if (!x || atomic_flag_test_and_set(&x->busy)) {
        run_alone(work, context, count);
        return;
    }
    start_workers(x, threads - 1);

    pthread_mutex_lock(&x->lock);
    x->work = work, x->context = context, x->count = count;
    x->next_slot = 1, x->slots = threads;
    atomic_store(&x->next, 0);
    atomic_fetch_add(&x->calls, 1);
    pthread_cond_broadcast(&x->call);
    pthread_mutex_unlock(&x->lock);

    take_jobs(x, work, context, count, 0);

    pthread_mutex_lock(&x->lock);
    x->slots = x->next_slot; /* closed: nobody joins any more */
    pthread_mutex_unlock(&x->lock);
    SPIN_WHILE(atomic_load(&x->working))
    pthread_mutex_lock(&x->lock);
    while (atomic_load(&x->working)) pthread_cond_wait(&x->done, &x->lock);
    pthread_mutex_unlock(&x->lock);
    atomic_flag_clear(&x->busy);
}

#endif
