// The vectors of vectors.h, as two AVX2 registers each.

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace djl {
namespace {

struct Floats {
    __m256 low, high;
};

struct Ints {
    __m256i low, high;
};

constexpr const char* kVectors = "AVX2";
constexpr int kSumRegisters = 6;
constexpr Shape kFloatTile{3, 2}, kExpandedTile{6, 1}, kPairTile{4, 1}, kQuadTile{4, 1};
constexpr bool kUnpacksOnce = true;
constexpr int kMaxTiledRows = 4, kReadTogether = 2;

// Applies `work` to both halves.
template <class Work>
inline __attribute__((always_inline)) Floats halves(Floats a, Work work) { return {work(a.low), work(a.high)}; }
template <class Work>
inline __attribute__((always_inline)) Floats halves(Floats a, Floats b, Work work) {
    return {work(a.low, b.low), work(a.high, b.high)};
}

inline Floats operator+(Floats a, Floats b) { return {a.low + b.low, a.high + b.high}; }
inline Floats operator-(Floats a, Floats b) { return {a.low - b.low, a.high - b.high}; }
inline Floats operator*(Floats a, Floats b) { return {a.low * b.low, a.high * b.high}; }
inline Floats operator/(Floats a, Floats b) { return {a.low / b.low, a.high / b.high}; }
inline Floats operator-(Floats x) { return {-x.low, -x.high}; }
inline Ints operator&(Ints a, Ints b) { return {a.low & b.low, a.high & b.high}; }
inline Ints operator|(Ints a, Ints b) { return {a.low | b.low, a.high | b.high}; }

inline Floats floats(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Ints ints(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Ints shorts(int16_t x) { return {_mm256_set1_epi16(x), _mm256_set1_epi16(x)}; }
inline Ints bytes(int8_t x) { return {_mm256_set1_epi8(x), _mm256_set1_epi8(x)}; }

inline Floats iota() {
    return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)};
}
inline Ints iota_ints() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}

// Expands a mask: all bits of each lane that it names are set.
inline Ints expanded_mask(Lanes lanes) {
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    auto half = [&](int byte) { return _mm256_cmpeq_epi32(_mm256_set1_epi32(byte) & bits, bits); };
    return {half(lanes & 255), half(lanes >> 8)};
}
inline Lanes lanes_where(__m256 low, __m256 high) {
    return (Lanes)(_mm256_movemask_ps(low) | _mm256_movemask_ps(high) << 8);
}

inline Floats select(Lanes lanes, Floats these, Floats others) {
    const Ints which = expanded_mask(lanes);
    return {_mm256_blendv_ps(others.low, these.low, _mm256_castsi256_ps(which.low)),
            _mm256_blendv_ps(others.high, these.high, _mm256_castsi256_ps(which.high))};
}
inline Ints select(Lanes lanes, Ints these, Ints others) {
    const Ints which = expanded_mask(lanes);
    return {_mm256_blendv_epi8(others.low, these.low, which.low), _mm256_blendv_epi8(others.high, these.high, which.high)};
}

inline Floats load_floats(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline Floats load_floats(const float* from, Lanes lanes) {
    if (lanes == 0xffff) return load_floats(from);
    const Ints which = expanded_mask(lanes);
    return {_mm256_maskload_ps(from, which.low), _mm256_maskload_ps(from + 8, which.high)};
}
inline Floats load_floats(const float* from, Lanes lanes, Floats others) {
    return lanes == 0xffff ? load_floats(from) : select(lanes, load_floats(from, lanes), others);
}
inline void store_floats(float* to, Floats x) {
    _mm256_storeu_ps(to, x.low);
    _mm256_storeu_ps(to + 8, x.high);
}
inline void store_floats(float* to, Floats x, Lanes lanes) {
    if (lanes == 0xffff) return store_floats(to, x);
    const Ints which = expanded_mask(lanes);
    _mm256_maskstore_ps(to, which.low, x.low);
    _mm256_maskstore_ps(to + 8, which.high, x.high);
}
inline Ints load_ints(const void* from) {
    return {_mm256_loadu_si256((const __m256i*)from), _mm256_loadu_si256((const __m256i*)from + 1)};
}
inline void store_ints(void* to, Ints x) {
    _mm256_storeu_si256((__m256i*)to, x.low);
    _mm256_storeu_si256((__m256i*)to + 1, x.high);
}

inline Floats fma(Floats a, Floats b, Floats addend) {
    return {_mm256_fmadd_ps(a.low, b.low, addend.low), _mm256_fmadd_ps(a.high, b.high, addend.high)};
}
inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
// An estimate that is good to 2^-11, and one Newton step.
inline Floats reciprocal(Floats x) {
    const Floats guess = halves(x, [](__m256 half) { return _mm256_rcp_ps(half); });
    return guess * (floats(2.0f) - x * guess);
}
inline Floats abs(Floats x) {
    return halves(x, [](__m256 half) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), half); });
}
inline Floats round_to_whole(Floats x) {
    return halves(x, [](__m256 half) { return _mm256_round_ps(half, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); });
}
// In two steps: fp32 can't represent 2^-200.
inline Floats times_power_of_two(Floats x, Floats n) {
    return halves(x, n, [](__m256 x, __m256 n) {
        auto power = [](__m256i n) {
            return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
        };
        const __m256i all = _mm256_cvtps_epi32(n), first = _mm256_srai_epi32(all, 1);
        return x * power(first) * power(_mm256_sub_epi32(all, first));
    });
}
inline Floats with_sign_of(Floats x, Floats size) {
    return halves(x, size, [](__m256 x, __m256 size) {
        return _mm256_blendv_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), size), _mm256_or_ps(size, _mm256_set1_ps(-0.0f)), x);
    });
}

inline float sum_of_lanes(Floats x) {
    const __m256 both = x.low + x.high;
    const __m128 four = _mm256_castps256_ps128(both) + _mm256_extractf128_ps(both, 1);
    const __m128 two = four + _mm_movehl_ps(four, four);
    return two[0] + two[1];
}
inline int32_t sum_of_lanes(Ints x) {
    alignas(32) int32_t lanes[8];
    _mm256_store_si256((__m256i*)lanes, _mm256_add_epi32(x.low, x.high));
    int32_t sum = 0;
    for (int32_t lane : lanes) sum += lane;
    return sum;
}
inline float max_lane(Floats x) {
    const __m256 both = _mm256_max_ps(x.low, x.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline int32_t min_lane(Ints x, Lanes lanes) {
    int32_t all[16], lowest = INT32_MAX;
    store_ints(all, x);
    for (int i = 0; i < 16; ++i)
        if (lanes >> i & 1 && all[i] < lowest) lowest = all[i];
    return lowest;
}

inline Lanes is_greater(Floats a, Floats b) {
    return lanes_where(_mm256_cmp_ps(a.low, b.low, _CMP_GT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_GT_OQ));
}
inline Lanes is_at_least(Floats a, Floats b) {
    return lanes_where(_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ));
}
inline Lanes is_equal(Floats a, Floats b) {
    return lanes_where(_mm256_cmp_ps(a.low, b.low, _CMP_EQ_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_EQ_OQ));
}

inline Floats as_floats(Ints x) { return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)}; }
inline Ints as_ints(Floats x) { return {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)}; }
inline Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }
inline Ints to_ints(Floats x) { return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)}; }

inline Ints add_ints(Ints a, Ints b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
inline Ints subtract_ints(Ints a, Ints b) { return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)}; }
inline Ints multiply_ints(Ints a, Ints b) {
    return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)};
}
inline Ints exclusive_or(Ints a, Ints b) { return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)}; }
template <int N> inline Ints shift_right(Ints x) { return {_mm256_srli_epi32(x.low, N), _mm256_srli_epi32(x.high, N)}; }
template <int N> inline Ints shift_left(Ints x) { return {_mm256_slli_epi32(x.low, N), _mm256_slli_epi32(x.high, N)}; }
template <int N> inline Ints shift_shorts_right(Ints x) {
    return {_mm256_srli_epi16(x.low, N), _mm256_srli_epi16(x.high, N)};
}
template <int N> inline Ints shift_longs_left(Ints x) { return {_mm256_slli_epi64(x.low, N), _mm256_slli_epi64(x.high, N)}; }
template <int N> inline Ints shift_longs_right(Ints x) {
    return {_mm256_srli_epi64(x.low, N), _mm256_srli_epi64(x.high, N)};
}

inline Floats load_halves(const void* from) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from + 1))};
}
inline Ints load_bytes(const void* from) {
    return {_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from)),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)((const char*)from + 8)))};
}
inline Ints load_longs(const uint16_t* from) {
    return {_mm256_cvtepu16_epi64(_mm_loadl_epi64((const __m128i*)from)),
            _mm256_cvtepu16_epi64(_mm_loadl_epi64((const __m128i*)(from + 4)))};
}
inline __m256i to_shorts(Ints x) { return _mm256_permute4x64_epi64(_mm256_packs_epi32(x.low, x.high), 0xd8); }
// Stores each quad's shorts in the order first, third, second, fourth.
inline void store_shorts_of_quads(int16_t* to, Ints x) {
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    _mm256_storeu_si256((__m256i*)to, _mm256_shuffle_epi8(to_shorts(x), order));
}
inline void store_bytes(int8_t* to, const Ints (&x)[4]) {
    for (int i = 0; i < 4; ++i) {
        const __m256i all = to_shorts(x[i]);
        _mm_storeu_si128((__m128i*)to + i, _mm_packs_epi16(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
    }
}

inline Floats load_column(const float* from) {
    const Ints places = shift_left<4>(iota_ints());
    return {_mm256_i32gather_ps(from, places.low, 4), _mm256_i32gather_ps(from, places.high, 4)};
}
inline Floats permute_two(Floats a, Ints places, Floats b) {
    float both[32];
    store_floats(both, a);
    store_floats(both + 16, b);
    return {_mm256_i32gather_ps(both, places.low, 4), _mm256_i32gather_ps(both, places.high, 4)};
}

inline Ints repeat_table(const void* from) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)from));
    return {table, table};
}
inline Ints look_up(Ints table, Ints places) {
    return {_mm256_shuffle_epi8(table.low, places.low), _mm256_shuffle_epi8(table.high, places.high)};
}
inline Ints interleave_low(Ints a, Ints b) {
    return {_mm256_unpacklo_epi8(a.low, b.low), _mm256_unpacklo_epi8(a.high, b.high)};
}
inline Ints interleave_high(Ints a, Ints b) {
    return {_mm256_unpackhi_epi8(a.low, b.low), _mm256_unpackhi_epi8(a.high, b.high)};
}
inline Ints pack_bytes(Ints a, Ints b) { return {_mm256_packus_epi16(a.low, b.low), _mm256_packus_epi16(a.high, b.high)}; }

inline uint64_t replace_where(Ints& into, Ints here, int8_t is, int8_t by) {
    const __m256i low = _mm256_cmpeq_epi8(here.low, _mm256_set1_epi8(is)), high = _mm256_cmpeq_epi8(here.high, _mm256_set1_epi8(is));
    into = {_mm256_blendv_epi8(into.low, _mm256_set1_epi8(by), low), _mm256_blendv_epi8(into.high, _mm256_set1_epi8(by), high)};
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
}

inline Ints multiply_pairs(Ints a, Ints b) { return {_mm256_madd_epi16(a.low, b.low), _mm256_madd_epi16(a.high, b.high)}; }
inline Ints add_shorts(Ints a, Ints b) { return {_mm256_add_epi16(a.low, b.low), _mm256_add_epi16(a.high, b.high)}; }
inline Ints multiply_bytes(Ints b, Ints a) {
    return {_mm256_maddubs_epi16(b.low, a.low), _mm256_maddubs_epi16(b.high, a.high)};
}
inline Ints multiply_signed_bytes(Ints b, Ints a) {
    auto half = [](__m256i b, __m256i a) { return _mm256_maddubs_epi16(_mm256_abs_epi8(b), _mm256_sign_epi8(a, b)); };
    return {half(b.low, a.low), half(b.high, a.high)};
}

#ifdef __AVXVNNI__
inline void add_quads(Ints& sum, Ints b, Ints a) {
    sum = {_mm256_dpbusd_avx_epi32(sum.low, b.low, a.low), _mm256_dpbusd_avx_epi32(sum.high, b.high, a.high)};
}
#endif

// bf16.
inline __m256i to_bf16(Floats x) {  // NaN stays NaN
    auto rounded = [](__m256 x) {
        const __m256i bits = _mm256_castps_si256(x), odd = _mm256_srli_epi32(bits, 16) & _mm256_set1_epi32(1);
        const __m256i nearest = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        const __m256i none = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        return _mm256_srli_epi32(_mm256_blendv_epi8(nearest, bits | _mm256_set1_epi32(0x400000), none), 16);
    };
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded(x.low), rounded(x.high)), 0xd8);
}
inline Floats load_bf16(const uint16_t* from) {
    auto half = [](const uint16_t* from) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from)), 16));
    };
    return {half(from), half(from + 8)};
}
inline void store_bf16(uint16_t* to, Floats x) { _mm256_storeu_si256((__m256i*)to, to_bf16(x)); }

}  // namespace
}  // namespace djl

#include "vectors/masked_in_memory.h"
