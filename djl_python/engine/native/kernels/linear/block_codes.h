// Codes of weights that come in blocks of 32, and their scales: how a panel stores them, and what number a code stands for.
//
// A panel has 64 columns, four vectors. Along k, it is a record for every block: bytes of scales, then the codes of each
// vector. These are in lines of 64 bytes, four for each column: a quad, four numbers that follow each other along k. A line
// holds whole bytes of one quad; nibbles of two quads (the first in the low bits); two bits of four quads; or one bit of
// eight. A code of 5 bits has its highest in a line of single bits, one of 6 has the highest two in lines of two bits.
//
// A code u stands for step * u + least, both of the column's block, or half a block where scales are by 16 numbers. Codes
// without a least number have one in the middle: least = -zero * step. Codes of 8 bits and those of a table are signed.

#pragma once

#include "linear/block_rows.h"
#include "program.h"
#include "vectors/formats.h"

namespace djl {
namespace {

template <int N>
inline Ints shifted(Ints x) {  // to the left; to the right if N is negative
    if constexpr (N > 0) return shift_left<N>(x);
    else if constexpr (N < 0) return shift_right<-N>(x);
    else return x;
}

// The bits of quad Q in lines of nibbles, of two bits and of single bits, moved so that the lowest is bit To.
template <int Q>
inline Ints nibbles(const char* at) {
    return shifted<-4 * (Q % 2)>(load_ints(at + Q / 2 * 64)) & bytes(15);
}
template <int Q, int To>
inline Ints two_bits(const char* at) {
    return shifted<To - 2 * (Q % 4)>(load_ints(at + Q / 4 * 64)) & bytes(3 << To);
}
template <int Q, int To>
inline Ints one_bit(const char* at) {
    return shifted<To - Q>(load_ints(at)) & bytes(1 << To);
}

// The same of one byte of a quad.
inline int nibble_of(const char* at, int q, int byte) { return (uint8_t)at[q / 2 * 64 + byte] >> 4 * (q % 2) & 15; }
inline int two_bits_of(const char* at, int q, int byte) { return (uint8_t)at[q / 4 * 64 + byte] >> 2 * (q % 4) & 3; }
inline int one_bit_of(const char* at, int q, int byte) { return (uint8_t)at[byte] >> q & 1; }

// Kinds of codes: `bits`, 8 if they are signed; the `lines` of a vector's block; load<quad>(address), the codes of a quad;
// code(address, quad, byte), one of them; and how many `parts` of a block have scales of their own.
struct Codes2 {
    static constexpr int bits = 2, lines = 2, parts = 2;
    explicit Codes2(const PackedWeight&) {}
    template <int Q> Ints load(const char* at) const { return two_bits<Q, 0>(at); }
    int code(const char* at, int q, int byte) const { return two_bits_of(at, q, byte); }
};

struct Codes3 {
    static constexpr int bits = 3, lines = 3, parts = 2;
    explicit Codes3(const PackedWeight&) {}
    template <int Q> Ints load(const char* at) const { return two_bits<Q, 0>(at) | one_bit<Q, 2>(at + 2 * 64); }
    int code(const char* at, int q, int byte) const {
        return two_bits_of(at, q, byte) | one_bit_of(at + 2 * 64, q, byte) << 2;
    }
};

struct Codes4 {
    static constexpr int bits = 4, lines = 4, parts = 1;
    explicit Codes4(const PackedWeight&) {}
    template <int Q> Ints load(const char* at) const { return nibbles<Q>(at); }
    int code(const char* at, int q, int byte) const { return nibble_of(at, q, byte); }
};

struct Codes5 {
    static constexpr int bits = 5, lines = 5, parts = 1;
    explicit Codes5(const PackedWeight&) {}
    template <int Q> Ints load(const char* at) const { return nibbles<Q>(at) | one_bit<Q, 4>(at + 4 * 64); }
    int code(const char* at, int q, int byte) const { return nibble_of(at, q, byte) | one_bit_of(at + 4 * 64, q, byte) << 4; }
};

struct Codes6 {
    static constexpr int bits = 6, lines = 6, parts = 2;
    explicit Codes6(const PackedWeight&) {}
    template <int Q> Ints load(const char* at) const { return nibbles<Q>(at) | two_bits<Q, 4>(at + 4 * 64); }
    int code(const char* at, int q, int byte) const { return nibble_of(at, q, byte) | two_bits_of(at + 4 * 64, q, byte) << 4; }
};

struct Codes8 {
    static constexpr int bits = 8, lines = 8, parts = 1;
    explicit Codes8(const PackedWeight&) {}
    template <int Q> Ints load(const char* at) const { return load_ints(at + Q * 64); }
    int code(const char* at, int q, int byte) const { return (int8_t)at[q * 64 + byte]; }
};

struct CodesOfTable {
    static constexpr int bits = 8, lines = 4, parts = 1;
    const int8_t* numbers;
    const Ints table;
    explicit CodesOfTable(const PackedWeight& weight)
        : numbers((const int8_t*)weight.tables), table(repeat_table(weight.tables)) {}
    template <int Q> Ints load(const char* at) const { return look_up(table, nibbles<Q>(at)); }
    int code(const char* at, int q, int byte) const { return numbers[nibble_of(at, q, byte)]; }
};

// Calls work with the kind of codes of a format.
template <class Work>
auto with_codes(WeightFormat format, Work work) {
    switch (format) {
        case kBlocks2: return work(Type<Codes2>{});
        case kBlocks3: return work(Type<Codes3>{});
        case kBlocks4: return work(Type<Codes4>{});
        case kBlocks5: return work(Type<Codes5>{});
        case kBlocks6: return work(Type<Codes6>{});
        case kBlocks8: return work(Type<Codes8>{});
        default: return work(Type<CodesOfTable>{});
    }
}

constexpr int kSuperBlocks = 8;  // blocks that share fp16 numbers, which the scales of each are multiplied with

// Bytes that a record has of scales.
inline int scale_bytes(BlockScaling scaling, int parts) {
    switch (scaling) {
        case kHalves: return 2 * kPanel;
        case kHalvesAndLeast: return 4 * kPanel;
        case kSteps: return parts * kPanel;
        case kStepsAndLeast: return 2 * kPanel;
        case kNibbles: return 2 * kPanel;
        default: return kPanel;
    }
}

// How many fp16 numbers a column has for each kSuperBlocks blocks.
inline int super_halves(BlockScaling scaling) {
    return scaling == kSteps ? 1 : scaling == kStepsAndLeast || scaling == kNibbles ? 2 : 0;
}

// The scales of a panel.
struct BlockScales {
    BlockScaling scaling;
    float zero;              // the code that stands for 0, if there is no least number
    const uint16_t* supers;  // (supers, super_halves, kPanel) fp16

    BlockScales(const PackedWeight& weight, int blocks, int64_t panel)
        : scaling(weight.scaling), zero((float)weight.zero),
          supers((const uint16_t*)weight.scales +
                 panel * ((blocks + kSuperBlocks - 1) / kSuperBlocks) * super_halves(scaling) * kPanel) {}

    // The step and the least number of a vector's columns, in a part of a block.
    void load(const char* record, int block, int part, int vector, Floats& step, Floats& least) const {
        const int first = vector * 16;
        if (scaling == kHalves || scaling == kHalvesAndLeast) {
            step = load_halves(record + 2 * first);
            least = scaling == kHalves ? step * floats(-zero) : load_halves(record + 2 * (kPanel + first));
            return;
        }
        if (scaling == kExponents) {  // 2^(e - 128); those that fp32 has no normal number for are 0
            const Ints exponents = load_bytes(record + first);
            const Floats one_less = max(to_floats(exponents) - floats(1.0f), Floats{});
            step = as_floats(shift_left<23>(to_ints(one_less)));
            least = step * floats(-zero);
            return;
        }
        const uint16_t* of_super = supers + (int64_t)(block / kSuperBlocks) * super_halves(scaling) * kPanel + first;
        const Floats all = load_halves(of_super);
        if (scaling == kSteps) {
            step = all * (to_floats(load_bytes(record + part * kPanel + first)) - floats(128.0f));
            least = step * floats(-zero);
            return;
        }
        const Floats depth = -load_halves(of_super + kPanel);
        if (scaling == kStepsAndLeast) {
            step = all * to_floats(load_bytes(record + first));
            least = depth * to_floats(load_bytes(record + kPanel + first));
            return;
        }
        const Ints both = load_bytes(record + part * kPanel + first);
        step = all * to_floats(both & ints(15));
        least = depth * to_floats(shift_right<4>(both));
    }
};

// Reads a column of a weight (k, columns): out (k,) = scale times its numbers.
inline void block_column(const PackedWeight& weight, int k, int64_t column, float scale, float* out) {
    with_codes(weight.format, [&](auto codes) {
        using Codes = typename decltype(codes)::type;
        const Codes kind(weight);
        const int blocks = block_count(k), before = scale_bytes(weight.scaling, Codes::parts);
        const int64_t record = before + 4 * Codes::lines * 64;
        const int vector = (int)(column % kPanel / 16), lane = (int)(column % 16);
        const BlockScales scales(weight, blocks, column / kPanel);
        const char* at = (const char*)weight.panels + column / kPanel * blocks * record;
        for (int b = 0; b < blocks; ++b, at += record)
            for (int part = 0; part < Codes::parts; ++part) {
                Floats steps, leasts;
                scales.load(at, b, part, vector, steps, leasts);
                alignas(64) float numbers[2][16];
                store_floats(numbers[0], steps);
                store_floats(numbers[1], leasts);
                const char* of_vector = at + before + vector * Codes::lines * 64;
                for (int i = part * kBlock / Codes::parts; i < (part + 1) * kBlock / Codes::parts; ++i) {
                    const int code = kind.code(of_vector, i / 4, lane * 4 + i % 4);
                    if (b * kBlock + i < k) out[b * kBlock + i] = ((float)code * numbers[0][lane] + numbers[1][lane]) * scale;
                }
            }
    });
}

}  // namespace
}  // namespace djl
