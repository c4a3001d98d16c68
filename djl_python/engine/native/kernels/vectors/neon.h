// The vectors of vectors.h, as four NEON registers each.

#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace djl {
namespace {

struct Floats {
    float32x4_t a, b, c, d;
};

struct Ints {
    int32x4_t a, b, c, d;
};

constexpr const char* kVectors = "NEON";
constexpr int kSumRegisters = 6;
constexpr Shape kFloatTile{5, 1}, kExpandedTile{5, 1}, kPairTile{4, 1}, kQuadTile{4, 1};
constexpr bool kUnpacksOnce = true;
constexpr int kMaxTiledRows = 10, kReadTogether = 2;

// Applies `work` to each quarter.
template <class V, class Work>
inline __attribute__((always_inline)) auto quarters(V x, Work work) {
    using Made = std::conditional_t<std::is_same_v<decltype(work(x.a)), float32x4_t>, Floats, Ints>;
    return Made{work(x.a), work(x.b), work(x.c), work(x.d)};
}
template <class V, class W, class Work>
inline __attribute__((always_inline)) auto quarters(V x, W y, Work work) {
    using Made = std::conditional_t<std::is_same_v<decltype(work(x.a, y.a)), float32x4_t>, Floats, Ints>;
    return Made{work(x.a, y.a), work(x.b, y.b), work(x.c, y.c), work(x.d, y.d)};
}

inline Floats operator+(Floats x, Floats y) { return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
inline Floats operator-(Floats x, Floats y) { return {x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d}; }
inline Floats operator*(Floats x, Floats y) { return {x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d}; }
inline Floats operator/(Floats x, Floats y) { return {x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d}; }
inline Floats operator-(Floats x) { return {-x.a, -x.b, -x.c, -x.d}; }
inline Ints operator&(Ints x, Ints y) { return {x.a & y.a, x.b & y.b, x.c & y.c, x.d & y.d}; }
inline Ints operator|(Ints x, Ints y) { return {x.a | y.a, x.b | y.b, x.c | y.c, x.d | y.d}; }

inline Floats floats(float x) {
    const float32x4_t all = vdupq_n_f32(x);
    return {all, all, all, all};
}
inline Ints ints(int32_t x) {
    const int32x4_t all = vdupq_n_s32(x);
    return {all, all, all, all};
}
inline Ints shorts(int16_t x) { return ints((int32_t)((uint32_t)(uint16_t)x * 0x10001u)); }
inline Ints bytes(int8_t x) { return ints((int32_t)((uint32_t)(uint8_t)x * 0x1010101u)); }

inline Ints iota_ints() {
    return {int32x4_t{0, 1, 2, 3}, int32x4_t{4, 5, 6, 7}, int32x4_t{8, 9, 10, 11}, int32x4_t{12, 13, 14, 15}};
}
inline Floats iota() {
    return {float32x4_t{0, 1, 2, 3}, float32x4_t{4, 5, 6, 7}, float32x4_t{8, 9, 10, 11}, float32x4_t{12, 13, 14, 15}};
}

// The bit of each lane in Lanes; and an expanded mask: all bits of each lane that it names are set.
inline Ints bits_of_lanes() {
    return {int32x4_t{1, 2, 4, 8}, int32x4_t{16, 32, 64, 128}, int32x4_t{256, 512, 1024, 2048},
            int32x4_t{4096, 8192, 16384, 32768}};
}
inline Ints expanded_mask(Lanes lanes) {
    const int32x4_t all = vdupq_n_s32(lanes);
    return quarters(bits_of_lanes(), [&](int32x4_t bit) { return vreinterpretq_s32_u32(vtstq_s32(all, bit)); });
}
inline Lanes lanes_where(Ints which) {
    const Ints bit = which & bits_of_lanes();
    return (Lanes)vaddvq_s32((bit.a | bit.b) | (bit.c | bit.d));
}

inline Floats as_floats(Ints x) {
    return quarters(x, [](int32x4_t x) { return vreinterpretq_f32_s32(x); });
}
inline Ints as_ints(Floats x) {
    return quarters(x, [](float32x4_t x) { return vreinterpretq_s32_f32(x); });
}

inline Ints select_bits(Ints which, Ints these, Ints others) {
    auto quarter = [](int32x4_t which, int32x4_t these, int32x4_t others) {
        return vbslq_s32(vreinterpretq_u32_s32(which), these, others);
    };
    return {quarter(which.a, these.a, others.a), quarter(which.b, these.b, others.b), quarter(which.c, these.c, others.c),
            quarter(which.d, these.d, others.d)};
}
inline Ints select(Lanes lanes, Ints these, Ints others) { return select_bits(expanded_mask(lanes), these, others); }
inline Floats select(Lanes lanes, Floats these, Floats others) {
    return as_floats(select_bits(expanded_mask(lanes), as_ints(these), as_ints(others)));
}

inline Floats load_floats(const float* from) {
    return {vld1q_f32(from), vld1q_f32(from + 4), vld1q_f32(from + 8), vld1q_f32(from + 12)};
}
inline Floats load_floats(const float* from, Lanes lanes, Floats others) {
    if (lanes == 0xffff) return load_floats(from);
    float all[16];
    memcpy(all, &others, sizeof all);
    copy_lanes(all, from, lanes);
    return load_floats(all);
}
inline Floats load_floats(const float* from, Lanes lanes) { return load_floats(from, lanes, floats(0)); }
inline void store_floats(float* to, Floats x) {
    vst1q_f32(to, x.a);
    vst1q_f32(to + 4, x.b);
    vst1q_f32(to + 8, x.c);
    vst1q_f32(to + 12, x.d);
}
inline void store_floats(float* to, Floats x, Lanes lanes) {
    if (lanes == 0xffff) return store_floats(to, x);
    float all[16];
    store_floats(all, x);
    copy_lanes(to, all, lanes);
}
inline Ints load_ints(const void* from) {
    auto at = (const int32_t*)from;
    return {vld1q_s32(at), vld1q_s32(at + 4), vld1q_s32(at + 8), vld1q_s32(at + 12)};
}
inline void store_ints(void* to, Ints x) {
    auto at = (int32_t*)to;
    vst1q_s32(at, x.a);
    vst1q_s32(at + 4, x.b);
    vst1q_s32(at + 8, x.c);
    vst1q_s32(at + 12, x.d);
}

inline Floats fma(Floats x, Floats y, Floats addend) {
    return {vfmaq_f32(addend.a, x.a, y.a), vfmaq_f32(addend.b, x.b, y.b), vfmaq_f32(addend.c, x.c, y.c),
            vfmaq_f32(addend.d, x.d, y.d)};
}
// y where either is NaN, as with AVX; the instruction would return NaN.
inline Floats min(Floats x, Floats y) {
    return quarters(x, y, [](float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); });
}
inline Floats max(Floats x, Floats y) {
    return quarters(x, y, [](float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); });
}
// An estimate that is good to 2^-8, and one Newton step.
inline Floats reciprocal(Floats x) {
    return quarters(x, [](float32x4_t x) {
        const float32x4_t guess = vrecpeq_f32(x);
        return guess * vrecpsq_f32(x, guess);
    });
}
inline Floats abs(Floats x) {
    return quarters(x, [](float32x4_t x) { return vabsq_f32(x); });
}
inline Floats round_to_whole(Floats x) {
    return quarters(x, [](float32x4_t x) { return vrndnq_f32(x); });
}
// In two steps: fp32 can't represent 2^-200.
inline Floats times_power_of_two(Floats x, Floats n) {
    return quarters(x, n, [](float32x4_t x, float32x4_t n) {
        auto power = [](int32x4_t n) { return vreinterpretq_f32_s32(vshlq_n_s32(n + vdupq_n_s32(127), 23)); };
        const int32x4_t all = vcvtnq_s32_f32(n), first = vshrq_n_s32(all, 1);
        return x * power(first) * power(all - first);
    });
}
inline Floats with_sign_of(Floats x, Floats size) {
    return as_floats(select_bits(ints(INT32_MIN), as_ints(x), as_ints(size)));
}

inline float sum_of_lanes(Floats x) { return vaddvq_f32((x.a + x.b) + (x.c + x.d)); }
inline int32_t sum_of_lanes(Ints x) { return vaddvq_s32((x.a + x.b) + (x.c + x.d)); }
inline float max_lane(Floats x) {
    return vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(x.a, x.b), vmaxnmq_f32(x.c, x.d)));
}
inline int32_t min_lane(Ints x, Lanes lanes) {
    const Ints asked = select(lanes, x, ints(INT32_MAX));
    return vminvq_s32(vminq_s32(vminq_s32(asked.a, asked.b), vminq_s32(asked.c, asked.d)));
}

inline Lanes is_greater(Floats x, Floats y) {
    return lanes_where(quarters(x, y, [](float32x4_t x, float32x4_t y) { return vreinterpretq_s32_u32(vcgtq_f32(x, y)); }));
}
inline Lanes is_at_least(Floats x, Floats y) {
    return lanes_where(quarters(x, y, [](float32x4_t x, float32x4_t y) { return vreinterpretq_s32_u32(vcgeq_f32(x, y)); }));
}
inline Lanes is_equal(Floats x, Floats y) {
    return lanes_where(quarters(x, y, [](float32x4_t x, float32x4_t y) { return vreinterpretq_s32_u32(vceqq_f32(x, y)); }));
}

inline Floats to_floats(Ints x) {
    return quarters(x, [](int32x4_t x) { return vcvtq_f32_s32(x); });
}
inline Ints to_ints(Floats x) {
    return quarters(x, [](float32x4_t x) { return vcvtnq_s32_f32(x); });
}

inline Ints add_ints(Ints x, Ints y) { return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
inline Ints subtract_ints(Ints x, Ints y) { return {x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d}; }
inline Ints multiply_ints(Ints x, Ints y) { return {x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d}; }
inline Ints exclusive_or(Ints x, Ints y) { return {x.a ^ y.a, x.b ^ y.b, x.c ^ y.c, x.d ^ y.d}; }
template <int N> inline Ints shift_right(Ints x) {
    return quarters(x, [](int32x4_t x) { return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x), N)); });
}
template <int N> inline Ints shift_left(Ints x) {
    return quarters(x, [](int32x4_t x) { return vshlq_n_s32(x, N); });
}
template <int N> inline Ints shift_shorts_right(Ints x) {
    return quarters(x, [](int32x4_t x) { return vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(x), N)); });
}
template <int N> inline Ints shift_longs_left(Ints x) {
    return quarters(x, [](int32x4_t x) { return vreinterpretq_s32_u64(vshlq_n_u64(vreinterpretq_u64_s32(x), N)); });
}
template <int N> inline Ints shift_longs_right(Ints x) {
    return quarters(x, [](int32x4_t x) { return vreinterpretq_s32_u64(vshrq_n_u64(vreinterpretq_u64_s32(x), N)); });
}

inline Floats load_halves(const void* from) {
    auto quarter = [&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t*)from + 4 * i))); };
    return {quarter(0), quarter(1), quarter(2), quarter(3)};
}
inline Ints load_bytes(const void* from) {
    const uint8x16_t all = vld1q_u8((const uint8_t*)from);
    const uint16x8_t low = vmovl_u8(vget_low_u8(all)), high = vmovl_u8(vget_high_u8(all));
    auto quarter = [](uint16x4_t x) { return vreinterpretq_s32_u32(vmovl_u16(x)); };
    return {quarter(vget_low_u16(low)), quarter(vget_high_u16(low)), quarter(vget_low_u16(high)),
            quarter(vget_high_u16(high))};
}
inline Ints load_longs(const uint16_t* from) {
    const uint16x8_t all = vld1q_u16(from);
    const uint32x4_t low = vmovl_u16(vget_low_u16(all)), high = vmovl_u16(vget_high_u16(all));
    auto quarter = [](uint32x2_t x) { return vreinterpretq_s32_u64(vmovl_u32(x)); };
    return {quarter(vget_low_u32(low)), quarter(vget_high_u32(low)), quarter(vget_low_u32(high)),
            quarter(vget_high_u32(high))};
}
// Sixteen shorts, in two halves.
struct Shorts {
    int16x8_t low, high;
};
inline Shorts to_shorts(Ints x) {
    return {vcombine_s16(vqmovn_s32(x.a), vqmovn_s32(x.b)), vcombine_s16(vqmovn_s32(x.c), vqmovn_s32(x.d))};
}
inline void store_bytes(int8_t* to, const Ints (&x)[4]) {
    for (int i = 0; i < 4; ++i) {
        const Shorts all = to_shorts(x[i]);
        vst1q_s8(to + 16 * i, vcombine_s8(vqmovn_s16(all.low), vqmovn_s16(all.high)));
    }
}
inline void store_shorts_of_quads(int16_t* to, Ints x) {
    const Shorts all = to_shorts(x);
    const uint8x16_t order = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
    auto ordered = [&](int16x8_t x) { return vreinterpretq_s16_u8(vqtbl1q_u8(vreinterpretq_u8_s16(x), order)); };
    vst1q_s16(to, ordered(all.low));
    vst1q_s16(to + 8, ordered(all.high));
}

inline Floats load_column(const float* from) {
    auto quarter = [&](int i) { return float32x4_t{from[i], from[i + 16], from[i + 32], from[i + 48]}; };
    return {quarter(0), quarter(64), quarter(128), quarter(192)};
}
inline Floats permute_two(Floats x, Ints places, Floats y) {
    float both[32], made[16];
    int32_t from[16];
    store_floats(both, x);
    store_floats(both + 16, y);
    store_ints(from, places);
    for (int i = 0; i < 16; ++i) made[i] = both[from[i]];
    return load_floats(made);
}

inline Ints repeat_table(const void* from) {
    const int32x4_t table = vld1q_s32((const int32_t*)from);
    return {table, table, table, table};
}
inline Ints look_up(Ints table, Ints places) {
    return quarters(table, places, [](int32x4_t table, int32x4_t places) {
        return vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(table), vreinterpretq_u8_s32(places)));
    });
}
inline Ints interleave_low(Ints x, Ints y) {
    return quarters(x, y, [](int32x4_t x, int32x4_t y) {
        return vreinterpretq_s32_u8(vzip1q_u8(vreinterpretq_u8_s32(x), vreinterpretq_u8_s32(y)));
    });
}
inline Ints interleave_high(Ints x, Ints y) {
    return quarters(x, y, [](int32x4_t x, int32x4_t y) {
        return vreinterpretq_s32_u8(vzip2q_u8(vreinterpretq_u8_s32(x), vreinterpretq_u8_s32(y)));
    });
}
inline Ints pack_bytes(Ints x, Ints y) {
    return quarters(x, y, [](int32x4_t x, int32x4_t y) {
        auto half = [](int32x4_t x) { return vqmovun_s16(vreinterpretq_s16_s32(x)); };
        return vreinterpretq_s32_u8(vcombine_u8(half(x), half(y)));
    });
}

inline uint64_t replace_where(Ints& into, Ints here, int8_t is, int8_t by) {
    const uint8x16_t bits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint64_t all = 0;
    int at = 0;
    auto quarter = [&](int32x4_t& into, int32x4_t here) {
        const uint8x16_t same = vceqq_u8(vreinterpretq_u8_s32(here), vdupq_n_u8((uint8_t)is));
        into = vreinterpretq_s32_u8(vbslq_u8(same, vdupq_n_u8((uint8_t)by), vreinterpretq_u8_s32(into)));
        const uint8x16_t found = vandq_u8(same, bits);
        all |= (uint64_t)(vaddv_u8(vget_low_u8(found)) | vaddv_u8(vget_high_u8(found)) << 8) << at;
        at += 16;
    };
    quarter(into.a, here.a);
    quarter(into.b, here.b);
    quarter(into.c, here.c);
    quarter(into.d, here.d);
    return all;
}

inline Ints multiply_pairs(Ints x, Ints y) {
    return quarters(x, y, [](int32x4_t x, int32x4_t y) {
        const int16x8_t a = vreinterpretq_s16_s32(x), b = vreinterpretq_s16_s32(y);
        return vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
    });
}

inline Ints add_shorts(Ints x, Ints y) {
    return quarters(x, y, [](int32x4_t x, int32x4_t y) {
        return vreinterpretq_s32_s16(vaddq_s16(vreinterpretq_s16_s32(x), vreinterpretq_s16_s32(y)));
    });
}
inline Ints multiply_signed_bytes(Ints b, Ints a) {
    return quarters(b, a, [](int32x4_t b, int32x4_t a) {
        const int8x16_t x = vreinterpretq_s8_s32(b), y = vreinterpretq_s8_s32(a);
        const int16x8_t first = vmull_s8(vget_low_s8(x), vget_low_s8(y)), second = vmull_high_s8(x, y);
        return vreinterpretq_s32_s16(vpaddq_s16(first, second));
    });
}
inline Ints multiply_bytes(Ints b, Ints a) { return multiply_signed_bytes(b, a); }

#ifdef __ARM_FEATURE_MATMUL_INT8
inline void add_quads(Ints& sum, Ints b, Ints a) {
    auto quarter = [](int32x4_t sum, int32x4_t b, int32x4_t a) {
        return vusdotq_s32(sum, vreinterpretq_u8_s32(b), vreinterpretq_s8_s32(a));
    };
    sum = {quarter(sum.a, b.a, a.a), quarter(sum.b, b.b, a.b), quarter(sum.c, b.c, a.c), quarter(sum.d, b.d, a.d)};
}
#endif

// bf16.
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
inline Floats add_pairs(Floats sum, Ints b, Ints a) {
    auto quarter = [](float32x4_t sum, int32x4_t b, int32x4_t a) {
        return vbfdotq_f32(sum, vreinterpretq_bf16_s32(b), vreinterpretq_bf16_s32(a));
    };
    return {quarter(sum.a, b.a, a.a), quarter(sum.b, b.b, a.b), quarter(sum.c, b.c, a.c), quarter(sum.d, b.d, a.d)};
}
#endif
inline void store_bf16(uint16_t* to, Floats x) {  // NaN stays NaN
    auto quarter = [](float32x4_t x) {
        const uint32x4_t bits = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
        const uint32x4_t nearest = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        const uint32x4_t none = vorrq_u32(bits, vdupq_n_u32(0x400000));
        return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), nearest, none), 16);
    };
    vst1_u16(to, quarter(x.a));
    vst1_u16(to + 4, quarter(x.b));
    vst1_u16(to + 8, quarter(x.c));
    vst1_u16(to + 12, quarter(x.d));
}
inline Floats load_bf16(const uint16_t* from) {
    auto quarter = [&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from + i), 16)); };
    return {quarter(0), quarter(4), quarter(8), quarter(12)};
}

}  // namespace
}  // namespace djl

#include "vectors/masked_in_memory.h"
