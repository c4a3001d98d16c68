// How a row's token is chosen, and what has been found.

#pragma once

#include <cmath>
#include <cstdint>

#include "formats.h"
#include "gumbel.h"

namespace djl {

enum ChoiceMode : int32_t { kGiven, kBest, kDraw };

constexpr int64_t kNoToken = -1;    // NO_TOKEN of sequence.py: the scores are NaN
constexpr int64_t kUndecided = -2;  // UNDECIDED of choices.py: only all logits tell it

// One row's choice; the i-th is for row i of the logits. Mirrored in pool.py.
struct Choice {
    int64_t changed;  // row of the changed scores to choose from; -1: choose from the logits
    int64_t token;    // out; in, if it is given
    const int64_t* occurred;  // (occurrences,) tokens to penalize,
    const float* counts;      // and how often each was generated
    uint32_t keys[2];         // of the row's noise
    int32_t mode;
    int32_t wants_logprob;
    int32_t alternatives;  // best tokens to report beside the chosen one; only with `wants_logprob`
    int32_t top_k;         // 0: no bound
    int32_t occurrences;
    float top_p, min_p, inverse_temperature;
    float repetition, presence, frequency;
    float logprob;  // out
};

namespace {

// Whether only some leading tokens are drawn from.
inline bool is_bounded(const Choice& choice) { return choice.top_k || choice.top_p < 1 || choice.min_p > 0; }

inline bool draws_from_all(const Choice& choice) { return choice.mode == kDraw && !is_bounded(choice); }

inline bool draws_in_bounds(const Choice& choice) { return choice.mode == kDraw && is_bounded(choice); }

// What a draw compares tokens by: scores at its temperature plus noise. In fp32, noise has digits next to the best scores;
// where these may be large, they are measured from the row's greatest one.
struct Comparison {
    float factor, top;
    const uint32_t (&keys)[2];

    // Args: top: the row's greatest score; unused by draws from all tokens, but at the coldest temperatures.
    Comparison(const Choice& choice, float top)
        : factor(choice.inverse_temperature), top(measures(choice) ? top : 0), keys(choice.keys) {}

    static bool measures(const Choice& choice) { return is_bounded(choice) || choice.inverse_temperature > 100; }

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
