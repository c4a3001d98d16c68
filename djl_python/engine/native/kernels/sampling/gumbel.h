// Gumbel noise: the token whose score plus noise is the greatest is one drawn with the probabilities softmax(scores).
//
// A token's noise is a hash of its number and its row's key. So a draw needs no sum over all tokens, what can't be the
// greatest needn't be known, and of some tokens alone the one is drawn that is drawn among more, if it is one of them.

#pragma once

#include <cstdint>

#include "vectors/formats.h"

namespace djl {

namespace {

// The logarithms of positive numbers, good to 2e-6.
inline Floats log2(Floats x) {
    const Ints bits = as_ints(x);
    const Floats exponent = to_floats(shift_right<23>(bits)) - floats(127.0f);
    const Floats r = as_floats((bits & ints(0x7fffff)) | ints(0x3f800000)) - floats(1.0f);
    Floats p = floats(0.020490341f);
    p = fma(p, r, floats(-0.096066234f));
    p = fma(p, r, floats(0.21558851f));
    p = fma(p, r, floats(-0.33924776f));
    p = fma(p, r, floats(0.47770593f));
    p = fma(p, r, floats(-0.72116273f));
    p = fma(p, r, floats(1.4426933f));
    return fma(p, r, exponent);
}

// A number of each of sixteen tokens, uniform in 0 to 1: 31 bits of two rounds of an integer hash (C. Wellons, "lowbias32").
inline Floats uniforms(const uint32_t (&keys)[2], Ints tokens) {
    Ints h = add_ints(tokens, ints((int32_t)keys[0]));
    h = multiply_ints(exclusive_or(h, shift_right<16>(h)), ints(0x7feb352d));
    h = exclusive_or(exclusive_or(h, shift_right<15>(h)), ints((int32_t)keys[1]));
    h = multiply_ints(h, ints((int32_t)0x846ca68b));
    h = exclusive_or(h, shift_right<16>(h));
    return (to_floats(shift_right<1>(h)) + floats(0.5f)) * floats(0x1p-31f);
}

// Noise from uniform numbers u: -log(1 - u) is exponentially distributed, minus its logarithm is Gumbel's. It is at most
// -log(u): winners have small u, where a series keeps its digits.
inline __attribute__((noinline)) Floats noise_of(Floats u) {
    Floats small = fma(u, floats(1.0f / 5), floats(1.0f / 4));
    small = fma(u, small, floats(1.0f / 3));
    small = fma(u, small, floats(1.0f / 2));
    small = fma(u * u, small, u);
    const Floats ln2 = floats(0.693147181f);
    const Floats large = -ln2 * log2(floats(1.0f) - u);
    return -ln2 * log2(select(is_greater(floats(0.125f), u), small, large));
}

}  // namespace
}  // namespace djl
