// Matrix products of integers: weights of 8 or 4 bits, activations rounded to 8 bits in groups as they come.
//
// A group is kGroup numbers along k. Within it products are integers (four to a 32-bit lane), over groups they are
// summed in fp32. Weights are stored as unsigned codes, u - kZero times a scale: of the column (8 bits) or of the group
// and column (4 bits). What the zero point adds is known from the activations alone, and each sum starts with it taken
// off. Activations have a scale for each row and group.

#pragma once

#include <algorithm>

#include "formats.h"
#include "linear.h"
#include "pool.h"
#include "program.h"

namespace {

constexpr int kGroup = 64;          // of program.py
constexpr int kQuads = kGroup / 4;  // steps of a group
constexpr int kIntegerRows = 6;     // of the register tile

// A row of rounded activations: all its codes, then a scale and the codes' sum for each group.
struct IntegerRow {
    const int8_t* codes;
    const float* scales;
    const int32_t* sums;
};

inline int64_t integer_row_bytes(int groups) { return (int64_t)groups * (kGroup + 8); }

inline IntegerRow integer_row(const void* rows, int64_t row, int groups) {
    auto at = (const char*)rows + row * integer_row_bytes(groups);
    auto scales = (const float*)(at + (int64_t)groups * kGroup);
    return {(const int8_t*)at, scales, (const int32_t*)(scales + groups)};
}

struct Eight {
    static constexpr int zero = 128, lines = 4;  // lines of 64 bytes that hold a quad of a panel
    static constexpr bool grouped = false;
    static void load(const char* at, __m512i (&b)[4]) {
        for (int v = 0; v < 4; ++v) b[v] = _mm512_loadu_si512(at + v * 64);
    }
};

struct Four {
    static constexpr int zero = 8, lines = 2;
    static constexpr bool grouped = true;
    static void load(const char* at, __m512i (&b)[4]) {
        const __m512i low = _mm512_set1_epi8(15);
        for (int v = 0; v < 4; v += 2) {
            const __m512i both = _mm512_loadu_si512(at + v * 32);
            b[v] = _mm512_and_si512(both, low);
            b[v + 1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        }
    }
};

template <class W>
inline int64_t panel_bytes(int groups) {
    return (int64_t)groups * kQuads * W::lines * 64;
}

// sum += b (unsigned) times a (signed), four to a lane. The intrinsic makes GCC 12 copy each sum, and spill them all.
inline void multiply(__m512i& sum, __m512i b, __m512i a) { asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(b), "v"(a)); }

// R rows times one panel of weights; sums in fp32, (R, kPanel) in memory: the registers are the integers'. Loops are
// unrolled by pragmas so that GCC sees before it is too late that `part` can live in registers.
template <class W, int R, int Lines>
inline void integer_tile(const Op& op, int64_t row, int panel, int groups, const char* weights, Ahead ahead,
                         float* sums) {
    IntegerRow given[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) given[r] = integer_row(op.in, row + r, groups);
    auto scales = (const uint16_t*)op.weight2 + (int64_t)panel * groups * kPanel;
    for (int g = 0; g < groups; ++g) {
        __m512i part[R][4];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < 4; ++v) part[r][v] = _mm512_set1_epi32(-W::zero * given[r].sums[g]);
        for (int q = 0; q < kQuads; ++q, weights += W::lines * 64) {
            __m512i b[4];
            W::load(weights, b);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                int32_t four;
                memcpy(&four, given[r].codes + g * kGroup + q * 4, 4);
                const __m512i x = _mm512_set1_epi32(four);
#pragma GCC unroll 4
                for (int v = 0; v < 4; ++v) multiply(part[r][v], b[v], x);
            }
            ahead.fetch<Lines>();
        }
        __m512 of_group[4];
        if (W::grouped)
#pragma GCC unroll 4
            for (int v = 0; v < 4; ++v)
                of_group[v] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(scales + g * kPanel + v * 16)));
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const __m512 scale = _mm512_set1_ps(given[r].scales[g]);
#pragma GCC unroll 4
            for (int v = 0; v < 4; ++v) {
                float* sum = sums + r * kPanel + v * 16;
                const __m512 x = _mm512_cvtepi32_ps(part[r][v]);
                const __m512 factor = W::grouped ? _mm512_mul_ps(scale, of_group[v]) : scale;
                _mm512_store_ps(sum, _mm512_fmadd_ps(x, factor, _mm512_load_ps(sum)));
            }
        }
    }
}

template <class F, class W, int R>
inline void integer_rows_of_panel(const Op& op, int64_t row, int panel, int groups, const char* weights, bool alone,
                                  Ahead ahead) {
    alignas(64) float sums[R * kPanel] = {};
    if (alone) integer_tile<W, R, W::lines>(op, row, panel, groups, weights, ahead, sums);
    else if constexpr (R >= kIntegerRows / 2) integer_tile<W, R, 0>(op, row, panel, groups, weights, ahead, sums);
    for (int r = 0; r < R; ++r) {
        __m512 sum[4];
        for (int v = 0; v < 4; ++v) {
            sum[v] = _mm512_load_ps(sums + r * kPanel + v * 16);
            if (W::grouped) continue;
            sum[v] = _mm512_mul_ps(sum[v], _mm512_loadu_ps((const float*)op.weight2 + panel * kPanel + v * 16));
        }
        finish_row<F>(op, row + r, panel, sum);
    }
}

// A panel of integers is one part: what is added up in registers are groups.
template <class W>
Cut integer_cut_of(const Op& op, const Step& step) {
    const int steps = (op.k + kGroup - 1) / kGroup * kQuads;
    return {op, step, steps, steps, kIntegerRows, W::lines};
}

// `linear` with integer weights: in is what kQuantize wrote, weight2 are the scales.
template <class F, class W>
void integer_linear(Run& run, int index, const Op& op, const Step& step) {
    const int groups = (op.k + kGroup - 1) / kGroup;
    const int64_t size = panel_bytes<W>(groups);
    const Cut cut = integer_cut_of<W>(op, step);
    for_each_band(run, index, op, step, cut, [&](int panel, int following, int first, int last) {
        const char* weights = (const char*)op.weight + panel * size;
        const char* next = following < 0 ? nullptr : (const char*)op.weight + following * size;
        const int tiles = (last - first + kIntegerRows - 1) / kIntegerRows, busy = tiles - spare_tiles(tiles, W::lines);
        const int slots = cut.first_slot(panel, first);
        int row = first;
        for (int t = 0; t < tiles; ++t) {
            const Ahead ahead = ahead_of(t, tiles, weights, next, groups * kQuads, W::lines, run.streams[index],
                                         slots + t - busy);
            const int height = (last - row + tiles - t - 1) / (tiles - t);
            switch (height) {
                case 1: integer_rows_of_panel<F, W, 1>(op, row, panel, groups, weights, tiles == 1, ahead); break;
                case 2: integer_rows_of_panel<F, W, 2>(op, row, panel, groups, weights, tiles == 1, ahead); break;
                case 3: integer_rows_of_panel<F, W, 3>(op, row, panel, groups, weights, tiles == 1, ahead); break;
                case 4: integer_rows_of_panel<F, W, 4>(op, row, panel, groups, weights, tiles == 1, ahead); break;
                case 5: integer_rows_of_panel<F, W, 5>(op, row, panel, groups, weights, tiles == 1, ahead); break;
                default: integer_rows_of_panel<F, W, 6>(op, row, panel, groups, weights, tiles == 1, ahead); break;
            }
            row += height;
        }
    });
}

// out = in (rows, k) T, rounded: each group's greatest becomes 127.
template <class F>
void quantize(Run& run, int index, const Op& op, const Step& step) {
    const int rows = rows_of(op, step);
    const int groups = (op.k + kGroup - 1) / kGroup;
    run.share(index, rows, [&](int t) {
        const auto* x = (const typename F::T*)op.in + (int64_t)t * op.k;
        const IntegerRow row = integer_row(op.out, t, groups);
        for (int g = 0; g < groups; ++g) {
            __m512 v[4];
            __m512 greatest = _mm512_setzero_ps();
            for (int i = 0; i < 4; ++i) {
                const __mmask16 mask = lanes_of(op.k - g * kGroup - i * 16);
                v[i] = F::load(x + g * kGroup + i * 16, mask);
                greatest = _mm512_max_ps(greatest, _mm512_abs_ps(v[i]));
            }
            const float most = _mm512_reduce_max_ps(greatest);
            const __m512 inverse = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
            __m512i sum = _mm512_setzero_si512();
            for (int i = 0; i < 4; ++i) {
                const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], inverse));
                sum = _mm512_add_epi32(sum, code);
                _mm_storeu_si128((__m128i*)(row.codes + g * kGroup + i * 16), _mm512_cvtepi32_epi8(code));
            }
            const_cast<float*>(row.scales)[g] = most / 127.0f;
            const_cast<int32_t*>(row.sums)[g] = _mm512_reduce_add_epi32(sum);
        }
    });
}

// One number of a weight of 8 bits.
inline float code_of(const Op& op, int64_t column, int i) {
    const int64_t groups = (op.n + kGroup - 1) / kGroup;  // of an embedding, n is what is k for its head
    const auto* panel = (const uint8_t*)op.weight + column / kPanel * panel_bytes<Eight>(groups);
    const int code = panel[((int64_t)(i / 4) * kPanel + column % kPanel) * 4 + i % 4];
    return (float)(code - Eight::zero) * op.weight2[column];
}

}  // namespace
