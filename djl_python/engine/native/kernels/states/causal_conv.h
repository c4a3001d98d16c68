// Short causal depthwise convolutions, which hybrid models apply before their recurrent states.

#pragma once

#include <algorithm>
#include <cstring>

#include "program.h"
#include "thread_pool.h"
#include "vectors/activations.h"
#include "vectors/formats.h"

namespace djl {
namespace {

constexpr int kChannelsPerTask = 64;       // whole cache lines of each token
constexpr int kChannelsPerSpanTask = 512;  // of a task that covers all spans: memory is read in longer stretches
constexpr int kMaxTaps = 8;

// The taps of 16 channels, the last of which multiplies the newest token, and their bias.
template <class F>
struct Taps {
    Floats weight[kMaxTaps], bias;
    Lanes lanes;

    Taps(const CausalConvOp& op, int channel) : bias(Floats{}), lanes(lanes_of(op.n - channel)) {
        alignas(64) float transposed[kMaxTaps][16] = {};
        const auto* from = (const typename F::T*)op.weight + (int64_t)channel * op.taps;
        for (int c = 0; c < std::min(16, op.n - channel); ++c)
            for (int k = 0; k < op.taps; ++k) transposed[k][c] = F::to(from[c * op.taps + k]);
        for (int k = 0; k < op.taps; ++k) weight[k] = load_floats(transposed[k]);
        if (op.bias) bias = F::load((const typename F::T*)op.bias + channel, lanes);
    }
};

// Convolves sixteen channels of a prompt, which nothing precedes.
template <class F>
void convolve(const CausalConvOp& op, int64_t sequence, int channel) {
    using T = typename F::T;
    const Taps<F> taps(op, channel);
    const int tokens = op.tokens, before = op.taps - 1, channels = std::min(16, op.n - channel);
    T* out = (T*)op.out + sequence * tokens * op.n + channel;
    if (op.by_token) {
        const T* in = (const T*)op.in + sequence * tokens * op.n + channel;
        for (int t = 0; t < tokens; ++t) {
            Floats sum = taps.bias;
            for (int k = std::max(0, before - t); k < op.taps; ++k)
                sum = fma(taps.weight[k], F::load(in + (int64_t)(t - before + k) * op.n, taps.lanes), sum);
            F::store(out + (int64_t)t * op.n, activate<F>(sum, op.activation), taps.lanes);
        }
        return;
    }
    const T* in = (const T*)op.in + (sequence * op.n + channel) * tokens;
    alignas(64) float transposed[16][16] = {};
    for (int first = 0; first < tokens; first += 16) {
        for (int c = 0; c < channels; ++c) {
            Floats sum = Floats{};
            for (int k = 0; k < op.taps; ++k) {
                const int from = first - before + k;
                const Lanes known = lanes_of(tokens - from) & (from < 0 ? (Lanes)(0xffff << std::min(16, -from)) : 0xffff);
                const Floats weight = floats(F::to(((const T*)op.weight)[(int64_t)(channel + c) * op.taps + k]));
                sum = fma(weight, F::load(in + (int64_t)c * tokens + from, known), sum);
            }
            store_floats(transposed[c], sum);
        }
        for (int t = first; t < std::min(tokens, first + 16); ++t) {
            const Floats sum = taps.bias + load_column(&transposed[0][t - first]);
            F::store(out + (int64_t)t * op.n, activate<F>(sum, op.activation), taps.lanes);
        }
    }
}

// Convolves one more token. The oldest input of its sequence's state is dropped.
template <class F>
void convolve_next(const CausalConvOp& op, const Taps<F>& taps, int64_t sequence, int channel) {
    using T = typename F::T;
    const int channels = std::min(16, op.n - channel);
    const T* in = (const T*)op.in + sequence * op.n + channel;
    T* state = (T*)op.states + (sequence * op.n + channel) * op.taps;
    alignas(64) float transposed[kMaxTaps][16] = {};
    for (int c = 0; c < channels; ++c) {
        T* of = state + c * op.taps;
        for (int k = 0; k + 1 < op.taps; ++k) transposed[k][c] = F::to(of[k] = of[k + 1]);
        transposed[op.taps - 1][c] = F::to(of[op.taps - 1] = in[c]);
    }
    Floats sum = taps.bias;
    for (int k = 0; k < op.taps; ++k) sum = fma(taps.weight[k], load_floats(transposed[k]), sum);
    F::store((T*)op.out + sequence * op.n + channel, activate<F>(sum, op.activation), taps.lanes);
}

// For pairs of bf16: the product of the lower halves of a and b plus the product of their upper halves.
inline Floats products_of_pairs(Ints a, Ints b) {
    const Ints upper = ints((int32_t)0xffff0000);
    const Floats high = as_floats(a & upper) * as_floats(b & upper);
    return fma(as_floats(shift_left<16>(a)), as_floats(shift_left<16>(b)), high);
}

// convolve_next for sixteen channels with four taps in bf16, as most models have: a channel's state is 64 bits.
inline void convolve_next_of_four(const CausalConvOp& op, Floats bias, int64_t sequence, int channel) {
    const auto* newest = (const uint16_t*)op.in + sequence * op.n + channel;
    auto* state = (Ints*)((uint16_t*)op.states + (sequence * op.n + channel) * 4);
    const auto* weight = (const Ints*)((const uint16_t*)op.weight + (int64_t)channel * 4);
    Floats pairs[2];
    for (int half = 0; half < 2; ++half) {
        const Ints last = shift_longs_left<48>(load_longs(newest + half * 8));
        const Ints now = shift_longs_right<16>(load_ints(state + half)) | last;
        store_ints(state + half, now);
        pairs[half] = products_of_pairs(now, load_ints(weight + half));
    }
    const Ints even = shift_left<1>(iota_ints()), odd = add_ints(even, ints(1));
    const Floats sum = permute_two(pairs[0], even, pairs[1]) + permute_two(pairs[0], odd, pairs[1]);
    BF16::store((uint16_t*)op.out + sequence * op.n + channel, activate<BF16>(sum + bias, op.activation));
}

template <class F>
void causal_conv(Run& run, int index, const CausalConvOp& op, const StepInputs& step) {
    const int blocks = (op.n + kChannelsPerTask - 1) / kChannelsPerTask;
    if (!op.states) {
        run.parallel_for_ordered(index, step.wanted * blocks, [&](int task) {
            const int first = task % blocks * kChannelsPerTask;
            for (int channel = first; channel < std::min(op.n, first + kChannelsPerTask); channel += 16)
                convolve<F>(op, task / blocks, channel);
        });
        return;
    }
    run.parallel_for_ordered(index, blocks, [&](int task) {
        const int first = task * kChannelsPerTask;
        for (int channel = first; channel < std::min(op.n, first + kChannelsPerTask); channel += 16) {
            const Taps<F> taps(op, channel);
            for (int64_t sequence = 0; sequence < step.wanted; ++sequence)
                if (F::pair == 2 && op.taps == 4 && taps.lanes == 0xffff)
                    convolve_next_of_four(op, taps.bias, sequence, channel);
                else
                    convolve_next<F>(op, taps, sequence, channel);
        }
    });
}

// Numbers as F stores them.
template <class F>
inline Floats rounded(Floats x) {
    typename F::T stored[16];
    F::store(stored, x);
    return F::load(stored, 0xffff);
}

// Convolves sixteen channels of a span's tokens, with K taps; K is 0 for any other number of taps.
template <class F, int K>
void convolve_span(const CausalConvSpansOp& op, const StepInputs& step, int span, int channel) {
    using T = typename F::T;
    const int taps = K ? K : op.taps, before = taps - 1;
    const Lanes lanes = lanes_of(op.n - channel);
    auto state_of = [&](int slot) { return state_in<T>(op.states, step, slot) + channel; };
    const int source = step.span_source[span], next = span + 1 < step.spans ? step.span_source[span + 1] : -1;
    for (int k = 0; next >= 0 && k < before; ++k) __builtin_prefetch(state_of(next) + (int64_t)k * op.n, 1);
    Floats weight[K ? K : kMaxTaps], past[K ? K : kMaxTaps];  // the oldest first
    for (int k = 0; k < taps; ++k) weight[k] = load_floats(op.weight + (int64_t)k * op.n + channel, lanes);
    for (int k = 0; k < before; ++k)
        past[k] = source < 0 ? Floats{} : F::load(state_of(source) + (int64_t)k * op.n, lanes);
    auto save = [&](int slot) {
        for (int k = 0; k < before; ++k) F::store(state_of(slot) + (int64_t)k * op.n, past[k], lanes);
    };
    const Floats bias = op.bias ? load_floats(op.bias + channel, lanes) : Floats{};
    const int64_t first = step.span_start[span], end = first + step.span_size[span];
    for (int64_t t = first; t < end; ++t) {
        const int64_t at = t * op.stride + channel;
        Floats x = F::load((const T*)op.in + at, lanes);
        // Rounded as in a state: a token finds the same numbers before it in its own span and in an earlier one.
        if (op.in_factors) x = rounded<F>(x * F::load((const T*)op.in_factors + at, lanes));
        Floats sum = fma(weight[before], x, bias);
        for (int k = 0; k < before; ++k) {
            sum = fma(weight[k], past[k], sum);
            past[k] = k + 1 < before ? past[k + 1] : x;
        }
        Floats made = activate<F>(sum, op.activation);
        if (op.out_factors) made = made * F::load((const T*)op.out_factors + at, lanes);
        F::store((T*)op.out + t * op.n + channel, made, lanes);
        save_states(step, span, t + 1 - first, save);
    }
    save(step.span_slot[span]);
}

template <class F>
void causal_conv_spans(Run& run, int index, const CausalConvSpansOp& op, const StepInputs& step) {
    const int blocks = (op.n + kChannelsPerSpanTask - 1) / kChannelsPerSpanTask;
    run.parallel_for_ordered(index, blocks, [&](int task) {
        for (int span = 0; span < step.spans; ++span)
            for (int channel = task * kChannelsPerSpanTask;
                 channel < std::min(op.n, (task + 1) * kChannelsPerSpanTask); channel += 16)
                switch (op.taps) {
                    case 3: convolve_span<F, 3>(op, step, span, channel); break;
                    case 4: convolve_span<F, 4>(op, step, span, channel); break;
                    default: convolve_span<F, 0>(op, step, span, channel);
                }
    });
}

}  // namespace
}  // namespace djl
