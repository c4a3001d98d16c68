// Attention with vectors, some queries at a time.

#pragma once

#include <algorithm>

#include "attention/kv_pieces.h"
#include "program.h"
#include "vectors/formats.h"

namespace djl {
namespace {

// Queries that are scored, and whose values are mixed, together.
constexpr int kMaxQueriesTogether = std::min(6, kSumRegisters / 2);

// Vectors of sums for each of so many (query, head) pairs: as many as registers hold, of the numbers that divide the vectors
// of common heads.
constexpr int sums_of(int pairs) { return kSumRegisters >= 4 * pairs ? 4 : kSumRegisters >= 2 * pairs ? 2 : 1; }

// Scores R (query, head) pairs against G groups of keys. With A, prefetches a piece for each group.
template <class F, int R, int G, bool A>
inline void score(const int32_t* queries, int pairs, const char* const* keys, const char* const* prefetched, float* out) {
    Floats sum[R][G];
    for (auto& one : sum)
        for (auto& group : one) group = Floats{};
    for (int p = 0; p < pairs; ++p) {
        Ints key[G];
        for (int g = 0; g < G; ++g) {
            key[g] = load_ints(keys[g] + p * 64);
            if (A) prefetch_l2(prefetched[g] + p * 64);
        }
        for (int r = 0; r < R; ++r)
            for (int g = 0; g < G; ++g) sum[r][g] = F::add_products(sum[r][g], key[g], ints(queries[r * pairs + p]));
    }
    for (int r = 0; r < R; ++r)
        for (int g = 0; g < G; ++g) store_floats(out + r * kChunkKeys + g * kKeysPerGroup, sum[r][g]);
}

template <class F, int R, bool A>
inline void score_groups(const int32_t* queries, int pairs, const Pieces& pieces, int groups, float* out) {
    constexpr int wide = R <= 2 ? sums_of(R) : 2;
    int g = 0;
    for (; g + wide <= groups; g += wide)
        score<F, R, wide, A>(queries, pairs, pieces.at + g, pieces.prefetched(g), out + g * kKeysPerGroup);
    for (; g < groups; ++g) score<F, R, 1, A>(queries, pairs, pieces.at + g, pieces.prefetched(g), out + g * kKeysPerGroup);
}

// Adds weights times values of `groups` groups for R pairs: V vectors of the value, from `vector` on. With A, prefetches a
// piece for each group, some lines with each step.
template <class F, int R, int V, bool A>
inline void mix(const int32_t* weights, const Pieces& pieces, int groups, int dim, int vector, float* sums) {
    constexpr int steps = kKeysPerGroup / F::pair;
    const int lines = dim / 16;  // of a piece, for each step
    Floats sum[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sum[r][v] = load_floats(sums + r * dim + (vector + v) * 16);
    for (int g = 0; g < groups; ++g) {
        const char* base = pieces.at[groups + g] + vector * 64;
        const char* prefetched = *pieces.prefetched(groups + g);
        for (int s = 0; s < steps; ++s) {
            for (int v = 0; v < V; ++v) {
                const Ints value = load_ints(base + v * 64);
                for (int r = 0; r < R; ++r)
                    sum[r][v] = F::add_products(sum[r][v], value, ints(weights[r * (kChunkKeys / F::pair) + g * steps + s]));
            }
            base += dim * 4;
            if (A)
                for (int line = 0; line < lines; ++line, prefetched += 64) prefetch_l2(prefetched);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) store_floats(sums + r * dim + (vector + v) * 16, sum[r][v]);
}

template <class F, int R, bool A>
inline void mix_groups(const int32_t* weights, const Pieces& pieces, int groups, int dim, float* sums) {
    constexpr int wide = sums_of(R);
    const int vectors = dim / 16;
    int v = vectors < wide ? 1 : wide;
    if (v == wide) mix<F, R, wide, A>(weights, pieces, groups, dim, 0, sums);
    else mix<F, R, 1, A>(weights, pieces, groups, dim, 0, sums);
    for (; v + wide <= vectors; v += wide) mix<F, R, wide, false>(weights, pieces, groups, dim, v, sums);
    for (; v < vectors; ++v) mix<F, R, 1, false>(weights, pieces, groups, dim, v, sums);
}

// Calls work(first, how many, whether it is the first run) for runs of up to kMaxQueriesTogether pairs.
template <class Work>
inline void for_runs(int count, const Work& work) {
    for (int first = 0; first < count; first += kMaxQueriesTogether)
        with_height<1, kMaxQueriesTogether>(std::min(kMaxQueriesTogether, count - first), [&](auto height) {
            if (first) work(first, height, std::false_type{});
            else work(first, height, std::true_type{});
        });
}

}  // namespace
}  // namespace djl
