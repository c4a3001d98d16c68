// Matrix products of all weight formats. float_products.cpp, integer_products.cpp and block_products.cpp compile them
// separately.

#pragma once

#include "linear/bf16_12bit.h"
#include "linear/block_linear.h"
#include "linear/float_linear.h"
#include "linear/integer_linear.h"
#include "program.h"
#include "thread_pool.h"

namespace djl {

// Run an operation that is a product; see linear.h.
void multiply_floats(Run& run, int index);
void multiply_integers(Run& run, int index);
void multiply_blocks(Run& run, int index);

// Run an operation that packs blocks, or rounds numbers to such; see pack_blocks.h and round_blocks.h.
void pack_any_blocks(Run& run, int index);
void unpack_any_blocks(Run& run, int index);
void round_any_blocks(Run& run, int index);

// Run an operation that multiplies little of a weight; see rescore.h.
void rescore_tokens(Run& run, int index);

namespace {

inline bool of_integers(WeightFormat format) { return format == kInt8 || format == kInt4ByGroup || format == kInt8ByGroup; }
inline bool of_blocks(WeightFormat format) { return format >= kBlocks2; }

// Call work with the panel type of a weight's format.
template <class F, class Work>
auto with_float_format(WeightFormat format, Work work) {
    if (format == kTwelveBit) return work(Type<FloatPanel<BF16, TwelveBitWeights>>{});
    return work(Type<FloatPanel<F, PlainWeights>>{});
}

template <class F, class Work>
auto with_integer_format(WeightFormat format, Work work) {
    switch (format) {
        case kInt8: return work(Type<IntegerPanel<F, Int8>>{});
        case kInt4ByGroup: return work(Type<IntegerPanel<F, Int4ByGroup>>{});
        default: return work(Type<IntegerPanel<F, Int8ByGroup>>{});
    }
}

template <class F, class Work>
auto with_block_format(WeightFormat format, Work work) {
    return with_codes(format, [&](auto codes) { return work(Type<BlockPanel<F, typename decltype(codes)::type>>{}); });
}

template <class F, class Work>
auto with_format(WeightFormat format, Work work) {
    if (of_blocks(format)) return with_block_format<F>(format, work);
    return of_integers(format) ? with_integer_format<F>(format, work) : with_float_format<F>(format, work);
}

// Where this thread's share of the next product's weights begins; null if no product follows, or it has experts.
template <class F>
const char* upcoming_weights(const Run& run, int index) {
    for (int i = index + 1; i < (int)run.ops.size(); ++i) {
        if (run.ops[i].head.kind != kLinear) continue;
        const LinearOp& op = run.ops[i].linear;
        if (op.routing.experts) return nullptr;
        return with_format<F>(op.weight.format, [&](auto panel) {
            using Panel = typename decltype(panel)::type;
            return Panel(op, Panel::cut(op, run.step_of(run.ops[i])).first_panel(thread_index, run.threads)).at(0);
        });
    }
    return nullptr;
}

// A function that runs a product, given the panel type of its weights.
template <class F>
auto product(Run& run, int index) {
    return [&run, index](auto panel) {
        const Op& op = run.ops[index];
        linear<typename decltype(panel)::type>(run, index, op.linear, run.step_of(op), [&] { return upcoming_weights<F>(run, index); });
    };
}

}  // namespace
}  // namespace djl
