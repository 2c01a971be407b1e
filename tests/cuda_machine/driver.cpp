// The emulated libcuda.so.1: devices, contexts, memory, modules and launches. Streams, events and graphs: streams.cpp.
#include "driver.h"
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

namespace machine {

std::recursive_mutex mutex;
Fault faults[DEVICES];

namespace {
struct Allocation {
    char *base;
    size_t mapped, size;
    int device;
    bool host, registered;
};
std::map<uint64_t, Allocation> allocations;
size_t allocated[DEVICES];
thread_local std::vector<int> contexts; // ordinals

int setting(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

struct Injected {
    std::string function;
    int call, status;
    bool sticky;
};
std::vector<Injected> injected;
std::string injected_text;
std::map<std::string, int> calls;

// CUDA_MACHINE_FAIL="function[@device]:n:status[:sticky],...": the n-th call, from 1, fails.
int injection(const char *function) {
    const char *text = getenv("CUDA_MACHINE_FAIL");
    if (injected_text != (text ? text : "")) {
        injected_text = text ? text : "";
        injected.clear();
        calls.clear();
        for (size_t at = 0; at < injected_text.size();) {
            const size_t end = std::min(injected_text.find(',', at), injected_text.size());
            char name[64] = "", how[16] = "";
            int call = 1, status = 2;
            sscanf(injected_text.substr(at, end - at).c_str(), "%63[^:]:%d:%d:%15s", name, &call, &status, how);
            injected.push_back({name, call, status, how[0] == 's'});
            at = end + 1;
        }
    }
    if (injected.empty()) return 0;
    for (const std::string &called : {std::string(function), function + ("@" + std::to_string(device()))}) {
        const int count = ++calls[called];
        for (const Injected &i : injected)
            if (i.function == called && (count == i.call || (i.sticky && count > i.call))) return i.status;
    }
    return 0;
}
} // namespace

// Every function begins with this: one at a time, written to CUDA_MACHINE_LOG, failed if a test wants so.
int enter(const char *function, const char *format, ...) {
    if (const char *path = getenv("CUDA_MACHINE_LOG")) {
        if (FILE *file = fopen(path, "a")) {
            fprintf(file, "%s", function);
            va_list arguments;
            va_start(arguments, format);
            vfprintf(file, format, arguments);
            va_end(arguments);
            fputc('\n', file);
            fclose(file);
        }
    }
    const int broken = fault().status;
    if (broken && setting("CUDA_MACHINE_STICKY", 0)) return broken;
    return injection(function);
}

// Of the current device.
Fault &fault() {
    return faults[std::max(device(), 0)];
}

// A fault of earlier work, told by a function that waits.
int told() {
    const int status = fault().status;
    if (!setting("CUDA_MACHINE_STICKY", 0)) fault().status = 0;
    return status;
}

void note(int on, int status, const std::string &report) {
    if (!status || faults[on].status) return;
    faults[on] = {status, report};
    fprintf(stderr, "emulated CUDA machine: %s\n", report.c_str());
}

int capability() {
    const char *text = getenv("CUDA_MACHINE_CAPABILITY");
    int major = 9, minor = 0;
    if (text) sscanf(text, "%d.%d", &major, &minor);
    return major * 10 + minor;
}

int device() {
    return contexts.empty() ? -1 : contexts.back();
}

static const Allocation *holder(const void *pointer) {
    auto at = allocations.upper_bound((uint64_t)pointer);
    if (at == allocations.begin()) return nullptr;
    --at;
    return (uint64_t)pointer < at->first + at->second.size ? &at->second : nullptr;
}

bool pinned(const void *pointer) {
    return holder(pointer) != nullptr;
}

// Whether the memory of `pointer` is not another device's, which nothing here may touch.
bool near(const void *pointer, int on) {
    const Allocation *found = holder(pointer);
    return !found || found->host || found->device == on;
}

int devices() {
    return std::min(setting("CUDA_MACHINE_DEVICES", 1), DEVICES);
}

// While a kernel runs on a device, memory of others is not there.
class Apart {
    std::vector<const Allocation *> hidden;

    static void protect(const Allocation *a, int how) {
        mprotect(a->base, a->mapped - 2 * ((size_t)1 << 20), how);
    }

  public:
    explicit Apart(int on) {
        for (const auto &[address, a] : allocations) {
            if (a.host || a.device == on) continue;
            protect(&a, PROT_NONE);
            hidden.push_back(&a);
        }
    }
    ~Apart() {
        for (const Allocation *a : hidden) protect(a, PROT_READ | PROT_WRITE);
    }
};

static size_t shared_optin() {
    const int c = capability();
    return (c < 70 ? 48 : c == 75 ? 64 : c < 80 ? 96 : c == 80 || c == 87 ? 163 : c < 90 ? 99 : 227) << 10;
}

static size_t memory_bytes() {
    return (size_t)setting("CUDA_MACHINE_MEMORY", 8192) << 20;
}

constexpr size_t GUARD = 1 << 20; // bytes on both sides of an allocation that nobody may touch

// Begins at a multiple of 256, ends as near to its guard as that allows, and holds NaN.
static int allocate(uint64_t *address, size_t size, bool host, int pool = -1) {
    if (!size) return 1;
    const int on = pool < 0 ? device() : pool;
    if (device() < 0) return 201;
    if (!host && allocated[on] + size > memory_bytes()) return 2;
    const size_t page = 4096, used = (size + 255 + page - 1) / page * page, mapped = used + 2 * GUARD;
    char *base = (char *)mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return 2;
    base += GUARD;
    mprotect(base, used, PROT_READ | PROT_WRITE);
    *address = ((uint64_t)base + used - size) & ~(uint64_t)255;
    memset((void *)*address, 0xFF, std::min(size, (size_t)64 << 20));
    memset((char *)*address + size, 0xA5, (size_t)(base + used - (char *)*address) - size);
    allocations[*address] = {base, mapped, size, on, host, false};
    if (!host) allocated[on] += size;
    return 0;
}

int release(uint64_t address) {
    if (!address) return 0;
    auto at = allocations.find(address);
    if (at == allocations.end() || at->second.registered) return 1;
    const Allocation &a = at->second;
    for (const char *p = (char *)address + a.size; p < a.base + a.mapped - 2 * GUARD; ++p)
        if (*p != (char)0xA5) {
            note(a.device, 700,
                 "something wrote behind the end of an allocation of " + std::to_string(a.size) + " bytes");
            break;
        }
    if (!a.host) allocated[a.device] -= a.size;
    munmap(a.base - GUARD, a.mapped);
    allocations.erase(at);
    return 0;
}

// ---- Modules.

struct Module {
    std::vector<char> image;
    std::vector<void *> handles;
    Instance *more(const char *kernel, std::vector<Instance> &instances);
};

struct Function {
    int device;
    Module *module;
    std::string name;
    std::vector<Instance> instances;
    std::vector<size_t> sizes, aligns;
    int bounds;
    size_t static_shared, dynamic_limit = 48 << 10;
};

static void *load(const std::vector<char> &image) {
    char path[] = "/tmp/cuda-machine-XXXXXX";
    const int file = mkstemp(path);
    if (file < 0) return nullptr;
    const bool whole = write(file, image.data(), image.size()) == (ssize_t)image.size();
    close(file);
    void *handle = whole ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!handle) note(std::max(device(), 0), 200, std::string("dlopen: ") + dlerror());
    unlink(path);
    return handle;
}

Instance *Module::more(const char *kernel, std::vector<Instance> &instances) {
    if (handles.size() <= instances.size()) handles.push_back(load(image)); // each has shared memory of its own
    void *handle = handles[instances.size()];
    if (!handle) return nullptr;
    Instance instance;
    instance.enter = (void (*)(void *const *))dlsym(handle, (std::string("machine_enter_") + kernel).c_str());
    instance.memory = (const Memory *)dlsym(handle, "machine_memory");
    if (!instance.enter || !instance.memory) return nullptr;
    instances.push_back(instance);
    return &instances.back();
}

static int launch(Function *f, const unsigned *grid, const unsigned *block, size_t shared, void *stream,
                  void **parameters, void **extra, Dim3 cluster, bool overlaps) {
    const Dim3 g = {grid[0], grid[1], grid[2]}, b = {block[0], block[1], block[2]};
    const size_t threads = (size_t)b.x * b.y * b.z, count = (size_t)cluster.x * cluster.y * cluster.z;
    if (!f || !threads || threads > 1024 || !g.x || !g.y || !g.z || g.x > 0x7FFFFFFF || g.y > 65535 || g.z > 65535)
        return 1;
    if (f->device != device()) return 400; // another context's
    if (f->bounds && threads > (size_t)f->bounds) return 701;
    if (shared > f->dynamic_limit || shared + f->static_shared > shared_optin()) return 1;
    if ((count > 1 || overlaps) && capability() < 90) return 1;
    if (!count || count > 8 || g.x % cluster.x || g.y % cluster.y || g.z % cluster.z) return 912;
    while (f->instances.size() < count)
        if (!f->module->more(f->name.c_str(), f->instances)) return 200;
    // what the parameters hold is copied now, the kernel runs later
    std::vector<size_t> offsets;
    size_t total = 0;
    for (size_t i = 0; i < f->sizes.size(); ++i) {
        offsets.push_back((total + f->aligns[i] - 1) / f->aligns[i] * f->aligns[i]);
        total = offsets[i] + f->sizes[i];
    }
    if (total > 4096) return 1;
    struct alignas(128) Copy {
        char bytes[4096];
    };
    auto copy = std::make_shared<Copy>();
    if (parameters) {
        for (size_t i = 0; i < offsets.size(); ++i) memcpy(copy->bytes + offsets[i], parameters[i], f->sizes[i]);
    } else {
        const void *buffer = nullptr;
        size_t size = 0;
        for (void **e = extra; e && *e; e += 2) {
            if (*e == (void *)1) buffer = e[1];
            if (*e == (void *)2) size = *(size_t *)e[1];
        }
        if (total && (!buffer || size < total)) return 1;
        if (total) memcpy(copy->bytes, buffer, total);
    }
    return enqueue(stream, "launch", [=, on = device()] {
        const Apart apart(on);
        std::vector<void *> arguments;
        for (size_t offset : offsets) arguments.push_back(copy->bytes + offset);
        const Launch what = {g, b, cluster, shared, overlaps, &f->instances, arguments.data()};
        const Outcome outcome = run(what);
        if (outcome.status) note(on, outcome.status, f->name + ": " + outcome.report);
    });
}

} // namespace machine

using namespace machine;

API cuInit(unsigned) {
    ENTER(" ");
    const int status = setting("CUDA_MACHINE_INIT", 0);
    if (status) return status;
    return devices() > 0 ? 0 : 100;
}
API cuDriverGetVersion(int *version) {
    ENTER(" ");
    *version = setting("CUDA_MACHINE_DRIVER", 13000);
    return 0;
}
API cuDeviceGetCount(int *count) {
    ENTER(" ");
    *count = devices();
    return 0;
}
API cuDeviceGet(int *result, int ordinal) {
    ENTER(" %d", ordinal);
    if (ordinal < 0 || ordinal >= devices()) return 101;
    *result = ordinal;
    return 0;
}
API cuDeviceGetName(char *name, int length, int) {
    ENTER(" ");
    snprintf(name, (size_t)length, "Emulated GPU %d.%d", capability() / 10, capability() % 10);
    return 0;
}
API cuDeviceGetUuid_v2(unsigned char *uuid, int on) {
    ENTER(" ");
    for (int i = 0; i < 16; ++i) uuid[i] = (unsigned char)(i ? 0xE0 + i : on);
    return 0;
}
API cuDeviceTotalMem_v2(size_t *bytes, int) {
    ENTER(" ");
    *bytes = memory_bytes();
    return 0;
}
API cuDeviceGetAttribute(int *value, int attribute, int) {
    ENTER(" %d", attribute);
    const int c = capability();
    switch (attribute) {
    case 1:
        *value = 1024;
        break; // threads of a block
    case 2:
    case 3:
        *value = 1024;
        break; // x, y of a block
    case 4:
        *value = 64;
        break;
    case 5:
        *value = 0x7FFFFFFF;
        break; // the grid
    case 6:
    case 7:
        *value = 65535;
        break;
    case 8:
        *value = 48 << 10;
        break; // shared memory of a block
    case 9:
        *value = 64 << 10;
        break; // constant memory
    case 10:
        *value = 32;
        break; // warp
    case 11:
        *value = 0x7FFFFFFF;
        break; // pitch
    case 12:
    case 82:
        *value = c == 53 ? 32768 : 65536;
        break; // registers of a block, of a multiprocessor
    case 13:
        *value = setting("CUDA_MACHINE_CLOCK_KHZ", 1000000);
        break;
    case 15:
    case 31:
    case 40:
    case 41:
    case 99:
        *value = 1;
        break;
    case 16:
        *value = setting("CUDA_MACHINE_SMS", 6);
        break;
    case 18:
        *value = setting("CUDA_MACHINE_INTEGRATED", c == 53 || c == 72 || c == 87);
        break;
    case 19:
        *value = 1;
        break; // maps host memory
    case 36:
        *value = 2000000;
        break; // memory clock
    case 37:
        *value = 256;
        break; // its width in bits
    case 38:
        *value = 1 << 20;
        break; // L2
    case 39:
        *value = c == 75 ? 1024 : c == 86 || c == 89 ? 1536 : 2048;
        break;
    case 75:
        *value = c / 10;
        break;
    case 76:
        *value = c % 10;
        break;
    case 81:
        *value = (int)shared_optin() + (c < 70 ? 16 << 10 : 1024);
        break;
    case 97:
        *value = (int)shared_optin();
        break;
    case 106:
        *value = 32;
        break;
    case 111:
        *value = c >= 80 ? 1024 : 0;
        break;
    case 115:
        *value = setting("CUDA_MACHINE_POOLS", c >= 60);
        break;
    case 120:
    case 127:
        *value = c >= 90;
        break;
    default:
        *value = 0;
    }
    return 0;
}

// ---- Contexts: a pointer to the ordinal + 1.

API cuDevicePrimaryCtxRetain(void **context, int on) {
    ENTER(" %d", on);
    if (on < 0 || on >= devices()) return 101;
    *context = (void *)(uintptr_t)(on + 1);
    return 0;
}
API cuDevicePrimaryCtxRelease_v2(int) {
    ENTER(" ");
    return 0;
}
API cuCtxPushCurrent_v2(void *context) {
    ENTER(" ");
    contexts.push_back((int)(uintptr_t)context - 1);
    return 0;
}
API cuCtxPopCurrent_v2(void **context) {
    LOCK;
    if (contexts.empty()) return 201;
    if (context) *context = (void *)(uintptr_t)(contexts.back() + 1);
    contexts.pop_back();
    return 0;
}
API cuCtxGetCurrent(void **context) {
    ENTER(" ");
    *context = contexts.empty() ? nullptr : (void *)(uintptr_t)(contexts.back() + 1);
    return 0;
}
API cuCtxSetCurrent(void *context) {
    ENTER(" ");
    if (!contexts.empty()) contexts.pop_back();
    if (context) contexts.push_back((int)(uintptr_t)context - 1);
    return 0;
}
API cuCtxGetDevice(int *on) {
    ENTER(" ");
    if (contexts.empty()) return 201;
    *on = contexts.back();
    return 0;
}

// ---- Memory.

API cuMemGetInfo_v2(size_t *left, size_t *total) {
    ENTER(" ");
    if (device() < 0) return 201;
    *total = memory_bytes();
    *left = *total - std::min(*total, allocated[device()]);
    return 0;
}
API cuMemAlloc_v2(uint64_t *address, size_t size) {
    ENTER(" %zu", size);
    return allocate(address, size, false);
}
API cuMemFree_v2(uint64_t address) {
    ENTER(" ");
    const Allocation *found = holder((void *)address);
    if (found) finish_all(found->device);
    return release(address);
}
API cuMemAllocAsync(uint64_t *address, size_t size, void *stream) {
    ENTER(" %zu, stream %p", size, stream);
    return allocate(address, size, false);
}
API cuMemAllocFromPoolAsync(uint64_t *address, size_t size, void *pool, void *stream) {
    ENTER(" %zu, stream %p", size, stream);
    return allocate(address, size, false, (int)(uintptr_t)pool - 1);
}
API cuMemFreeAsync(uint64_t address, void *stream) {
    ENTER(" stream %p", stream);
    if (address && !pinned((void *)address)) return 1;
    return enqueue_free(stream, address);
}
API cuMemPoolCreate(void **pool, const int *properties) { // a CUmemPoolProps
    ENTER(" ");
    if (properties[0] != 1 || properties[1] != 0 || properties[2] != 1) return 1;
    if (properties[3] < 0 || properties[3] >= devices()) return 1;
    *pool = (void *)(uintptr_t)(properties[3] + 1);
    return 0;
}
API cuMemPoolDestroy(void *) {
    ENTER(" ");
    return 0;
}
API cuMemPoolSetAttribute(void *, int, void *) {
    ENTER(" ");
    return 0;
}
API cuMemPoolTrimTo(void *, size_t) {
    ENTER(" ");
    return 0;
}
API cuDeviceGetDefaultMemPool(void **pool, int) {
    ENTER(" ");
    *pool = (void *)2;
    return 0;
}
API cuMemHostAlloc(void **pointer, size_t size, unsigned) {
    ENTER(" %zu", size);
    return allocate((uint64_t *)pointer, size, true);
}
API cuMemFreeHost(void *pointer) {
    ENTER(" ");
    if (device() < 0) return 201;
    for (int on = 0; on < DEVICES; ++on) finish_all(on);
    return release((uint64_t)pointer);
}
API cuMemHostRegister_v2(void *pointer, size_t size, unsigned) {
    ENTER(" %zu", size);
    if (allocations.count((uint64_t)pointer)) return 712;
    allocations[(uint64_t)pointer] = {nullptr, 0, size, device(), true, true};
    return 0;
}
API cuMemHostUnregister(void *pointer) {
    ENTER(" ");
    for (int on = 0; on < DEVICES; ++on) finish_all(on);
    auto at = allocations.find((uint64_t)pointer);
    if (at == allocations.end() || !at->second.registered) return 713;
    allocations.erase(at);
    return 0;
}
API cuMemHostGetDevicePointer_v2(uint64_t *address, void *pointer, unsigned) {
    ENTER(" ");
    *address = (uint64_t)pointer;
    return 0;
}
API cuPointerGetAttribute(void *value, int attribute, uint64_t pointer) {
    ENTER(" %d", attribute);
    auto at = allocations.upper_bound(pointer);
    if (at == allocations.begin()) return 1;
    --at;
    const Allocation &a = at->second;
    if (pointer >= at->first + a.size) return 1;
    switch (attribute) {
    case 1:
        *(void **)value = (void *)(uintptr_t)(a.device + 1);
        return 0;
    case 2:
        *(unsigned *)value = a.host ? 1 : 2;
        return 0;
    case 3:
    case 4:
        *(uint64_t *)value = pointer;
        return 0;
    case 8:
        *(unsigned *)value = 0;
        return 0; // managed
    case 9:
        *(int *)value = a.device;
        return 0;
    case 11:
        *(uint64_t *)value = at->first;
        return 0;
    case 12:
        *(size_t *)value = a.size;
        return 0;
    default:
        return 1;
    }
}

// ---- Modules and launches.

API cuModuleLoadData(void **result, const void *image) {
    ENTER(" ");
    const auto *header = (const Elf64_Ehdr *)image;
    if (memcmp(header->e_ident, ELFMAG, SELFMAG)) return 200;
    const char *begin = (const char *)image;
    auto *module = new Module;
    module->image.assign(begin, begin + header->e_shoff + (size_t)header->e_shentsize * header->e_shnum);
    module->handles.push_back(load(module->image));
    if (!module->handles[0]) return delete module, told(), 200;
    const auto *arch = (const char *)dlsym(module->handles[0], "machine_architecture");
    int made_for = 0;
    char kind[16] = "", special = 0;
    if (!arch || sscanf(arch, "%15[^_]_%d%c", kind, &made_for, &special) < 2) return delete module, 200;
    const bool exact = !strcmp(kind, "sm");
    const int c = capability();
    const bool runs =
        special || !exact ? (special ? made_for == c : made_for <= c) : made_for / 10 == c / 10 && made_for <= c;
    if (!runs) return delete module, 209;
    *result = module;
    return 0;
}
API cuModuleUnload(Module *module) {
    ENTER(" ");
    for (int on = 0; on < DEVICES; ++on) finish_all(on);
    for (void *handle : module->handles) dlclose(handle);
    delete module;
    return 0;
}
API cuModuleGetFunction(Function **result, Module *module, const char *name) {
    ENTER(" %s", name);
    auto *function = new Function{device(), module, name, {}, {}, {}, 0, 0};
    const std::string of = name;
    using Parameters = size_t(size_t *, size_t *);
    auto *parameters = (Parameters *)dlsym(module->handles[0], ("machine_parameters_" + of).c_str());
    auto *bounds = (int (*)())dlsym(module->handles[0], ("machine_bounds_" + of).c_str());
    if (!parameters || !bounds || !module->more(name, function->instances)) return delete function, 500;
    size_t sizes[64], aligns[64];
    const size_t count = parameters(sizes, aligns);
    function->sizes.assign(sizes, sizes + count);
    function->aligns.assign(aligns, aligns + count);
    function->bounds = bounds();
    const Memory &m = *function->instances[0].memory;
    function->static_shared = (size_t)((m.end - m.begin) - (m.arena_end - m.arena)) & ~(size_t)63;
    *result = function;
    return 0;
}
API cuFuncSetAttribute(Function *function, int attribute, int value) {
    ENTER(" %d %d", attribute, value);
    if (attribute == 8) {
        if (value < 0 || (size_t)value + function->static_shared > shared_optin()) return 1;
        function->dynamic_limit = (size_t)value;
    }
    return 0;
}
API cuFuncGetAttribute(int *value, int attribute, Function *function) {
    ENTER(" %d", attribute);
    *value = attribute == 0   ? function->bounds ? function->bounds : 1024
             : attribute == 1 ? (int)function->static_shared
             : attribute == 4 ? 128
             : attribute == 8 ? (int)function->dynamic_limit
                              : 0;
    return 0;
}
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, Function *function, int threads, size_t shared) {
    ENTER(" ");
    const size_t by_shared = (shared_optin() + 1024) / (shared + function->static_shared + 1024);
    *count = (int)std::min<size_t>({(size_t)2048 / (size_t)std::max(threads, 1), by_shared, 2});
    return 0;
}
API cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    ENTER(" %s (%u, %u, %u) x (%u, %u, %u), %u bytes, stream %p", f->name.c_str(), gx, gy, gz, bx, by, bz, shared,
          stream);
    const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
    return launch(f, grid, block, shared, stream, parameters, extra, {1, 1, 1}, false);
}
struct LaunchAttribute {
    int id, pad;
    union {
        unsigned cluster[3];
        char value[64];
    };
};
struct LaunchConfig {
    unsigned grid[3], block[3], shared;
    void *stream;
    LaunchAttribute *attributes;
    unsigned count;
};
API cuLaunchKernelEx(const LaunchConfig *c, Function *f, void **parameters, void **extra) {
    Dim3 cluster = {1, 1, 1};
    bool overlaps = false;
    for (unsigned i = 0; i < c->count; ++i) {
        const LaunchAttribute &x = c->attributes[i];
        if (x.id == 4) cluster = {x.cluster[0], x.cluster[1], x.cluster[2]};
        if (x.id == 6) overlaps = x.value[0];
    }
    ENTER(" %s (%u, %u, %u) x (%u, %u, %u), %u bytes, stream %p, cluster %u", f->name.c_str(), c->grid[0], c->grid[1],
          c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream, cluster.x * cluster.y * cluster.z);
    return launch(f, c->grid, c->block, c->shared, c->stream, parameters, extra, cluster, overlaps);
}

API cuTensorMapEncodeTiled(Map *map, unsigned type, unsigned rank, void *address, const uint64_t *sizes,
                           const uint64_t *strides, const unsigned *box, const unsigned *steps, int interleave,
                           int swizzle, int, int) {
    ENTER(" type %u, rank %u, swizzle %d", type, rank, swizzle);
    static const uint8_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    if ((uintptr_t)map % 64 || type > 12 || rank < 1 || rank > 3 || !address || (uintptr_t)address % 16) return 1;
    if (interleave || swizzle < 0 || swizzle > 3) return 1; // no more is emulated
    memset((void *)map, 0, 128);
    *map = {MAP_MAGIC, (uint8_t)type, (uint8_t)rank, (uint8_t)swizzle, bytes[type], (uint64_t)address, {}, {}, {}};
    const uint64_t inner = (uint64_t)box[0] * bytes[type];
    if (inner % 16 || (swizzle && inner > (uint64_t)(16 << swizzle))) return 1;
    for (unsigned i = 0; i < rank; ++i) {
        if (!sizes[i] || sizes[i] > 1ull << 32 || !box[i] || box[i] > 256 || !steps[i] || steps[i] > 8) return 1;
        if (steps[i] != 1) return 801;
        map->sizes[i] = sizes[i];
        map->box[i] = box[i];
        if (!i) continue;
        if (strides[i - 1] % 16 || strides[i - 1] >= 1ull << 40) return 1;
        map->strides[i - 1] = strides[i - 1];
    }
    return 0;
}

// ---- Errors.

static const struct {
    int status;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {35, "CUDA_ERROR_INSUFFICIENT_DRIVER", "CUDA driver version is insufficient for CUDA runtime version"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "cluster misconfiguration"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
API cuGetErrorName(int status, const char **name) {
    for (const auto &error : errors)
        if (error.status == status) return *name = error.name, 0;
    *name = nullptr;
    return 1;
}
API cuGetErrorString(int status, const char **text) {
    LOCK;
    static std::string told_last; // with what the machine found
    for (const auto &error : errors)
        if (error.status == status) {
            *text = error.text;
            if (status >= 700 && status < 720 && !fault().report.empty()) {
                told_last = std::string(error.text) + ": " + fault().report;
                *text = told_last.c_str();
            }
            return 0;
        }
    *text = nullptr;
    return 1;
}

// By which other libraries look functions up.
API cuGetProcAddress_v2(const char *name, void **function, int, uint64_t, int *found) {
    LOCK;
    const std::string plain = name;
    *function = nullptr;
    for (const char *suffix : {"_v2", ""})
        if (!*function) *function = dlsym(RTLD_DEFAULT, (plain + suffix).c_str());
    if (found) *found = *function ? 0 : 1;
    return *function ? 0 : 500;
}
