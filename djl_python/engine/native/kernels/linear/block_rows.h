// Activations rounded for products with weights in blocks (block_linear.h): to 8 bits, with a scale for every 32 numbers.

#pragma once

#include "prefetch.h"
#include "program.h"
#include "thread_pool.h"
#include "vectors/formats.h"

namespace djl {
namespace {

constexpr int kBlock = 32;         // numbers of a row that share a scale, as of a weight's
constexpr int kBlockQuads = kBlock / 4;

inline int block_count(int k) { return (k + kBlock - 1) / kBlock; }

// A rounded row: all its codes, from -127 to 127; each block's scale; and the sums of the rounded numbers, which are codes
// times scale: of each half of a block, and then of each block. A row is an odd number of cache lines, as an IntegerRow is.
struct BlockRow {
    int8_t* codes;
    float *scales, *halves, *sums;
};

inline int64_t block_row_bytes(int blocks) {
    const int64_t lines = ((int64_t)blocks * (kBlock + 4 * sizeof(float)) + 63) / 64;
    return (lines | 1) * 64;
}

inline BlockRow block_row(void* rows, int64_t row, int blocks) {
    auto at = (char*)rows + row * block_row_bytes(blocks);
    auto scales = (float*)(at + (int64_t)blocks * kBlock);
    return {(int8_t*)at, scales, scales + blocks, scales + 3 * blocks};
}

// Rounds blocks `first` to before `end` of a row x (k,) T. A block's greatest magnitude becomes 127.
template <class F>
inline void quantize_blocks(const typename F::T* x, int k, int first, int end, const BlockRow& row) {
    take_ownership(row.codes + first * kBlock, (int64_t)(end - first) * kBlock);
    for (int b = first; b < end; ++b) {
        Floats v[2], zeros = Floats{};
        for (int i = 0; i < 2; ++i) {
            v[i] = F::load(x + b * kBlock + i * 16, lanes_of(k - b * kBlock - i * 16));
            zeros = fma(v[i], Floats{}, zeros);  // but for infinities and NaN
        }
        const float magnitude = max_lane(max(abs(v[0]), abs(v[1])));
        const Floats inverse = floats(magnitude > 0 ? 127.0f / magnitude : 0.0f);
        const float scale = is_equal(zeros, Floats{}) == lanes_of(16) ? magnitude / 127.0f : NAN;
        const Ints codes[4] = {to_ints(v[0] * inverse), to_ints(v[1] * inverse), Ints{}, Ints{}};
        alignas(64) int8_t bytes[4 * 16];
        store_bytes(bytes, codes);
        memcpy(row.codes + b * kBlock, bytes, kBlock);
        row.scales[b] = scale;
        for (int i = 0; i < 2; ++i) row.halves[2 * b + i] = scale * (float)sum_of_lanes(codes[i]);
        row.sums[b] = scale * (float)(sum_of_lanes(codes[0]) + sum_of_lanes(codes[1]));
    }
}

}  // namespace
}  // namespace djl
