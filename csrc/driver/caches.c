/* Reads the sizes of the data caches of this CPU: on x86 by cpuid, on Linux from sysfs, on macOS by sysctl, on Windows
 * by GetLogicalProcessorInformationEx. block_sizes.c derives the cache blocks from them. */
#include "gemm.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__GNUC__) && defined(__x86_64__)
#include <cpuid.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#elif defined(_WIN32)
#include <windows.h>
#endif

enum { KIB = 1024, MIB = 1024 * KIB };

/* Stands for caches that cannot be read. Most CPUs of the last ten years have caches of these sizes or larger. */
static const gemm_caches usual = {
    .size = {32 * KIB, 512 * KIB, 8 * MIB}, .l1_ways = 8, .shared = {1, 1, 1}, .source = "default"};

/* Stores a cache of `level`, 1 to 3, unless a cache of this level is already stored. */
static void note(gemm_caches *found, int64_t level, int64_t size, int64_t ways, int64_t shared) {
    if (level < 1 || level > 3 || found->size[level - 1] || size <= 0) return;
    found->size[level - 1] = size;
    found->shared[level - 1] = shared > 0 && shared < 1 << 16 ? (int32_t)shared : 1;
    if (level == 1) found->l1_ways = ways > 0 && ways < 1 << 16 ? (int32_t)ways : usual.l1_ways;
}

int gemm_note_cpuid_cache(gemm_caches *found, const uint32_t registers[3]) {
    enum { NONE, DATA, INSTRUCTIONS, UNIFIED };
    const uint32_t a = registers[0], b = registers[1], type = a & 31;
    if (type == NONE || type > UNIFIED) return 0;
    const int64_t line = (b & 0xFFF) + 1, parts = (b >> 12 & 0x3FF) + 1, ways = (b >> 22) + 1;
    if (type != INSTRUCTIONS)
        note(found, a >> 5 & 7, line * parts * ways * ((int64_t)registers[2] + 1), ways, (a >> 14 & 0xFFF) + 1);
    return 1;
}

#if defined(__GNUC__) && defined(__x86_64__)
static void read_cpuid(gemm_caches *found) {
    enum { INTEL = 4, AMD = (int)0x8000001D, MOST = 16 };
    const unsigned leaves[] = {INTEL, (unsigned)AMD}; /* the two leaves have the same format */
    for (int i = 0; i < 2 && !found->size[0]; i++)
        for (unsigned at = 0; at < MOST; at++) {
            unsigned r[4] = {0};
            if (!__get_cpuid_count(leaves[i], at, &r[0], &r[1], &r[2], &r[3])) break;
            const uint32_t three[3] = {r[0], r[1], r[2]};
            if (!gemm_note_cpuid_cache(found, three)) break;
        }
}
#endif

#ifdef __linux__
/* Reads the file `name` of cache `index` of CPU 0. Returns whether the file has a line. */
static int read_line(char *line, int bytes, int index, const char *name) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    const int some = fgets(line, bytes, file) != NULL;
    fclose(file);
    return some;
}

/* Returns the number of CPUs in a list such as 0-3,8. */
static int64_t listed(const char *list) {
    int64_t count = 0;
    for (char *end; *list; list = *end ? end + 1 : end) {
        const long first = strtol(list, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        if (end == list) break;
        count += last - first + 1;
    }
    return count;
}

static void read_sysfs(gemm_caches *found) {
    char line[4096];
    for (int index = 0; index < 8 && read_line(line, sizeof line, index, "type"); index++) {
        if (*line == 'I') continue; /* instructions */
        char *unit;
        if (!read_line(line, sizeof line, index, "size")) continue;
        const int64_t number = strtol(line, &unit, 10), size = number * (*unit == 'K' ? KIB : *unit == 'M' ? MIB : 1);
        const int64_t level = read_line(line, sizeof line, index, "level") ? strtol(line, NULL, 10) : 0;
        const int64_t ways = read_line(line, sizeof line, index, "ways_of_associativity") ? strtol(line, NULL, 10) : 0;
        note(found, level, size, ways, read_line(line, sizeof line, index, "shared_cpu_list") ? listed(line) : 1);
    }
}
#endif

#ifdef __APPLE__
static int64_t ask(const char *name) {
    int64_t answer = 0; /* some of the values have 32 bits: the upper half then stays zero */
    size_t bytes = sizeof answer;
    return sysctlbyname(name, &answer, &bytes, NULL, 0) ? 0 : answer;
}

static void read_sysctl(gemm_caches *found) {
    /* perflevel0: the fast cores of Apple's CPUs. Intel's Macs only have the older names, and use cpuid. */
    note(found, 1, ask("hw.perflevel0.l1dcachesize"), 0, 1);
    note(found, 2, ask("hw.perflevel0.l2cachesize"), 0, ask("hw.perflevel0.cpusperl2"));
}
#endif

#ifdef _WIN32
static void read_windows(gemm_caches *found) {
    DWORD bytes = 0;
    GetLogicalProcessorInformationEx(RelationCache, NULL, &bytes);
    char *all = bytes ? (char *)malloc(bytes) : NULL;
    if (all && GetLogicalProcessorInformationEx(RelationCache, (SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX *)all, &bytes))
        for (DWORD at = 0; at < bytes;) {
            const SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX *x = (SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX *)(all + at);
            int64_t shared = 0;
            for (KAFFINITY mask = x->Cache.GroupMask.Mask; mask; mask &= mask - 1) shared++;
            if (x->Cache.Type == CacheData || x->Cache.Type == CacheUnified)
                note(found, x->Cache.Level, (int64_t)x->Cache.CacheSize,
                     x->Cache.Associativity == 0xFF ? 0 : x->Cache.Associativity, shared);
            at += x->Size;
        }
    free(all);
}
#endif

void gemm_check_caches(gemm_caches *found) {
    /* A size below the lower bound is nonsense from a hypervisor or an emulator. A size above the upper bound is reduced
     * to the bound, because a larger cache would not change the blocks. */
    static const int64_t least[] = {16 * KIB, 128 * KIB, 512 * KIB}, most[] = {256 * KIB, 64 * MIB, 2048LL * MIB};
    const int absent = found->size[0] && found->size[1] && !found->size[2]; /* many CPUs have no L3 cache */
    for (int i = 0; i < 3; i++) {
        if (!(i == 2 && absent) && found->size[i] < least[i])
            found->size[i] = usual.size[i], found->shared[i] = usual.shared[i];
        if (found->size[i] > most[i]) found->size[i] = most[i];
        if (found->shared[i] < 1) found->shared[i] = 1;
    }
    if (found->l1_ways < 2) found->l1_ways = usual.l1_ways;
}

int gemm_parse_caches(gemm_caches *found, const char *text) {
    gemm_caches x = {.l1_ways = usual.l1_ways, .shared = {1, 1, 1}, .source = "GEMM_CPU_CACHES"};
    for (int i = 0; i < 3; i++) {
        char *end;
        const long long size = strtoll(text, &end, 10);
        if (end == text || size < (i < 2) || size > 1 << 30) return 0;
        x.size[i] = size * KIB;
        if (*end == '/') {
            const long number = strtol(text = end + 1, &end, 10);
            if (end == text || number < 1 || number > 1 << 15) return 0;
            *(i ? &x.shared[i] : &x.l1_ways) = (int32_t)number;
        }
        if (*end != (i < 2 ? ',' : 0)) return 0;
        text = end + 1;
    }
    *found = x;
    return 1;
}

static gemm_caches find(void) {
    gemm_caches found = {.source = usual.source};
    const char *wish = getenv("GEMM_CPU_CACHES");
    if (wish && *wish && gemm_parse_caches(&found, wish)) {
        gemm_check_caches(&found);
        return found;
    }
#if defined(__GNUC__) && defined(__x86_64__)
    read_cpuid(&found);
    if (found.size[0]) found.source = "cpuid";
#endif
#ifdef __linux__
    if (!found.size[0] || !found.size[1]) {
        gemm_caches more = {.source = "sysfs"};
        read_sysfs(&more);
        if (more.size[0]) found = more;
    }
#elif defined(__APPLE__)
    if (!found.size[0]) read_sysctl(&found);
    if (found.size[0] && found.source == usual.source) found.source = "sysctl";
#elif defined(_WIN32)
    if (!found.size[0]) read_windows(&found);
    if (found.size[0] && found.source == usual.source) found.source = "Windows";
#endif
    if (!found.size[0]) return usual;
    gemm_check_caches(&found);
    return found;
}

gemm_caches gemm_get_caches(void) {
    /* Threads that find `state` below READY at the same time read the same caches; one of them stores the result. In a
     * child that was forked while `state` was WRITING, each call reads the caches, which is slow but correct. */
    enum { UNKNOWN, WRITING, READY };
    static atomic_int state;
    static gemm_caches remembered;
    if (atomic_load_explicit(&state, memory_order_acquire) == READY) return remembered;
    const gemm_caches found = find();
    int expected = UNKNOWN;
    if (atomic_compare_exchange_strong(&state, &expected, WRITING)) {
        remembered = found;
        atomic_store_explicit(&state, READY, memory_order_release);
    }
    return found;
}
