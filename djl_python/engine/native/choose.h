// Chooses each row's next token: the one with the best score, a drawn one, or a given one; and computes its logprob.
//
// A row's blocks are the lm_head's panels. The maxima of its blocks are known, if the product with the head left them, or
// read first; the row is read once more for its masses, if they are needed; the rest looks only into blocks that matter.

#pragma once

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "formats.h"
#include "noise.h"
#include "pool.h"
#include "program.h"

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

// Blocks are taken sixteen at a time, so that their sums or maxima are one vector.
constexpr int kBlocksTogether = 16;

// Reduces each of sixteen vectors with `join`; lane i of the result is that of vector i. Each of four stages halves the
// number of vectors and doubles how many of the sixteen share one.
template <class Join>
inline Floats join_lanes(Floats (&v)[kBlocksTogether], Join join) {
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
            v[i] = join(permute_two(v[2 * i], low, v[2 * i + 1]), permute_two(v[2 * i], high, v[2 * i + 1]));
    }
    return v[0];
}

inline Floats sum_of(Floats a, Floats b) { return a + b; }

inline float max_of(const float* x, int n) {
    Floats maxima = floats(-INFINITY);
    for (int i = 0; i < n; i += 16)
        maxima = max(maxima, load_floats(x + i, lanes_of(n - i), maxima));
    return max_lane(maxima);
}

// kDraw: within bounds; kNoise: from all tokens, see noise.h.
enum ChoiceMode : int32_t { kGiven, kBest, kDraw, kNoise };

constexpr int64_t kNoToken = -1;  // NO_TOKEN of sequence.py

// One row's choice; the i-th is for row i of the logits. Mirrored in pool.py.
struct Choice {
    int64_t changed;  // row of the changed scores to choose from; -1: choose from the logits
    int64_t token;    // out; in, if it is given; kNoToken where the scores are NaN
    int64_t position;
    const int64_t* occurred;  // (occurrences,) tokens to penalize,
    const float* counts;      // and how often each was generated
    uint64_t seed;            // of the row's random numbers, together with `position`
    int32_t mode;
    int32_t wants_logprob;
    int32_t alternatives;  // best tokens to report beside the chosen one; only with `wants_logprob`
    int32_t top_k;         // 0: no bound
    int32_t occurrences;
    float top_p, min_p, inverse_temperature;
    float repetition, presence, frequency;
    float logprob;  // out
};

// Statistics of one row of scores. Each thread keeps two: for the raw logits and for changed scores.
struct Row {
    const float* x;
    int n, blocks;
    std::vector<float> maxima, masses;  // (blocks,) each block's greatest score, and its sum of masses
    float top, total;                   // the row's greatest score, and its sum of masses

    // Args: known: the blocks' maxima, if the head has left them.
    void read_maxima(const float* scores, int vocabulary, const float* known = nullptr) {
        x = scores;
        n = vocabulary;
        blocks = (n + kPanel - 1) / kPanel;
        maxima.resize(blocks);
        if (known) std::copy(known, known + blocks, maxima.begin());
        else scan();
        top = max_of(maxima.data(), blocks);
    }

    void scan() {
        for (int b = 0; b < blocks; b += kBlocksTogether) {
            Floats block_maxima[kBlocksTogether];
            for (int i = 0; i < kBlocksTogether; ++i) {  // minus infinity beyond the last block
                block_maxima[i] = part_of(x, n, b + i, 0);
                for (int v = 1; v < 4; ++v) block_maxima[i] = max(block_maxima[i], part_of(x, n, b + i, v));
            }
            store_floats(maxima.data() + b, join_lanes(block_maxima, max), lanes_of(blocks - b));
        }
    }

    // Recomputes the maxima of the blocks of these tokens, whose scores have changed.
    void update_maxima(const int64_t* tokens, int count) {
        for (int i = 0; i < count; ++i) {
            const int b = (int)(tokens[i] / kPanel);
            maxima[b] = max_of(x + b * kPanel, std::min(kPanel, n - b * kPanel));
        }
        top = max_of(maxima.data(), blocks);
    }

    void read_masses(float inverse_temperature) {
        masses.resize(blocks);
        const Mass mass_of(top, inverse_temperature);
        Floats sums = Floats{};
        for (int b = 0; b < blocks; b += kBlocksTogether) {
            Floats mass[kBlocksTogether];
            for (int i = 0; i < kBlocksTogether; ++i) {
                mass[i] = Floats{};
                for (int v = 0; v < 4; ++v) mass[i] = mass[i] + mass_of(part_of(x, n, b + i, v));
                sums = sums + mass[i];
            }
            store_floats(masses.data() + b, join_lanes(mass, sum_of), lanes_of(blocks - b));
        }
        total = sum_of_lanes(sums);
    }
};

// The k best tokens as (score, id), best first, the lower id first among equals.
using Best = std::vector<std::pair<float, int>>;

void find_best(const Row& row, int k, Best& best) {
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
        if (row.maxima[b] < bar) continue;
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

inline float mass_of_sixteen(const std::vector<float>& masses, int first) {
    return sum_of_lanes(load_floats(masses.data() + first, lanes_of((int64_t)masses.size() - first)));
}

inline uint64_t mixed(uint64_t state) {  // `mix` of row_scan.py
    uint64_t z = state + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
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

inline double uniform(uint64_t state) { return (double)(state >> 11) * 0x1p-53; }

// Draws among the top_k best. top_p is a share of their total mass; the token that crosses it may be drawn too.
int draw_top_k(const Row& row, const Choice& choice, uint64_t state) {
    thread_local Best best;
    thread_local std::vector<float> weights;
    find_best(row, choice.top_k, best);
    const Mass mass_of(row.top, choice.inverse_temperature);
    weights.assign((best.size() + 15) / 16 * 16, -INFINITY);
    for (size_t i = 0; i < best.size(); ++i) weights[i] = best[i].first;
    Floats sums = Floats{};
    for (size_t i = 0; i < weights.size(); i += 16) {
        const Floats mass = mass_of(load_floats(weights.data() + i));
        store_floats(weights.data() + i, mass);
        sums = sums + mass;
    }
    const float max_mass = choice.top_p < 1 ? choice.top_p * sum_of_lanes(sums) : INFINITY;
    const float min_mass = choice.min_p * weights[0];
    float kept = weights[0];  // the best token may always be drawn
    size_t end = 1;
    for (; end < best.size() && kept < max_mass && weights[end] >= min_mass && weights[end] > 0; ++end) kept += weights[end];
    const float aim = (float)(uniform(state) * kept);
    float sum = 0;
    for (size_t i = 0; i < end; ++i)
        if ((sum += weights[i]) > aim) return best[i].second;
    return best[end - 1].second;
}

// Draws by rejection sampling. A token is drawn from all, and accepted if it is permitted: the tokens before it have less
// than top_p of the total mass, and it has at least min_p of the best token's. If it is not permitted, nor is any token
// after it, and the next is drawn from those before it. The accepted token is distributed as if drawn from the permitted
// ones alone, and nothing is sorted.
int draw_by_rejection(const Row& row, const Choice& choice, uint64_t state) {
    thread_local std::vector<float> left, next;
    const int blocks = row.blocks;
    const Mass mass_of(row.top, choice.inverse_temperature);
    left = row.masses;
    next.resize(blocks);
    float all = 0;
    for (int b = 0; b < blocks; b += kBlocksTogether) all += mass_of_sixteen(left, b);
    float total = all;
    Before open{-INFINITY, row.n};  // the tokens that may still be drawn; at first all
    while (true) {
        const float aim = (float)(uniform(state) * total);
        float sum = 0;
        int sixteen = 0, block = 0, token = -1;
        for (int b = 0; b < blocks; b += kBlocksTogether) {  // the last with a mass, if rounding puts the aim beyond the end
            const float mass = mass_of_sixteen(left, b);
            if (!(mass > 0)) continue;
            sixteen = b;
            if (sum + mass > aim) break;
            sum += mass;
        }
        for (int b = sixteen; b < std::min(blocks, sixteen + kBlocksTogether); ++b) {
            if (!(left[b] > 0)) continue;
            block = b;
            if (sum + left[b] > aim) break;
            sum += left[b];
        }
        alignas(64) float parts[kPanel];
        for (int v = 0; v < 4; ++v) {
            const Floats part = part_of(row.x, row.n, block, v);
            store_floats(parts + v * 16, select(open(part, block * kPanel + v * 16), mass_of(part), Floats{}));
        }
        for (int i = 0; i < kPanel; ++i) {
            if (!(parts[i] > 0)) continue;
            token = block * kPanel + i;
            sum += parts[i];
            if (sum > aim) break;
        }
        if (token < 0) return 0;  // the scores are NaN, the token's too
        const float weight = parts[token - block * kPanel];
        if (choice.top_p >= 1.0f && weight >= choice.min_p) return token;
        const Before before{row.x[token], token};
        float ahead = 0;
        for (int b = 0; b < blocks; ++b) {
            next[b] = 0;
            if (row.maxima[b] < before.score) continue;
            Floats mass = Floats{};
            for (int v = 0; v < 4; ++v) {
                const Floats part = part_of(row.x, row.n, b, v);
                mass = select(before(part, b * kPanel + v * 16), mass + mass_of(part), mass);
            }
            ahead += next[b] = sum_of_lanes(mass);
        }
        if ((ahead < choice.top_p * all && weight >= choice.min_p) || !(ahead > 0)) return token;  // the best token always may
        open = before;
        left.swap(next);
        total = ahead;
        state = mixed(state);
    }
}

// Draws from all tokens: the greatest of scores plus noise, the lower id first among equals.
int draw_by_noise(const float* x, int n, const Draw& draw) {
    Floats best = floats(-INFINITY);
    Ints places = Ints{};
    for (int i = 0; i < n; i += 16) {
        const Floats scores = drawn_by(load_floats(x + i, lanes_of(n - i)), draw, i);
        const Lanes better = is_greater(scores, best) & lanes_of(n - i);
        best = select(better, scores, best);
        places = select(better, ints(i), places);
    }
    float scores[16];
    int32_t firsts[16];
    store_floats(scores, best);
    store_ints(firsts, places);
    int lane = 0;
    for (int i = 1; i < 16; ++i)
        if (scores[i] > scores[lane] || (scores[i] == scores[lane] && firsts[i] + i < firsts[lane] + lane)) lane = i;
    return std::min(firsts[lane] + lane, n - 1);
}

// Penalizes a row's scores in place; the destructor restores them.
struct Penalized {
    Row& row;
    float* x;
    const Choice& choice;
    std::vector<float>& kept;

    Penalized(Row& row, float* x, const Choice& choice, std::vector<float>& kept)
        : row(row), x(x), choice(choice), kept(kept) {
        kept.clear();
        for (int i = 0; i < choice.occurrences; ++i) {
            float& score = x[choice.occurred[i]];
            kept.push_back(score);
            score = score > 0 ? score / choice.repetition : score * choice.repetition;
            score -= choice.frequency * choice.counts[i] + (choice.counts[i] > 0 ? choice.presence : 0.0f);
        }
        update();
    }

    ~Penalized() {
        for (int i = 0; i < choice.occurrences; ++i) x[choice.occurred[i]] = kept[i];
        update();
    }

private:
    void update() const {
        if (choice.occurrences) row.update_maxima(choice.occurred, choice.occurrences);
    }
};

void choose(Run& run, int index, const Op& op, const Step& step) {
    thread_local Row own, other;
    thread_local Best best;
    thread_local std::vector<float> kept;
    run.parallel_for(index, step.wanted, [&](int task) {
        Choice& choice = ((Choice*)op.choices)[task];
        float* logits = (float*)op.in + (int64_t)task * op.n;
        const bool of_changed = choice.changed >= 0 && choice.mode != kGiven;
        float top = 0, log_mass = 0;  // of the raw logits
        const int panels = (op.n + kPanel - 1) / kPanel;
        if (choice.wants_logprob || !of_changed)
            own.read_maxima(logits, op.n, op.maxima ? op.maxima + (int64_t)task * panels : nullptr);
        if (choice.wants_logprob) {
            own.read_masses(1.0f);
            top = own.top;
            log_mass = logf(own.total);
            if (choice.alternatives) find_best(own, choice.alternatives, best);
            for (int i = 0; i < choice.alternatives; ++i) {
                op.logprobs[(int64_t)task * op.max_alternatives + i] = best[i].first - top - log_mass;
                op.token_ids[(int64_t)task * op.max_alternatives + i] = best[i].second;
            }
        }
        if (choice.mode != kGiven) {
            float* scores = of_changed ? op.changed + choice.changed * op.n : logits;
            Row& row = of_changed ? other : own;
            if (of_changed) row.read_maxima(scores, op.n);
            const Penalized penalized(row, scores, choice, kept);
            const uint64_t state = mixed(choice.seed + choice.position);
            if (choice.mode == kBest) {
                find_best(row, 1, best);
                choice.token = best[0].second;
            } else if (choice.mode == kNoise) {
                const Draw draw{choice.inverse_temperature, 1, {(uint32_t)state, (uint32_t)(state >> 32)}};
                choice.token = draw_by_noise(scores, op.n, draw);
            } else {
                const bool has_masses = choice.wants_logprob && !of_changed && !choice.occurrences;
                if (choice.top_k) {
                    choice.token = draw_top_k(row, choice, state);
                } else {
                    if (!has_masses || choice.inverse_temperature != 1.0f) row.read_masses(choice.inverse_temperature);
                    choice.token = draw_by_rejection(row, choice, state);
                }
            }
            if (std::isnan(scores[choice.token])) choice.token = kNoToken;
        }
        // Subtracts the greatest logit first: the difference is exact near 0.
        if (choice.wants_logprob && choice.token != kNoToken) choice.logprob = logits[choice.token] - top - log_mass;
    });
}

}  // namespace
}  // namespace djl
