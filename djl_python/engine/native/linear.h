// Matrix products with packed weights, and what is done to their rows on the way out.

#pragma once

#include <algorithm>

#include "formats.h"
#include "program.h"

namespace {

constexpr int kRows = 6;      // rows of the register tile
constexpr int kAhead = 8192;  // bytes of a panel fetched before they are needed

// What a tile fetches along the way: `lines` cache lines a step, 0, 1, 2 or 4, from `at` on.
struct Ahead {
    const char* at;
    int lines;
};

// A panel that one tile reads is fetched some lines before it. With more tiles, they find it in the cache and fetch the
// next one between them: the memory is never idle, and nobody waits for it. A panel has `lines` lines for each of its
// `steps`.
inline Ahead ahead_of(int tile, int tiles, const char* panel, const char* next, int64_t steps, int lines) {
    if (tiles == 1) return {panel + kAhead, lines};
    const int each = tiles < 4 ? std::min(2, lines) : 1, fetched = tile * each;
    if (!next || fetched >= lines) return {panel, 0};
    return {next + fetched * steps * 64, each};
}

template <int L>
inline void fetch(const char*& at) {
    for (int line = 0; line < L; ++line) _mm_prefetch(at + line * 64, _MM_HINT_T1);
    at += L * 64;
}

inline __m512 activate(__m512 x, int activation) {
    const __m512 half = _mm512_set1_ps(0.5f), one = _mm512_set1_ps(1.0f);
    switch (activation) {
        case kSilu:
            return _mm512_div_ps(x, _mm512_add_ps(one, exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), x))));
        case kGeluTanh: {
            __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
            __m512 inner = _mm512_mul_ps(_mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), x), _mm512_set1_ps(0.79788456f));
            return _mm512_mul_ps(_mm512_mul_ps(half, x), _mm512_add_ps(one, tanh_ps(inner)));
        }
        case kGeluErf:
            return _mm512_mul_ps(_mm512_mul_ps(half, x),
                                 _mm512_add_ps(one, erf_ps(_mm512_mul_ps(x, _mm512_set1_ps(0.70710678f)))));
        case kRelu:
            return _mm512_max_ps(x, _mm512_setzero_ps());
        default:
            return x;
    }
}

// R rows times one panel; L lines a step are fetched from `ahead`.
template <class F, int R, int L>
inline void tile(const typename F::T* a, int64_t stride, const typename F::T* panel, int pairs, const char* ahead,
                 __m512 (&sum)[R][4]) {
    const auto* b = (const __m512i*)panel;
    for (int p = 0; p < pairs; ++p, b += 4) {
        const __m512i b0 = _mm512_loadu_si512(b), b1 = _mm512_loadu_si512(b + 1);
        const __m512i b2 = _mm512_loadu_si512(b + 2), b3 = _mm512_loadu_si512(b + 3);
        for (int r = 0; r < R; ++r) {
            int32_t x;
            memcpy(&x, a + r * stride + (int64_t)p * F::pair, 4);
            sum[r][0] = F::fma(sum[r][0], b0, x);
            sum[r][1] = F::fma(sum[r][1], b1, x);
            sum[r][2] = F::fma(sum[r][2], b2, x);
            sum[r][3] = F::fma(sum[r][3], b3, x);
        }
        fetch<L>(ahead);
    }
}

// What becomes of a finished row of a panel: bias, activation, gate, soft cap; then where it goes.
template <class F>
inline void finish_row(const Op& op, int64_t row, int panel, __m512 (&sum)[4]) {
    if (op.bias)  // padded to whole panels
        for (int v = 0; v < 4; ++v) sum[v] = _mm512_add_ps(sum[v], _mm512_loadu_ps(op.bias + panel * kPanel + v * 16));
    int vectors = 4, first = panel * kPanel;
    if (op.gated) {
        sum[0] = _mm512_mul_ps(activate(sum[0], op.activation), sum[2]);
        sum[1] = _mm512_mul_ps(activate(sum[1], op.activation), sum[3]);
        vectors = 2;
        first = panel * (kPanel / 2);
    } else if (op.activation) {
        for (int v = 0; v < 4; ++v) sum[v] = activate(sum[v], op.activation);
    }
    for (int v = 0; v < vectors; ++v) {
        const int c = first + v * 16;
        if (c >= op.n) break;
        const __mmask16 mask = lanes_of(op.n - c);
        if (op.mode == 0) {
            F::store((typename F::T*)op.out + row * op.n + c, sum[v], mask);
            continue;
        }
        float* out = (float*)op.out + row * op.n + c;
        __m512 x = _mm512_mul_ps(sum[v], _mm512_set1_ps(op.scale));
        if (op.mode == 1) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(mask, out));
        if (op.softcap > 0) {
            const __m512 cap = _mm512_set1_ps(op.softcap);
            x = _mm512_mul_ps(tanh_ps(_mm512_div_ps(x, cap)), cap);
        }
        _mm512_mask_storeu_ps(out, mask, x);
    }
}

template <class F, int R>
inline void rows_of_panel(const Op& op, int64_t row, int panel, const typename F::T* weights, int pairs, Ahead ahead) {
    __m512 sum[R][4];
    for (auto& one : sum)
        for (auto& lane : one) lane = _mm512_setzero_ps();
    auto in = (const typename F::T*)op.in + row * op.k;
    switch (ahead.lines) {
        case 0: tile<F, R, 0>(in, op.k, weights, pairs, ahead.at, sum); break;
        case 1: tile<F, R, 1>(in, op.k, weights, pairs, ahead.at, sum); break;
        case 2: tile<F, R, 2>(in, op.k, weights, pairs, ahead.at, sum); break;
        default: tile<F, R, 4>(in, op.k, weights, pairs, ahead.at, sum); break;
    }
    for (int r = 0; r < R; ++r) finish_row<F>(op, row + r, panel, sum[r]);
}

// Hands out a product's work: `work(panel, following, first, last)` for a panel of columns and a band of rows, and the
// panel to be fetched meanwhile: with the last band the next one, else -1.
template <class Work>
inline void for_each_band(Pool& pool, int index, const Op& op, const Step& step, Work work) {
    const int rows = op.rows_from ? step.wanted : step.tokens;
    const int columns = op.gated ? op.n * 2 : op.n;
    const int panels = (columns + kPanel - 1) / kPanel;
    // Tall products are cut into bands of rows too, so that there is work for everybody and a band stays in the cache.
    const int band = rows > 96 ? 64 : rows, bands = band ? (rows + band - 1) / band : 0;
    for (int task; (task = pool.take_in_order(index, panels * bands)) >= 0;) {
        const int panel = task / bands, first = task % bands * band, last = std::min(rows, first + band);
        work(panel, last == rows ? std::min(panel + 1, panels - 1) : -1, first, last);
    }
}

// out (rows, n) = in (rows, k) T times the packed weight; see `mode`. `k` is a multiple of a pair.
template <class F>
void linear(Pool& pool, int index, const Op& op, const Step& step) {
    using T = typename F::T;
    const int pairs = op.k / F::pair;
    for_each_band(pool, index, op, step, [&](int panel, int following, int first, int last) {
        const T* weights = (const T*)op.weight + (int64_t)panel * kPanel * op.k;
        const char* next = following < 0 ? nullptr : (const char*)((const T*)op.weight + (int64_t)following * kPanel * op.k);
        // Tiles of nearly the same height: a low last one would wait for its own additions.
        const int tiles = (last - first + kRows - 1) / kRows;
        int row = first;
        for (int t = 0; t < tiles; ++t) {
            const int height = (last - row + tiles - t - 1) / (tiles - t);
            const Ahead ahead = ahead_of(t, tiles, (const char*)weights, next, pairs, 4);
            switch (height) {
                case 6: rows_of_panel<F, 6>(op, row, panel, weights, pairs, ahead); break;
                case 5: rows_of_panel<F, 5>(op, row, panel, weights, pairs, ahead); break;
                case 4: rows_of_panel<F, 4>(op, row, panel, weights, pairs, ahead); break;
                case 3: rows_of_panel<F, 3>(op, row, panel, weights, pairs, ahead); break;
                case 2: rows_of_panel<F, 2>(op, row, panel, weights, pairs, ahead); break;
                case 1: rows_of_panel<F, 1>(op, row, panel, weights, pairs, ahead); break;
            }
            row += height;
        }
    });
}

}  // namespace
