// Matrix products of integers: weights of 8 or 4 bits, activations rounded to 8 bits in groups at run time.
//
// A group is kGroup numbers along k. Within a group products are added as integers (four to a 32-bit lane), groups are
// added in fp32. Weights are stored as unsigned codes u and stand for (u - zero) * scale. Scale and zero are those of the
// group and column; or the scale is the column's and the zero is the same everywhere. What the zero contributes depends on
// the activations alone, and each sum begins with minus that. Activations have a scale for each row and group.

#pragma once

#include <algorithm>

#include "linear/block_rows.h"
#include "linear/linear.h"
#include "prefetch.h"
#include "program.h"
#include "thread_pool.h"
#include "vectors/amx_tiles.h"
#include "vectors/formats.h"

namespace djl {
namespace {

constexpr int kQuads = kGroup / 4;  // steps of a group

// A row of rounded activations: all its codes, then each group's scale, then minus the sum of each group's codes. A row is an
// odd number of cache lines: threads write different lines, and a column of all rows is in as many sets of L1 as possible.
struct IntegerRow {
    const Code* codes;
    const float* scales;
    const int32_t* sums;
};

inline int64_t integer_row_bytes(int groups) {
    const int64_t lines = ((int64_t)groups * (kGroup * sizeof(Code) + 8) + 63) / 64;
    return (lines | 1) * 64;
}

inline IntegerRow integer_row(const void* rows, int64_t row, int groups) {
    auto at = (const char*)rows + row * integer_row_bytes(groups);
    auto scales = (const float*)(at + (int64_t)groups * kGroup * sizeof(Code));
    return {(const Code*)at, scales, (const int32_t*)(scales + groups)};
}

// Codes of 8 bits with a scale for each column and the same zero everywhere.
struct Int8 {
    static constexpr int zero_bits = 7, zero = 1 << zero_bits, lines = 4;  // lines: of 64 bytes that hold a quad of a panel
    static constexpr bool grouped = false;
    template <int V>
    static void load(const char* at, int first, Ints (&b)[V]) {
        for (int v = 0; v < V; ++v) b[v] = load_ints(at + (first + v) * 64);
    }
};

struct Int8ByGroup : Int8 {
    static constexpr bool grouped = true;
};

struct Int4ByGroup {
    static constexpr int lines = 2;
    static constexpr bool grouped = true;
    template <int V>
    static void load(const char* at, int first, Ints (&b)[V]) {
        for (int v = 0; v < V; ++v) {
            const Ints both = load_ints(at + (first + v) / 2 * 64);
            b[v] = ((first + v) % 2 ? shift_shorts_right<4>(both) : both) & bytes(15);
        }
    }
};

template <class W>
inline int64_t panel_bytes(int groups) {
    return (int64_t)groups * kQuads * W::lines * 64;
}

// What a group's sum of integers begins with: the zero, constant or the group's own, times `off`, minus the sum of a row's
// codes. That sum fits 16 bits, and the zero's upper 16 bits are 0, so that multiply_pairs makes this product.
template <class W>
inline Ints without_zero(Ints zero, Ints off) {
    if constexpr (W::grouped) return multiply_pairs(zero, off);
    else return shift_left<W::zero_bits>(off);
}

// For many rows by tiles: some groups of two vectors of a part, as bytes, and the rows as they are.
template <class Part>
struct GroupsInTiles {
    using W = typename Part::Weights;
    static constexpr Shape shape{kTileRows, 2};
    static constexpr int threshold = kMaxSingleTileRows, rows_per_line = 4 * kRowsPerLine;
    static constexpr bool corrected = true;
    static_assert(kTileSteps == kQuads);

    static int steps_of(int left) { return evenly(left / kQuads, kMaxGroups) * kQuads; }

    void take_rows(const Part& of, int from, int, int) {
        part = &of;
        begin = from / kQuads;
    }

    void take_weights(const Part& of, int from, int steps, int from_vector) {
        vector = from_vector;
        const char* quad = of.at + (int64_t)from * W::lines * 64;
        weights = kStoredAsBytes ? quad + vector * 64 : room;
        if (kStoredAsBytes) return;
        for (char* to = room; to < room + steps * kPitch; to += kPitch, quad += W::lines * 64) {
            Ints b[2];
            W::load(quad, vector, b);
            for (int v = 0; v < 2; ++v) store_ints(to + v * 64, b[v]);
        }
    }

    template <class Prefetch>
    __attribute__((noinline)) void multiply(int height, int row, int, int steps, Prefetch prefetch, Sums sums) const {
        alignas(64) int32_t made[kTileRows * 2 * 16];
        const TileBlock block(height);
        const IntegerRow first = integer_row(part->rows, part->first_row + row, part->groups);
        const int64_t stride = integer_row_bytes(part->groups);
        const char* w = weights;
        block.shape(kTileSteps);
        for (int g = 0; g < steps / kQuads; ++g, w += kQuads * kPitch) {
            block.clear();
            block.multiply<Quads>(first.codes + (int64_t)(begin + g) * kGroup, stride, w, w + 64, kPitch);
            block.store(made, 2 * 64);
            add(made, height, begin + g, first, stride, {sums.at, sums.begun || g > 0});
            for (int i = 0; i < kQuads; ++i) prefetch();
        }
    }

private:
    static constexpr int kMaxGroups = 16;  // groups whose weights stay in L1
    static constexpr bool kStoredAsBytes = W::lines == 4;
    static constexpr int kPitch = kStoredAsBytes ? 4 * 64 : 2 * 64;

    alignas(64) char room[kStoredAsBytes ? 1 : kMaxGroups * kQuads * kPitch];
    const char* weights;
    const Part* part;
    int begin, vector;

    // Adds a group's products, rows of two vectors of integers, to the sums in fp32.
    void add(const int32_t* made, int height, int group, const IntegerRow& first, int64_t stride, Sums sums) const {
        const int64_t column = (int64_t)group * kPanel + vector * 16;
        Ints zero[2] = {};
        Floats of_group[2] = {};
        if constexpr (W::grouped)
            for (int v = 0; v < 2; ++v) {
                zero[v] = load_bytes(part->zeros + column + v * 16);
                of_group[v] = load_halves(part->scales + column + v * 16);
            }
        auto of_row = [&](auto* numbers, int r) { return *(decltype(numbers))((const char*)(numbers + group) + r * stride); };
        for (int r = 0; r < height; ++r) {
            const Ints off = ints(of_row(first.sums, r));
            const Floats scale = floats(of_row(first.scales, r));
            for (int v = 0; v < 2; ++v) {
                const Ints x = add_ints(load_ints(made + r * 32 + v * 16), without_zero<W>(zero[v], off));
                sums.store(r, v, fma(to_floats(x), W::grouped ? scale * of_group[v] : scale, sums.load(r, v)));
            }
        }
    }
};

// A part of a weight's panel and the rows that it is multiplied with.
template <class W>
struct IntegerPart {
    using Weights = W;
    using Expanded = GroupsInTiles<IntegerPart>;
    static constexpr int lines = W::lines;
    static constexpr Shape shape = kQuadTile;
    static constexpr bool in_registers = 2 * shape.rows * shape.vectors <= kSumRegisters;
    static constexpr bool divisible = false;  // its steps belong to groups
    static constexpr bool expandable = kHasAmx && sizeof(Code) == 1;

    const char* at;
    const uint16_t* scales;  // of groups, as are zeros; used where weights have them by group
    const uint8_t* zeros;
    const void* rows;
    int first_row, groups;

    // Where registers aren't enough for both, they hold the integers, and the fp32 sums are in memory: in an array of the
    // tile's own, which stays in L1. Pragmas unroll the loops so that GCC sees in time that `part` can live in registers.
    template <int R, int V, class Prefetch>
    __attribute__((noinline)) void tile(int row, int vector, int steps, Prefetch prefetch, Sums sums) const {
        const IntegerRow first = integer_row(rows, first_row + row, groups);
        const int64_t stride = integer_row_bytes(groups);
        Rows<R> codes(first.codes, stride), row_scales(first.scales, stride), row_sums(first.sums, stride);
        alignas(64) Floats sum[R][V];
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) sum[r][v] = sums.load(r, v);
        const int begin = V == 4 ? 0 : vector;
        const char* quad = at;
        int64_t column = begin * 16;  // of the group's scales and zeros
        for (int g = 0; g < steps / kQuads; ++g) {
            Ints part[R][V], zero[V];
            if constexpr (W::grouped)
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v) zero[v] = load_bytes(zeros + column + v * 16);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const Ints off = row_sums.broadcast(r);
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v) part[r][v] = without_zero<W>(zero[v], off);
            }
            for (int q = 0; q < kQuads; ++q, quad += lines * 64) {
                Ints b[V];
                W::load(quad, begin, b);
#pragma GCC unroll 12
                for (int r = 0; r < R; ++r) {
                    const Ints x = codes.broadcast(r);
                    if constexpr (sizeof(Code) == 1) {
#pragma GCC unroll 4
                        for (int v = 0; v < V; ++v) add_quads(part[r][v], b[v], x);
                    } else {
                        const Ints second = codes.broadcast(r, 4);
#pragma GCC unroll 4
                        for (int v = 0; v < V; ++v) add_quads(part[r][v], b[v], x, second);
                    }
                }
                codes.advance(4 * sizeof(Code));
                prefetch();
            }
            Floats of_group[V];
            if constexpr (W::grouped)
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v) of_group[v] = load_halves(scales + column + v * 16);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const Floats scale = as_floats(row_scales.broadcast(r));
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v) {
                    const Floats x = to_floats(part[r][v]);
                    const Floats factor = W::grouped ? scale * of_group[v] : scale;
                    sum[r][v] = fma(x, factor, sum[r][v]);
                }
            }
            row_scales.advance();
            row_sums.advance();
            column += kPanel;
        }
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) sums.store(r, v, sum[r][v]);
    }

    void correct(int, int, float*) const {}
};

// A weight's panel, which has one part. Its rows are what a QuantizeOp wrote.
template <class F, class W>
struct IntegerPanel {
    using Format = F;

    IntegerPanel(const LinearOp& op, int panel) : op(op), groups(group_count(op.k)), panel(panel) {}

    static Cut cut(const LinearOp& op, const StepInputs& step) {
        const int steps = group_count(op.k) * kQuads;
        return {op, step, steps, steps, Type<IntegerPart<W>>{}};
    }

    const char* at(int step) const {
        return (const char*)op.weight.panels + panel * panel_bytes<W>(groups) + (int64_t)step * W::lines * 64;
    }

    IntegerPart<W> part(int, int row) const {
        if constexpr (!W::grouped) return {at(0), nullptr, nullptr, op.in, row, groups};
        const int64_t group = (int64_t)panel * groups * kPanel;
        return {at(0), (const uint16_t*)op.weight.scales + group, op.weight.zeros + group, op.in, row, groups};
    }

    void finish(Floats (&sum)[4]) const {
        if (W::grouped) return;
        for (int v = 0; v < 4; ++v) sum[v] = sum[v] * load_floats((const float*)op.weight.scales + panel * kPanel + v * 16);
    }

private:
    const LinearOp& op;
    const int groups, panel;
};

// Loads sixteen numbers of a row: as they are, or in `order`.
template <class F>
inline Floats load_ordered(const typename F::T* x, const int32_t* order, int first, Lanes mask) {
    if (!order) return F::load(x + first, mask);
    alignas(64) float numbers[16] = {};
    for (int i = 0; i < 16 && mask >> i & 1; ++i) numbers[i] = F::to(x[order[first + i]]);
    return load_floats(numbers);
}

// Rounds groups `first` to before `end` of a row x (k,) T, into `row`.
template <class F>
inline void quantize_groups(const typename F::T* x, const int32_t* order, int k, int first, int end, const IntegerRow& row) {
    take_ownership(const_cast<Code*>(row.codes) + first * kGroup, (int64_t)(end - first) * kGroup);
    for (int g = first; g < end; ++g) {
        Floats v[4];
        Floats magnitudes = Floats{}, zeros = Floats{};
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const Lanes mask = lanes_of(k - g * kGroup - i * 16);
            v[i] = load_ordered<F>(x, order, g * kGroup + i * 16, mask);
            magnitudes = max(magnitudes, abs(v[i]));
            zeros = fma(v[i], Floats{}, zeros);  // but for infinities and NaN
        }
        const float max_magnitude = max_lane(magnitudes);
        const Floats inverse = floats(max_magnitude > 0 ? 127.0f / max_magnitude : 0.0f);
        Ints codes[4], sum = Ints{};
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            codes[i] = to_ints(v[i] * inverse);
            sum = subtract_ints(sum, codes[i]);
        }
        store_codes(const_cast<Code*>(row.codes) + g * kGroup, codes);
        const_cast<float*>(row.scales)[g] = is_equal(zeros, Floats{}) == lanes_of(16) ? max_magnitude / 127.0f : NAN;
        const_cast<int32_t*>(row.sums)[g] = sum_of_lanes(sum);
    }
}

// A group's greatest magnitude becomes 127.
//
// Each thread begins with what it has computed itself, which is in its own caches: columns, if a product computed them, else
// rows.
template <class F>
void quantize(Run& run, int index, const QuantizeOp& op, const StepInputs& step) {
    const int rows = step.tokens * op.rows_per_token, groups = op.for_blocks ? block_count(op.k) : group_count(op.k);
    auto quantize_part = [&](int t, int first, int end) {
        const auto* x = (const typename F::T*)op.in + t * apart(op.stride, op.k);
        if (op.for_blocks) quantize_blocks<F>(x, op.k, first, end, block_row(op.out, t, groups));
        else quantize_groups<F>(x, op.order, op.k, first, end, integer_row(op.out, t, groups));
    };
    const Op* before = index ? &run.ops[index - 1] : nullptr;
    if (!before || before->head.kind != kLinear || before->linear.output.out != op.in || op.rows_per_token > 1)
        return run.parallel_for_rows(index, rows, [&](int t) { quantize_part(t, 0, groups); });
    auto begin = [&](int thread) { return groups * thread / run.threads; };
    run.parallel_for_row_pieces(index, rows, [&](int t, int thread) { quantize_part(t, begin(thread), begin(thread + 1)); });
}

// One number of a weight (k, columns) in the format kInt8.
inline float int8_weight(const PackedWeight& weight, int k, int64_t column, int i) {
    const int64_t groups = group_count(k);
    const auto* panel = (const uint8_t*)weight.panels + column / kPanel * panel_bytes<Int8>(groups);
    const int code = panel[((int64_t)(i / 4) * kPanel + column % kPanel) * 4 + i % 4];
    return (float)(code - Int8::zero) * ((const float*)weight.scales)[column];
}

}  // namespace
}  // namespace djl
