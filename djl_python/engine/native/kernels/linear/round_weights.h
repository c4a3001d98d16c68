// Rounds bf16 weights to 8 bits for a product that tells nearly what theirs is, and says by how much rounding changed them.

#pragma once

#include <algorithm>
#include <cstring>

#include "linear/integer_linear.h"
#include "program.h"
#include "thread_pool.h"
#include "vectors/formats.h"

namespace djl {
namespace {

// Calls work(group, four vectors of a column's group, zeros beyond its end) for each group.
template <class Work>
inline void for_each_group(const BF16::T* column, int k, Work work) {
    for (int first = 0; first < k; first += kGroup) {
        Floats w[4];
        for (int v = 0; v < 4; ++v) w[v] = BF16::load(column + first + v * 16, lanes_of(k - first - v * 16));
        work(first / kGroup, w);
    }
}

// The greatest magnitude becomes 127. The scale is then that of the least error: what is left of an error has nothing of the
// weights, so that it favours no column.
inline void round_weights(Run& run, int index, const RoundWeightsOp& op) {
    const int panels = panel_count(op.n), groups = group_count(op.k);
    run.parallel_for_ordered(index, panels, [&](int panel) {
        auto* lanes = (uint32_t*)((char*)op.out + panel * panel_bytes<Int8>(groups));
        for (int g = 0; g < groups; ++g) op.weight_squares[g * panels + panel] = op.error_squares[g * panels + panel] = 0;
        for (int c = 0; c < kPanel; ++c) {
            const bool there = panel * kPanel + c < op.n;
            const auto* column = (const BF16::T*)op.in + ((int64_t)panel * kPanel + c) * op.k;
            const int k = there ? op.k : 0;
            Floats greatest = Floats{}, products = Floats{}, squares = Floats{};
            for_each_group(column, k, [&](int, const Floats (&w)[4]) {
                for (int v = 0; v < 4; ++v) greatest = max(greatest, abs(w[v]));
            });
            const float magnitude = max_lane(greatest);
            const Floats inverse = floats(magnitude > 0 ? 127.0f / magnitude : 0.0f);
            for (int i = 0; i < groups * kQuads && !there; ++i) lanes[i * kPanel + c] = Int8::zero * 0x1010101u;
            for_each_group(column, k, [&](int g, const Floats (&w)[4]) {
                Ints codes[4];
                for (int v = 0; v < 4; ++v) {
                    codes[v] = to_ints(w[v] * inverse);
                    const Floats rounded = to_floats(codes[v]);
                    products = fma(rounded, w[v], products);
                    squares = fma(rounded, rounded, squares);
                }
                alignas(64) int8_t bytes[kGroup];
                store_bytes(bytes, codes);
                for (int q = 0; q < kQuads; ++q) {
                    uint32_t lane;
                    memcpy(&lane, bytes + 4 * q, sizeof lane);
                    lanes[(g * kQuads + q) * kPanel + c] = lane ^ Int8::zero * 0x1010101u;
                }
            });
            const float scale = sum_of_lanes(products) / std::max(1.0f, sum_of_lanes(squares));
            op.scales[panel * kPanel + c] = scale;
            for_each_group(column, k, [&](int g, const Floats (&w)[4]) {
                Floats weights = Floats{}, errors = Floats{};
                for (int v = 0; v < 4; ++v) {
                    const Floats off = fma(round_to_whole(w[v] * inverse), floats(scale), -w[v]);
                    weights = fma(w[v], w[v], weights);
                    errors = fma(off, off, errors);
                }
                float& weight = op.weight_squares[g * panels + panel];
                float& error = op.error_squares[g * panels + panel];
                weight = std::max(weight, sum_of_lanes(weights));
                error = std::max(error, sum_of_lanes(errors));
            });
        }
    });
}

}  // namespace
}  // namespace djl
