/* The operating system's functions that the thread pool needs: detached threads, a counting semaphore, aligned memory,
 * a clock, the CPUs of a thread, and pthread_atfork. Include this header before any other. */
#ifndef GEMM_SYSTEM_H
#define GEMM_SYSTEM_H

#define _GNU_SOURCE /* declares sched_getaffinity */

#include <stdint.h>
#include <stdlib.h>

/* Functions that can fail return whether they succeed. */
#ifdef _WIN32

#define WIN32_LEAN_AND_MEAN
#include <malloc.h>
#include <windows.h>

#define THREAD DWORD WINAPI
typedef LPTHREAD_START_ROUTINE thread_function;

typedef HANDLE gemm_semaphore;

static int gemm_semaphore_init(gemm_semaphore *x) {
    *x = CreateSemaphoreW(NULL, 0, LONG_MAX, NULL);
    return *x != NULL;
}

static void gemm_semaphore_post(gemm_semaphore *x) {
    ReleaseSemaphore(*x, 1, NULL);
}

static void gemm_semaphore_wait(gemm_semaphore *x) {
    WaitForSingleObject(*x, INFINITE);
}

static int start_thread(thread_function run, void *argument, size_t stack) {
    const HANDLE thread = CreateThread(NULL, stack, run, argument, STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
    return thread && CloseHandle(thread);
}

static void *allocate(size_t alignment, size_t bytes) {
    return _aligned_malloc(bytes, alignment);
}

static void release(void *memory) {
    _aligned_free(memory);
}

static int64_t now_ns(void) {
    enum { SECOND = 1000000000 };
    LARGE_INTEGER now, rate;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&rate);
    return now.QuadPart / rate.QuadPart * SECOND + now.QuadPart % rate.QuadPart * SECOND / rate.QuadPart;
}

static void yield_cpu(void) {
    SwitchToThread();
}

#else

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#define THREAD void *
typedef void *thread_function(void *);

#ifdef __APPLE__ /* macOS has no unnamed semaphores */

typedef struct gemm_semaphore {
    pthread_mutex_t lock;
    pthread_cond_t posted;
    int count;
} gemm_semaphore;

static int gemm_semaphore_init(gemm_semaphore *x) {
    x->count = 0;
    return !pthread_mutex_init(&x->lock, NULL) && !pthread_cond_init(&x->posted, NULL);
}

static void gemm_semaphore_post(gemm_semaphore *x) {
    pthread_mutex_lock(&x->lock);
    x->count++;
    pthread_mutex_unlock(&x->lock);
    pthread_cond_signal(&x->posted);
}

static void gemm_semaphore_wait(gemm_semaphore *x) {
    pthread_mutex_lock(&x->lock);
    while (!x->count) pthread_cond_wait(&x->posted, &x->lock);
    x->count--;
    pthread_mutex_unlock(&x->lock);
}

#else

#include <semaphore.h>

typedef sem_t gemm_semaphore; /* on Linux a futex: no lock, and no system call while no thread sleeps */

static int gemm_semaphore_init(gemm_semaphore *x) {
    return !sem_init(x, 0, 0);
}

static void gemm_semaphore_post(gemm_semaphore *x) {
    sem_post(x);
}

static void gemm_semaphore_wait(gemm_semaphore *x) {
    while (sem_wait(x)) continue; /* interrupted by a signal */
}

#endif

/* Starts a thread that blocks all signals, because signals belong to the program's own threads. */
static int start_thread(thread_function run, void *argument, size_t stack) {
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the new thread inherits this mask */
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, stack);
    const int starts = !pthread_create(&thread, &attributes, run, argument);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return starts;
}

static void *allocate(size_t alignment, size_t bytes) {
    void *memory;
    return posix_memalign(&memory, alignment, bytes) ? NULL : memory;
}

static void release(void *memory) {
    free(memory);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void yield_cpu(void) {
    sched_yield();
}

#endif

/* Returns the number of CPUs that this thread may run on; 0: unknown. */
static int count_cpus(void) {
    int cpus = 0;
#ifdef __linux__
    cpu_set_t set;
    /* fails if there are more CPUs than the set holds */
    if (!sched_getaffinity(0, sizeof set, &set)) cpus = CPU_COUNT(&set);
#elif defined(_WIN32)
    DWORD_PTR own, all;
    /* `own` is zero if the process spans several groups of 64 CPUs */
    if (GetProcessAffinityMask(GetCurrentProcess(), &own, &all))
        for (; own; own &= own - 1) cpus++;
#endif
    return cpus;
}

/* Returns the number of the CPU that this thread runs on; -1: unknown. */
static int current_cpu(void) {
#ifdef __linux__
    return sched_getcpu();
#else
    return -1;
#endif
}

/* If the calling worker runs on `cpu`, the CPU of the thread that called gemm_parallel, moves the worker to another
 * CPU. Operating systems often wake a thread on the CPU of the thread that wakes it, although other CPUs are idle. The
 * two threads then alternate on that CPU for milliseconds. This is frequent under a hypervisor, because a guest system
 * may consider a halted CPU busy. */
static void yield_to_caller(int cpu) {
#ifdef __linux__
    cpu_set_t all, others;
    if (cpu < 0 || cpu >= CPU_SETSIZE || sched_getcpu() != cpu || sched_getaffinity(0, sizeof all, &all)) return;
    others = all;
    CPU_CLR(cpu, &others);
    if (CPU_COUNT(&others) && !sched_setaffinity(0, sizeof others, &others)) sched_setaffinity(0, sizeof all, &all);
#else
    (void)cpu;
#endif
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
