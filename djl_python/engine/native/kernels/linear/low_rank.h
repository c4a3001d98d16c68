// What LoRA adapters add to products, arXiv:2106.09685: y += b (a x), each token with its own adapter's a and b, or none.
//
// A LowRankOp makes the inner numbers a x of all tokens with adapters; the product that follows adds b times these to its
// sums, in fp32, before anything else is done to them (linear.h). Where several linears are one product, their adapters'
// inner numbers lie side by side, and each half panel of columns multiplies those of its own linears only.

#pragma once

#include <algorithm>
#include <cstring>

#include "program.h"
#include "thread_pool.h"
#include "vectors/formats.h"

namespace djl {
namespace {

constexpr int kHalfPanel = kPanel / 2;  // columns: in a gated pair's panel, those of one of the two

// Sixteen inner numbers of R rows, each the sum of several, so that additions needn't wait for each other. There are as many
// for any R: what a row gets doesn't depend on the others.
template <class F, int R>
inline __attribute__((always_inline)) void inner_numbers(const char* const (&rows)[kAdapterRows], const char* a, int steps,
                                                         float* const (&out)[kAdapterRows]) {
    constexpr int apart = std::max(1, std::min(4, kSumRegisters / kAdapterRows));
    Floats sum[R][apart] = {};
    auto add = [&](int step, int part) __attribute__((always_inline)) {
        const Ints weights = load_ints(a + (int64_t)step * 64);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            int32_t x;
            memcpy(&x, rows[r] + (int64_t)step * 4, 4);
            sum[r][part] = F::add_products(sum[r][part], weights, ints(x));
        }
    };
    int step = 0;
    for (; step + apart <= steps; step += apart)
#pragma GCC unroll 4
        for (int part = 0; part < apart; ++part) add(step + part, part);
    for (; step < steps; ++step) add(step, 0);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int part = 1; part < apart; ++part) sum[r][0] = sum[r][0] + sum[r][part];
        store_floats(out[r], sum[r][0]);
    }
}

// Tasks are numbered by what Python says alone: a late thread may count them when the adapters have changed already.
template <class F>
void low_rank(Run& run, int index, const LowRankOp& op, const StepInputs& step) {
    const int steps = op.k / F::pair, tiles = step.adapter_tiles;
    run.parallel_for_ordered(index, op.vectors * tiles, [&](int task) {
        const int tile = task % tiles, vector = task / tiles;
        const int32_t* tokens = step.adapter_rows + step.adapter_tile_start[tile];
        const LowRankPart& part = op.parts[step.adapter_slots[tokens[0]]];
        if (vector >= part.vectors) return;
        const int count = step.adapter_tile_size[tile];
        const char* rows[kAdapterRows];
        float* out[kAdapterRows];
        for (int r = 0; r < count; ++r) {
            rows[r] = (const char*)op.in + (int64_t)tokens[r] * op.stride * sizeof(typename F::T);
            out[r] = op.out + (int64_t)tokens[r] * op.pitch + vector * 16;
        }
        with_height<1, kAdapterRows>(count, [&](auto height) __attribute__((always_inline)) {
            inner_numbers<F, height>(rows, (const char*)part.a + (int64_t)vector * steps * 64, steps, out);
        });
    });
}

// Half a panel's columns of b times a row's inner numbers.
template <class F>
inline void half_panel_product(const LowRankPart& part, const float* inner, int half, Floats (&sum)[2]) {
    const int first = part.first[half];
    if (first < 0) return;
    const char* at = (const char*)part.b + (int64_t)half * part.steps * kHalfPanel * 4;
    inner += first;
    Floats second[2] = {};
    for (int step = 0; step < part.steps; ++step, at += kHalfPanel * 4, inner += F::pair)
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
            const Ints lanes = load_ints(at + v * 64);
            if constexpr (F::pair == 2) {
                sum[v] = fma(first_of_pairs(lanes), floats(inner[0]), sum[v]);
                second[v] = fma(second_of_pairs(lanes), floats(inner[1]), second[v]);
            } else {
                sum[v] = fma(as_floats(lanes), floats(inner[0]), sum[v]);
            }
        }
    if constexpr (F::pair == 2)
        for (int v = 0; v < 2; ++v) sum[v] = sum[v] + second[v];
}

// A panel's columns of b times a row's inner numbers, into memory: the sums of the product stay in registers meanwhile.
template <class F>
__attribute__((noinline)) void panel_product(const LowRankPart& part, const float* inner, int panel, float* out) {
    for (int half = 0; half < 2; ++half) {
        Floats sum[2] = {};
        half_panel_product<F>(part, inner, 2 * panel + half, sum);
        for (int v = 0; v < 2; ++v) store_floats(out + (2 * half + v) * 16, sum[v]);
    }
}

// Adds what a row's adapter adds to its sums of a panel.
template <class F>
inline __attribute__((always_inline)) void add_low_rank(const LowRankRows& rows, const StepInputs& step, int64_t row, int panel,
                                                        Floats (&sum)[4]) {
    const LowRankPart& part = rows.parts[step.adapter_slots[row]];
    if (!part.b) return;
    alignas(64) float added[kPanel];
    panel_product<F>(part, rows.in + row * rows.stride, panel, added);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) sum[v] = sum[v] + load_floats(added + v * 16);
}

// The inner numbers of a token are a column of a, which is stored as a row, in fp32.
template <class F>
void low_rank_embed(Run& run, int index, const LowRankEmbedOp& op, const StepInputs& step) {
    run.parallel_for_rows(index, step.tokens, [&](int t) {
        const LowRankPart& part = op.parts[step.adapter_slots[t]];
        if (!part.b) return;
        const float* inner = (const float*)part.a + step.ids[t] * part.vectors * 16;
        float* out = (float*)op.out + (int64_t)t * op.n;
        for (int first = 0; first < op.n; first += kHalfPanel) {
            Floats sum[2] = {};
            half_panel_product<F>(part, inner, first / kHalfPanel, sum);
            for (int v = 0; v < 2; ++v) {
                const int c = first + v * 16;
                const Lanes mask = lanes_of(op.n - c);
                if (mask) store_floats(out + c, fma(sum[v], floats(op.scale), load_floats(out + c, mask)), mask);
            }
        }
    });
}

}  // namespace
}  // namespace djl
