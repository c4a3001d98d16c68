// Keeps of a panel of logits what a search for tokens needs (rescore.h): the greatest, by what its row compares them by, and the
// masses of all.

#pragma once

#include "formats.h"
#include "program.h"
#include "row_sampling.h"

namespace djl {
namespace {

// A row's masses in each panel: those at a temperature of 1, for log-probabilities, and those at the row's own.
enum MassKind { kPlain, kTempered, kMassKinds };

// Whether the sum of all tokens' masses at the row's temperature is needed. The mass of the top_k best is that of a few.
inline bool needs_total(const Choice& choice) { return choice.mode == kDraw && choice.top_p < 1 && !choice.top_k; }

inline float* masses_at(const Op& op, int64_t row, MassKind kind, int panels) {
    return op.log_masses + (row * kMassKinds + kind) * panels;
}

// log2 of the sum of 2^(factor * x). A panel's numbers may lie anywhere, so they are measured from the greatest.
inline float log_mass(const Floats (&x)[4], float top, float factor) {
    Floats sum = Floats{};
    for (int v = 0; v < 4; ++v) sum = sum + exp2((x[v] - floats(top)) * floats(factor));
    return std::log2(sum_of_lanes(sum)) + top * factor;
}

// Args: sum: a finished row of a panel, before scale and soft cap.
inline __attribute__((noinline)) void screen(const Op& op, int64_t row, int panel, const Floats (&sum)[4]) {
    const int panels = (op.n + kPanel - 1) / kPanel;
    Floats x[4], greatest = floats(-INFINITY);
    for (int v = 0; v < 4; ++v) {
        const Floats logits = capped(sum[v] * floats(op.scale), op.softcap);
        x[v] = select(lanes_of(op.n - panel * kPanel - v * 16), logits, floats(-INFINITY));
        greatest = max(greatest, x[v]);
    }
    const float top = max_lane(greatest);
    op.maxima[row * panels + panel] = top;
    if (!op.choices) return;
    const Choice& choice = op.choices[row];
    if (choice.wants_logprob) masses_at(op, row, kPlain, panels)[panel] = log_mass(x, top, kLog2e);
    if (needs_total(choice)) masses_at(op, row, kTempered, panels)[panel] = log_mass(x, top, kLog2e * choice.inverse_temperature);
    if (!draws_from_all(choice)) return;
    const Comparison by(choice, 0);
    greatest = floats(-INFINITY);
    for (int v = 0; v < 4; ++v) greatest = max(greatest, by(x[v], ints_from(panel * kPanel + v * 16)));
    op.maxima[row * panels + panel] = max_lane(greatest);
}

}  // namespace
}  // namespace djl
