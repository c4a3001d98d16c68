// What a product fetches along the way, so that the memory is never idle and nobody waits for it.
//
// A product with few rows waits for its own weights alone. With many it waits for arithmetic, and has cache lines to spare
// for the attention that follows in the list: attention with one query a sequence waits for keys and values, and finds
// what was fetched in the last cache.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "program.h"

namespace {

constexpr int kAhead = 8192;                  // bytes of a panel fetched before they are needed
constexpr int64_t kFetchedBytes = 20 << 20;  // of keys and values, at most: they share the last cache with the weights

// What a tile fetches with each step. Whoever reads weights alone fetches Lines of them, shortly before. What others have
// in the larger caches stays there, also what runs between steps.
template <int Lines>
struct FetchOwn {
    const char* at;
    int64_t stride;

    void operator()() {
        for (int line = 0; line < Lines; ++line) _mm_prefetch(at + line * 64, _MM_HINT_NTA);
        at += stride;
    }
};

// Tiles that share a part of a panel fetch the next one together.
template <int Lines>
struct FetchNext {
    const char* at;
    int64_t stride;

    void operator()() {
        for (int line = 0; line < Lines; ++line) _mm_prefetch(at + line * 64, _MM_HINT_T1);
        at += stride;
    }
};

// And beside it keys and values.
struct FetchBeside {
    FetchNext<1> next;
    const char* at;
    int64_t stride;

    void operator()() {
        next();
        _mm_prefetch(at, _MM_HINT_T1);
        at += stride;
    }
};

// Of keys and values, what one product fetches. A layer's part of a block is fetched in `runs` of `run_bytes`. `threads`
// walk over the blocks, each from a place of its own: what is fetched first is what each begins with.
struct Stream {
    const char* base = nullptr;  // the layer's part of the cache's first block; null: there is nothing to fetch
    const int64_t* blocks;
    int64_t block_bytes;
    int count;  // of blocks
    int threads;
    int first, end;  // of these blocks' places in the order of fetching
    int runs;
    int64_t run_bytes, stride;

    // Calls work with what is fetched in a slot: a tile that has a line to spare.
    template <class Work>
    void with_slot(int slot, const FetchNext<1>& next, const Work& work) const {
        if (const char* at = base ? run(slot) : nullptr) work(FetchBeside{next, at, stride});
        else work(next);
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
        for (int j = i - 1; j >= 0 && ops[j].kind != kAttend; --j) {
            if (ops[j].kind != kLinear || ops[j].experts) continue;
            const Slots slots = slots_of(ops[j]);
            if (slots.count == 0) continue;
            const int runs = (int)((bytes + slots.steps * 64 - 1) / (slots.steps * 64));
            const int64_t run_bytes = (bytes / runs + 63) / 64 * 64;
            const int first = (int)std::max<int64_t>(0, left - slots.count / runs);
            streams[j] = {(const char*)attention.keys, step.blocks, step.block_bytes, step.block_count, threads, first,
                          left, runs, run_bytes, (run_bytes + slots.steps - 1) / slots.steps};
            left = first;
        }
    }
}

}  // namespace
