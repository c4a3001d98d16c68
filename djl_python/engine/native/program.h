// What a program is made of.

#pragma once

#include <cstdint>
#include <type_traits>

namespace djl {

constexpr int kPanel = 64;   // columns of a packed weight panel: four vectors
constexpr int kSteps = 512;  // steps along k (a 32-bit lane of each column) of a panel's part, at most: 128 KiB
constexpr int kKeys = 16;    // keys of a cache group: one vector of scores

enum Kind : int32_t {
    kEmbed, kNorm, kLinear, kHeads, kAttend, kGather, kQuantize, kChoose, kPack, kRoute, kSort, kDispatch,
    kCombine, kDelta, kEmpty, kConvolve, kScan, kNormRows, kConvolveRows, kDecay, kGate,
    kStepSizes, kSelect, kLatents
};
constexpr int kKinds = 24;
// kSame: the activations' format; kTwelve: bf16 in 12 bits; the others: integer codes of so many bits.
enum WeightFormat : int32_t { kSame, kTwelve, kEight, kFour, kEightByGroup };
enum Activation : int32_t { kNone, kSilu, kGeluTanh, kGeluErf, kRelu, kReluSquared, kClampedSwiglu, kQuickGelu, kXielu };
enum NormKind : int32_t { kRms, kLayer, kCopy };  // kCopy: no norm, only the format changes

// One operation. Fields mean what the operation makes of them; see the functions below. Mirrored in pool.py.
struct Op {
    int32_t kind;
    int32_t late;       // 1: of the rows whose logits are wanted only, which a kGather has put together
    int32_t of_experts; // 1: a row for each of the experts that a token chose
    int32_t n, k;       // width out, width in
    int32_t mode;       // kLinear, kNorm: 0 store T, 1 add to fp32, 2 store fp32; kEmbed: 1 packed table;
                        // kHeads: 1 norms are over all heads at once
    int32_t norm;       // kNorm, kNormRows: NormKind
    int32_t activation;
    int32_t gated;      // kLinear: columns come in halves of a panel, activation(first) * second is stored
    int32_t heads, kv_heads, dim, value_dim, rotary, interleaved, window;  // kLinear: see linear.h
    int32_t format;     // kLinear, kEmbed: WeightFormat
    int32_t experts;    // kLinear: 0, or weights of so many experts, panel after panel; see routing.h
    int32_t chosen;     // experts of each token
    int32_t stride, pitch;  // numbers from one row of what is read, and written, to the next, where that is not a row's
    float eps, scale, softcap;
    const void* in;
    void* out;
    const void* weight;   // kLinear: packed panels; kQuantize: an order, see quantized.h; else fp32
    const float* bias;
    const float* weight2; // kHeads: norms of queries and keys; integer weights: their scales; kTwelve: see twelve.h
    const float* weight3; // integer weights: their zeros, where they have scales by group
    const float* cosines;  // kHeads: (positions, rotary / 2) tables
    const float* sines;
    const float* sinks;    // kAttend: (heads,)
    const float* slopes;   // kAttend: (heads,) what a key's score gains with each position, if it does
    void* keys;            // kHeads, kAttend: this layer's part of the cache's first block
    void* values;
    void* routed;          // see routing.h; kChoose: the choices
    float* maxima;         // (rows, panels) the greatest of each panel's columns: kLinear fills it, kChoose reads it
};

// What changes from step to step. Late operations have one of their own, whose tokens are the wanted ones.
struct Step {
    int32_t tokens;
    int32_t wanted;             // rows that a kGather takes, or whose scores are read
    const int64_t* ids;         // (tokens,)
    const int64_t* positions;   // (tokens,)
    const int64_t* turns;       // (tokens,) rows of the rotations' tables
    const int64_t* slots;       // (tokens,)
    const int64_t* rows;        // (wanted,)
    int32_t tiles;              // attention: runs of tokens of one sequence
    const int32_t* tile_start;  // (tiles,)
    const int32_t* tile_size;   // (tiles,)
    const int64_t* tile_table;  // (tiles,) offset of the sequence's blocks in `blocks`
    const int64_t* blocks;
    int32_t block_size;
    int32_t block_count;
    int64_t block_bytes;        // of a block, with all layers' keys and values
    int32_t spans;              // runs of tokens of one sequence, which has a state
    const int32_t* span_start;  // (spans,)
    const int32_t* span_size;   // (spans,)
    const int32_t* span_source; // (spans,) slot of the state that it begins with; -1: there is none
    const int32_t* span_slot;   // (spans,) where its state is left
    const int32_t* span_saves;  // (spans + 1,) where in the next two its entries begin
    const int32_t* save_after;  // after how many of a span's tokens, ascending, ...
    const int32_t* save_slot;   // ... its state is left here too
    int64_t slot_bytes;         // of all layers' states
};

// This layer's state in a slot.
template <class T>
inline T* state_in(const Op& op, const Step& step, int slot) {
    return (T*)((char*)op.routed + slot * step.slot_bytes);
}

// Calls save with each slot in which a span's state is left after so many of its tokens.
template <class Save>
inline void save_states(const Step& step, int span, int64_t tokens, Save save) {
    for (int i = step.span_saves[span]; i < step.span_saves[span + 1]; ++i)
        if (step.save_after[i] == tokens) save(step.save_slot[i]);
}

// From a row of so many numbers to the next, of what is read and written.
inline int64_t stride_of(const Op& op, int width) { return op.stride ? op.stride : width; }

inline int64_t pitch_of(const Op& op, int width) { return op.pitch ? op.pitch : width; }

inline int rows_of(const Op& op, const Step& step) {
    return op.of_experts ? step.tokens * op.chosen : step.tokens;
}

// In pieces as long as each other, and at most so long: their length.
inline int evenly(int steps, int most) {
    const int pieces = (steps + most - 1) / most;
    return (steps + pieces - 1) / pieces;
}

// A type, as an argument.
template <class T>
struct Type {
    using type = T;
};

// Calls work with a height that the compiler knows.
template <int Least, int Most, class Work>
inline __attribute__((always_inline)) void with_height(int height, const Work& work) {
    if constexpr (Least < Most)
        if (height > Least) return with_height<Least + 1, Most>(height, work);
    work(std::integral_constant<int, Least>{});
}

// A panel is multiplied part by part: what all rows are multiplied with stays in the second cache meanwhile. Each part
// costs its sums' way to memory and back.
inline int part_steps(int steps) { return evenly(steps, kSteps); }

inline int parts_of(int steps) { return (steps + part_steps(steps) - 1) / part_steps(steps); }

}  // namespace djl
