// What kernels have in common beside the structures of abi.h: rows, states, how work along k is cut.

#pragma once

#include <cstdint>
#include <type_traits>

#include "abi.h"

namespace djl {

constexpr int kMaxPartSteps = 512;  // along k (a 32-bit lane of each column) in a part of a panel: 128 KiB

// A layer's state in a slot. Args: states: its state in the first one.
template <class T>
inline T* state_in(void* states, const StepInputs& step, int slot) {
    return (T*)((char*)states + slot * step.slot_bytes);
}

// Calls save with each slot to which a span's state is to be saved after so many of its tokens.
template <class Save>
inline void save_states(const StepInputs& step, int span, int64_t tokens, Save save) {
    for (int i = step.span_saves[span]; i < step.span_saves[span + 1]; ++i)
        if (step.save_after[i] == tokens) save(step.save_slot[i]);
}

// The distance in numbers from one row of `width` numbers to the next, given a `stride` or a `pitch`.
inline int64_t apart(int stride, int width) { return stride ? stride : width; }

// How many panels a weight of n columns has.
inline int panel_count(int n) { return (n + kPanel - 1) / kPanel; }

// How many groups k numbers of a row are quantized in.
inline int group_count(int k) { return (k + kGroup - 1) / kGroup; }

// The length of pieces when `steps` are cut evenly into the fewest pieces of at most `max_length`.
inline int evenly(int steps, int max_length) {
    const int pieces = (steps + max_length - 1) / max_length;
    return (steps + pieces - 1) / pieces;
}

// A type, as an argument.
template <class T>
struct Type {
    using type = T;
};

// Calls work with the height as a compile-time constant.
template <int Min, int Max, class Work>
inline __attribute__((always_inline)) void with_height(int height, const Work& work) {
    if constexpr (Min < Max)
        if (height > Min) return with_height<Min + 1, Max>(height, work);
    work(std::integral_constant<int, Min>{});
}

// The steps of a part. A panel is multiplied part by part, so that the weights that all rows share stay in L2 meanwhile.
// Each part costs a round trip of the sums to memory.
inline int part_steps(int steps) { return evenly(steps, kMaxPartSteps); }

inline int parts_of(int steps) { return (steps + part_steps(steps) - 1) / part_steps(steps); }

}  // namespace djl
