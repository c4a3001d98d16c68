// Mixtures of experts: which tokens go where, and what comes back.
//
// A token's row is copied once for each expert that it chose (kDispatch), to where the expert's rows lie together; the
// products (linear.h) then take the weights of each expert for its own rows, and nothing at all for experts without
// rows. kCombine adds what came back, in the order of the token's choices: a token's sum doesn't depend on the others.

#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "formats.h"
#include "pool.h"
#include "program.h"

namespace {

constexpr int kMostExperts = 1024;

// What kRoute and kSort write, and the other operations of a layer read; all in Op::routed.
struct Routed {
    int32_t* starts;   // (experts + 1,) of an expert's rows
    int32_t* active;   // (experts,) those with rows, then their count
    int32_t* choices;  // (tokens, chosen) experts
    float* weights;    // (tokens, chosen)
    int32_t* places;   // (tokens, chosen) row of each

    Routed(const Op& op, const Step& step) {
        const int64_t pairs = (int64_t)step.tokens * op.chosen;
        starts = (int32_t*)op.routed;
        active = starts + op.experts + 1;
        choices = active + op.experts + 1;
        weights = (float*)(choices + pairs);
        places = (int32_t*)(weights + pairs);
    }
};

// The greatest of (padded,) numbers, the first one if there are several.
inline int greatest(const float* numbers, int padded) {
    __m512 most = _mm512_load_ps(numbers);
    __m512i at = _mm512_setzero_si512();
    for (int i = 16; i < padded; i += 16) {
        const __m512 x = _mm512_load_ps(numbers + i);
        const __mmask16 more = _mm512_cmp_ps_mask(x, most, _CMP_GT_OQ);
        most = _mm512_mask_mov_ps(most, more, x);
        at = _mm512_mask_mov_epi32(at, more, _mm512_set1_epi32(i));
    }
    at = _mm512_add_epi32(at, _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    const __mmask16 best = _mm512_cmp_ps_mask(most, _mm512_set1_ps(_mm512_reduce_max_ps(most)), _CMP_EQ_OQ);
    return best ? _mm512_mask_reduce_min_epi32(best, at) : 0;  // NaN: any expert does
}

// in (tokens, k) fp32, k at least `experts`: each token's experts and what each counts. mode 0: a softmax of the scores,
// 1: sigmoids; `bias` is added for the choice alone; n != 0: weights are made to add up to 1; then times scale.
void route(Run& run, int index, const Op& op, const Step& step) {
    const Routed routed(op, step);
    const int padded = (op.experts + 15) / 16 * 16;
    const float never = -std::numeric_limits<float>::infinity();
    alignas(64) float values[kMostExperts], ranks[kMostExperts];
    run.share(index, step.tokens, [&](int t) {
        const float* scores = (const float*)op.in + (int64_t)t * op.k;
        __m512 most = _mm512_set1_ps(never), total = _mm512_setzero_ps();
        for (int i = 0; i < padded; i += 16) {
            const __mmask16 mask = lanes_of(op.experts - i);
            most = _mm512_mask_max_ps(most, mask, most, _mm512_maskz_loadu_ps(mask, scores + i));
        }
        const __m512 shift = op.mode == 0 ? _mm512_set1_ps(_mm512_reduce_max_ps(most)) : _mm512_setzero_ps();
        for (int i = 0; i < padded; i += 16) {
            const __mmask16 mask = lanes_of(op.experts - i);
            const __m512 x = exp_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, scores + i), shift));
            total = _mm512_mask_add_ps(total, mask, total, x);
            _mm512_store_ps(values + i, x);
        }
        const __m512 one = _mm512_set1_ps(1.0f), all = _mm512_set1_ps(_mm512_reduce_add_ps(total));
        for (int i = 0; i < padded; i += 16) {
            const __mmask16 mask = lanes_of(op.experts - i);
            const __m512 x = _mm512_load_ps(values + i);
            const __m512 value = _mm512_div_ps(x, op.mode == 0 ? all : _mm512_add_ps(x, one));
            const __m512 rank = op.bias ? _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, op.bias + i)) : value;
            _mm512_store_ps(values + i, value);
            _mm512_store_ps(ranks + i, _mm512_mask_mov_ps(_mm512_set1_ps(never), mask, rank));
        }
        float sum = 0;
        for (int c = 0; c < op.chosen; ++c) {
            const int expert = greatest(ranks, padded);
            ranks[expert] = never;
            routed.choices[t * op.chosen + c] = expert;
            routed.weights[t * op.chosen + c] = values[expert];
            sum += values[expert];
        }
        const float factor = op.scale / (op.n ? std::max(sum, 1e-20f) : 1.0f);
        for (int c = 0; c < op.chosen; ++c) routed.weights[t * op.chosen + c] *= factor;
    });
}

// Gives each pair of token and expert a row, expert by expert. One thread does it.
void sort(Run& run, int index, const Op& op, const Step& step) {
    run.share(index, 1, [&](int) {
        const Routed routed(op, step);
        const int pairs = step.tokens * op.chosen;
        int32_t next[kMostExperts];
        memset(routed.starts, 0, (op.experts + 1) * sizeof(int32_t));
        for (int i = 0; i < pairs; ++i) ++routed.starts[routed.choices[i] + 1];
        int active = 0;
        for (int e = 0; e < op.experts; ++e) {
            if (routed.starts[e + 1]) routed.active[active++] = e;
            next[e] = routed.starts[e];
            routed.starts[e + 1] += routed.starts[e];
        }
        routed.active[op.experts] = active;
        for (int i = 0; i < pairs; ++i) routed.places[i] = next[routed.choices[i]]++;
    });
}

// out (rows, n bytes) = in (tokens, n bytes), each token's to all its rows.
void dispatch(Run& run, int index, const Op& op, const Step& step) {
    const Routed routed(op, step);
    run.share(index, step.tokens, [&](int t) {
        const char* row = (const char*)op.in + (int64_t)t * op.n;
        for (int c = t * op.chosen; c < (t + 1) * op.chosen; ++c)
            memcpy((char*)op.out + (int64_t)routed.places[c] * op.n, row, op.n);
    });
}

// out (tokens, n) fp32, mode 1: += scale *, 2: =, the weighted sum of in (rows, n) fp32 and, if there is a `weight`
// (tokens, n) fp32, of that: times the sigmoid of weight2 (tokens, k), column `experts`, if there is one.
void combine(Run& run, int index, const Op& op, const Step& step) {
    const Routed routed(op, step);
    run.share(index, step.tokens, [&](int t) {
        float* out = (float*)op.out + (int64_t)t * op.n;
        const float* shared = op.weight ? (const float*)op.weight + (int64_t)t * op.n : nullptr;
        const float gate = op.weight2 ? 1.0f / (1.0f + expf(-op.weight2[(int64_t)t * op.k + op.experts])) : 1.0f;
        for (int i = 0; i < op.n; i += 16) {
            const __mmask16 mask = lanes_of(op.n - i);
            __m512 sum = _mm512_setzero_ps();
            for (int c = t * op.chosen; c < (t + 1) * op.chosen; ++c) {
                const float* row = (const float*)op.in + (int64_t)routed.places[c] * op.n + i;
                sum = _mm512_fmadd_ps(_mm512_set1_ps(routed.weights[c]), _mm512_maskz_loadu_ps(mask, row), sum);
            }
            if (shared) sum = _mm512_fmadd_ps(_mm512_set1_ps(gate), _mm512_maskz_loadu_ps(mask, shared + i), sum);
            if (op.mode == 1) sum = _mm512_fmadd_ps(sum, _mm512_set1_ps(op.scale), _mm512_maskz_loadu_ps(mask, out + i));
            _mm512_mask_storeu_ps(out + i, mask, sum);
        }
    });
}

}  // namespace
