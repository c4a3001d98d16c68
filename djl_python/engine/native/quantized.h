// Matrix products of integers: weights of 8 or 4 bits, activations rounded to 8 bits in groups as they come.
//
// A group is kGroup numbers along k. Within it products are integers (four to a 32-bit lane), over groups they are
// summed in fp32. Weights are stored as unsigned codes, u - zero times a scale: of the column, or of the group and column,
// which then has a zero of its own. What the zero adds is known from the activations alone, and each sum starts with it
// taken off. Activations have a scale for each row and group.

#pragma once

#include <algorithm>

#include "formats.h"
#include "linear.h"
#include "pool.h"
#include "program.h"

namespace {

constexpr int kGroup = 64;          // of program.py
constexpr int kQuads = kGroup / 4;  // steps of a group

// A row of rounded activations: all its codes, then for each group a scale, and minus the sum of its codes.
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

// 8 bits with a scale for each column, and the same zero everywhere.
struct Eight {
    static constexpr int zero_bits = 7, zero = 1 << zero_bits, lines = 4;  // lines of 64 bytes that hold a quad of a panel
    static constexpr bool grouped = false;
    static void load(const char* at, __m512i (&b)[4]) {
        for (int v = 0; v < 4; ++v) b[v] = _mm512_loadu_si512(at + v * 64);
    }
};

struct EightByGroup : Eight {
    static constexpr bool grouped = true;
};

struct Four {
    static constexpr int lines = 2;
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

// A part of a weight's panel and the rows that it is multiplied with.
template <class W>
struct IntegerPart {
    static constexpr int lines = W::lines;
    static constexpr Shape shape{6, 4};
    const char* at;
    const uint16_t* scales;  // of groups, where they have them
    const uint8_t* zeros;
    const void* rows;
    int first_row, groups;

    // The registers are the integers', sums are in memory: in a place of their own, which stays in the first cache. Loops
    // are unrolled by pragmas so that GCC sees before it is too late that `part` can live in registers.
    template <int R, int V, class Fetch>
    __attribute__((noinline)) void tile(int row, int, int steps, Fetch fetch, float* sums) const {
        static_assert(V == 4);  // nothing is gained by less of the width
        const IntegerRow first = integer_row(rows, first_row + row, groups);
        const int64_t stride = integer_row_bytes(groups);
        Rows<R> codes(first.codes, stride), row_scales(first.scales, stride), row_sums(first.sums, stride);
        alignas(64) __m512 sum[R][V];
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) sum[r][v] = _mm512_load_ps(sums + r * kPanel + v * 16);
        const char* quad = at;
        const uint16_t* group_scales = scales;
        const uint8_t* group_zeros = zeros;
        for (int g = 0; g < steps / kQuads; ++g) {
            __m512i part[R][V], zero[V];
            if constexpr (W::grouped)
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v)
                    zero[v] = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(group_zeros + v * 16)));
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const __m512i off = row_sums.spread(r);
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v)  // a group's sum fits 16 bits, and the zero's upper ones are none
                    if constexpr (W::grouped) part[r][v] = _mm512_madd_epi16(zero[v], off);
                    else part[r][v] = _mm512_slli_epi32(off, W::zero_bits);
            }
            for (int q = 0; q < kQuads; ++q, quad += lines * 64) {
                __m512i b[V];
                W::load(quad, b);
#pragma GCC unroll 12
                for (int r = 0; r < R; ++r) {
                    const __m512i x = codes.spread(r);
#pragma GCC unroll 4
                    for (int v = 0; v < V; ++v) multiply(part[r][v], b[v], x);
                }
                codes.advance();
                fetch();
            }
            __m512 of_group[V];
            if (W::grouped)
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v)
                    of_group[v] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(group_scales + v * 16)));
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const __m512 scale = _mm512_castsi512_ps(row_scales.spread(r));
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v) {
                    const __m512 x = _mm512_cvtepi32_ps(part[r][v]);
                    const __m512 factor = W::grouped ? _mm512_mul_ps(scale, of_group[v]) : scale;
                    sum[r][v] = _mm512_fmadd_ps(x, factor, sum[r][v]);
                }
            }
            row_scales.advance();
            row_sums.advance();
            group_scales += kPanel;
            group_zeros += kPanel;
        }
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) _mm512_store_ps(sums + r * kPanel + v * 16, sum[r][v]);
    }

    void correct(int, float*) const {}
};

// A weight's panel, which is one part. Rows are what kQuantize wrote.
template <class F, class W>
struct IntegerPanel {
    using Format = F;

    IntegerPanel(const Op& op, int panel) : op(op), groups(groups_of(op)), panel(panel) {}

    static Cut cut(const Op& op, const Step& step) {
        const int steps = groups_of(op) * kQuads;
        return {op, step, steps, steps, IntegerPart<W>::shape, W::lines};
    }

    const char* at(int step) const {
        return (const char*)op.weight + panel * panel_bytes<W>(groups) + (int64_t)step * W::lines * 64;
    }

    IntegerPart<W> part(int, int row) const {
        const int64_t group = (int64_t)panel * groups * kPanel;
        return {at(0), (const uint16_t*)op.weight2 + group, (const uint8_t*)op.weight3 + group, op.in, row, groups};
    }

    void finish(__m512 (&sum)[4]) const {
        if (W::grouped) return;
        for (int v = 0; v < 4; ++v) sum[v] = _mm512_mul_ps(sum[v], _mm512_loadu_ps(op.weight2 + panel * kPanel + v * 16));
    }

private:
    static int groups_of(const Op& op) { return (op.k + kGroup - 1) / kGroup; }

    const Op& op;
    const int groups, panel;
};

// Sixteen numbers of a row, in the order of the inputs or another.
template <class F>
inline __m512 load_ordered(const typename F::T* x, const int32_t* order, int first, __mmask16 mask) {
    if (!order) return F::load(x + first, mask);
    alignas(64) float numbers[16] = {};
    for (int i = 0; i < 16 && mask >> i & 1; ++i) numbers[i] = F::to(x[order[first + i]]);
    return _mm512_load_ps(numbers);
}

// out = in (rows, k) T, rounded: each group's greatest becomes 127. `weight` may be an order of the inputs, (k,) int32.
template <class F>
void quantize(Run& run, int index, const Op& op, const Step& step) {
    const int rows = rows_of(op, step);
    const int groups = (op.k + kGroup - 1) / kGroup;
    run.share(index, rows, [&](int t) {
        const auto* x = (const typename F::T*)op.in + t * stride_of(op, op.k);
        const auto* order = (const int32_t*)op.weight;
        const IntegerRow row = integer_row(op.out, t, groups);
        for (int g = 0; g < groups; ++g) {
            __m512 v[4];
            __m512 greatest = _mm512_setzero_ps();
            for (int i = 0; i < 4; ++i) {
                const __mmask16 mask = lanes_of(op.k - g * kGroup - i * 16);
                v[i] = load_ordered<F>(x, order, g * kGroup + i * 16, mask);
                greatest = _mm512_max_ps(greatest, _mm512_abs_ps(v[i]));
            }
            const float most = _mm512_reduce_max_ps(greatest);
            const __m512 inverse = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
            __m512i sum = _mm512_setzero_si512();
            for (int i = 0; i < 4; ++i) {
                const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], inverse));
                sum = _mm512_sub_epi32(sum, code);
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
