// The embedding of an encoder's tokens: rows of up to three tables, added up.

#pragma once

#include "program.h"
#include "rows/rowwise.h"
#include "thread_pool.h"
#include "vectors/formats.h"

namespace djl {
namespace {

// All layers of an encoder have their keys and values in the same memory, one after the other. What a sequence's last group
// has behind its end is cleared once: weights there are zero, but zero times an infinity of another text is not.
template <class F>
void embed_text(Run& run, int index, const EmbedTextOp& op, const StepInputs& step) {
    using T = typename F::T;
    run.parallel_for_rows(index, step.tokens, [&](int t) {
        const int64_t slot = step.slots[t];
        if (step.positions[t] + 1 == step.lengths[t]) clear_value_groups<F>(run, step, slot - slot % kKeysPerGroup);
        const T* word = (const T*)op.table + step.ids[t] * op.n;
        const T* place = op.position_table ? (const T*)op.position_table + step.places[t] * op.n : nullptr;
        const T* type = op.type_table ? (const T*)op.type_table + step.type_ids[t] * op.n : nullptr;
        float* out = (float*)op.out + (int64_t)t * op.n;
        for (int i = 0; i < op.n; i += 16) {
            const Lanes mask = lanes_of(op.n - i);
            Floats sum = F::load(word + i, mask) * floats(op.scale);
            if (type) sum = sum + F::load(type + i, mask);
            if (place) sum = sum + F::load(place + i, mask);
            store_floats(out + i, sum, mask);
        }
    });
}

}  // namespace
}  // namespace djl
