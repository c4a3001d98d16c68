// What drawing a token needs of a row of scores: block maxima, masses, the best. Blocks are panels of the head.

#pragma once

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "formats.h"
#include "pool.h"
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

// A row's blocks by sixteens: vectors of what each adds up to, or of its greatest.
constexpr int kSixteen = 16;

// What `join` makes of the lanes of each of sixteen vectors, in a vector: lane i of the i-th's. Half as many vectors with
// twice as many partial results each, four times.
template <class Join>
inline __m512 join_lanes(__m512 (&v)[kSixteen], Join join) {
    static const __m512i lows[4] = {
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
        _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27),
        _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29),
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
    };
#pragma GCC unroll 4
    for (int stage = 0; stage < 4; ++stage) {
        const __m512i low = lows[stage], high = _mm512_add_epi32(low, _mm512_set1_epi32(8 >> stage));
#pragma GCC unroll 8
        for (int i = 0; i < 8 >> stage; ++i)
            v[i] = join(_mm512_permutex2var_ps(v[2 * i], low, v[2 * i + 1]),
                        _mm512_permutex2var_ps(v[2 * i], high, v[2 * i + 1]));
    }
    return v[0];
}

inline __m512 greater(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
inline __m512 sum_of(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }

inline float greatest_of(const float* x, int n) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (int i = 0; i < n; i += 16)
        most = _mm512_max_ps(most, _mm512_mask_loadu_ps(most, lanes_of(n - i), x + i));
    return _mm512_reduce_max_ps(most);
}

// in (wanted, n): out (wanted, blocks) each block's greatest; values (wanted,) log of the sum of exp(score - the row's
// greatest).
// With weight (wanted,), one over each row's temperature: keys (wanted, blocks) what each block adds to the row's sum of
// exp((score - the row's greatest) * weight).
void scan(Run& run, int index, const Op& op, const Step& step) {
    const int blocks = (op.n + kPanel - 1) / kPanel;
    run.share(index, step.wanted, [&](int row) {
        const float* x = (const float*)op.in + (int64_t)row * op.n;
        float* maxima = (float*)op.out + (int64_t)row * blocks;
        for (int b = 0; b < blocks; b += kSixteen) {
            __m512 most[kSixteen];
            for (int i = 0; i < kSixteen; ++i) {  // nothing but minus infinity beyond the last block
                most[i] = part_of(x, op.n, b + i, 0);
                for (int v = 1; v < 4; ++v) most[i] = _mm512_max_ps(most[i], part_of(x, op.n, b + i, v));
            }
            _mm512_mask_storeu_ps(maxima + b, lanes_of(blocks - b), join_lanes(most, greater));
        }
        const float top = greatest_of(maxima, blocks), inverse = op.weight ? ((const float*)op.weight)[row] : 1.0f;
        float* masses = op.weight ? (float*)op.keys + (int64_t)row * blocks : nullptr;
        const Mass mass_of(top, 1.0f), warm_of(top, inverse);
        const bool warm = inverse != 1.0f;
        __m512 total = _mm512_setzero_ps();
        for (int b = 0; b < blocks; b += kSixteen) {
            __m512 mass[kSixteen];
            for (int i = 0; i < kSixteen; ++i) {
                __m512 sum = _mm512_setzero_ps(), warmed = _mm512_setzero_ps();
                for (int v = 0; v < 4; ++v) {
                    const __m512 part = part_of(x, op.n, b + i, v);
                    sum = _mm512_add_ps(sum, mass_of(part));
                    if (warm) warmed = _mm512_add_ps(warmed, warm_of(part));
                }
                total = _mm512_add_ps(total, sum);
                mass[i] = warm ? warmed : sum;
            }
            if (masses) _mm512_mask_storeu_ps(masses + b, lanes_of(blocks - b), join_lanes(mass, sum_of));
        }
        ((float*)op.values)[row] = logf(_mm512_reduce_add_ps(total));
    });
}

// The k best of rows of in, best first, the lower id first among equals: out (wanted, k) scores, keys (wanted, k) int64
// ids. weight (rows of in, blocks) are the blocks' greatest; rows (wanted,) says which rows.
void best(Run& run, int index, const Op& op, const Step& step) {
    thread_local std::vector<float> tops;
    thread_local std::vector<std::pair<float, int>> found;
    const int blocks = (op.n + kPanel - 1) / kPanel;
    run.share(index, step.wanted, [&](int task) {
        const float* x = (const float*)op.in + step.rows[task] * op.n;
        const float* maxima = (const float*)op.weight + step.rows[task] * blocks;
        // Each of the k best blocks has a token that is as good as the k-th of them: no token below can be among the best.
        float bar = -INFINITY;
        if (op.k == 1) {
            bar = greatest_of(maxima, blocks);
        } else if (op.k <= blocks) {
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
    });
}

inline float mass_of_sixteen(const std::vector<float>& masses, int first) {
    return _mm512_reduce_add_ps(_mm512_maskz_loadu_ps(lanes_of((int64_t)masses.size() - first), masses.data() + first));
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
void draw(Run& run, int index, const Op& op, const Step& step) {
    thread_local std::vector<float> left, next;
    const int blocks = (op.n + kPanel - 1) / kPanel;
    run.share(index, step.wanted, [&](int task) {
        const int64_t row = step.rows[task];
        const float* x = (const float*)op.in + row * op.n;
        const float* maxima = (const float*)op.weight + row * blocks;
        const float* masses = op.weight2 + row * blocks;
        const float top_p = op.bias[task], min_p = op.sinks[task];
        const Mass mass_of(greatest_of(maxima, blocks), op.weight3[row]);
        uint64_t state = ((const uint64_t*)op.values)[task];
        left.assign(masses, masses + blocks);
        next.resize(blocks);
        float all = 0;
        for (int b = 0; b < blocks; b += kSixteen) all += mass_of_sixteen(left, b);
        float total = all;
        Before open{-INFINITY, op.n};  // what may still be drawn; at first everything
        while (true) {
            const float aim = (float)((double)(state >> 11) * 0x1p-53 * total);
            float sum = 0;
            int sixteen = 0, block = 0, token = -1;
            for (int b = 0; b < blocks; b += kSixteen) {  // the last with a mass, if rounding let the aim pass the end
                const float mass = mass_of_sixteen(left, b);
                if (!(mass > 0)) continue;
                sixteen = b;
                if (sum + mass > aim) break;
                sum += mass;
            }
            for (int b = sixteen; b < std::min(blocks, sixteen + kSixteen); ++b) {
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
    });
}

}  // namespace
