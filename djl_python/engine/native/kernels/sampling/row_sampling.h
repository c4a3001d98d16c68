// How a row's token is sampled: what its bounds are, and what a draw compares tokens by.

#pragma once

#include <cmath>
#include <cstdint>

#include "abi.h"
#include "sampling/gumbel.h"
#include "vectors/formats.h"

namespace djl {

namespace {

// Whether only some leading tokens are drawn from.
inline bool is_bounded(const RowSampling& sampling) { return sampling.top_k || sampling.top_p < 1 || sampling.min_p > 0; }

inline bool draws_from_all(const RowSampling& sampling) { return sampling.mode == kDraw && !is_bounded(sampling); }

inline bool draws_in_bounds(const RowSampling& sampling) { return sampling.mode == kDraw && is_bounded(sampling); }

// What a draw compares tokens by: scores at its temperature plus noise. In fp32, noise has digits next to the best scores;
// where these may be large, they are measured from the row's greatest one.
struct Comparison {
    float factor, top;
    const uint32_t (&keys)[2];

    // Args: top: the row's greatest score; unused by draws from all tokens, but at the coldest temperatures.
    Comparison(const RowSampling& sampling, float top)
        : factor(sampling.inverse_temperature), top(measures(sampling) ? top : 0), keys(sampling.keys) {}

    static bool measures(const RowSampling& sampling) { return is_bounded(sampling) || sampling.inverse_temperature > 100; }

    Floats operator()(Floats scores, Ints tokens) const { return with(scores, uniforms(keys, tokens)); }

    Floats with(Floats scores, Floats uniforms) const {
        return fma(scores - floats(top), floats(factor), noise_of(uniforms));
    }

    // What a token's uniform number must be below, or its score plus noise doesn't exceed `bar`.
    Floats limit(Floats scores, float bar) const {
        const Floats above = fma(scores - floats(top), floats(factor), floats(-bar));
        return exp2(min(above * floats(kLog2e), floats(1.0f))) * floats(1.001f);
    }
};

// The greatest of numbers, and its place, the first among equals; minus infinity and place 0, if nothing is greater than that.
struct Greatest {
    Floats best = floats(-INFINITY);
    Ints places = Ints{};

    void take(Floats x, Ints at, Lanes lanes) {
        const Lanes better = is_greater(x, best) & lanes;
        best = select(better, x, best);
        places = select(better, at, places);
    }

    float value() const { return max_lane(best); }

    int place() const {
        float numbers[16];
        int32_t at[16];
        store_floats(numbers, best);
        store_ints(at, places);
        int lane = 0;
        for (int i = 1; i < 16; ++i)
            if (numbers[i] > numbers[lane] || (numbers[i] == numbers[lane] && at[i] < at[lane])) lane = i;
        return at[lane];
    }
};

inline Ints ints_from(int first) { return add_ints(iota_ints(), ints(first)); }

}  // namespace
}  // namespace djl
