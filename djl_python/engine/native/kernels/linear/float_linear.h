// Matrix products in the activations' own format, bf16 or fp32.

#pragma once

#include "linear/linear.h"
#include "prefetch.h"
#include "program.h"
#include "vectors/amx_tiles.h"
#include "vectors/formats.h"

namespace djl {
namespace {

// sums += R rows times V vectors of a part of a panel, which `reader` reads `Times` times in a step: read(first, b) reads
// vectors from `first` on, advance() goes on to the next ones.
template <class F, int R, int V, int Times = 1, class Reader, class Prefetch, class Sums>
inline __attribute__((always_inline)) void float_tile(Rows<R> rows, Reader reader, int steps, Prefetch prefetch, Sums sums) {
    Floats sum[R][V];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sum[r][v] = sums.load(r, v);
    for (int p = 0; p < steps; ++p) {
#pragma GCC unroll 2
        for (int time = 0; time < Times; ++time) {
            constexpr int together = std::min(V, kReadTogether);
#pragma GCC unroll 4
            for (int first = 0; first < V; first += together) {
                Ints b[together];
                reader.read(first, b);
#pragma GCC unroll 12
                for (int r = 0; r < R; ++r) {
                    const Ints x = rows.broadcast(r);
                    for (int v = 0; v < together; ++v) sum[r][first + v] = F::add_products(sum[r][first + v], b[v], x);
                }
            }
            reader.advance();
            rows.advance();
        }
        prefetch();
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sums.store(r, v, sum[r][v]);
}

// Reads vectors that are stored as they are multiplied, `Bytes` of them in a step.
template <int Bytes>
struct StoredReader {
    const char* at;

    template <int N>
    void read(int first, Ints (&b)[N]) const {
        for (int v = 0; v < N; ++v) b[v] = load_ints(at + (first + v) * 64);
    }

    void advance() { at += Bytes; }
};

// Stores some vectors of pairs as fp32: the first number of each pair, then the second of each.
template <int N>
inline void store_expanded(float* to, const Ints (&b)[N]) {
    for (int v = 0; v < N; ++v) {
        store_floats(to + v * 16, first_of_pairs(b[v]));
        store_floats(to + (N + v) * 16, second_of_pairs(b[v]));
    }
}

// Weights that are stored as they are multiplied.
struct PlainWeights {
    static constexpr int lines = 4;  // of 64 bytes that hold a step of a panel
    const char* at;

    PlainWeights(const PackedWeight&, int, int, int, const char* at) : at(at) {}

    template <int V, class Work>
    void read(int vector, const Work& work) const {
        work(StoredReader<lines * 64>{at + vector * 64});
    }

    void correct(const char*, int64_t, int, float*) const {}

    template <class Work>
    void for_each_outlier(const Work&) const {}
};

// Rows in fp32, some numbers of each. The first of a product's are kept for its next panels, while there is room in L2.
class KeptRows {
public:
    // The rows that begin at an address, `width` numbers of each: the same as before, or those that `expand` writes.
    template <class Expand>
    const float* find(const char* at, int count, int width, const Expand& expand) {
        for (int i = 0; i < pieces; ++i)
            if (kept[i].at == at && kept[i].count >= count) return kept[i].numbers;
        float* to = passing;
        if (pieces < kMaxPieces && end + count * width <= kRoom) {
            to = room + end;
            end += count * width;
            kept[pieces++] = {at, count, to};
        }
        expand(to);
        return to;
    }

private:
    struct Piece {
        const char* at;
        int count;
        const float* numbers;
    };
    static constexpr int kMaxPieces = 16, kRoom = 48 << 10;

    Piece kept[kMaxPieces];
    int pieces = 0, end = 0;
    alignas(64) float passing[kMaxBandRows * kL1Steps * 2];
    alignas(64) float room[kRoom];
};

// For many rows where bf16 is multiplied as fp32: some steps of some vectors of a part, and the rows, expanded to fp32 once.
struct ExpandedToFloats {
    static constexpr Shape shape = kExpandedTile;
    static constexpr int threshold = kMaxTiledRows, rows_per_line = kRowsPerLine;
    static constexpr bool corrected = false;

    static int steps_of(int left) { return evenly(left, kL1Steps); }

    template <class Part>
    void take_rows(const Part& part, int from, int steps, int count) {
        const int whole = (steps * 2 + 15) / 16 * 16;
        stride = whole * sizeof(float);
        rows = kept.find(part.row(0, from), count, whole, [&](float* to) {
            for (int row = 0; row < count; ++row) {
                auto x = (const uint16_t*)part.row(row, from);
                for (int i = 0; i < whole; i += 16)
                    store_floats(to + row * whole + i, load_bf16(x + i, lanes_of(steps * 2 - i)));
            }
        });
    }

    template <class Part>
    void take_weights(const Part& part, int from, int steps, int vector) {
        part.template read<kExpandedVectors>(from, vector, [&](auto reader) {
            for (float* to = weights; to < weights + steps * kNumbers; to += kNumbers) {
                Ints b[kExpandedVectors];
                reader.read(0, b);
                reader.advance();
                store_expanded(to, b);
            }
        });
    }

    template <class Prefetch>
    void multiply(int height, int row, int vector, int steps, const Prefetch& prefetch, Sums sums) const {
        with_height<(shape.rows + 1) / 2, shape.rows>(height, [&](auto known) { tile<known>(row, vector, steps, prefetch, sums); });
    }

private:
    static constexpr int kNumbers = 2 * kExpandedVectors * 16;  // of a step

    alignas(64) float weights[kL1Steps * kNumbers];
    KeptRows kept;
    const float* rows;
    int64_t stride;  // bytes

    template <int R, class Prefetch>
    __attribute__((noinline)) void tile(int row, int vector, int steps, const Prefetch& prefetch, Sums sums) const {
        const Rows<R> x((const char*)rows + row * stride, stride);
        const StoredReader<kExpandedVectors * 64> reader{(const char*)weights + vector * 64};
        float_tile<F32, R, shape.vectors, 2>(x, reader, steps, prefetch, sums);
    }
};

// Some steps of two vectors of a part, unpacked to pairs, and the rows as they are.
template <int MaxSteps>
struct ExpandedPairs {
    template <class Part>
    void take_rows(const Part& part, int from, int, int) {
        rows = part.row(0, from);
        stride = part.row(1, from) - rows;
    }

    template <class Part>
    void take_weights(const Part& part, int from, int steps, int vector) {
        part.template read<kExpandedVectors>(from, vector, [&](auto reader) {
            for (char* to = weights; to < weights + steps * kBytes; to += kBytes) {
                Ints b[kExpandedVectors];
                reader.read(0, b);
                reader.advance();
                for (int v = 0; v < kExpandedVectors; ++v) store_ints(to + v * 64, b[v]);
            }
        });
    }

protected:
    static constexpr int kBytes = kExpandedVectors * 64;  // of a step

    alignas(64) char weights[MaxSteps * kBytes];
    const char* rows;
    int64_t stride;  // bytes
};

// For many rows where unpacking weights costs as much as multiplying them: weights as pairs.
struct ExpandedToPairs : ExpandedPairs<kL1Steps> {
    static constexpr Shape shape = kExpandedTile;
    static constexpr int threshold = kMaxTiledRows, rows_per_line = kRowsPerLine;
    static constexpr bool corrected = false;

    static int steps_of(int left) { return evenly(left, kL1Steps); }

    template <class Prefetch>
    void multiply(int height, int row, int vector, int steps, const Prefetch& prefetch, Sums sums) const {
        with_height<(shape.rows + 1) / 2, shape.rows>(height, [&](auto known) { tile<known>(row, vector, steps, prefetch, sums); });
    }

private:
    template <int R, class Prefetch>
    __attribute__((noinline)) void tile(int row, int vector, int steps, const Prefetch& prefetch, Sums sums) const {
        const Rows<R> x(rows + row * stride, stride);
        float_tile<BF16, R, shape.vectors>(x, StoredReader<kBytes>{weights + vector * 64}, steps, prefetch, sums);
    }
};

constexpr int kTilesTogether = 16;  // along k: their weights stay in L1

// For many rows by tiles: weights as pairs, with the outliers in their places.
struct ExpandedToTiles : ExpandedPairs<kTilesTogether * kTileSteps> {
    static constexpr Shape shape{TileBlock::rows, 2};
    static constexpr int threshold = kMaxSingleTileRows, rows_per_line = 8 * kRowsPerLine;
    static constexpr bool corrected = true;

    // Whole tiles; at the end the steps that don't fill one.
    static int steps_of(int left) {
        if (left < kTileSteps) return left;
        return evenly(left / kTileSteps, kTilesTogether) * kTileSteps;
    }

    template <class Part>
    void take_weights(const Part& part, int from, int steps, int vector) {
        ExpandedPairs::take_weights(part, from, steps, vector);
        part.for_each_outlier([&](int step, int column, int second, uint16_t weight) {
            if (step < from || step >= from + steps || column / 32 * 2 != vector) return;
            memcpy(weights + (step - from) * kBytes + column % 32 * 4 + second * 2, &weight, sizeof weight);
        });
    }

    template <class Prefetch>
    __attribute__((noinline)) void multiply(int height, int row, int, int steps, Prefetch prefetch, Sums sums) const {
        const TileBlock block(height);
        const int together = std::min(steps, kTileSteps);
        block.shape(together);
        if (sums.begun) block.load(sums.at, kPitch);
        const char* x = rows + row * stride;
        const char* w = weights;
        for (int step = 0; step < steps; step += together, x += 4 * kTileSteps, w += kTileSteps * kBytes) {
            block.multiply<Pairs>(x, stride, w, w + 64, kBytes);
            for (int i = 0; i < together; ++i) prefetch();
        }
        block.store(sums.at, kPitch);
    }

private:
    static constexpr int64_t kPitch = kPanel * sizeof(float);  // of sums
};

// A part of a panel and the rows that it is multiplied with. `Weights` reads the part's format. It has `lines`; the part's
// address `at`; read<V>(vector, work), which calls work with a reader; correct(rows, their stride and count, sums), which
// adds the products of weights that the reader leaves out; and for_each_outlier(work), which calls work(step, column, which
// of the pair, weight) for each of those weights.
template <class F, class Weights>
struct FloatPart {
    static constexpr int lines = Weights::lines;
    static constexpr bool in_registers = true, divisible = true;
    static constexpr bool unpacked_once = kUnpacksOnce && lines < PlainWeights::lines;
    static constexpr bool expandable = F::pair == 2 && (kHasAmx || !kMultipliesPairs || unpacked_once);
    static constexpr Shape shape = F::shape;
    using ExpandedToVectors = std::conditional_t<kMultipliesPairs, ExpandedToPairs, ExpandedToFloats>;
    using Expanded = std::conditional_t<kHasAmx, ExpandedToTiles, ExpandedToVectors>;
    const char* at;

    FloatPart(const Weights& weights, const typename F::T* rows, int64_t stride)
        : at(weights.at), weights(weights), rows(rows), stride(stride * sizeof(typename F::T)) {}

    template <int R, int V, class Prefetch>
    __attribute__((noinline)) void tile(int row, int vector, int steps, const Prefetch& prefetch, Sums sums) const {
        weights.template read<V>(vector, [&](const auto& reader) {
            float_tile<F, R, V>(Rows<R>(this->row(row, 0), stride), reader, steps, prefetch, sums);
        });
    }

    // The address of a row from a step on.
    const char* row(int row, int step) const { return (const char*)(rows + step * F::pair) + row * stride; }

    // Calls work with a reader of V vectors from a step on.
    template <int V, class Work>
    void read(int step, int vector, const Work& work) const {
        after(step).weights.template read<V>(vector, work);
    }

    template <class Work>
    void for_each_outlier(const Work& work) const {
        weights.for_each_outlier(work);
    }

    // The rest of the part after some steps.
    FloatPart after(int steps) const {
        FloatPart left = *this;
        left.weights.at = left.at = at + (int64_t)steps * lines * 64;
        left.rows += steps * F::pair;
        return left;
    }

    void correct(int first, int last, float* sums) const {
        weights.correct(row(first, 0), stride, last - first, sums + first * kPanel);
    }

private:
    Weights weights;
    const typename F::T* rows;
    const int64_t stride;
};

// A panel whose parts `Weights` reads; rows have `k` numbers, a multiple of F::pair.
template <class F, class Weights>
struct FloatPanel {
    using Format = F;

    FloatPanel(const LinearOp& op, int panel)
        : op(op), steps(steps_of(op)), length(part_steps(steps)), parts(parts_of(steps)), panel(panel) {}

    static Cut cut(const LinearOp& op, const StepInputs& step) {
        const int steps = steps_of(op);
        return {op, step, steps, part_steps(steps), Type<FloatPart<F, Weights>>{}};
    }

    const char* at(int step) const {
        return (const char*)op.weight.panels + ((int64_t)panel * steps + step) * Weights::lines * 64;
    }

    FloatPart<F, Weights> part(int number, int row) const {
        const int first = number * length;
        const int64_t stride = apart(op.stride, op.k);
        const auto* rows = (const typename F::T*)op.in + row * stride + input_offset(op, panel) + first * F::pair;
        return {Weights(op.weight, panel, parts, number, at(first)), rows, stride};
    }

    void finish(Floats (&)[4]) const {}

private:
    static int steps_of(const LinearOp& op) { return op.k / F::pair; }

    const LinearOp& op;
    const int steps, length, parts, panel;
};

}  // namespace
}  // namespace djl
