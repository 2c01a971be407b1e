// The checker of races (CUDA_MACHINE_RACES): who knows what to have ended, by vector clocks. See races.cpp.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

namespace machine {

struct Block;
struct Fiber;
struct Wgmma;

// [of an agent] how much of what it does is over. Agents are threads; a thread's cp.async and its TMA stores, and a warp's
// wgmma, each counted in groups; and barriers in shared memory, counted in phases, for the writes that these wait for.
struct Clock {
    std::vector<uint32_t> at;
    uint32_t of(uint32_t agent) const {
        return agent < at.size() ? at[agent] : 0;
    }
    void raise(uint32_t agent, uint32_t value);
    void join(const Clock &more);
};

struct Knowledge {
    Clock seen;                          // what came before
    Clock proxied;                       // what a fence.proxy.async came after
    Clock released;                      // what a __threadfence came after
    std::map<uint32_t, Clock> elsewhere; // [cluster] of other clusters: what came before
    std::map<uint32_t, Clock> acquired;  // ... and will have, after a __threadfence
    void join(const Knowledge &more);
};

struct Known { // of a fiber, besides
    Knowledge knows;
    uint32_t agent = 0, copies = 0, stores = 0; // its numbers, 0: none yet
    uint32_t copied = 0, stored = 0;            // groups that it has committed
};

struct Gathering { // of those who have come to a barrier
    Knowledge come, left;
};

enum class Access { READ, WRITE };
enum class Proxy { GENERIC, ASYNC };

extern bool watching;   // races are looked for
extern bool looks_away; // while the machine itself moves what a kernel has it move
void watch_launch();
void watch_cluster();
void watch_fiber(Fiber &fiber);

void step(Fiber &fiber); // what it does from now on is not known to those who know of it now
void come(Gathering &at, Fiber &fiber);
void pass(Gathering &at); // all have come
void leave(const Gathering &at, Fiber &fiber);

void barrier_made(Block &block, unsigned bar);
void barrier_used(Block &block, unsigned bar, bool by_tma, const char *what);
void barrier_come(Block &block, unsigned bar);
void barrier_pass(Block &block, unsigned bar);
void barrier_leave(Block &block, unsigned bar);

void fence_proxy(); // fence.proxy.async

// An access by a thread, at once.
void plain(const Fiber &who, unsigned address, unsigned bytes, Access access, const char *what);
// One that is over when barrier `bar` of `block` has ended its phase.
void counted(Block &block, unsigned address, unsigned bytes, unsigned bar, Proxy proxy, const char *what);
// Those that are over when a group is.
void copied(Block &block, unsigned address, unsigned bytes);
void stored(Block &block, unsigned address, unsigned bytes);
void multiplied(Block &block, unsigned address, unsigned bytes);
void copies_committed();
void stores_committed();
void products_committed();
void copies_over(int pending);
void stores_over(int pending);
void products_over(int pending);

} // namespace machine
