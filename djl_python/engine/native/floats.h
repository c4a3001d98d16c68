// Matrix products in the activations' own format, bf16 or fp32.

#pragma once

#include "ahead.h"
#include "formats.h"
#include "linear.h"
#include "program.h"

namespace djl {
namespace {

// sums (R, kPanel) += R rows times V vectors of a part of a panel, which `reader` reads.
template <class F, int R, int V, class Reader, class Fetch>
inline __attribute__((always_inline)) void float_tile(Rows<R> rows, Reader reader, int steps, Fetch fetch, float* sums) {
    Floats sum[R][V];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sum[r][v] = load_floats(sums + r * kPanel + v * 16);
    for (int p = 0; p < steps; ++p) {
        Ints b[V];
        reader.read(b);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const Ints x = rows.spread(r);
            for (int v = 0; v < V; ++v) sum[r][v] = F::add_products(sum[r][v], b[v], x);
        }
        rows.advance();
        fetch();
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) store_floats(sums + r * kPanel + v * 16, sum[r][v]);
}

// A part of a panel and the rows that it is multiplied with. `Weights` is what reads it: it has lines; its address `at`;
// read<V>(vector, work), which calls work with a reader; and correct(rows, their stride and count, sums), which adds what
// the reader leaves out.
template <class F, class Weights>
struct FloatPart {
    static constexpr int lines = Weights::lines;
    static constexpr bool divisible = true;
    static constexpr Shape shape = F::shape;
    const char* at;

    FloatPart(const Weights& weights, const typename F::T* rows, int64_t stride)
        : at(weights.at), weights(weights), rows(rows), stride(stride * sizeof(typename F::T)) {}

    template <int R, int V, class Fetch>
    __attribute__((noinline)) void tile(int row, int vector, int steps, const Fetch& fetch, float* sums) const {
        const char* first = (const char*)rows + row * stride;
        weights.template read<V>(vector, [&](const auto& reader) {
            float_tile<F, R, V>(Rows<R>(first, stride), reader, steps, fetch, sums);
        });
    }

    // What is left of it after some steps.
    FloatPart after(int steps) const {
        FloatPart left = *this;
        left.weights.at = left.at = at + (int64_t)steps * lines * 64;
        left.rows += steps * F::pair;
        return left;
    }

    void correct(int count, float* sums) const { weights.correct((const char*)rows, stride, count, sums); }

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
