// Packs rows of a GGUF file's blocks in panels (block_codes.h), without loss: codes and scales stay what they are.
//
// The layouts of the blocks are ggml's. A block of 32 numbers begins with its fp16 scale, and with its least number where it
// has one. Those of 256 numbers are eight blocks whose scales, or the scales of their halves, are small integers, which one
// or two fp16 numbers of all eight are multiplied with.

#pragma once

#include <algorithm>
#include <cstring>

#include "linear/block_codes.h"
#include "program.h"
#include "thread_pool.h"

namespace djl {
namespace {

// 32 numbers of a row, and their scales as a record has them.
struct UnpackedBlock {
    uint8_t codes[kBlock];
    uint16_t halves[2];
    uint8_t steps[2];  // of each half, or of all and the least number's; NIBBLES: both in a byte of each half
};

inline uint16_t half_at(const uint8_t* at) {
    uint16_t x;
    memcpy(&x, at, 2);
    return x;
}

inline void unpack_nibbles(const uint8_t* packed, uint8_t* codes) {
    for (int i = 0; i < 16; ++i) {
        codes[i] = packed[i] & 15;
        codes[16 + i] = packed[i] >> 4;
    }
}

inline void add_fifth_bits(const uint8_t* packed, uint8_t* codes) {
    uint32_t bits;
    memcpy(&bits, packed, 4);
    for (int i = 0; i < kBlock; ++i) codes[i] |= (bits >> i & 1) << 4;
}

// The scale and the least number's of one of eight blocks: 6 bits each, of which four blocks have the highest two elsewhere.
inline void unpack_six_bits(const uint8_t* packed, int j, uint8_t (&steps)[2]) {
    const uint8_t *first = packed, *second = packed + 4, *rest = packed + 8;
    if (j < 4) {
        steps[0] = first[j] & 63;
        steps[1] = second[j] & 63;
    } else {
        steps[0] = (rest[j - 4] & 15) | first[j - 4] >> 6 << 4;
        steps[1] = rest[j - 4] >> 4 | second[j - 4] >> 6 << 4;
    }
}

// Bytes of a type's block, and how many numbers it has.
struct BlockSize {
    int bytes, numbers;
};

inline BlockSize size_of(BlockType type) {
    switch (type) {
        case kQ40: return {18, 32};
        case kQ41: return {20, 32};
        case kQ50: return {22, 32};
        case kQ51: return {24, 32};
        case kQ80: return {34, 32};
        case kIq4Nl: return {18, 32};
        case kMxfp4: return {17, 32};
        case kQ2K: return {84, 256};
        case kQ3K: return {110, 256};
        case kQ4K: return {144, 256};
        case kQ5K: return {176, 256};
        case kQ6K: return {210, 256};
        case kIq4Xs: return {136, 256};
    }
    return {0, 0};
}

// Unpacks block j of those that `at` has, of which there are one or eight.
inline void unpack_block(BlockType type, const uint8_t* at, int j, UnpackedBlock& to) {
    const int half = j / 4, quarter = j % 4;
    switch (type) {
        case kQ40:
        case kIq4Nl:
            to.halves[0] = half_at(at);
            return unpack_nibbles(at + 2, to.codes);
        case kQ41:
            to.halves[0] = half_at(at);
            to.halves[1] = half_at(at + 2);
            return unpack_nibbles(at + 4, to.codes);
        case kQ50:
            to.halves[0] = half_at(at);
            unpack_nibbles(at + 6, to.codes);
            return add_fifth_bits(at + 2, to.codes);
        case kQ51:
            to.halves[0] = half_at(at);
            to.halves[1] = half_at(at + 2);
            unpack_nibbles(at + 8, to.codes);
            return add_fifth_bits(at + 4, to.codes);
        case kQ80:
            to.halves[0] = half_at(at);
            memcpy(to.codes, at + 2, kBlock);
            return;
        case kMxfp4:
            to.steps[0] = at[0];
            return unpack_nibbles(at + 1, to.codes);
        case kQ2K:
            for (int i = 0; i < kBlock; ++i) to.codes[i] = at[16 + half * 32 + i] >> 2 * quarter & 3;
            for (int i = 0; i < 2; ++i) {
                to.steps[i] = at[2 * j + i];
                to.halves[i] = half_at(at + 80 + 2 * i);
            }
            return;
        case kQ3K:
            for (int i = 0; i < kBlock; ++i)
                to.codes[i] = (at[32 + half * 32 + i] >> 2 * quarter & 3) | (at[i] >> j & 1) << 2;
            for (int i = 0; i < 2; ++i) {
                const int s = 2 * j + i;
                const int low = at[96 + s % 8] >> 4 * (s / 8) & 15, high = at[104 + s % 4] >> 2 * (s / 4) & 3;
                to.steps[i] = (uint8_t)((low | high << 4) - 32 + 128);
            }
            to.halves[0] = half_at(at + 108);
            return;
        case kQ4K:
        case kQ5K: {
            const uint8_t* low = at + (type == kQ4K ? 16 : 48) + j / 2 * 32;
            for (int i = 0; i < kBlock; ++i) to.codes[i] = low[i] >> 4 * (j % 2) & 15;
            if (type == kQ5K)
                for (int i = 0; i < kBlock; ++i) to.codes[i] |= (at[16 + i] >> j & 1) << 4;
            for (int i = 0; i < 2; ++i) to.halves[i] = half_at(at + 2 * i);
            return unpack_six_bits(at + 4, j, to.steps);
        }
        case kQ6K: {
            const uint8_t *low = at + half * 64 + quarter % 2 * 32, *high = at + 128 + half * 32;
            for (int i = 0; i < kBlock; ++i)
                to.codes[i] = (low[i] >> 4 * (quarter / 2) & 15) | (high[i] >> 2 * quarter & 3) << 4;
            for (int i = 0; i < 2; ++i) to.steps[i] = at[192 + 2 * j + i] ^ 128;
            to.halves[0] = half_at(at + 208);
            return;
        }
        case kIq4Xs: {
            unpack_nibbles(at + 8 + j * 16, to.codes);
            const int low = at[4 + j / 2] >> 4 * (j % 2) & 15, high = half_at(at + 2) >> 2 * j & 3;
            to.steps[0] = (uint8_t)((low | high << 4) - 32 + 128);
            to.halves[0] = half_at(at);
            return;
        }
    }
}

// The lowest four bits of a vector's block, from `shift` on two bits, and one bit, as lines of `to` have them. A lane is one
// column's, of sixteen.
inline void put_nibbles(const uint32_t (&quads)[kBlockQuads], uint32_t* to) {
    for (int i = 0; i < 4; ++i)
        to[i * 16] = (quads[2 * i] & 0x0f0f0f0fu) | (quads[2 * i + 1] & 0x0f0f0f0fu) << 4;
}
inline void put_two_bits(const uint32_t (&quads)[kBlockQuads], int shift, uint32_t* to) {
    for (int i = 0; i < 2; ++i) {
        uint32_t made = 0;
        for (int q = 0; q < 4; ++q) made |= (quads[4 * i + q] >> shift & 0x03030303u) << 2 * q;
        to[i * 16] = made;
    }
}
inline void put_one_bit(const uint32_t (&quads)[kBlockQuads], int shift, uint32_t* to) {
    uint32_t made = 0;
    for (int q = 0; q < kBlockQuads; ++q) made |= (quads[q] >> shift & 0x01010101u) << q;
    *to = made;
}

inline void put_codes(WeightFormat format, const uint8_t (&codes)[kBlock], uint32_t* to) {
    uint32_t quads[kBlockQuads];
    memcpy(quads, codes, sizeof quads);
    switch (format) {
        case kBlocks2: return put_two_bits(quads, 0, to);
        case kBlocks3: put_two_bits(quads, 0, to); return put_one_bit(quads, 2, to + 2 * 16);
        case kBlocks5: put_nibbles(quads, to); return put_one_bit(quads, 4, to + 4 * 16);
        case kBlocks6: put_nibbles(quads, to); return put_two_bits(quads, 4, to + 4 * 16);
        case kBlocks8:
            for (int q = 0; q < kBlockQuads; ++q) to[q * 16] = quads[q];
            return;
        default: return put_nibbles(quads, to);
    }
}

inline void put_scales(BlockScaling scaling, int parts, const UnpackedBlock& block, char* record, int column) {
    auto* halves = (uint16_t*)record;
    auto* steps = (uint8_t*)record;
    switch (scaling) {
        case kHalvesAndLeast: halves[kPanel + column] = block.halves[1]; [[fallthrough]];
        case kHalves: halves[column] = block.halves[0]; return;
        case kExponents: steps[column] = block.steps[0]; return;
        case kSteps:
            for (int i = 0; i < parts; ++i) steps[i * kPanel + column] = block.steps[i];
            return;
        case kStepsAndLeast:
        case kNibbles:
            for (int i = 0; i < 2; ++i) steps[i * kPanel + column] = block.steps[i];
            return;
    }
}

// Where panels, and what eight blocks share, are packed to, and how.
struct PackedBlocks {
    WeightFormat format;
    BlockScaling scaling;
    void *panels, *scales;
};

// Packs a weight (n, k), or a gated pair, half a panel of each: unpack(row, whether it is the second's, super, up to eight
// blocks to fill) gives a row's blocks that share fp16 numbers.
template <class Unpack>
inline void pack_panels(Run& run, int index, int n, int k, bool gated, const PackedBlocks& to, Unpack unpack) {
    const int share = gated ? kPanel / 2 : kPanel, blocks = block_count(k), supers = (blocks + kSuperBlocks - 1) / kSuperBlocks;
    const int count = super_halves(to.scaling);
    int lines = 0, parts = 0;
    with_codes(to.format, [&](auto codes) {
        lines = decltype(codes)::type::lines;
        parts = decltype(codes)::type::parts;
    });
    const int before = scale_bytes(to.scaling, parts);
    const int64_t record = before + 4 * lines * 64;
    run.parallel_for_ordered(index, (n + share - 1) / share, [&](int panel) {
        char* records = (char*)to.panels + panel * blocks * record;
        uint16_t* halves = (uint16_t*)to.scales + (int64_t)panel * supers * count * kPanel;
        for (int super = 0; super < supers; ++super)
            for (int column = 0; column < kPanel; ++column) {
                const int64_t row = (int64_t)panel * share + column % share;
                const int first = super * kSuperBlocks, some = std::min(kSuperBlocks, blocks - first);
                UnpackedBlock unpacked[kSuperBlocks] = {};
                if (row < n) unpack(row, column >= share, super, some, unpacked);
                for (int j = 0; j < some; ++j) {
                    char* at = records + (first + j) * record;
                    put_scales(to.scaling, parts, unpacked[j], at, column);
                    put_codes(to.format, unpacked[j].codes, (uint32_t*)(at + before + column / 16 * lines * 64) + column % 16);
                }
                for (int i = 0; i < count; ++i) halves[(super * count + i) * kPanel + column] = unpacked[0].halves[i];
            }
    });
}

inline void pack_blocks(Run& run, int index, const PackBlocksOp& op) {
    const BlockSize size = size_of(op.type);
    const PackedBlocks to{op.format, op.scaling, op.out, op.scales};
    pack_panels(run, index, op.n, op.k, op.second, to, [&](int64_t row, bool second, int super, int some, UnpackedBlock* blocks) {
        const auto* at = (const uint8_t*)(second ? op.second : op.in)[row];
        for (int j = 0; j < some && at; ++j) {
            const int64_t number = (int64_t)(super * kSuperBlocks + j) * kBlock;
            unpack_block(op.type, at + number / size.numbers * size.bytes, (int)(number % size.numbers / kBlock), blocks[j]);
        }
    });
}

}  // namespace
}  // namespace djl
