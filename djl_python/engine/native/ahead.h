// What a product fetches along the way, so that the memory is never idle and nobody waits for it.
//
// A product has cache lines to spare: with few rows for its own weights, with many, where it waits for arithmetic, also
// for the attention that follows in the list. Attention with one query a sequence waits for keys and values, and finds
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

// What a tile fetches along the way: two cache lines a step, or the same one twice.
struct Ahead {
    const char* at;
    int64_t second, stride;

    // A tile alone with its panel (Lines of 64 bytes a step) fetches the panel itself, some lines before they are read. It
    // is read once: what others have in the larger caches stays there, also what runs between steps.
    template <int Lines>
    void fetch() {
        if (Lines) {
            for (int line = 0; line < Lines; ++line) _mm_prefetch(at + kAhead + line * 64, _MM_HINT_NTA);
        } else {
            _mm_prefetch(at, _MM_HINT_T1);
            _mm_prefetch(at + second, _MM_HINT_T1);
        }
        at += Lines ? Lines * 64 : stride;
    }
};

// How many of several tiles fetch the next panel: the first ones, one or two of a step's lines each.
inline int lines_each(int tiles, int lines) { return tiles < 4 ? std::min(2, lines) : 1; }
inline int spare_tiles(int tiles, int lines) {
    const int each = lines_each(tiles, lines);
    return tiles == 1 ? 0 : std::max(0, tiles - (lines + each - 1) / each);
}

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

    // A tile that has nothing else to fetch is a slot.
    Ahead slot(int slot, const char* otherwise) const {
        const char* one = base ? run(at_once * slot) : nullptr;
        if (!one) return {otherwise, 0, 0};
        const char* other = at_once > 1 ? run(at_once * slot + 1) : nullptr;
        return {one, other ? other - one : 0, stride};
    }

private:
    const char* run(int index) const {
        const int place = first + index / runs;
        if (place >= end) return nullptr;
        const int block = (int)((int64_t)count * (place % threads) / threads) + place / threads;
        return base + blocks[block] * block_bytes + index % runs * run_bytes;
    }
};

// What a tile that shares `steps` of a panel with others fetches. A step has `lines` lines.
inline Ahead ahead_of(int tile, int tiles, const char* panel, const char* next, int64_t steps, int lines,
                      const Stream& stream, int slot) {
    const int each = lines_each(tiles, lines), fetched = tile * each;
    if (tiles == 1) return {panel, 0, 0};
    if (fetched >= lines) return stream.slot(slot, panel);
    if (!next) return {panel, 0, 0};
    return {next + fetched * steps * 64, (each - 1) * 64, each * 64};
}

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
        // One line a step is what the memory gives beside a product that waits for nothing.
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

}  // namespace
