// Samples each row's next token: the one with the best score, a drawn one, or a given one; and computes its logprob.
//
// A row's blocks are the lm_head's panels. The maxima of its blocks are known, if the product with the head left them, or
// read first; the row is read once more for its mass, if that is needed; the rest looks only into blocks that matter. So
// where a search (rescore.h) has found all blocks that matter, the others needn't be known.

#pragma once

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "program.h"
#include "sampling/row_sampling.h"
#include "thread_pool.h"
#include "vectors/formats.h"

namespace djl {
namespace {

// Masses exp((x - top) / temperature), computed as powers of two; exactly zero where x is minus infinity.
struct Mass {
    Floats top, factor;
    Mass(float max_score, float inverse_temperature) {
        top = floats(max_score);
        factor = floats(inverse_temperature * kLog2e);
    }
    Floats operator()(Floats x) const { return exp2((x - top) * factor); }
};

// Vector v of a block of a row of n scores; minus infinity beyond the row's end.
inline Floats part_of(const float* x, int n, int block, int v) {
    const int i = block * kPanel + v * 16;
    if (i + 16 <= n) return load_floats(x + i);
    return load_floats(x + i, lanes_of(n - i), floats(-INFINITY));
}

// Blocks are taken sixteen at a time, so that their maxima are one vector.
constexpr int kBlocksTogether = 16;

// The greatest lane of each of sixteen vectors; lane i of the result is that of vector i. Each of four stages halves the
// number of vectors and doubles how many of the sixteen share one.
inline Floats max_lanes(Floats (&v)[kBlocksTogether]) {
    static const int32_t lows[4][kBlocksTogether] = {
        {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23},
        {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27},
        {0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29},
        {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30},
    };
#pragma GCC unroll 4
    for (int stage = 0; stage < 4; ++stage) {
        const Ints low = load_ints(lows[stage]), high = add_ints(low, ints(8 >> stage));
#pragma GCC unroll 8
        for (int i = 0; i < 8 >> stage; ++i)
            v[i] = max(permute_two(v[2 * i], low, v[2 * i + 1]), permute_two(v[2 * i], high, v[2 * i + 1]));
    }
    return v[0];
}

inline float max_of(const float* x, int n) {
    Floats maxima = floats(-INFINITY);
    for (int i = 0; i < n; i += 16)
        maxima = max(maxima, load_floats(x + i, lanes_of(n - i), maxima));
    return max_lane(maxima);
}

// Statistics of one row of scores. Each thread keeps one for each use: raw logits, changed scores, and what a search knows.
struct Row {
    const float* x;
    int n, blocks;
    bool whole;                 // whether all of it is known; if not, blocks that aren't have a maximum of minus infinity
    std::vector<float> maxima;  // (blocks,) each block's greatest score
    float top;                  // the row's greatest score

    // Args: known: the blocks' maxima, if the head has left them.
    void read_maxima(const float* scores, int vocabulary, const float* known = nullptr) {
        x = scores;
        n = vocabulary;
        blocks = panel_count(n);
        whole = true;
        maxima.resize(blocks);
        if (known) std::copy(known, known + blocks, maxima.begin());
        else scan();
        top = max_of(maxima.data(), blocks);
    }

    bool knows(int block) const { return whole || maxima[block] > -INFINITY; }

    void scan() {
        for (int b = 0; b < blocks; b += kBlocksTogether) {
            Floats block_maxima[kBlocksTogether];
            for (int i = 0; i < kBlocksTogether; ++i) {  // minus infinity beyond the last block
                block_maxima[i] = part_of(x, n, b + i, 0);
                for (int v = 1; v < 4; ++v) block_maxima[i] = max(block_maxima[i], part_of(x, n, b + i, v));
            }
            store_floats(maxima.data() + b, max_lanes(block_maxima), lanes_of(blocks - b));
        }
    }

    // Recomputes the maxima of the blocks of these tokens, whose scores have changed.
    void update_maxima(const int64_t* tokens, int count) {
        for (int i = 0; i < count; ++i) {
            const int b = (int)(tokens[i] / kPanel);
            if (knows(b)) maxima[b] = max_of(x + b * kPanel, std::min(kPanel, n - b * kPanel));
        }
        top = max_of(maxima.data(), blocks);
    }

    // The sum of exp((x - top) / temperature).
    float mass(float inverse_temperature) const {
        const Mass mass_of(top, inverse_temperature);
        Floats sums[4] = {};
        for (int b = 0; b < blocks; ++b)
            for (int v = 0; v < 4; ++v) sums[v] = sums[v] + mass_of(part_of(x, n, b, v));
        return sum_of_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
};

// The k best tokens as (score, id), best first, the lower id first among equals.
using Best = std::vector<std::pair<float, int>>;

inline void find_best(const Row& row, int k, Best& best) {
    thread_local std::vector<float> tops;
    // Each of the k best blocks has a token at least as good as the k-th block's best: no lower token can be among the k best.
    float bar = -INFINITY;
    if (k == 1) {
        bar = row.top;
    } else if (k <= row.blocks) {
        tops = row.maxima;
        std::nth_element(tops.begin(), tops.begin() + k - 1, tops.end(), std::greater<float>());
        bar = tops[k - 1];
    }
    best.clear();
    const Floats wanted = floats(bar);
    for (int b = 0; b < row.blocks; ++b) {
        if (row.maxima[b] < bar || !row.knows(b)) continue;
        for (int i = b * kPanel, v = 0; v < 4; ++v, i += 16) {
            const Lanes lanes = lanes_of(row.n - i);
            const Floats x = load_floats(row.x + i, lanes);
            Lanes good = lanes & is_at_least(x, wanted);
            for (; good; good &= good - 1) {
                const int id = i + __builtin_ctz(good);
                best.push_back({row.x[id], id});
            }
        }
    }
    while ((int)best.size() < k) best.push_back({-INFINITY, 0});  // the scores are NaN
    std::partial_sort(best.begin(), best.begin() + k, best.end(), [](const auto& a, const auto& b) {
        return a.first > b.first || (a.first == b.first && a.second < b.second);
    });
    best.resize(k);
}

// Reports the best tokens of a row, whose number this is: as many as are wanted.
inline void report_best(const Alternatives& alternatives, int number, int wanted, const Row& row, float log_mass) {
    thread_local Best best;
    if (wanted) find_best(row, wanted, best);
    for (int i = 0; i < wanted; ++i) {
        alternatives.logprobs[(int64_t)number * alternatives.count + i] = best[i].first - row.top - log_mass;
        alternatives.token_ids[(int64_t)number * alternatives.count + i] = best[i].second;
    }
}

// A set of leading tokens, given by the first token that is not in it. Tokens are ordered by falling score, the lower id
// first among equals.
struct Before {
    float score;
    int id;
    Lanes operator()(Floats x, int first) const {
        const Floats bar = floats(score);
        const Lanes lower = lanes_of(id - first);  // ids
        return is_greater(x, bar) | (is_equal(x, bar) & lower);
    }
};

// The token that is drawn from those in `open`: the greatest by comparison, the lower id first among equals; kNoToken if none
// is greater than minus infinity.
inline int64_t drawn_from(const Row& row, const Comparison& by, const Before& open) {
    Greatest greatest;
    float bar = -INFINITY, limits[kBlocksTogether];
    for (int b = 0; b < row.blocks; ++b) {
        if (b % kBlocksTogether == 0)
            store_floats(limits, by.limit(load_floats(row.maxima.data() + b, lanes_of(row.blocks - b)), bar));
        if (row.maxima[b] < open.score || !row.knows(b)) continue;
        const Floats limit = floats(limits[b % kBlocksTogether]);
        for (int i = b * kPanel, v = 0; v < 4 && i < row.n; ++v, i += 16) {
            const Floats u = uniforms(by.keys, ints_from(i));
            if (!is_greater(limit, u)) continue;  // mostly
            const Lanes lanes = lanes_of(row.n - i);
            const Floats x = load_floats(row.x + i, lanes);
            greatest.take(by.with(x, u), ints_from(i), open(x, i) & lanes);
            bar = greatest.value();
        }
    }
    return bar > -INFINITY ? greatest.place() : kNoToken;
}

// Draws among the top_k best. top_p is a share of their total mass; the token that crosses it may be drawn too.
inline int draw_top_k(const Row& row, const RowSampling& sampling, const Comparison& by) {
    thread_local Best best;
    thread_local std::vector<float> scores, weights;
    thread_local std::vector<int32_t> ids;
    find_best(row, sampling.top_k, best);
    const Mass mass_of(row.top, sampling.inverse_temperature);
    const size_t room = (best.size() + 15) / 16 * 16;
    scores.assign(room, -INFINITY);
    weights.resize(room);
    ids.assign(room, 0);
    for (size_t i = 0; i < best.size(); ++i) std::tie(scores[i], ids[i]) = best[i];
    Floats sums = Floats{};
    for (size_t i = 0; i < room; i += 16) {
        const Floats mass = mass_of(load_floats(scores.data() + i));
        store_floats(weights.data() + i, mass);
        sums = sums + mass;
    }
    const float max_mass = sampling.top_p < 1 ? sampling.top_p * sum_of_lanes(sums) : INFINITY;
    const float min_mass = sampling.min_p * weights[0];
    float kept = weights[0];  // the best token may always be drawn
    size_t end = 1;
    for (; end < best.size() && kept < max_mass && weights[end] >= min_mass && weights[end] > 0; ++end) kept += weights[end];
    Greatest greatest;
    for (size_t i = 0; i < end; i += 16) {
        const Ints tokens = load_ints(ids.data() + i);
        greatest.take(by(load_floats(scores.data() + i), tokens), tokens, lanes_of(end - i));
    }
    return greatest.place();
}

// A sum of masses, and by how much it may be wrong.
struct Total {
    float sum, doubt;
};

// Draws from the tokens that are permitted: those before them have less than top_p of the total mass, and they have at
// least min_p of the best token's. If the token drawn from all is not permitted, nor is any token after it, and the next is
// drawn from those before it. The one that is permitted at last is the one drawn from the permitted ones alone, as noise is
// a token's own; and nothing is sorted.
//
// Args: total: of the row's masses at the temperature; needed with a top_p.
// Returns kUndecided if the doubt about the total decides.
inline int64_t draw_in_bounds(const Row& row, const RowSampling& sampling, const Comparison& by, Total total) {
    const Mass mass_of(row.top, sampling.inverse_temperature);
    Before open{-INFINITY, row.n};  // the tokens that may still be drawn; at first all
    while (true) {
        const int64_t token = drawn_from(row, by, open);
        if (token == kNoToken) return token;
        const Before before{row.x[token], (int)token};
        const bool heavy = max_lane(mass_of(floats(before.score))) >= sampling.min_p;
        if (heavy && sampling.top_p >= 1) return token;
        float ahead = 0;
        for (int b = 0; b < row.blocks; ++b) {
            if (row.maxima[b] < before.score || !row.knows(b)) continue;
            Floats mass = Floats{};
            for (int v = 0; v < 4; ++v) {
                const Floats part = part_of(row.x, row.n, b, v);
                mass = select(before(part, b * kPanel + v * 16), mass + mass_of(part), mass);
            }
            ahead += sum_of_lanes(mass);
        }
        if ((heavy && ahead < sampling.top_p * (total.sum - total.doubt)) || !(ahead > 0)) return token;  // the best always may
        if (heavy && ahead < sampling.top_p * (total.sum + total.doubt)) return kUndecided;
        open = before;
    }
}

inline float penalized(float score, const RowSampling& sampling, int i) {
    score = score > 0 ? score / sampling.repetition : score * sampling.repetition;
    return score - (sampling.frequency * sampling.counts[i] + (sampling.counts[i] > 0 ? sampling.presence : 0.0f));
}

// Penalizes a row's scores in place; the destructor restores them.
struct Penalized {
    Row& row;
    float* x;
    const RowSampling& sampling;
    std::vector<float>& kept;

    Penalized(Row& row, float* x, const RowSampling& sampling, std::vector<float>& kept)
        : row(row), x(x), sampling(sampling), kept(kept) {
        kept.clear();
        for_each_known([&](int i, float& score) {
            kept.push_back(score);
            score = penalized(score, sampling, i);
        });
        update();
    }

    ~Penalized() {
        size_t place = 0;
        for_each_known([&](int, float& score) { score = kept[place++]; });
        update();
    }

private:
    template <class Work>
    void for_each_known(Work work) const {
        for (int i = 0; i < sampling.occurrences; ++i)
            if (row.knows((int)(sampling.occurred[i] / kPanel))) work(i, x[sampling.occurred[i]]);
    }

    void update() const {
        if (sampling.occurrences) row.update_maxima(sampling.occurred, sampling.occurrences);
    }
};

// The token that a row's mode and bounds make of these scores, or kNoToken, or kUndecided if a total's doubt decides.
//
// Args: scores: the row's, written to meanwhile; total: at the sampling's temperature, if the row isn't known whole.
inline int64_t chosen_from(Row& row, float* scores, const RowSampling& sampling, Total total = {}) {
    thread_local Best best;
    thread_local std::vector<float> kept;
    const Penalized changed(row, scores, sampling, kept);
    const Comparison by(sampling, row.top);
    int64_t token;
    if (sampling.mode == kBest) {
        find_best(row, 1, best);
        token = best[0].second;
    } else if (sampling.top_k) {
        token = draw_top_k(row, sampling, by);
    } else if (is_bounded(sampling)) {
        if (sampling.top_p < 1 && row.whole) total = {row.mass(sampling.inverse_temperature), 0};
        token = draw_in_bounds(row, sampling, by, total);
    } else {
        token = drawn_from(row, by, {-INFINITY, row.n});
    }
    return token >= 0 && std::isnan(scores[token]) ? kNoToken : token;
}

inline void sample(Run& run, int index, const SampleOp& op, const StepInputs& step) {
    thread_local Row own, other;
    run.parallel_for(index, step.wanted, [&](int task) {
        RowSampling& sampling = op.samplings[task];
        float* logits = op.in + (int64_t)task * op.n;
        const bool of_changed = sampling.changed >= 0 && sampling.mode != kGiven;
        float top = 0, log_mass = 0;  // of the raw logits
        const int panels = panel_count(op.n);
        if (sampling.wants_logprob || !of_changed)
            own.read_maxima(logits, op.n, op.maxima ? op.maxima + (int64_t)task * panels : nullptr);
        if (sampling.wants_logprob) {
            top = own.top;
            log_mass = logf(own.mass(1.0f));
            report_best(op.alternatives, task, sampling.alternatives, own, log_mass);
        }
        if (of_changed) {
            float* scores = op.changed + sampling.changed * op.n;
            other.read_maxima(scores, op.n);
            sampling.token = chosen_from(other, scores, sampling);
        } else if (sampling.mode != kGiven) {
            sampling.token = chosen_from(own, logits, sampling);
        }
        // Subtracts the greatest logit first: the difference is exact near 0.
        if (sampling.wants_logprob && sampling.token != kNoToken) sampling.logprob = logits[sampling.token] - top - log_mass;
    });
}

}  // namespace
}  // namespace djl
