/* Two thread pools: one for products, one for copies. The first call for which threads are worthwhile creates a pool;
 * all later calls share it.
 *
 * Only one call at a time uses a pool. A second concurrent caller finds the pool busy and runs on its own thread only,
 * which is appropriate because the cores are busy, too.
 *
 * Threads take the jobs of a call from an atomic counter. The caller executes jobs, too, and can execute all of them.
 * Therefore the caller never waits for a worker to start. It waits only at the end, for jobs that are still running. A
 * worker joins a call by taking a free slot; a worker that wakes too late finds no free slot. Woken workers do not
 * queue for a lock.
 *
 * Sleeping workers are woken as a tree: the caller wakes two, each of these wakes two more, and so on, until the call
 * has enough. Therefore the caller starts its first job after two wake-ups, however many threads there are.
 *
 * After a fork, the child forgets both pools, whatever state other threads had left them in; its next call allocates a
 * new pool on the heap. Workers block all signals and are never joined. exit() ends them while they wait. */
#include "system.h"

#include "pool.h"
#include "driver.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

enum { MOST_THREADS = 1024 }; /* upper limit for any request, because each thread has a workspace */

/* EXPORT marks functions that threadpoolctl looks up by name in the loaded library. */
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

enum {
    WAKE_NS = 50000, /* time from waking a sleeping worker to its first job, under a hypervisor (the slowest case) */
    /* Minimum work per thread. If workers sleep, MIN_SHARE_ASLEEP_NS saves time even if a wake-up takes 3 * WAKE_NS. If
     * workers spin, MIN_SHARE_AWAKE_NS makes up for cache misses and for smaller jobs, which are less efficient. */
    MIN_SHARE_ASLEEP_NS = 2 * WAKE_NS,
    MIN_SHARE_AWAKE_NS = GEMM_SHORT_NS / 2,
    SPIN_NS = 10 * WAKE_NS, /* how long a thread spins before it sleeps; often, the next product comes earlier */
    /* If threads cost more time than they saved, by more than this limit, the pool assumes that other programs use the
     * cores. For BACKOFF_NS, it then uses only as many threads as are worthwhile if all workers sleep. */
    MAX_LOSS_NS = 2000000,
    BACKOFF_NS = 10000000,
    AFFINITY_AGE_NS = 1000000, /* how long a thread caches its CPU affinity */
    RETRY_NS = 1000000000,     /* how long the pool waits after the system refused to start a thread */
    /* How many sleeping workers each thread wakes; the woken workers wake others (a tree). A wake-up costs the waking
     * thread about 5 us, so waking 15 workers would cost one thread 75 us. */
    WAKES = 2,
    CALLER_SLEEPS = 1 << 20, /* a flag in `outstanding`: the caller sleeps until the remaining bits are 0 */
    LINE = 64,               /* bytes of a cache line, the unit that cores exchange */
    WORKER_STACK = 1024 * 1024
};

typedef struct pool {
    atomic_flag busy;              /* set by the call that uses the pool; protects the next four fields */
    int started;                   /* number of workers */
    int64_t refused;               /* when the system last refused to start a worker, by now_ns; 0: never */
    int64_t saved_ns;              /* the time that threads may still lose before the pool backs off; <= MAX_LOSS_NS */
    int64_t backoff_start;         /* when saved_ns last became negative */
    atomic_int in_use;             /* threads of the current call; 0: there is no call, or a call is about to begin */
    atomic_llong last;             /* end of the last call that was long enough for threads, by now_ns */
    gemm_semaphore wake, finished; /* for sleeping workers and for the sleeping caller */
    atomic_int cpu;                /* CPU of the calling thread when the call began; -1: unknown */
    atomic_int spin_ns;            /* SPIN_NS, or 0 if threads outnumber CPUs: spinning would delay other threads */
    /* The current call. These three fields are constant while a slot is free or a worker executes jobs. */
    gemm_work *work;
    void *context;
    int64_t count;
    /* The number of free slots. It is also the number of the slot that the next worker takes. 0: no worker can join. */
    _Alignas(LINE) atomic_int free_slots;
    atomic_int to_wake;               /* sleeping workers that the current call still needs */
    atomic_int asleep;                /* workers that wait for `wake`; to wake one, decrement `asleep`, post `wake` */
    _Alignas(LINE) atomic_llong jobs; /* jobs that no thread has taken; negative after threads found none left */
    /* Workers that joined minus workers that left. The number that joined is added only when the caller closes the
     * call; until then the value is 0 or negative. */
    _Alignas(LINE) atomic_int outstanding;
} pool;

static atomic_int requested; /* limit set by gemm_set_num_threads; 0: none */
static atomic_int granted = MOST_THREADS;
static _Thread_local int reserved; /* number of threads that products of this thread leave free */
static _Atomic(pool *) pools[GEMM_POOLS];
static _Atomic float slowness = 1; /* the median of measured time / expected time of serial products on this machine */

#ifndef _WIN32 /* Windows has no fork */

static void forget_pools(void) {
    for (int kind = 0; kind < GEMM_POOLS; kind++) atomic_store(&pools[kind], NULL);
}

/* The handler is registered when the library is loaded, not when the first pool is created. If a fork happened during
 * that creation, the child would inherit a pthread_once (or, with musl, a list of handlers) that a thread of the parent
 * holds. That thread does not exist in the child, so the child's first product would wait forever. */
__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(NULL, NULL, forget_pools);
}

#endif

static pool *get_pool(gemm_pool_kind kind) {
    pool *x = atomic_load(&pools[kind]);
    if (x) return x;
    x = (pool *)allocate(LINE, sizeof *x);
    if (!x) return NULL;
    memset(x, 0, sizeof *x);
    atomic_flag_clear(&x->busy);
    x->saved_ns = MAX_LOSS_NS;
    pool *first = NULL;
    if (gemm_semaphore_init(&x->wake) && gemm_semaphore_init(&x->finished) &&
        atomic_compare_exchange_strong(&pools[kind], &first, x))
        return x;
    release(x); /* another thread was first, or the system has no semaphore */
    return first;
}

/* Returns the number of CPUs that this thread may run on, from a cached value that is at most `age` nanoseconds old. */
static int usable_cpus(int64_t now, int64_t age) {
    static _Thread_local int64_t checked;
    static _Thread_local int cpus;
    if (!checked || now - checked >= age) {
        cpus = count_cpus();
        checked = now;
    }
    return cpus ? cpus : MOST_THREADS;
}

static int limit_for(int cpus) {
    const int asked = atomic_load(&requested);
    const int limit = asked ? asked : (int)min64(atomic_load(&granted), cpus);
    return limit > reserved ? limit - reserved : 1;
}

/* Returns the number of threads that a copy may use if the process may use `limit`. */
static int limit_for_copies(int limit) {
    pool *products = atomic_load(&pools[GEMM_PRODUCT_POOL]);
    const int left = limit - (products ? atomic_load(&products->in_use) : 0);
    return left > 2 ? left - 1 : left;
}

EXPORT int gemm_get_num_threads(void) {
    return limit_for(usable_cpus(now_ns(), 0));
}

EXPORT void gemm_set_num_threads(int threads) {
    atomic_store(&requested, threads > 0 ? (int)min64(threads, MOST_THREADS) : 0);
}

void gemm_grant_threads(int most) {
    atomic_store(&granted, most > 0 ? (int)min64(most, MOST_THREADS) : 1);
}

void gemm_leave_threads(int count) {
    reserved = count;
}

/* Spins while `condition` holds, but at most for x->spin_ns. Sometimes yields the core to waiting threads. */
#define SPIN_WHILE(condition)                                                                                    \
    for (int64_t end = now_ns() + atomic_load(&x->spin_ns), spins = 1; (condition) && now_ns() < end; spins++) { \
        for (int pause = 0; pause < 16; pause++) relax();                                                        \
        if (spins % 16 == 0) yield_cpu();                                                                        \
    }

/* Subtracts up to `most` from a counter without going below 0. Returns the difference, and the old value in
 * `before`. */
static int take_up_to(atomic_int *count, int most, int *before) {
    int found = atomic_load(count), taken;
    do taken = found < most ? found : most;
    while (taken > 0 && !atomic_compare_exchange_weak(count, &found, found - taken));
    *before = found;
    return taken > 0 ? taken : 0;
}

static void wake_workers(pool *x) {
    int before, wakes = take_up_to(&x->to_wake, WAKES, &before);
    wakes = take_up_to(&x->asleep, wakes, &before);
    while (wakes--) gemm_semaphore_post(&x->wake);
}

static void run_jobs(pool *x, gemm_work *work, void *context, int64_t count, int slot) {
    for (int64_t left; (left = atomic_fetch_sub(&x->jobs, 1)) > 0;) work(context, count - left, slot);
}

static int is_open(pool *x) {
    return atomic_load(&x->free_slots) > 0 && atomic_load(&x->jobs) > 0;
}

static THREAD worker(void *argument) {
    pool *x = (pool *)argument;
    for (int slot, before;;) {
        SPIN_WHILE(!is_open(x))
        if (!is_open(x)) {
            atomic_fetch_add(&x->asleep, 1);
            /* A call that opened just now may have counted this worker as awake. Then this worker must not sleep. */
            if (is_open(x) && take_up_to(&x->asleep, 1, &before)) continue;
            gemm_semaphore_wait(&x->wake);
            yield_to_caller(atomic_load(&x->cpu));
            if (is_open(x)) wake_workers(x);
        } else if (take_up_to(&x->free_slots, 1, &slot)) {
            yield_to_caller(atomic_load(&x->cpu));
            run_jobs(x, x->work, x->context, x->count, slot);
            if (atomic_fetch_sub(&x->outstanding, 1) == CALLER_SLEEPS + 1) gemm_semaphore_post(&x->finished);
        }
    }
    return 0;
}

/* Starts workers until there are `wanted`, or until the system refuses one. */
static void start_workers(pool *x, int wanted, int64_t now) {
    if (x->started >= wanted || (x->refused && now - x->refused < RETRY_NS)) return;
    x->refused = 0;
    while (x->started < wanted && !x->refused)
        if (start_thread(worker, x, WORKER_STACK))
            x->started++;
        else
            x->refused = now;
}

int gemm_useful_threads(double ns, int most) {
    const double worthwhile = ns * atomic_load_explicit(&slowness, memory_order_relaxed) / MIN_SHARE_AWAKE_NS;
    most = (int)min64(most, gemm_get_num_threads());
    return worthwhile >= most ? most : worthwhile < 1 ? 1 : (int)worthwhile;
}

gemm_acquired gemm_acquire_threads(gemm_pool_kind kind, double ns, int most) {
    const gemm_acquired serial = {1, NULL, 0, 0};
    ns *= atomic_load_explicit(&slowness, memory_order_relaxed);
    const double worth_awake = ns / MIN_SHARE_AWAKE_NS, worth_asleep = ns / MIN_SHARE_ASLEEP_NS;
    if (most < 2 || worth_awake < 2) return serial;
    const int64_t now = now_ns();
    const int cpus = usable_cpus(now, AFFINITY_AGE_NS), limit = limit_for(cpus);
    most = (int)min64(most, kind == GEMM_COPY_POOL ? limit_for_copies(limit) : limit);
    const int useful = worth_awake < most ? (int)worth_awake : most;
    pool *x = useful > 1 ? get_pool(kind) : NULL;
    if (!x || atomic_flag_test_and_set(&x->busy)) return serial;

    /* Spinning workers are worthwhile for less work than sleeping workers. In a series of products, all workers are
     * worthwhile: a worker that is woken now still spins when the next product comes. But if other programs use the
     * cores (BACKOFF_NS), a worker may lose its core in the middle of a job. Waiting for that worker then costs more
     * time than threads save in a small product. */
    int threads = worth_asleep < useful ? (int)worth_asleep : useful;
    if (now - x->backoff_start > BACKOFF_NS) {
        const int awake = 1 + x->started - atomic_load(&x->asleep);
        if (threads < awake) threads = awake < useful ? awake : useful;
        if (now - atomic_load(&x->last) < SPIN_NS) threads = useful;
    }
    const int spin_ns = (threads > x->started ? threads - 1 : x->started) < cpus ? SPIN_NS : 0;
    if (atomic_load(&x->spin_ns) != spin_ns) atomic_store(&x->spin_ns, spin_ns);
    start_workers(x, threads - 1, now);
    if (threads > 1 + x->started) threads = 1 + x->started;
    if (threads < 2) {
        threads = 1;
        atomic_flag_clear(&x->busy);
    } else {
        atomic_store(&x->in_use, threads);
    }
    return (gemm_acquired){threads, x, now, (int64_t)ns};
}

void gemm_release_threads(gemm_acquired acquired) {
    pool *x = (pool *)acquired.pool;
    if (!x) return;
    const int64_t now = now_ns(), saved = acquired.serial_ns - (now - acquired.start);
    atomic_store(&x->last, now);
    if (acquired.threads < 2) { /* small steps: even a long interruption of one product hardly changes the estimate */
        const float step = 1.05f, was = atomic_load_explicit(&slowness, memory_order_relaxed);
        atomic_store_explicit(&slowness, saved < 0 ? was * step : was / step, memory_order_relaxed);
        return;
    }
    x->saved_ns = min64(x->saved_ns + saved, MAX_LOSS_NS);
    if (x->saved_ns < 0) x->saved_ns = MAX_LOSS_NS, x->backoff_start = now;
    atomic_store(&x->in_use, 0);
    atomic_flag_clear(&x->busy);
}

void gemm_parallel(gemm_acquired acquired, gemm_work *work, void *context, int64_t count, int threads) {
    if (threads < 2 || count < 2) {
        for (int64_t index = 0; index < count; index++) work(context, index, 0);
        return;
    }
    pool *x = (pool *)acquired.pool; /* the caller holds it since gemm_acquire_threads */
    const int slots = (int)min64(count, threads) - 1;
    x->work = work, x->context = context, x->count = count;
    atomic_store(&x->cpu, current_cpu());
    atomic_store(&x->jobs, count);
    atomic_store(&x->free_slots, slots);
    const int awake = x->started - atomic_load(&x->asleep); /* workers that join without being woken */
    if (awake < slots) {
        atomic_store(&x->to_wake, slots - awake);
        wake_workers(x);
    }

    run_jobs(x, work, context, count, 0);

    atomic_store(&x->to_wake, 0);
    const int joined = slots - atomic_exchange(&x->free_slots, 0); /* closed: no more workers can join */
    atomic_fetch_add(&x->outstanding, joined);
    SPIN_WHILE(atomic_load(&x->outstanding))
    if (atomic_fetch_add(&x->outstanding, CALLER_SLEEPS)) gemm_semaphore_wait(&x->finished);
    atomic_store(&x->outstanding, 0);
}

void gemm_share(gemm_work *work, void *context, int64_t count, double ns, double more_ns) {
    gemm_acquired acquired = {1, NULL, 0, 0};
    if (ns > GEMM_SHORT_NS)
        acquired = gemm_acquire_threads(GEMM_PRODUCT_POOL, ns + more_ns, (int)min64(count, MOST_THREADS));
    gemm_parallel(acquired, work, context, count, acquired.threads);
    /* A serial loop holds no pool and must not call gemm_release_threads, which would use the loop's time to estimate
     * the speed of products. */
    if (acquired.threads < 2) return;
    acquired.serial_ns = (int64_t)((double)acquired.serial_ns * (ns / (ns + more_ns)));
    gemm_release_threads(acquired);
}
