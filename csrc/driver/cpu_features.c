/* Finds the instruction sets that the CPU supports and whose registers the operating system saves. */
#include "gemm.h"

#if defined(__GNUC__) && defined(__x86_64__)
#include <cpuid.h>
#elif defined(_MSC_VER) && defined(_M_X64)
#include <immintrin.h>
#include <intrin.h>
#endif

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__linux__) && (defined(__aarch64__) || defined(__arm__))
#include <sys/auxv.h>
#elif defined(__APPLE__) && defined(__aarch64__)
#include <sys/sysctl.h>
#elif defined(_WIN32) && defined(__aarch64__)
#include <windows.h>
#endif

const char *const gemm_feature_names[] = {
    "avx2", "fma",     "avx512f", "neon", "f16c",  "avx512dq", "avx512bw", "avx512vnni", "avx512bf16", "avxvnni",
    "fp16", "dotprod", "bf16",    "i8mm", "vfpv4", "amxint8",  "amxbf16",  "sme",        "smef64f64",  0};

#if defined(__x86_64__) || defined(_M_X64)
const char *const gemm_architecture = "x86_64";
#elif defined(__aarch64__) || defined(_M_ARM64)
const char *const gemm_architecture = "aarch64";
#elif defined(__arm__)
const char *const gemm_architecture = "arm";
#else
const char *const gemm_architecture = "other";
#endif

#if defined(__x86_64__) || defined(_M_X64)

enum { EAX, EBX, ECX, EDX };

/* Executes cpuid for `leaf`. The result is zero if the CPU does not know the leaf. */
static void ask(unsigned leaf, unsigned subleaf, unsigned *found) {
    found[EAX] = found[EBX] = found[ECX] = found[EDX] = 0;
#ifndef __GNUC__
    int highest[4];
    __cpuid(highest, 0);
    if ((unsigned)highest[EAX] >= leaf) __cpuidex((int *)found, (int)leaf, (int)subleaf);
#else
    __get_cpuid_count(leaf, subleaf, &found[EAX], &found[EBX], &found[ECX], &found[EDX]);
#endif
}

/* Returns a bit mask of the register sets that the operating system saves. */
static uint64_t saved_state(void) {
#ifndef __GNUC__
    return _xgetbv(0);
#else
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
#endif
}

#ifndef GEMM_EMULATE_AMX
/* Returns whether this process may use AMX tile registers. Linux grants them only on request, once per process, because
 * they enlarge signal frames by 8 KiB. */
static uint32_t may_use_tiles(uint64_t state) {
#ifdef __linux__
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
    return (state >> 17 & 3) == 3 && !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA);
#else
    (void)state;
    return 0;
#endif
}
#endif

static uint32_t find(void) {
    unsigned leaf1[4], leaf7[4], leaf7_1[4] = {0};
    ask(1, 0, leaf1);
    ask(7, 0, leaf7);
    if (leaf7[EAX] >= 1) ask(7, 1, leaf7_1);
    if (!(leaf1[ECX] >> 27 & 1)) return 0; /* without OSXSAVE, xgetbv is an illegal instruction */
    const uint64_t state = saved_state();
    const uint32_t ymm = (state & 0x06) == 0x06, zmm = (state & 0xE6) == 0xE6;
    const uint32_t bw_and_vl = leaf7[EBX] >> 30 & leaf7[EBX] >> 31;
#ifdef GEMM_EMULATE_AMX
    leaf7[EDX] = 1 << 22 | 1 << 25;
    const uint32_t tiles = 1;
#else
    const uint32_t wide = zmm & leaf7[EBX] >> 16 & bw_and_vl & 1;
    const uint32_t tiles = wide && leaf7[EDX] >> 24 & 1 && may_use_tiles(state);
#endif
    return ymm * (GEMM_AVX2 * (leaf7[EBX] >> 5 & 1) | GEMM_FMA * (leaf1[ECX] >> 12 & 1) |
                  GEMM_F16C * (leaf1[ECX] >> 29 & 1) | GEMM_AVXVNNI * (leaf7_1[EAX] >> 4 & 1)) |
           zmm * (GEMM_AVX512F * (leaf7[EBX] >> 16 & 1) | GEMM_AVX512DQ * (leaf7[EBX] >> 17 & 1) |
                  GEMM_AVX512BW * (bw_and_vl & 1) | GEMM_AVX512VNNI * (leaf7[ECX] >> 11 & 1) |
                  GEMM_AVX512BF16 * (leaf7_1[EAX] >> 5 & 1)) |
           tiles * (GEMM_AMXINT8 * (leaf7[EDX] >> 25 & 1) | GEMM_AMXBF16 * (leaf7[EDX] >> 22 & 1));
}

#elif defined(__aarch64__) || defined(_M_ARM64)

#ifdef __APPLE__
/* Returns whether the system knows the feature `name` and reports it as present. */
static uint32_t says(const char *name) {
    int answer = 0;
    size_t bytes = sizeof answer;
    return !sysctlbyname(name, &answer, &bytes, NULL, 0) && answer;
}
#endif

static uint32_t find(void) {
    /* Every AArch64 CPU that runs an operating system's binaries has Advanced SIMD. */
#if defined(__linux__)
    /* These bits belong to the Linux ABI. They are written as numbers because older headers do not name them. */
    const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    enum { SME = 1 << 23 | 1 << 26 | 1 << 28 | 1 << 29 }; /* SME, SME_I8I32, SME_B16F32, SME_F32F32 */
    return GEMM_NEON | GEMM_FP16 * (first >> 10 & 1) | GEMM_DOTPROD * (first >> 20 & 1) |
           GEMM_I8MM * (second >> 13 & 1) | GEMM_BF16 * (second >> 14 & 1) | GEMM_SME * ((second & SME) == SME) |
           GEMM_SMEF64F64 * ((second & SME) == SME && second >> 25 & 1);
#elif defined(__APPLE__)
    const uint32_t sme = says("hw.optional.arm.FEAT_SME") & says("hw.optional.arm.SME_I8I32") &
                         says("hw.optional.arm.SME_B16F32") & says("hw.optional.arm.SME_F32F32");
    return GEMM_NEON | GEMM_FP16 * says("hw.optional.arm.FEAT_FP16") |
           GEMM_DOTPROD * says("hw.optional.arm.FEAT_DotProd") | GEMM_I8MM * says("hw.optional.arm.FEAT_I8MM") |
           GEMM_BF16 * says("hw.optional.arm.FEAT_BF16") | GEMM_SME * sme |
           GEMM_SMEF64F64 * (sme & says("hw.optional.arm.FEAT_SME_F64F64"));
#elif defined(_WIN32)
    /* PF_ARM_V82_FP16, _V82_DP, _V82_I8MM and _V86_BF16_INSTRUCTIONS_AVAILABLE of winnt.h, as numbers because older
     * headers do not name them. A version of Windows that does not know a number reports the feature as absent. SME is
     * never reported: what Windows guarantees about ZA is not known here. */
    return GEMM_NEON | GEMM_FP16 * !!IsProcessorFeaturePresent(67) | GEMM_DOTPROD * !!IsProcessorFeaturePresent(43) |
           GEMM_I8MM * !!IsProcessorFeaturePresent(66) | GEMM_BF16 * !!IsProcessorFeaturePresent(68);
#else
    return GEMM_NEON;
#endif
}

#elif defined(__linux__) && defined(__arm__)

static uint32_t find(void) {
    const unsigned long found = getauxval(AT_HWCAP);
    return GEMM_NEON * (found >> 12 & 1) | GEMM_VFPV4 * (found >> 16 & 1);
}

#else

static uint32_t find(void) {
    return 0;
}

#endif

uint32_t gemm_features(void) {
    /* The result is cached: some kernels query it for each block, and under a hypervisor one cpuid takes 20 us. Threads that
     * execute this function at the same time find the same result. */
    enum { KNOWN = 1u << 30 };
    static volatile uint32_t remembered;
#ifdef __GNUC__
    uint32_t found = __atomic_load_n(&remembered, __ATOMIC_RELAXED);
#else
    uint32_t found = remembered;
#endif
    if (!found) {
        found = find() | KNOWN;
#ifdef __GNUC__
        __atomic_store_n(&remembered, found, __ATOMIC_RELAXED);
#else
        remembered = found;
#endif
    }
    return found & ~(uint32_t)KNOWN;
}
