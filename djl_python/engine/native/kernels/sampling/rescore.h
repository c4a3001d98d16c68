// Chooses each row's next token without computing all logits.
//
// A product with the lm_head's weights rounded to 8 bits comes first, of which only each panel's maximum and masses are kept
// (panel_statistics.h). Such a maximum is wrong by no more than an error that the rounded numbers' distances from the given ones tell.
// So panels are multiplied exactly, the one that may have the greatest logit first, until no other one matters to the
// choice: a few of thousands. A soft cap, which brings numbers nearer to each other, and noise, which is the same for both,
// leave the errors what they are; penalties only lower scores.

#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "linear/bf16_12bit.h"
#include "linear/float_linear.h"
#include "linear/integer_linear.h"
#include "program.h"
#include "sampling/panel_statistics.h"
#include "sampling/row_sampling.h"
#include "sampling/sample.h"
#include "thread_pool.h"

namespace djl {
namespace {

// One in so many panels may be multiplied exactly, and so many in any case: beyond, all logits cost less.
constexpr int kPanelsPerExact = 16, kMinExact = 8;
// Bounds are this much wider than the norms say: the exact product's own rounding is part of what is compared.
constexpr float kWidened = 1.02f;
// What the masses of panels that are known nearly are wrong by, at most, as a share of all, if all their logits were wrong by
// as much as they may be, in the same direction. They are wrong by an eighth of that, and most by their own part of it.
constexpr float kMostDoubt = 0.25f;

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

// The greatest of the numbers seen.
class Leading {
public:
    void begin(size_t wanted) {
        count = wanted;
        heap.clear();
    }

    void take(float x) {
        if (heap.size() == count) {
            if (!count || !(x > heap.front())) return;
            std::pop_heap(heap.begin(), heap.end(), std::greater<float>());
            heap.pop_back();
        }
        heap.push_back(x);
        std::push_heap(heap.begin(), heap.end(), std::greater<float>());
    }

    float greatest() const { return *std::max_element(heap.begin(), heap.end()); }

    // Whether there are as many as wanted, and all greater than this.
    bool exceed(float x) const { return heap.size() == count && (!count || heap.front() > x); }

private:
    size_t count;
    std::vector<float> heap;  // the least in front
};

// A row's panels, all known nearly and some exactly.
class Search {
public:
    // Args: row: receives the exact logits, panel by panel.
    Search(const RescoreOp& op, const StepInputs& step, int number, const RowErrors& errors, Row& row)
        : op(op), product(op.head), cut(Panel::cut(op.head, step)), sampling(op.statistics.samplings[number]), number(number),
          panels(panel_count(op.head.n)), row(row) {
        row.x = (const float*)op.head.output.out + (int64_t)number * op.head.n;
        row.n = op.head.n;
        row.blocks = panels;
        row.whole = false;
        row.maxima.assign(panels, -INFINITY);
        row.top = -INFINITY;
        product.output.out = (void*)row.x;
        product.output.mode = kStoreFp32;
        product.statistics.maxima = row.maxima.data();
        opened.clear();
        scores.clear();
        best.begin(sampling.mode == kDraw && sampling.top_k ? sampling.top_k : 1);
        best_logits.begin(sampling.alternatives);
        bound(errors);
    }

    // Computes the panels that matter to the sampling, and half as many more if it has been run before; returns whether it is
    // sure that these are all.
    bool run() {
        if (!sound) return false;
        const size_t fewest = with_half(opened.size()), most = std::max(kMinExact, panels / kPanelsPerExact);
        while (true) {
            const Greatest next = closed_greatest(upper.data());
            const bool told = !opened.empty() && tells_token(next.value());
            const bool ranked = told && tells_alternatives();
            if (ranked && opened.size() >= fewest && tells_masses()) return true;
            if (opened.size() >= most) return false;
            open(told ? heaviest() : next.place());
        }
    }

    // The sum of all tokens' masses. Its doubt is four standard deviations, if panels' errors don't know of each other, and
    // what penalties may take from panels that aren't open.
    Total total(MassKind kind) const {
        const Masses masses = read(kind);
        return {masses.sum, std::sqrt(masses.squares) * (4 / 8.0f) + masses.penalized};
    }

private:
    struct Masses {
        float sum, errors, squares;  // of all masses; of errors of those known nearly, and their squares
        float penalized;             // of the masses of panels with tokens to penalize that aren't open
        bool sure() const { return errors <= kMostDoubt * sum; }
    };

    Masses read(MassKind kind) const {
        const float inverse_temperature = kind == kRaw ? 1.0f : sampling.inverse_temperature, factor = kLog2e * inverse_temperature;
        const float* log_masses = masses_at(op.statistics, number, kind, panels);
        Floats sum = Floats{}, errors = Floats{}, squares = Floats{}, penalized = Floats{};
        for (int p = 0; p < panels; p += 16) {
            const Lanes lanes = lanes_of(panels - p);
            const Floats logarithms = load_floats(log_masses + p, lanes);
            const Floats mass = select(closed(p), exp2(logarithms - floats(top_of(kind) * factor)), Floats{});
            sum = sum + mass;
            const Floats error = mass * load_floats(reach.data() + p, lanes) * floats(inverse_temperature);
            errors = errors + error;
            squares = fma(error, error, squares);
            if (kind == kTempered && sampling.occurrences) penalized = fma(mass, load_floats(occurs.data() + p, lanes), penalized);
        }
        return {sum_of_lanes(sum) + mass_above(kind, -INFINITY), sum_of_lanes(errors), sum_of_lanes(squares),
                sum_of_lanes(penalized)};
    }

    // The score that masses are measured from: plain ones are of logits, tempered ones of penalized scores.
    float top_of(MassKind kind) const { return kind == kRaw ? row.top : best.greatest(); }

    using Panel = FloatPanel<BF16, TwelveBitWeights>;
    static thread_local std::vector<float> reach, upper, occurs, scores;
    static thread_local Leading best, best_logits;
    static thread_local std::vector<int> opened;

    // reach: (panels,) by how much logits may be off; upper: what no token of a panel that isn't open exceeds, by comparison;
    // occurs: if there are tokens to penalize, 1 where a panel has some; scores: of the open panels, one after the other, penalized.
    void bound(const RowErrors& errors) {
        reach.resize(panels);
        upper.resize(panels);
        sound = true;
        const float* maxima = op.statistics.maxima + (int64_t)number * panels;
        const float factor = draws_from_all(sampling) ? sampling.inverse_temperature : 1;
        for (int p = 0; p < panels; p += 16) {
            const Lanes lanes = lanes_of(panels - p);
            store_floats(reach.data() + p, errors.of_panels(op.weight_squares, op.error_squares, panels, p, lanes), lanes);
        }
        for (int p = 0; p < panels; ++p) {
            reach[p] = std::sqrt(reach[p]) * kWidened * op.head.output.scale;
            upper[p] = maxima[p] + reach[p] * factor;
            sound &= !std::isnan(upper[p]);
        }
        if (sampling.occurrences) occurs.assign(panels, 0);
        for (int i = 0; i < sampling.occurrences; ++i) occurs[sampling.occurred[i] / kPanel] = 1;
    }

    // Whether no token that isn't known, none of which exceeds `most`, can be chosen.
    bool tells_token(float most) {
        if (most == -INFINITY) return true;  // all are open
        if (!draws_in_bounds(sampling) || sampling.top_k) return best.exceed(most);
        // A little less than the score of which the mass is min_p of the best.
        if (sampling.min_p > 0 && (most - best.greatest()) * sampling.inverse_temperature < logf(sampling.min_p) - 1e-3f) return true;
        if (sampling.top_p >= 1 || !tempered_look.is_due(opened.size())) return false;
        const Total all = total(kTempered);
        return mass_above(kTempered, most) >= sampling.top_p * (all.sum + all.doubt);
    }

    // Whether all alternatives are known. A logit is less than the logarithm of its panel's mass.
    bool tells_alternatives() const {
        const float* log_masses = masses_at(op.statistics, number, kRaw, panels);
        bool told = true;
        for (int p = 0; p < panels && sampling.alternatives; ++p)
            told &= upper[p] == -INFINITY || best_logits.exceed(log_masses[p] / kLog2e + reach[p]);
        return told;
    }

    // Whether the sum of masses is known well enough to be reported.
    bool tells_masses() { return !sampling.wants_logprob || (plain_look.is_due(opened.size()) && read(kRaw).sure()); }

    // The panel whose masses are what the sum depends on most.
    int heaviest() const {
        return closed_greatest(masses_at(op.statistics, number, needs_total(sampling) ? kTempered : kRaw, panels)).place();
    }

    // Sums of masses are looked at again when there are half as many open panels more.
    struct Look {
        size_t next = 1;
        bool is_due(size_t count) {
            if (count < next) return false;
            next = with_half(count);
            return true;
        }
    };

    static size_t with_half(size_t count) { return count + (count + 1) / 2; }

    // The greatest number of a panel that isn't open.
    Greatest closed_greatest(const float* numbers) const {
        Greatest greatest;
        for (int p = 0; p < panels; p += 16) {
            const Lanes lanes = lanes_of(panels - p);
            greatest.take(load_floats(numbers + p, lanes), ints_from(p), closed(p));
        }
        return greatest;
    }

    Lanes closed(int first) const {
        const Lanes lanes = lanes_of(panels - first);
        return is_greater(load_floats(upper.data() + first, lanes), floats(-INFINITY)) & lanes;
    }

    // The sum of masses of the known tokens with greater logits than this, or greater scores.
    float mass_above(MassKind kind, float bar) const {
        const Mass mass_of(top_of(kind), kind == kRaw ? 1.0f : sampling.inverse_temperature);
        Floats sum = Floats{};
        for (size_t i = 0; i < opened.size(); ++i)
            for (int v = 0; v < 4; ++v) {
                const Floats logits = part_of(row.x, row.n, opened[i], v);
                const Floats x = kind == kRaw ? logits : load_floats(scores.data() + i * kPanel + v * 16);
                sum = select(is_greater(x, floats(bar)), sum + mass_of(x), sum);
            }
        return sum_of_lanes(sum);
    }

    void open(int panel) {
        multiply(panel);
        upper[panel] = -INFINITY;
        opened.push_back(panel);
        row.top = std::max(row.top, row.maxima[panel]);
        const int first = panel * kPanel, count = std::min(kPanel, row.n - first);
        scores.resize(opened.size() * kPanel, -INFINITY);
        float* own = scores.data() + scores.size() - kPanel;
        std::copy_n(row.x + first, count, own);
        for (int i = 0; i < sampling.occurrences && occurs[panel] > 0; ++i)
            if (const int64_t at = sampling.occurred[i] - first; at >= 0 && at < count) own[at] = penalized(own[at], sampling, i);
        if (draws_from_all(sampling)) {
            const Comparison by(sampling, 0);
            for (int i = 0; i < kPanel; i += 16) store_floats(own + i, by(load_floats(own + i), ints_from(first + i)));
        }
        for (int i = 0; i < count; ++i) best.take(own[i]);
        for (int i = 0; i < count; ++i) best_logits.take(row.x[first + i]);
    }

    void multiply(int index) {
        const Panel panel(product, index);
        alignas(64) float sums[kPanel];
        for (int i = 0, from = 0; from < cut.steps; ++i, from += cut.part) {
            const auto part = panel.part(i, number);
            const PrefetchOwn<decltype(part)::lines> prefetch{part.at + kPrefetchDistance, decltype(part)::lines * 64};
            part.template tile<1, 4>(0, 0, std::min(cut.part, cut.steps - from), prefetch, Sums{sums, i > 0});
            part.correct(0, 1, sums);
        }
        Floats sum[4];
        for (int v = 0; v < 4; ++v) sum[v] = load_floats(sums + v * 16);
        finish_row<BF16>(product, 0, index, sum);
    }

    const RescoreOp& op;
    LinearOp product;
    const Cut cut;
    const RowSampling& sampling;
    const int number, panels;
    Row& row;
    Look plain_look, tempered_look;
    bool sound;
};

thread_local std::vector<float> Search::reach, Search::upper, Search::occurs, Search::scores;
thread_local Leading Search::best, Search::best_logits;
thread_local std::vector<int> Search::opened;

inline void rescore(Run& run, int index, const RescoreOp& op, const StepInputs& step) {
    thread_local Row row;
    const LinearOp& head = op.head;
    const int groups = group_count(head.k);
    RowErrors errors(groups);
    run.parallel_for(index, step.tokens, [&](int number) {
        RowSampling& sampling = op.statistics.samplings[number];
        sampling.token = kUndecided;
        const auto* x = (const BF16::T*)head.in + number * apart(head.stride, head.k);
        errors.read(x, head.k, integer_row(op.codes, number, groups));
        Search search(op, step, number, errors, row);
        float* logits = (float*)head.output.out + (int64_t)number * head.n;
        while (sampling.token == kUndecided && search.run())
            sampling.token = chosen_from(row, logits, sampling, needs_total(sampling) ? search.total(kTempered) : Total{});
        if (!sampling.wants_logprob || sampling.token < 0) return;
        const float log_mass = logf(search.total(kRaw).sum);
        sampling.logprob = logits[sampling.token] - row.top - log_mass;
        report_best(op.alternatives, number, sampling.alternatives, row, log_mass);
    });
}

}  // namespace
}  // namespace djl
