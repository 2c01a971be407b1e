// Every PTX instruction the kernels use, each in a small function of its own name: a kernel holds no asm, and a test may
// put an emulation in the place of this header. NVRTC compiles it without any CUDA header, from sm_50 (12.9) up.
//
// Addresses of shared memory are 32-bit, from shared_address(); those of barriers too. What a thread does through
// shared memory is in "memory" clobbers: no function here may be moved over a load or store, nor be merged or dropped.
// wgmma is in wgmma.cuh.

#ifndef GEMM_CUDA_PTX
#define GEMM_CUDA_PTX

#define PTX static __device__ __forceinline__

PTX unsigned shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// x, of which the compiler knows nothing more: it is computed once and kept, not again wherever it is used.
PTX unsigned kept(unsigned x) {
    asm volatile("" : "+r"(x));
    return x;
}

// 16 bytes of shared memory.
PTX void shared_load(float *to, unsigned from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                 : "r"(from)
                 : "memory");
}

PTX float shared_float(unsigned from) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
    return x;
}

PTX void shared_load(double *to, unsigned from) {
    asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];" : "=d"(to[0]), "=d"(to[1]) : "r"(from) : "memory");
}

// sum += a * b, the sum staying in its register: ptxas lets those of expressions wander.
PTX void accumulate(float &sum, float a, float b) {
    asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(sum) : "f"(a), "f"(b));
}
PTX void accumulate(double &sum, double a, double b) {
    asm volatile("fma.rn.f64 %0, %1, %2, %0;" : "+d"(sum) : "d"(a), "d"(b));
}

// ---- Barriers of some of a block's warps: `threads` counts all that meet, a multiple of 32; id 0 is __syncthreads.

PTX void bar_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

PTX void bar_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- Launches on one stream (programmatic dependent launch, from sm_90 on): the blocks of this one may start while the
// launch before it still runs, and those of the next one as soon as all of this one have come here. Waits until what earlier
// launches wrote is in memory: by all threads, before they read or write any.
//
// Why all earlier launches are over then, though each waits for the one before it only: that one did not end before its
// own threads had waited here, and so on. What launches share, such as the memory of sums and its counts, is free by
// then.

PTX void follow_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- Aligned words of global memory that nothing writes meanwhile and nobody will soon read again.

PTX void load_once(unsigned (&to)[4], const void *from) {
#if __CUDA_ARCH__ >= 700
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
#else
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
#endif
}

PTX void load_once(unsigned (&to)[2], const void *from) {
#if __CUDA_ARCH__ >= 700
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
#else
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
#endif
}

PTX void load_once(unsigned (&to)[1], const void *from) {
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
}

// ---- Conversions: a 16-bit number is its bits, a pair of them has the first in the low half.

PTX float f16_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

PTX unsigned short float_to_f16(float value) { // to nearest even; overflows to infinity
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

#if __CUDA_ARCH__ >= 800

PTX unsigned floats_to_f16x2(float low, float high) {
    unsigned bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

PTX unsigned floats_to_bf16x2(float low, float high) {
    unsigned bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

PTX unsigned short float_to_bf16(float value) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

PTX unsigned float_to_tf32(float value) { // to nearest, ties away; the low 13 bits are 0
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

// ---- cp.async: a thread's own copies to shared memory. Past valid_bytes zeros are stored and nothing is read.

template <int COPIED> PTX void copy_async(unsigned shared, const void *global, int valid_bytes) {
    static_assert(COPIED == 4 || COPIED == 8 || COPIED == 16, "cp.async copies 4, 8 or 16 bytes");
    if (COPIED == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid_bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(COPIED),
                     "r"(valid_bytes)
                     : "memory");
}

PTX void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> PTX void copy_wait() { // until at most PENDING of this thread's groups are on their way
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- Matrices of 8 x 8 16-bit elements. Lane 8i + r gives the address of row r of matrix i.

PTX void ldmatrix_x1(unsigned (&to)[1], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(to[0]) : "r"(row) : "memory");
}

PTX void ldmatrix_x1_trans(unsigned (&to)[1], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(to[0]) : "r"(row) : "memory");
}

PTX void ldmatrix_x2(unsigned (&to)[2], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(row)
                 : "memory");
}

PTX void ldmatrix_x2_trans(unsigned (&to)[2], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(row)
                 : "memory");
}

PTX void ldmatrix_x4(unsigned (&to)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

PTX void ldmatrix_x4_trans(unsigned (&to)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

// ---- mma.sync: d += a * b by one warp; the fragments as the PTX ISA draws them. No rounding is promised inside.

#define PTX_MMA(shape, types)                                                                                          \
    asm volatile("mma.sync.aligned." shape ".row.col.f32." types ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
                 "{%0, %1, %2, %3};"                                                                                   \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

PTX void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { // m16n8k16
    PTX_MMA("m16n8k16", "f16.f16");
}

PTX void mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { // m16n8k16
    PTX_MMA("m16n8k16", "bf16.bf16");
}

PTX void mma_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { // m16n8k8
    PTX_MMA("m16n8k8", "tf32.tf32");
}

PTX void mma_f64(double (&d)[2], double a, double b) { // m8n8k4: a chain of fma along k
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d[0]), "+d"(d[1])
                 : "d"(a), "d"(b));
}

#endif // sm_80
#if __CUDA_ARCH__ >= 890

PTX unsigned e4m3x2_to_f16x2(unsigned short bits) {
    unsigned halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(bits));
    return halves;
}

PTX unsigned e5m2x2_to_f16x2(unsigned short bits) {
    unsigned halves;
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(bits));
    return halves;
}

#endif // sm_89
#if __CUDA_ARCH__ >= 900
#include "ptx_sm90.cuh"
#endif

#endif
