// Rounds numbers to blocks of 4, 5 or 6 bits (block_codes.h), with a step and a least number for each block: 8-bit integers
// times fp16 numbers that eight blocks share. GGUF's Q4_K and Q5_K have integers of 6 bits.
//
// A block's step and least number are fitted: codes are rounded by a first guess, whose step and least number that have the
// least squared error for these codes are the next guess, and so on. A guess that covers all numbers is tried, and one that
// cuts the outermost off.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "linear/pack_blocks.h"
#include "program.h"
#include "thread_pool.h"
#include "vectors/formats.h"

namespace djl {
namespace {

constexpr float kCuts[] = {1.0f, 0.88f};  // of the range, that a first guess covers
constexpr int kFits = 2;
constexpr float kMostSteps = 255.0f;  // an integer that an fp16 number is multiplied by

// The least fp16 number that is not below x, which isn't negative; its greatest one for what is beyond. NaN for NaN.
inline uint16_t half_at_least(float x) {
    if (!(x >= 0)) return 0x7e00;
    if (x < 0x1p-14f) return (uint16_t)std::ceil(x * 0x1p24f);  // subnormal
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t half = (bits + 0x1fff >> 13) - (127 - 15 << 10);
    return (uint16_t)std::min(half, 0x7bffu);
}

inline float half_value(uint16_t half) {
    if (half < 1 << 10) return (float)half * 0x1p-24f;
    if (half > 0x7bff) return NAN;
    const uint32_t bits = ((uint32_t)half << 13) + (127 - 15 << 23);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// A block's numbers, of codes u: step * u - depth.
struct BlockFit {
    float step = 0, depth = 0;
};

inline void codes_of(const Floats (&x)[2], const BlockFit& fit, float most, Floats (&codes)[2]) {
    const Floats inverse = floats(fit.step > 0 ? 1.0f / fit.step : 0.0f), depth = floats(fit.depth);
    for (int i = 0; i < 2; ++i)
        codes[i] = min(max(round_to_whole((x[i] + depth) * inverse), Floats{}), floats(most));
}

inline BlockFit fit_block(const Floats (&x)[2], float most) {
    const float high = std::max(max_lane(max(x[0], x[1])), 0.0f), low = std::max(max_lane(max(-x[0], -x[1])), 0.0f);
    const float sum_x = sum_of_lanes(x[0] + x[1]);
    BlockFit best;
    float least = INFINITY;
    for (const float cut : kCuts) {
        BlockFit fit{(high + low) * cut / most, std::max(0.0f, low - (high + low) * (1 - cut) / 2)};
        for (int i = 0;; ++i) {
            Floats codes[2];
            codes_of(x, fit, most, codes);
            if (i == kFits) {
                Floats error = Floats{};
                for (int v = 0; v < 2; ++v) {
                    const Floats off = fma(codes[v], floats(fit.step), -(x[v] + floats(fit.depth)));
                    error = fma(off, off, error);
                }
                const float sum = sum_of_lanes(error);
                if (sum < least) {
                    least = sum;
                    best = fit;
                }
                break;
            }
            const float sum = sum_of_lanes(codes[0] + codes[1]);
            const float squares = sum_of_lanes(fma(codes[0], codes[0], codes[1] * codes[1]));
            const float products = sum_of_lanes(fma(codes[0], x[0], codes[1] * x[1]));
            const float determinant = kBlock * squares - sum * sum;
            if (determinant < 0.5f) continue;  // all codes are the same
            fit.depth = (sum * products - squares * sum_x) / determinant;
            if (fit.depth < 0) fit = {products / squares, 0.0f};
            else fit.step = (kBlock * products - sum * sum_x) / determinant;
        }
    }
    return best;
}

// Rounds up to eight blocks from x (count,) T on.
template <class F>
inline void round_super(const typename F::T* x, int count, int some, float most, UnpackedBlock* blocks) {
    Floats numbers[kSuperBlocks][2], zeros = Floats{};
    BlockFit fits[kSuperBlocks], greatest;
    for (int j = 0; j < some; ++j) {
        for (int i = 0; i < 2; ++i) {
            const int first = j * kBlock + i * 16;
            numbers[j][i] = F::load(x + first, lanes_of(count - first));
            zeros = fma(numbers[j][i], Floats{}, zeros);  // but for infinities and NaN
        }
        fits[j] = fit_block(numbers[j], most);
        greatest = {std::max(greatest.step, fits[j].step), std::max(greatest.depth, fits[j].depth)};
    }
    const bool finite = is_equal(zeros, Floats{}) == lanes_of(16);
    const uint16_t halves[2] = {half_at_least(finite ? greatest.step / kMostSteps : NAN), half_at_least(greatest.depth / kMostSteps)};
    const float units[2] = {half_value(halves[0]), half_value(halves[1])};
    for (int j = 0; j < some; ++j) {
        auto steps = [](float x, float unit, float fewest) {
            return unit > 0 ? std::min(std::max(std::nearbyint(x / unit), fewest), kMostSteps) : fewest;
        };
        const float step = steps(fits[j].step, units[0], 1), depth = steps(fits[j].depth, units[1], 0);
        Floats codes[2];
        codes_of(numbers[j], {step * units[0], depth * units[1]}, most, codes);
        const Ints whole[4] = {to_ints(codes[0]), to_ints(codes[1]), Ints{}, Ints{}};
        alignas(64) int8_t bytes[4 * 16];
        store_bytes(bytes, whole);
        memcpy(blocks[j].codes, bytes, kBlock);
        blocks[j].steps[0] = (uint8_t)step;
        blocks[j].steps[1] = (uint8_t)depth;
        memcpy(blocks[j].halves, halves, sizeof halves);
    }
}

template <class F>
inline void round_blocks(Run& run, int index, const RoundBlocksOp& op) {
    const float most = op.format == kBlocks4 ? 15.0f : op.format == kBlocks5 ? 31.0f : 63.0f;
    const PackedBlocks to{op.format, kStepsAndLeast, op.out, op.scales};
    pack_panels(run, index, op.n, op.k, op.second, to, [&](int64_t row, bool second, int super, int some, UnpackedBlock* blocks) {
        const int first = super * kSuperBlocks * kBlock;
        const auto* x = (const typename F::T*)(second ? op.second : op.in) + row * op.k + first;
        round_super<F>(x, op.k - first, some, most, blocks);
    });
}

}  // namespace
}  // namespace djl
