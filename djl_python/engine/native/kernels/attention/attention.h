// Attention over the KV cache.

#pragma once

#include <algorithm>

#include "attention/attention_floats.h"
#include "attention/attention_tiles.h"
#include "attention/attention_vectors.h"
#include "attention/kv_pieces.h"
#include "attention/rope_kv_cache.h"
#include "program.h"
#include "thread_pool.h"
#include "vectors/formats.h"

namespace djl {
namespace {

constexpr int kKvPrefetchDistance = 16 << 10;  // bytes

// Attention over some of the keys, not normalized: sums (pairs of query and head, value_dim) of values, weighted relative to
// the greatest score, and the sum of the weights.
struct Partial {
    std::vector<float> sums;
    float max_score[kQueriesPerWalk], weight_sum[kQueriesPerWalk];
};

// Scratch of one thread, for one walk over the keys.
struct Scratch {
    std::vector<int32_t> queries;  // packed pairs of numbers
    std::vector<float> expanded;   // the queries in fp32
    std::vector<float> scores;     // (pairs of query and head, kChunkKeys)
    std::vector<int32_t> weights;  // made from the scores, as packed pairs of keys
    Partial partial, all;          // of one chunk, and of all chunks so far
};

// The range of keys that some tokens of a tile see; it begins with a whole group.
struct Keys {
    int64_t begin, end;
    int64_t first_chunk() const { return begin / kChunkKeys; }
    int chunks() const { return (int)((end + kChunkKeys - 1) / kChunkKeys - first_chunk()); }
};

// One more than the last key that a token sees.
inline int64_t end_of_keys(const AttentionOp& op, const StepInputs& step, int token) {
    const int64_t own = step.positions[token] + 1;
    return op.ahead ? std::min(own + op.ahead, step.lengths[token]) : own;
}

inline Keys keys_of(const AttentionOp& op, const StepInputs& step, int first, int size) {
    const int64_t end = end_of_keys(op, step, first + size - 1);
    const int64_t begin = op.window > 0 ? std::max<int64_t>(0, step.positions[first] - op.window + 1) : 0;
    return {begin - begin % kKeysPerGroup, end};
}

// How the query heads of a KV head are cut: into runs of nearly the same length, of at most kQueriesPerWalk heads.
struct HeadRuns {
    int of_kv_head, count, length;

    explicit HeadRuns(const HeadRows& rows)
        : of_kv_head(rows.heads / rows.kv_heads), count((of_kv_head + kQueriesPerWalk - 1) / kQueriesPerWalk),
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
void pack_queries(const AttentionOp& op, const Walk& walk, Scratch& s) {
    const int pairs = op.rows.dim / F::pair;
    s.queries.resize((size_t)kQueriesPerWalk * pairs);
    s.scores.resize((size_t)kQueriesPerWalk * kChunkKeys);
    s.weights.resize((size_t)kQueriesPerWalk * kChunkKeys / F::pair);
    s.partial.sums.resize((size_t)kQueriesPerWalk * op.rows.value_dim);
    s.all.sums.resize((size_t)kQueriesPerWalk * op.rows.value_dim);
    // Scores are base-2 logarithms of the weights; with a soft cap, `softmax_chunk` makes them so after applying it.
    const Floats scale = floats(op.softcap > 0 ? op.scale : op.scale * kLog2e);
    for (int q = 0; q < walk.count(); ++q) {
        const int head = walk.head + q % walk.heads;
        const float* x = op.in + (int64_t)(walk.first + q / walk.heads) * op.rows.stride + head * op.rows.dim;
        auto to = (typename F::T*)(s.queries.data() + (size_t)q * pairs);
        for (int i = 0; i < op.rows.dim; i += 16) {
            const Lanes mask = lanes_of(op.rows.dim - i);
            F::store(to + i, load_floats(x + i, mask) * scale, mask);
        }
    }
}

// Turns one query's scores of a chunk, which gain `slope` with each position, into weights relative to the greatest score.
template <class F>
inline void softmax_chunk(const AttentionOp& op, float slope, int64_t chunk, int groups, int64_t position, int64_t end,
                          float* row, typename F::T* weights, float& max_score, float& weight_sum) {
    const Floats lanes = iota();
    Floats top = floats(-INFINITY);
    // Groups that the query sees whole are taken as they are; in the others, at the ends, keys that it doesn't see are masked.
    const int64_t first_key = op.window > 0 ? std::max<int64_t>(0, position - op.window + 1) : 0;
    const int whole_from = (int)std::max<int64_t>(0, (first_key - chunk + kKeysPerGroup - 1) / kKeysPerGroup);
    const int whole_to = (int)std::min<int64_t>(groups, (end - chunk) / kKeysPerGroup);
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
            const Lanes seen = lanes_of(end - key) & ~lanes_of(first_key - key);
            x = select(seen, x, floats(-INFINITY));
        }
        if (!whole || op.softcap > 0 || slope != 0) store_floats(row + g * kKeysPerGroup, x);
        top = max(top, x);
    }
    max_score = max_lane(top);
    weight_sum = 0;
    if (max_score == -INFINITY) {  // nothing of this chunk is visible
        memset(weights, 0, (size_t)groups * kKeysPerGroup * sizeof(*weights));
        return;
    }
    Floats total = Floats{};
    for (int g = 0; g < groups; ++g) {
        const Floats e = exp2(load_floats(row + g * kKeysPerGroup) - floats(max_score));
        total = total + e;
        F::store(weights + g * kKeysPerGroup, e);
    }
    weight_sum = sum_of_lanes(total);
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
Pieces pieces_of(const AttentionOp& op, const StepInputs& step, const Place& place, const Place* next) {
    const int per_block = step.block_size / kKeysPerGroup, groups = place.groups();
    const int bytes = std::max(op.rows.dim, op.rows.value_dim) * kKeysPerGroup * (int)sizeof(typename F::T);
    Pieces pieces;
    pieces.distance = std::min({2 * groups, kChunkGroups, std::max(1, kKvPrefetchDistance / bytes)});
    auto keys_of_group = [&](const Place& of, int g) {
        const int64_t group = of.begin() / kKeysPerGroup + g;
        return key_group<F>(op.rows, step, of.walk.table[group / per_block], of.walk.kv_head, (int)(group % per_block));
    };
    for (int g = 0; g < groups; ++g) {
        auto* keys = keys_of_group(place, g);
        pieces.at[g] = (const char*)keys;
        pieces.at[groups + g] = (const char*)values_after(op.rows, keys);
    }
    const int there = next ? std::min(next->groups(), pieces.distance) : 0;
    for (int g = 0; g < pieces.distance; ++g)  // prefetching a piece that is already cached costs little
        pieces.at[2 * groups + g] = g < there ? (const char*)keys_of_group(*next, g) : pieces.at[2 * groups - 1];
    return pieces;
}

// Attention over one chunk of the keys, into the scratch's part; the queries are packed. `next` is the place after it, or null.
template <class F>
void attend_chunk(const AttentionOp& op, const StepInputs& step, const Place& place, const Place* next, Scratch& s) {
    const Walk& walk = place.walk;
    using T = typename F::T;
    const int count = walk.count(), pairs = op.rows.dim / F::pair, groups = place.groups();
    const Pieces pieces = pieces_of<F>(op, step, place, next);
    const bool in_tiles = kHasAmx && F::pair == 2 && count > kMaxQueriesTogether && op.rows.dim % kTileSteps == 0;
    const bool expanded = !in_tiles && !kMultipliesPairs && F::pair == 2 && count >= kMinExpandedQueries;
    if (in_tiles) score_in_tiles(s.queries.data(), count, pairs, pieces, groups, s.scores.data());
    else if (expanded) {
        s.expanded.resize((size_t)kQueriesPerWalk * 2 * pairs + 16);
        expand_rows((const uint16_t*)s.queries.data(), 2 * pairs, count, 2 * pairs, s.expanded.data(), 2 * pairs);
        score_expanded(s.expanded.data(), count, pairs, pieces, groups, s.scores.data());
    } else
        for_runs(count, [&](int q, auto height, auto first) {
            score_groups<F, height, first>(s.queries.data() + (size_t)q * pairs, pairs, pieces, groups,
                                           s.scores.data() + (size_t)q * kChunkKeys);
        });
    auto weights = [&](int from) { return s.weights.data() + (size_t)from * (kChunkKeys / F::pair); };
    auto sums = [&](int from) { return s.partial.sums.data() + (size_t)from * op.rows.value_dim; };
    for (int q = 0; q < count; ++q) {
        const float slope = op.slopes ? op.slopes[walk.head + q % walk.heads] * kLog2e : 0.0f;
        const int token = walk.first + q / walk.heads;
        softmax_chunk<F>(op, slope, place.begin(), groups, step.positions[token], end_of_keys(op, step, token),
                         s.scores.data() + (size_t)q * kChunkKeys, (T*)weights(q), s.partial.max_score[q],
                         s.partial.weight_sum[q]);
    }
    if (in_tiles) return mix_in_tiles(weights(0), count, pieces, groups, op.rows.value_dim, sums(0));
    if (expanded) {
        expand_rows((const uint16_t*)weights(0), kChunkKeys, count, groups * kKeysPerGroup, s.scores.data(), kChunkKeys);
        return mix_expanded(s.scores.data(), count, pieces, groups, op.rows.value_dim, sums(0));
    }
    memset(sums(0), 0, (size_t)count * op.rows.value_dim * sizeof(float));
    for_runs(count, [&](int q, auto height, auto first) {
        mix_groups<F, height, first>(weights(q), pieces, groups, op.rows.value_dim, sums(q));
    });
}

// Sets `all` to attention over no keys: zero, or the weight of the sinks.
inline void begin_attention(const AttentionOp& op, const Walk& walk, Partial& all) {
    for (int q = 0; q < walk.count(); ++q) {
        all.max_score[q] = op.sinks ? op.sinks[walk.head + q % walk.heads] * kLog2e : -INFINITY;
        all.weight_sum[q] = op.sinks ? 1.0f : 0.0f;
    }
    memset(all.sums.data(), 0, (size_t)walk.count() * op.rows.value_dim * sizeof(float));
}

// Adds a chunk's part to `all`. Chunks always have the same bounds and are added in the same order, so that a token's
// attention does not depend on what else is in the step, nor on which thread computes it.
inline void add_chunk(Partial& all, const float* max_score, const float* weight_sum, const float* sums, int count, int dim) {
    for (int q = 0; q < count; ++q) {
        if (max_score[q] == -INFINITY) continue;
        const float top = std::max(all.max_score[q], max_score[q]);
        const float old = all.max_score[q] == -INFINITY ? 0.0f : exp2f(all.max_score[q] - top);
        const float fresh = exp2f(max_score[q] - top);
        all.max_score[q] = top;
        all.weight_sum[q] = all.weight_sum[q] * old + weight_sum[q] * fresh;
        float* into = all.sums.data() + (size_t)q * dim;
        const float* from = sums + (size_t)q * dim;
        for (int i = 0; i < dim; i += 16)
            store_floats(into + i, fma(load_floats(into + i), floats(old), load_floats(from + i) * floats(fresh)));
    }
}

// out (tokens, heads * value_dim) T
template <class F>
void finish_attention(const AttentionOp& op, const Walk& walk, const Partial& all) {
    for (int q = 0; q < walk.count(); ++q) {
        const int head = walk.head + q % walk.heads;
        const int64_t row = (walk.first + q / walk.heads) * apart(op.pitch, op.rows.heads * op.rows.value_dim);
        auto out = (typename F::T*)op.out + row + head * op.rows.value_dim;
        const float inverse = all.weight_sum[q] > 0 ? 1.0f / all.weight_sum[q] : 0.0f;
        const float* sums = all.sums.data() + (size_t)q * op.rows.value_dim;
        for (int i = 0; i < op.rows.value_dim; i += 16)
            F::store(out + i, load_floats(sums + i) * floats(inverse));
    }
}

// A walk of a step. `task` numbers the tiles, and within each the KV heads' runs of query heads; the walk has up to
// `max_tokens` of the tile's tokens, after the first `done`.
inline Walk walk_of(const AttentionOp& op, const StepInputs& step, const HeadRuns& runs, int task, int done, int max_tokens) {
    const int tile = task / (op.rows.kv_heads * runs.count), kv_head = task / runs.count % op.rows.kv_heads;
    const int run = task % runs.count, before = run * runs.length;
    const int first = step.tile_start[tile] + done, size = std::min(max_tokens, step.tile_size[tile] - done);
    return {first, size, kv_head, kv_head * runs.of_kv_head + before, std::min(runs.length, runs.of_kv_head - before),
            step.blocks + step.tile_table[tile], keys_of(op, step, first, size)};
}

inline int walks_of(const AttentionOp& op, const StepInputs& step) { return step.tiles * op.rows.kv_heads * HeadRuns(op.rows).count; }

inline size_t partial_size(const AttentionOp& op) { return (size_t)kQueriesPerWalk * (op.rows.value_dim + 2); }

// Chunks of keys that each walk is divided into; 1 where there are enough walks for all threads, or too few keys, or a tile
// takes several walks.
inline int splits_of(const AttentionOp& op, const StepInputs& step, int threads) {
    if (threads == 1 || walks_of(op, step) >= kTasksPerThread * threads) return 1;
    const HeadRuns runs(op.rows);
    int chunks = 1;
    for (int tile = 0; tile < step.tiles; ++tile) {
        if (step.tile_size[tile] > runs.tokens()) return 1;
        chunks = std::max(chunks, keys_of(op, step, step.tile_start[tile], step.tile_size[tile]).chunks());
    }
    return chunks;
}

// Attention of few sequences with many keys: a task is one chunk, and the thread that finishes a walk's last chunk adds them up.
template <class F>
void attend_split(Run& run, int index, const AttentionOp& op, const StepInputs& step, int splits, Scratch& s) {
    const HeadRuns runs(op.rows);
    const int tasks = walks_of(op, step) * splits;
    const size_t size = partial_size(op);
    auto place_of = [&](int task) {
        const Walk walk = walk_of(op, step, runs, task / splits, 0, kQueriesPerWalk);
        return Place{walk, walk.keys.first_chunk() + task % splits};
    };
    run.parallel_for_ordered(index, tasks, [&](int task) {
        const int walk = task / splits, split = task % splits;
        const Place place = place_of(task);
        const int count = place.walk.count(), chunks = place.walk.keys.chunks();
        if (split >= chunks) return;
        const Place next = place_of(split + 1 < chunks ? task + 1 : std::min(task / splits * splits + splits, tasks - 1));
        pack_queries<F>(op, place.walk, s);
        attend_chunk<F>(op, step, place, next.groups() > 0 ? &next : nullptr, s);
        float* partials = run.partials.room.data() + (size_t)walk * splits * size;
        float* mine = partials + split * size;
        memcpy(mine, s.partial.max_score, count * sizeof(float));
        memcpy(mine + kQueriesPerWalk, s.partial.weight_sum, count * sizeof(float));
        memcpy(mine + 2 * kQueriesPerWalk, s.partial.sums.data(), (size_t)count * op.rows.value_dim * sizeof(float));
        if (run.partials.done[walk].fetch_add(1, std::memory_order_acq_rel) + 1 < chunks) return;
        run.partials.done[walk].store(0, std::memory_order_relaxed);
        begin_attention(op, place.walk, s.all);
        for (const float* partial = partials; partial < partials + chunks * size; partial += size)
            add_chunk(s.all, partial, partial + kQueriesPerWalk, partial + 2 * kQueriesPerWalk, count, op.rows.value_dim);
        finish_attention<F>(op, place.walk, s.all);
    });
}

template <class F>
void attend(Run& run, int index, const AttentionOp& op, const StepInputs& step) {
    thread_local Scratch s;
    if (run.splits[index] > 1) {
        attend_split<F>(run, index, op, step, run.splits[index], s);
        return;
    }
    const HeadRuns runs(op.rows);
    const int max_tokens = runs.tokens(), tasks = walks_of(op, step), of_tile = op.rows.kv_heads * runs.count;
    run.parallel_for_ordered(index, tasks, [&](int task) {
        const Walk after = walk_of(op, step, runs, std::min(task + 1, tasks - 1), 0, max_tokens);
        const Place next{after, after.keys.first_chunk()};
        for (int done = 0; done < step.tile_size[task / of_tile]; done += max_tokens) {
            Place place{walk_of(op, step, runs, task, done, max_tokens), 0};
            const Keys& keys = place.walk.keys;
            pack_queries<F>(op, place.walk, s);
            begin_attention(op, place.walk, s.all);
            for (int chunk = 0; chunk < keys.chunks(); ++chunk) {
                place.chunk = keys.first_chunk() + chunk;
                const Place further{place.walk, place.chunk + 1};
                attend_chunk<F>(op, step, place, chunk + 1 < keys.chunks() ? &further : &next, s);
                add_chunk(s.all, s.partial.max_score, s.partial.weight_sum, s.partial.sums.data(), place.walk.count(),
                          op.rows.value_dim);
            }
            finish_attention<F>(op, place.walk, s.all);
        }
    });
}

// Makes room for the partials of an attention whose walks are divided; the calling thread does it before the others walk.
inline void make_room(Run& run, int index, const AttentionOp& op, const StepInputs& step) {
    const int splits = run.splits[index] = splits_of(op, step, run.threads);
    const size_t size = splits > 1 ? (size_t)walks_of(op, step) * splits * partial_size(op) : 0;
    if (run.partials.room.size() < size) run.partials.room.resize(size + size / 2);
}

}  // namespace
}  // namespace djl
