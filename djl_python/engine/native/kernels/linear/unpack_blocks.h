// The numbers that rows of a GGUF file's blocks stand for, in the model's format: for what multiplies numbers, and for proofs.

#pragma once

#include <cstring>

#include "linear/pack_blocks.h"
#include "program.h"
#include "thread_pool.h"
#include "vectors/formats.h"

namespace djl {
namespace {

inline float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

inline float half_to_float(uint16_t half) {
    const uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13, exponent = magnitude & 0x0f800000u;
    float x;
    if (exponent == 0x0f800000u) x = float_of(magnitude + (224u << 23));  // infinite, or no number
    else if (exponent) x = float_of(magnitude + (112u << 23));
    else x = float_of(magnitude + (113u << 23)) - float_of(113u << 23);
    return half & 0x8000 ? -x : x;
}

// 2^(e - 128), which fp32 has no normal number for where e is below 2.
inline float power_of_two(int e) { return float_of(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23); }

// The step of a half of a block, and what is added to each number.
inline void scales_of(BlockScaling scaling, const UnpackedBlock& block, int half, int part, float& step, float& least) {
    const float first = scaling == kExponents ? 0.0f : half_to_float(block.halves[0]);
    least = 0.0f;
    switch (scaling) {
        case kHalvesAndLeast: least = half_to_float(block.halves[1]); [[fallthrough]];
        case kHalves: step = first; return;
        case kExponents: step = power_of_two(block.steps[0]); return;
        case kSteps: step = first * (float)(block.steps[part] - 128); return;
        case kStepsAndLeast:
            step = first * (float)block.steps[0];
            least = -half_to_float(block.halves[1]) * (float)block.steps[1];
            return;
        case kNibbles:
            step = first * (float)(block.steps[half] & 15);
            least = -half_to_float(block.halves[1]) * (float)(block.steps[half] >> 4);
            return;
    }
}

template <class F>
inline void unpack_blocks(Run& run, int index, const UnpackBlocksOp& op) {
    const BlockSize size = size_of(op.type);
    const PackedWeight& form = op.form;
    int parts = 0;
    with_codes(form.format, [&](auto codes) { parts = decltype(codes)::type::parts; });
    const auto* table = form.format == kBlocksTable ? (const int8_t*)form.tables : nullptr;
    const bool is_signed = table || form.format == kBlocks8;
    const Floats zero = floats(is_signed ? 128.0f : (float)form.zero);
    run.parallel_for_rows(index, op.n, [&](int row) {
        auto* to = (typename F::T*)op.out + (int64_t)row * op.k;
        const auto* from = (const uint8_t*)op.in[row];
        if (!from) {
            memset((void*)to, 0, (int64_t)op.k * sizeof *to);
            return;
        }
        UnpackedBlock block{};
        for (int first = 0; first < op.k; first += kBlock, to += kBlock) {
            unpack_block(op.type, from + (int64_t)first / size.numbers * size.bytes, first % size.numbers / kBlock, block);
            if (table)
                for (auto& code : block.codes) code = (uint8_t)table[code];
            if (is_signed)
                for (auto& code : block.codes) code ^= 128;
            for (int half = 0; half < 2; ++half) {
                float step = 0.0f, least = 0.0f;
                scales_of(form.scaling, block, half, parts == 2 ? half : 0, step, least);
                const Floats codes = to_floats(load_bytes(block.codes + 16 * half)) - zero;
                F::store(to + 16 * half, fma(codes, floats(step), floats(least)));
            }
        }
    });
}

}  // namespace
}  // namespace djl
