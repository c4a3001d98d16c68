// Keeps of a panel of logits what a search for tokens needs (rescore.h): the greatest, by what its row compares them by, and the
// masses of all.

#pragma once

#include "program.h"
#include "sampling/row_sampling.h"
#include "vectors/formats.h"

namespace djl {
namespace {

// A row's masses in each panel: those at a temperature of 1, for log-probabilities, and those at the row's own.
enum MassKind { kRaw, kTempered, kMassKinds };

// Whether the sum of all tokens' masses at the row's temperature is needed. The mass of the top_k best is that of a few.
inline bool needs_total(const RowSampling& sampling) { return sampling.mode == kDraw && sampling.top_p < 1 && !sampling.top_k; }

inline float* masses_at(const PanelStatistics& statistics, int64_t row, MassKind kind, int panels) {
    return statistics.log_masses + (row * kMassKinds + kind) * panels;
}

// log2 of the sum of 2^(factor * x). A panel's numbers may lie anywhere, so they are measured from the greatest.
inline float log_mass(const Floats (&x)[4], float top, float factor) {
    Floats sum = Floats{};
    for (int v = 0; v < 4; ++v) sum = sum + exp2((x[v] - floats(top)) * floats(factor));
    return std::log2(sum_of_lanes(sum)) + top * factor;
}

// Args: sum: a finished row of a panel, before scale and soft cap.
inline __attribute__((noinline)) void keep_statistics(const LinearOp& op, int64_t row, int panel, const Floats (&sum)[4]) {
    const int panels = panel_count(op.n);
    Floats x[4], greatest = floats(-INFINITY);
    for (int v = 0; v < 4; ++v) {
        const Floats logits = capped(sum[v] * floats(op.output.scale), op.output.softcap);
        x[v] = select(lanes_of(op.n - panel * kPanel - v * 16), logits, floats(-INFINITY));
        greatest = max(greatest, x[v]);
    }
    const float top = max_lane(greatest);
    op.statistics.maxima[row * panels + panel] = top;
    if (!op.statistics.samplings) return;
    const RowSampling& sampling = op.statistics.samplings[row];
    if (sampling.wants_logprob) masses_at(op.statistics, row, kRaw, panels)[panel] = log_mass(x, top, kLog2e);
    if (needs_total(sampling))
        masses_at(op.statistics, row, kTempered, panels)[panel] = log_mass(x, top, kLog2e * sampling.inverse_temperature);
    if (!draws_from_all(sampling)) return;
    const Comparison by(sampling, 0);
    greatest = floats(-INFINITY);
    for (int v = 0; v < 4; ++v) greatest = max(greatest, by(x[v], ints_from(panel * kPanel + v * 16)));
    op.statistics.maxima[row * panels + panel] = max_lane(greatest);
}

}  // namespace
}  // namespace djl
