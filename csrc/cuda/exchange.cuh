// Split-K reduction inside a cluster (sm_90 and newer): the blocks that hold partial sums of a tile send them to the
// blocks that add them.
//
// Thread t of every part holds RUNS runs of 16 bytes. A run has the same place in the tile in all parts. Part r adds
// runs r * slice to (r + 1) * slice - 1 of all threads. Every part, including r itself, stores these runs into the
// shared memory of r with st.async; a barrier in r counts the bytes that have arrived. Reading remote shared memory
// instead would cost a round trip per read; the stores go one way only. The blocks synchronize once, before the stores.
// Each block continues as soon as its own data has arrived.
#ifndef GEMM_CUDA_EXCHANGE
#define GEMM_CUDA_EXCHANGE

#include "ptx.cuh"

#if __CUDA_ARCH__ >= 900
template <int RUNS, int MEMBERS> struct Exchange {
    const float4 *inbox; // parts * slice * MEMBERS runs: first `slice` runs of part 0, then of part 1, ...
    unsigned bar;        // barrier with an arrival count of 1
    int parts, part, slice;

    __device__ __forceinline__ Exchange(const void *inbox, unsigned bar, int parts, int part)
        : inbox((const float4 *)inbox), bar(bar), parts(parts), part(part),
          slice(parts > 1 ? (RUNS + parts - 1) / parts : RUNS) {}
    __device__ __forceinline__ int first() const { // first run that this part adds
        return min(part * slice, RUNS);
    }
    __device__ __forceinline__ int count() const {
        return min(slice, RUNS - first());
    }

    // Called by MEMBERS threads of each block, while the block's other threads call cluster_meet. `inbox` must be free
    // then. Part p is block `rank` + p * apart of the cluster. run_of(i) is this thread's run i as a float4. `parity`
    // is the parity of the barrier's phase.
    //
    // Why it is safe to write the inbox: each thread of the cluster calls cluster_meet after its last read of that
    // memory. After cluster_meet the thread waits for all data of this phase. It reads the inbox only after `bar` has
    // counted all bytes of this phase. No block sends a byte of the next phase before the readers have called
    // cluster_meet again.
    template <class RUN_OF>
    __device__ __forceinline__ void pass(int thread, int rank, int apart, unsigned parity, RUN_OF run_of) const {
        cluster_meet();
        if (thread == 0) barrier_expect(bar, count() * parts * MEMBERS * 16); // the byte count may be 0
        const unsigned mine = shared_address(inbox + part * slice * MEMBERS + thread);
        int at = 0;
#pragma unroll
        for (int run = 0; run < RUNS; ++run) {
            remote_store(mine + at * (MEMBERS * 16), run_of(run), bar, rank);
            if (++at == slice) at = 0, rank += apart;
        }
        barrier_wait_cluster(bar, parity);
    }
    // Run i of this part's slice, as part p has sent it.
    __device__ __forceinline__ float4 from(int p, int i, int thread) const {
        return inbox[(p * slice + i) * MEMBERS + thread];
    }
};
#endif

#endif
