// Matrix products in the activations' own format, bf16 or fp32.

#pragma once

#include "ahead.h"
#include "formats.h"
#include "linear.h"
#include "program.h"

namespace djl {
namespace {

// sums += R rows times V vectors of a part of a panel, which `reader` reads, `Times` in a step.
template <class F, int R, int V, int Times = 1, class Reader, class Fetch>
inline __attribute__((always_inline)) void float_tile(Rows<R> rows, Reader reader, int steps, Fetch fetch, Sums sums) {
    Floats sum[R][V];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sum[r][v] = sums.load(r, v);
    for (int p = 0; p < steps; ++p) {
#pragma GCC unroll 2
        for (int time = 0; time < Times; ++time) {
            Ints b[V];
            reader.read(b);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const Ints x = rows.spread(r);
                for (int v = 0; v < V; ++v) sum[r][v] = F::add_products(sum[r][v], b[v], x);
            }
            rows.advance();
        }
        fetch();
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sums.store(r, v, sum[r][v]);
}

// What many rows are multiplied with where bf16 is multiplied as fp32: some steps of V vectors of a part, expanded once
// for all of them, and the rows that are.
template <int V>
struct ExpandedPart {
    alignas(64) float weights[kTwice * 2 * V * 16];
    alignas(64) float rows[kBand * kTwice * 2];
    int64_t stride;  // bytes

    // Of each step first the first of its pairs, then the second.
    template <class Reader>
    void take_weights(Reader reader, int steps) {
        for (float* to = weights; to < weights + steps * 2 * V * 16; to += 2 * V * 16) {
            Ints b[V];
            reader.read(b);
            for (int v = 0; v < V; ++v) {
                store_floats(to + v * 16, first_of_pairs(b[v]));
                store_floats(to + (V + v) * 16, second_of_pairs(b[v]));
            }
        }
    }

    void take_rows(const uint16_t* from, int64_t pitch, int count, int steps) {
        const int whole = (steps * 2 + 15) / 16 * 16;
        stride = whole * sizeof(float);
        for (float* to = rows; to < rows + count * whole; to += whole, from += pitch)
            for (int i = 0; i < whole; i += 16) store_floats(to + i, load_bf16(from + i, lanes_of(steps * 2 - i)));
    }

    template <int R, class Fetch>
    __attribute__((noinline)) void tile(int row, int steps, const Fetch& fetch, Sums sums) const {
        float_tile<F32, R, V, 2>(Rows<R>((const char*)rows + row * stride, stride), Reader{weights}, steps, fetch, sums);
    }

private:
    struct Reader {
        const float* from;

        void read(Ints (&b)[V]) {
            for (int v = 0; v < V; ++v) b[v] = load_ints(from + v * 16);
            from += V * 16;
        }
    };
};

// A part of a panel and the rows that it is multiplied with. `Weights` is what reads it: it has lines; its address `at`;
// read<V>(vector, work), which calls work with a reader; and correct(rows, their stride and count, sums), which adds what
// the reader leaves out.
template <class F, class Weights>
struct FloatPart {
    static constexpr int lines = Weights::lines;
    static constexpr bool in_registers = true, divisible = true, expandable = F::pair == 2 && !kMultipliesPairs;
    static constexpr Shape shape = F::shape;
    using Expanded = ExpandedPart<kOfExpanded.vectors>;
    const char* at;

    FloatPart(const Weights& weights, const typename F::T* rows, int64_t stride)
        : at(weights.at), weights(weights), rows(rows), stride(stride * sizeof(typename F::T)) {}

    template <int R, int V, class Fetch>
    __attribute__((noinline)) void tile(int row, int vector, int steps, const Fetch& fetch, Sums sums) const {
        const char* first = (const char*)rows + row * stride;
        weights.template read<V>(vector, [&](const auto& reader) {
            float_tile<F, R, V>(Rows<R>(first, stride), reader, steps, fetch, sums);
        });
    }

    void expand_rows(int count, int steps, Expanded& to) const {
        to.take_rows(rows, stride / sizeof(*rows), count, steps);
    }

    void expand_weights(int vector, int steps, Expanded& to) const {
        weights.template read<kOfExpanded.vectors>(vector, [&](const auto& reader) { to.take_weights(reader, steps); });
    }

    // What is left of it after some steps.
    FloatPart after(int steps) const {
        FloatPart left = *this;
        left.weights.at = left.at = at + (int64_t)steps * lines * 64;
        left.rows += steps * F::pair;
        return left;
    }

    void correct(int first, int last, float* sums) const {
        weights.correct((const char*)rows + first * stride, stride, last - first, sums + first * kPanel);
    }

private:
    Weights weights;
    const typename F::T* rows;
    const int64_t stride;
};

// A panel whose parts are `Weights`; its rows have `k` numbers, a multiple of a pair.
template <class F, class Weights>
struct FloatPanel {
    using Format = F;

    FloatPanel(const Op& op, int panel)
        : op(op), steps(steps_of(op)), length(part_steps(steps)), parts(parts_of(steps)), panel(panel) {}

    static Cut cut(const Op& op, const Step& step) {
        const int steps = steps_of(op);
        return {op, step, steps, part_steps(steps), FloatPart<F, Weights>::shape, Weights::lines};
    }

    const char* at(int step) const {
        return (const char*)op.weight + ((int64_t)panel * steps + step) * Weights::lines * 64;
    }

    FloatPart<F, Weights> part(int number, int row) const {
        const int first = number * length;
        const int64_t stride = stride_of(op, op.k);
        const auto* rows = (const typename F::T*)op.in + row * stride + taken_from(op, panel) + first * F::pair;
        return {Weights(op, panel, parts, number, at(first)), rows, stride};
    }

    void finish(Floats (&)[4]) const {}

private:
    static int steps_of(const Op& op) { return op.k / F::pair; }

    const Op& op;
    const int steps, length, parts, panel;
};

// Weights that are read where they lie.
struct PlainWeights {
    static constexpr int lines = 4;  // of 64 bytes that hold a step
    const char* at;

    PlainWeights(const Op&, int, int, int, const char* at) : at(at) {}

    template <int V>
    struct Reader {
        const char* from;

        void read(Ints (&b)[V]) {
            for (int v = 0; v < V; ++v) b[v] = load_ints(from + v * 64);
            from += lines * 64;
        }
    };

    template <int V, class Work>
    void read(int vector, const Work& work) const {
        work(Reader<V>{at + vector * 64});
    }

    void correct(const char*, int64_t, int, float*) const {}
};

}  // namespace
}  // namespace djl
