// Every PTX instruction that the kernels use, each in a small function named after it. The kernels contain no asm, so a
// test can replace this header by an emulation. NVRTC 12.9 compiles this file without any CUDA header, for sm_50 and
// newer.
//
// Addresses of shared memory and of barriers are 32-bit numbers from shared_address(). Functions that access shared
// memory have a "memory" clobber: the compiler must not move, merge or delete them. wgmma is in wgmma.cuh.

#ifndef GEMM_CUDA_PTX
#define GEMM_CUDA_PTX

#define PTX static __device__ __forceinline__

PTX unsigned shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// Returns x but hides its value from the compiler, which then keeps x in a register instead of recomputing it.
PTX unsigned kept(unsigned x) {
    asm volatile("" : "+r"(x));
    return x;
}

// Loads 16 bytes from shared memory.
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

// sum += a * b with the sum in a fixed register. For a C expression, ptxas would move the sum between registers.
PTX void accumulate(float &sum, float a, float b) {
    asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(sum) : "f"(a), "f"(b));
}
PTX void accumulate(double &sum, double a, double b) {
    asm volatile("fma.rn.f64 %0, %1, %2, %0;" : "+d"(sum) : "d"(a), "d"(b));
}

// ---- Barriers for some warps of a block: `threads` threads, a multiple of 32. __syncthreads uses barrier 0.

PTX void bar_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

PTX void bar_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- Programmatic dependent launch (sm_90 and newer) for launches on one stream. The blocks of a launch may start
// while the previous launch still runs. The blocks of the next launch may start as soon as all blocks of this launch
// have called follow_launch. follow_launch also waits until the writes of all earlier launches are visible. All threads
// must call it before they read or write global memory.
//
// Each launch waits only for the launch before it, but after the wait all earlier launches have ended: a launch cannot
// end before its own threads have waited. Memory that launches share (partial sums, counters) is free after the wait.

PTX void follow_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- Streaming loads of aligned words of global memory that the kernel never writes and does not read again soon.

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

// ---- Conversions. A 16-bit number is represented by its bits. In a pair, the first number is in the low half.

PTX float f16_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

PTX unsigned short float_to_f16(float value) { // rounds to nearest even; overflow gives infinity
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

// ---- cp.async: each thread's own copies from global to shared memory. A copy reads only the first valid_bytes bytes
// of its source and fills the rest of its destination with zeros. It does not access global memory beyond valid_bytes.

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

template <int PENDING> PTX void copy_wait() { // waits until at most PENDING of this thread's copy groups are unfinished
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- ldmatrix: loads matrices of 8 x 8 16-bit elements, transposed. Lane 8i + r passes the address of row r of matrix i.

PTX void ldmatrix_x4_trans(unsigned (&to)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

// ---- mma.sync: d += a * b by one warp. The PTX ISA defines the fragment layout.

PTX void mma_f64(double (&d)[2], double a, double b) { // m8n8k4: an ordered chain of fma along k
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d[0]), "+d"(d[1])
                 : "d"(a), "d"(b));
}

#endif // sm_80
#if __CUDA_ARCH__ >= 900
#include "ptx_sm90.cuh"
#endif

#endif
