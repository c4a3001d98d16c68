// What drawing a token needs of a row of scores: block maxima, masses, the best. Blocks are panels of the head.

#pragma once

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "formats.h"
#include "program.h"

namespace {

// Masses exp((x - top) / temperature), as powers of two; exactly zero where x is minus infinity.
struct Mass {
    __m512 top, factor;
    Mass(float greatest, float inverse_temperature) {
        top = _mm512_set1_ps(greatest);
        factor = _mm512_set1_ps(inverse_temperature * kLog2e);
    }
    __m512 operator()(__m512 x) const { return exp2_ps(_mm512_mul_ps(_mm512_sub_ps(x, top), factor)); }
};

// Vector v of a block of a row of n; beyond its end nothing but minus infinity.
inline __m512 part_of(const float* x, int n, int block, int v) {
    const int i = block * kPanel + v * 16;
    if (i + 16 <= n) return _mm512_loadu_ps(x + i);
    return _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), lanes_of(n - i), x + i);
}

// in (wanted, n): out (wanted, blocks) each block's greatest; values (wanted,) log of the sum of exp(score - the row's
// greatest).
// With weight (wanted,), one over each row's temperature: keys (wanted, blocks) what each block adds to the row's sum of
// exp((score - the row's greatest) * weight).
void scan(Pool& pool, int index, const Op& op, const Step& step) {
    const int blocks = (op.n + kPanel - 1) / kPanel;
    for (int row; (row = pool.take(index)) < step.wanted;) {
        const float* x = (const float*)op.in + (int64_t)row * op.n;
        float* maxima = (float*)op.out + (int64_t)row * blocks;
        float top = -INFINITY;
        for (int b = 0; b < blocks; ++b) {
            __m512 most = part_of(x, op.n, b, 0);
            for (int v = 1; v < 4; ++v) most = _mm512_max_ps(most, part_of(x, op.n, b, v));
            maxima[b] = _mm512_reduce_max_ps(most);
        }
        for (int b = 0; b < blocks; ++b) top = std::max(top, maxima[b]);
        const float inverse = op.weight ? ((const float*)op.weight)[row] : 1.0f;
        float* masses = op.weight ? (float*)op.keys + (int64_t)row * blocks : nullptr;
        const Mass mass_of(top, 1.0f), warm_of(top, inverse);
        __m512 total = _mm512_setzero_ps();
        for (int b = 0; b < blocks; ++b) {
            __m512 mass = _mm512_setzero_ps(), warmed = _mm512_setzero_ps();
            for (int v = 0; v < 4; ++v) {
                const __m512 part = part_of(x, op.n, b, v);
                mass = _mm512_add_ps(mass, mass_of(part));
                if (inverse != 1.0f) warmed = _mm512_add_ps(warmed, warm_of(part));
            }
            total = _mm512_add_ps(total, mass);
            if (masses) masses[b] = _mm512_reduce_add_ps(inverse != 1.0f ? warmed : mass);
        }
        ((float*)op.values)[row] = logf(_mm512_reduce_add_ps(total));
    }
}

// The k best of rows of in, best first, the lower id first among equals: out (wanted, k) scores, keys (wanted, k) int64
// ids. weight (rows of in, blocks) are the blocks' greatest; rows (wanted,) says which rows.
void best(Pool& pool, int index, const Op& op, const Step& step) {
    thread_local std::vector<float> tops;
    thread_local std::vector<std::pair<float, int>> found;
    const int blocks = (op.n + kPanel - 1) / kPanel;
    for (int task; (task = pool.take(index)) < step.wanted;) {
        const float* x = (const float*)op.in + step.rows[task] * op.n;
        const float* maxima = (const float*)op.weight + step.rows[task] * blocks;
        // Each of the k best blocks has a token that is as good as the k-th of them: no token below can be among the best.
        float bar = -INFINITY;
        if (op.k <= blocks) {
            tops.assign(maxima, maxima + blocks);
            std::nth_element(tops.begin(), tops.begin() + op.k - 1, tops.end(), std::greater<float>());
            bar = tops[op.k - 1];
        }
        found.clear();
        const __m512 wanted = _mm512_set1_ps(bar);
        for (int b = 0; b < blocks; ++b) {
            if (maxima[b] < bar) continue;
            for (int i = b * kPanel, v = 0; v < 4; ++v, i += 16) {
                const __mmask16 lanes = lanes_of(op.n - i);
                __mmask16 good = _mm512_mask_cmp_ps_mask(lanes, _mm512_maskz_loadu_ps(lanes, x + i), wanted, _CMP_GE_OQ);
                for (; good; good &= good - 1) {
                    const int id = i + __builtin_ctz(good);
                    found.push_back({x[id], id});
                }
            }
        }
        while ((int)found.size() < op.k) found.push_back({-INFINITY, 0});  // scores that are no numbers
        std::partial_sort(found.begin(), found.begin() + op.k, found.end(), [](const auto& a, const auto& b) {
            return a.first > b.first || (a.first == b.first && a.second < b.second);
        });
        for (int i = 0; i < op.k; ++i) {
            ((float*)op.out)[(int64_t)task * op.k + i] = found[i].first;
            ((int64_t*)op.keys)[(int64_t)task * op.k + i] = found[i].second;
        }
    }
}

inline uint64_t mixed(uint64_t state) {  // `mix` of row_scan.py
    uint64_t z = state + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// A row's tokens in order: falling by score, the lower id first among equals. A set of leading tokens is known by the
// first that is not in it.
struct Before {
    float score;
    int id;
    __mmask16 operator()(__m512 x, int first) const {
        const __m512 bar = _mm512_set1_ps(score);
        const __mmask16 lower = lanes_of(id - first);  // ids
        return _mm512_cmp_ps_mask(x, bar, _CMP_GT_OQ) | (_mm512_cmp_ps_mask(x, bar, _CMP_EQ_OQ) & lower);
    }
};

// Draws from rows of in (.., n) by rejection. weight are the blocks' greatest, weight2 their masses, weight3 one over the
// temperature (each for every row of in); of the draws, (wanted,): rows, bias the top_p, sinks the min_p, values the
// random states (uint64); out the ids (int64).
//
// A token is drawn from all, and stays if it is among those that may be drawn: what comes before it weighs less than
// top_p of all, and it weighs at least min_p of the first. If not, nor may any after it: the next is drawn from those
// before it. What stays is distributed as if it had been drawn from the permitted ones alone, and nothing is sorted.
void draw(Pool& pool, int index, const Op& op, const Step& step) {
    thread_local std::vector<float> left, next;
    const int blocks = (op.n + kPanel - 1) / kPanel;
    for (int task; (task = pool.take(index)) < step.wanted;) {
        const int64_t row = step.rows[task];
        const float* x = (const float*)op.in + row * op.n;
        const float* maxima = (const float*)op.weight + row * blocks;
        const float* masses = op.weight2 + row * blocks;
        const float top_p = op.bias[task], min_p = op.sinks[task];
        const Mass mass_of(*std::max_element(maxima, maxima + blocks), op.weight3[row]);
        uint64_t state = ((const uint64_t*)op.values)[task];
        left.assign(masses, masses + blocks);
        next.resize(blocks);
        float all = 0;
        for (int b = 0; b < blocks; ++b) all += left[b];
        float total = all;
        Before open{-INFINITY, op.n};  // what may still be drawn; at first everything
        while (true) {
            const float aim = (float)((double)(state >> 11) * 0x1p-53 * total);
            float sum = 0;
            int block = 0, token = -1;
            for (int b = 0; b < blocks; ++b) {  // the last with a mass, if rounding let the aim pass the end
                if (!(left[b] > 0)) continue;
                block = b;
                if (sum + left[b] > aim) break;
                sum += left[b];
            }
            alignas(64) float parts[kPanel];
            for (int v = 0; v < 4; ++v) {
                const __m512 part = part_of(x, op.n, block, v);
                _mm512_store_ps(parts + v * 16, _mm512_maskz_mov_ps(open(part, block * kPanel + v * 16), mass_of(part)));
            }
            for (int i = 0; i < kPanel; ++i) {
                if (!(parts[i] > 0)) continue;
                token = block * kPanel + i;
                sum += parts[i];
                if (sum > aim) break;
            }
            if (token < 0) token = 0;  // scores that are no numbers
            const float weight = parts[token - block * kPanel];
            ((int64_t*)op.out)[task] = token;
            if (top_p >= 1.0f && weight >= min_p) break;
            const Before before{x[token], token};
            float ahead = 0;
            for (int b = 0; b < blocks; ++b) {
                next[b] = 0;
                if (maxima[b] < before.score) continue;
                __m512 mass = _mm512_setzero_ps();
                for (int v = 0; v < 4; ++v) {
                    const __m512 part = part_of(x, op.n, b, v);
                    mass = _mm512_mask_add_ps(mass, before(part, b * kPanel + v * 16), mass, mass_of(part));
                }
                ahead += next[b] = _mm512_reduce_add_ps(mass);
            }
            if ((ahead < top_p * all && weight >= min_p) || !(ahead > 0)) break;  // the first always may
            open = before;
            left.swap(next);
            total = ahead;
            state = mixed(state);
        }
    }
}

}  // namespace
