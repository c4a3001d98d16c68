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
    kStepSizes, kSelectiveScan, kLatents, kPick, kRound
};
constexpr int kKinds = 26;
// kSame: the activations' format; kTwelve: bf16 in 12 bits; the others: integer codes of 8 or 4 bits.
enum WeightFormat : int32_t { kSame, kTwelve, kEight, kFour, kEightByGroup };
enum Activation : int32_t { kNone, kSilu, kGeluTanh, kGeluErf, kRelu, kReluSquared, kClampedSwiglu, kQuickGelu, kXielu };
enum NormKind : int32_t { kRms, kLayer, kCopy };  // kCopy: no norm, only the format changes

// What is done with results: they are stored as T, multiplied by a scale and added to fp32, or stored in fp32; or only each
// panel's greatest one is kept.
enum Mode : int32_t { kStore, kAdd, kStoreFp32, kMaximaOnly };

// One operation. All kinds share one struct, so that a program is an array. Where a kind has no use for what a field is
// usually for, it may use the field for something else, under another name: the names in a union are one field.
// Mirrored in pool.py, with the first names only; operations*.py have a function for each kind, whose arguments have the
// names below.
//
// The table says, for each kind, in which file it is, and what it reads and writes; test_operations.py compares it with
// those functions and with the kernels. T is the model's format, bf16 or fp32. What an operation doesn't have is null
// or 0. All kinds have `kind` and `late`. `stride` and `pitch` are the numbers from the beginning of a row that is read,
// and of one that is written, to that of the next; if 0, rows are contiguous.
//
// kEmbed, rowwise.h: begins the residual stream: out = scale * weight[id] + positions[position + position_offset].
//   n: numbers of an embedding
//   out: (tokens, n) fp32
//   weight: the table, (vocabulary, n) T, or null; if it is packed, the lm_head's weight, which is the same
//   packed: 1: it is packed
//   format, weight2, weight3: of a packed table, as for kLinear
//   scale: of the table's rows
//   positions: the table of learned positions, rows of (n,) T, or null
//   position_offset: of the first position in that table
//
// kNorm, rowwise.h: norms rows, or with kCopy changes their format only.
//   n: numbers of a row
//   in: (rows, n) fp32
//   out, pitch: (rows, n); T, `pitch` apart, or fp32, as mode says
//   mode, scale: Mode, and the factor of kAdd
//   norm, eps: NormKind, and what is added to the variance
//   weight, bias: (n,) fp32, or null
//   of_experts, chosen: 1, and how many rows there are for each token; or 0: one
//
// kLinear, linear.h: out = in times a packed weight, plus a bias; then an activation, or a soft cap.
//   n, k: columns and rows of the weight: of a gated pair's half, of one expert, of one product
//   in, stride: rows of (k,) T; with integer formats, what a kQuantize wrote
//   out, pitch: rows of (n,), T or fp32, as mode says
//   mode: Mode
//   scale, softcap: fp32 results are multiplied by scale, added, and capped to +-softcap if that is not 0
//   activation: Activation; of a gated pair, of its first half
//   curve_above, curve_below, curve_slope: of kXielu: factors of x * x above zero, of exp(x) - 1 - x below, and of x
//   alpha, limit: of kClampedSwiglu
//   gated: 1: a panel is half gate, half other columns; activation(gate) * other is stored
//   format: WeightFormat
//   weight: packed panels
//   weight2: integer formats: scales; kTwelve: the panels' tables, see bf16_12bit.h
//   weight3: integer formats by group: zero points; kTwelve: lists, see bf16_12bit.h
//   bias: fp32, padded to whole panels, or null
//   side_by_side: how many products there are, whose panels follow each other, each of its own k numbers of a row; or 0
//   apart: numbers from where a product side by side puts its results to where the next one does
//   of_experts, experts, chosen, routed: 1, and as for kRoute: each expert's rows have their own weight; or 0
//   maxima: (rows, panels): receives each panel's greatest result; or null
//   choices: with kMaximaOnly (rows,) Choice: what results are compared by, and which masses are wanted; or null: none
//   log_masses: (rows, 2, panels): receives them: log2 of a panel's sum of exp(x), and of exp(x / temperature)
//
// kPick, rescore.h: chooses a token for each row as kChoose does, but computes few of its logits.
//   n, k, in, stride, format, weight, weight2, weight3, bias, scale, softcap: of the lm_head's product, a kLinear with
//     kTwelve
//   codes: what a kQuantize wrote, the rounded rows
//   weight_squares, error_squares: (groups, panels), from kRound
//   maxima, log_masses: of the product of rounded weights and rows, a kLinear with kMaximaOnly
//   choices: (wanted,) Choice, none of changed scores: receive what is chosen, or that it isn't decided
//   max_alternatives, logprobs, token_ids: as for kChoose
//   out: (wanted, n) room for logits
//
// kHeads, rope_kv_cache.h: norms and rotates queries, in place, and keys; norms values; puts keys and values into the KV cache.
//   in, stride: rows of (heads, dim) queries, (kv_heads, dim) keys and (kv_heads, value_dim) values, fp32
//   heads, kv_heads, dim, value_dim: of these rows
//   cache: the layer's part of the cache's first block; null: there are queries only
//   query_norm, key_norm: fp32 weights, or null: no norm
//   norms_across: 0: these norms are of each head by itself, (dim,); 1: of all heads at once
//   eps: of these norms
//   value_norm, value_eps: (value_dim,) fp32 weight of the norm of each head's values, or null; and its epsilon
//   rotary: how many numbers of a head are rotated, even
//   interleaved: 1: two neighbours are rotated together; 0: one number of each half
//   cosines, sines: (positions, rotary / 2)
//
// kAttend, attention.h: attention of each token to its sequence's keys up to its own.
//   in, stride: rows that begin with (heads, dim) queries, fp32
//   out, pitch: rows of (heads, value_dim) T
//   heads, kv_heads, dim, value_dim: of queries and of the cache
//   cache: the layer's part of the cache's first block
//   window: how many keys a token sees at most; 0: all
//   scale, softcap: scores are multiplied by scale, then capped to +-softcap if that is not 0
//   sinks: (heads,) scores of a key that has no value, or null
//   slopes: (heads,) what a key's score gains with each position, or null
//
// kLatents, rope_kv_cache.h: makes rows for kHeads, with one key and one value, from latents (arXiv:2405.04434).
//   in: (tokens, rank + rotary) T: a latent, and the key's rotated numbers
//   rank: numbers of a latent
//   rotary: how many numbers of a key or a query are rotated
//   latent_norm, eps: (rank,) fp32 weight of the latent's norm, and its epsilon
//   query_rotary, stride: rows of (heads, rotary) T: what is rotated of the queries
//   out: rows as kHeads reads them; their queries already have what is multiplied with latents
//   heads, dim: of queries
//
// kGather, rowwise.h: copies the rows whose logits are wanted.
//   n: numbers of 32 bits in a row
//   in, out: (tokens, n) and (wanted, n)
//
// kQuantize, integer_linear.h: rounds activations to integers, in groups with a scale each.
//   k: numbers of a row
//   in, stride: rows of (k,) T
//   out: rows of codes, scales and sums
//   order: (k,) the order in which numbers of a row are taken, or null: their own
//   of_experts, chosen: 1, and how many rows there are for each token; or 0: one
//
// kPack, bf16_12bit.h: packs a bf16 weight, or a gated pair, in 12 bits.
//   n, k: rows and columns as checkpoints have them
//   in, second: (n, k) bf16: the weight; and the other of a gated pair, or null
//   out: the packed panels
//   tables: (panels, 16): receives each panel's table
//   lists, room: (panels, room): receives each panel's list of weights that its table can't encode
//   counts: (panels, parts): receives how many weights each part lists, -1 where the room was not enough
//
// kRound, round_weights.h: rounds a bf16 weight to 8 bits, as kLinear with kEight reads them.
//   n, k: rows and columns as checkpoints have them
//   in: (n, k) bf16
//   out: the packed panels
//   scales: (n,) padded to whole panels: receives each row's scale
//   weight_squares, error_squares: (groups, panels): receive the greatest squared norm of a panel's rows in each group of
//     columns, and of what rounding changed them by
//
// kChoose, sample.h: chooses a token for each row of logits.
//   n: tokens of the vocabulary
//   in: (wanted, n) fp32 logits; written to meanwhile, and restored
//   maxima: (wanted, panels) that a kLinear filled in, or null
//   changed: (.., n) scores to choose from instead, where a choice says so; written to meanwhile, and restored
//   choices: (wanted,) Choice: how to choose; receive what is chosen
//   max_alternatives: of all choices
//   logprobs, token_ids: (wanted, max_alternatives): receive the alternatives, best first
//
// kRoute, expert_routing.h: chooses each token's experts, and their weights.
//   in, columns: (tokens, columns) fp32: scores of the experts, and further columns
//   sigmoid: what makes weights of scores: 0 softmax, 1 sigmoid
//   correction: (experts,) added to weights for the choice alone, or null
//   groups, groups_taken: the experts are so many groups; the best so many of them are chosen from
//   judges: a group is as good as the sum of its so many (1 or 2) best experts
//   normalized: 1: weights are made to add up to 1
//   scale: then multiplies weights
//   experts, chosen: how many there are, and how many a token chooses
//   routed: receives the choices, see `Routed` in expert_routing.h
//
// kSort, expert_routing.h: assigns a row to each choice, ordered by expert.
//   experts, chosen, routed: as for kRoute; receives the rows
//
// kDispatch, expert_routing.h: copies each token's row to all rows that kSort assigned to it.
//   row_bytes: of a row
//   in, out: (tokens,) and (tokens * chosen,) rows
//   experts, chosen, routed: as for kRoute
//
// kCombine, expert_routing.h: adds up the weighted results of each token's experts, and the result of a shared expert.
//   n: numbers of a row
//   in: (tokens * chosen, n) fp32, as kSort assigned them
//   out: (tokens, n) fp32
//   mode, scale: kAdd, and the factor of the sum; or kStoreFp32
//   shared: (tokens, n) fp32: the shared expert's results, or null
//   gate_scores, columns: kRoute's `in`, whose column `experts` has the shared expert's gate; or null
//   experts, chosen, routed: as for kRoute
//
// kNormRows, rowwise.h: norms each part of a row by itself, with a gate.
//   n, part: numbers of a row, and of a part
//   in: (tokens, n) T
//   out, pitch: rows of (n,) T
//   norm, eps: NormKind, and what is added to the variance
//   weight, bias: (n,) fp32; bias may be null
//   gate, gate_stride: rows of (n,) T, whose silu multiplies; or null
//   gate_first: 1: it multiplies what is normed; 0: the norm's result
//
// kGate, rowwise.h: multiplies rows by the sigmoid of others, or by these as they are.
//   n: numbers of a row
//   in, stride: rows of (n,) fp32, the factors
//   out, pitch: rows of (n,) T, which change
//   plain: 1: there is no sigmoid
//
// kClearValues, rowwise.h: prepares the cache for the step's tokens, in programs without a kEmbed, which does it too.
//
// kConvolve, causal_conv.h: a causal convolution of each channel by itself; of whole prompts, or of one more token.
//   n, tokens: channels, and tokens of each sequence
//   taps: of a channel, the last for the newest token
//   weight, channel_bias: (n, taps) T; (n,) T, or null
//   activation: Activation
//   in: (sequences, n, tokens) T or, as by_token says, (sequences, tokens, n)
//   by_token: 1: a token's channels are contiguous
//   out: (sequences, tokens, n) T
//   states: (sequences, n, taps) T, the last inputs, oldest first, which change; null: nothing precedes the tokens
//
// kConvolveRows, causal_conv.h: the same for spans of tokens, with states in slots.
//   n, taps: channels, and taps of each
//   weight, bias: (taps, n) fp32; (n,) fp32, or null
//   activation: Activation
//   in, stride: rows of (n,) T
//   in_factors, out_factors: rows of (n,) T, `stride` apart, too, that multiply the input and the result; or null
//   out: (tokens, n) T
//   states: the first slot's state, (taps - 1, n) T, the last inputs, oldest first
//
// kDecay, delta_rule.h: what kDelta needs for each head: g, its decay's logarithm, and beta, the share of the missing value
// that it adds. g = decay * softplus(in + bias), beta = max_beta * sigmoid(input_rates).
//   heads: of values
//   in, input_rates, stride: rows of (heads,) T each
//   decay, bias: (heads,) fp32
//   max_beta: the greatest that beta may be
//   out: (tokens, 2, heads) fp32: g, then beta
//
// kDelta, delta_rule.h: the gated delta rule.
//   heads, key_heads: of values; of queries and keys, whose number divides that of values
//   dim, value_dim: of a key and of a value, multiples of 16
//   in, keys, stride: rows of (key_heads, dim) T: queries and keys
//   values, value_stride: rows of (heads, value_dim) T, value_stride apart
//   g, beta, rate_stride: rows of (heads,) each, rate_stride apart
//   scale: multiplies queries
//   unit, eps: 1: queries and keys are normalized to length one before; eps is added to the squared length
//   out: (tokens, heads, value_dim) T
//   states: the first slot's state, (heads, dim, value_dim) fp32
//
// kStepSizes, state_space.h: each head's step size, softplus(in + bias), within limits.
//   heads: of the state space
//   in, stride: rows of (heads,) T
//   bias: (heads,)
//   least_step, greatest_step: the limits
//   out: (tokens, heads) fp32
//
// kScan, state_space.h: Mamba 2's state space.
//   heads, dim: of the input x
//   head_groups: heads of a group share B and C
//   state_size: numbers of state for each dimension of a head, a multiple of 16
//   in, stride: rows of (heads, dim) T: x
//   B, C, shared_stride: rows of (head_groups, state_size) T, shared_stride apart
//   dt: (tokens, heads) step sizes
//   head_A, D: (heads,); D may be null
//   out: (tokens, heads, dim) fp32 or, as rounded says, T
//   rounded: 1: out is T
//   states: the first slot's state, (heads, dim, state_size) fp32
//
// kSelectiveScan, state_space.h: Mamba 1's state space. The step size is softplus(dt + dt_bias).
//   channels, state_size: how many channels, and how many numbers of state each has
//   in, out: (tokens, channels) T
//   B, C, shared_stride: rows of (state_size,) T, shared_stride apart
//   dt, dt_bias: (tokens, channels) fp32; (channels,) fp32, or null
//   A, D: (state_size, channels) fp32; (channels,) fp32, or null
//   states: the first slot's state, (state_size, channels) fp32
struct Op {
    int32_t kind;
    int32_t late;  // 1: works only on the rows whose logits are wanted, which a kGather has collected
    int32_t of_experts;
    union { int32_t n, normalized, row_bytes, value_stride, shared_stride; };
    union { int32_t k, position_offset, columns, part, tokens, rate_stride; };
    union { int32_t mode, packed, norms_across, sigmoid, gate_first, plain, by_token, unit, rounded; };
    int32_t norm;
    int32_t activation;
    int32_t gated;
    union { int32_t heads, side_by_side, room, groups; };
    union { int32_t kv_heads, groups_taken, key_heads, head_groups, max_alternatives; };
    union { int32_t dim, apart, judges, taps, channels; };
    union { int32_t value_dim, rank, state_size; };
    int32_t rotary;
    int32_t interleaved;
    int32_t window;
    int32_t format;
    int32_t experts;
    int32_t chosen;
    union { int32_t stride, gate_stride; };
    int32_t pitch;
    union { float eps, curve_above, alpha, least_step; };
    union { float scale, curve_slope, max_beta; };
    union { float softcap, curve_below, limit, value_eps, greatest_step; };
    const void* in;
    void* out;
    union {
        const void *weight, *query_rotary, *second;
        const float *decay, *A, *shared;
        const int32_t* order;
        float* changed;
    };
    union {
        const float *bias, *value_norm, *correction, *g, *dt;
        const void* positions;
    };
    union { const float *weight2, *query_norm, *latent_norm, *gate_scores, *beta, *head_A, *dt_bias; };
    union {
        const float *weight3, *key_norm, *D;
        uint32_t* lists;
    };
    union {
        const float* cosines;
        float* weight_squares;
    };
    union {
        const float* sines;
        float* error_squares;
    };
    union {
        const float* sinks;
        struct Choice* choices;
    };
    union {
        const float* slopes;
        float* log_masses;
    };
    union {
        void *keys, *cache;
        const void *gate, *channel_bias, *in_factors, *input_rates, *B, *codes;
        uint8_t* tables;
    };
    union {
        void* values;
        const void *out_factors, *C;
        float* logprobs;
        int32_t* counts;
    };
    union {
        void *routed, *states;
        int64_t* token_ids;
    };
    union { float *maxima, *scales; };
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
    return (T*)((char*)op.states + slot * step.slot_bytes);
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
