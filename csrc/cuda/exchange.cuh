// The parts of a sum that the blocks of a cluster hold, brought to the blocks that add them up (sm_90 and newer).
//
// Thread t of every part holds RUNS runs of 16 bytes of the same places of a tile. Part r adds up runs r * slice to
// (r + 1) * slice - 1 of all threads: every part, itself too, sends them into the shared memory of r (st.async), where a
// barrier counts what has come. Reading them across would be a trip there and back for each; so it is one way, the
// blocks meet once, before, and each may go as soon as it has what it needs.
#ifndef GEMM_CUDA_EXCHANGE
#define GEMM_CUDA_EXCHANGE

#include "ptx.cuh"

#if __CUDA_ARCH__ >= 900
template <int RUNS, int MEMBERS> struct Exchange {
    const float4 *inbox; // parts * slice * MEMBERS runs: `slice` of part 0, then of part 1 ...
    unsigned bar;        // of one arrival
    int parts, part, slice;

    __device__ __forceinline__ Exchange(const void *inbox, unsigned bar, int parts, int part)
        : inbox((const float4 *)inbox), bar(bar), parts(parts), part(part),
          slice(parts > 1 ? (RUNS + parts - 1) / parts : RUNS) {}
    __device__ __forceinline__ int first() const { // of this part's runs
        return min(part * slice, RUNS);
    }
    __device__ __forceinline__ int count() const {
        return min(slice, RUNS - first());
    }

    // By MEMBERS threads of each block, while its others meet, too; `inbox` is free then. Part p is block `rank` + p * apart
    // of the cluster; run_of(i) is this thread's run i as a float4; `parity` that of the barrier's phase.
    //
    // Why the inbox may be written: each thread of the cluster comes to the meeting after its last read of that memory, and
    // after waits for all that was to be written there. It is read only after `bar` has counted all bytes of this phase,
    // and no byte of the next phase is sent before the readers have met again.
    template <class RUN_OF>
    __device__ __forceinline__ void pass(int thread, int rank, int apart, unsigned parity, RUN_OF run_of) const {
        cluster_meet();
        if (thread == 0) barrier_expect(bar, count() * parts * MEMBERS * 16); // may be none
        const unsigned mine = shared_address(inbox + part * slice * MEMBERS + thread);
        int at = 0;
#pragma unroll
        for (int run = 0; run < RUNS; ++run) {
            remote_store(mine + at * (MEMBERS * 16), run_of(run), bar, rank);
            if (++at == slice) at = 0, rank += apart;
        }
        barrier_wait_cluster(bar, parity);
    }
    // What part p has sent of this part's i-th run.
    __device__ __forceinline__ float4 from(int p, int i, int thread) const {
        return inbox[(p * slice + i) * MEMBERS + thread];
    }
};
#endif

#endif
