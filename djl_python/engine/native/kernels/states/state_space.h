// The state-space models of Mamba 1 and 2: each token decays a recurrent state and adds its input to it.

#pragma once

#include <cmath>

#include "program.h"
#include "thread_pool.h"
#include "vectors/formats.h"

namespace djl {
namespace {

constexpr int kMaxState = 256;  // numbers of state for each dimension of a head

// Runs a head through a span, token by token: S = e^(A dt) S + (dt x) B; y = S C + D x. The state stays in L1.
template <class F>
void mamba2_head(const Mamba2ScanOp& op, const StepInputs& step, int span, int head) {
    using T = typename F::T;
    alignas(64) float B[kMaxState], C[kMaxState], made[16];
    const int64_t first = step.span_start[span], end = first + step.span_size[span];
    const int64_t size = (int64_t)op.dim * op.state_size;
    float* state = state_in<float>(op.states, step, step.span_slot[span]) + head * size;
    const int source = step.span_source[span];
    if (source < 0) memset(state, 0, size * sizeof(float));
    else if (source != step.span_slot[span]) memcpy(state, state_in<float>(op.states, step, source) + head * size, size * sizeof(float));
    const int group = head / (op.heads / op.head_groups);
    const float D = op.D ? op.D[head] : 0;
    for (int64_t t = first; t < end; ++t) {
        const int64_t shared = t * op.shared_stride + group * op.state_size, to = (t * op.heads + head) * op.dim;
        const T* in = (const T*)op.in + t * op.stride + head * op.dim;
        for (int n = 0; n < op.state_size; n += 16) {
            store_floats(B + n, F::load((const T*)op.B + shared + n, 0xffff));
            store_floats(C + n, F::load((const T*)op.C + shared + n, 0xffff));
        }
        const float dt = op.dt[t * op.heads + head];
        const Floats decay = floats(expf(dt * op.A[head]));
        for (int p = 0; p < op.dim; ++p) {
            const float x = F::to(in[p]);
            const Floats dt_x = floats(dt * x);
            Floats sum = Floats{};
            for (int n = 0; n < op.state_size; n += 16) {
                float* at = state + (int64_t)p * op.state_size + n;
                const Floats next = fma(dt_x, load_floats(B + n), decay * load_floats(at));
                store_floats(at, next);
                sum = fma(next, load_floats(C + n), sum);
            }
            made[p % 16] = sum_of_lanes(sum) + D * x;
            if (p % 16 < 15 && p + 1 < op.dim) continue;
            const Lanes lanes = lanes_of(p % 16 + 1);
            if (op.rounded) F::store((T*)op.out + to + p / 16 * 16, load_floats(made), lanes);
            else store_floats((float*)op.out + to + p / 16 * 16, load_floats(made), lanes);
        }
        save_states(step, span, t + 1 - first, [&](int slot) {
            memcpy(state_in<float>(op.states, step, slot) + head * size, state, size * sizeof(float));
        });
    }
}

template <class F>
void mamba2_scan(Run& run, int index, const Mamba2ScanOp& op, const StepInputs& step) {
    run.parallel_for_ordered(index, step.spans * op.heads,
                             [&](int task) { mamba2_head<F>(op, step, task / op.heads, task % op.heads); });
}

template <class F>
void step_sizes(Run& run, int index, const StepSizesOp& op, const StepInputs& step) {
    run.parallel_for_ordered(index, step.tokens, [&](int t) {
        const auto* in = (const typename F::T*)op.in + (int64_t)t * op.stride;
        auto* out = op.out + (int64_t)t * op.heads;
        for (int h = 0; h < op.heads; h += 16) {
            const Lanes mask = lanes_of(op.heads - h);
            const Floats dt = softplus(F::load(in + h, mask) + load_floats(op.bias + h, mask));
            const Floats raised = max(dt, floats(op.least_step));
            store_floats(out + h, min(raised, floats(op.greatest_step)), mask);
        }
    });
}

// Runs sixteen channels of Mamba 1's state space through a span, token by token. Each channel has a state of N numbers
// (state_size, if N is 0) and a decay for each of them: S = e^(A dt) S + (dt x) B; y = S C + D x.
template <class F, int N>
void mamba1_channels(const Mamba1ScanOp& op, const StepInputs& step, int span, int channel) {
    using T = typename F::T;
    const int size = N ? N : op.state_size;
    const Lanes lanes = lanes_of(op.channels - channel);
    auto vector = [&](const float* from) { return load_floats(from + channel, lanes); };
    Floats held[N ? N : kMaxState];
    const int source = step.span_source[span];
    for (int n = 0; n < size; ++n)
        held[n] = source < 0 ? Floats{} : vector(state_in<float>(op.states, step, source) + (int64_t)n * op.channels);
    auto save = [&](int slot) {
        float* state = state_in<float>(op.states, step, slot) + channel;
        for (int n = 0; n < size; ++n) store_floats(state + (int64_t)n * op.channels, held[n], lanes);
    };
    const float* A = op.A;
    const Floats none = Floats{};
    const Floats bias = op.dt_bias ? vector(op.dt_bias) : none, D = op.D ? vector(op.D) : none;
    const int64_t first = step.span_start[span], end = first + step.span_size[span];
    for (int64_t t = first; t < end; ++t) {
        const Floats x = F::load((const T*)op.in + t * op.channels + channel, lanes);
        const Floats dt = softplus(vector(op.dt + t * op.channels) + bias), dt_x = dt * x;
        const T *B = (const T*)op.B + t * op.shared_stride, *C = (const T*)op.C + t * op.shared_stride;
        Floats sum = D * x;
        for (int n = 0; n < size; ++n) {
            const Floats decay = exp(dt * vector(A + (int64_t)n * op.channels));
            held[n] = fma(decay, held[n], dt_x * floats(F::to(B[n])));
            sum = fma(held[n], floats(F::to(C[n])), sum);
        }
        F::store((T*)op.out + t * op.channels + channel, sum, lanes);
        save_states(step, span, t + 1 - first, save);
    }
    save(step.span_slot[span]);
}

template <class F>
void mamba1_scan(Run& run, int index, const Mamba1ScanOp& op, const StepInputs& step) {
    const int blocks = (op.channels + 15) / 16;
    run.parallel_for_ordered(index, step.spans * blocks, [&](int task) {
        if (op.state_size == 16) mamba1_channels<F, 16>(op, step, task / blocks, task % blocks * 16);
        else mamba1_channels<F, 0>(op, step, task / blocks, task % blocks * 16);
    });
}

}  // namespace
}  // namespace djl
