// The parts of a k that was cut, summed: each part's block holds COUNT sums a thread of the same tile.
//
// On sm_90 and newer the parts of a tile are one cluster, which exchanges them through shared memory (exchange.cuh):
// nothing goes through memory but the result. Before that, each block writes its sums to g.memory and counts itself at
// the tile's g.arrivals; the one that comes last sums them all and resets the count. Both add in the order of the parts,
// so that the bits of a result never depend on which block came first.
//
// A sum is exchanged between the threads of the same number, so that any layout will do as long as all parts have it.
#ifndef GEMM_CUDA_JOIN
#define GEMM_CUDA_JOIN

#include "exchange.cuh"
#include "gemm.cuh"
#include "ptx.cuh"

#ifndef JOIN_BARRIER
#define JOIN_BARRIER 1 // a number of bar.sync that the kernel does not use elsewhere
#endif

enum { RUN = 16 / sizeof(SUM) }; // sums that are exchanged at once

union Run {
    float4 words;
    SUM at[RUN];
};

// Bytes at `shared` that suffice where up to 8 parts are a cluster: slices are whole runs. (Exactly: catalog/cuda.py, inbox.)
#define JOIN_BYTES(COUNT, MEMBERS) (((COUNT) * (int)sizeof(SUM) + 7 * 16) * (MEMBERS))

// Sums of runs `first` to `last - 1`, where from(part, run) is what a part has.
template <class FROM, class STORE> INLINE void add_up(int parts, int first, int last, FROM from, STORE store) {
    constexpr int TOGETHER = 4; // enough loads on their way to cover their latency
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

// Calls store(i, sums) for the sums i to i + RUN - 1 of this thread, once in some part of the tile, for i = 0, RUN, ...
//
// MEMBERS threads of the block come here, `thread` of 0 to MEMBERS - 1, with nothing on its way to shared memory; the
// others have left the kernel. With parts = 1 the sums never leave the registers and `i` is a constant after unrolling.
//   tile     number of this block's tile, over the batch too
//   shared   JOIN_BYTES(COUNT, MEMBERS), aligned to 16, that no thread needs any more
//   turn     how many tiles this block has joined before: the barrier is made by the first
//   ROOM     `shared` is free with parts = 1, too. Sums that meet a bias or an activation then go through it to one piece of
//            code, not each to its own: that takes fewer registers, and compiles in a fraction of the time
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
        bar_sync(JOIN_BARRIER, MEMBERS); // all have read from `shared` what they need
#pragma unroll
        for (int i = 0; i < RUNS; ++i) runs[i * MEMBERS] = run_of(i);
        if (alone) {
#pragma unroll 1
            for (int i = 0; i < RUNS; ++i) store(i * RUN, runs[i * MEMBERS].at);
            return;
        }
        unsigned *const last = (unsigned *)shared;
        // Each thread's sums are visible everywhere before its block is counted: each has its fence, then the barrier, then
        // one counts. Who counts last has heard of all, tells it by the barrier, and each of its threads has a fence.
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
