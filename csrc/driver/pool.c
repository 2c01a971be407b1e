/* Two thread pools, of products and of copies: each started by the first that is worth it, shared by all, given up by a
 * fork.
 *
 * One call at a time holds a pool; a second concurrent caller finds it busy and works alone, which is right, for the
 * cores are busy too. Jobs are an atomic count: the caller takes part and can do them all, so that it never waits for
 * a worker to start, only, at the end, for jobs that still run. A worker joins by taking a seat; one that wakes too
 * late finds the slots gone. There is no lock that woken workers would queue for.
 *
 * Sleepers are woken as a tree: the caller wakes two, each of those two more, as many as the call has use for. So the
 * caller starts on its own first job after two wake-ups, however many threads there are.
 *
 * Pools lie on the heap and a fork's child forgets them: whatever state other threads had left them in, the child's
 * next call builds another. Workers block all signals and are never joined: exit() ends them where they wait.
 */
#include "system.h"

#include "pool.h"
#include "driver.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

enum { MOST_THREADS = 1024 }; /* whatever is asked for: each has a workspace */

/* Found by name in the loaded library, as threadpoolctl does. */
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

enum {
    WAKE_NS = 50000, /* from waking a sleeper to its first job; under a hypervisor, where it is dearest */
    MIN_SHARE_ASLEEP_NS =
        2 * WAKE_NS,        /* a share that repays a sleeper: the caller gains even when wake-ups take thrice as long */
    SPIN_NS = 10 * WAKE_NS, /* how long a thread burns its core before it sleeps: the next product is often that near */
    MIN_SHARE_AWAKE_NS =
        GEMM_SHORT_NS / 2, /* a share that repays a spinning worker's part: some cache misses, and finer jobs */
    MAX_LOSS_NS =
        2000000, /* what threads may lose, on the whole, before they count as harmful: others have the cores */
    BACKOFF_NS = 10000000,     /* how long they do */
    AFFINITY_AGE_NS = 1000000, /* how long a product's thread believes what it knows of its affinity */
    RETRY_NS = 1000000000,     /* how long a refused thread is not asked for again */
    WAKES = 2,                 /* by each thread of the tree: one costs the waker some 5 us, so 15 would cost 75 */
    CALLER_SLEEPS = 1 << 20,   /* in `outstanding`: the caller sleeps until the rest is 0 */
    LINE = 64,                 /* bytes that cores pass around at a time */
    WORKER_STACK = 1024 * 1024
};

typedef struct pool {
    atomic_flag busy;          /* in_use by the one call that uses the pool; guards the next four */
    int started;               /* workers */
    int64_t refused;           /* when the system last refused one, by now_ns; 0: never */
    int64_t saved_ns;          /* time that threads have lately saved, up to MAX_LOSS_NS */
    int64_t backoff_start;     /* when it ran out */
    atomic_int in_use;         /* threads of the one call; 0: none, or it is about to begin */
    atomic_llong last;         /* end of a call that threads could have paid for, by now_ns */
    gemm_semaphore wake, finished; /* sleeping workers, the sleeping caller */
    atomic_int cpu;            /* of the thread whose product is computed, when it began; -1: unknown */
    atomic_int spin_ns; /* SPIN_NS; 0 where there are more threads than CPUs, which others of them have use for */
    /* the current call: constant while there are slots or anybody inside */
    gemm_work *work;
    void *context;
    int64_t count;
    _Alignas(LINE) atomic_int free_slots;  /* free ones, the next to be taken is the one numbered so; 0: closed */
    atomic_int to_wake;                    /* sleepers that the current call would still have woken */
    atomic_int asleep;                     /* workers that wait for the wake; who takes one off here must ring for it */
    _Alignas(LINE) atomic_llong jobs;      /* not yet taken; negative when many found none */
    _Alignas(LINE) atomic_int outstanding; /* minus the workers that left; plus, after the close, those that joined */
} pool;

static atomic_int requested; /* the limit that was set; 0: as many as are granted */
static atomic_int granted = MOST_THREADS;
static _Thread_local int reserved; /* of either, by products of this thread */
static _Atomic(pool *) pools[GEMM_POOLS];
static _Atomic float slowness = 1; /* of this machine: the middle of time taken alone ÷ time expected */

#ifndef _WIN32 /* which has no forks */

static void forget_pools(void) {
    for (int kind = 0; kind < GEMM_POOLS; kind++) atomic_store(&pools[kind], NULL);
}

/* When the library is loaded, not when a pool is first needed: a fork just then would leave the child a pthread_once, or
 * with musl a list of handlers, in the hands of a thread that is not there, and its first product waits for ever. */
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
    release(x); /* another thread's was first, or there is no gemm_semaphore */
    return first;
}

/* The CPUs that this thread may run on, as they were at most `age` nanoseconds ago. */
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

/* Of `limit` threads those that copies may have. */
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

/* Waits for `condition` to end, but only briefly, in the pool x; and lets others have the core that wait for it. */
#define SPIN_WHILE(condition)                                                                                  \
    for (int64_t end = now_ns() + atomic_load(&x->spin_ns), turn = 1; (condition) && now_ns() < end; turn++) { \
        for (int pause = 0; pause < 16; pause++) relax();                                                      \
        if (turn % 16 == 0) yield_cpu();                                                                       \
    }

/* Takes up to `most` off a count that stays positive or 0; what it was then goes to `before`. */
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
            /* a call that was opened meanwhile may have taken this worker for an awake one */
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

/* Starts workers up to `wanted` in all; goes on with fewer where the system refuses. */
static void start_workers(pool *x, int wanted, int64_t now) {
    if (x->started >= wanted || (x->refused && now - x->refused < RETRY_NS)) return;
    x->refused = 0;
    while (x->started < wanted && !x->refused)
        if (start_thread(worker, x, WORKER_STACK))
            x->started++;
        else
            x->refused = now;
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

    /* Workers that spin pay sooner than sleepers; and so do all in a run of products, because who is woken now will
     * spin when the next one comes. But where other programs have the cores, waiting for a worker that lost its own
     * costs more than small products gain. */
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
    if (acquired.threads < 2) { /* a step at a time, so that interruptions, however long, hardly count */
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
    pool *x = (pool *)acquired.pool; /* in_use since gemm_acquire_threads */
    const int slots = (int)min64(count, threads) - 1;
    x->work = work, x->context = context, x->count = count;
    atomic_store(&x->cpu, current_cpu());
    atomic_store(&x->jobs, count);
    atomic_store(&x->free_slots, slots);
    const int awake = x->started - atomic_load(&x->asleep); /* they come of themselves */
    if (awake < slots) {
        atomic_store(&x->to_wake, slots - awake);
        wake_workers(x);
    }

    run_jobs(x, work, context, count, 0);

    atomic_store(&x->to_wake, 0);
    const int joined = slots - atomic_exchange(&x->free_slots, 0); /* closed: nobody joins any more */
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
    if (acquired.threads < 2) return; /* alone it tells nothing of how fast products are here */
    acquired.serial_ns = (int64_t)((double)acquired.serial_ns * (ns / (ns + more_ns)));
    gemm_release_threads(acquired);
}
