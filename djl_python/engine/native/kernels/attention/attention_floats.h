// Attention where bf16 is multiplied as fp32: what attention_vectors.h does, for all queries of a walk at once. Keys, values
// and what they are multiplied with are expanded to fp32 once for all queries, and not for each few of them again. Products
// are added in the same order: a query's attention is the same, to the last bit, whether it is alone or not.

#pragma once

#include <algorithm>

#include "attention/kv_pieces.h"
#include "linear/float_linear.h"
#include "program.h"
#include "vectors/formats.h"

namespace djl {
namespace {

constexpr int kMinExpandedQueries = 8;  // seven, as in decoding with seven heads for a key head, gain nothing

// A tile's place in rows of sums that are `pitch` numbers apart. Where nothing has `begun`, products are added to zero.
struct PitchedSums {
    float* at;
    int64_t pitch;
    bool begun;

    Floats load(int row, int vector) const {
        return load_floats(at + row * pitch + vector * 16, begun ? 0xffff : 0);
    }
    void store(int row, int vector, Floats x) const { store_floats(at + row * pitch + vector * 16, x); }
};

// `count` rows of bf16 numbers, `pitch` apart, as fp32 in rows that are `to_pitch` apart. `numbers` is a multiple of 16, or
// rows have room for as many.
inline void expand_rows(const uint16_t* from, int64_t pitch, int count, int numbers, float* to, int64_t to_pitch) {
    for (int row = 0; row < count; ++row)
        for (int i = 0; i < numbers; i += 16)
            store_floats(to + row * to_pitch + i, load_bf16(from + row * pitch + i, lanes_of(numbers - i)));
}

template <int R, int V>
__attribute__((noinline)) void expanded_tile(Rows<R> rows, const float* columns, int steps, PitchedSums sums) {
    float_tile<F32, R, V, 2>(rows, StoredReader<V * 64>{(const char*)columns}, steps, [] {}, sums);
}

// Multiplies `count` rows with some steps of V vectors of columns, which are expanded.
template <int V>
void multiply_rows(const float* rows, int64_t pitch, int count, const float* columns, int steps, PitchedSums sums) {
    const int height = evenly(count, kExpandedTile.rows);
    for (int row = 0; row < count; row += height, rows += height * pitch, sums.at += height * sums.pitch)
        with_height<1, kExpandedTile.rows>(std::min(height, count - row), [&](auto known) {
            expanded_tile<known, V>(Rows<known>(rows, pitch * sizeof(float)), columns, steps, sums);
        });
}

// Scores queries (count, 2 * pairs) against V groups of keys, from group `group` on.
template <int V>
void score_expanded_groups(const float* queries, int count, int pairs, const Pieces& pieces, int group, float* out) {
    alignas(64) float keys[kL1Steps * 2 * V * 16];
    for (int from = 0, steps; from < pairs; from += steps) {
        steps = evenly(pairs - from, kL1Steps);
        float* to = keys;
        for (int pair = from; pair < from + steps; ++pair, to += 2 * V * 16) {
            Ints key[V];
            for (int v = 0; v < V; ++v) {
                key[v] = load_ints(pieces.at[group + v] + pair * 64);
                prefetch_l2(pieces.prefetched(group)[v] + pair * 64);
            }
            store_expanded(to, key);
        }
        multiply_rows<V>(queries + 2 * from, 2 * pairs, count, keys, steps, {out + group * kKeysPerGroup, kChunkKeys, from > 0});
    }
}

// Scores queries (count, 2 * pairs) against groups of keys, into rows of kChunkKeys.
inline void score_expanded(const float* queries, int count, int pairs, const Pieces& pieces, int groups, float* out) {
    constexpr int wide = kExpandedTile.vectors;
    int g = 0;
    for (; g + wide <= groups; g += wide) score_expanded_groups<wide>(queries, count, pairs, pieces, g, out);
    for (; g < groups; ++g) score_expanded_groups<1>(queries, count, pairs, pieces, g, out);
}

// Adds up V vectors of the groups' values, weighted by rows of kChunkKeys, into sums (count, dim).
template <int V>
void mix_expanded_vectors(const float* weights, int count, const Pieces& pieces, int groups, int dim, int vector, float* sums) {
    constexpr int steps = kKeysPerGroup / 2, together = kL1Steps / steps;
    const int lines = dim / 16 * steps;  // of a piece
    alignas(64) float values[together * steps * 2 * V * 16];
    for (int first = 0, count_together; first < groups; first += count_together) {
        count_together = std::min(together, groups - first);
        float* to = values;
        for (int g = first; g < first + count_together; ++g) {
            const char* at = pieces.at[groups + g] + vector * 64;
            for (int s = 0; s < steps; ++s, at += dim * 4, to += 2 * V * 16) {
                Ints value[V];
                for (int v = 0; v < V; ++v) value[v] = load_ints(at + v * 64);
                store_expanded(to, value);
            }
            for (int line = 0; vector == 0 && line < lines; ++line)
                prefetch_l2(*pieces.prefetched(groups + g) + line * 64);
        }
        multiply_rows<V>(weights + first * kKeysPerGroup, kChunkKeys, count, values, count_together * steps,
                         {sums + vector * 16, dim, first > 0});
    }
}

// Adds up the groups' values, weighted by rows of kChunkKeys, into sums (count, dim).
inline void mix_expanded(const float* weights, int count, const Pieces& pieces, int groups, int dim, float* sums) {
    constexpr int wide = kExpandedTile.vectors;
    const int vectors = dim / 16;
    int v = 0;
    for (; v + wide <= vectors; v += wide) mix_expanded_vectors<wide>(weights, count, pieces, groups, dim, v, sums);
    for (; v < vectors; ++v) mix_expanded_vectors<1>(weights, count, pieces, groups, dim, v, sums);
}

}  // namespace
}  // namespace djl
