// Matrix products with packed weights, and what is done to their rows before they are stored.
//
// Up to kMaxSingleTileRows rows are one tile of the whole width of a panel: each weight is read once and used at once. More
// rows are several tiles, whose shape depends on the format and the registers: with AVX-512, tiles of floats are half a panel
// wide and twice as high, so that a vector of weights is used with twice as many rows while it is in a register, and
// unpacking it costs nothing beside that. Where bf16 is multiplied as fp32, or by AMX tiles, many rows share weights that are
// expanded once for all of them.
// Tiles prefetch what comes next at an even rate: with an even load, memory is never waited for.

#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "linear/low_rank.h"
#include "prefetch.h"
#include "program.h"
#include "rows/expert_routing.h"
#include "sampling/panel_statistics.h"
#include "thread_pool.h"
#include "vectors/activations.h"
#include "vectors/amx_tiles.h"
#include "vectors/formats.h"

namespace djl {
namespace {

constexpr int kMaxSingleTileRows = kSumRegisters / 4;  // rows of a tile of four vectors
constexpr int kRowsPerLine = 5;  // rows that vectors multiply with a step while memory delivers a line
constexpr int kMaxBandRows = kHasAmx ? 256 : 96;  // rows that a panel is multiplied with at a time
constexpr int kExpandedVectors = 2;  // that are expanded at once: in 12 bits, both are halves of the same bytes
constexpr int kL1Steps = 96;  // steps whose weights stay in L1 while they are used more than once

// How many panels of columns there are: of one expert if there are experts, of one product if several lie side by side.
inline int panels_of(const LinearOp& op) { return panel_count(op.epilogue.gated ? op.n * 2 : op.n); }

inline int panels_side_by_side(const LinearOp& op) { return panels_of(op) * std::max(1, op.side_by_side); }

// Where in a row a panel's product finds its input.
inline int64_t input_offset(const LinearOp& op, int panel) {
    return op.side_by_side ? (int64_t)(panel / panels_of(op)) * op.k : 0;
}

// Where a panel's product puts its first number of a row of output.
inline int64_t output_offset(const LinearOp& op, int64_t row, int panel) {
    return row * apart(op.output.pitch, op.n) + (op.side_by_side ? (int64_t)(panel / panels_of(op)) * op.apart : 0);
}

// Applies bias, activation, gate and soft cap to a finished row of a panel, and stores it. Loops are unrolled, or compilers
// leave the sums in memory.
template <class F>
inline __attribute__((always_inline)) void finish_row(const LinearOp& op, int64_t row, int panel, Floats (&sum)[4]) {
    if (op.bias)  // padded to whole panels
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) sum[v] = sum[v] + load_floats(op.bias + panel * kPanel + v * 16);
    if (op.output.mode == kStatistics) {
        const Floats copy[4] = {sum[0], sum[1], sum[2], sum[3]};  // the sums themselves stay in registers
        return keep_statistics(op, row, panel, copy);
    }
    Floats max_score = floats(-INFINITY);
    int vectors = 4, first = (op.routing.experts || op.side_by_side ? panel % panels_of(op) : panel) * kPanel;
    if (op.epilogue.gated) {
        sum[0] = gated<F>(sum[0], sum[2], op.epilogue);
        sum[1] = gated<F>(sum[1], sum[3], op.epilogue);
        vectors = 2;
        first /= 2;
    } else if (op.epilogue.activation == kXielu) {
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) sum[v] = xielu(sum[v], op.epilogue);
    } else if (op.epilogue.activation) {
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) sum[v] = activate<F>(sum[v], op.epilogue.activation);
    }
    const int64_t begin = output_offset(op, row, panel);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
        const int c = first + v * 16;
        if (v >= vectors || c >= op.n) break;
        const Lanes mask = lanes_of(op.n - c);
        if (op.output.mode == kStore) {
            F::store((typename F::T*)op.output.out + begin + c, sum[v], mask);
            continue;
        }
        float* out = (float*)op.output.out + begin + c;
        Floats x = sum[v] * floats(op.output.scale);
        if (op.output.mode == kAdd) x = x + load_floats(out, mask);
        x = capped(x, op.output.softcap);
        store_floats(out, x, mask);
        max_score = select(mask, max(max_score, x), max_score);
    }
    if (op.statistics.maxima) op.statistics.maxima[row * panels_of(op) + panel] = max_lane(max_score);
}

// How rows are cut into tiles to be multiplied with a part of a panel whose steps are so many lines. Tiles have nearly the
// same height: a low last one would be bound by the latency of its additions.
struct RowTiling {
    int count, height, taller;  // the first `taller` tiles are one row higher
    int runs;                   // through tiles, to cover all of a panel's vectors
    int spare;                  // runs that are slots (prefetch.h): without weights to prefetch, while memory can deliver more

    RowTiling(int rows, Shape shape, int lines, int rows_per_line)
        : count((rows + shape.rows - 1) / shape.rows), height(rows / count), taller(rows % count),
          runs(count * 4 / shape.vectors), spare(std::min(rows / rows_per_line, runs) - lines) {
        if (count == 1 || spare < 0) spare = 0;
    }

    int height_of(int tile) const { return height + (tile < taller); }
};

// What a thread keeps of a product whose weights are expanded; nothing where they aren't.
struct NothingExpanded {};
template <class Part>
using ExpandedOf = std::conditional_t<Part::expandable, typename Part::Expanded, NothingExpanded>;

// How `rows` rows are cut into tiles for a type of part.
template <class Part>
inline RowTiling row_tiling_of(int rows) {
    if constexpr (Part::expandable) {
        using Expanded = typename Part::Expanded;
        if (rows > Expanded::threshold) return {rows, Expanded::shape, Part::lines, Expanded::rows_per_line};
    }
    return {rows, Part::shape, Part::lines, kRowsPerLine};
}

// How a product without experts is cut: into panels of columns; if it has many rows, into bands of rows too, so that there is
// work for all threads and a band stays in the cache; each panel into parts along k; a band into tiles.
//
// The rows of the first panel, then of the second, and so on, are cut into one stretch for each thread: of nine panels, two
// threads take four and a half each. A band is cut in two only where neither piece is too low.
struct Cut {
    int panels, rows;
    int bands, height;       // rows of a band; the last band may have fewer
    int steps, part;         // along k, of a panel and of a part
    int whole_parts, spare;  // runs of a band with each whole part that are slots

    // For a panel of `steps` steps whose parts have `part` steps each, and no slots.
    Cut(const LinearOp& op, const StepInputs& step, int steps, int part)
        : panels(panels_side_by_side(op)), rows(op.routing.experts ? step.tokens * op.routing.chosen : step.tokens),
          bands(std::max(1, (rows + kMaxBandRows - 1) / kMaxBandRows)), height(std::max(1, (rows + bands - 1) / bands)),
          steps(steps), part(part), whole_parts(steps / part), spare(0) {}

    // With slots, for parts of type Part.
    template <class Part>
    Cut(const LinearOp& op, const StepInputs& step, int steps, int part, Type<Part>) : Cut(op, step, steps, part) {
        spare = row_tiling_of<Part>(height).spare;
    }

    PrefetchSlots slots() const { return {(int64_t)panels * bands * whole_parts * spare, part}; }

    // The first slot of the first part of the piece that begins at that panel and row.
    int first_slot(int panel, int row) const {
        return (panel * bands + row / height) * whole_parts * spare + row % height * spare / height;
    }

    // The tasks of a thread's stretch, one for each of its bands; the first and last band may be pieces. Two threads that share
    // a band have different numbers for it.
    TaskRange tasks_of(int thread, int threads) const {
        const int64_t first = begin(thread, threads), end = begin(thread + 1, threads);
        return first < end ? TaskRange{band_of(first) + thread, band_of(end - 1) + thread + 1} : TaskRange{0, 0};
    }

    // The panel that a thread begins with.
    int first_panel(int thread, int threads) const { return rows ? (int)(begin(thread, threads) / rows) : 0; }

    // Calls work(panel, first row, end row, whether the stretch ends there) for a task of a thread's stretch.
    template <class Work>
    void piece(int task, int thread, int threads, Work work) const {
        const int band = task - thread, panel = band / bands;
        const int64_t start = (int64_t)panel * rows;
        const int64_t first = start + band % bands * height, last = std::min(first + height, start + rows);
        const int64_t end = begin(thread + 1, threads);
        work(panel, (int)(std::max(first, begin(thread, threads)) - start), (int)(std::min(last, end) - start), end <= last);
    }

private:
    int band_of(int64_t row) const { return (int)(row / rows * bands + row % rows / height); }

    // The first row of a thread's stretch, counted through all panels.
    int64_t begin(int thread, int threads) const {
        const int64_t even = (int64_t)panels * rows * thread / threads;
        if (rows == 0 || thread == threads) return even;
        const int64_t panel = even / rows * rows, first = panel + even % rows / height * height;
        const int64_t last = std::min(first + height, panel + rows);
        const int min_rows = 2 * kMaxSingleTileRows;
        return even - first < min_rows ? first : last - even < min_rows ? last : even;
    }
};

// Shares out a product's work: calls work(panel, following, first row, end row) for a panel and some of the rows. `following`
// is the panel that is multiplied next, which after the last row is the next one; -1 if the next product comes next.
template <class Work>
inline void for_each_band(Run& run, int index, const LinearOp& op, const StepInputs& step, const Cut& cut, Work work) {
    const int panels = cut.panels;
    if (const int experts = op.routing.experts) {
        const Routed routed(op.routing, step);
        const int active = routed.active[experts];
        run.parallel_for_ordered(index, active * panels, [&](int task) {
            const int expert = routed.active[task / panels], panel = expert * panels + task % panels;
            const int end = routed.starts[expert + 1];
            for (int first = routed.starts[expert], last; first < end; first = last) {
                last = end - first > kMaxBandRows ? first + kMaxBandRows : end;
                work(panel, last < end ? panel : std::min(panel + 1, experts * panels - 1), first, last);
            }
        });
        return;
    }
    auto range_of = [&](int thread) { return cut.tasks_of(thread, run.threads); };
    run.parallel_for_ranges(index, range_of, [&](int task, int thread) {
        cut.piece(task, thread, run.threads, [&](int panel, int first, int last, bool ends) {
            work(panel, ends ? -1 : last == cut.rows ? panel + 1 : panel, first, last);
        });
    });
}

// A tile's place in the sums (rows, kPanel) of a band. For the first part of a panel nothing has `begun`: its products are
// added to zero, so that sums needn't be cleared.
struct Sums {
    float* at;
    bool begun;

    Sums tile(int row, int vector) const { return {at + row * kPanel + vector * 16, begun}; }
    Floats load(int row, int vector) const { return load_floats(at + row * kPanel + vector * 16, begun ? 0xffff : 0); }
    void store(int row, int vector, Floats x) const { store_floats(at + row * kPanel + vector * 16, x); }
};

// Multiplies R rows, one tile for each slice of a panel's vectors, with a part of it. Later slices find weights in L1.
template <int R, class Part>
void multiply_alone(const Part& part, int steps, Sums sums) {
    constexpr int vectors = 2 * R <= kSumRegisters ? 2 : Part::shape.vectors;
    constexpr int lines = Part::lines, bytes = lines * vectors * 16;  // of a step
    const char* at = part.at + kPrefetchDistance;
    const int length = evenly(steps, kL1Steps);
    for (int from = 0; from < steps; from += length) {
        const Part some = part.after(from);
        const int count = std::min(length, steps - from);
        for (int vector = 0; vector < 4; vector += vectors) {
            at += count * bytes;
            some.template tile<R, vectors>(0, vector, count, PrefetchOwn<(bytes + 63) / 64>{at, bytes}, sums.tile(0, vector));
        }
        sums.begun = true;
    }
}

// What the runs through the tiles of a part prefetch, one after the other: the lines of the part that is multiplied next,
// evenly distributed; runs that get no line prefetch slots.
struct Prefetches {
    const char* following;
    int steps, lines, runs;  // of the part
    const KvPrefetch& kv_prefetch;
    int slot, last_slot;
    int run = 0, line = 0;

    // Calls work with the prefetch of the next run, from one of the part's steps on.
    template <class Work>
    void next(int step, const Work& work) {
        const char* from = following + (int64_t)line * steps * 64;
        const int count = ++run * lines / runs - line;
        line += count;
        if (count == 2) work(PrefetchNext<2>{from + step * 128, 128});
        else if (count == 1) work(PrefetchNext<1>{from + step * 64, 64});
        else if (slot < last_slot) kv_prefetch.with_slot(slot++, step, work);
        else work(PrefetchNext<0>{});
    }
};

// Multiplies many rows with a part, some steps at a time, whose weights are expanded once for all rows.
template <class Part, class Expanded>
void multiply_expanded(const Part& part, int rows, int steps, const Prefetches& prefetches, const RowTiling& tiling,
                       Sums sums, Expanded& expanded) {
    for (int from = 0, count; from < steps; from += count) {
        count = Expanded::steps_of(steps - from);
        Prefetches each = prefetches;
        expanded.take_rows(part, from, count, rows);
        for (int taken = 0; taken < 4; taken += kExpandedVectors) {
            expanded.take_weights(part, from, count, taken);
            for (int vector = 0; vector < kExpandedVectors; vector += Expanded::shape.vectors)
                for (int tile = 0, row = 0; tile < tiling.count; row += tiling.height_of(tile++))
                    each.next(from, [&](const auto& prefetch) {
                        expanded.multiply(tiling.height_of(tile), row, vector, count, prefetch, sums.tile(row, taken + vector));
                    });
        }
        sums.begun = true;
    }
}

// Multiplies some rows with a part of a panel, into sums (rows, kPanel). `next` returns the address of what is multiplied
// next. done(first, end) is called for rows whose sums have the whole part: where a tile's sums are in registers, as soon as
// it is done. The lines that `done` stores to come from memory or another core's cache, a dozen at a time, while the next
// tile is multiplied.
template <class Part, class Expanded, class Next, class Done>
void multiply_part(const Part& part, int rows, int steps, Next next, const KvPrefetch& kv_prefetch, int slot, Sums sums,
                   Expanded& expanded, Done done) {
    constexpr int lines = Part::lines;
    constexpr Shape shape = Part::shape;
    auto finished = [&](int first, int last) {
        part.correct(first, last, sums.at);
        done(first, last);
    };
    if (rows <= kMaxSingleTileRows) {
        with_height<1, kMaxSingleTileRows>(rows, [&](auto height) __attribute__((always_inline)) {
            part.template tile<height, 4>(0, 0, steps, PrefetchOwn<lines>{part.at + kPrefetchDistance, lines * 64}, sums);
        });
        return finished(0, rows);
    }
    const RowTiling tiling = row_tiling_of<Part>(rows);
    auto prefetches = [&] { return Prefetches{next(), steps, lines, tiling.runs, kv_prefetch, slot, slot + tiling.spare}; };
    if constexpr (Part::expandable)
        if (rows > Expanded::threshold) {
            multiply_expanded(part, rows, steps, prefetches(), tiling, sums, expanded);
            return Expanded::corrected ? done(0, rows) : finished(0, rows);
        }
    if constexpr (shape.rows > kMaxSingleTileRows && Part::divisible)
        if (rows <= shape.rows) {
            with_height<kMaxSingleTileRows + 1, shape.rows>(rows, [&](auto height) __attribute__((always_inline)) {
                multiply_alone<height>(part, steps, sums);
            });
            return finished(0, rows);
        }
    Prefetches each = prefetches();
    for (int tile = 0, row = 0, end; tile < tiling.count; ++tile, row = end) {
        end = row + tiling.height_of(tile);
        for (int vector = 0; vector < 4; vector += shape.vectors)
            each.next(0, [&](const auto& prefetch) {
                with_height<(shape.rows + 1) / 2, shape.rows>(end - row, [&](auto height) __attribute__((always_inline)) {
                    part.template tile<height, shape.vectors>(row, vector, steps, prefetch, sums.tile(row, vector));
                });
            });
        if (Part::in_registers) finished(row, end);
    }
    if (!Part::in_registers) finished(0, rows);
}

// out (rows, n) = in (rows, k) times the packed weight; see `Output`. A panel is taken in parts that stay in L2 while all rows
// are multiplied with them; the sums of a band of rows are in memory.
//
// Panel knows a weight format. It has at(step), an address; part(number, first row); and finish(sums of a row). A part has
// its address `at`; `lines`, the lines of 64 bytes that hold a step; the `shape` of its tiles where there are several;
// tile<R, V>(row, vector, steps, prefetch, sums), which adds R rows times V of the four vectors to their sums, which meanwhile
// are in registers or not (in_registers); correct(first row, end row, sums), which adds what tiles leave out; and, if it is
// divisible, after(steps), the rest of the part.
//
// If a part is expandable, more than `threshold` rows share an Expanded copy of it: steps_of(steps left) steps at a time, of
// the rows and of kExpandedVectors vectors; it is one thread's for a whole product. Its multiply(height, row, vector, steps,
// prefetch, sums) does what `tile` does, from one of these vectors on; if it is `corrected`, nothing is left out. rows_per_line
// rows are multiplied with a step while memory delivers a line.
//
// `upcoming` returns where the calling thread's share of the next product begins, or null.
template <class Panel, class Upcoming>
void linear(Run& run, int index, const LinearOp& op, const StepInputs& step, Upcoming upcoming) {
    const KvPrefetch& kv_prefetch = run.kv_prefetches[index], nothing{};
    const Cut cut = Panel::cut(op, step);
    alignas(64) float sums[kMaxBandRows * kPanel];
    ExpandedOf<decltype(std::declval<Panel>().part(0, 0))> expanded;
    for_each_band(run, index, op, step, cut, [&](int panel_index, int following, int first, int last) {
        const Panel panel(op, panel_index);
        auto finish = [&](int row) {
            Floats sum[4];
#pragma GCC unroll 4
            for (int v = 0; v < 4; ++v) sum[v] = load_floats(sums + row * kPanel + v * 16);
            panel.finish(sum);
            if (op.low_rank.parts) add_low_rank<typename Panel::Format>(op.low_rank, step, first + row, panel_index, sum);
            finish_row<typename Panel::Format>(op, first + row, panel_index, sum);
        };
        int slot = cut.first_slot(panel_index, first);
        for (int number = 0, from = 0; from < cut.steps; ++number, from += cut.part, slot += cut.spare) {
            const int count = std::min(cut.part, cut.steps - from);
            auto next = [&]() -> const char* {
                if (from + count < cut.steps) return panel.at(from + count);
                if (following >= 0) return Panel(op, following).at(0);
                const char* at = upcoming();
                return at ? at : panel.at(from);
            };
            const auto part = panel.part(number, first);
            multiply_part(part, last - first, count, next, count == cut.part ? kv_prefetch : nothing, slot, {sums, number > 0},
                          expanded, [&](int row, int end) {
                              if (from + count == cut.steps)
                                  for (; row < end; ++row) finish(row);
                          });
        }
    });
}

}  // namespace
}  // namespace djl
