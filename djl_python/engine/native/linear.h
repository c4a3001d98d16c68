// Matrix products with packed weights, and what is done to their rows on the way out.

#pragma once

#include <algorithm>

#include "ahead.h"
#include "formats.h"
#include "pool.h"
#include "program.h"
#include "routing.h"
#include "twelve.h"

namespace {

constexpr int kRows = 6;      // rows of the register tile
constexpr int kBand = 96;     // rows that a panel is multiplied with at a time

inline __m512 activate(__m512 x, int activation) {
    const __m512 half = _mm512_set1_ps(0.5f), one = _mm512_set1_ps(1.0f);
    switch (activation) {
        case kSilu:
            return _mm512_div_ps(x, _mm512_add_ps(one, exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), x))));
        case kQuickGelu:
            return _mm512_div_ps(x, _mm512_add_ps(one, exp_ps(_mm512_mul_ps(_mm512_set1_ps(-1.702f), x))));
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
        case kReluSquared:
            x = _mm512_max_ps(x, _mm512_setzero_ps());
            return _mm512_mul_ps(x, x);
        default:
            return x;
    }
}

// What a gate makes of what it is given. The clamped kind has its alpha in eps, its limit in softcap.
inline __m512 gated(__m512 gate, __m512 x, const Op& op) {
    if (op.activation != kClampedSwiglu) return _mm512_mul_ps(activate(gate, op.activation), x);
    const __m512 limit = _mm512_set1_ps(op.softcap), one = _mm512_set1_ps(1.0f);
    gate = _mm512_min_ps(gate, limit);
    x = _mm512_max_ps(_mm512_min_ps(x, limit), _mm512_sub_ps(_mm512_setzero_ps(), limit));
    const __m512 inner = exp_ps(_mm512_mul_ps(gate, _mm512_set1_ps(-op.eps)));
    return _mm512_mul_ps(_mm512_add_ps(x, one), _mm512_div_ps(gate, _mm512_add_ps(one, inner)));
}

// Panels of columns, of one expert if there are any.
inline int panels_of(const Op& op) { return ((op.gated ? op.n * 2 : op.n) + kPanel - 1) / kPanel; }

// Reads steps of a panel from where they lie ready.
struct ReadyReader {
    const __m512i* from;

    void operator()(int, __m512i (&b)[4]) {
        for (int v = 0; v < 4; ++v) b[v] = _mm512_loadu_si512(from + v);
        from += 4;
    }
};

// sums (R, kPanel) += R rows times a part of a panel.
template <class F, int R, int Lines, class Reader>
void tile(const typename F::T* a, int64_t stride, Reader reader, int steps, Ahead ahead, float* sums) {
    __m512 sum[R][4];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < 4; ++v) sum[r][v] = _mm512_load_ps(sums + r * kPanel + v * 16);
    for (int p = 0; p < steps; ++p) {
        __m512i b[4];
        reader(p, b);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            int32_t x;
            memcpy(&x, a + r * stride + (int64_t)p * F::pair, 4);
            for (int v = 0; v < 4; ++v) sum[r][v] = F::fma(sum[r][v], b[v], x);
        }
        ahead.fetch<Lines>();
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < 4; ++v) _mm512_store_ps(sums + r * kPanel + v * 16, sum[r][v]);
}

// What becomes of a finished row of a panel: bias, activation, gate, soft cap; then where it goes.
template <class F>
inline void finish_row(const Op& op, int64_t row, int panel, __m512 (&sum)[4]) {
    if (op.bias)  // padded to whole panels
        for (int v = 0; v < 4; ++v) sum[v] = _mm512_add_ps(sum[v], _mm512_loadu_ps(op.bias + panel * kPanel + v * 16));
    __m512 most = _mm512_set1_ps(-INFINITY);
    int vectors = 4, first = (op.experts ? panel % panels_of(op) : panel) * kPanel;
    if (op.gated) {
        sum[0] = gated(sum[0], sum[2], op);
        sum[1] = gated(sum[1], sum[3], op);
        vectors = 2;
        first /= 2;
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
        most = _mm512_mask_max_ps(most, mask, most, x);
    }
    if (op.maxima) op.maxima[row * panels_of(op) + panel] = _mm512_reduce_max_ps(most);
}

// A tile of whatever height. Among several, none is lower than half of kRows.
template <class F, int Lines, class Reader>
inline void tile_of(int height, const typename F::T* a, int64_t stride, Reader reader, int steps, Ahead ahead,
                    float* sums) {
    switch (height) {
        case 6: return tile<F, 6, Lines>(a, stride, reader, steps, ahead, sums);
        case 5: return tile<F, 5, Lines>(a, stride, reader, steps, ahead, sums);
        case 4: return tile<F, 4, Lines>(a, stride, reader, steps, ahead, sums);
        case 3: return tile<F, 3, Lines>(a, stride, reader, steps, ahead, sums);
    }
    if constexpr (Lines > 0) {
        if (height == 2) return tile<F, 2, Lines>(a, stride, reader, steps, ahead, sums);
        tile<F, 1, Lines>(a, stride, reader, steps, ahead, sums);
    }
}

// How a product without experts is cut: into panels of columns; tall ones into bands of rows too, so that there is work
// for everybody and a band stays in the cache; each panel into parts along k; a band into tiles. The last of a full
// band's tiles have nothing of the weights to fetch: those of each whole part are slots, see ahead.h.
//
// All rows of the first panel, then of the second, and so on, are cut once more, into a stretch for each thread: nine
// panels are four and a half for each of two. A piece of a band is worth it if it isn't too low.
struct Cut {
    int panels, rows;
    int height, bands;      // rows of a band; the last band may have fewer
    int part, whole_parts;  // steps of a part, and how many have as many
    int tile_rows, spare;

    Cut(const Op& op, const Step& step, int steps, int part, int tile_rows, int lines)
        : panels(panels_of(op)), rows(rows_of(op, step)), height(rows > kBand ? 64 : std::max(1, rows)),
          bands((rows + height - 1) / height), part(part), whole_parts(steps / part), tile_rows(tile_rows),
          spare(spare_tiles((height + tile_rows - 1) / tile_rows, lines)) {}

    Slots slots() const { return {(int64_t)panels * bands * whole_parts * spare, part}; }

    // Of the spare tiles of the piece that begins there.
    int first_slot(int panel, int row) const {
        return (panel * bands + row / height) * whole_parts * spare + row % height / tile_rows;
    }

    // The bands of a thread's stretch, the first and last of which may be pieces. Numbers go on from stretch to stretch.
    Stretch stretch(int thread, int threads) const {
        const int64_t first = begin(thread, threads), end = begin(thread + 1, threads);
        return first < end ? Stretch{band_of(first) + thread, band_of(end - 1) + thread + 1} : Stretch{0, 0};
    }

    // `work(panel, first row, last row)` of a task of a thread's stretch.
    template <class Work>
    void piece(int task, int thread, int threads, Work work) const {
        const int band = task - thread, panel = band / bands;
        const int64_t start = (int64_t)panel * rows;
        const int64_t first = start + band % bands * height, last = std::min(first + height, start + rows);
        work(panel, (int)(std::max(first, begin(thread, threads)) - start),
             (int)(std::min(last, begin(thread + 1, threads)) - start));
    }

private:
    int band_of(int64_t row) const { return (int)(row / rows * bands + row % rows / height); }

    // The first row of a thread's stretch, of all panels' rows.
    int64_t begin(int thread, int threads) const {
        const int64_t even = (int64_t)panels * rows * thread / threads;
        if (rows == 0 || thread == threads) return even;
        const int64_t panel = even / rows * rows, first = panel + even % rows / height * height;
        const int64_t last = std::min(first + height, panel + rows);
        const int least = 2 * tile_rows;
        return even - first < least ? first : last - even < least ? last : even;
    }
};

// Hands out a product's work: `work(panel, following, first, last)` for a panel of columns and some of its rows, and the
// panel to be fetched meanwhile: with the last rows the next one, else -1.
template <class Work>
inline void for_each_band(Run& run, int index, const Op& op, const Step& step, const Cut& cut, Work work) {
    const int panels = cut.panels;
    if (op.experts) {
        const Routed routed(op, step);
        const int active = routed.active[op.experts];
        run.share_in_order(index, active * panels, [&](int task) {
            const int expert = routed.active[task / panels], panel = expert * panels + task % panels;
            const int end = routed.starts[expert + 1];
            for (int first = routed.starts[expert], last; first < end; first = last) {
                last = end - first > kBand ? first + kBand : end;
                work(panel, last < end ? -1 : std::min(panel + 1, op.experts * panels - 1), first, last);
            }
        });
        return;
    }
    auto stretch_of = [&](int thread) { return cut.stretch(thread, run.threads); };
    run.share_stretches(index, stretch_of, [&](int task, int thread) {
        cut.piece(task, thread, run.threads, [&](int panel, int first, int last) {
            work(panel, last == cut.rows ? std::min(panel + 1, panels - 1) : -1, first, last);
        });
    });
}

// A panel of a weight in the activations' own format: read where it lies.
template <class F>
struct PlainPanel {
    static constexpr int lines = 4;  // of 64 bytes that hold a step
    static constexpr bool ready = true;
    const char* weights;

    PlainPanel(const Op& op, int panel, int steps)
        : weights((const char*)op.weight + (int64_t)panel * steps * lines * 64) {}

    const char* at(int step) const { return weights + (int64_t)step * lines * 64; }

    template <bool>
    ReadyReader reader(int first, void*) const {
        return {(const __m512i*)at(first)};
    }
};

template <class Panel, class F>
Cut cut_of(const Op& op, const Step& step) {
    const int steps = op.k / F::pair;
    return {op, step, steps, part_steps(steps), kRows, Panel::lines};
}

// out (rows, n) = in (rows, k) T times the packed weight; see `mode`. `k` is a multiple of a pair. A panel is taken in
// parts that stay in the first cache while all rows are multiplied with them; the sums of a band of rows are in memory.
template <class F, class Panel>
void linear(Run& run, int index, const Op& op, const Step& step) {
    using T = typename F::T;
    const int steps = op.k / F::pair;
    const Stream& stream = run.streams[index], nothing{};
    const Cut cut = cut_of<Panel, F>(op, step);
    alignas(64) T room[kSteps * kPanel * F::pair];
    alignas(64) float sums[kBand * kPanel];
    for_each_band(run, index, op, step, cut, [&](int panel_index, int, int first, int last) {
        const Panel panel(op, panel_index, steps);
        memset(sums, 0, (size_t)(last - first) * kPanel * sizeof(float));
        // Tiles of nearly the same height: a low last one would wait for its own additions.
        const int tiles = (last - first + kRows - 1) / kRows, busy = tiles - spare_tiles(tiles, Panel::lines);
        const int slots = cut.first_slot(panel_index, first);
        for (int from = 0; from < steps; from += cut.part) {
            const int count = std::min(cut.part, steps - from);
            const T* a = (const T*)op.in + first * (int64_t)op.k + from * F::pair;
            if (tiles == 1) {
                auto reader = panel.template reader<false>(from, room);
                tile_of<F, Panel::lines>(last - first, a, op.k, reader, count, Ahead{panel.at(from)}, sums);
                continue;
            }
            auto reader = panel.template reader<true>(from, room);
            const ReadyReader again{Panel::ready ? (const __m512i*)panel.at(from) : (const __m512i*)room};
            for (int t = 0, row = 0, height; t < tiles; ++t, row += height) {
                height = (last - first - row) / (tiles - t);
                const Ahead ahead = ahead_of(t, tiles, panel.at(from), panel.at(from + count), count, Panel::lines,
                                             count == cut.part ? stream : nothing,
                                             slots + from / cut.part * cut.spare + t - busy);
                const T* rows = a + (int64_t)row * op.k;
                if (t == 0) tile_of<F, 0>(height, rows, op.k, reader, count, ahead, sums);
                else tile_of<F, 0>(height, rows, op.k, again, count, ahead, sums + row * kPanel);
            }
        }
        for (int row = first; row < last; ++row) {
            __m512 sum[4];
            for (int v = 0; v < 4; ++v) sum[v] = _mm512_load_ps(sums + (row - first) * kPanel + v * 16);
            finish_row<F>(op, row, panel_index, sum);
        }
    });
}

}  // namespace
