// Operations on single rows: embedding, norms, the choice of rows whose logits are wanted.

#pragma once

#include "formats.h"
#include "heads.h"
#include "linear.h"
#include "pool.h"
#include "program.h"
#include "quantized.h"
#include "twelve.h"

namespace {

// A token that begins a group of keys finds a former owner's values in the rest of it. Their weights are zero, but zero
// times that owner's infinity or NaN is not: in all layers, the group starts empty.
template <class F>
void empty_groups(const Run& run, const Step& step, int64_t slot) {
    if (slot % kKeys) return;
    for (const Op& op : run.ops) {
        if (op.kind != kHeads || !op.keys) continue;
        const int group = (int)(slot % step.block_size) / kKeys;
        for (int h = 0; h < op.kv_heads; ++h)
            memset(value_group<F>(op, step, slot / step.block_size, h, group), 0,
                   (size_t)op.value_dim * kKeys * sizeof(typename F::T));
    }
}

// Prepares the cache for the step's tokens, where nothing else comes before they are stored.
template <class F>
void empty(Run& run, int index, const Step& step) {
    run.share(index, step.tokens, [&](int t) { empty_groups<F>(run, step, step.slots[t]); });
}

// out (tokens, n) fp32 = weight[id] * scale (+ bias[position]: learned positions). The first operation of a step.
template <class F>
void embed(Run& run, int index, const Op& op, const Step& step) {
    auto table = (const typename F::T*)op.weight;
    auto positions = (const typename F::T*)op.bias;
    run.share(index, step.tokens, [&](int t) {
        empty_groups<F>(run, step, step.slots[t]);
        float* out = (float*)op.out + (int64_t)t * op.n;
        if (op.mode == 1 && op.format == kEight) {
            for (int i = 0; i < op.n; ++i) out[i] = code_of(op, step.ids[t], i) * op.scale;
        } else if (op.mode == 1 && op.format == kTwelve) {
            twelve_column(op, op.n, (int)step.ids[t], op.scale, out);
        } else if (op.mode == 1) {  // the table is the head's packed weight
            const auto* column = table + step.ids[t] / kPanel * kPanel * op.n + step.ids[t] % kPanel * F::pair;
            for (int i = 0; i < op.n; ++i)
                out[i] = F::to(column[(int64_t)(i / F::pair) * kPanel * F::pair + i % F::pair]) * op.scale;
        } else {
            const auto* row = table + step.ids[t] * op.n;
            for (int i = 0; i < op.n; ++i) out[i] = F::to(row[i]) * op.scale;
        }
        if (positions) {
            const auto* more = positions + (step.positions[t] + op.k) * op.n;
            for (int i = 0; i < op.n; ++i) out[i] += F::to(more[i]);
        }
    });
}

// The norm of in (rows, n) fp32, stored as `mode` says; what is added is multiplied by `scale`.
template <class F>
void norm(Run& run, int index, const Op& op, const Step& step) {
    const int rows = rows_of(op, step);
    const auto* weight = (const float*)op.weight;
    run.share(index, rows, [&](int t) {
        const float* x = (const float*)op.in + (int64_t)t * op.n;
        float mean, inverse;
        normalize(x, op.n, op.norm, op.eps, mean, inverse);
        auto value = [&](int i, __mmask16 mask) {
            __m512 v = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), _mm512_set1_ps(mean));
            v = _mm512_mul_ps(v, _mm512_set1_ps(inverse));
            if (weight) v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, weight + i));
            if (op.bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, op.bias + i));
            return v;
        };
        for (int i = 0; i < op.n; i += 16) {
            const __mmask16 mask = lanes_of(op.n - i);
            if (op.mode == 0) {
                F::store((typename F::T*)op.out + t * pitch_of(op, op.n) + i, value(i, mask), mask);
                continue;
            }
            float* out = (float*)op.out + (int64_t)t * op.n + i;
            __m512 made = value(i, mask);
            if (op.mode == 1)
                made = _mm512_fmadd_ps(made, _mm512_set1_ps(op.scale), _mm512_maskz_loadu_ps(mask, out));
            _mm512_mask_storeu_ps(out, mask, made);
        }
    });
}

// The norm of in (tokens, n) T, of each k columns by themselves, out T. With keys, a gate, rows of (n,) T `stride` apart: its
// silu multiplies what the norm makes (mode 0) or is given (mode 1).
template <class F>
void norm_rows(Run& run, int index, const Op& op, const Step& step) {
    using T = typename F::T;
    constexpr int kTogether = 8;
    thread_local std::vector<float> room;
    const auto* weight = (const float*)op.weight;
    run.share_in_order(index, (step.tokens + kTogether - 1) / kTogether, [&](int task) {
        room.resize(op.k + 16);
        const int64_t begin = (int64_t)task * kTogether, end = std::min<int64_t>(begin + kTogether, step.tokens);
        for (int64_t t = begin; t < end; ++t)
            for (int first = 0; first < op.n; first += op.k) {
                const int64_t at = t * op.n + first;
                const T* gates = (const T*)op.keys + t * op.stride + first;
                auto gate = [&](int i, __mmask16 mask) { return activate(F::load(gates + i, mask), kSilu); };
                for (int i = 0; i < op.k; i += 16) {
                    const __mmask16 mask = lanes_of(op.k - i);
                    __m512 x = F::load((const T*)op.in + at + i, mask);
                    if (op.keys && op.mode == 1) x = _mm512_mul_ps(x, gate(i, mask));
                    _mm512_mask_storeu_ps(room.data() + i, mask, x);
                }
                float mean, inverse;
                normalize(room.data(), op.k, op.norm, op.eps, mean, inverse);
                for (int i = 0; i < op.k; i += 16) {
                    const __mmask16 mask = lanes_of(op.k - i);
                    __m512 x = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, room.data() + i), _mm512_set1_ps(mean));
                    x = _mm512_mul_ps(x, _mm512_set1_ps(inverse));
                    x = _mm512_mul_ps(x, _mm512_maskz_loadu_ps(mask, weight + first + i));
                    if (op.bias) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(mask, op.bias + first + i));
                    if (op.keys && op.mode == 0) x = _mm512_mul_ps(x, gate(i, mask));
                    F::store((T*)op.out + t * pitch_of(op, op.n) + first + i, x, mask);
                }
            }
    });
}

// out (tokens, n) T *= sigmoid(in), with mode 1 in itself, rows of (n,) fp32 `stride` apart.
template <class F>
void gate(Run& run, int index, const Op& op, const Step& step) {
    const __m512 one = _mm512_set1_ps(1.0f);
    run.share(index, step.tokens, [&](int t) {
        const float* from = (const float*)op.in + (int64_t)t * op.stride;
        auto* out = (typename F::T*)op.out + t * pitch_of(op, op.n);
        for (int i = 0; i < op.n; i += 16) {
            const __mmask16 mask = lanes_of(op.n - i);
            const __m512 x = _mm512_maskz_loadu_ps(mask, from + i), was = F::load(out + i, mask);
            const __m512 opened = _mm512_add_ps(one, exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), x)));
            F::store(out + i, op.mode ? _mm512_mul_ps(was, x) : _mm512_div_ps(was, opened), mask);
        }
    });
}

// out (wanted, n) fp32 = in[rows]
void gather(Run& run, int index, const Op& op, const Step& step) {
    run.share(index, step.wanted, [&](int t) {
        memcpy((float*)op.out + (int64_t)t * op.n, (const float*)op.in + step.rows[t] * op.n, (size_t)op.n * 4);
    });
}

}  // namespace
