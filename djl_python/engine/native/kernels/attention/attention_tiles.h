// Attention with tiles (amx_tiles.h): what attention_vectors.h does, for all queries of a walk at once.

#pragma once

#include "attention/kv_pieces.h"
#include "program.h"
#include "vectors/amx_tiles.h"

namespace djl {
namespace {

// Scores `count` queries, packed pairs of bf16 (count, pairs: a multiple of eight), against groups of keys, into rows of
// kChunkKeys.
inline void score_in_tiles(const int32_t* queries, int count, int pairs, const Pieces& pieces, int groups, float* out) {
    const TileBlock block(count);
    const int steps = pairs % kTileSteps ? kTileSteps / 2 : kTileSteps;
    block.shape(steps);
    for (int g = 0; g < groups; g += 2) {
        const bool two = g + 1 < groups;
        block.clear();
        for (int p = 0; p < pairs; p += steps) {
            const char* key = pieces.at[g] + p * 64;
            block.multiply<Pairs>(queries + p, pairs * 4, key, two ? pieces.at[g + 1] + p * 64 : nullptr, 64);
            for (int line = p; line < p + steps; ++line) {
                prefetch_l2(pieces.prefetched(g)[0] + line * 64);
                if (two) prefetch_l2(pieces.prefetched(g)[1] + line * 64);
            }
        }
        block.store(out + g * kKeysPerGroup, kChunkKeys * sizeof(float), two);
    }
}

// Adds up the groups' values, weighted by packed pairs of bf16 (count, kChunkKeys / 2), into sums (count, dim).
inline void mix_in_tiles(const int32_t* weights, int count, const Pieces& pieces, int groups, int dim, float* sums) {
    constexpr int steps = kKeysPerGroup / 2;
    const TileBlock block(count);
    const int vectors = dim / 16, lines = vectors * steps;  // of a piece
    block.shape(steps);
    for (int v = 0; v < vectors; v += 2) {
        const bool two = v + 1 < vectors;
        block.clear();
        for (int g = 0; g < groups; ++g) {
            const char* value = pieces.at[groups + g] + v * 64;
            block.multiply<Pairs>(weights + g * steps, kChunkKeys / 2 * 4, value, two ? value + 64 : nullptr, dim * 4);
            for (int line = 0; v == 0 && line < lines; ++line) prefetch_l2(*pieces.prefetched(groups + g) + line * 64);
        }
        block.store(sums + v * 16, dim * (int64_t)sizeof(float), two);
    }
}

}  // namespace
}  // namespace djl
