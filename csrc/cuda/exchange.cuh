// Split-K reduction inside a cluster (sm_90 and newer). Each block (part) holds partial sums of the whole tile, for its
// part of k. Each block adds one slice of the tile and receives the partial sums of this slice from all parts.
//
// Thread t of every part holds RUNS runs of 16 bytes. Run i of thread t has the same place in the tile in all parts.
// Part r adds runs r * slice to (r + 1) * slice - 1 of all threads (the last parts may have fewer runs). Every part,
// including r itself, stores these runs into the shared memory of r with st.async; a barrier in r counts the bytes that
// have arrived. Reading remote shared memory instead would cost a round trip per read; the stores go one way only. The
// blocks synchronize once, before the stores. Each block continues as soon as all runs of its own slice have arrived.
#ifndef GEMM_CUDA_EXCHANGE
#define GEMM_CUDA_EXCHANGE

#include "ptx.cuh"

#if __CUDA_ARCH__ >= 900
template <int RUNS, int MEMBERS> struct Exchange {
    const float4 *inbox; // parts * slice * MEMBERS runs: [part that sent them][run of this part's slice][thread]
    unsigned bar;        // address of a barrier with an arrival count of 1
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

    // Sends this thread's runs to the parts that add them, and waits for the runs of this part's slice. Called by
    // MEMBERS threads of each block; the block's other threads call cluster_meet at the same time. A thread may call
    // `pass` or cluster_meet only after its last access to the memory of `inbox`. Part p is block `rank` + p * apart of
    // the cluster. run_of(i) is this thread's run i as a float4. `parity` is the parity of the current phase of `bar`.
    //
    // Why it is safe to write an inbox: a block writes only after cluster_meet, when all threads of the cluster have
    // finished their accesses to that memory. Why the data is complete and not overwritten: a thread reads its inbox
    // only after `bar` has counted all bytes of this phase, and no block sends a byte of the next phase before the
    // readers have called cluster_meet again.
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
    // Returns run i of this part's slice, as part p has sent it.
    __device__ __forceinline__ float4 from(int p, int i, int thread) const {
        return inbox[(p * slice + i) * MEMBERS + thread];
    }
};
#endif

#endif
