// What completes some time after its issue: cp.async, barriers in shared memory, TMA. Every operation happens at once or
// as late as it may, by CUDA_MACHINE_ASYNC.
#include "run.h"
#include <algorithm>
#include <cstring>

namespace machine {
namespace {

// A barrier's 8 bytes: phase 1, a mark 7, arrivals a phase 14, still missing 14, bytes still missing 28 (signed).
struct Bits {
    uint64_t missing_bytes : 28, missing : 14, expected : 14, mark : 7, phase : 1;
};
constexpr unsigned MARK = 0x5A, MOST = (1 << 14) - 1;

Bits &barrier_at(Block &block, unsigned bar, const char *what) {
    if (bar % 8) machine_fail("%s: the barrier %#x is not aligned to 8 bytes", what, bar);
    Bits &bits = *(Bits *)shared_at(block, bar, 8, what);
    if (bits.mark != MARK) machine_fail("%s: there is no barrier at %#x of block %u", what, bar, block.rank);
    return bits;
}

void check_phase(Block &block, unsigned bar, Bits &bits) {
    if (bits.missing || bits.missing_bytes) return;
    bits.phase ^= 1;
    bits.missing = bits.expected;
    barrier_pass(block, bar);
    delay();
    for (size_t i = 0; i < block.at_barriers.size();) {
        Fiber *fiber = block.at_barriers[i];
        if (fiber->waits_for == bar) {
            wake(fiber);
            block.at_barriers.erase(block.at_barriers.begin() + (long)i);
        } else {
            ++i;
        }
    }
}

void perform(const Copy &copy) {
    memcpy(copy.to, copy.from, (size_t)copy.valid);
    memset(copy.to + copy.valid, 0, (size_t)(copy.bytes - copy.valid));
}

// Addresses' bits 4 to 6, as far as the swizzle goes, are xored with bits 7 to 9.
unsigned swizzled(unsigned address, int kind) {
    const unsigned mask = kind == 3 ? 7 : kind == 2 ? 3 : kind == 1 ? 1 : 0; // CU_TENSOR_MAP_SWIZZLE_*
    return address ^ ((address >> 7 & mask) << 4);
}

float to_tf32(float value) { // to nearest, ties to even, as TMA rounds
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7F800000) != 0x7F800000) bits = (bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFFu;
    memcpy(&value, &bits, 4);
    return value;
}

// act(shared address, address in global memory or null, bytes) for each run of the box.
template <class Each> void each_element(const Map &map, unsigned shared, const int (&at)[3], Each act) {
    const unsigned size = map.size, row = map.box[0] * size;
    unsigned offset = 0;
    for (unsigned z = 0; z < (map.rank > 2 ? map.box[2] : 1); ++z)
        for (unsigned y = 0; y < map.box[1]; ++y, offset += row) {
            const int64_t gy = (int64_t)at[1] + y, gz = map.rank > 2 ? (int64_t)at[2] + z : 0;
            const bool inside =
                gy >= 0 && gy < (int64_t)map.sizes[1] && (map.rank < 3 || (gz >= 0 && gz < (int64_t)map.sizes[2]));
            char *line = (char *)map.address + (inside ? gy * (int64_t)map.strides[0] : 0) +
                         (inside && map.rank > 2 ? gz * (int64_t)map.strides[1] : 0);
            for (unsigned x = 0; x < map.box[0]; ++x) {
                const int64_t gx = (int64_t)at[0] + x;
                char *global = inside && gx >= 0 && gx < (int64_t)map.sizes[0] ? line + gx * size : nullptr;
                act(swizzled(shared + offset + x * size, map.swizzle), global, size);
            }
        }
}

unsigned box_bytes(const Map &map) {
    return map.box[0] * map.box[1] * (map.rank > 2 ? map.box[2] : 1) * map.size;
}

const Map &map_at(const void *pointer, int rank, const char *what) {
    const Map &map = *(const Map *)pointer;
    if ((uintptr_t)pointer % 64) machine_fail("%s: the tensor map is not aligned to 64 bytes", what);
    if (map.magic != MAP_MAGIC) machine_fail("%s: no tensor map", what);
    if (map.rank != rank) machine_fail("%s: the tensor map has %d axes, not %d", what, map.rank, rank);
    return map;
}

void land(Block &block, const Load &load) {
    load_box(block, load);
    complete(block, load.bar, box_bytes(load.map));
}

void land(Block &block, const Pushed &pushed) {
    memcpy(shared_at(block, pushed.to, 16, "remote_store"), pushed.words, 16);
    complete(block, pushed.bar, 16);
}

// What TMA and other blocks owe to the barrier: late, it comes when the barrier is waited for.
bool settle(Block &block, unsigned bar) {
    const auto due = std::stable_partition(block.pushed.begin(), block.pushed.end(),
                                           [&](const Pushed &pushed) { return pushed.bar != bar; });
    const std::vector<Pushed> come(due, block.pushed.end());
    block.pushed.erase(due, block.pushed.end());
    for (const Pushed &pushed : come) land(block, pushed);
    bool any = !come.empty();
    for (size_t i = 0; i < block.loads.size();) {
        if (block.loads[i].bar != bar) {
            ++i;
            continue;
        }
        const Load load = block.loads[i];
        block.loads.erase(block.loads.begin() + (long)i);
        land(block, load);
        any = true;
    }
    return any;
}

// Who already waits at the barrier comes to fetch what is now owed to it.
void call_back(Block &block, unsigned bar) {
    auto &waiting = block.at_barriers;
    for (Fiber *fiber : waiting)
        if (fiber->waits_for == bar) wake(fiber);
    waiting.erase(std::remove_if(waiting.begin(), waiting.end(), [&](Fiber *fiber) { return fiber->waits_for == bar; }),
                  waiting.end());
}

} // namespace

void complete(Block &block, unsigned bar, unsigned bytes) {
    Bits &bits = barrier_at(block, bar, "complete_tx");
    bits.missing_bytes -= bytes;
    check_phase(block, bar, bits);
}

void load_box(Block &block, const Load &load) {
    shared_at(block, load.to, box_bytes(load.map), "tma_load");
    each_element(load.map, load.to, load.at, [&](unsigned shared, const char *global, unsigned size) {
        char *to = block.window + shared;
        if (!global) return (void)memset(to, 0, size);
        memcpy(to, global, size);
        if (load.map.type == 11 || load.map.type == 12) { // CU_TENSOR_MAP_DATA_TYPE_TFLOAT32(_FTZ)
            float value;
            memcpy(&value, to, 4);
            value = to_tf32(value);
            memcpy(to, &value, 4);
        }
    });
}

void read_box(Block &block, Store &store) {
    each_element(store.map, store.from, store.at, [&](unsigned shared, const char *, unsigned size) {
        const char *from = block.window + shared;
        store.data.insert(store.data.end(), from, from + size);
    });
}

void write_box(const Store &store) {
    const char *from = store.data.data();
    each_element(store.map, store.from, store.at, [&](unsigned, char *global, unsigned size) {
        if (global) memcpy(global, from, size);
        from += size;
    });
}

} // namespace machine

using namespace machine;

void machine_copy(unsigned shared, const void *global, int bytes, int valid) {
    must_follow("cp.async");
    if (shared % (unsigned)bytes || (uintptr_t)global % (unsigned)bytes)
        machine_fail("cp.async of %d bytes from %p to %#x: not aligned", bytes, global, shared);
    if (valid < 0 || valid > bytes) machine_fail("cp.async: %d valid bytes of %d", valid, bytes);
    const Copy copy = {shared_at(*current->block, shared, (unsigned)bytes, "cp.async"), (const char *)global, bytes,
                       valid};
    machine_touch(global, (unsigned long)valid, false);
    copied(*current->block, shared, (unsigned)bytes);
    if (happens_early())
        perform(copy);
    else
        current->copies.open.push_back(copy);
}

void machine_copy_commit() {
    current->copies.commit();
    copies_committed();
}

void machine_copy_wait(int pending) {
    copies_over(pending);
    auto &groups = current->copies.committed;
    while ((int)groups.size() > pending) {
        for (const Copy &copy : groups.front()) perform(copy);
        groups.pop_front();
    }
}

void machine_barrier_init(unsigned bar, unsigned count) {
    if (!count || count > MOST) machine_fail("barrier_init: a count of %u", count);
    if (bar % 8) machine_fail("barrier_init: %#x is not aligned to 8 bytes", bar);
    Bits &bits = *(Bits *)shared_at(*current->block, bar, 8, "barrier_init");
    bits = {0, count, count, MARK, 0};
    barrier_made(*current->block, bar);
}

void machine_barrier_arrive(unsigned bar, unsigned cta, unsigned bytes, bool expects) {
    Block &block = *block_of_cluster(cta, "mbarrier.arrive");
    Bits &bits = barrier_at(block, bar, expects ? "mbarrier.arrive.expect_tx" : "mbarrier.arrive");
    if (!bits.missing) machine_fail("mbarrier.arrive: more arrivals than %u at %#x", (unsigned)bits.expected, bar);
    barrier_used(block, bar, false, "an arrival");
    barrier_come(block, bar);
    bits.missing_bytes += bytes;
    --bits.missing;
    check_phase(block, bar, bits);
    if (chance() && chance()) machine_yield();
}

bool machine_barrier_wait(unsigned bar, unsigned parity, bool blocks) {
    Block &block = *current->block;
    if (parity > 1) machine_fail("barrier_wait: parity %u", parity);
    barrier_at(block, bar, "barrier_wait");
    barrier_used(block, bar, false, "a wait");
    for (;;) {
        if (machine_barrier_passed(bar, parity)) return true;
        if (settle(block, bar)) continue;
        if (!blocks) break;
        block.at_barriers.push_back(current);
        block_fiber("wait for barrier", bar, parity);
    }
    wake(current);
    block_fiber("barrier_try", bar, parity);
    return machine_barrier_passed(bar, parity);
}

bool machine_barrier_passed(unsigned bar, unsigned parity) {
    if (barrier_at(*current->block, bar, "barrier_passed").phase == parity) return false;
    barrier_leave(*current->block, bar);
    return true;
}

void machine_tma_load(unsigned to, const void *pointer, unsigned bar, int x, int y, int z, int rank, int mask) {
    must_follow("tma_load");
    const Map &map = map_at(pointer, rank, "tma_load");
    if (to % 128) machine_fail("tma_load to %#x: not aligned to 128 bytes", to);
    const Load load = {map, to, bar, {x, y, z}};
    for (unsigned cta = 0; cta < current->visible.cluster; ++cta) {
        if (mask ? !(mask >> cta & 1) : cta != current->visible.rank) continue;
        Block &block = *block_of_cluster(cta, "tma_load");
        counted(block, to, box_bytes(map), bar, Proxy::ASYNC, "a write by a TMA load");
        if (happens_early()) {
            land(block, load);
            continue;
        }
        block.loads.push_back(load);
        call_back(block, bar);
    }
}

void machine_remote_store(unsigned to, const void *words, unsigned bar, unsigned rank) {
    Block &block = *block_of_cluster(rank, "remote_store");
    if (to % 16) machine_fail("remote_store to %#x: not aligned to 16 bytes", to);
    Pushed pushed = {to, bar, {}};
    memcpy(pushed.words, words, 16);
    counted(block, to, 16, bar, Proxy::GENERIC, "a write by remote_store");
    if (happens_early()) return land(block, pushed);
    block.pushed.push_back(pushed);
    call_back(block, bar);
}

void machine_tma_store(const void *pointer, unsigned from, int x, int y, int z, int rank) {
    const Map &map = map_at(pointer, rank, "tma_store");
    Block &block = *current->block;
    if (from % 128) machine_fail("tma_store from %#x: not aligned to 128 bytes", from);
    if (map.sizes[0] * map.size % 16 || x >= (int64_t)map.sizes[0] || (rank > 1 && y >= (int64_t)map.sizes[1]))
        machine_fail("tma_store at (%d, %d): what ends within 16 bytes, or lies outside, may be written beyond", x, y);
    if (!block.fences) machine_fail("tma_store: no thread of the block has called fence_async");
    Store store = {map, from, {x, y, z}, {}};
    shared_at(block, from, box_bytes(map), "tma_store");
    stored(block, from, box_bytes(map));
    if (happens_early()) {
        read_box(block, store);
        write_box(store);
        store.data.clear();
        store.map.box[0] = 0; // done
    }
    current->stores.open.push_back(store);
}

void machine_bulk_commit() {
    current->stores.commit();
    stores_committed();
}

void machine_bulk_wait(int pending, bool read) {
    stores_over(pending);
    auto &groups = current->stores.committed;
    while ((int)groups.size() > pending) {
        for (Store &store : groups.front()) {
            read_box(*current->block, store);
            current->unwritten.push_back(std::move(store));
        }
        groups.pop_front();
    }
    if (read) return;
    for (const Store &store : current->unwritten) write_box(store);
    current->unwritten.clear();
}

void machine_fence_async() {
    ++current->block->fences;
    fence_proxy();
}
