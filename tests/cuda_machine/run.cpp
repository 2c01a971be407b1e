// Runs grids: clusters one after another, their threads as fibers. See README.md for what it checks.
#define MACHINE_SWITCH
#include "run.h"
#include <algorithm>
#include <chrono>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

machine::Thread *machine_thread;

namespace machine {

Fiber *current;

namespace {
constexpr size_t DYNAMIC_OFFSET = 512; // the most that machine_dynamic adds to the arena's begin
Context scheduler;
const Launch *launched;
std::vector<Fiber *> fibers; // kept from launch to launch, for their stacks
std::vector<Block> blocks;   // of the cluster that runs
std::vector<Fiber *> ready;
size_t next_ready;
int live, cluster_arrived;
unsigned long long cluster_phase;
std::vector<Fiber *> cluster_waiting;
Gathering cluster_gathering;
Outcome outcome;
bool failed_before;
sigjmp_buf escape;

// Some threads that are held back: nobody of them runs until `steps` others have, or until no other can.
struct Held {
    const Block *block = nullptr;
    unsigned first = 0, count = 0, steps = 0;
    bool has(const Fiber &fiber) const {
        return steps && fiber.block == block && fiber.number - first < count;
    }
} held;
std::vector<Fiber *> set_aside; // ready, but held back

struct Random { // xorshift, as a generator of the standard library
    using result_type = uint32_t;
    uint64_t state = 1;
    static constexpr uint32_t min() {
        return 0;
    }
    static constexpr uint32_t max() {
        return 0xFFFFFFFF;
    }
    uint32_t operator()() {
        state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
        return (uint32_t)(state * 0x2545F4914F6CDD1Dull >> 32);
    }
    uint32_t below(size_t count) {
        return (uint32_t)((uint64_t) operator()() * count >> 32);
    }
} random_bits;
int seed;
enum { LATE, EARLY, MIXED } timing;
std::chrono::steady_clock::time_point deadline;
unsigned long long switches;

std::string where(const Fiber &fiber) {
    const Thread &t = fiber.visible;
    char text[160];
    snprintf(text, sizeof text, "block (%u, %u, %u), thread (%u, %u, %u)", t.block.x, t.block.y, t.block.z, t.thread.x,
             t.thread.y, t.thread.z);
    return text;
}

[[noreturn]] void stop(int status, const std::string &report) {
    outcome.status = status;
    outcome.report = report;
    siglongjmp(escape, 1);
}

void switch_away() {
    Fiber *self = current;
    if (++switches % (1 << 14) == 0 && std::chrono::steady_clock::now() > deadline)
        stop(702, "the kernel runs for longer than CUDA_MACHINE_TIMEOUT; last in " + where(*self));
    machine_switch(&self->context, &scheduler);
}

void poison(Block &block) {
    const Memory &memory = *block.instance->memory;
    memset(memory.begin, 0xFF, memory.end - memory.begin);
    block.instance->clean = true;
}

void end_block(Block &block) {
    if (!block.loads.empty()) stop(719, "a block ended while TMA was still writing to its shared memory");
    if (!block.pushed.empty()) stop(719, "a block ended while another one was still storing to its shared memory");
    const Memory &memory = *block.instance->memory;
    const char *end =
        memory.arena + std::min<size_t>(launched->shared + DYNAMIC_OFFSET, memory.arena_end - memory.arena);
    const size_t guard = std::min<size_t>(16 << 10, memory.arena_end - end);
    if (guard && (*end != (char)0xFF || memcmp(end, end + 1, guard - 1)))
        stop(700, "a block wrote beyond its dynamic shared memory");
    poison(block); // who reads it now, from elsewhere in the cluster, is too late
}

void leave_cluster_barrier() {
    if (live && cluster_arrived == live) {
        cluster_arrived = 0;
        ++cluster_phase;
        pass(cluster_gathering);
        for (Fiber *fiber : cluster_waiting) wake(fiber);
        cluster_waiting.clear();
        delay();
    }
}

void start() {
    Fiber &self = *current;
    self.block->instance->enter(launched->arguments);
    must_follow("the end of a thread");
    if (!self.stores.open.empty() || !self.stores.committed.empty())
        stop(719, where(self) + " ended without waiting for its TMA stores");
    for (const Store &store : self.unwritten) write_box(store);
    self.unwritten.clear();
    if (!self.copies.open.empty() || !self.copies.committed.empty()) self.copies.clear();
    self.ended = true;
    Warp &warp = *self.warp;
    warp.live &= ~(1u << self.visible.lane);
    if (!warp.live && (!warp.products.open.empty() || !warp.products.committed.empty()))
        stop(719, where(self) + " ended without waiting for wgmma");
    --live;
    if (self.cluster_arrived && self.cluster_phase == cluster_phase) --cluster_arrived; // it counts no longer
    if (--self.block->live == 0) end_block(*self.block);
    leave_cluster_barrier();
    machine_switch(&self.context, &scheduler);
    abort();
}

std::string deadlock() {
    std::string text = "deadlock:";
    for (size_t i = 0; i < fibers.size();) {
        const Fiber &first = *fibers[i];
        size_t j = i;
        auto same = [&](const Fiber &x) {
            return x.block == first.block && x.ended == first.ended &&
                   (x.ended ||
                    (x.waits == first.waits && x.waits_for == first.waits_for && x.waits_parity == first.waits_parity));
        };
        while (j < fibers.size() && fibers[j]->block && same(*fibers[j])) ++j;
        if (!first.block) break;
        char line[256];
        const Dim3 &b = first.visible.block;
        if (first.ended)
            snprintf(line, sizeof line, "\n  block (%u, %u), threads %u to %u: ended", b.x, b.y, first.number,
                     fibers[j - 1]->number);
        else
            snprintf(line, sizeof line, "\n  block (%u, %u), threads %u to %u: %s %#x%s", b.x, b.y, first.number,
                     fibers[j - 1]->number, first.waits, first.waits_for,
                     first.waits_parity < 2 ? first.waits_parity ? ", parity 1" : ", parity 0" : "");
        if (text.size() < 4000) text += line;
        i = j;
    }
    return text;
}

void run_cluster(const Dim3 &cluster_at) {
    const Launch &l = *launched;
    const unsigned count = l.cluster.x * l.cluster.y * l.cluster.z, threads = l.block.x * l.block.y * l.block.z;
    blocks.clear();
    blocks.resize(count);
    while (fibers.size() < count * threads) {
        fibers.push_back(new Fiber);
        fibers.back()->stack = new_stack();
        if (!fibers.back()->stack) stop(2, "no memory for the threads' stacks");
    }
    for (Fiber *fiber : fibers) fiber->block = nullptr;
    ready.clear();
    next_ready = 0;
    live = (int)(count * threads);
    cluster_arrived = 0;
    cluster_phase = 0;
    cluster_waiting.clear();
    cluster_gathering = {};
    if (watching) watch_cluster();
    for (unsigned rank = 0; rank < count; ++rank) {
        Block &block = blocks[rank];
        block.rank = rank;
        block.instance = const_cast<Instance *>(&(*l.instances)[rank]);
        const Memory &memory = *block.instance->memory;
        // 1 KB of a Hopper's shared memory is the system's: no address is 0
        block.window = (char *)((uintptr_t)memory.begin & ~(uintptr_t)1023) - 1024;
        if (!block.instance->clean) poison(block);
        block.instance->clean = false;
        block.live = (int)threads;
        block.warps.resize((threads + 31) / 32);
        Dim3 at = {cluster_at.x * l.cluster.x + rank % l.cluster.x,
                   cluster_at.y * l.cluster.y + rank / l.cluster.x % l.cluster.y,
                   cluster_at.z * l.cluster.z + rank / (l.cluster.x * l.cluster.y)};
        for (unsigned i = 0; i < threads; ++i) {
            Fiber &fiber = *fibers[rank * threads + i];
            fiber.visible = {{i % l.block.x, i / l.block.x % l.block.y, i / (l.block.x * l.block.y)},
                             at,
                             l.block,
                             l.grid,
                             i % 32,
                             i / 32,
                             rank,
                             count,
                             block.window};
            fiber.block = &block;
            fiber.warp = &block.warps[i / 32];
            fiber.warp->exists |= 1u << i % 32;
            fiber.warp->live |= 1u << i % 32;
            fiber.warp->lanes[i % 32] = &fiber;
            fiber.number = i;
            fiber.ended = fiber.ready = false;
            fiber.follows = !l.overlaps;
            fiber.waits = "";
            fiber.cluster_arrived = false;
            if (failed_before) { // else it ended with nothing left
                fiber.copies.clear();
                fiber.stores.clear();
                fiber.unwritten.clear();
            }
            prepare(fiber.context, fiber.stack, (rank * threads + i) * 5 % 64, start);
            if (watching) watch_fiber(fiber);
            wake(&fiber);
        }
    }
    held = {};
    set_aside.clear();
    while (live) {
        if (next_ready == ready.size() || (held.steps && !--held.steps)) {
            held.steps = 0;
            ready.insert(ready.end(), set_aside.begin(), set_aside.end());
            set_aside.clear();
        }
        if (next_ready == ready.size()) stop(719, deadlock());
        if (seed) { // any of those that can run
            std::swap(ready[next_ready], ready[next_ready + random_bits.below(ready.size() - next_ready)]);
        }
        Fiber *fiber = ready[next_ready++];
        if (next_ready > 4096 && next_ready * 2 > ready.size()) {
            ready.erase(ready.begin(), ready.begin() + (long)next_ready);
            next_ready = 0;
        }
        if (held.has(*fiber)) {
            set_aside.push_back(fiber);
            continue;
        }
        fiber->ready = false;
        current = fiber;
        machine_thread = &fiber->visible;
        machine_switch(&scheduler, &fiber->context);
    }
}

void on_fault(int, siginfo_t *info, void *) {
    outcome.status = 700;
    char text[100];
    snprintf(text, sizeof text, "illegal address %p in ", info->si_addr);
    outcome.report = text + where(*current);
    siglongjmp(escape, 1);
}

int setting(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}
} // namespace

bool chance() {
    return seed && random_bits() >> 31;
}

bool happens_early() {
    return timing == EARLY || (timing == MIXED && random_bits() >> 31);
}

void delay() {
    if (!seed || held.steps || random_bits.below(8)) return;
    const Dim3 &size = current->visible.block_size;
    const unsigned threads = size.x * size.y * size.z, of[] = {threads, 128, 32, 1};
    const unsigned count = of[random_bits.below(4)];
    held.block = &blocks[random_bits.below(blocks.size())];
    held.first = random_bits.below((threads + count - 1) / count) * count;
    held.count = count;
    held.steps = 1u << random_bits.below(15);
}

void wake(Fiber *fiber) {
    if (fiber->ready) return;
    fiber->ready = true;
    ready.push_back(fiber);
}

void block_fiber(const char *why, unsigned subject, unsigned parity) {
    current->waits = why;
    current->waits_for = subject;
    current->waits_parity = parity;
    switch_away();
    current->waits = "";
}

char *shared_at(Block &block, unsigned address, unsigned bytes, const char *what) {
    char *at = block.window + address;
    const Memory &memory = *block.instance->memory;
    if (at < memory.begin || at + bytes > memory.end)
        machine_fail("%s: %#x is no address of shared memory", what, address);
    return at;
}

void must_follow(const char *what) {
    if (!current->follows) machine_fail("%s before follow_launch: the launch before may still write", what);
}

Block *block_of_cluster(unsigned rank, const char *what) {
    if (rank >= blocks.size()) machine_fail("%s: rank %u of a cluster of %zu", what, rank, blocks.size());
    Block *block = &blocks[rank];
    if (block != current->block && !cluster_phase)
        machine_fail("%s: block %u of the cluster may not have started: no cluster barrier was passed", what, rank);
    if (!block->live) machine_fail("%s: block %u of the cluster has already ended", what, rank);
    return block;
}

Outcome run(const Launch &launch) {
    launched = &launch;
    failed_before = outcome.status != 0;
    outcome = {};
    watch_launch();
    seed = setting("CUDA_MACHINE_SEED", 1);
    random_bits.state = (uint64_t)seed * 0x9E3779B97F4A7C15ull + 1;
    const char *async = getenv("CUDA_MACHINE_ASYNC");
    timing = !async ? (seed ? MIXED : LATE) : !strcmp(async, "late") ? LATE : !strcmp(async, "early") ? EARLY : MIXED;
    deadline = std::chrono::steady_clock::now() + std::chrono::seconds(setting("CUDA_MACHINE_TIMEOUT", 300));
    // faults are handled on a stack of their own: the fiber's may be the fault
    static char *signal_stack = new char[64 << 10];
    stack_t alternative = {}, before_stack;
    alternative.ss_sp = signal_stack;
    alternative.ss_size = 64 << 10;
    sigaltstack(&alternative, &before_stack);
    struct sigaction fault = {}, before_segv, before_bus;
    fault.sa_sigaction = on_fault;
    fault.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &fault, &before_segv);
    sigaction(SIGBUS, &fault, &before_bus);
    if (!sigsetjmp(escape, 1)) {
        const Dim3 &g = launch.grid, &c = launch.cluster;
        const unsigned gx = g.x / c.x, gy = g.y / c.y, gz = g.z / c.z;
        std::vector<unsigned> order((size_t)gx * gy * gz);
        for (size_t i = 0; i < order.size(); ++i) order[i] = (unsigned)i;
        if (seed) std::shuffle(order.begin(), order.end(), random_bits);
        for (unsigned i : order) run_cluster({i % gx, i / gx % gy, i / (gx * gy)});
    }
    sigaction(SIGSEGV, &before_segv, nullptr);
    sigaction(SIGBUS, &before_bus, nullptr);
    sigaltstack(&before_stack, nullptr);
    return outcome;
}

} // namespace machine

using namespace machine;

void machine_fail(const char *format, ...) {
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    stop(719, std::string(text) + " in " + where(*current));
}

void machine_follow_launch() {
    current->follows = true;
}

void machine_yield() {
    if (!chance()) return;
    wake(current);
    switch_away();
}

int machine_active() {
    return (int)current->warp->live;
}

void machine_warp(unsigned mask, void *mine, Act *act, const char *name) {
    Warp &warp = *current->warp;
    const unsigned lane = current->visible.lane, bit = 1u << lane;
    mask &= warp.exists;
    if (!(mask & bit)) machine_fail("%s by lane %u, which is not in its mask %#x", name, lane, mask);
    if (mask & ~warp.live) machine_fail("%s with lanes %#x, which have ended", name, mask & ~warp.live);
    auto at = std::find_if(warp.meetings.begin(), warp.meetings.end(), [&](auto &m) { return m.mask & mask; });
    if (at == warp.meetings.end()) {
        warp.meetings.push_back({mask, 0, act, name, {}});
        at = warp.meetings.end() - 1;
    }
    if (at->mask != mask || at->act != act || (at->name != name && strcmp(at->name, name)))
        machine_fail("%s of lanes %#x while lanes %#x are in %s of lanes %#x", name, mask, at->arrived, at->name,
                     at->mask);
    at->arrived |= bit;
    at->lanes[lane] = mine;
    if (at->arrived != mask) return block_fiber(name, mask, 2);
    const Meeting meeting = *at;
    warp.meetings.erase(at);
    looks_away = true; // lanes' results are moved, which lie on their stacks
    act(meeting.lanes, mask);
    looks_away = false;
    if (watching && !strcmp(name, "__syncwarp")) { // no other one orders memory
        Gathering all;
        for (int i = 0; i < 32; ++i)
            if (mask >> i & 1) come(all, *warp.lanes[i]);
        pass(all);
        for (int i = 0; i < 32; ++i)
            if (mask >> i & 1) leave(all, *warp.lanes[i]);
    }
    for (int i = 0; i < 32; ++i)
        if ((mask & ~bit) >> i & 1) wake(warp.lanes[i]);
}

void machine_bar(int id, int threads, bool wait) {
    if (id < 0 || id > 15) machine_fail("named barrier %d: there are 16", id);
    Bar &bar = current->block->bars[id];
    const Dim3 &size = current->visible.block_size;
    const int present = (int)(size.x * size.y * size.z), rounded = (present + 31) / 32 * 32;
    if (!threads) threads = rounded;
    if (threads % 32) machine_fail("named barrier %d: %d threads are no whole warps", id, threads);
    const int all = threads == rounded ? present : threads;
    if (bar.arrived && bar.threads != all)
        machine_fail("named barrier %d: of %d threads and of %d", id, bar.threads, all);
    bar.threads = all;
    come(bar.gathering, *current);
    if (++bar.arrived == all) {
        bar.arrived = 0;
        pass(bar.gathering);
        for (Fiber *fiber : bar.waiting) {
            leave(bar.gathering, *fiber);
            wake(fiber);
        }
        if (wait) leave(bar.gathering, *current);
        bar.waiting.clear();
        delay();
        return;
    }
    if (!wait) return;
    bar.waiting.push_back(current);
    block_fiber("wait at named barrier", (unsigned)id, 2);
}

void machine_cluster_arrive() {
    if (current->cluster_arrived) machine_fail("cluster_arrive twice without cluster_wait");
    current->cluster_arrived = true;
    current->cluster_phase = cluster_phase;
    come(cluster_gathering, *current);
    ++cluster_arrived;
    leave_cluster_barrier();
}

void machine_cluster_wait() {
    if (!current->cluster_arrived) machine_fail("cluster_wait without cluster_arrive");
    current->cluster_arrived = false;
    if (current->cluster_phase == cluster_phase) {
        cluster_waiting.push_back(current);
        block_fiber("wait for the cluster, phase", (unsigned)cluster_phase, 2);
    }
    leave(cluster_gathering, *current); // no later one can have passed without this thread
}
