// Mixtures of experts: the router, and the rows of each expert.
//
// A token's row is copied once for each expert that it chose (kDispatch), to where the expert's rows lie together; the
// products (linear.h) then multiply each expert's rows with its weights, and don't read the weights of experts without
// rows. kCombine adds the results in the order of the token's choices, so that its sum doesn't depend on other tokens.

#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "formats.h"
#include "pool.h"
#include "program.h"

namespace djl {
namespace {

constexpr int kMaxExperts = 1024;

// What kRoute and kSort write and a layer's other operations read, in Op::routed.
struct Routed {
    int32_t* starts;   // (experts + 1,) where each expert's rows begin
    int32_t* active;   // (experts,) the experts that have rows; then how many they are
    int32_t* choices;  // (tokens, chosen) experts
    float* weights;    // (tokens, chosen) of each choice
    int32_t* places;   // (tokens, chosen) the row of each choice

    Routed(const Op& op, const Step& step) {
        const int64_t pairs = (int64_t)step.tokens * op.chosen;
        starts = (int32_t*)op.routed;
        active = starts + op.experts + 1;
        choices = active + op.experts + 1;
        weights = (float*)(choices + pairs);
        places = (int32_t*)(weights + pairs);
    }
};

// The index of the greatest of (padded,) numbers, a multiple of 16; the first if several are equal.
inline int argmax(const float* numbers, int padded) {
    Floats maxima = load_floats(numbers);
    Ints at = Ints{};
    for (int i = 16; i < padded; i += 16) {
        const Floats x = load_floats(numbers + i);
        const Lanes greater = is_greater(x, maxima);
        maxima = select(greater, x, maxima);
        at = select(greater, ints(i), at);
    }
    at = add_ints(at, iota_ints());
    const Lanes best = is_equal(maxima, floats(max_lane(maxima)));
    return best ? min_lane(at, best) : 0;  // NaN: any expert will do
}

// Sets ranks (experts,) to minus infinity except in op.kv_heads of the op.heads groups of experts: those whose op.dim (1 or
// 2) greatest ranks have the greatest sums, the first if several are equal.
inline void mask_groups(float* ranks, const Op& op) {
    const float never = -std::numeric_limits<float>::infinity();
    const int of_group = op.experts / op.heads;
    float sums[kMaxExperts];
    for (int g = 0; g < op.heads; ++g) {
        float first = never, second = never;
        for (int e = g * of_group; e < (g + 1) * of_group; ++e) {
            second = std::max(second, std::min(first, ranks[e]));
            first = std::max(first, ranks[e]);
        }
        sums[g] = op.dim == 1 ? first : first + second;
    }
    bool taken[kMaxExperts] = {};
    for (int i = 0; i < op.kv_heads; ++i) {
        int best = -1;
        for (int g = 0; g < op.heads; ++g)
            if (!taken[g] && (best < 0 || sums[g] > sums[best])) best = g;
        taken[best] = true;
    }
    for (int e = 0; e < op.experts; ++e)
        if (!taken[e / of_group]) ranks[e] = never;
}

// Chooses each token's experts and their weights, from scores in (tokens, k) fp32, k at least `experts`. Weights are a
// softmax of the scores (mode 0) or sigmoids (mode 1). For the choice alone `bias` is added, and only op.kv_heads of op.heads
// groups of experts are left; with n != 0, weights are normalized to add up to 1; then they are multiplied by `scale`.
void route(Run& run, int index, const Op& op, const Step& step) {
    const Routed routed(op, step);
    const int padded = (op.experts + 15) / 16 * 16;
    const float never = -std::numeric_limits<float>::infinity();
    alignas(64) float values[kMaxExperts], ranks[kMaxExperts];
    run.parallel_for(index, step.tokens, [&](int t) {
        const float* scores = (const float*)op.in + (int64_t)t * op.k;
        Floats maxima = floats(never), total = Floats{};
        for (int i = 0; i < padded; i += 16) {
            const Lanes mask = lanes_of(op.experts - i);
            maxima = select(mask, max(maxima, load_floats(scores + i, mask)), maxima);
        }
        const Floats shift = op.mode == 0 ? floats(max_lane(maxima)) : Floats{};
        for (int i = 0; i < padded; i += 16) {
            const Lanes mask = lanes_of(op.experts - i);
            const Floats x = exp(load_floats(scores + i, mask) - shift);
            total = select(mask, total + x, total);
            store_floats(values + i, x);
        }
        const Floats one = floats(1.0f), all = floats(sum_of_lanes(total));
        for (int i = 0; i < padded; i += 16) {
            const Lanes mask = lanes_of(op.experts - i);
            const Floats x = load_floats(values + i);
            const Floats value = x / (op.mode == 0 ? all : x + one);
            const Floats rank = op.bias ? value + load_floats(op.bias + i, mask) : value;
            store_floats(values + i, value);
            store_floats(ranks + i, select(mask, rank, floats(never)));
        }
        if (op.kv_heads < op.heads) mask_groups(ranks, op);
        float sum = 0;
        for (int c = 0; c < op.chosen; ++c) {
            const int expert = argmax(ranks, padded);
            ranks[expert] = never;
            routed.choices[t * op.chosen + c] = expert;
            routed.weights[t * op.chosen + c] = values[expert];
            sum += values[expert];
        }
        const float factor = op.scale / (op.n ? std::max(sum, 1e-20f) : 1.0f);
        for (int c = 0; c < op.chosen; ++c) routed.weights[t * op.chosen + c] *= factor;
    });
}

// Assigns a row to each pair of token and expert, ordered by expert. One thread does it.
void sort(Run& run, int index, const Op& op, const Step& step) {
    run.parallel_for(index, 1, [&](int) {
        const Routed routed(op, step);
        const int pairs = step.tokens * op.chosen;
        int32_t next[kMaxExperts];
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

// out (rows, n bytes): each row of in (tokens, n bytes) is copied to all rows of its token.
void dispatch(Run& run, int index, const Op& op, const Step& step) {
    const Routed routed(op, step);
    run.parallel_for(index, step.tokens, [&](int t) {
        const char* row = (const char*)op.in + (int64_t)t * op.n;
        for (int c = t * op.chosen; c < (t + 1) * op.chosen; ++c)
            memcpy((char*)op.out + (int64_t)routed.places[c] * op.n, row, op.n);
    });
}

// out (tokens, n) fp32 = (mode 2), or += scale * (mode 1), the weighted sum of in (rows, n) fp32, plus `weight` (tokens, n)
// fp32, a shared expert's output, if there is one, times the sigmoid of column `experts` of weight2 (tokens, k), if there is
// one.
void combine(Run& run, int index, const Op& op, const Step& step) {
    const Routed routed(op, step);
    run.parallel_for(index, step.tokens, [&](int t) {
        float* out = (float*)op.out + (int64_t)t * op.n;
        const float* shared = op.weight ? (const float*)op.weight + (int64_t)t * op.n : nullptr;
        const float gate = op.weight2 ? 1.0f / (1.0f + expf(-op.weight2[(int64_t)t * op.k + op.experts])) : 1.0f;
        for (int i = 0; i < op.n; i += 16) {
            const Lanes mask = lanes_of(op.n - i);
            Floats sum = Floats{};
            for (int c = t * op.chosen; c < (t + 1) * op.chosen; ++c) {
                const float* row = (const float*)op.in + (int64_t)routed.places[c] * op.n + i;
                sum = fma(floats(routed.weights[c]), load_floats(row, mask), sum);
            }
            if (shared) sum = fma(floats(gate), load_floats(shared + i, mask), sum);
            if (op.mode == 1) sum = fma(sum, floats(op.scale), load_floats(out + i, mask));
            store_floats(out + i, sum, mask);
        }
    });
}

}  // namespace
}  // namespace djl
