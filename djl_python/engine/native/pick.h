// Finds the token of each row's greatest logit, or of the greatest logit plus noise, without computing all logits.
//
// A product with the lm_head's weights rounded to 8 bits comes first, of which only each panel's maximum is kept. Such a
// maximum is wrong by no more than an error that the rounded numbers' distances from the given ones tell. So one panel is
// multiplied exactly, that of the greatest maximum, and then those that may have a greater logit: a few of thousands. A soft
// cap, which brings numbers nearer to each other, and noise, which is the same for both, leave the errors what they are.

#pragma once

#include <vector>

#include "floats.h"
#include "noise.h"
#include "pool.h"
#include "program.h"
#include "quantized.h"
#include "twelve.h"

namespace djl {
namespace {

// UNDECIDED of picker.py: too many panels may have it, or logits are NaN.
constexpr int64_t kUndecided = -1;
// Of how many panels one may be multiplied exactly, and how many may be in any case: beyond, all logits cost less.
constexpr int kPanelsPerExact = 64, kMinExact = 8;
// Bounds are this much wider than the norms say: the exact product's own rounding is part of what is compared.
constexpr float kWidened = 1.02f;

// A row's product with a column of weights is wrong by x' * w' - x * w = (x' - x) * w + x' * (w' - w), group by group, where x'
// and w' are rounded. In a group, neither product exceeds that of two norms. Groups' errors don't know of each other, so their
// squares are added; so are the squares of these two errors. Where one group has most of the error, because of one large
// number, this is a bound. Where no group has, errors are random signs of 64 and more numbers: it is eight or more times
// their standard deviation.
struct RowErrors {
    std::vector<float> of_row, squares;  // (groups,) squared norms of x' - x, and of x'

    RowErrors(int groups) : of_row(groups), squares(groups) {}

    void read(const BF16::T* x, int k, const IntegerRow& row) {
        for (int g = 0; g < (int)squares.size(); ++g) {
            float error = 0, square = 0;
            for (int i = g * kGroup; i < std::min(k, (g + 1) * kGroup); ++i) {
                const float rounded = (float)row.codes[place_of_code(i)] * row.scales[g], off = rounded - BF16::to(x[i]);
                error += off * off;
                square += rounded * rounded;
            }
            of_row[g] = error;
            squares[g] = square;
        }
    }

    // Squared errors of sixteen panels. `weights` and `errors` are squared norms of their columns' w and w' - w, the greatest
    // of each panel: (groups, panels).
    Floats of_panels(const float* weights, const float* errors, int panels, int first, Lanes lanes) const {
        Floats sum = Floats{};
        for (int64_t g = 0; g < (int64_t)squares.size(); ++g) {
            sum = fma(floats(of_row[g]), load_floats(weights + g * panels + first, lanes), sum);
            sum = fma(floats(squares[g]), load_floats(errors + g * panels + first, lanes), sum);
        }
        return sum;
    }
};

// A row's exact logits in the panels that are asked for, and the greatest of what they are compared by.
struct ExactLogits {
    int count = 0;  // of panels
    float best = -INFINITY;
    int64_t token = kUndecided;

    // Args: logits: room for (n,), of which only what is asked for is written and read.
    ExactLogits(const Op& op, const Step& step, int row, std::vector<float>& logits)
        : product(op), cut(Panel::cut(op, step)), row(row), logits(logits) {
        logits.resize(product.n);
        product.out = logits.data();
        product.mode = kStoreFp32;
        product.maxima = nullptr;
    }

    void multiply(int number) {
        const Panel panel(product, number);
        alignas(64) float sums[kPanel];
        for (int i = 0, from = 0; from < cut.steps; ++i, from += cut.part) {
            const auto part = panel.part(i, row);
            const PrefetchOwn<decltype(part)::lines> prefetch{part.at + kPrefetchDistance, decltype(part)::lines * 64};
            part.template tile<1, 4>(0, 0, std::min(cut.part, cut.steps - from), prefetch, Sums{sums, i > 0});
            part.correct(0, 1, sums);
        }
        Floats sum[4];
        for (int v = 0; v < 4; ++v) sum[v] = load_floats(sums + v * 16);
        finish_row<BF16>(product, 0, number, sum);
        for (int first = number * kPanel; first < std::min((number + 1) * kPanel, product.n); first += 16) {
            float scores[16];
            const Floats x = load_floats(logits.data() + first, lanes_of(product.n - first));
            store_floats(scores, product.draws ? drawn_by(x, product.draws[row], first) : x);
            for (int i = 0; i < std::min(16, product.n - first); ++i)
                if (scores[i] > best || (scores[i] == best && first + i < token)) {
                    best = scores[i];
                    token = first + i;
                }
        }
        ++count;
    }

private:
    using Panel = FloatPanel<BF16, TwelveWeights>;
    Op product;
    const Cut cut;
    const int row;
    std::vector<float>& logits;
};

void pick(Run& run, int index, const Op& op, const Step& step) {
    thread_local std::vector<float> logits;
    const int panels = (op.n + kPanel - 1) / kPanel, groups = (op.k + kGroup - 1) / kGroup;
    const int max_exact = std::max(kMinExact, panels / kPanelsPerExact);
    RowErrors errors(groups);
    run.parallel_for(index, rows_of(op, step), [&](int row) {
        const float* maxima = op.maxima + (int64_t)row * panels;
        const int first = (int)(std::max_element(maxima, maxima + panels) - maxima);
        ExactLogits exact(op, step, row, logits);
        exact.multiply(first);
        errors.read((const BF16::T*)op.in + row * stride_of(op, op.k), op.k, integer_row(op.codes, row, groups));
        const bool noisy = op.draws && op.draws[row].noisy;
        const float widened = kWidened * op.scale * (noisy ? op.draws[row].inverse_temperature : 1.0f);
        for (int p = 0; p < panels && exact.count <= max_exact; p += 16) {
            const Lanes lanes = lanes_of(panels - p);
            const Floats missing = floats(exact.best) - load_floats(maxima + p, lanes);
            const Floats reach = errors.of_panels(op.weight_squares, op.error_squares, panels, p, lanes);
            Lanes open = lanes & (is_at_least(Floats{}, missing) |
                                  is_at_least(reach * floats(widened * widened), missing * missing));
            for (; open && exact.count <= max_exact; open &= open - 1)
                if (const int number = p + __builtin_ctz(open); number != first) exact.multiply(number);
        }
        op.picked[row] = exact.count <= max_exact ? exact.token : kUndecided;
    });
}

}  // namespace
}  // namespace djl
