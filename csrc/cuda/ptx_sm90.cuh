// PTX instructions of Hopper (see ptx.cuh): barriers in shared memory, TMA, clusters (sm_90), setmaxnreg (sm_90a).

#ifndef GEMM_CUDA_PTX_SM90
#define GEMM_CUDA_PTX_SM90

// ---- mbarrier: an 8-byte barrier in shared memory. A phase ends when all its arrivals have happened and all its
// expected bytes have been written. The parity is 0 in the first phase, 1 in the second, and so on. barrier_wait(bar,
// p) waits for the end of a phase of parity p.

PTX void barrier_init(unsigned bar, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

// Called by the thread that initialized the barriers, before the block or cluster synchronizes.
PTX void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

PTX void barrier_arrive(unsigned bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

PTX void barrier_expect(unsigned bar, unsigned bytes) { // also counts as an arrival
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

// Arrives at the same barrier in block `cta` of the cluster. The arrival has no release semantics: it orders no stores.
// Such an arrival is enough for a reader whose reads have completed. A release at cluster scope would be a fence for
// all memory and cost some thousand cycles per stage.
PTX void barrier_arrive_remote(unsigned bar, unsigned cta) {
    asm volatile("{\n\t.reg .b32 remote;\n\t"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n\t}" ::"r"(bar),
                 "r"(cta)
                 : "memory");
}

PTX bool barrier_try(unsigned bar, unsigned parity) { // may suspend the thread; returns whether the phase has ended
    unsigned done;
    asm volatile("{\n\t.reg .pred p;\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.b32 %0, 1, 0, p;\n\t}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done;
}

PTX bool barrier_passed(unsigned bar, unsigned parity) { // returns at once whether the phase has ended
    unsigned done;
    asm volatile("{\n\t.reg .pred p;\n\t"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.b32 %0, 1, 0, p;\n\t}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done;
}

PTX void barrier_wait(unsigned bar, unsigned parity) {
    while (!barrier_try(bar, parity)) {}
}

// Like barrier_wait, but with acquire semantics at cluster scope: later accesses follow all accesses before the remote
// arrivals.
PTX void barrier_wait_cluster(unsigned bar, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.b32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
    } while (!done);
}

// ---- TMA: one thread loads or stores a box of a tensor in global memory. x counts along the contiguous axis. A load
// adds its bytes to the count of `bar`, including the zeros for elements outside the tensor. A multicast load writes to
// the same address, and counts at the same barrier, in each block of the cluster whose bit in `mask` is set.

struct alignas(64) TensorMap { // a __grid_constant__ parameter; cuTensorMapEncodeTiled fills it
    unsigned char opaque[128];
};

PTX void tma_prefetch(const TensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

PTX void tma_load_3d(unsigned to, const TensorMap *map, unsigned bar, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

PTX void tma_load_2d_multicast(unsigned to, const TensorMap *map, unsigned bar, int x, int y, unsigned short mask) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "h"(mask)
                 : "memory");
}

PTX void tma_load_3d_multicast(unsigned to, const TensorMap *map, unsigned bar, int x, int y, int z,
                               unsigned short mask) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "h"(mask)
                 : "memory");
}

PTX void tma_store_2d(const TensorMap *map, unsigned from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(from), "r"(x), "r"(y)
                 : "memory");
}

PTX void tma_store_3d(const TensorMap *map, unsigned from, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(from), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

PTX void bulk_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most PENDING of this thread's groups of stores are not yet complete.
template <int PENDING> PTX void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Waits until at most PENDING of this thread's groups of stores have not yet read their shared memory. The shared
// memory of the thread's other groups may then be reused.
template <int PENDING> PTX void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Called by each thread after ordinary stores to shared memory that TMA or wgmma reads after the next barrier.
PTX void fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- Clusters.

PTX unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Waits for all threads of the cluster. After the wait, earlier stores of these threads need not be visible, but loads
// whose values the threads have used are complete. An arrive with release semantics would make every thread wait for
// all of its outstanding stores.
PTX void cluster_meet() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Stores 16 bytes at the address `to` in block `rank` of the cluster. The barrier `bar` of that block counts the bytes.
PTX void remote_store(unsigned to, const float4 &words, unsigned bar, unsigned rank) {
    asm volatile("{\n\t.reg .b32 there, counted;\n\tmapa.shared::cluster.u32 there, %0, %6;\n\t"
                 "mapa.shared::cluster.u32 counted, %5, %6;\n\t"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%1, %2, %3, %4}, "
                 "[counted];\n\t}" ::"r"(to),
                 "f"(words.x), "f"(words.y), "f"(words.z), "f"(words.w), "r"(bar), "r"(rank)
                 : "memory");
}

// ---- stmatrix, the inverse of ldmatrix, and longer f64 products (d += a * b), each by one warp.

PTX void stmatrix_x4(unsigned row, const unsigned (&from)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(from[0]),
                 "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
}

#define PTX_D4 "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])

PTX void mma_f64(double (&d)[4], const double (&a)[2], const double (&b)[1]) { // m16n8k4
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : PTX_D4
                 : "d"(a[0]), "d"(a[1]), "d"(b[0]));
}

PTX void mma_f64(double (&d)[4], const double (&a)[4], const double (&b)[2]) { // m16n8k8
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : PTX_D4
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
}

PTX void mma_f64(double (&d)[4], const double (&a)[8], const double (&b)[4]) { // m16n8k16
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
                 : PTX_D4
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]),
                   "d"(b[1]), "d"(b[2]), "d"(b[3]));
}

// ---- setmaxnreg (sm_90a): all warps of a warpgroup set their registers per thread to N, a multiple of 8 (24 to 256).

template <int N> PTX void registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> PTX void registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

#endif
