// The gated delta rule: attention whose memory is a recurrent state of fixed size.
//
// A head's state is a matrix (dim, value_dim) in fp32. A token decays it by e^g, reads the value that it has for the token's
// key, and adds beta times the difference to the token's value: S = e^g S; S += k (beta (v - kS)); the output is qS. Columns
// don't depend on each other. So a task is some columns of a head, for all tokens of a sequence in order, and keeps them
// in L1 meanwhile.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "program.h"
#include "thread_pool.h"
#include "vectors/formats.h"

namespace djl {
namespace {

constexpr int kMaxDim = 256;  // rows of a state
constexpr int kMaxColumnVectors = kSumRegisters >= 16 ? 8 : 2;  // of a task

// Writes a row (dim,) T in fp32, times a factor; with `unit`, it is normalized to length one first.
template <class F>
inline void load_scaled(const typename F::T* from, int dim, float eps, bool unit, float factor, float* out) {
    Floats squares = Floats{};
    for (int i = 0; i < dim; i += 16) {
        const Floats x = F::load(from + i, 0xffff);
        squares = fma(x, x, squares);
        store_floats(out + i, x);
    }
    if (unit) factor /= sqrtf(sum_of_lanes(squares) + eps);
    for (int i = 0; i < dim; i += 16)
        store_floats(out + i, load_floats(out + i) * floats(factor));
}

// Takes V vectors of columns of a head's state through a span, token by token.
template <class F, int V>
void delta_columns(const DeltaRuleOp& op, const StepInputs& step, int span, int head, int column) {
    using T = typename F::T;
    alignas(64) float held[kMaxDim * V * 16], key[kMaxDim], query[kMaxDim];
    const int64_t first = step.span_start[span], end = first + step.span_size[span];
    const int64_t of_head = (int64_t)head * op.dim * op.value_dim + column;
    auto save = [&](int slot) {
        float* state = state_in<float>(op.states, step, slot) + of_head;
        for (int i = 0; i < op.dim; ++i) memcpy(state + (int64_t)i * op.value_dim, held + i * V * 16, V * 64);
    };
    if (step.span_source[span] < 0) {
        memset(held, 0, (size_t)op.dim * V * 64);
    } else {
        const float* state = state_in<float>(op.states, step, step.span_source[span]) + of_head;
        for (int i = 0; i < op.dim; ++i) memcpy(held + i * V * 16, state + (int64_t)i * op.value_dim, V * 64);
    }
    const int key_head = head / (op.heads / op.key_heads);
    for (int64_t t = first; t < end; ++t) {
        const int64_t of_key = t * op.stride + key_head * op.dim;
        load_scaled<F>((const T*)op.in + of_key, op.dim, op.eps, op.unit, op.scale, query);
        load_scaled<F>((const T*)op.keys + of_key, op.dim, op.eps, op.unit, 1, key);
        const Floats decay = floats(expf(op.g[t * op.rate_stride + head]));
        const Floats beta = floats(op.beta[t * op.rate_stride + head]);
        Floats missing[V], answer[V];
        for (int v = 0; v < V; ++v) missing[v] = answer[v] = Floats{};
        for (int i = 0; i < op.dim; ++i)
            for (int v = 0; v < V; ++v)
                missing[v] = fma(floats(key[i]), load_floats(held + (i * V + v) * 16), missing[v]);
        for (int v = 0; v < V; ++v) {
            const Floats value = F::load(
                (const T*)op.values + t * op.value_stride + head * op.value_dim + column + v * 16, 0xffff);
            missing[v] = beta * fma(-decay, missing[v], value);
        }
        for (int i = 0; i < op.dim; ++i)
            for (int v = 0; v < V; ++v) {
                float* at = held + (i * V + v) * 16;
                const Floats next = fma(floats(key[i]), missing[v], decay * load_floats(at));
                store_floats(at, next);
                answer[v] = fma(floats(query[i]), next, answer[v]);
            }
        for (int v = 0; v < V; ++v)
            F::store((T*)op.out + (t * op.heads + head) * op.value_dim + column + v * 16, answer[v]);
        save_states(step, span, t + 1 - first, save);
    }
    save(step.span_slot[span]);
}

template <class F>
void delta_rule(Run& run, int index, const DeltaRuleOp& op, const StepInputs& step) {
    // With several tokens in a span, 64 columns (16 without AVX-512) stay in L1; with one, memory is read in longer stretches.
    const int max_vectors = step.tokens > step.spans ? kMaxColumnVectors / 2 : kMaxColumnVectors;
    int vectors = 1;
    while (vectors < max_vectors && op.value_dim % (vectors * 32) == 0) vectors *= 2;
    const int blocks = op.value_dim / (vectors * 16);
    run.parallel_for_ordered(index, step.spans * op.heads * blocks, [&](int task) {
        const int head = task / blocks % op.heads, column = task % blocks * vectors * 16, span = task / blocks / op.heads;
        switch (vectors) {
            case 8: return delta_columns<F, 8>(op, step, span, head, column);
            case 4: return delta_columns<F, 4>(op, step, span, head, column);
            case 2: return delta_columns<F, 2>(op, step, span, head, column);
            default: return delta_columns<F, 1>(op, step, span, head, column);
        }
    });
}

template <class F>
void delta_rates(Run& run, int index, const DeltaRatesOp& op, const StepInputs& step) {
    using T = typename F::T;
    run.parallel_for_rows(index, step.tokens, [&](int64_t t) {
        float* out = op.out + t * 2 * op.heads;
        for (int h = 0; h < op.heads; h += 16) {
            const Lanes mask = lanes_of(op.heads - h);
            auto of_heads = [&](const float* from) { return load_floats(from + h, mask); };
            auto given = [&](const void* from) { return F::load((const T*)from + t * op.stride + h, mask); };
            const Floats dt = softplus(given(op.in) + of_heads(op.bias));
            const Floats exp_minus = exp(-given(op.input_rates));
            const Floats beta = floats(op.max_beta) / (floats(1.0f) + exp_minus);
            store_floats(out + h, of_heads(op.decay) * dt, mask);
            store_floats(out + op.heads + h, beta, mask);
        }
    });
}

}  // namespace
}  // namespace djl
