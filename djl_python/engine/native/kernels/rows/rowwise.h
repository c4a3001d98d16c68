// Operations on single rows: embedding, norms, gates, collecting the rows whose logits are wanted.

#pragma once

#include "attention/rope_kv_cache.h"
#include "linear/bf16_12bit.h"
#include "linear/block_codes.h"
#include "linear/integer_linear.h"
#include "prefetch.h"
#include "program.h"
#include "thread_pool.h"
#include "vectors/activations.h"
#include "vectors/formats.h"

namespace djl {
namespace {

// Clears the values of a group of keys that a token begins, in all layers. The rest of the group has a former owner's values.
// Their weights are zero, but zero times an infinity or NaN is not.
template <class F>
void clear_value_groups(const Run& run, const StepInputs& step, int64_t slot) {
    if (slot % kKeysPerGroup) return;
    const void* cleared = nullptr;  // all layers of an encoder have the same memory
    for (const Op& op : run.ops) {
        if (op.head.kind != kRopeKvCache) continue;
        const HeadRows& rows = op.rope_kv_cache.rows;
        if (!rows.cache || rows.cache == cleared) continue;  // none: it reads another layer's
        cleared = rows.cache;
        const int group = (int)(slot % step.block_size) / kKeysPerGroup;
        for (int h = 0; h < rows.kv_heads; ++h)
            memset(value_group<F>(rows, step, slot / step.block_size, h, group), 0,
                   (size_t)rows.value_dim * kKeysPerGroup * sizeof(typename F::T));
    }
}

// Prepares the cache for the step's tokens, in programs without an EmbedOp, which does it otherwise.
template <class F>
void clear_values(Run& run, int index, const StepInputs& step) {
    run.parallel_for(index, step.tokens, [&](int t) { clear_value_groups<F>(run, step, step.slots[t]); });
}

// Comes before all RopeKvCacheOps of a step, so it prepares the cache too.
template <class F>
void embed(Run& run, int index, const EmbedOp& op, const StepInputs& step) {
    auto table = (const typename F::T*)op.table;
    auto head = (const typename F::T*)op.head.panels;
    auto positions = (const typename F::T*)op.positions;
    run.parallel_for(index, step.tokens, [&](int t) {
        clear_value_groups<F>(run, step, step.slots[t]);
        float* out = (float*)op.out + (int64_t)t * op.n;
        if (table) {
            const auto* row = table + step.ids[t] * op.n;
            for (int i = 0; i < op.n; ++i) out[i] = F::to(row[i]) * op.scale;
        } else if (!head) {
            memset(out, 0, (size_t)op.n * sizeof *out);
        } else if (op.head.format == kInt8) {
            for (int i = 0; i < op.n; ++i) out[i] = int8_weight(op.head, op.n, step.ids[t], i) * op.scale;
        } else if (op.head.format >= kBlocks2) {
            block_column(op.head, op.n, step.ids[t], op.scale, out);
        } else if (op.head.format == kTwelveBit) {
            twelve_bit_column(op.head, op.n, (int)step.ids[t], op.scale, out);
        } else {
            const auto* column = head + step.ids[t] / kPanel * kPanel * op.n + step.ids[t] % kPanel * F::pair;
            for (int i = 0; i < op.n; ++i)
                out[i] = F::to(column[(int64_t)(i / F::pair) * kPanel * F::pair + i % F::pair]) * op.scale;
        }
        if (positions) {
            const auto* more = positions + (step.positions[t] + op.position_offset) * op.n;
            for (int i = 0; i < op.n; ++i) out[i] += F::to(more[i]);
        }
    });
}

template <class F>
void norm(Run& run, int index, const NormOp& op, const StepInputs& step) {
    run.parallel_for_rows(index, step.tokens * op.rows_per_token, [&](int t) {
        const float* x = (const float*)op.in + (int64_t)t * op.n;
        auto* row = (typename F::T*)op.out + t * apart(op.pitch, op.n);
        if (op.mode == kStore) take_ownership(row, op.n);
        float mean, inverse;
        norm_statistics(x, op.n, op.norm, op.eps, mean, inverse);
        auto value = [&](int i, Lanes mask) {
            Floats v = load_floats(x + i, mask) - floats(mean);
            v = v * floats(inverse);
            if (op.weight) v = v * load_floats(op.weight + i, mask);
            if (op.bias) v = v + load_floats(op.bias + i, mask);
            return v;
        };
        for (int i = 0; i < op.n; i += 16) {
            const Lanes mask = lanes_of(op.n - i);
            if (op.mode == kStore) {
                F::store(row + i, value(i, mask), mask);
                continue;
            }
            float* out = (float*)op.out + (int64_t)t * op.n + i;
            Floats made = value(i, mask);
            if (op.mode == kAdd)
                made = fma(made, floats(op.scale), load_floats(out, mask));
            store_floats(out, made, mask);
        }
    });
}

template <class F>
void group_norm(Run& run, int index, const GroupNormOp& op, const StepInputs& step) {
    using T = typename F::T;
    thread_local std::vector<float> room;
    run.parallel_for_rows(index, step.tokens, [&](int64_t t) {
        room.resize(op.group + 16);
        for (int first = 0; first < op.n; first += op.group) {
            const int64_t at = t * op.n + first;
            const int64_t opening = t * op.gate_stride + first;
            auto gate = [&](int i, Lanes mask) { return activate<F>(F::load((const T*)op.gate + opening + i, mask), kSilu); };
            for (int i = 0; i < op.group; i += 16) {
                const Lanes mask = lanes_of(op.group - i);
                Floats x = F::load((const T*)op.in + at + i, mask);
                if (op.gate && op.gate_first) x = x * gate(i, mask);
                store_floats(room.data() + i, x, mask);
            }
            float mean, inverse;
            norm_statistics(room.data(), op.group, op.norm, op.eps, mean, inverse);
            for (int i = 0; i < op.group; i += 16) {
                const Lanes mask = lanes_of(op.group - i);
                Floats x = load_floats(room.data() + i, mask) - floats(mean);
                x = x * floats(inverse);
                x = x * load_floats(op.weight + first + i, mask);
                if (op.bias) x = x + load_floats(op.bias + first + i, mask);
                if (op.gate && !op.gate_first) x = x * gate(i, mask);
                F::store((T*)op.out + t * apart(op.pitch, op.n) + first + i, x, mask);
            }
        }
    });
}

template <class F>
void gate(Run& run, int index, const GateOp& op, const StepInputs& step) {
    const Floats one = floats(1.0f);
    run.parallel_for(index, step.tokens, [&](int t) {
        const float* from = (const float*)op.in + (int64_t)t * op.stride;
        auto* out = (typename F::T*)op.out + t * apart(op.pitch, op.n);
        for (int i = 0; i < op.n; i += 16) {
            const Lanes mask = lanes_of(op.n - i);
            const Floats x = load_floats(from + i, mask), was = F::load(out + i, mask);
            const Floats opened = one + exp(-x);
            F::store(out + i, op.plain ? was * x : was / opened, mask);
        }
    });
}

inline void gather(Run& run, int index, const GatherOp& op, const StepInputs& step) {
    run.parallel_for(index, step.wanted, [&](int t) {
        memcpy((float*)op.out + (int64_t)t * op.n, (const float*)op.in + step.rows[t] * op.n, (size_t)op.n * 4);
    });
}

}  // namespace
}  // namespace djl
