// Matrix products of all weight formats. float_products.cpp and integer_products.cpp compile them separately.

#pragma once

#include "bf16_12bit.h"
#include "float_linear.h"
#include "integer_linear.h"
#include "program.h"
#include "thread_pool.h"

namespace djl {

// Run an operation that is a product; see linear.h.
void multiply_floats(Run& run, int index);
void multiply_integers(Run& run, int index);

// Run an operation that multiplies little of a weight; see rescore.h.
void pick_tokens(Run& run, int index);

namespace {

inline bool of_integers(const Op& op) { return op.format == kEight || op.format == kFour || op.format == kEightByGroup; }

// Call work with the panel type of a weight's format.
template <class F, class Work>
auto with_float_format(const Op& op, Work work) {
    if (op.format == kTwelve) return work(Type<FloatPanel<BF16, TwelveWeights>>{});
    return work(Type<FloatPanel<F, PlainWeights>>{});
}

template <class F, class Work>
auto with_integer_format(const Op& op, Work work) {
    switch (op.format) {
        case kEight: return work(Type<IntegerPanel<F, Eight>>{});
        case kFour: return work(Type<IntegerPanel<F, Four>>{});
        default: return work(Type<IntegerPanel<F, EightByGroup>>{});
    }
}

template <class F, class Work>
auto with_format(const Op& op, Work work) {
    return of_integers(op) ? with_integer_format<F>(op, work) : with_float_format<F>(op, work);
}

// Where this thread's share of the next product's weights begins; null if no product follows, or it has experts.
template <class F>
const char* upcoming_weights(const Run& run, int index) {
    for (int i = index + 1; i < (int)run.ops.size(); ++i) {
        const Op& op = run.ops[i];
        if (op.kind != kLinear) continue;
        if (op.experts) return nullptr;
        return with_format<F>(op, [&](auto panel) {
            using Panel = typename decltype(panel)::type;
            return Panel(op, Panel::cut(op, run.step_of(op)).first_panel(thread_index, run.threads)).at(0);
        });
    }
    return nullptr;
}

// A function that runs a product, given the panel type of its weights.
template <class F>
auto product(Run& run, int index) {
    return [&run, index](auto panel) {
        const Op& op = run.ops[index];
        linear<typename decltype(panel)::type>(run, index, op, run.step_of(op), [&] { return upcoming_weights<F>(run, index); });
    };
}

}  // namespace
}  // namespace djl
