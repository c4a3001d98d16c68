// Attention by tiles, see tiles.h: what attention_vectors.h does, for all queries of a walk at once.

#pragma once

#include "attention_pieces.h"
#include "program.h"
#include "tiles.h"

namespace djl {
namespace {

// How so many queries are cut into one or two rows of tiles.
struct QueryTiles {
    int low, high;

    explicit QueryTiles(int count) : low(count > kTileRows ? (count + 1) / 2 : count), high(count - low) {}
};

// rows (low + high, steps), `rows_pitch` bytes apart, times weights: the first column of tiles and, if there is one, the
// second. Sums are those of registers 0 to 3.
inline void multiply_query_tiles(const QueryTiles& cut, const void* rows, int64_t rows_pitch, const void* weights,
                                 const void* second, int64_t weights_pitch) {
    load_tile<4>(rows, rows_pitch);
    load_tile<6>(weights, weights_pitch);
    multiply_tiles_of_pairs<0, 4, 6>();
    if (second) {
        load_tile<7>(second, weights_pitch);
        multiply_tiles_of_pairs<1, 4, 7>();
    }
    if (!cut.high) return;
    load_tile<5>((const char*)rows + cut.low * rows_pitch, rows_pitch);
    multiply_tiles_of_pairs<2, 5, 6>();
    if (second) multiply_tiles_of_pairs<3, 5, 7>();
}

inline void clear_query_tiles(const QueryTiles& cut) {
    clear_tile<0>();
    clear_tile<1>();
    if (!cut.high) return;
    clear_tile<2>();
    clear_tile<3>();
}

inline void store_query_tiles(const QueryTiles& cut, float* out, bool second, int64_t pitch) {
    char* below = (char*)out + cut.low * pitch;
    store_tile<0>(out, pitch);
    if (second) store_tile<1>(out + 16, pitch);
    if (!cut.high) return;
    store_tile<2>(below, pitch);
    if (second) store_tile<3>(below + 64, pitch);
}

// Scores of `count` queries, packed pairs of bf16 (count, pairs: a multiple of eight), against groups of keys: rows of
// kChunkKeys.
inline void score_in_tiles(const int32_t* queries, int count, int pairs, const Pieces& pieces, int groups, float* out) {
    const QueryTiles cut(count);
    const int steps = pairs % kTileSteps ? kTileSteps / 2 : kTileSteps;
    shape_tiles({cut.low, cut.high, steps});
    for (int g = 0; g < groups; g += 2) {
        const bool two = g + 1 < groups;
        clear_query_tiles(cut);
        for (int p = 0; p < pairs; p += steps) {
            const char* key = pieces.at[g] + p * 64;
            multiply_query_tiles(cut, queries + p, pairs * 4, key, two ? pieces.at[g + 1] + p * 64 : nullptr, 64);
            for (int line = p; line < p + steps; ++line) {
                fetch(pieces.fetched(g)[0] + line * 64);
                if (two) fetch(pieces.fetched(g)[1] + line * 64);
            }
        }
        store_query_tiles(cut, out + g * kKeys, two, kChunkKeys * sizeof(float));
    }
}

// Values of groups, weighed by packed pairs of bf16 (count, kChunkKeys / 2): sums (count, dim).
inline void mix_in_tiles(const int32_t* weights, int count, const Pieces& pieces, int groups, int dim, float* sums) {
    constexpr int steps = kKeys / 2;
    const QueryTiles cut(count);
    const int vectors = dim / 16, lines = vectors * steps;  // of a piece
    shape_tiles({cut.low, cut.high, steps});
    for (int v = 0; v < vectors; v += 2) {
        const bool two = v + 1 < vectors;
        clear_query_tiles(cut);
        for (int g = 0; g < groups; ++g) {
            const char* value = pieces.at[groups + g] + v * 64;
            multiply_query_tiles(cut, weights + g * steps, kChunkKeys / 2 * 4, value, two ? value + 64 : nullptr, dim * 4);
            for (int line = 0; v == 0 && line < lines; ++line) fetch(*pieces.fetched(groups + g) + line * 64);
        }
        store_query_tiles(cut, sums + v * 16, two, dim * (int64_t)sizeof(float));
    }
}

}  // namespace
}  // namespace djl
