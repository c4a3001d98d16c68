// What a product fetches along the way, so that the memory is never idle and nobody waits for it.
//
// A product with few rows waits for its own weights alone. With many it waits for arithmetic, and has cache lines to spare
// for the attention that follows in the list: attention with one query a sequence waits for keys and values, and finds
// what was fetched in the last cache.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "processor.h"
#include "program.h"

namespace djl {

constexpr int kAhead = 8192;                  // bytes of a panel fetched before they are needed
constexpr int64_t kFetchedBytes = 20 << 20;  // of keys and values, at most: they share the last cache with the weights

// Begins to take the lines of numbers that will be written, all of them, from another processor that has read the last ones:
// a processor waits for some ten such lines at a time, fewer if it writes them whole. To fetch a line that it has itself,
// though not alone, does nothing.
template <class T>
inline void claim(T* numbers, int64_t count) {
    constexpr int64_t line = 64 / sizeof(T);
    for (int64_t i = 0; i < count; i += line) *(volatile T*)(numbers + i) = 0;
}

// What a tile fetches with each step: some lines, which lie together. Who reads weights once has nothing to leave in the
// larger caches; what others have there stays, also what runs between steps.
template <int Lines, bool Once>
struct Fetch {
    const char* at;
    int64_t stride;

    void operator()() {
        for (int line = 0; line < Lines; ++line) {
            if constexpr (Once) fetch_once(at + line * 64);
            else fetch(at + line * 64);
        }
        at += stride;
    }
};

// Who reads weights alone fetches them shortly before.
template <int Lines>
using FetchOwn = Fetch<Lines, true>;

// Tiles that share a part of a panel fetch the next one together, each some of its lines; or keys and values. Each line
// once: to fetch one that is on its way already costs as much as the first time.
template <int Lines>
using FetchNext = Fetch<Lines, false>;

// Two lines of keys and values with each step, of different places.
struct FetchBeside {
    const char *at, *other;
    int64_t stride;

    void operator()() {
        fetch(at);
        fetch(other);
        at += stride;
        other += stride;
    }
};

// Of keys and values, what one product fetches. A layer's part of a block is fetched in `runs` of `run_bytes`, `at_once`
// (one or two) of them at a time. `threads` walk over the blocks, each from a place of its own: what is fetched first is
// what each begins with.
struct Stream {
    const char* base = nullptr;  // the layer's part of the cache's first block; null: there is nothing to fetch
    const int64_t* blocks;
    int64_t block_bytes;
    int count;  // of blocks
    int threads;
    int first, end;  // of these blocks' places in the order of fetching
    int runs;
    int64_t run_bytes, stride;
    int at_once;

    // Calls work with what is fetched in a slot from one of its steps on.
    template <class Work>
    void with_slot(int slot, int step, const Work& work) const {
        const char* at = base ? run(at_once * slot) : nullptr;
        const char* other = at && at_once > 1 ? run(at_once * slot + 1) : nullptr;
        const int64_t passed = step * stride;
        if (other) work(FetchBeside{at + passed, other + passed, stride});
        else if (at) work(FetchNext<1>{at + passed, stride});
        else work(FetchNext<0>{});
    }

private:
    const char* run(int index) const {
        const int place = first + index / runs;
        if (place >= end) return nullptr;
        const int block = (int)((int64_t)count * (place % threads) / threads) + place / threads;
        return base + blocks[block] * block_bytes + index % runs * run_bytes;
    }
};

// A product's slots: how many, and of how many steps each.
struct Slots {
    int64_t count;
    int steps;
};

// Shares the keys and values that each attention of the list reads out to the products before it, the last one first.
template <class SlotsOf>
void plan_streams(const std::vector<Op>& ops, const Step& step, int element_bytes, int threads, SlotsOf slots_of,
                  std::vector<Stream>& streams) {
    for (int i = (int)ops.size() - 1; i >= 0; --i) {
        const Op& attention = ops[i];
        if (attention.kind != kAttend) continue;
        const int64_t bytes =  // of a block
            (int64_t)attention.kv_heads * step.block_size * (attention.dim + attention.value_dim) * element_bytes;
        int left = (int)std::min<int64_t>(step.block_count, kFetchedBytes / bytes);
        int64_t room = 0;
        auto each = [&](auto use) {
            for (int j = i - 1; j >= 0 && ops[j].kind != kAttend; --j) {
                if (ops[j].kind != kLinear || ops[j].experts) continue;
                const Slots slots = slots_of(ops[j]);
                if (slots.count > 0) use(j, slots, (int)((bytes + slots.steps * 64 - 1) / (slots.steps * 64)));
            }
        };
        each([&](int, const Slots& slots, int runs) { room += slots.count / runs; });
        const int at_once = room < left ? 2 : 1;
        each([&](int j, const Slots& slots, int runs) {
            const int64_t run_bytes = (bytes / runs + 63) / 64 * 64;
            const int first = (int)std::max<int64_t>(0, left - slots.count * at_once / runs);
            streams[j] = {(const char*)attention.keys, step.blocks, step.block_bytes, step.block_count, threads, first,
                          left, runs, run_bytes, (run_bytes + slots.steps - 1) / slots.steps, at_once};
            left = first;
        });
    }
}

}  // namespace djl
