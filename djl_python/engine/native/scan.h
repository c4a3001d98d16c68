// Mamba 2's state space: a state that forgets, by head and token, and takes what comes in.

#pragma once

#include <cmath>

#include "formats.h"
#include "pool.h"
#include "program.h"

namespace {

constexpr int kMostState = 256;  // numbers for each of a head's dimensions

// A head of a sequence, token by token: S = e^(A dt) S + (dt x) B; y = S C + D x. Its state stays in the first cache.
template <class F>
void scan_head(const Op& op, int64_t sequence, int head) {
    using T = typename F::T;
    alignas(64) float in[kMostState], out[kMostState];
    float* state = (float*)op.routed + (sequence * op.heads + head) * op.dim * op.value_dim;
    const int group = head / (op.heads / op.kv_heads);
    const float skipped = op.weight3 ? op.weight3[head] : 0;
    for (int64_t t = sequence * op.k; t < (sequence + 1) * op.k; ++t) {
        const int64_t shared = (t * op.kv_heads + group) * op.value_dim, own = (t * op.heads + head) * op.dim;
        for (int n = 0; n < op.value_dim; n += 16) {
            _mm512_store_ps(in + n, F::load((const T*)op.keys + shared + n, 0xffff));
            _mm512_store_ps(out + n, F::load((const T*)op.values + shared + n, 0xffff));
        }
        const float step = op.bias[t * op.heads + head];
        const __m512 kept = _mm512_set1_ps(expf(step * op.weight2[head]));
        for (int p = 0; p < op.dim; ++p) {
            const float x = F::to(((const T*)op.in)[own + p]);
            const __m512 given = _mm512_set1_ps(step * x);
            __m512 sum = _mm512_setzero_ps();
            for (int n = 0; n < op.value_dim; n += 16) {
                float* at = state + p * op.value_dim + n;
                const __m512 next = _mm512_fmadd_ps(given, _mm512_load_ps(in + n), _mm512_mul_ps(kept, _mm512_loadu_ps(at)));
                _mm512_storeu_ps(at, next);
                sum = _mm512_fmadd_ps(next, _mm512_load_ps(out + n), sum);
            }
            ((float*)op.out)[own + p] = _mm512_reduce_add_ps(sum) + skipped * x;
        }
    }
}

// out, fp32, and in, T: (n sequences, k tokens, heads, dim); keys (B), values (C): (n, k, kv_heads, value_dim) T; bias: dt
// (n, k, heads); weight2: A, weight3: D or null, both (heads,); routed: the states (n, heads, dim, value_dim), changed.
// value_dim is a multiple of 16.
template <class F>
void scan(Run& run, int index, const Op& op) {
    run.share_in_order(index, op.n * op.heads, [&](int task) { scan_head<F>(op, task / op.heads, task % op.heads); });
}

}  // namespace
