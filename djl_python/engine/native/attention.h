// Attention over the KV cache.

#pragma once

#include <algorithm>

#include "attention_pieces.h"
#include "attention_tiles.h"
#include "attention_vectors.h"
#include "formats.h"
#include "heads.h"
#include "pool.h"
#include "program.h"

namespace djl {
namespace {

constexpr int kQueriesPerWalk = 24;    // (query, head) pairs that share one walk over the keys
constexpr int kKvPrefetchDistance = 16 << 10;  // bytes

// Attention over some of the keys, not normalized: sums (pairs of query and head, value_dim) of values, weighted relative to
// the greatest score, `most`, and the total of the weights.
struct Part {
    std::vector<float> sums;
    float most[kQueriesPerWalk], total[kQueriesPerWalk];
};

// Scratch of one thread, for one walk over the keys.
struct Scratch {
    std::vector<int32_t> queries;  // packed pairs of numbers
    std::vector<float> scores;     // (pairs of query and head, kChunkKeys)
    std::vector<int32_t> weights;  // made from the scores, as packed pairs of keys
    Part part, all;                // of one chunk, and of all chunks so far
};

// The range of keys that some tokens of a tile see; it begins with a whole group.
struct Keys {
    int64_t begin, end;
    int64_t first_chunk() const { return begin / kChunkKeys; }
    int chunks() const { return (int)((end + kChunkKeys - 1) / kChunkKeys - first_chunk()); }
};

inline Keys keys_of(const Op& op, const Step& step, int first, int size) {
    const int64_t end = step.positions[first + size - 1] + 1;
    const int64_t begin = op.window > 0 ? std::max<int64_t>(0, step.positions[first] - op.window + 1) : 0;
    return {begin - begin % kKeysPerGroup, end};
}

// How the query heads of a KV head are cut: into runs of nearly the same length, of at most kQueriesPerWalk heads.
struct HeadRuns {
    int of_kv_head, count, length;

    explicit HeadRuns(const Op& op)
        : of_kv_head(op.heads / op.kv_heads), count((of_kv_head + kQueriesPerWalk - 1) / kQueriesPerWalk),
          length((of_kv_head + count - 1) / count) {}

    int tokens() const { return kQueriesPerWalk / length; }  // of a walk, at most
};

// Tokens of a tile and a run of a KV head's query heads: up to kQueriesPerWalk (query, head) pairs that share one walk over
// the keys.
struct Walk {
    int first, size, kv_head;
    int head, heads;  // the first query head, and how many
    const int64_t* table;
    Keys keys;

    int count() const { return size * heads; }
};

template <class F>
void pack_queries(const Op& op, const Walk& walk, Scratch& s) {
    const int pairs = op.dim / F::pair;
    s.queries.resize((size_t)kQueriesPerWalk * pairs);
    s.scores.resize((size_t)kQueriesPerWalk * kChunkKeys);
    s.weights.resize((size_t)kQueriesPerWalk * kChunkKeys / F::pair);
    s.part.sums.resize((size_t)kQueriesPerWalk * op.value_dim);
    s.all.sums.resize((size_t)kQueriesPerWalk * op.value_dim);
    // Scores are base-2 logarithms of the weights; with a soft cap, `weigh` makes them so after applying it.
    const Floats scale = floats(op.softcap > 0 ? op.scale : op.scale * kLog2e);
    for (int q = 0; q < walk.count(); ++q) {
        const int head = walk.head + q % walk.heads;
        const float* x = (const float*)op.in + (int64_t)(walk.first + q / walk.heads) * op.stride + head * op.dim;
        auto to = (typename F::T*)(s.queries.data() + (size_t)q * pairs);
        for (int i = 0; i < op.dim; i += 16) {
            const Lanes mask = lanes_of(op.dim - i);
            F::store(to + i, load_floats(x + i, mask) * scale, mask);
        }
    }
}

// Turns one query's scores of a chunk, which gain `slope` with each position, into weights relative to the greatest score.
template <class F>
inline void weigh(const Op& op, float slope, int64_t chunk, int groups, int64_t position, float* row,
                  typename F::T* weights, float& most, float& sum) {
    const Floats lanes = iota();
    Floats top = floats(-INFINITY);
    // Groups that the query sees whole are taken as they are; in the others, at the ends, keys that it doesn't see are masked.
    const int64_t first_key = op.window > 0 ? std::max<int64_t>(0, position - op.window + 1) : 0;
    const int whole_from = (int)std::max<int64_t>(0, (first_key - chunk + kKeysPerGroup - 1) / kKeysPerGroup);
    const int whole_to = (int)std::min<int64_t>(groups, (position + 1 - chunk) / kKeysPerGroup);
    for (int g = 0; g < groups; ++g) {
        Floats x = load_floats(row + g * kKeysPerGroup);
        const bool whole = g >= whole_from && g < whole_to;
        if (op.softcap > 0) {
            x = tanh(x / floats(op.softcap));
            x = x * floats(op.softcap * kLog2e);
        }
        if (slope != 0) {
            const Floats distance = lanes + floats((float)(chunk + g * kKeysPerGroup - position));
            x = fma(distance, floats(slope), x);
        }
        if (!whole) {
            const int64_t key = chunk + g * kKeysPerGroup;
            const Lanes seen = lanes_of(position + 1 - key) & ~lanes_of(first_key - key);
            x = select(seen, x, floats(-INFINITY));
        }
        if (!whole || op.softcap > 0 || slope != 0) store_floats(row + g * kKeysPerGroup, x);
        top = max(top, x);
    }
    most = max_lane(top);
    sum = 0;
    if (most == -INFINITY) {  // nothing of this chunk is visible
        memset(weights, 0, (size_t)groups * kKeysPerGroup * sizeof(*weights));
        return;
    }
    Floats total = Floats{};
    for (int g = 0; g < groups; ++g) {
        const Floats e = exp2(load_floats(row + g * kKeysPerGroup) - floats(most));
        total = total + e;
        F::store(weights + g * kKeysPerGroup, e);
    }
    sum = sum_of_lanes(total);
}

// A chunk of a walk.
struct Place {
    Walk walk;
    int64_t chunk;
    int64_t begin() const { return std::max(walk.keys.begin, chunk * kChunkKeys); }
    int64_t end() const { return std::min(walk.keys.end, (chunk + 1) * kChunkKeys); }
    int groups() const { return (int)((end() - begin() + kKeysPerGroup - 1) / kKeysPerGroup); }
};

// The pieces that a place's chunk reads, and the first keys of `next`, if there is one.
template <class F>
Pieces pieces_of(const Op& op, const Step& step, const Place& place, const Place* next) {
    const int per_block = step.block_size / kKeysPerGroup, groups = place.groups();
    const int bytes = std::max(op.dim, op.value_dim) * kKeysPerGroup * (int)sizeof(typename F::T);
    Pieces pieces;
    pieces.distance = std::min({2 * groups, kChunkGroups, std::max(1, kKvPrefetchDistance / bytes)});
    auto keys_of_group = [&](const Place& of, int g) {
        const int64_t group = of.begin() / kKeysPerGroup + g;
        return key_group<F>(op, step, of.walk.table[group / per_block], of.walk.kv_head, (int)(group % per_block));
    };
    for (int g = 0; g < groups; ++g) {
        auto* keys = keys_of_group(place, g);
        pieces.at[g] = (const char*)keys;
        pieces.at[groups + g] = (const char*)values_behind(op, keys);
    }
    const int there = next ? std::min(next->groups(), pieces.distance) : 0;
    for (int g = 0; g < pieces.distance; ++g)  // prefetching a piece that is already cached costs little
        pieces.at[2 * groups + g] = g < there ? (const char*)keys_of_group(*next, g) : pieces.at[2 * groups - 1];
    return pieces;
}

// Attention over one chunk of the keys, into the scratch's part; the queries are packed. `next` is the place after it, or null.
template <class F>
void attend_chunk(const Op& op, const Step& step, const Place& place, const Place* next, Scratch& s) {
    const Walk& walk = place.walk;
    using T = typename F::T;
    const int count = walk.count(), pairs = op.dim / F::pair, groups = place.groups();
    const Pieces pieces = pieces_of<F>(op, step, place, next);
    const bool in_tiles = kHasAmx && F::pair == 2 && count > kHigh && op.dim % kTileSteps == 0;
    if (in_tiles) score_in_tiles(s.queries.data(), count, pairs, pieces, groups, s.scores.data());
    else
        for_runs(count, [&](int q, auto height, auto first) {
            score_groups<F, height, first>(s.queries.data() + (size_t)q * pairs, pairs, pieces, groups,
                                           s.scores.data() + (size_t)q * kChunkKeys);
        });
    auto weights = [&](int from) { return s.weights.data() + (size_t)from * (kChunkKeys / F::pair); };
    auto sums = [&](int from) { return s.part.sums.data() + (size_t)from * op.value_dim; };
    for (int q = 0; q < count; ++q) {
        const float slope = op.slopes ? op.slopes[walk.head + q % walk.heads] * kLog2e : 0.0f;
        weigh<F>(op, slope, place.begin(), groups, step.positions[walk.first + q / walk.heads],
                 s.scores.data() + (size_t)q * kChunkKeys, (T*)weights(q), s.part.most[q], s.part.total[q]);
    }
    if (in_tiles) return mix_in_tiles(weights(0), count, pieces, groups, op.value_dim, sums(0));
    memset(sums(0), 0, (size_t)count * op.value_dim * sizeof(float));
    for_runs(count, [&](int q, auto height, auto first) {
        mix_groups<F, height, first>(weights(q), pieces, groups, op.value_dim, sums(q));
    });
}

// Sets `all` to attention over no keys: zero, or the weight of the sinks.
inline void begin_attention(const Op& op, const Walk& walk, Part& all) {
    for (int q = 0; q < walk.count(); ++q) {
        all.most[q] = op.sinks ? op.sinks[walk.head + q % walk.heads] * kLog2e : -INFINITY;
        all.total[q] = op.sinks ? 1.0f : 0.0f;
    }
    memset(all.sums.data(), 0, (size_t)walk.count() * op.value_dim * sizeof(float));
}

// Adds a chunk's part to `all`. Chunks always have the same bounds and are added in the same order, so that a token's
// attention does not depend on what else is in the step, nor on which thread computes it.
inline void add_chunk(Part& all, const float* most, const float* total, const float* sums, int count, int dim) {
    for (int q = 0; q < count; ++q) {
        if (most[q] == -INFINITY) continue;
        const float top = std::max(all.most[q], most[q]);
        const float old = all.most[q] == -INFINITY ? 0.0f : exp2f(all.most[q] - top), fresh = exp2f(most[q] - top);
        all.most[q] = top;
        all.total[q] = all.total[q] * old + total[q] * fresh;
        float* into = all.sums.data() + (size_t)q * dim;
        const float* from = sums + (size_t)q * dim;
        for (int i = 0; i < dim; i += 16)
            store_floats(into + i, fma(load_floats(into + i), floats(old), load_floats(from + i) * floats(fresh)));
    }
}

// out (tokens, heads * value_dim) T
template <class F>
void finish_attention(const Op& op, const Walk& walk, const Part& all) {
    for (int q = 0; q < walk.count(); ++q) {
        const int head = walk.head + q % walk.heads;
        const int64_t row = (walk.first + q / walk.heads) * pitch_of(op, op.heads * op.value_dim);
        auto out = (typename F::T*)op.out + row + head * op.value_dim;
        const float inverse = all.total[q] > 0 ? 1.0f / all.total[q] : 0.0f;
        const float* sums = all.sums.data() + (size_t)q * op.value_dim;
        for (int i = 0; i < op.value_dim; i += 16)
            F::store(out + i, load_floats(sums + i) * floats(inverse));
    }
}

// A walk of a step. `task` numbers the tiles, and within each the KV heads' runs of query heads; the walk has up to `most` of
// the tile's tokens, after the first `done`.
inline Walk walk_of(const Op& op, const Step& step, const HeadRuns& runs, int task, int done, int most) {
    const int tile = task / (op.kv_heads * runs.count), kv_head = task / runs.count % op.kv_heads;
    const int run = task % runs.count, before = run * runs.length;
    const int first = step.tile_start[tile] + done, size = std::min(most, step.tile_size[tile] - done);
    return {first, size, kv_head, kv_head * runs.of_kv_head + before, std::min(runs.length, runs.of_kv_head - before),
            step.blocks + step.tile_table[tile], keys_of(op, step, first, size)};
}

inline int walks_of(const Op& op, const Step& step) { return step.tiles * op.kv_heads * HeadRuns(op).count; }

inline size_t part_size(const Op& op) { return (size_t)kQueriesPerWalk * (op.value_dim + 2); }

// Chunks of keys that each walk is divided into; 1 where there are enough walks for all threads, or too few keys, or a tile
// takes several walks.
inline int shares_of(const Op& op, const Step& step, int threads) {
    if (threads == 1 || walks_of(op, step) >= kTasksPerThread * threads) return 1;
    const HeadRuns runs(op);
    int chunks = 1;
    for (int tile = 0; tile < step.tiles; ++tile) {
        if (step.tile_size[tile] > runs.tokens()) return 1;
        chunks = std::max(chunks, keys_of(op, step, step.tile_start[tile], step.tile_size[tile]).chunks());
    }
    return chunks;
}

// Attention of few sequences with many keys: a task is one chunk, and the thread that finishes a walk's last chunk adds them up.
template <class F>
void attend_shared(Run& run, int index, const Op& op, const Step& step, int shares, Scratch& s) {
    const HeadRuns runs(op);
    const int tasks = walks_of(op, step) * shares;
    const size_t size = part_size(op);
    auto place_of = [&](int task) {
        const Walk walk = walk_of(op, step, runs, task / shares, 0, kQueriesPerWalk);
        return Place{walk, walk.keys.first_chunk() + task % shares};
    };
    run.parallel_for_ordered(index, tasks, [&](int task) {
        const int walk = task / shares, share = task % shares;
        const Place place = place_of(task);
        const int count = place.walk.count(), chunks = place.walk.keys.chunks();
        if (share >= chunks) return;
        const Place next = place_of(share + 1 < chunks ? task + 1 : std::min(task / shares * shares + shares, tasks - 1));
        pack_queries<F>(op, place.walk, s);
        attend_chunk<F>(op, step, place, next.groups() > 0 ? &next : nullptr, s);
        float* parts = run.parts.room.data() + (size_t)walk * shares * size;
        float* mine = parts + share * size;
        memcpy(mine, s.part.most, count * sizeof(float));
        memcpy(mine + kQueriesPerWalk, s.part.total, count * sizeof(float));
        memcpy(mine + 2 * kQueriesPerWalk, s.part.sums.data(), (size_t)count * op.value_dim * sizeof(float));
        if (run.parts.done[walk].fetch_add(1, std::memory_order_acq_rel) + 1 < chunks) return;
        run.parts.done[walk].store(0, std::memory_order_relaxed);
        begin_attention(op, place.walk, s.all);
        for (const float* part = parts; part < parts + chunks * size; part += size)
            add_chunk(s.all, part, part + kQueriesPerWalk, part + 2 * kQueriesPerWalk, count, op.value_dim);
        finish_attention<F>(op, place.walk, s.all);
    });
}

// Causal attention of the step's tokens. in: `heads`' output; out (tokens, heads * value_dim) T.
template <class F>
void attend(Run& run, int index, const Op& op, const Step& step) {
    thread_local Scratch s;
    if (run.shares[index] > 1) {
        attend_shared<F>(run, index, op, step, run.shares[index], s);
        return;
    }
    const HeadRuns runs(op);
    const int most = runs.tokens(), tasks = walks_of(op, step), of_tile = op.kv_heads * runs.count;
    run.parallel_for_ordered(index, tasks, [&](int task) {
        const Walk after = walk_of(op, step, runs, std::min(task + 1, tasks - 1), 0, most);
        const Place next{after, after.keys.first_chunk()};
        for (int done = 0; done < step.tile_size[task / of_tile]; done += most) {
            Place place{walk_of(op, step, runs, task, done, most), 0};
            const Keys& keys = place.walk.keys;
            pack_queries<F>(op, place.walk, s);
            begin_attention(op, place.walk, s.all);
            for (int chunk = 0; chunk < keys.chunks(); ++chunk) {
                place.chunk = keys.first_chunk() + chunk;
                const Place further{place.walk, place.chunk + 1};
                attend_chunk<F>(op, step, place, chunk + 1 < keys.chunks() ? &further : &next, s);
                add_chunk(s.all, s.part.most, s.part.total, s.part.sums.data(), place.walk.count(), op.value_dim);
            }
            finish_attention<F>(op, place.walk, s.all);
        }
    });
}

// Makes room for the parts of an attention whose walks are divided; the calling thread does it before the others walk.
inline void make_room(Run& run, int index, const Op& op, const Step& step) {
    const int shares = run.shares[index] = shares_of(op, step, run.threads);
    const size_t size = shares > 1 ? (size_t)walks_of(op, step) * shares * part_size(op) : 0;
    if (run.parts.room.size() < size) run.parts.room.resize(size + size / 2);
}

}  // namespace
}  // namespace djl
