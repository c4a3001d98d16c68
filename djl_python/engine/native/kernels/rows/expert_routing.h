// Mixtures of experts: the router, and the rows of each expert.
//
// A token's row is copied once for each expert that it chose (DispatchOp), to where the expert's rows lie together; the
// products (linear.h) then multiply each expert's rows with its weights, and don't read the weights of experts without
// rows. A CombineOp adds the results in the order of the token's experts, so that its sum doesn't depend on other tokens.

#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "program.h"
#include "thread_pool.h"
#include "vectors/formats.h"

namespace djl {
namespace {

// What a RouteOp and a SortOp write to `routed`, and a layer's other operations read.
struct Routed {
    int32_t* starts;  // (experts + 1,) where each expert's rows begin
    int32_t* active;  // (experts,) the experts that have rows; then how many they are
    int32_t* chosen;  // (tokens, chosen) experts
    float* weights;   // (tokens, chosen) of each
    int32_t* places;  // (tokens, chosen) the row of each

    Routed(const Routing& routing, const StepInputs& step) {
        const int64_t pairs = (int64_t)step.tokens * routing.chosen;
        starts = (int32_t*)routing.routed;
        active = starts + routing.experts + 1;
        chosen = active + routing.experts + 1;
        weights = (float*)(chosen + pairs);
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

// Sets ranks (experts,) to minus infinity except in the groups that are chosen from: those whose `judges` greatest
// ranks have the greatest sums, the first if several are equal.
inline void mask_groups(float* ranks, const RouteOp& op) {
    const float never = -std::numeric_limits<float>::infinity();
    const int of_group = op.routing.experts / op.groups;
    float sums[kMaxExperts];
    for (int g = 0; g < op.groups; ++g) {
        float first = never, second = never;
        for (int e = g * of_group; e < (g + 1) * of_group; ++e) {
            second = std::max(second, std::min(first, ranks[e]));
            first = std::max(first, ranks[e]);
        }
        sums[g] = op.judges == 1 ? first : first + second;
    }
    bool taken[kMaxExperts] = {};
    for (int i = 0; i < op.groups_taken; ++i) {
        int best = -1;
        for (int g = 0; g < op.groups; ++g)
            if (!taken[g] && (best < 0 || sums[g] > sums[best])) best = g;
        taken[best] = true;
    }
    for (int e = 0; e < op.routing.experts; ++e)
        if (!taken[e / of_group]) ranks[e] = never;
}

inline void route(Run& run, int index, const RouteOp& op, const StepInputs& step) {
    const Routed routed(op.routing, step);
    const int padded = (op.routing.experts + 15) / 16 * 16;
    const float never = -std::numeric_limits<float>::infinity();
    alignas(64) float values[kMaxExperts], ranks[kMaxExperts];
    run.parallel_for(index, step.tokens, [&](int t) {
        const float* scores = op.in + (int64_t)t * op.columns;
        Floats maxima = floats(never), total = Floats{};
        for (int i = 0; i < padded; i += 16) {
            const Lanes mask = lanes_of(op.routing.experts - i);
            maxima = select(mask, max(maxima, load_floats(scores + i, mask)), maxima);
        }
        const Floats shift = !op.sigmoid ? floats(max_lane(maxima)) : Floats{};
        for (int i = 0; i < padded; i += 16) {
            const Lanes mask = lanes_of(op.routing.experts - i);
            const Floats x = exp(load_floats(scores + i, mask) - shift);
            total = select(mask, total + x, total);
            store_floats(values + i, x);
        }
        const Floats one = floats(1.0f), all = floats(sum_of_lanes(total));
        for (int i = 0; i < padded; i += 16) {
            const Lanes mask = lanes_of(op.routing.experts - i);
            const Floats x = load_floats(values + i);
            const Floats value = x / (!op.sigmoid ? all : x + one);
            const Floats rank = op.correction ? value + load_floats(op.correction + i, mask) : value;
            store_floats(values + i, value);
            store_floats(ranks + i, select(mask, rank, floats(never)));
        }
        if (op.groups_taken < op.groups) mask_groups(ranks, op);
        float sum = 0;
        for (int c = 0; c < op.routing.chosen; ++c) {
            const int expert = argmax(ranks, padded);
            ranks[expert] = never;
            routed.chosen[t * op.routing.chosen + c] = expert;
            routed.weights[t * op.routing.chosen + c] = values[expert];
            sum += values[expert];
        }
        const float factor = op.scale / (op.normalized ? std::max(sum, 1e-20f) : 1.0f);
        for (int c = 0; c < op.routing.chosen; ++c) routed.weights[t * op.routing.chosen + c] *= factor;
    });
}

// Assigns a row to each pair of token and expert, ordered by expert. One thread does it.
inline void sort(Run& run, int index, const SortOp& op, const StepInputs& step) {
    run.parallel_for(index, 1, [&](int) {
        const Routed routed(op.routing, step);
        const int pairs = step.tokens * op.routing.chosen;
        int32_t next[kMaxExperts];
        memset(routed.starts, 0, (op.routing.experts + 1) * sizeof(int32_t));
        for (int i = 0; i < pairs; ++i) ++routed.starts[routed.chosen[i] + 1];
        int active = 0;
        for (int e = 0; e < op.routing.experts; ++e) {
            if (routed.starts[e + 1]) routed.active[active++] = e;
            next[e] = routed.starts[e];
            routed.starts[e + 1] += routed.starts[e];
        }
        routed.active[op.routing.experts] = active;
        for (int i = 0; i < pairs; ++i) routed.places[i] = next[routed.chosen[i]]++;
    });
}

inline void dispatch(Run& run, int index, const DispatchOp& op, const StepInputs& step) {
    const Routed routed(op.routing, step);
    run.parallel_for(index, step.tokens, [&](int t) {
        const char* row = (const char*)op.in + (int64_t)t * op.row_bytes;
        for (int c = t * op.routing.chosen; c < (t + 1) * op.routing.chosen; ++c)
            memcpy((char*)op.out + (int64_t)routed.places[c] * op.row_bytes, row, op.row_bytes);
    });
}

inline void combine(Run& run, int index, const CombineOp& op, const StepInputs& step) {
    const Routed routed(op.routing, step);
    run.parallel_for(index, step.tokens, [&](int t) {
        float* out = op.out + (int64_t)t * op.n;
        const float* shared = op.shared ? op.shared + (int64_t)t * op.n : nullptr;
        const float gate =
            op.gate_scores ? 1.0f / (1.0f + expf(-op.gate_scores[(int64_t)t * op.columns + op.routing.experts])) : 1.0f;
        for (int i = 0; i < op.n; i += 16) {
            const Lanes mask = lanes_of(op.n - i);
            Floats sum = Floats{};
            for (int c = t * op.routing.chosen; c < (t + 1) * op.routing.chosen; ++c) {
                const float* row = op.in + (int64_t)routed.places[c] * op.n + i;
                sum = fma(floats(routed.weights[c]), load_floats(row, mask), sum);
            }
            if (shared) sum = fma(floats(gate), load_floats(shared + i, mask), sum);
            if (op.mode == kAdd) sum = fma(sum, floats(op.scale), load_floats(out + i, mask));
            store_floats(out + i, sum, mask);
        }
    });
}

}  // namespace
}  // namespace djl
