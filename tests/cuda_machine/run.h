// The emulated multiprocessor: blocks of a cluster, their warps and threads, and what is on its way asynchronously.
#pragma once
#include "fibers.h"
#include "machine.h"
#include "races.h"
#include <deque>
#include <string>
#include <vector>

namespace machine {

// What cuTensorMapEncodeTiled writes into the 128 bytes of a tensor map.
struct Map {
    uint32_t magic;
    uint8_t type, rank, swizzle, size; // of the driver's enumerations; bytes an element
    uint64_t address, sizes[5], strides[4];
    uint32_t box[5];
};
static_assert(sizeof(Map) <= 128, "a tensor map has 128 bytes");
constexpr uint32_t MAP_MAGIC = 0x9A7E50F1;

struct Instance { // a loaded copy of a module
    void (*enter)(void *const *arguments);
    const Memory *memory;
    mutable bool clean = false; // poisoned, and not used since
};

struct Launch {
    Dim3 grid, block, cluster;
    size_t shared; // dynamic
    bool overlaps; // the launch before may still run
    const std::vector<Instance> *instances;
    void *const *arguments;
};

struct Outcome {
    int status = 0; // a CUresult
    std::string report;
};

// Runs a grid to its end.
Outcome run(const Launch &launch);

struct Copy { // cp.async
    char *to;
    const char *from;
    int bytes, valid;
};

struct Store { // TMA, to global memory
    Map map;
    unsigned from;
    int at[3];
    std::vector<char> data; // once read
};

template <class T> struct Groups {
    std::vector<T> open;
    std::deque<std::vector<T>> committed;
    void commit() {
        committed.push_back(std::move(open));
        open.clear();
    }
    void clear() {
        open.clear();
        committed.clear();
    }
};

struct Product { // wgmma: one warp's share
    Wgmma lanes[32];
    unsigned registers[32][4];
};

struct Meeting {
    unsigned mask, arrived = 0;
    Act *act;
    const char *name;
    void *lanes[32];
};

struct Fiber;
struct Warp {
    unsigned exists = 0, live = 0;
    Fiber *lanes[32];
    std::vector<Meeting> meetings;
    Groups<Product> products;
    bool fenced = false;
};

struct Load { // TMA, to shared memory; `bar` counts its bytes
    Map map;
    unsigned to, bar;
    int at[3];
};

struct Pushed { // st.async of another block; `bar` counts its bytes
    unsigned to, bar;
    char words[16];
};

struct Bar {
    int arrived = 0, threads = 0;
    std::vector<Fiber *> waiting;
    Gathering gathering;
};

struct Block {
    unsigned rank;
    Instance *instance;
    char *window;
    int live = 0;
    Bar bars[16];
    std::vector<Warp> warps;
    std::vector<Load> loads;
    std::vector<Pushed> pushed;
    std::vector<Fiber *> at_barriers; // waiting in barrier_wait
    unsigned long long fences = 0;
};

struct Fiber {
    Context context;
    char *stack = nullptr;
    Thread visible;
    Block *block;
    Warp *warp;
    unsigned number;            // in its block
    bool ready, ended, follows; // the last: has waited for the launch before
    const char *waits;          // for what
    unsigned waits_for, waits_parity;
    unsigned long long cluster_phase;
    bool cluster_arrived;
    Groups<Copy> copies;
    Groups<Store> stores;
    Known known;
    std::vector<Store> unwritten; // read, not yet in global memory
};

extern Fiber *current;
char *shared_at(Block &block, unsigned address, unsigned bytes, const char *what);
void block_fiber(const char *why, unsigned subject, unsigned parity);
void wake(Fiber *fiber);
void delay();         // at each barrier that is passed: perhaps holds back a block, a warpgroup, a warp or a thread
bool chance();        // for what may happen now or later
bool happens_early(); // an asynchronous operation, at its issue
void load_box(Block &block, const Load &load);
void read_box(Block &block, Store &store);
void write_box(const Store &store);
void complete(Block &block, unsigned bar, unsigned bytes);
void multiply(const Product &product, Block &block, unsigned number);
void must_follow(const char *what); // in a launch that overlaps: fails a thread that has not waited
Block *block_of_cluster(unsigned rank, const char *what);

} // namespace machine
