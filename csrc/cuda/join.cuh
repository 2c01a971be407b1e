// Split-K reduction. Each part of k has its own block, which holds partial sums of the whole tile: COUNT per thread.
//
// On sm_90 and newer the parts of a tile are one cluster, which exchanges the sums through shared memory
// (exchange.cuh): only the result goes to global memory. On older GPUs each block writes its sums to g.memory and
// increments the tile's counter in g.arrivals. The block that increments the counter last adds all sums and resets the
// counter. Both ways add in the order of the parts, so the bits of a result do not depend on the order in which blocks
// finish.
//
// Sums are exchanged between threads with the same number. All parts must map sums to threads in the same way.
#ifndef GEMM_CUDA_JOIN
#define GEMM_CUDA_JOIN

#include "exchange.cuh"
#include "gemm.cuh"
#include "ptx.cuh"

#ifndef JOIN_BARRIER
#define JOIN_BARRIER 1 // the id of a bar.sync that the kernel uses nowhere else
#endif

enum { RUN = 16 / sizeof(SUM) }; // sums in 16 bytes, the unit of the exchange

union Run {
    float4 words;
    SUM at[RUN];
};

// An upper bound of the bytes that `join` needs at `shared` for up to 8 parts. Slices are rounded up to whole runs.
// catalog/cuda.py (`inbox`) computes the exact number.
#define JOIN_BYTES(COUNT, MEMBERS) (((COUNT) * (int)sizeof(SUM) + 7 * 16) * (MEMBERS))

// Adds runs `first` to `last - 1` of all parts. from(part, run) returns a run of a part. store(i, sums) gets the total
// of the run that starts at sum i.
template <class FROM, class STORE> INLINE void add_up(int parts, int first, int last, FROM from, STORE store) {
    constexpr int TOGETHER = 4; // number of loads in flight, enough to hide their latency
    for (int run = first; run < last; run += TOGETHER) {
        Run sums[TOGETHER] = {};
#pragma unroll 2
        for (int part = 0; part < parts; ++part) {
#pragma unroll
            for (int x = 0; x < TOGETHER; ++x) {
                const Run more = from(part, min(run + x, last - 1));
#pragma unroll
                for (int y = 0; y < RUN; ++y) sums[x].at[y] = add(sums[x].at[y], more.at[y]);
            }
        }
#pragma unroll
        for (int x = 0; x < TOGETHER; ++x) {
            if (run + x < last) store((run + x) * RUN, sums[x].at);
        }
    }
}

// Calls store(i, sums) with this thread's final sums i to i + RUN - 1, for i = 0, RUN, ... For each i, only one of the
// parts calls store.
//
// MEMBERS threads of the block call this function, with `thread` from 0 to MEMBERS - 1. No copy to shared memory may be
// in flight. The block's other threads must have exited, or, if parts > 1, call cluster_meet once meanwhile. With
// parts = 1 the sums stay in registers (except as ROOM says), and `i` is a constant after unrolling.
//   tile     number of this block's tile, counted over the batch too
//   shared   JOIN_BYTES(COUNT, MEMBERS) bytes, aligned to 16. If parts > 1 or ROOM is true, `join` may overwrite them
//   turn     number of tiles that this block has joined before; the first call (turn 0) initializes the barrier
//   ROOM     true: `shared` is free with parts = 1, too. If the kernel has an EPILOGUE (bias or activation), the sums
//            then go through `shared` to a single copy of the epilogue's code even with parts = 1. One copy per sum
//            would take more registers and compile much slower
template <int COUNT, int MEMBERS, bool ROOM = false, class STORE>
INLINE void join(const Gemm &g, long long tile, int part, int thread, const SUM (&sums)[COUNT], void *shared,
                 STORE store, int turn = 0) {
    constexpr int RUNS = COUNT / RUN;
    static_assert(COUNT % RUN == 0, "sums are exchanged in runs");
    if (g.parts == 1 && !(EPILOGUE && ROOM)) {
#pragma unroll
        for (int i = 0; i < RUNS; ++i) {
            Run run;
#pragma unroll
            for (int x = 0; x < RUN; ++x) run.at[x] = sums[i * RUN + x];
            store(i * RUN, run.at);
        }
        return;
    }
    const auto run_of = [&](int i) {
        Run run;
#pragma unroll
        for (int x = 0; x < RUN; ++x) run.at[x] = sums[i * RUN + x];
        return run;
    };
    if (g.memory || g.parts == 1) {
        const bool alone = g.parts == 1;
        Run *const runs = (alone ? (Run *)shared : (Run *)g.memory + (tile * g.parts + part) * RUNS * MEMBERS) + thread;
        bar_sync(JOIN_BARRIER, MEMBERS); // all threads have finished reading `shared`
#pragma unroll
        for (int i = 0; i < RUNS; ++i) runs[i * MEMBERS] = run_of(i);
        if (alone) {
#pragma unroll 1
            for (int i = 0; i < RUNS; ++i) store(i * RUN, runs[i * MEMBERS].at);
            return;
        }
        unsigned *const last = (unsigned *)shared;
        // Memory ordering: each thread executes a fence after its stores, then all threads meet at the barrier, then
        // one thread increments the counter. The sums are therefore visible to all blocks before the block is counted.
        // In the block that is counted last, one thread reads the counter, the barrier passes the result to the other
        // threads, and each thread executes a fence before it reads the sums.
        __threadfence();
        bar_sync(JOIN_BARRIER, MEMBERS);
        if (thread == 0) *last = atomicAdd(g.arrivals + tile, 1u) + 1 == (unsigned)g.parts;
        bar_sync(JOIN_BARRIER, MEMBERS);
        if (!*last) return;
        __threadfence();
        const Run *const all = (const Run *)g.memory + tile * g.parts * RUNS * MEMBERS + thread;
        add_up(g.parts, 0, RUNS, [&](int p, int i) { return all[((long long)p * RUNS + i) * MEMBERS]; }, store);
        if (thread == 0) g.arrivals[tile] = 0;
        return;
    }
#if __CUDA_ARCH__ >= 900
    alignas(8) __shared__ unsigned long long arrived;
    const Exchange<RUNS, MEMBERS> exchange(shared, shared_address(&arrived), g.parts, part);
    if (thread == 0 && turn == 0) {
        barrier_init(shared_address(&arrived), 1);
        barrier_init_fence();
    }
    exchange.pass(thread, 0, 1, turn % 2, [&](int i) { return run_of(i).words; });
    const auto from = [&](int p, int i) {
        Run run;
        run.words = exchange.from(p, i - exchange.first(), thread);
        return run;
    };
    add_up(g.parts, exchange.first(), exchange.first() + exchange.count(), from, store);
#endif
}

#endif
