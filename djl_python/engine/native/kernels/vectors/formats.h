// Number formats, and elementary functions in fp32.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "vectors/vectors.h"

namespace djl {
namespace {

constexpr float kLog2e = 1.44269504f;

inline Floats exp(Floats x) {
    // exp(x) = 2^n * exp(r), |r| <= ln(2)/2; a polynomial of degree 6 is good to the last bits of fp32.
    const Floats log2e = floats(1.44269504f);
    x = max(x, floats(-87.0f));
    x = min(x, floats(88.0f));
    Floats n = round_to_whole(x * log2e);
    Floats r = fma(-n, floats(0.693145752f), x);
    r = fma(-n, floats(1.42860677e-6f), r);
    Floats p = floats(1.3888889e-3f);
    p = fma(p, r, floats(8.3333333e-3f));
    p = fma(p, r, floats(4.1666667e-2f));
    p = fma(p, r, floats(1.6666667e-1f));
    p = fma(p, r, floats(0.5f));
    p = fma(p, r, floats(1.0f));
    p = fma(p, r, floats(1.0f));
    return times_power_of_two(p, n);
}

struct BF16 {
    using T = uint16_t;
    static constexpr int pair = 2;
    static constexpr Shape shape = kPairTile;
    static Floats add_products(Floats sum, Ints b, Ints a) { return add_pairs(sum, b, a); }
    static float to(T x) {
        uint32_t bits = (uint32_t)x << 16;
        float out;
        memcpy(&out, &bits, 4);
        return out;
    }
    static Floats load(const T* from, Lanes mask) { return load_bf16(from, mask); }
    static void store(T* to, Floats x) { store_bf16(to, x); }
    static void store(T* to, Floats x, Lanes mask) { store_bf16(to, x, mask); }
    // Stores sixteen numbers, each as the first (0) or second (1) of a pair.
    static void store_in_pairs(T* to, Floats x, int place) { store_bf16_in_pairs(to, x, place); }
    // 1 / (1 + exp(-x)), good to 2^-12, a tenth of what rounding the result to bf16 loses. With t = -x * log2(e), exp(-x) is
    // 2^n * 2^r, |r| <= 1/2; a polynomial of degree 3 gives 2^r to 2^-13.
    static Floats logistic(Floats x) {
        const Floats limit = floats(126.0f), t = max(min(x * floats(-kLog2e), limit), -limit);
        const Floats n = round_to_whole(t), r = t - n;
        Floats p = floats(0.0551716695f);
        p = fma(p, r, floats(0.242611125f));
        p = fma(p, r, floats(0.693260986f));
        p = fma(p, r, floats(0.999928073f));
        return reciprocal(floats(1.0f) + times_power_of_two(p, n));
    }
};

struct F32 {
    using T = float;
    static constexpr int pair = 1;
    static constexpr Shape shape = kFloatTile;
    static Floats add_products(Floats sum, Ints b, Ints a) { return fma(as_floats(b), as_floats(a), sum); }
    static float to(T x) { return x; }
    static Floats load(const T* from, Lanes mask) { return load_floats(from, mask); }
    static void store(T* to, Floats x) { store_floats(to, x); }
    static void store(T* to, Floats x, Lanes mask) { store_floats(to, x, mask); }
    static void store_in_pairs(T* to, Floats x, int) { store(to, x); }
    static Floats logistic(Floats x) { return floats(1.0f) / (floats(1.0f) + exp(-x)); }
};

// log(1 + e^x) = max(x, 0) + log(1 + y), y = e^-|x| <= 1. With s = y / (2 + y), log(1 + y) is 2 (s + s^3/3 + ...).
inline Floats softplus(Floats x) {
    const Floats y = exp(-abs(x));
    const Floats s = y / (y + floats(2.0f)), square = s * s;
    Floats p = floats(2.0f / 11);
    for (int k = 9; k > 0; k -= 2) p = fma(p, square, floats(2.0f / k));
    return fma(p, s, max(x, Floats{}));
}

// 2^x, good to 3e-7; exactly 0 where x is below -150, minus infinity included.
inline Floats exp2(Floats x) {
    x = max(x, floats(-200.0f));
    const Floats whole = round_to_whole(x), r = x - whole;
    Floats p = floats(1.3333558e-3f);
    p = fma(p, r, floats(9.6181291e-3f));
    p = fma(p, r, floats(5.5504109e-2f));
    p = fma(p, r, floats(2.4022651e-1f));
    p = fma(p, r, floats(6.9314718e-1f));
    p = fma(p, r, floats(1.0f));
    return times_power_of_two(p, whole);
}

inline Floats tanh(Floats x) {
    Floats e = exp(x * floats(2.0f));
    return floats(1.0f) - floats(2.0f) / (e + floats(1.0f));
}

// Soft cap: within +-cap, if that is not 0.
inline Floats capped(Floats x, float cap) { return cap > 0 ? tanh(x / floats(cap)) * floats(cap) : x; }

// Abramowitz and Stegun, 7.1.26: within 1.5e-7.
inline Floats erf(Floats x) {
    const Floats one = floats(1.0f), size = abs(x);
    const Floats t = one / fma(size, floats(0.3275911f), one);
    Floats p = floats(1.061405429f);
    p = fma(p, t, floats(-1.453152027f));
    p = fma(p, t, floats(1.421413741f));
    p = fma(p, t, floats(-0.284496736f));
    p = fma(p, t, floats(0.254829592f));
    const Floats rest = p * t * exp(-(x * x));
    return with_sign_of(x, one - rest);
}

// Reads 32 bits of each of R rows, which are `stride` bytes apart. Their addresses take five registers; without the `asm`,
// compilers make a dozen of them, more than there are.
template <int R>
struct Rows {
    static_assert(R <= 12);
    const char *low, *high;  // the first row, and the seventh
    int64_t stride, three, five;

    Rows(const void* first, int64_t stride)
        : low((const char*)first), high(low + (R > 6 ? 6 * stride : 0)), stride(stride), three(3 * stride), five(5 * stride) {
        asm("" : "+r"(high), "+r"(this->stride), "+r"(three), "+r"(five));
    }

    Ints broadcast(int row, int further = 0) const {
        int32_t x;
        memcpy(&x, (row < 6 ? low : high) + offset(row % 6) + further, 4);
        return ints(x);
    }

    void advance(int bytes = 4) {
        low += bytes;
        high += bytes;
    }

private:
    int64_t offset(int row) const {
        return row == 3 ? three : row == 5 ? five : row * stride;
    }
};

}  // namespace
}  // namespace djl
