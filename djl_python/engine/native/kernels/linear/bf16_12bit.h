// bf16 weights in 12 bits, without loss.
//
// The low byte of a trained or random weight is noise; its high byte (sign and most of the exponent) takes few values.
// A panel has a table of its sixteen most frequent high bytes: a weight is stored as its low byte and a 4-bit code of its
// high byte. The few weights without a code, one in ten thousand or so, are outliers, which are listed. In their place is a
// stand-in, the smallest number that the table can make, and the difference is added to the sums: looking for outliers while
// a part is multiplied would cost as much as unpacking the whole part.
// A step of a panel is 128 weights, four vectors of 16 columns times a pair: 64 low bytes of the first two vectors, 64 of
// the other two, and 64 bytes of codes, those of the first two vectors in the lower half of each byte. Bytes are in the
// order that the interleaving instructions need.

#pragma once

#include <algorithm>
#include <cstring>

#include "program.h"
#include "thread_pool.h"
#include "vectors/formats.h"
#include "vectors/processor.h"

namespace djl {
namespace {

constexpr int kWeightsPerStep = 128;
constexpr int kStandIn = kHighBytes - 1;  // the code of the smallest high byte; a stand-in has it and a low byte of 0
static_assert(kMaxPartSteps * kWeightsPerStep <= 1 << 16, "a list has 16 bits for a place in a part");
constexpr int kColumnPrefetchSteps = 48;  // steps that are prefetched when one column is read
constexpr int kTransposedSteps = 64;      // steps that are transposed from columns into lanes at a time

// The place among a step's 128 weights of the one whose low byte is the i-th of the first 64 (group 0) or of the second (1).
inline int place_of(int group, int i) { return (2 * group + (i % 16) / 8) * 32 + i / 16 * 8 + i % 8; }

// A part of a packed weight's panel. `outliers` has, for each panel and part, the index in `outliers` at which
// the part's list begins; an entry is a weight's place in the part times 2^16 plus its 16 bits.
struct TwelveBitWeights {
    static constexpr int lines = 3;  // of 64 bytes that hold a step
    const char* at;

    // Part `number` of a panel's `parts`, whose steps begin at address `at`.
    TwelveBitWeights(const PackedWeight& weight, int panel, int parts, int number, const char* at)
        : at(at), table(weight.tables + panel * kHighBytes) {
        const uint32_t* start = weight.outliers + (int64_t)panel * parts + number;
        outliers = weight.outliers + start[0];
        end = weight.outliers + start[1];
    }

    // Reads vectors of a part, from vector First on, step by step. First is a template parameter because a shift by an
    // amount known only at run time would cost as much as all the rest.
    template <int First>
    struct Reader {
        const char* at;
        Ints high_bytes;

        template <int N>
        inline __attribute__((always_inline)) void read(int first, Ints (&b)[N]) const {
            const Ints codes = load_ints(at + 128);
            for (int v = 0; v < N; ++v) {
                const int vector = First + first + v, group = vector / 2;
                const Ints low = load_ints(at + 64 * group);
                const Ints high = look_up(high_bytes, (group ? shift_shorts_right<4>(codes) : codes) & bytes(15));
                b[v] = vector % 2 ? interleave_high(low, high) : interleave_low(low, high);
            }
        }

        void advance() { at += kStepBytes; }
    };

    template <int V, class Work>
    void read(int vector, const Work& work) const {
        const Ints high_bytes = repeat_table(table);
        if (vector == 0) return work(Reader<0>{at, high_bytes});
        if constexpr (V == 1) {
            if (vector == 1) return work(Reader<1>{at, high_bytes});
            if (vector == 2) return work(Reader<2>{at, high_bytes});
        }
        work(Reader<4 - V>{at, high_bytes});
    }

    // Replaces stand-ins by the outliers: adds their difference to the sums, whose own rounding exceeds the difference's.
    void correct(const char* rows, int64_t stride, int count, float* sums) const {
        const float stand_in = BF16::to((uint16_t)(table[kStandIn] << 8));
        for_each_outlier([&](int step, int column, int second, uint16_t weight) {
            const float more = BF16::to(weight) - stand_in;
            const char* x = rows + (2 * step + second) * sizeof(uint16_t);
            float* sum = sums + column;
            for (int row = 0; row < count; ++row, x += stride, sum += kPanel)
                *sum = std::fma(BF16::to(*(const uint16_t*)x), more, *sum);
        });
    }

    // Calls work(step, column, which of the pair, weight) for each outlier.
    template <class Work>
    void for_each_outlier(const Work& work) const {
        for (const uint32_t* one = outliers; one < end; ++one) {
            const int place = (int)(*one >> 16), word = place % kWeightsPerStep;
            work(place / kWeightsPerStep, word / 2, word % 2, (uint16_t)*one);
        }
    }

    // Writes one column in fp32, times `scale`: out (2 * steps,).
    void column(int column, int steps, float scale, float* out) const {
        const int vector = column / 16, group = vector / 2;
        for (int k = 0; k < 2 * steps; ++k) {
            auto from = (const uint8_t*)at + (int64_t)(k / 2) * kStepBytes;
            if (k % 2 == 0) {  // each step is in a line or two that are not cached
                auto soon = (const char*)from + kColumnPrefetchSteps * kStepBytes + column % 16 / 4 * 16;
                prefetch_l1(soon + 64 * group);
                prefetch_l1(soon + 128);
            }
            const int word = column % 16 * 2 + k % 2;
            const int i = word / 8 * 16 + vector % 2 * 8 + word % 8;
            const int high = table[from[128 + i] >> 4 * group & 15];
            out[k] = BF16::to((uint16_t)(high << 8 | from[64 * group + i])) * scale;
        }
        for_each_outlier([&](int step, int its, int second, uint16_t weight) {
            if (its == column) out[2 * step + second] = BF16::to(weight) * scale;
        });
    }

private:
    const uint8_t* table;
    const uint32_t *outliers, *end;
};

// Writes one column of a packed weight (k, n) in fp32, times `scale`: out (k,).
inline void twelve_bit_column(const PackedWeight& weight, int k, int column, float scale, float* out) {
    const int steps = k / 2, length = part_steps(steps), panel = column / kPanel;
    auto at = (const char*)weight.panels + (int64_t)panel * steps * kStepBytes;
    for (int number = 0, from = 0; from < steps; ++number, from += length) {
        const TwelveBitWeights part(weight, panel, parts_of(steps), number, at + (int64_t)from * kStepBytes);
        part.column(column % kPanel, std::min(length, steps - from), scale, out + 2 * from);
    }
}

// Fills a panel's table with its most frequent high bytes, the one of the smallest magnitude last.
inline void choose_high_bytes(const uint16_t* const* columns, int k, uint8_t* table) {
    int counts[2][256] = {};  // two, so that counts of equal neighbours don't wait for each other
    for (int c = 0; c < kPanel; ++c) {
        if (!columns[c]) continue;
        for (int i = 0; i + 1 < k; i += 2) {
            ++counts[0][columns[c][i] >> 8];
            ++counts[1][columns[c][i + 1] >> 8];
        }
    }
    int order[256];
    for (int i = 0; i < 256; ++i) {
        order[i] = i;
        counts[0][i] += counts[1][i];
    }
    std::partial_sort(order, order + kHighBytes, order + 256, [&](int a, int b) {
        return counts[0][a] != counts[0][b] ? counts[0][a] > counts[0][b] : a < b;
    });
    for (int i = 0; i < kHighBytes; ++i) table[i] = (uint8_t)order[i];
    auto magnitude = [](uint8_t high) { return high & 127; };
    auto smallest = std::min_element(table, table + kHighBytes, [&](int a, int b) { return magnitude(a) < magnitude(b); });
    std::swap(*smallest, table[kStandIn]);
}

// The codes of 64 high bytes, in the half of each byte that is the group's; `known` gets a bit for each byte with a code.
inline Ints high_byte_codes(Ints high, const uint8_t* table, int group, uint64_t& known) {
    Ints codes = bytes((int8_t)(kStandIn << 4 * group));
    for (int code = 0; code < kHighBytes; ++code)
        known |= replace_where(codes, high, (int8_t)table[code], (int8_t)(code << 4 * group));
    return codes;
}

// Two numbers of a column of bf16, which need not be aligned for pairs.
inline uint32_t pair_at(const uint16_t* column, int pair) {
    uint32_t both;
    memcpy(&both, column + 2 * pair, sizeof both);
    return both;
}

inline void pack_twelve_bit(Run& run, int index, const PackOp& op) {
    const int steps = op.k / 2, length = part_steps(steps), parts = parts_of(steps);
    const int share = op.second ? kPanel / 2 : kPanel;
    const int panels = (op.n + share - 1) / share;
    alignas(64) uint32_t lanes[kTransposedSteps][kPanel];
    run.parallel_for_ordered(index, panels, [&](int panel) {
        const uint16_t* columns[kPanel];
        for (int c = 0; c < kPanel; ++c) {
            const int row = panel * share + c % share;
            columns[c] = row < op.n ? (const uint16_t*)(c < share ? op.in : op.second) + (int64_t)row * op.k : nullptr;
        }
        auto* table = op.tables + panel * kHighBytes;
        choose_high_bytes(columns, op.k, table);
        auto* counts = op.counts + (int64_t)panel * parts;
        auto* outliers = op.lists + (int64_t)panel * op.room;
        int outlier_count = 0;
        for (int part = 0; part < parts; ++part) {
            const int first = part * length, count = std::min(length, steps - first), before = outlier_count;
            const uint32_t nothing = table[0] * 0x1000100u;  // beyond the last column: a weight that has a code
            auto* to = (char*)op.out + ((int64_t)panel * steps + first) * kStepBytes;
            for (int s = 0; s < count; ++s, to += kStepBytes) {
                if (s % kTransposedSteps == 0)
                    for (int c = 0; c < kPanel; ++c)
                        for (int i = s; i < std::min(s + kTransposedSteps, count); ++i)
                            lanes[i - s][c] = columns[c] ? pair_at(columns[c], first + i) : nothing;
                const uint32_t* lane = lanes[s % kTransposedSteps];
                Ints codes = Ints{};
                for (int group = 0; group < 2; ++group) {
                    const Ints a = load_ints(lane + group * 32);
                    const Ints b = load_ints(lane + group * 32 + 16);
                    const Ints byte = shorts(255);
                    const Ints low = pack_bytes(a & byte, b & byte);
                    const Ints high = pack_bytes(shift_shorts_right<8>(a), shift_shorts_right<8>(b));
                    uint64_t known = 0;
                    codes = codes | high_byte_codes(high, table, group, known);
                    store_ints(to + group * 64, keep_bytes(known, low));
                    for (uint64_t outlier_bits = ~known; outlier_bits; outlier_bits &= outlier_bits - 1) {
                        const int place = place_of(group, __builtin_ctzll(outlier_bits));
                        if (outlier_count < op.room)
                            outliers[outlier_count] =
                                (uint32_t)(s * kWeightsPerStep + place) << 16 | ((const uint16_t*)lane)[place];
                        ++outlier_count;
                    }
                }
                store_ints(to + 128, codes);
            }
            counts[part] = outlier_count <= op.room ? outlier_count - before : -1;
        }
    });
}

}  // namespace
}  // namespace djl
