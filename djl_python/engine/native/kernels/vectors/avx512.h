// The vectors of vectors.h, as one AVX-512 register each.

#pragma once

#include <immintrin.h>

#include <cstdint>

namespace djl {
namespace {

using Floats = __m512;
using Ints = __m512i;

constexpr const char* kVectors = "AVX-512";
constexpr int kSumRegisters = 24;
constexpr Shape kFloatTile{12, 2}, kExpandedTile{12, 2}, kPairTile{12, 2};
constexpr Shape kQuadTile{6, 2};  // so that there are registers for integer sums and fp32 sums
constexpr bool kUnpacksOnce = false;
constexpr int kMaxTiledRows = 24, kReadTogether = 4;

// The same number in every lane, of 32, 16 or 8 bits.
inline Floats floats(float x) { return _mm512_set1_ps(x); }
inline Ints ints(int32_t x) { return _mm512_set1_epi32(x); }
inline Ints shorts(int16_t x) { return _mm512_set1_epi16(x); }
inline Ints bytes(int8_t x) { return _mm512_set1_epi8(x); }

// 0, 1, 2, ...
inline Floats iota() { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
inline Ints iota_ints() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

// Memory of lanes that the mask doesn't name is not touched.
inline Floats load_floats(const float* from) { return _mm512_loadu_ps(from); }
inline Floats load_floats(const float* from, Lanes lanes) { return _mm512_maskz_loadu_ps(lanes, from); }
inline Floats load_floats(const float* from, Lanes lanes, Floats others) { return _mm512_mask_loadu_ps(others, lanes, from); }
inline void store_floats(float* to, Floats x) { _mm512_storeu_ps(to, x); }
inline void store_floats(float* to, Floats x, Lanes lanes) { _mm512_mask_storeu_ps(to, lanes, x); }
inline Ints load_ints(const void* from) { return _mm512_loadu_si512(from); }
inline void store_ints(void* to, Ints x) { _mm512_storeu_si512(to, x); }

inline Floats fma(Floats a, Floats b, Floats addend) { return _mm512_fmadd_ps(a, b, addend); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }  // b where either is NaN
inline Floats reciprocal(Floats x) { return _mm512_rcp14_ps(x); }  // good to 2^-14
inline Floats abs(Floats x) { return _mm512_abs_ps(x); }
inline Floats round_to_whole(Floats x) { return _mm512_roundscale_ps(x, 0); }
// x * 2^n; n is a whole number from -200 to 127.
inline Floats times_power_of_two(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }
inline Floats with_sign_of(Floats x, Floats size) {
    const __m512i sign = _mm512_set1_epi32((int32_t)0x80000000);
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(size), _mm512_castps_si512(x), sign, 0xd8));
}

inline float sum_of_lanes(Floats x) { return _mm512_reduce_add_ps(x); }
// Wraps around, which GCC's _mm512_reduce_add_epi32 must not: codes of what is no number overflow, and aren't used.
inline int32_t sum_of_lanes(Ints x) {
    const __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtsi128_si32(four);
}
inline float max_lane(Floats x) { return _mm512_reduce_max_ps(x); }
inline int32_t min_lane(Ints x, Lanes lanes) { return _mm512_mask_reduce_min_epi32(lanes, x); }

// False where either is NaN.
inline Lanes is_greater(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline Lanes is_at_least(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
inline Lanes is_equal(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline Floats select(Lanes lanes, Floats these, Floats others) { return _mm512_mask_mov_ps(others, lanes, these); }
inline Ints select(Lanes lanes, Ints these, Ints others) { return _mm512_mask_mov_epi32(others, lanes, these); }

inline Floats as_floats(Ints x) { return _mm512_castsi512_ps(x); }
inline Ints as_ints(Floats x) { return _mm512_castps_si512(x); }
inline Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Ints to_ints(Floats x) { return _mm512_cvtps_epi32(x); }  // to the nearest

inline Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints subtract_ints(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
inline Ints multiply_ints(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }
inline Ints exclusive_or(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
template <int N> inline Ints shift_left(Ints x) { return _mm512_slli_epi32(x, N); }
template <int N> inline Ints shift_right(Ints x) { return _mm512_srli_epi32(x, N); }
template <int N> inline Ints shift_shorts_right(Ints x) { return _mm512_srli_epi16(x, N); }
template <int N> inline Ints shift_longs_left(Ints x) { return _mm512_slli_epi64(x, N); }
template <int N> inline Ints shift_longs_right(Ints x) { return _mm512_srli_epi64(x, N); }

// Loads that widen sixteen fp16 numbers, sixteen unsigned bytes, and eight unsigned shorts to 64 bits; store_bytes narrows.
inline Floats load_halves(const void* from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from)); }
inline Ints load_bytes(const void* from) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from)); }
inline Ints load_longs(const uint16_t* from) { return _mm512_cvtepu16_epi64(_mm_loadu_si128((const __m128i*)from)); }
inline void store_bytes(int8_t* to, const Ints (&x)[4]) {
    const Ints mixed = _mm512_packs_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3]));
    const Ints order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, mixed));
}
inline __m256i to_shorts(Ints x) { return _mm512_cvtepi32_epi16(x); }
// Stores each quad's shorts in the order first, third, second, fourth.
inline void store_shorts_of_quads(int16_t* to, Ints x) {
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    _mm256_storeu_si256((__m256i*)to, _mm256_shuffle_epi8(to_shorts(x), order));
}

// Every sixteenth number, from an address on.
inline Floats load_column(const float* from) {
    return _mm512_i32gather_ps(_mm512_slli_epi32(iota_ints(), 4), from, 4);
}

// The numbers at `places` (0 to 31) of two vectors, one after the other.
inline Floats permute_two(Floats a, Ints places, Floats b) { return _mm512_permutex2var_ps(a, places, b); }

// Within each quarter, as the instructions do it: the bytes at `places` of a table of 16; the first or last eight bytes of
// two vectors, alternating; shorts narrowed to bytes, those of a and then those of b.
inline Ints repeat_table(const void* from) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)from)); }
inline Ints look_up(Ints table, Ints places) { return _mm512_shuffle_epi8(table, places); }
inline Ints interleave_low(Ints a, Ints b) { return _mm512_unpacklo_epi8(a, b); }
inline Ints interleave_high(Ints a, Ints b) { return _mm512_unpackhi_epi8(a, b); }
inline Ints pack_bytes(Ints a, Ints b) { return _mm512_packus_epi16(a, b); }

// Puts the byte `by` into `into` where `here` has the byte `is`; returns a mask of those bytes.
inline uint64_t replace_where(Ints& into, Ints here, int8_t is, int8_t by) {
    const __mmask64 same = _mm512_cmpeq_epi8_mask(here, bytes(is));
    into = _mm512_mask_mov_epi8(into, same, bytes(by));
    return same;
}
inline Ints keep_bytes(uint64_t which, Ints x) { return _mm512_maskz_mov_epi8(which, x); }

// In each 32-bit lane, the sum of two products of signed shorts.
inline Ints multiply_pairs(Ints a, Ints b) { return _mm512_madd_epi16(a, b); }
inline Ints add_shorts(Ints a, Ints b) { return _mm512_add_epi16(a, b); }

// In each 16-bit lane, the sum of two products of bytes: of b from 0 to 127 and signed a; of signed b and a from -127 on.
inline Ints multiply_bytes(Ints b, Ints a) { return _mm512_maddubs_epi16(b, a); }
inline Ints multiply_signed_bytes(Ints b, Ints a) {
    return _mm512_maddubs_epi16(_mm512_abs_epi8(b), _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(b), Ints{}, a));
}

// sum += four products of bytes, unsigned b times signed a. With the intrinsic, GCC 12 copies each sum and spills them all.
#ifdef __AVX512VNNI__
inline void add_quads(Ints& sum, Ints b, Ints a) { asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(b), "v"(a)); }
#endif

// bf16. add_pairs: sum += the two products of each lane's halves. to_bf16 rounds to nearest, ties to even.
#ifdef __AVX512BF16__
inline Floats add_pairs(Floats sum, Ints b, Ints a) { return _mm512_dpbf16_ps(sum, (__m512bh)b, (__m512bh)a); }
inline __m256i to_bf16(Floats x) { return (__m256i)_mm512_cvtneps_pbh(x); }
#else
inline __m256i to_bf16(Floats x) {  // NaN stays NaN
    const Ints bits = _mm512_castps_si512(x), odd = _mm512_srli_epi32(bits, 16) & ints(1);
    const Ints rounded = add_ints(bits, add_ints(odd, ints(0x7fff)));
    const Lanes none = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const Ints kept = select(none, bits | ints(0x400000), rounded);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}
#endif
inline Floats load_bf16(const uint16_t* from, Lanes lanes) {
    return as_floats(shift_left<16>(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from))));
}
inline void store_bf16(uint16_t* to, Floats x) { _mm256_storeu_si256((__m256i*)to, to_bf16(x)); }
inline void store_bf16(uint16_t* to, Floats x, Lanes lanes) { _mm256_mask_storeu_epi16(to, lanes, to_bf16(x)); }
// Stores each number as the first (0) or second (1) of a pair; the other one belongs to another token and is not touched.
inline void store_bf16_in_pairs(uint16_t* to, Floats x, int place) {
    const Ints wide = _mm512_cvtepu16_epi32(to_bf16(x));
    if (place) _mm512_mask_storeu_epi16(to, 0xaaaaaaaa, shift_left<16>(wide));
    else _mm512_mask_storeu_epi16(to, 0x55555555, wide);
}

}  // namespace
}  // namespace djl
