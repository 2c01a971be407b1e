// What a kernel compiled for the CPU and the machine that runs it (the emulated libcuda) have in common.
#pragma once
#include <cstddef>
#include <cstdint>

namespace machine {

struct Dim3 {
    unsigned x, y, z;
};

// The thread that runs.
struct Thread {
    Dim3 thread, block, block_size, grid;
    unsigned lane, warp, rank, cluster; // of the block in its cluster; the cluster's number of blocks
    char *window;                       // where the block's shared memory begins: shared addresses count from here
};

// Lanes of a warp meet, and the last one acts for all of them.
typedef void Act(void *const *lanes, unsigned mask);

enum Type : int { F16, BF16, TF32, E4M3, E5M2, S8, U8 };

struct Wgmma {
    void *d;
    uint64_t a, b;
    const unsigned *registers; // of a, or null
    int n, scale, a_transposed, b_transposed;
    Type a_type, b_type;
};

// What a module exports: where its instance of shared memory lies.
struct Memory {
    char *begin, *end;       // of all its static variables
    char *arena, *arena_end; // of the dynamic part among them
};

} // namespace machine

#define MACHINE extern "C" __attribute__((visibility("default")))

MACHINE machine::Thread *machine_thread;
MACHINE [[noreturn]] void machine_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
MACHINE void machine_touch(const void *at, unsigned long bytes, bool writes); // a load or a store, if watched
MACHINE void machine_atomic(const void *at);
MACHINE void machine_threadfence();
MACHINE void machine_barrier_init_fence();
MACHINE void machine_yield(); // lets others run: in everything that others may spin on
MACHINE void machine_warp(unsigned mask, void *mine, machine::Act *act, const char *name);
MACHINE void machine_bar(int id, int threads, bool wait);
MACHINE int machine_active(); // lanes of this warp that have not ended

MACHINE void machine_follow_launch();
MACHINE void machine_copy(unsigned shared, const void *global, int bytes, int valid);
MACHINE void machine_copy_commit();
MACHINE void machine_copy_wait(int pending);

MACHINE void machine_barrier_init(unsigned bar, unsigned count);
MACHINE void machine_barrier_arrive(unsigned bar, unsigned cta, unsigned bytes, bool expects);
MACHINE bool machine_barrier_wait(unsigned bar, unsigned parity, bool blocks);

MACHINE bool machine_barrier_passed(unsigned bar, unsigned parity);

MACHINE void machine_tma_load(unsigned to, const void *map, unsigned bar, int x, int y, int z, int rank, int mask);
MACHINE void machine_tma_store(const void *map, unsigned from, int x, int y, int z, int rank);
MACHINE void machine_bulk_commit();
MACHINE void machine_bulk_wait(int pending, bool read);
MACHINE void machine_fence_async();

MACHINE void machine_cluster_arrive();
MACHINE void machine_cluster_wait();
MACHINE void machine_remote_store(unsigned to, const void *words, unsigned bar, unsigned rank);

MACHINE void machine_ldmatrix_trans(unsigned *to, unsigned row);
MACHINE void machine_stmatrix(const unsigned *from, unsigned row);
MACHINE void machine_mma_f64(double *d, const double *a, const double *b, int m, int k);
MACHINE void machine_wgmma(const machine::Wgmma &product);
MACHINE void machine_wgmma_fence();
MACHINE void machine_wgmma_commit();
MACHINE void machine_wgmma_wait(int pending);
