// Mamba 2's state space: a state that forgets, by head and token, and takes what comes in.

#pragma once

#include <cmath>

#include "formats.h"
#include "pool.h"
#include "program.h"

namespace {

constexpr int kMostState = 256;  // numbers for each of a head's dimensions

// A head of a span, token by token: S = e^(A dt) S + (dt x) B; y = S C + D x. Its state stays in the first cache.
template <class F>
void scan_head(const Op& op, const Step& step, int span, int head) {
    using T = typename F::T;
    alignas(64) float in[kMostState], out[kMostState], made[16];
    const int64_t first = step.span_start[span], end = first + step.span_size[span], size = (int64_t)op.dim * op.value_dim;
    float* state = state_in<float>(op, step, step.span_slot[span]) + head * size;
    const int source = step.span_source[span];
    if (source < 0) memset(state, 0, size * sizeof(float));
    else if (source != step.span_slot[span]) memcpy(state, state_in<float>(op, step, source) + head * size, size * sizeof(float));
    const int group = head / (op.heads / op.kv_heads);
    const float skipped = op.weight3 ? op.weight3[head] : 0;
    for (int64_t t = first; t < end; ++t) {
        const int64_t shared = t * op.n + group * op.value_dim, to = (t * op.heads + head) * op.dim;
        const T* given = (const T*)op.in + t * op.stride + head * op.dim;
        for (int n = 0; n < op.value_dim; n += 16) {
            _mm512_store_ps(in + n, F::load((const T*)op.keys + shared + n, 0xffff));
            _mm512_store_ps(out + n, F::load((const T*)op.values + shared + n, 0xffff));
        }
        const float dt = op.bias[t * op.heads + head];
        const __m512 kept = _mm512_set1_ps(expf(dt * op.weight2[head]));
        for (int p = 0; p < op.dim; ++p) {
            const float x = F::to(given[p]);
            const __m512 taken = _mm512_set1_ps(dt * x);
            __m512 sum = _mm512_setzero_ps();
            for (int n = 0; n < op.value_dim; n += 16) {
                float* at = state + (int64_t)p * op.value_dim + n;
                const __m512 next = _mm512_fmadd_ps(taken, _mm512_load_ps(in + n), _mm512_mul_ps(kept, _mm512_loadu_ps(at)));
                _mm512_storeu_ps(at, next);
                sum = _mm512_fmadd_ps(next, _mm512_load_ps(out + n), sum);
            }
            made[p % 16] = _mm512_reduce_add_ps(sum) + skipped * x;
            if (p % 16 < 15 && p + 1 < op.dim) continue;
            const __mmask16 lanes = lanes_of(p % 16 + 1);
            if (op.mode) F::store((T*)op.out + to + p / 16 * 16, _mm512_load_ps(made), lanes);
            else _mm512_mask_storeu_ps((float*)op.out + to + p / 16 * 16, lanes, _mm512_load_ps(made));
        }
        save_states(step, span, t + 1 - first, [&](int slot) {
            memcpy(state_in<float>(op, step, slot) + head * size, state, size * sizeof(float));
        });
    }
}

// out (tokens, heads, dim) fp32, with mode 1 T; in: rows of (heads, dim) T, `stride` apart; keys (B), values (C): rows of
// (kv_heads, value_dim) T, n apart; bias: dt (tokens, heads); weight2: A, weight3: D or null, both (heads,); routed: the
// first slot's states (heads, dim, value_dim), changed. value_dim is a multiple of 16.
template <class F>
void scan(Run& run, int index, const Op& op, const Step& step) {
    run.share_in_order(index, step.spans * op.heads,
                       [&](int task) { scan_head<F>(op, step, task / op.heads, task % op.heads); });
}

// How far each head goes with a token: out (tokens, heads) fp32 = softplus(in + bias), at least eps and at most softcap.
// in: rows of (heads,) T, `stride` apart.
template <class F>
void step_sizes(Run& run, int index, const Op& op, const Step& step) {
    run.share_in_order(index, step.tokens, [&](int t) {
        const auto* in = (const typename F::T*)op.in + (int64_t)t * op.stride;
        for (int h = 0; h < op.heads; ++h)
            ((float*)op.out)[(int64_t)t * op.heads + h] = fminf(fmaxf(softplus(F::to(in[h]) + op.bias[h]), op.eps), op.softcap);
    });
}

}  // namespace
