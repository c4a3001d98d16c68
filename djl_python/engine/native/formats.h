// Number formats, and functions of vectors of fp32.

#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr float kLog2e = 1.44269504f;

#ifdef __AVX512BF16__
inline __m512 add_pairs(__m512 sum, __m512i b, __m512i a) {
    return _mm512_dpbf16_ps(sum, (__m512bh)b, (__m512bh)a);
}
inline __m256i to_bf16(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }
#else  // the same in fp32: bf16 is its upper half
inline __m512 add_pairs(__m512 sum, __m512i b, __m512i a) {
    const __m512i upper = _mm512_set1_epi32((int32_t)0xffff0000);
    auto first = [](__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); };
    auto second = [&](__m512i x) { return _mm512_castsi512_ps(_mm512_and_si512(x, upper)); };
    return _mm512_fmadd_ps(second(b), second(a), _mm512_fmadd_ps(first(b), first(a), sum));
}
inline __m256i to_bf16(__m512 x) {  // to the nearest, ties to even; what is no number stays none
    const __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 none = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(rounded, none, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}
#endif

struct BF16 {
    using T = uint16_t;
    static constexpr int pair = 2;
    static __m512 fma(__m512 sum, __m512i b, __m512i a) { return add_pairs(sum, b, a); }
    static float to(T x) {
        uint32_t bits = (uint32_t)x << 16;
        float out;
        memcpy(&out, &bits, 4);
        return out;
    }
    static __m512 load(const T* from, __mmask16 mask) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16));
    }
    static void store(T* to, __m512 x) { _mm256_storeu_si256((__m256i*)to, to_bf16(x)); }
    static void store(T* to, __m512 x, __mmask16 mask) {
        _mm256_mask_storeu_epi16(to, mask, to_bf16(x));
    }
    // Sixteen numbers, the first (0) or second (1) of a pair each.
    static void store_in_pairs(T* to, __m512 x, int place) {
        const __m512i wide = _mm512_cvtepu16_epi32(to_bf16(x));
        if (place) _mm512_mask_storeu_epi16(to, 0xaaaaaaaa, _mm512_slli_epi32(wide, 16));
        else _mm512_mask_storeu_epi16(to, 0x55555555, wide);
    }
};

struct F32 {
    using T = float;
    static constexpr int pair = 1;
    static __m512 fma(__m512 sum, __m512i b, __m512i a) {
        return _mm512_fmadd_ps(_mm512_castsi512_ps(b), _mm512_castsi512_ps(a), sum);
    }
    static float to(T x) { return x; }
    static __m512 load(const T* from, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, from); }
    static void store(T* to, __m512 x) { _mm512_storeu_ps(to, x); }
    static void store(T* to, __m512 x, __mmask16 mask) { _mm512_mask_storeu_ps(to, mask, x); }
    static void store_in_pairs(T* to, __m512 x, int) { store(to, x); }
};

// The lanes of a vector that `left` numbers fill.
inline __mmask16 lanes_of(int64_t left) { return left >= 16 ? 0xffff : left <= 0 ? 0 : (__mmask16)((1 << left) - 1); }

inline __m512 exp_ps(__m512 x) {
    // exp(x) = 2^n * exp(r), |r| <= ln(2)/2; a polynomial of degree 6 is good to the last bits of fp32.
    const __m512 log2e = _mm512_set1_ps(1.44269504f);
    x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
    x = _mm512_min_ps(x, _mm512_set1_ps(88.0f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, log2e), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
    __m512 p = _mm512_set1_ps(1.3888889e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3333333e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1666667e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666667e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

// log(1 + e^x). With s = y / (2 + y), log(1 + y) is 2 (s + s^3/3 + ...), y being at most 1.
inline __m512 softplus(__m512 x) {
    const __m512 y = exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x)));
    const __m512 s = _mm512_div_ps(y, _mm512_add_ps(y, _mm512_set1_ps(2.0f))), square = _mm512_mul_ps(s, s);
    __m512 p = _mm512_set1_ps(2.0f / 11);
    for (int k = 9; k > 0; k -= 2) p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(2.0f / k));
    return _mm512_fmadd_ps(p, s, _mm512_max_ps(x, _mm512_setzero_ps()));
}

// 2^x, good to 3e-7; exactly 0 where x is below -150, minus infinity too.
inline __m512 exp2_ps(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-200.0f));
    const __m512 whole = _mm512_roundscale_ps(x, 0), r = _mm512_sub_ps(x, whole);
    __m512 p = _mm512_set1_ps(1.3333558e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, whole);
}

inline __m512 tanh_ps(__m512 x) {
    __m512 e = exp_ps(_mm512_mul_ps(x, _mm512_set1_ps(2.0f)));
    return _mm512_sub_ps(_mm512_set1_ps(1.0f),
                         _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(e, _mm512_set1_ps(1.0f))));
}

// Abramowitz and Stegun, 7.1.26: within 1.5e-7.
inline __m512 erf_ps(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f), size = _mm512_abs_ps(x);
    const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(size, _mm512_set1_ps(0.3275911f), one));
    __m512 p = _mm512_set1_ps(1.061405429f);
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592f));
    const __m512 rest = _mm512_mul_ps(_mm512_mul_ps(p, t), exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(x, x))));
    const __m512 made = _mm512_sub_ps(one, rest);
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(  // with the sign of x
        _mm512_castps_si512(made), _mm512_castps_si512(x), _mm512_set1_epi32((int32_t)0x80000000), 0xd8));
}

// 32 bits of each of R rows, which are `stride` bytes apart. Their addresses are five registers, of which compilers make
// a dozen if they aren't kept from it: more than there are.
template <int R>
struct Rows {
    static_assert(R <= 12);
    const char *low, *high;  // the first row, and the seventh
    int64_t stride, three, five;

    Rows(const void* first, int64_t stride)
        : low((const char*)first), high(low + (R > 6 ? 6 * stride : 0)), stride(stride), three(3 * stride), five(5 * stride) {
        asm("" : "+r"(high), "+r"(this->stride), "+r"(three), "+r"(five));
    }

    __m512i spread(int row) const {
        int32_t x;
        memcpy(&x, (row < 6 ? low : high) + offset(row % 6), 4);
        return _mm512_set1_epi32(x);
    }

    void advance() {
        low += 4;
        high += 4;
    }

private:
    int64_t offset(int row) const {
        return row == 3 ? three : row == 5 ? five : row * stride;
    }
};

}  // namespace
