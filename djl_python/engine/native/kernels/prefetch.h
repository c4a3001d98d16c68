// What a product prefetches while it runs, so that memory is never idle and no thread waits for it.
//
// A product with few rows is bound by reading its own weights. A product with many rows is bound by arithmetic, and can
// prefetch lines for the attention that follows in the list: attention with one query per sequence is bound by reading keys
// and values, and finds the prefetched ones in L3.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "program.h"
#include "vectors/processor.h"

namespace djl {

constexpr int kPrefetchDistance = 8192;            // how many bytes ahead of its use a panel is prefetched
constexpr int64_t kMaxKvPrefetchBytes = 20 << 20;  // they share L3 with the weights

// Writes to each line of `numbers`, all of which will be overwritten, to begin taking the lines from another core that has
// read their last contents: a core waits for some ten such lines at a time, fewer if it writes whole lines. A prefetch does
// nothing for a line that this core shares with another.
template <class T>
inline void take_ownership(T* numbers, int64_t count) {
    constexpr int64_t line = 64 / sizeof(T);
    for (int64_t i = 0; i < count; i += line) *(volatile T*)(numbers + i) = 0;
}

// Prefetches some adjacent lines with each step of a tile. With `Once` it leaves nothing in the larger caches: weights read
// once are not worth keeping there, and other data stays cached, also that of the code that runs between decode steps.
template <int Lines, bool Once>
struct Prefetch {
    const char* at;
    int64_t stride;

    void operator()() {
        for (int line = 0; line < Lines; ++line) {
            if constexpr (Once) prefetch_once(at + line * 64);
            else prefetch_l2(at + line * 64);
        }
        at += stride;
    }
};

// A tile that shares its weights with no other prefetches them shortly before their use.
template <int Lines>
using PrefetchOwn = Prefetch<Lines, true>;

// Tiles that share a part of a panel prefetch the next part together, some lines each; or keys and values. Each line is
// prefetched once: prefetching a line that is already on its way costs as much as the first time.
template <int Lines>
using PrefetchNext = Prefetch<Lines, false>;

// Prefetches two lines of keys and values with each step, from different places.
struct PrefetchBeside {
    const char *at, *other;
    int64_t stride;

    void operator()() {
        prefetch_l2(at);
        prefetch_l2(other);
        at += stride;
        other += stride;
    }
};

// The keys and values that one product prefetches. A layer's part of a block is prefetched in `runs` of `run_bytes`,
// `at_once` (one or two) of them at a time. In attention, `threads` threads walk over the blocks, each from a different one:
// the blocks that they begin with are prefetched first.
struct KvPrefetch {
    const char* base = nullptr;  // the layer's part of the cache's first block; null: there is nothing to prefetch
    const int64_t* blocks;
    int64_t block_bytes;
    int count;  // of blocks
    int threads;
    int first, end;  // of the product's blocks in the order of prefetching
    int runs;
    int64_t run_bytes, stride;
    int at_once;

    // Calls work with what a slot prefetches from one of its steps on.
    template <class Work>
    void with_slot(int slot, int step, const Work& work) const {
        const char* at = base ? run(at_once * slot) : nullptr;
        const char* other = at && at_once > 1 ? run(at_once * slot + 1) : nullptr;
        const int64_t passed = step * stride;
        if (other) work(PrefetchBeside{at + passed, other + passed, stride});
        else if (at) work(PrefetchNext<1>{at + passed, stride});
        else work(PrefetchNext<0>{});
    }

private:
    const char* run(int index) const {
        const int place = first + index / runs;
        if (place >= end) return nullptr;
        const int block = (int)((int64_t)count * (place % threads) / threads) + place / threads;
        return base + blocks[block] * block_bytes + index % runs * run_bytes;
    }
};

// A product's slots for prefetching keys and values: how many, and the steps of each.
struct PrefetchSlots {
    int64_t count;
    int steps;
};

// Distributes the keys and values that each attention of the list reads over the products before it, the last product first.
template <class SlotsOf>
void plan_kv_prefetches(const std::vector<Op>& ops, const StepInputs& step, int element_bytes, int threads, SlotsOf slots_of,
                        std::vector<KvPrefetch>& kv_prefetches) {
    for (int i = (int)ops.size() - 1; i >= 0; --i) {
        if (ops[i].head.kind != kAttention) continue;
        const HeadRows& rows = ops[i].attention.rows;
        const int64_t bytes =  // of a block
            (int64_t)rows.kv_heads * step.block_size * (rows.dim + rows.value_dim) * element_bytes;
        int left = (int)std::min<int64_t>(step.block_count, kMaxKvPrefetchBytes / bytes);
        int64_t room = 0;
        auto each = [&](auto use) {
            for (int j = i - 1; j >= 0 && ops[j].head.kind != kAttention; --j) {
                if (ops[j].head.kind != kLinear || ops[j].linear.routing.experts) continue;
                const PrefetchSlots slots = slots_of(ops[j]);
                if (slots.count > 0) use(j, slots, (int)((bytes + slots.steps * 64 - 1) / (slots.steps * 64)));
            }
        };
        each([&](int, const PrefetchSlots& slots, int runs) { room += slots.count / runs; });
        const int at_once = room < left ? 2 : 1;
        each([&](int j, const PrefetchSlots& slots, int runs) {
            const int64_t run_bytes = (bytes / runs + 63) / 64 * 64;
            const int first = (int)std::max<int64_t>(0, left - slots.count * at_once / runs);
            kv_prefetches[j] = {(const char*)rows.cache, step.blocks, step.block_bytes, step.block_count, threads,
                                first, left, runs, run_bytes, (run_bytes + slots.steps - 1) / slots.steps, at_once};
            left = first;
        });
    }
}

}  // namespace djl
