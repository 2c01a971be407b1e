// The checker of races. Each access to shared memory must be known, to who makes it, to come after all those that it may
// not overlap: a write after every access, a read after the last write. What a thread knows, it learns at barriers, from
// those who have come there; of what happens asynchronously it learns only by the wait for it. Nothing depends on what the
// schedule has happen first: a race is reported in each order in which both accesses are made.
//
// Proxies: what was written by ordinary stores, or by those of another block, is read or overwritten by TMA or wgmma
// only after a fence.proxy.async that came after the write.
// Global memory: what another cluster has written is read only after __threadfence there, an atomic operation that tells
// of it, one here that hears of it, and __threadfence here. Elements of fewer than 4 bytes are not watched there.
#include "races.h"
#include "run.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <unordered_map>

namespace machine {

bool watching, looks_away;

namespace {

struct Epoch {
    uint32_t agent = 0, value = 0;
};

struct Cell { // of shared memory
    Epoch write;
    bool generic = false; // written through the generic proxy
    Epoch read;
    std::vector<Epoch> more; // reads
};

struct Word { // 4 bytes, or each by itself since fewer of them were accessed
    Cell whole;
    std::unique_ptr<Cell[]> bytes;
};

struct Agent {
    enum Kind { THREAD, COPIES, STORES, PRODUCTS, BARRIER } kind;
    unsigned rank, number;
};

struct Barrier {
    uint32_t agent = 0, phases = 0;
    Epoch made;
    bool fenced = false;
    Gathering gathering;
};

struct Shared { // memory, of a block
    std::vector<Word> words;
    std::map<unsigned, Barrier> barriers;
};

struct Written { // global
    uint32_t cluster;
    Epoch write;
};

std::vector<Agent> agents;
std::vector<Shared> shared;
std::unordered_map<uintptr_t, Written> global;
std::unordered_map<uintptr_t, std::map<uint32_t, Clock>> told; // by atomic operations
std::map<std::pair<unsigned, unsigned>, uint32_t> of_products; // [block, warp]
std::map<uint32_t, uint32_t> products;                         // groups committed
uint32_t cluster;

uint32_t agent_of(Agent::Kind kind, unsigned rank, unsigned number) {
    agents.push_back({kind, rank, number});
    return (uint32_t)agents.size() - 1;
}

void join_all(std::map<uint32_t, Clock> &to, const std::map<uint32_t, Clock> &more) {
    for (const auto &[number, clock] : more) to[number].join(clock);
}

std::string name(uint32_t agent) {
    const Agent &a = agents[agent];
    char text[120];
    const char *const of[] = {"thread %u", "cp.async of thread %u", "a TMA store of thread %u", "wgmma of warp %u",
                              "what barrier %#x counts"};
    snprintf(text, sizeof text, of[a.kind], a.number);
    return text + std::string(" of block ") + std::to_string(a.rank) + " of the cluster";
}

[[noreturn]] void race(Block &block, unsigned address, const char *what, const char *told, uint32_t before) {
    const char *seed = getenv("CUDA_MACHINE_SEED");
    looks_away = false;
    machine_fail("race at %#x of block %u of the cluster: %s %s %s (seed %s)", address, block.rank, what, told,
                 name(before).c_str(), seed && *seed ? seed : "1");
}

Word &word_at(Block &block, unsigned at) {
    Shared &memory = shared[block.rank];
    const Memory &all = *block.instance->memory;
    if (memory.words.empty()) memory.words.resize((size_t)(all.end - block.window) / 4 + 1);
    return memory.words[at];
}

bool knows(const Clock &clock, Epoch epoch) {
    return clock.of(epoch.agent) >= epoch.value;
}

void note_read(Cell &cell, Epoch mine, const Clock &seen) {
    if (!cell.read.value || cell.read.agent == mine.agent || knows(seen, cell.read)) {
        cell.read = mine;
        return;
    }
    for (Epoch &epoch : cell.more)
        if (epoch.agent == mine.agent || knows(seen, epoch)) {
            epoch = mine;
            return;
        }
    cell.more.push_back(mine);
}

void access(const Knowledge &k, Block &block, unsigned address, Cell &cell, Access access, Proxy proxy, Epoch mine,
            const char *what) {
    if (cell.write.value) {
        if (!knows(k.seen, cell.write))
            race(block, address, what, "is not ordered after the write by", cell.write.agent);
        if (proxy == Proxy::ASYNC && cell.generic && !knows(k.proxied, cell.write))
            race(block, address, what, "has no fence.proxy.async between it and the write by", cell.write.agent);
    }
    if (access == Access::READ) return note_read(cell, mine, k.seen);
    if (cell.read.value && !knows(k.seen, cell.read))
        race(block, address, what, "is not ordered after the read by", cell.read.agent);
    for (const Epoch &epoch : cell.more)
        if (!knows(k.seen, epoch)) race(block, address, what, "is not ordered after the read by", epoch.agent);
    cell.read = {};
    cell.more.clear();
    cell.write = mine;
    cell.generic = proxy == Proxy::GENERIC;
}

void access(const Fiber &who, Block &block, unsigned address, unsigned bytes, Access kind, Proxy proxy, Epoch mine,
            const char *what) {
    const Knowledge &k = who.known.knows;
    for (unsigned at = address, end = address + bytes; at < end;) {
        const unsigned next = std::min(end, at / 4 * 4 + 4);
        Word &word = word_at(block, at / 4);
        if (next - at == 4 && !word.bytes) {
            access(k, block, at, word.whole, kind, proxy, mine, what);
        } else {
            if (!word.bytes) {
                word.bytes.reset(new Cell[4]);
                std::fill_n(word.bytes.get(), 4, word.whole);
            }
            for (unsigned i = at; i < next; ++i) access(k, block, i, word.bytes[i % 4], kind, proxy, mine, what);
        }
        at = next;
    }
}

Barrier &barrier_of(Block &block, unsigned bar) {
    return shared[block.rank].barriers[bar];
}

uint32_t group_agent(uint32_t &agent, Agent::Kind kind) {
    if (!agent) agent = agent_of(kind, current->block->rank, current->number);
    return agent;
}

uint32_t products_of(const Fiber &fiber) {
    uint32_t &agent = of_products[{fiber.block->rank, fiber.visible.warp}];
    if (!agent) agent = agent_of(Agent::PRODUCTS, fiber.block->rank, fiber.visible.warp);
    return agent;
}

bool global_word(const char *at, unsigned bytes) {
    return bytes >= 4 && (at < current->stack || at >= current->stack + STACK);
}

void global_write(const char *at, unsigned bytes) {
    const Epoch mine = {current->known.agent, current->known.knows.seen.of(current->known.agent)};
    for (unsigned i = 0; i < bytes; i += 4) global[(uintptr_t)at / 4 + i / 4] = {cluster, mine};
}

void global_read(const char *at, unsigned bytes) {
    if (global.empty()) return;
    const Knowledge &k = current->known.knows;
    for (unsigned i = 0; i < bytes; i += 4) {
        const auto found = global.find((uintptr_t)at / 4 + i / 4);
        if (found == global.end()) continue;
        const Written &w = found->second;
        const auto other = k.elsewhere.find(w.cluster);
        const bool known =
            w.cluster == cluster ? knows(k.seen, w.write) : other != k.elsewhere.end() && knows(other->second, w.write);
        if (known) continue;
        const char *seed = getenv("CUDA_MACHINE_SEED");
        machine_fail("race at %p in global memory: a read without __threadfence, or not ordered, after the write by a "
                     "thread of %s cluster (seed %s)",
                     (const void *)at, w.cluster == cluster ? "this" : "another", seed && *seed ? seed : "1");
    }
}

} // namespace

void Clock::raise(uint32_t agent, uint32_t value) {
    if (agent >= at.size()) at.resize(agent + 1 + agent / 8);
    if (at[agent] < value) at[agent] = value;
}

void Clock::join(const Clock &more) {
    if (at.size() < more.at.size()) at.resize(more.at.size());
    uint32_t *const to = at.data();
    const uint32_t *const from = more.at.data();
    for (size_t i = 0, count = more.at.size(); i < count; ++i) to[i] = to[i] < from[i] ? from[i] : to[i];
}

void Knowledge::join(const Knowledge &more) {
    seen.join(more.seen);
    proxied.join(more.proxied);
    released.join(more.released);
    join_all(elsewhere, more.elsewhere);
    join_all(acquired, more.acquired);
}

void watch_launch() {
    const char *text = getenv("CUDA_MACHINE_RACES");
    watching = text && *text && *text != '0';
    looks_away = false;
    cluster = 0;
    global.clear();
    told.clear();
}

void watch_cluster() {
    ++cluster;
    agents.assign(1, {Agent::THREAD, 0, 0}); // 0: nobody
    of_products.clear();
    products.clear();
    shared.clear();
    shared.resize(8);
}

void watch_fiber(Fiber &fiber) {
    fiber.known = {};
    fiber.known.agent = agent_of(Agent::THREAD, fiber.block->rank, fiber.number);
    fiber.known.knows.seen.raise(fiber.known.agent, 1);
}

void step(Fiber &fiber) {
    ++fiber.known.knows.seen.at[fiber.known.agent];
}

void come(Gathering &at, Fiber &fiber) {
    if (!watching) return;
    at.come.join(fiber.known.knows);
    step(fiber);
}

void pass(Gathering &at) {
    if (!watching) return;
    at.left = std::move(at.come);
    at.come = {};
}

void leave(const Gathering &at, Fiber &fiber) {
    if (watching) fiber.known.knows.join(at.left);
}

void barrier_made(Block &block, unsigned bar) {
    if (!watching) return;
    Barrier &barrier = barrier_of(block, bar);
    barrier = {};
    barrier.agent = agent_of(Agent::BARRIER, block.rank, bar);
    barrier.made = {current->known.agent, current->known.knows.seen.of(current->known.agent)};
}

void barrier_used(Block &block, unsigned bar, bool by_tma, const char *what) {
    if (!watching) return;
    const Barrier &barrier = barrier_of(block, bar);
    if (!barrier.agent) return; // the machine itself says that there is none
    if (!knows(current->known.knows.seen, barrier.made))
        race(block, bar, what, "of a barrier is not ordered after its barrier_init by", barrier.made.agent);
    if ((by_tma || &block != current->block) && !barrier.fenced)
        race(block, bar, what, "of a barrier has no barrier_init_fence after its barrier_init by", barrier.made.agent);
}

void barrier_come(Block &block, unsigned bar) {
    if (watching) come(barrier_of(block, bar).gathering, *current);
}

void barrier_pass(Block &block, unsigned bar) {
    if (!watching) return;
    Barrier &barrier = barrier_of(block, bar);
    barrier.gathering.left.join(barrier.gathering.come);
    barrier.gathering.come = {};
    barrier.gathering.left.seen.raise(barrier.agent, ++barrier.phases);
}

void barrier_leave(Block &block, unsigned bar) {
    if (watching) leave(barrier_of(block, bar).gathering, *current);
}

void plain(const Fiber &who, unsigned address, unsigned bytes, Access kind, const char *what) {
    if (!watching) return;
    const uint32_t agent = who.known.agent;
    access(who, *who.block, address, bytes, kind, Proxy::GENERIC, {agent, who.known.knows.seen.of(agent)}, what);
}

void counted(Block &block, unsigned address, unsigned bytes, unsigned bar, Proxy proxy, const char *what) {
    if (!watching) return;
    barrier_used(block, bar, proxy == Proxy::ASYNC, what);
    const Barrier &barrier = barrier_of(block, bar);
    access(*current, block, address, bytes, Access::WRITE, proxy, {barrier.agent, barrier.phases + 1}, what);
}

void copied(Block &block, unsigned address, unsigned bytes) {
    if (!watching) return;
    Known &k = current->known;
    const Epoch mine = {group_agent(k.copies, Agent::COPIES), k.copied + 1};
    access(*current, block, address, bytes, Access::WRITE, Proxy::GENERIC, mine, "a write by cp.async");
}

void stored(Block &block, unsigned address, unsigned bytes) {
    if (!watching) return;
    Known &k = current->known;
    const Epoch mine = {group_agent(k.stores, Agent::STORES), k.stored + 1};
    access(*current, block, address, bytes, Access::READ, Proxy::ASYNC, mine, "a read by a TMA store");
}

void multiplied(Block &block, unsigned address, unsigned bytes) {
    const uint32_t agent = products_of(*current);
    access(*current, block, address, bytes, Access::READ, Proxy::ASYNC, {agent, products[agent] + 1},
           "a read by wgmma");
}

void copies_committed() {
    ++current->known.copied;
}

void stores_committed() {
    ++current->known.stored;
}

void fence_proxy() {
    if (!watching) return;
    current->known.knows.proxied.join(current->known.knows.seen);
    step(*current);
}

void copies_over(int pending) {
    Known &k = current->known;
    if (watching && k.copies && (int)k.copied > pending) k.knows.seen.raise(k.copies, k.copied - (uint32_t)pending);
}

void stores_over(int pending) {
    Known &k = current->known;
    if (watching && k.stores && (int)k.stored > pending) k.knows.seen.raise(k.stores, k.stored - (uint32_t)pending);
}

void products_over(int pending) {
    if (!watching) return;
    const uint32_t agent = products_of(*current);
    if ((int)products[agent] <= pending) return;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (current->warp->exists >> lane & 1)
            current->warp->lanes[lane]->known.knows.seen.raise(agent, products[agent] - (uint32_t)pending);
}

void products_committed() {
    if (watching) ++products[products_of(*current)];
}

} // namespace machine

using namespace machine;

void machine_touch(const void *pointer, unsigned long bytes, bool writes) {
    if (!watching || looks_away || !bytes) return;
    const char *const at = (const char *)pointer;
    Block &block = *current->block;
    const Memory &memory = *block.instance->memory;
    if (at >= memory.begin && at < memory.end)
        return plain(*current, (unsigned)(at - block.window), (unsigned)bytes, writes ? Access::WRITE : Access::READ,
                     writes ? "a store" : "a load");
    if (!global_word(at, (unsigned)bytes)) return;
    writes ? global_write(at, (unsigned)bytes) : global_read(at, (unsigned)bytes);
}

void machine_atomic(const void *at) {
    if (!watching) return;
    Knowledge &k = current->known.knows;
    auto &all = told[(uintptr_t)at];
    join_all(k.acquired, all);
    if (k.released.at.empty()) return;
    all[cluster].join(k.released);
    join_all(all, k.elsewhere);
}

void machine_threadfence() {
    if (!watching) return;
    Knowledge &k = current->known.knows;
    join_all(k.elsewhere, k.acquired);
    k.released = k.seen;
    step(*current);
}

void machine_barrier_init_fence() {
    if (!watching) return;
    for (auto &[bar, barrier] : shared[current->block->rank].barriers)
        if (knows(current->known.knows.seen, barrier.made)) barrier.fenced = true;
}

// What g++ -fsanitize=thread has a kernel call before each of its loads and stores.
#define HOOKS(bytes)                                       \
    MACHINE void __tsan_read##bytes(void *at) {            \
        machine_touch(at, bytes, false);                   \
    }                                                      \
    MACHINE void __tsan_write##bytes(void *at) {           \
        machine_touch(at, bytes, true);                    \
    }                                                      \
    MACHINE void __tsan_unaligned_read##bytes(void *at) {  \
        machine_touch(at, bytes, false);                   \
    }                                                      \
    MACHINE void __tsan_unaligned_write##bytes(void *at) { \
        machine_touch(at, bytes, true);                    \
    }                                                      \
    MACHINE void __tsan_volatile_read##bytes(void *at) {   \
        machine_touch(at, bytes, false);                   \
    }                                                      \
    MACHINE void __tsan_volatile_write##bytes(void *at) {  \
        machine_touch(at, bytes, true);                    \
    }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
MACHINE void __tsan_read_range(void *at, unsigned long bytes) {
    machine_touch(at, bytes, false);
}
MACHINE void __tsan_write_range(void *at, unsigned long bytes) {
    machine_touch(at, bytes, true);
}
MACHINE void __tsan_init() {}
MACHINE void __tsan_func_entry(void *) {}
MACHINE void __tsan_func_exit() {}
