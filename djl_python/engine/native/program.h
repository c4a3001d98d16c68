// The structures of a program: its operations, and what changes from step to step.

#pragma once

#include <cstdint>
#include <type_traits>

namespace djl {

constexpr int kPanel = 64;          // columns of a packed weight panel: four vectors
constexpr int kMaxPartSteps = 512;  // along k (a 32-bit lane of each column) in a part of a panel: 128 KiB
constexpr int kKeysPerGroup = 16;   // keys of a cache group: one vector of scores

enum Kind : int32_t {
    kEmbed, kNorm, kLinear, kHeads, kAttend, kGather, kQuantize, kChoose, kPack, kRoute, kSort, kDispatch,
    kCombine, kDelta, kClearValues, kConvolve, kScan, kNormRows, kConvolveRows, kDecay, kGate,
    kStepSizes, kSelectiveScan, kLatents
};
constexpr int kKinds = 24;
// kSame: the activations' format; kTwelve: bf16 in 12 bits; the others: integer codes of 8 or 4 bits.
enum WeightFormat : int32_t { kSame, kTwelve, kEight, kFour, kEightByGroup };
enum Activation : int32_t { kNone, kSilu, kGeluTanh, kGeluErf, kRelu, kReluSquared, kClampedSwiglu, kQuickGelu, kXielu };
enum NormKind : int32_t { kRms, kLayer, kCopy };  // kCopy: no norm, only the format changes

// One operation. The function that runs it says what its fields mean. Mirrored in pool.py.
struct Op {
    int32_t kind;
    int32_t late;       // 1: works only on the rows whose logits are wanted, which a kGather has collected
    int32_t of_experts; // 1: `chosen` rows for each token, such as one for each expert that it chose
    int32_t n, k;       // width out, width in
    int32_t mode;       // kLinear, kNorm: 0 store T, 1 add to fp32, 2 store fp32; kEmbed: 1 packed table;
                        // kHeads: 1 norms are over all heads at once
    int32_t norm;       // kNorm, kNormRows: NormKind
    int32_t activation;
    int32_t gated;      // kLinear: a panel is half gate, half other columns; activation(first) * second is stored
    int32_t heads, kv_heads, dim, value_dim, rotary, interleaved, window;  // kLinear: see linear.h
    int32_t format;     // kLinear, kEmbed: WeightFormat
    int32_t experts;    // kLinear: 0, or the number of experts, whose panels follow each other; see routing.h
    int32_t chosen;     // how many experts each token chooses
    int32_t stride, pitch;  // numbers from one row read, and written, to the next, where that is not the row's width
    float eps, scale, softcap;
    const void* in;
    void* out;
    const void* weight;   // kLinear: packed panels; kQuantize: an order, see quantized.h; norms: fp32
    const float* bias;
    const float* weight2; // kHeads: the norm of queries; integer weights: their scales; kTwelve: see twelve.h
    const float* weight3; // kHeads: the norm of keys; integer weights: their zeros, if scales are by group; kTwelve: see twelve.h
    const float* cosines;  // kHeads: (positions, rotary / 2) tables
    const float* sines;
    const float* sinks;    // kAttend: (heads,)
    const float* slopes;   // kAttend: (heads,) what a key's score gains with each position, or null
    void* keys;            // kHeads, kAttend: this layer's part of the cache's first block
    void* values;
    void* routed;          // see routing.h; kChoose: the choices
    float* maxima;         // (rows, panels) each panel's greatest score: kLinear fills it, kChoose reads it
};

// What changes from step to step. Late operations have a Step of their own, whose tokens are the wanted ones.
struct Step {
    int32_t tokens;
    int32_t wanted;             // rows that a kGather takes, or whose scores are read; sequences of a kConvolve
    const int64_t* ids;         // (tokens,)
    const int64_t* positions;   // (tokens,)
    const int64_t* rotary_rows; // (tokens,) rows of the rotary tables
    const int64_t* slots;       // (tokens,) places in the cache: block * block_size + offset
    const int64_t* rows;        // (wanted,)
    int32_t tiles;              // attention: runs of tokens of one sequence
    const int32_t* tile_start;  // (tiles,)
    const int32_t* tile_size;   // (tiles,)
    const int64_t* tile_table;  // (tiles,) where the sequence's blocks begin in `blocks`
    const int64_t* blocks;      // (block_count,)
    int32_t block_size;
    int32_t block_count;
    int64_t block_bytes;        // of a block, which has all layers' keys and values
    int32_t spans;              // recurrent layers: runs of tokens of one sequence
    const int32_t* span_start;  // (spans,)
    const int32_t* span_size;   // (spans,)
    const int32_t* span_source; // (spans,) slot of the state that a span begins with; -1: none
    const int32_t* span_slot;   // (spans,) slot for the state at its end
    const int32_t* span_saves;  // (spans + 1,) where a span's entries begin in the next two
    const int32_t* save_after;  // after how many of a span's tokens, ascending, ...
    const int32_t* save_slot;   // ... its state is saved to this slot too
    int64_t slot_bytes;         // of a slot, which has all layers' states
};

// This layer's state in a slot.
template <class T>
inline T* state_in(const Op& op, const Step& step, int slot) {
    return (T*)((char*)op.routed + slot * step.slot_bytes);
}

// Calls save with each slot to which a span's state is to be saved after so many of its tokens.
template <class Save>
inline void save_states(const Step& step, int span, int64_t tokens, Save save) {
    for (int i = step.span_saves[span]; i < step.span_saves[span + 1]; ++i)
        if (step.save_after[i] == tokens) save(step.save_slot[i]);
}

// The distance in numbers from one row of `width` numbers to the next: of rows that are read, and that are written.
inline int64_t stride_of(const Op& op, int width) { return op.stride ? op.stride : width; }

inline int64_t pitch_of(const Op& op, int width) { return op.pitch ? op.pitch : width; }

inline int rows_of(const Op& op, const Step& step) {
    return op.of_experts ? step.tokens * op.chosen : step.tokens;
}

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
