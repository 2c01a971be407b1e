/* A stress test for the thread sanitizer and for different C libraries. Several threads multiply and copy at the same
 * time, share one plan, change the thread limit and fork. Before that, PROCESSES processes fork during their first
 * product. Set PROCESSES to 0 with the thread sanitizer: its allocator does not survive such forks.
 *
 *   race_engine SECONDS [PROCESSES]
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "product.h"

enum { THREADS = 6, SIZE = 96, PATIENCE = 60 /* seconds */ };

static time_t end;
static atomic_long done;

/* Large enough for several threads. All callers share the plan and its inputs. */
static struct {
    gemm_plan plan;
    operand a, b, expected;
} common;

static const gemm_scalar one = {1, 0, 1}, zero = {0, 0, 0};

static void make_common(void) {
    stream s = {.state = 11};
    int row = (int)(sizeof rows / sizeof *rows) - 1;
    while (row > 0 && !runs_here(rows[row].needs)) row--;
    const gemm_kernel *kernel = rows[row].kernel;
    const int64_t shape[] = {1, 1, SIZE, SIZE};
    common.a = make_operand(&s, kernel->a_size, shape, 0), common.b = make_operand(&s, kernel->b_size, shape, 0);
    common.expected = make_operand(&s, kernel->c_size, shape, 0);
    operand expected = contiguous_copy(&common.expected), a = contiguous_copy(&common.a),
            b = contiguous_copy(&common.b);
    release(&common.expected);
    common.expected = expected;
    common.plan = (gemm_plan){.kernel = kernel,
                              .m = SIZE,
                              .n = SIZE,
                              .k = SIZE,
                              .threads = 5,
                              .mc = 4 * kernel->mr,
                              .kc = 32,
                              .nc = 4 * kernel->nr};
    reference(&common.plan, &a, &b, NULL, &common.expected, &one, &zero);
    common.plan.a = strides_of(&common.a), common.plan.b = strides_of(&common.b);
    common.plan.out = strides_of(&common.expected);
    release(&a), release(&b);
}

static int shared_product(void) {
    operand out = contiguous_copy(&common.expected);
    memset(out.block, POISON, (size_t)out.bytes);
    const int result = gemm_run(&common.plan, common.a.first, common.b.first, NULL, out.first, &one, &zero);
    const int right = result == GEMM_OK && !memcmp(out.block, common.expected.block, (size_t)out.bytes);
    release(&out);
    return right;
}

/* A copy that is large enough for several threads. It runs at the same time as other threads' products. */
static int shared_copy(void) {
    enum { ROWS = 64, COLUMNS = 4096, BYTES = 16 };
    /* the copy reads every second element */
    static const char from[ROWS][COLUMNS][2][BYTES] = {{{{1}, {2}}, {{3}}}, {{{4}}}};
    const int64_t shape[] = {ROWS, COLUMNS}, steps[] = {COLUMNS * BYTES, BYTES};
    const int64_t jumps[] = {2 * COLUMNS * BYTES, 2 * BYTES};
    char(*to)[COLUMNS][BYTES] = malloc(sizeof *to * ROWS);
    if (!to) return 1;
    gemm_copy(to, from, 2, shape, steps, jumps, BYTES, 0);
    int right = to[0][0][0] == 1 && to[0][1][0] == 3 && to[1][0][0] == 4;
    for (int row = 0; row < ROWS; row++) right &= !memcmp(to[row][2], from[row][2][0], BYTES);
    free(to);
    return right;
}

static void *multiply(void *argument) {
    stream s = {.state = (uint64_t)(uintptr_t)argument};
    do {
        for (int i = 0; i < 4; i++) product(&s, 5);
        for (int i = 0; i < 4; i++)
            if (!shared_product()) fail(&common.plan, "the shared product is wrong");
        if (!shared_copy()) fail(&common.plan, "a copy is wrong");
        if (!next(&s, 4)) gemm_set_num_threads((int)next(&s, 6));
        atomic_fetch_add(&done, 8);
    } while (time(NULL) < end);
    return NULL;
}

#ifdef _WIN32 /* Windows has no fork */

static int fork_once(void) {
    return 0;
}

static void fork_at_first(int processes) {
    (void)processes;
}

#else

/* Returns the number of forks. */
static int fork_once(void) {
    const pid_t child = fork();
    if (child < 0) abort();
    if (!child) {
        alarm(PATIENCE);
        _exit(shared_product() && shared_copy() && shared_product() ? 0 : 1);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) {
        fprintf(stderr, "the child of a fork ended with %#x\n", status);
        abort();
    }
    return 1;
}

static void *multiply_once(void *begins) {
    operand out = contiguous_copy(&common.expected);
    atomic_store((atomic_int *)begins, 1);
    if (gemm_run(&common.plan, common.a.first, common.b.first, NULL, out.first, &one, &zero)) abort();
    release(&out);
    return NULL;
}

/* Starts processes that fork during their first product. That product runs in a thread of its own. The fork comes at
 * different moments of the start of the thread pool. */
static void fork_at_first(int processes) {
    for (int i = 0; i < processes; i++) {
        const pid_t process = fork();
        if (process < 0) abort();
        if (!process) {
            pthread_t thread;
            atomic_int begins = 0;
            if (pthread_create(&thread, NULL, multiply_once, &begins)) abort();
            while (!atomic_load(&begins)) continue;
            for (volatile int wait = 0; wait < i % 50 * 40; wait++) continue;
            fork_once();
            pthread_join(thread, NULL);
            _exit(0);
        }
        int status;
        if (waitpid(process, &status, 0) != process || status) abort();
    }
}

#endif

int main(int count, char **arguments) {
    pthread_t threads[THREADS];
    make_common();
    fork_at_first(count > 2 ? atoi(arguments[2]) : 0);
    long forks = fork_once(); /* before the first use of the pool */
    end = time(NULL) + (count > 1 ? atoi(arguments[1]) : 10);
    for (intptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, multiply, (void *)(i + 1))) abort();
    while (time(NULL) < end) {
        forks += fork_once(); /* while other threads multiply */
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    forks += fork_once();
    if (!shared_product()) fail(&common.plan, "the shared product is wrong");
    printf("%ld products in %d threads, %ld forks\n", atomic_load(&done), THREADS, forks);
    return 0;
}
