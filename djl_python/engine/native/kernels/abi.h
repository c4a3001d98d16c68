// What Python tells the kernels: operations, and what they are told in each step. Generated from native/abi, which says
// more; `python -m djl_python.engine.native.abi` writes it anew.

#pragma once

#include <cstddef>
#include <cstdint>

namespace djl {

constexpr int kPanel = 64;
constexpr int kGroup = 64;
constexpr int kKeysPerGroup = 16;
constexpr int kQueriesPerWalk = 24;
constexpr int kMaxExperts = 1024;
constexpr int kStepBytes = 192;
constexpr int kHighBytes = 16;
constexpr int kAdapterRows = 4;
constexpr int kNoToken = -1;
constexpr int kUndecided = -2;
constexpr int kKinds = 32;

// The kind of an operation.
enum Kind : int32_t {
    kEmbed, kNorm, kLinear, kRopeKvCache, kAttention, kGather, kQuantize, kSample, kPack, kRoute, kSort, kDispatch,
    kCombine, kDeltaRule, kClearValues, kCausalConv, kMamba2Scan, kGroupNorm, kCausalConvSpans, kDeltaRates, kGate,
    kStepSizes, kMamba1Scan, kLatents, kRescore, kRoundWeights, kEmbedText, kLowRank, kLowRankEmbed, kPackBlocks,
    kUnpackBlocks, kRoundBlocks
};

// How a weight's panels are stored.
//
// kPlain: the activations' format; kTwelveBit: bf16 in 12 bits (bf16_12bit.h); INT: integer codes with scales, of each
// column, or of each group of its rows; BLOCKS: codes of so many bits, or of 4 bits that a table has the numbers of,
// in blocks of 32 (block_codes.h).
enum WeightFormat : int32_t {
    kPlain, kTwelveBit, kInt8, kInt4ByGroup, kInt8ByGroup, kBlocks2, kBlocks3, kBlocks4, kBlocks5, kBlocks6, kBlocks8,
    kBlocksTable
};

// What the scales of a block's codes are.
//
// kHalves: fp16 numbers; kExponents: powers of two; kSteps: 8-bit integers times an fp16 number of eight blocks, kNibbles:
// of 4 bits. With LEAST, and with kNibbles, a block has a least number of the same kind, else a code that stands for 0.
enum BlockScaling : int32_t {
    kHalves, kHalvesAndLeast, kSteps, kStepsAndLeast, kNibbles, kExponents
};

// A type of tensors in GGUF files, by its name there, that is multiplied with its own codes.
enum BlockType : int32_t {
    kQ40, kQ41, kQ50, kQ51, kQ80, kQ2K, kQ3K, kQ4K, kQ5K, kQ6K, kIq4Nl, kIq4Xs, kMxfp4
};

// An activation function.
enum Activation : int32_t {
    kNone, kSilu, kGeluTanh, kGelu, kRelu, kReluSquared, kClampedSwiglu, kQuickGelu, kXielu
};

// A norm. kCopy: none, only the format changes.
enum NormKind : int32_t {
    kRms, kLayer, kCopy
};

// What is done with results.
//
// They are stored as T, multiplied by a scale and added to fp32, or stored in fp32; or only each panel's statistics
// are kept.
enum Mode : int32_t {
    kStore, kAdd, kStoreFp32, kStatistics
};

// How a row's token is found: it is given, the likeliest one, or drawn.
enum SamplingMode : int32_t {
    kGiven, kBest, kDraw
};

struct StepInputs;
struct RowSampling;
struct LowRankPart;

// What changes from step to step. Late operations have inputs of their own, whose tokens are the wanted ones.
//
// Attributes:
//     tokens: how many.
//     wanted: rows that a GatherOp takes, or whose scores are read; sequences of a CausalConvOp.
//     ids, positions: (tokens,)
//     rotary_rows: (tokens,) rows of the rotary tables.
//     lengths: (tokens,) tokens of each one's sequence, where attention looks ahead.
//     places, type_ids: (tokens,) rows of an EmbedTextOp's tables of positions and of types.
//     slots: (tokens,) places in the KV cache: block * block_size + offset.
//     rows: (wanted,)
//     tiles: attention: runs of tokens of one sequence.
//     tile_start, tile_size: (tiles,)
//     tile_table: (tiles,) where the sequence's blocks begin in `blocks`.
//     blocks: (block_count,)
//     block_size, block_count: tokens of a block; all blocks of the sequences.
//     block_bytes: of a block, which has all layers' keys and values.
//     spans: recurrent layers: runs of tokens of one sequence.
//     span_start, span_size: (spans,)
//     span_source: (spans,) slot of the state that a span begins with; -1: none.
//     span_slot: (spans,) slot for the state at its end.
//     span_saves: (spans + 1,) where a span's entries begin in the next two.
//     save_after: after how many of a span's tokens, ascending, ...
//     save_slot: ... its state is saved to this slot, too.
//     slot_bytes: of a slot, which has all layers' states.
//     adapter_slots: (tokens,) slot of each token's adapter; 0: it has none.
//     adapter_rows: the tokens with an adapter, those of the same one next to each other.
//     adapter_tiles: runs of at most `kAdapterRows` of these, all with the same adapter.
//     adapter_tile_start, adapter_tile_size: (adapter_tiles,) in `adapter_rows`.
struct StepInputs {
    int32_t tokens;
    int32_t wanted;
    const int64_t* ids;
    const int64_t* positions;
    const int64_t* rotary_rows;
    const int64_t* lengths;
    const int64_t* places;
    const int64_t* type_ids;
    const int64_t* slots;
    const int64_t* rows;
    int32_t tiles;
    const int32_t* tile_start;
    const int32_t* tile_size;
    const int64_t* tile_table;
    const int64_t* blocks;
    int32_t block_size;
    int32_t block_count;
    int64_t block_bytes;
    int32_t spans;
    const int32_t* span_start;
    const int32_t* span_size;
    const int32_t* span_source;
    const int32_t* span_slot;
    const int32_t* span_saves;
    const int32_t* save_after;
    const int32_t* save_slot;
    int64_t slot_bytes;
    const int32_t* adapter_slots;
    const int32_t* adapter_rows;
    int32_t adapter_tiles;
    const int32_t* adapter_tile_start;
    const int32_t* adapter_tile_size;
};

// How one row's token is sampled, and what has been found; the i-th is for row i of the logits.
//
// Attributes:
//     changed: row of the changed scores to sample from; -1: sample from the logits.
//     token: receives the token; tells it, if it is given.
//     occurred, counts: (occurrences,) tokens to penalize, and how often each was generated.
//     keys: of the row's noise.
//     alternatives: best tokens to report beside the sampled one; only with `wants_logprob`.
//     top_k: 0: no bound.
//     logprob: receives the token's, if that is wanted.
struct RowSampling {
    int64_t changed;
    int64_t token;
    const int64_t* occurred;
    const float* counts;
    uint32_t keys[2];
    SamplingMode mode;
    int32_t wants_logprob;
    int32_t alternatives;
    int32_t top_k;
    int32_t occurrences;
    float top_p;
    float min_p;
    float inverse_temperature;
    float repetition;
    float presence;
    float frequency;
    float logprob;
};

// What the adapter of a slot adds to one operation: b times (a times the input); see low_rank.h.
//
// Attributes:
//     vectors: of sixteen inner numbers each; 0: the adapter adds nothing.
//     steps: 32-bit lanes of inner numbers that a half panel of `b` has.
//     a: (vectors, k in 32-bit lanes, 16) lanes of T; for an EmbedOp: (vocabulary, 16 * vectors) fp32.
//     b: (half panels, steps, 32) lanes of T; null: as with no vectors.
//     first: (half panels,) the first inner number that each multiplies; -1: none.
struct LowRankPart {
    int32_t vectors;
    int32_t steps;
    const void* a;
    const void* b;
    const int32_t* first;
};

// A weight in panels, as `packing` makes it.
//
// Attributes:
//     panels: null: there is no weight.
//     scales: integer formats: fp32, of each column, padded to whole panels; by group: (panels, groups, 64) fp16;
//         BLOCKS: the fp16 numbers of every eight blocks (block_codes.h).
//     zeros: by group: (panels, groups, 64) uint8 zero points.
//     tables: kTwelveBit: the panels' tables of high bytes; kBlocksTable: (16,) int8 numbers of the codes.
//     outliers: kTwelveBit: where each part's list begins, then the lists; see bf16_12bit.h.
//     scaling, zero: BLOCKS: what its scales are, and the code that stands for 0 where there is no least number.
struct PackedWeight {
    WeightFormat format;
    const void* panels;
    const void* scales;
    const uint8_t* zeros;
    const uint8_t* tables;
    const uint32_t* outliers;
    BlockScaling scaling;
    int32_t zero;
};

// Begins the residual stream: out = scale * table[id] + positions[position + position_offset] (rowwise.h).
//
// Also prepares the cache, as a ClearValuesOp does.
//
// Attributes:
//     n: numbers of an embedding.
//     out: (tokens, n) fp32
//     table: (vocabulary, n) T; null: the table is the lm_head's packed weight, or there is none.
//     head: that weight, if it has panels.
//     scale: of the table's rows.
//     positions: the table of learned positions, rows of (n,) T.
//     position_offset: of the first position in that table.
struct EmbedOp {
    Kind kind;
    int32_t late;
    int32_t n;
    void* out;
    const void* table;
    PackedWeight head;
    float scale;
    const void* positions;
    int32_t position_offset;
};

// Norms rows, or changes their format only (rowwise.h).
//
// Attributes:
//     n: numbers of a row.
//     in: (R, n) fp32
//     out: (R, n): T with kStore, with rows `pitch` apart, else fp32.
//     scale: multiplies what is added.
//     norm, eps: eps is added to the variance.
//     weight, bias: (n,)
struct NormOp {
    Kind kind;
    int32_t late;
    int32_t n;
    const void* in;
    void* out;
    int32_t pitch;
    Mode mode;
    float scale;
    NormKind norm;
    float eps;
    const float* weight;
    const float* bias;
    int32_t rows_per_token;
};

// Where results go.
//
// Attributes:
//     out: rows of (n,), T with kStore, else fp32; with kStatistics nothing is stored.
//     scale: multiplies what is added, or stored in fp32.
//     softcap: such results are then capped to +-softcap; 0: they are not.
struct Output {
    void* out;
    int32_t pitch;
    Mode mode;
    float scale;
    float softcap;
};

// What is done to a product in T before it is stored.
//
// Attributes:
//     activation: of a gated pair, of its first half.
//     gated: a panel is half gate, half other columns; activation(gate) * other is stored.
//     xielu_above, xielu_below, xielu_slope: of kXielu: factors of x * x above zero, of exp(x) - 1 - x below, and of x.
//     alpha, limit: of kClampedSwiglu.
struct Epilogue {
    Activation activation;
    int32_t gated;
    float xielu_above;
    float xielu_below;
    float xielu_slope;
    float alpha;
    float limit;
};

// A mixture of experts.
//
// Attributes:
//     experts, chosen: how many there are, and how many a token chooses; 0: there are none.
//     routed: what a RouteOp and a SortOp write, see `Routed` of expert_routing.h.
struct Routing {
    int32_t experts;
    int32_t chosen;
    void* routed;
};

// What a product keeps of each panel of logits; see panel_statistics.h.
//
// Attributes:
//     maxima: (rows, panels): receives each panel's greatest result; null: none is kept.
//     log_masses: (rows, 2, panels): receives log2 of a panel's sum of exp(x), and of exp(x / temperature).
//     samplings: with kStatistics, (rows,): what results are compared by, and which masses are wanted; null: none.
struct PanelStatistics {
    float* maxima;
    float* log_masses;
    RowSampling* samplings;
};

// The inner numbers that a LowRankOp has made of a product's input, and what they are multiplied with.
//
// Attributes:
//     parts: by slot; null: the product has no adapters.
//     in, stride: rows of inner numbers.
struct LowRankRows {
    const LowRankPart* parts;
    const float* in;
    int32_t stride;
};

// out = in times a packed weight, plus a bias; then an activation, or a soft cap (linear.h).
//
// Attributes:
//     n, k: columns and rows of the weight: of a gated pair's half, of one expert, of one product.
//     in, stride: rows of (k,) T; with integer formats, what a QuantizeOp wrote.
//     bias: padded to whole panels.
//     epilogue: only with kStore.
//     side_by_side: how many products there are, whose panels follow each other, each of its own k numbers of a row;
//         0: one.
//     apart: numbers from where a product side by side puts its results to where the next one does.
//     routing: each expert's rows have their own weight; there are `chosen` rows for each token.
//     low_rank: what tokens' adapters add to the product, before anything else is done to it.
struct LinearOp {
    Kind kind;
    int32_t late;
    int32_t n;
    int32_t k;
    const void* in;
    int32_t stride;
    int32_t side_by_side;
    int32_t apart;
    PackedWeight weight;
    const float* bias;
    Output output;
    Epilogue epilogue;
    Routing routing;
    PanelStatistics statistics;
    LowRankRows low_rank;
};

// Rows of (heads, dim) queries, (kv_heads, dim) keys and (kv_heads, value_dim) values, fp32, and where these go.
//
// Attributes:
//     cache: the layer's part of the KV cache's first block; null: rows have queries only.
struct HeadRows {
    int32_t heads;
    int32_t kv_heads;
    int32_t dim;
    int32_t value_dim;
    int32_t stride;
    void* cache;
};

// A rotary embedding.
//
// Attributes:
//     dims: how many numbers of a head are rotated, even; 0: none.
//     interleaved: two neighbours are rotated together, else one number of each half.
//     cosines, sines: (positions, dims / 2)
struct Rotation {
    int32_t dims;
    int32_t interleaved;
    const float* cosines;
    const float* sines;
};

// Norms and rotates queries, in place, and keys; norms values; stores keys and values (rope_kv_cache.h).
//
// Attributes:
//     in: first of the rows.
//     query_norm, key_norm, eps: (dim,) weights of the norms of each head, or of all heads at once if `norms_across`.
//     value_norm, value_eps: (value_dim,) weight of the norm of each head's values.
struct RopeKvCacheOp {
    Kind kind;
    int32_t late;
    HeadRows rows;
    void* in;
    const float* query_norm;
    const float* key_norm;
    int32_t norms_across;
    float eps;
    const float* value_norm;
    float value_eps;
    Rotation rotation;
};

// Attention of each token to its sequence's keys up to its own, and some further ones (attention.h).
//
// Attributes:
//     rows, in: what begins with (heads, dim) queries.
//     out: rows of (heads, value_dim) T
//     scale, softcap: scores are multiplied by scale, then capped to +-softcap if that is not 0.
//     window: how many keys up to its own a token sees at most; 0: all.
//     ahead: how many keys after its own a token sees at most; the sequence has `lengths` of them.
//     sinks: (heads,) scores of a key that has no value.
//     slopes: (heads,) what a key's score gains with each position (ALiBi).
struct AttentionOp {
    Kind kind;
    int32_t late;
    HeadRows rows;
    const float* in;
    void* out;
    int32_t pitch;
    float scale;
    float softcap;
    int32_t window;
    int32_t ahead;
    const float* sinks;
    const float* slopes;
};

// Copies the rows whose logits are wanted (rowwise.h).
//
// Attributes:
//     n: numbers of 32 bits in a row.
//     in, out: (tokens, n) and (wanted, n)
struct GatherOp {
    Kind kind;
    int32_t late;
    int32_t n;
    const void* in;
    void* out;
};

// Rounds activations to integers, in groups with a scale each (integer_linear.h).
//
// Attributes:
//     k: numbers of a row.
//     in, stride: rows of (k,) T.
//     out: rows of codes, scales and sums, `ThreadPool.codes_bytes(k, for_blocks)` bytes each.
//     order: (k,) the order in which numbers of a row are taken; null: their own.
//     for_blocks: for weights in blocks (block_rows.h), whose order is always their own.
struct QuantizeOp {
    Kind kind;
    int32_t late;
    int32_t k;
    const void* in;
    int32_t stride;
    void* out;
    const int32_t* order;
    int32_t rows_per_token;
    int32_t for_blocks;
};

// The best tokens beside a row's own.
//
// Attributes:
//     count: at most so many for each row.
//     logprobs, token_ids: (rows, count): receive them, best first.
struct Alternatives {
    int32_t count;
    float* logprobs;
    int64_t* token_ids;
};

// Samples a token for each row of logits (sample.h).
//
// Attributes:
//     n: tokens of the vocabulary.
//     in: (wanted, n) logits; written to meanwhile, and restored.
//     maxima: (wanted, panels) each panel's greatest logit, if they are known.
//     changed: (.., n) scores to sample from instead, where a row says so; written to meanwhile, and restored.
//     samplings: (wanted,): how to sample; receive the tokens.
struct SampleOp {
    Kind kind;
    int32_t late;
    int32_t n;
    float* in;
    const float* maxima;
    float* changed;
    RowSampling* samplings;
    Alternatives alternatives;
};

// Packs a bf16 weight, or a gated pair, in 12 bits (bf16_12bit.h).
//
// Attributes:
//     n, k: rows and columns as checkpoints have them.
//     in, second: (n, k) bf16: the weight; and the other of a gated pair.
//     out: the packed panels.
//     tables: (panels, kHighBytes): receives each panel's table.
//     lists, room: (panels, room): receives each panel's list of weights that its table can't encode.
//     counts: (panels, parts): receives how many weights each part lists, -1 where the room was not enough.
struct PackOp {
    Kind kind;
    int32_t late;
    int32_t n;
    int32_t k;
    const void* in;
    const void* second;
    void* out;
    uint8_t* tables;
    uint32_t* lists;
    int32_t room;
    int32_t* counts;
};

// Chooses each token's experts, and their weights.
//
// Attributes:
//     in, columns: (tokens, columns) fp32: scores of the experts, and further columns.
//     sigmoid: what makes weights of scores, else softmax does.
//     correction: (experts,) added to weights for the choice alone.
//     groups, groups_taken: the experts are so many groups; the best so many of them are chosen from.
//     judges: a group is as good as the sum of its so many (1 or 2) best experts.
//     normalized: weights are made to add up to 1.
//     scale: then multiplies weights.
struct RouteOp {
    Kind kind;
    int32_t late;
    Routing routing;
    const float* in;
    int32_t columns;
    int32_t sigmoid;
    const float* correction;
    int32_t groups;
    int32_t groups_taken;
    int32_t judges;
    int32_t normalized;
    float scale;
};

// Assigns a row to each pair of token and expert, ordered by expert.
struct SortOp {
    Kind kind;
    int32_t late;
    Routing routing;
};

// Copies each token's row to all rows that a SortOp assigned to it.
//
// Attributes:
//     row_bytes: of a row.
//     in, out: (tokens,) and (tokens * chosen,) rows.
struct DispatchOp {
    Kind kind;
    int32_t late;
    Routing routing;
    const void* in;
    void* out;
    int32_t row_bytes;
};

// Adds up the weighted results of each token's experts, and the result of a shared expert.
//
// Attributes:
//     n: numbers of a row.
//     in: (tokens * chosen, n), as a SortOp assigned them.
//     out: (tokens, n), to which sums are added (kAdd), or where they are stored (kStoreFp32).
//     scale: multiplies what is added.
//     shared: (tokens, n): the shared expert's results.
//     gate_scores, columns: a RouteOp's `in`, whose column `experts` has the shared expert's gate.
struct CombineOp {
    Kind kind;
    int32_t late;
    Routing routing;
    int32_t n;
    const float* in;
    float* out;
    Mode mode;
    float scale;
    const float* shared;
    const float* gate_scores;
    int32_t columns;
};

// Applies the gated delta rule (delta_rule.h).
//
// Attributes:
//     heads, key_heads: of values; of queries and keys, whose number divides that of values.
//     dim, value_dim: of a key and of a value, multiples of 16.
//     in, keys, stride: rows of (key_heads, dim) T each: queries and keys.
//     values, value_stride: rows of (heads, value_dim) T, value_stride apart.
//     g, beta, rate_stride: rows of (heads,) each, rate_stride apart.
//     scale: multiplies queries.
//     unit, eps: queries and keys are normalized to length one before; eps is added to the squared length.
//     out: (tokens, heads, value_dim) T
//     states: (heads, dim, value_dim) fp32
struct DeltaRuleOp {
    Kind kind;
    int32_t late;
    int32_t heads;
    int32_t key_heads;
    int32_t dim;
    int32_t value_dim;
    const void* in;
    const void* keys;
    int32_t stride;
    const void* values;
    int32_t value_stride;
    const float* g;
    const float* beta;
    int32_t rate_stride;
    float scale;
    int32_t unit;
    float eps;
    void* out;
    void* states;
};

// Prepares the KV cache for the step's tokens, in programs without an EmbedOp, which does it too (rowwise.h).
struct ClearValuesOp {
    Kind kind;
    int32_t late;
};

// Convolves each channel of whole prompts, or of one more token of each sequence, by itself (causal_conv.h).
//
// Attributes:
//     n, tokens: channels, and tokens of each sequence.
//     taps: of a channel, the last for the newest token.
//     weight, bias: (n, taps) T; (n,) T
//     in: (sequences, n, tokens) T or, if `by_token`, (sequences, tokens, n).
//     out: (sequences, tokens, n) T
//     states: (sequences, n, taps) T, the last inputs, oldest first, which change; null: nothing precedes the tokens.
struct CausalConvOp {
    Kind kind;
    int32_t late;
    int32_t n;
    int32_t tokens;
    int32_t taps;
    const void* weight;
    const void* bias;
    Activation activation;
    const void* in;
    int32_t by_token;
    void* out;
    void* states;
};

// Runs Mamba 2's state space (state_space.h).
//
// Attributes:
//     heads, dim: of the input x.
//     head_groups: heads of a group share B and C.
//     state_size: numbers of state for each dimension of a head, a multiple of 16.
//     in, stride: rows of (heads, dim) T: x.
//     B, C, shared_stride: rows of (head_groups, state_size) T, shared_stride apart.
//     dt: (tokens, heads) step sizes.
//     A, D: (heads,)
//     out: (tokens, heads, dim), T if `rounded`.
//     states: (heads, dim, state_size) fp32
struct Mamba2ScanOp {
    Kind kind;
    int32_t late;
    int32_t heads;
    int32_t dim;
    int32_t head_groups;
    int32_t state_size;
    const void* in;
    int32_t stride;
    const void* B;
    const void* C;
    int32_t shared_stride;
    const float* dt;
    const float* A;
    const float* D;
    void* out;
    int32_t rounded;
    void* states;
};

// Norms each group of a row's numbers by itself, with a gate (rowwise.h).
//
// Attributes:
//     n, group: numbers of a row, and of a group.
//     in: (tokens, n) T
//     out: rows of (n,) T
//     norm, eps: eps is added to the variance.
//     weight, bias: (n,)
//     gate, gate_stride: rows of (n,) T, whose silu multiplies.
//     gate_first: it multiplies what is normed, else the norm's result.
struct GroupNormOp {
    Kind kind;
    int32_t late;
    int32_t n;
    int32_t group;
    const void* in;
    void* out;
    int32_t pitch;
    NormKind norm;
    float eps;
    const float* weight;
    const float* bias;
    const void* gate;
    int32_t gate_stride;
    int32_t gate_first;
};

// Convolves each channel of spans of tokens by itself, with states in slots (causal_conv.h).
//
// Attributes:
//     n, taps: channels, and taps of each, the last for the newest token.
//     weight, bias: (taps, n); (n,)
//     in, stride: rows of (n,) T.
//     in_factors, out_factors: rows of (n,) T, `stride` apart, too, that multiply the input and the result.
//     out: (tokens, n) T
//     states: (taps - 1, n) T, the last inputs, oldest first.
struct CausalConvSpansOp {
    Kind kind;
    int32_t late;
    int32_t n;
    int32_t taps;
    const float* weight;
    const float* bias;
    Activation activation;
    const void* in;
    int32_t stride;
    const void* in_factors;
    const void* out_factors;
    void* out;
    void* states;
};

// Makes what a DeltaRuleOp needs for each head: g, its decay's logarithm, and beta (delta_rule.h).
//
// beta is the share of the missing value that is added. g = decay * softplus(in + bias), beta = max_beta *
// sigmoid(input_rates).
//
// Attributes:
//     heads: of values.
//     in, input_rates, stride: rows of (heads,) T each.
//     decay, bias: (heads,)
//     max_beta: the greatest that beta may be.
//     out: (tokens, 2, heads): g, then beta.
struct DeltaRatesOp {
    Kind kind;
    int32_t late;
    int32_t heads;
    const void* in;
    const void* input_rates;
    int32_t stride;
    const float* decay;
    const float* bias;
    float max_beta;
    float* out;
};

// Multiplies rows by the sigmoid of others, or by these as they are (rowwise.h).
//
// Attributes:
//     n: numbers of a row.
//     in, stride: rows of (n,) fp32, the factors.
//     out: rows of (n,) T, which change.
//     plain: there is no sigmoid.
struct GateOp {
    Kind kind;
    int32_t late;
    int32_t n;
    const void* in;
    int32_t stride;
    void* out;
    int32_t pitch;
    int32_t plain;
};

// Makes each head's step size for a Mamba2ScanOp: softplus(in + bias), within limits (state_space.h).
//
// Attributes:
//     in, stride: rows of (heads,) T.
//     bias: (heads,)
//     out: (tokens, heads)
struct StepSizesOp {
    Kind kind;
    int32_t late;
    int32_t heads;
    const void* in;
    int32_t stride;
    const float* bias;
    float least_step;
    float greatest_step;
    float* out;
};

// Runs Mamba 1's state space (state_space.h).
//
// Attributes:
//     channels, state_size: how many channels, and how many numbers of state each has.
//     in, out: (tokens, channels) T each.
//     B, C, shared_stride: rows of (state_size,) T, shared_stride apart.
//     dt, dt_bias: (tokens, channels); (channels,): a step size is softplus(dt + dt_bias).
//     A, D: (state_size, channels); (channels,)
//     states: (state_size, channels) fp32
struct Mamba1ScanOp {
    Kind kind;
    int32_t late;
    int32_t channels;
    int32_t state_size;
    const void* in;
    const void* B;
    const void* C;
    int32_t shared_stride;
    const float* dt;
    const float* dt_bias;
    const float* A;
    const float* D;
    void* out;
    void* states;
};

// Makes rows for a RopeKvCacheOp, with one key and one value, from latents, arXiv:2405.04434 (rope_kv_cache.h).
//
// Attributes:
//     in: (tokens, rank + rotary) T: a latent, and the key's rotated numbers.
//     out: rows of (heads, dim) queries, which have what is multiplied with latents; a key; a value.
//     rank, rotary: numbers of a latent, and those of a key or a query that are rotated.
//     norm, eps: (rank,) weight of the latent's norm.
//     query_rotary, stride: rows of (heads, rotary) T: what is rotated of the queries.
struct LatentsOp {
    Kind kind;
    int32_t late;
    const void* in;
    float* out;
    int32_t rank;
    int32_t rotary;
    const float* norm;
    float eps;
    const void* query_rotary;
    int32_t stride;
    int32_t heads;
    int32_t dim;
};

// Samples a token for each row as a SampleOp does, but computes few of its logits (rescore.h).
//
// Attributes:
//     head: the lm_head's product, whose weight is kTwelveBit; `output.out` has (wanted, n) room for logits.
//     codes: the rows as a QuantizeOp wrote them.
//     weight_squares, error_squares: (groups, panels), from a RoundWeightsOp.
//     statistics: of the product of rounded weights and rows, a LinearOp with kStatistics; `samplings`, (wanted,), none
//         of changed scores, receive the tokens, or kUndecided.
struct RescoreOp {
    Kind kind;
    int32_t late;
    LinearOp head;
    const void* codes;
    const float* weight_squares;
    const float* error_squares;
    PanelStatistics statistics;
    Alternatives alternatives;
};

// Rounds a bf16 weight to 8 bits, as a LinearOp with kInt8 reads them (round_weights.h).
//
// Attributes:
//     n, k: rows and columns as checkpoints have them.
//     in: (n, k) bf16
//     out: the packed panels.
//     scales: (n,) padded to whole panels: receives each row's scale.
//     weight_squares, error_squares: (groups, panels): receive the greatest squared norm of a panel's rows in each
//         group of columns, and of what rounding changed them by.
struct RoundWeightsOp {
    Kind kind;
    int32_t late;
    int32_t n;
    int32_t k;
    const void* in;
    void* out;
    float* scales;
    float* weight_squares;
    float* error_squares;
};

// Begins an encoder's stream: scale * table[id] + position_table[place] + type_table[type].
//
// Also clears the values that a sequence's last group of keys has behind its end (embed_text.h).
//
// Attributes:
//     n: numbers of an embedding.
//     out: (tokens, n) fp32
//     table: (vocabulary, n) T
//     scale: of the table's rows.
//     position_table: learned positions, rows of (n,) T; null: there are none.
//     type_table: rows of (n,) T; null: tokens have no types.
struct EmbedTextOp {
    Kind kind;
    int32_t late;
    int32_t n;
    void* out;
    const void* table;
    float scale;
    const void* position_table;
    const void* type_table;
};

// Makes the inner numbers of tokens with adapters, a times the input (low_rank.h).
//
// Attributes:
//     k: numbers of a row.
//     in, stride: rows of (k,) T.
//     out, pitch: rows of inner numbers.
//     vectors: the most that a part has.
//     parts: by slot.
struct LowRankOp {
    Kind kind;
    int32_t late;
    int32_t k;
    const void* in;
    int32_t stride;
    float* out;
    int32_t pitch;
    int32_t vectors;
    const LowRankPart* parts;
};

// Adds to embeddings what tokens' adapters add: scale * b times (a's column of the token) (low_rank.h).
//
// Attributes:
//     n: numbers of an embedding.
//     out: (tokens, n) fp32
//     parts: by slot.
struct LowRankEmbedOp {
    Kind kind;
    int32_t late;
    int32_t n;
    void* out;
    float scale;
    const LowRankPart* parts;
};

// Packs rows of a GGUF file's blocks, or of a gated pair's, as a LinearOp with BLOCKS reads them (pack_blocks.h).
//
// Attributes:
//     n, k: rows and columns as checkpoints have them.
//     in, second: (n,) addresses of rows, and of the other weight's of a gated pair; 0: a row of zeros.
//     type: of the blocks.
//     out: the packed panels.
//     scales: receives the fp16 numbers of every eight blocks, if the scaling has such.
//     format, scaling: of the packed weight.
struct PackBlocksOp {
    Kind kind;
    int32_t late;
    int32_t n;
    int32_t k;
    const int64_t* in;
    const int64_t* second;
    BlockType type;
    void* out;
    void* scales;
    WeightFormat format;
    BlockScaling scaling;
};

// Makes the numbers of rows of a GGUF file's blocks (unpack_blocks.h).
//
// Attributes:
//     n, k: rows and columns.
//     in: (n,) addresses of rows; 0: a row of zeros.
//     type: of the blocks.
//     form: `format`, `scaling`, `zero` and `tables` that a packed weight of this type has.
//     out: (n, k) T
struct UnpackBlocksOp {
    Kind kind;
    int32_t late;
    int32_t n;
    int32_t k;
    const int64_t* in;
    BlockType type;
    PackedWeight form;
    void* out;
};

// Rounds a weight, or a gated pair, to blocks with kStepsAndLeast, as a LinearOp reads them (round_blocks.h).
//
// Attributes:
//     n, k: rows and columns as checkpoints have them.
//     in, second: (n, k): the weight; and the other of a gated pair.
//     out: the packed panels.
//     scales: receives the fp16 numbers of every eight blocks.
//     format: kBlocks4, kBlocks5 or kBlocks6.
struct RoundBlocksOp {
    Kind kind;
    int32_t late;
    int32_t n;
    int32_t k;
    const void* in;
    const void* second;
    void* out;
    void* scales;
    WeightFormat format;
};

// What every operation begins with. A late one works only on the rows whose logits are wanted, which a GatherOp has
// collected.
struct OpHead {
    Kind kind;
    int32_t late;
};

// Any operation: its kind says which member it is.
union Op {
    OpHead head;
    EmbedOp embed;
    NormOp norm;
    LinearOp linear;
    RopeKvCacheOp rope_kv_cache;
    AttentionOp attention;
    GatherOp gather;
    QuantizeOp quantize;
    SampleOp sample;
    PackOp pack;
    RouteOp route;
    SortOp sort;
    DispatchOp dispatch;
    CombineOp combine;
    DeltaRuleOp delta_rule;
    ClearValuesOp clear_values;
    CausalConvOp causal_conv;
    Mamba2ScanOp mamba2_scan;
    GroupNormOp group_norm;
    CausalConvSpansOp causal_conv_spans;
    DeltaRatesOp delta_rates;
    GateOp gate;
    StepSizesOp step_sizes;
    Mamba1ScanOp mamba1_scan;
    LatentsOp latents;
    RescoreOp rescore;
    RoundWeightsOp round_weights;
    EmbedTextOp embed_text;
    LowRankOp low_rank;
    LowRankEmbedOp low_rank_embed;
    PackBlocksOp pack_blocks;
    UnpackBlocksOp unpack_blocks;
    RoundBlocksOp round_blocks;
};

// Where everything lies, for Python to compare: offset and size of fields, size of structures, numbers.
struct AbiPlace {
    const char* name;
    uint64_t offset, size;
};

inline constexpr AbiPlace kAbiPlaces[] = {
    {"StepInputs", 0, sizeof(StepInputs)},
    {"StepInputs.tokens", offsetof(StepInputs, tokens), sizeof(StepInputs::tokens)},
    {"StepInputs.wanted", offsetof(StepInputs, wanted), sizeof(StepInputs::wanted)},
    {"StepInputs.ids", offsetof(StepInputs, ids), sizeof(StepInputs::ids)},
    {"StepInputs.positions", offsetof(StepInputs, positions), sizeof(StepInputs::positions)},
    {"StepInputs.rotary_rows", offsetof(StepInputs, rotary_rows), sizeof(StepInputs::rotary_rows)},
    {"StepInputs.lengths", offsetof(StepInputs, lengths), sizeof(StepInputs::lengths)},
    {"StepInputs.places", offsetof(StepInputs, places), sizeof(StepInputs::places)},
    {"StepInputs.type_ids", offsetof(StepInputs, type_ids), sizeof(StepInputs::type_ids)},
    {"StepInputs.slots", offsetof(StepInputs, slots), sizeof(StepInputs::slots)},
    {"StepInputs.rows", offsetof(StepInputs, rows), sizeof(StepInputs::rows)},
    {"StepInputs.tiles", offsetof(StepInputs, tiles), sizeof(StepInputs::tiles)},
    {"StepInputs.tile_start", offsetof(StepInputs, tile_start), sizeof(StepInputs::tile_start)},
    {"StepInputs.tile_size", offsetof(StepInputs, tile_size), sizeof(StepInputs::tile_size)},
    {"StepInputs.tile_table", offsetof(StepInputs, tile_table), sizeof(StepInputs::tile_table)},
    {"StepInputs.blocks", offsetof(StepInputs, blocks), sizeof(StepInputs::blocks)},
    {"StepInputs.block_size", offsetof(StepInputs, block_size), sizeof(StepInputs::block_size)},
    {"StepInputs.block_count", offsetof(StepInputs, block_count), sizeof(StepInputs::block_count)},
    {"StepInputs.block_bytes", offsetof(StepInputs, block_bytes), sizeof(StepInputs::block_bytes)},
    {"StepInputs.spans", offsetof(StepInputs, spans), sizeof(StepInputs::spans)},
    {"StepInputs.span_start", offsetof(StepInputs, span_start), sizeof(StepInputs::span_start)},
    {"StepInputs.span_size", offsetof(StepInputs, span_size), sizeof(StepInputs::span_size)},
    {"StepInputs.span_source", offsetof(StepInputs, span_source), sizeof(StepInputs::span_source)},
    {"StepInputs.span_slot", offsetof(StepInputs, span_slot), sizeof(StepInputs::span_slot)},
    {"StepInputs.span_saves", offsetof(StepInputs, span_saves), sizeof(StepInputs::span_saves)},
    {"StepInputs.save_after", offsetof(StepInputs, save_after), sizeof(StepInputs::save_after)},
    {"StepInputs.save_slot", offsetof(StepInputs, save_slot), sizeof(StepInputs::save_slot)},
    {"StepInputs.slot_bytes", offsetof(StepInputs, slot_bytes), sizeof(StepInputs::slot_bytes)},
    {"StepInputs.adapter_slots", offsetof(StepInputs, adapter_slots), sizeof(StepInputs::adapter_slots)},
    {"StepInputs.adapter_rows", offsetof(StepInputs, adapter_rows), sizeof(StepInputs::adapter_rows)},
    {"StepInputs.adapter_tiles", offsetof(StepInputs, adapter_tiles), sizeof(StepInputs::adapter_tiles)},
    {"StepInputs.adapter_tile_start", offsetof(StepInputs, adapter_tile_start), sizeof(StepInputs::adapter_tile_start)},
    {"StepInputs.adapter_tile_size", offsetof(StepInputs, adapter_tile_size), sizeof(StepInputs::adapter_tile_size)},
    {"RowSampling", 0, sizeof(RowSampling)},
    {"RowSampling.changed", offsetof(RowSampling, changed), sizeof(RowSampling::changed)},
    {"RowSampling.token", offsetof(RowSampling, token), sizeof(RowSampling::token)},
    {"RowSampling.occurred", offsetof(RowSampling, occurred), sizeof(RowSampling::occurred)},
    {"RowSampling.counts", offsetof(RowSampling, counts), sizeof(RowSampling::counts)},
    {"RowSampling.keys", offsetof(RowSampling, keys), sizeof(RowSampling::keys)},
    {"RowSampling.mode", offsetof(RowSampling, mode), sizeof(RowSampling::mode)},
    {"RowSampling.wants_logprob", offsetof(RowSampling, wants_logprob), sizeof(RowSampling::wants_logprob)},
    {"RowSampling.alternatives", offsetof(RowSampling, alternatives), sizeof(RowSampling::alternatives)},
    {"RowSampling.top_k", offsetof(RowSampling, top_k), sizeof(RowSampling::top_k)},
    {"RowSampling.occurrences", offsetof(RowSampling, occurrences), sizeof(RowSampling::occurrences)},
    {"RowSampling.top_p", offsetof(RowSampling, top_p), sizeof(RowSampling::top_p)},
    {"RowSampling.min_p", offsetof(RowSampling, min_p), sizeof(RowSampling::min_p)},
    {"RowSampling.inverse_temperature", offsetof(RowSampling, inverse_temperature), sizeof(RowSampling::inverse_temperature)},
    {"RowSampling.repetition", offsetof(RowSampling, repetition), sizeof(RowSampling::repetition)},
    {"RowSampling.presence", offsetof(RowSampling, presence), sizeof(RowSampling::presence)},
    {"RowSampling.frequency", offsetof(RowSampling, frequency), sizeof(RowSampling::frequency)},
    {"RowSampling.logprob", offsetof(RowSampling, logprob), sizeof(RowSampling::logprob)},
    {"LowRankPart", 0, sizeof(LowRankPart)},
    {"LowRankPart.vectors", offsetof(LowRankPart, vectors), sizeof(LowRankPart::vectors)},
    {"LowRankPart.steps", offsetof(LowRankPart, steps), sizeof(LowRankPart::steps)},
    {"LowRankPart.a", offsetof(LowRankPart, a), sizeof(LowRankPart::a)},
    {"LowRankPart.b", offsetof(LowRankPart, b), sizeof(LowRankPart::b)},
    {"LowRankPart.first", offsetof(LowRankPart, first), sizeof(LowRankPart::first)},
    {"PackedWeight", 0, sizeof(PackedWeight)},
    {"PackedWeight.format", offsetof(PackedWeight, format), sizeof(PackedWeight::format)},
    {"PackedWeight.panels", offsetof(PackedWeight, panels), sizeof(PackedWeight::panels)},
    {"PackedWeight.scales", offsetof(PackedWeight, scales), sizeof(PackedWeight::scales)},
    {"PackedWeight.zeros", offsetof(PackedWeight, zeros), sizeof(PackedWeight::zeros)},
    {"PackedWeight.tables", offsetof(PackedWeight, tables), sizeof(PackedWeight::tables)},
    {"PackedWeight.outliers", offsetof(PackedWeight, outliers), sizeof(PackedWeight::outliers)},
    {"PackedWeight.scaling", offsetof(PackedWeight, scaling), sizeof(PackedWeight::scaling)},
    {"PackedWeight.zero", offsetof(PackedWeight, zero), sizeof(PackedWeight::zero)},
    {"EmbedOp", 0, sizeof(EmbedOp)},
    {"EmbedOp.kind", offsetof(EmbedOp, kind), sizeof(EmbedOp::kind)},
    {"EmbedOp.late", offsetof(EmbedOp, late), sizeof(EmbedOp::late)},
    {"EmbedOp.n", offsetof(EmbedOp, n), sizeof(EmbedOp::n)},
    {"EmbedOp.out", offsetof(EmbedOp, out), sizeof(EmbedOp::out)},
    {"EmbedOp.table", offsetof(EmbedOp, table), sizeof(EmbedOp::table)},
    {"EmbedOp.head", offsetof(EmbedOp, head), sizeof(EmbedOp::head)},
    {"EmbedOp.scale", offsetof(EmbedOp, scale), sizeof(EmbedOp::scale)},
    {"EmbedOp.positions", offsetof(EmbedOp, positions), sizeof(EmbedOp::positions)},
    {"EmbedOp.position_offset", offsetof(EmbedOp, position_offset), sizeof(EmbedOp::position_offset)},
    {"NormOp", 0, sizeof(NormOp)},
    {"NormOp.kind", offsetof(NormOp, kind), sizeof(NormOp::kind)},
    {"NormOp.late", offsetof(NormOp, late), sizeof(NormOp::late)},
    {"NormOp.n", offsetof(NormOp, n), sizeof(NormOp::n)},
    {"NormOp.in", offsetof(NormOp, in), sizeof(NormOp::in)},
    {"NormOp.out", offsetof(NormOp, out), sizeof(NormOp::out)},
    {"NormOp.pitch", offsetof(NormOp, pitch), sizeof(NormOp::pitch)},
    {"NormOp.mode", offsetof(NormOp, mode), sizeof(NormOp::mode)},
    {"NormOp.scale", offsetof(NormOp, scale), sizeof(NormOp::scale)},
    {"NormOp.norm", offsetof(NormOp, norm), sizeof(NormOp::norm)},
    {"NormOp.eps", offsetof(NormOp, eps), sizeof(NormOp::eps)},
    {"NormOp.weight", offsetof(NormOp, weight), sizeof(NormOp::weight)},
    {"NormOp.bias", offsetof(NormOp, bias), sizeof(NormOp::bias)},
    {"NormOp.rows_per_token", offsetof(NormOp, rows_per_token), sizeof(NormOp::rows_per_token)},
    {"Output", 0, sizeof(Output)},
    {"Output.out", offsetof(Output, out), sizeof(Output::out)},
    {"Output.pitch", offsetof(Output, pitch), sizeof(Output::pitch)},
    {"Output.mode", offsetof(Output, mode), sizeof(Output::mode)},
    {"Output.scale", offsetof(Output, scale), sizeof(Output::scale)},
    {"Output.softcap", offsetof(Output, softcap), sizeof(Output::softcap)},
    {"Epilogue", 0, sizeof(Epilogue)},
    {"Epilogue.activation", offsetof(Epilogue, activation), sizeof(Epilogue::activation)},
    {"Epilogue.gated", offsetof(Epilogue, gated), sizeof(Epilogue::gated)},
    {"Epilogue.xielu_above", offsetof(Epilogue, xielu_above), sizeof(Epilogue::xielu_above)},
    {"Epilogue.xielu_below", offsetof(Epilogue, xielu_below), sizeof(Epilogue::xielu_below)},
    {"Epilogue.xielu_slope", offsetof(Epilogue, xielu_slope), sizeof(Epilogue::xielu_slope)},
    {"Epilogue.alpha", offsetof(Epilogue, alpha), sizeof(Epilogue::alpha)},
    {"Epilogue.limit", offsetof(Epilogue, limit), sizeof(Epilogue::limit)},
    {"Routing", 0, sizeof(Routing)},
    {"Routing.experts", offsetof(Routing, experts), sizeof(Routing::experts)},
    {"Routing.chosen", offsetof(Routing, chosen), sizeof(Routing::chosen)},
    {"Routing.routed", offsetof(Routing, routed), sizeof(Routing::routed)},
    {"PanelStatistics", 0, sizeof(PanelStatistics)},
    {"PanelStatistics.maxima", offsetof(PanelStatistics, maxima), sizeof(PanelStatistics::maxima)},
    {"PanelStatistics.log_masses", offsetof(PanelStatistics, log_masses), sizeof(PanelStatistics::log_masses)},
    {"PanelStatistics.samplings", offsetof(PanelStatistics, samplings), sizeof(PanelStatistics::samplings)},
    {"LowRankRows", 0, sizeof(LowRankRows)},
    {"LowRankRows.parts", offsetof(LowRankRows, parts), sizeof(LowRankRows::parts)},
    {"LowRankRows.in", offsetof(LowRankRows, in), sizeof(LowRankRows::in)},
    {"LowRankRows.stride", offsetof(LowRankRows, stride), sizeof(LowRankRows::stride)},
    {"LinearOp", 0, sizeof(LinearOp)},
    {"LinearOp.kind", offsetof(LinearOp, kind), sizeof(LinearOp::kind)},
    {"LinearOp.late", offsetof(LinearOp, late), sizeof(LinearOp::late)},
    {"LinearOp.n", offsetof(LinearOp, n), sizeof(LinearOp::n)},
    {"LinearOp.k", offsetof(LinearOp, k), sizeof(LinearOp::k)},
    {"LinearOp.in", offsetof(LinearOp, in), sizeof(LinearOp::in)},
    {"LinearOp.stride", offsetof(LinearOp, stride), sizeof(LinearOp::stride)},
    {"LinearOp.side_by_side", offsetof(LinearOp, side_by_side), sizeof(LinearOp::side_by_side)},
    {"LinearOp.apart", offsetof(LinearOp, apart), sizeof(LinearOp::apart)},
    {"LinearOp.weight", offsetof(LinearOp, weight), sizeof(LinearOp::weight)},
    {"LinearOp.bias", offsetof(LinearOp, bias), sizeof(LinearOp::bias)},
    {"LinearOp.output", offsetof(LinearOp, output), sizeof(LinearOp::output)},
    {"LinearOp.epilogue", offsetof(LinearOp, epilogue), sizeof(LinearOp::epilogue)},
    {"LinearOp.routing", offsetof(LinearOp, routing), sizeof(LinearOp::routing)},
    {"LinearOp.statistics", offsetof(LinearOp, statistics), sizeof(LinearOp::statistics)},
    {"LinearOp.low_rank", offsetof(LinearOp, low_rank), sizeof(LinearOp::low_rank)},
    {"HeadRows", 0, sizeof(HeadRows)},
    {"HeadRows.heads", offsetof(HeadRows, heads), sizeof(HeadRows::heads)},
    {"HeadRows.kv_heads", offsetof(HeadRows, kv_heads), sizeof(HeadRows::kv_heads)},
    {"HeadRows.dim", offsetof(HeadRows, dim), sizeof(HeadRows::dim)},
    {"HeadRows.value_dim", offsetof(HeadRows, value_dim), sizeof(HeadRows::value_dim)},
    {"HeadRows.stride", offsetof(HeadRows, stride), sizeof(HeadRows::stride)},
    {"HeadRows.cache", offsetof(HeadRows, cache), sizeof(HeadRows::cache)},
    {"Rotation", 0, sizeof(Rotation)},
    {"Rotation.dims", offsetof(Rotation, dims), sizeof(Rotation::dims)},
    {"Rotation.interleaved", offsetof(Rotation, interleaved), sizeof(Rotation::interleaved)},
    {"Rotation.cosines", offsetof(Rotation, cosines), sizeof(Rotation::cosines)},
    {"Rotation.sines", offsetof(Rotation, sines), sizeof(Rotation::sines)},
    {"RopeKvCacheOp", 0, sizeof(RopeKvCacheOp)},
    {"RopeKvCacheOp.kind", offsetof(RopeKvCacheOp, kind), sizeof(RopeKvCacheOp::kind)},
    {"RopeKvCacheOp.late", offsetof(RopeKvCacheOp, late), sizeof(RopeKvCacheOp::late)},
    {"RopeKvCacheOp.rows", offsetof(RopeKvCacheOp, rows), sizeof(RopeKvCacheOp::rows)},
    {"RopeKvCacheOp.in", offsetof(RopeKvCacheOp, in), sizeof(RopeKvCacheOp::in)},
    {"RopeKvCacheOp.query_norm", offsetof(RopeKvCacheOp, query_norm), sizeof(RopeKvCacheOp::query_norm)},
    {"RopeKvCacheOp.key_norm", offsetof(RopeKvCacheOp, key_norm), sizeof(RopeKvCacheOp::key_norm)},
    {"RopeKvCacheOp.norms_across", offsetof(RopeKvCacheOp, norms_across), sizeof(RopeKvCacheOp::norms_across)},
    {"RopeKvCacheOp.eps", offsetof(RopeKvCacheOp, eps), sizeof(RopeKvCacheOp::eps)},
    {"RopeKvCacheOp.value_norm", offsetof(RopeKvCacheOp, value_norm), sizeof(RopeKvCacheOp::value_norm)},
    {"RopeKvCacheOp.value_eps", offsetof(RopeKvCacheOp, value_eps), sizeof(RopeKvCacheOp::value_eps)},
    {"RopeKvCacheOp.rotation", offsetof(RopeKvCacheOp, rotation), sizeof(RopeKvCacheOp::rotation)},
    {"AttentionOp", 0, sizeof(AttentionOp)},
    {"AttentionOp.kind", offsetof(AttentionOp, kind), sizeof(AttentionOp::kind)},
    {"AttentionOp.late", offsetof(AttentionOp, late), sizeof(AttentionOp::late)},
    {"AttentionOp.rows", offsetof(AttentionOp, rows), sizeof(AttentionOp::rows)},
    {"AttentionOp.in", offsetof(AttentionOp, in), sizeof(AttentionOp::in)},
    {"AttentionOp.out", offsetof(AttentionOp, out), sizeof(AttentionOp::out)},
    {"AttentionOp.pitch", offsetof(AttentionOp, pitch), sizeof(AttentionOp::pitch)},
    {"AttentionOp.scale", offsetof(AttentionOp, scale), sizeof(AttentionOp::scale)},
    {"AttentionOp.softcap", offsetof(AttentionOp, softcap), sizeof(AttentionOp::softcap)},
    {"AttentionOp.window", offsetof(AttentionOp, window), sizeof(AttentionOp::window)},
    {"AttentionOp.ahead", offsetof(AttentionOp, ahead), sizeof(AttentionOp::ahead)},
    {"AttentionOp.sinks", offsetof(AttentionOp, sinks), sizeof(AttentionOp::sinks)},
    {"AttentionOp.slopes", offsetof(AttentionOp, slopes), sizeof(AttentionOp::slopes)},
    {"GatherOp", 0, sizeof(GatherOp)},
    {"GatherOp.kind", offsetof(GatherOp, kind), sizeof(GatherOp::kind)},
    {"GatherOp.late", offsetof(GatherOp, late), sizeof(GatherOp::late)},
    {"GatherOp.n", offsetof(GatherOp, n), sizeof(GatherOp::n)},
    {"GatherOp.in", offsetof(GatherOp, in), sizeof(GatherOp::in)},
    {"GatherOp.out", offsetof(GatherOp, out), sizeof(GatherOp::out)},
    {"QuantizeOp", 0, sizeof(QuantizeOp)},
    {"QuantizeOp.kind", offsetof(QuantizeOp, kind), sizeof(QuantizeOp::kind)},
    {"QuantizeOp.late", offsetof(QuantizeOp, late), sizeof(QuantizeOp::late)},
    {"QuantizeOp.k", offsetof(QuantizeOp, k), sizeof(QuantizeOp::k)},
    {"QuantizeOp.in", offsetof(QuantizeOp, in), sizeof(QuantizeOp::in)},
    {"QuantizeOp.stride", offsetof(QuantizeOp, stride), sizeof(QuantizeOp::stride)},
    {"QuantizeOp.out", offsetof(QuantizeOp, out), sizeof(QuantizeOp::out)},
    {"QuantizeOp.order", offsetof(QuantizeOp, order), sizeof(QuantizeOp::order)},
    {"QuantizeOp.rows_per_token", offsetof(QuantizeOp, rows_per_token), sizeof(QuantizeOp::rows_per_token)},
    {"QuantizeOp.for_blocks", offsetof(QuantizeOp, for_blocks), sizeof(QuantizeOp::for_blocks)},
    {"Alternatives", 0, sizeof(Alternatives)},
    {"Alternatives.count", offsetof(Alternatives, count), sizeof(Alternatives::count)},
    {"Alternatives.logprobs", offsetof(Alternatives, logprobs), sizeof(Alternatives::logprobs)},
    {"Alternatives.token_ids", offsetof(Alternatives, token_ids), sizeof(Alternatives::token_ids)},
    {"SampleOp", 0, sizeof(SampleOp)},
    {"SampleOp.kind", offsetof(SampleOp, kind), sizeof(SampleOp::kind)},
    {"SampleOp.late", offsetof(SampleOp, late), sizeof(SampleOp::late)},
    {"SampleOp.n", offsetof(SampleOp, n), sizeof(SampleOp::n)},
    {"SampleOp.in", offsetof(SampleOp, in), sizeof(SampleOp::in)},
    {"SampleOp.maxima", offsetof(SampleOp, maxima), sizeof(SampleOp::maxima)},
    {"SampleOp.changed", offsetof(SampleOp, changed), sizeof(SampleOp::changed)},
    {"SampleOp.samplings", offsetof(SampleOp, samplings), sizeof(SampleOp::samplings)},
    {"SampleOp.alternatives", offsetof(SampleOp, alternatives), sizeof(SampleOp::alternatives)},
    {"PackOp", 0, sizeof(PackOp)},
    {"PackOp.kind", offsetof(PackOp, kind), sizeof(PackOp::kind)},
    {"PackOp.late", offsetof(PackOp, late), sizeof(PackOp::late)},
    {"PackOp.n", offsetof(PackOp, n), sizeof(PackOp::n)},
    {"PackOp.k", offsetof(PackOp, k), sizeof(PackOp::k)},
    {"PackOp.in", offsetof(PackOp, in), sizeof(PackOp::in)},
    {"PackOp.second", offsetof(PackOp, second), sizeof(PackOp::second)},
    {"PackOp.out", offsetof(PackOp, out), sizeof(PackOp::out)},
    {"PackOp.tables", offsetof(PackOp, tables), sizeof(PackOp::tables)},
    {"PackOp.lists", offsetof(PackOp, lists), sizeof(PackOp::lists)},
    {"PackOp.room", offsetof(PackOp, room), sizeof(PackOp::room)},
    {"PackOp.counts", offsetof(PackOp, counts), sizeof(PackOp::counts)},
    {"RouteOp", 0, sizeof(RouteOp)},
    {"RouteOp.kind", offsetof(RouteOp, kind), sizeof(RouteOp::kind)},
    {"RouteOp.late", offsetof(RouteOp, late), sizeof(RouteOp::late)},
    {"RouteOp.routing", offsetof(RouteOp, routing), sizeof(RouteOp::routing)},
    {"RouteOp.in", offsetof(RouteOp, in), sizeof(RouteOp::in)},
    {"RouteOp.columns", offsetof(RouteOp, columns), sizeof(RouteOp::columns)},
    {"RouteOp.sigmoid", offsetof(RouteOp, sigmoid), sizeof(RouteOp::sigmoid)},
    {"RouteOp.correction", offsetof(RouteOp, correction), sizeof(RouteOp::correction)},
    {"RouteOp.groups", offsetof(RouteOp, groups), sizeof(RouteOp::groups)},
    {"RouteOp.groups_taken", offsetof(RouteOp, groups_taken), sizeof(RouteOp::groups_taken)},
    {"RouteOp.judges", offsetof(RouteOp, judges), sizeof(RouteOp::judges)},
    {"RouteOp.normalized", offsetof(RouteOp, normalized), sizeof(RouteOp::normalized)},
    {"RouteOp.scale", offsetof(RouteOp, scale), sizeof(RouteOp::scale)},
    {"SortOp", 0, sizeof(SortOp)},
    {"SortOp.kind", offsetof(SortOp, kind), sizeof(SortOp::kind)},
    {"SortOp.late", offsetof(SortOp, late), sizeof(SortOp::late)},
    {"SortOp.routing", offsetof(SortOp, routing), sizeof(SortOp::routing)},
    {"DispatchOp", 0, sizeof(DispatchOp)},
    {"DispatchOp.kind", offsetof(DispatchOp, kind), sizeof(DispatchOp::kind)},
    {"DispatchOp.late", offsetof(DispatchOp, late), sizeof(DispatchOp::late)},
    {"DispatchOp.routing", offsetof(DispatchOp, routing), sizeof(DispatchOp::routing)},
    {"DispatchOp.in", offsetof(DispatchOp, in), sizeof(DispatchOp::in)},
    {"DispatchOp.out", offsetof(DispatchOp, out), sizeof(DispatchOp::out)},
    {"DispatchOp.row_bytes", offsetof(DispatchOp, row_bytes), sizeof(DispatchOp::row_bytes)},
    {"CombineOp", 0, sizeof(CombineOp)},
    {"CombineOp.kind", offsetof(CombineOp, kind), sizeof(CombineOp::kind)},
    {"CombineOp.late", offsetof(CombineOp, late), sizeof(CombineOp::late)},
    {"CombineOp.routing", offsetof(CombineOp, routing), sizeof(CombineOp::routing)},
    {"CombineOp.n", offsetof(CombineOp, n), sizeof(CombineOp::n)},
    {"CombineOp.in", offsetof(CombineOp, in), sizeof(CombineOp::in)},
    {"CombineOp.out", offsetof(CombineOp, out), sizeof(CombineOp::out)},
    {"CombineOp.mode", offsetof(CombineOp, mode), sizeof(CombineOp::mode)},
    {"CombineOp.scale", offsetof(CombineOp, scale), sizeof(CombineOp::scale)},
    {"CombineOp.shared", offsetof(CombineOp, shared), sizeof(CombineOp::shared)},
    {"CombineOp.gate_scores", offsetof(CombineOp, gate_scores), sizeof(CombineOp::gate_scores)},
    {"CombineOp.columns", offsetof(CombineOp, columns), sizeof(CombineOp::columns)},
    {"DeltaRuleOp", 0, sizeof(DeltaRuleOp)},
    {"DeltaRuleOp.kind", offsetof(DeltaRuleOp, kind), sizeof(DeltaRuleOp::kind)},
    {"DeltaRuleOp.late", offsetof(DeltaRuleOp, late), sizeof(DeltaRuleOp::late)},
    {"DeltaRuleOp.heads", offsetof(DeltaRuleOp, heads), sizeof(DeltaRuleOp::heads)},
    {"DeltaRuleOp.key_heads", offsetof(DeltaRuleOp, key_heads), sizeof(DeltaRuleOp::key_heads)},
    {"DeltaRuleOp.dim", offsetof(DeltaRuleOp, dim), sizeof(DeltaRuleOp::dim)},
    {"DeltaRuleOp.value_dim", offsetof(DeltaRuleOp, value_dim), sizeof(DeltaRuleOp::value_dim)},
    {"DeltaRuleOp.in", offsetof(DeltaRuleOp, in), sizeof(DeltaRuleOp::in)},
    {"DeltaRuleOp.keys", offsetof(DeltaRuleOp, keys), sizeof(DeltaRuleOp::keys)},
    {"DeltaRuleOp.stride", offsetof(DeltaRuleOp, stride), sizeof(DeltaRuleOp::stride)},
    {"DeltaRuleOp.values", offsetof(DeltaRuleOp, values), sizeof(DeltaRuleOp::values)},
    {"DeltaRuleOp.value_stride", offsetof(DeltaRuleOp, value_stride), sizeof(DeltaRuleOp::value_stride)},
    {"DeltaRuleOp.g", offsetof(DeltaRuleOp, g), sizeof(DeltaRuleOp::g)},
    {"DeltaRuleOp.beta", offsetof(DeltaRuleOp, beta), sizeof(DeltaRuleOp::beta)},
    {"DeltaRuleOp.rate_stride", offsetof(DeltaRuleOp, rate_stride), sizeof(DeltaRuleOp::rate_stride)},
    {"DeltaRuleOp.scale", offsetof(DeltaRuleOp, scale), sizeof(DeltaRuleOp::scale)},
    {"DeltaRuleOp.unit", offsetof(DeltaRuleOp, unit), sizeof(DeltaRuleOp::unit)},
    {"DeltaRuleOp.eps", offsetof(DeltaRuleOp, eps), sizeof(DeltaRuleOp::eps)},
    {"DeltaRuleOp.out", offsetof(DeltaRuleOp, out), sizeof(DeltaRuleOp::out)},
    {"DeltaRuleOp.states", offsetof(DeltaRuleOp, states), sizeof(DeltaRuleOp::states)},
    {"ClearValuesOp", 0, sizeof(ClearValuesOp)},
    {"ClearValuesOp.kind", offsetof(ClearValuesOp, kind), sizeof(ClearValuesOp::kind)},
    {"ClearValuesOp.late", offsetof(ClearValuesOp, late), sizeof(ClearValuesOp::late)},
    {"CausalConvOp", 0, sizeof(CausalConvOp)},
    {"CausalConvOp.kind", offsetof(CausalConvOp, kind), sizeof(CausalConvOp::kind)},
    {"CausalConvOp.late", offsetof(CausalConvOp, late), sizeof(CausalConvOp::late)},
    {"CausalConvOp.n", offsetof(CausalConvOp, n), sizeof(CausalConvOp::n)},
    {"CausalConvOp.tokens", offsetof(CausalConvOp, tokens), sizeof(CausalConvOp::tokens)},
    {"CausalConvOp.taps", offsetof(CausalConvOp, taps), sizeof(CausalConvOp::taps)},
    {"CausalConvOp.weight", offsetof(CausalConvOp, weight), sizeof(CausalConvOp::weight)},
    {"CausalConvOp.bias", offsetof(CausalConvOp, bias), sizeof(CausalConvOp::bias)},
    {"CausalConvOp.activation", offsetof(CausalConvOp, activation), sizeof(CausalConvOp::activation)},
    {"CausalConvOp.in", offsetof(CausalConvOp, in), sizeof(CausalConvOp::in)},
    {"CausalConvOp.by_token", offsetof(CausalConvOp, by_token), sizeof(CausalConvOp::by_token)},
    {"CausalConvOp.out", offsetof(CausalConvOp, out), sizeof(CausalConvOp::out)},
    {"CausalConvOp.states", offsetof(CausalConvOp, states), sizeof(CausalConvOp::states)},
    {"Mamba2ScanOp", 0, sizeof(Mamba2ScanOp)},
    {"Mamba2ScanOp.kind", offsetof(Mamba2ScanOp, kind), sizeof(Mamba2ScanOp::kind)},
    {"Mamba2ScanOp.late", offsetof(Mamba2ScanOp, late), sizeof(Mamba2ScanOp::late)},
    {"Mamba2ScanOp.heads", offsetof(Mamba2ScanOp, heads), sizeof(Mamba2ScanOp::heads)},
    {"Mamba2ScanOp.dim", offsetof(Mamba2ScanOp, dim), sizeof(Mamba2ScanOp::dim)},
    {"Mamba2ScanOp.head_groups", offsetof(Mamba2ScanOp, head_groups), sizeof(Mamba2ScanOp::head_groups)},
    {"Mamba2ScanOp.state_size", offsetof(Mamba2ScanOp, state_size), sizeof(Mamba2ScanOp::state_size)},
    {"Mamba2ScanOp.in", offsetof(Mamba2ScanOp, in), sizeof(Mamba2ScanOp::in)},
    {"Mamba2ScanOp.stride", offsetof(Mamba2ScanOp, stride), sizeof(Mamba2ScanOp::stride)},
    {"Mamba2ScanOp.B", offsetof(Mamba2ScanOp, B), sizeof(Mamba2ScanOp::B)},
    {"Mamba2ScanOp.C", offsetof(Mamba2ScanOp, C), sizeof(Mamba2ScanOp::C)},
    {"Mamba2ScanOp.shared_stride", offsetof(Mamba2ScanOp, shared_stride), sizeof(Mamba2ScanOp::shared_stride)},
    {"Mamba2ScanOp.dt", offsetof(Mamba2ScanOp, dt), sizeof(Mamba2ScanOp::dt)},
    {"Mamba2ScanOp.A", offsetof(Mamba2ScanOp, A), sizeof(Mamba2ScanOp::A)},
    {"Mamba2ScanOp.D", offsetof(Mamba2ScanOp, D), sizeof(Mamba2ScanOp::D)},
    {"Mamba2ScanOp.out", offsetof(Mamba2ScanOp, out), sizeof(Mamba2ScanOp::out)},
    {"Mamba2ScanOp.rounded", offsetof(Mamba2ScanOp, rounded), sizeof(Mamba2ScanOp::rounded)},
    {"Mamba2ScanOp.states", offsetof(Mamba2ScanOp, states), sizeof(Mamba2ScanOp::states)},
    {"GroupNormOp", 0, sizeof(GroupNormOp)},
    {"GroupNormOp.kind", offsetof(GroupNormOp, kind), sizeof(GroupNormOp::kind)},
    {"GroupNormOp.late", offsetof(GroupNormOp, late), sizeof(GroupNormOp::late)},
    {"GroupNormOp.n", offsetof(GroupNormOp, n), sizeof(GroupNormOp::n)},
    {"GroupNormOp.group", offsetof(GroupNormOp, group), sizeof(GroupNormOp::group)},
    {"GroupNormOp.in", offsetof(GroupNormOp, in), sizeof(GroupNormOp::in)},
    {"GroupNormOp.out", offsetof(GroupNormOp, out), sizeof(GroupNormOp::out)},
    {"GroupNormOp.pitch", offsetof(GroupNormOp, pitch), sizeof(GroupNormOp::pitch)},
    {"GroupNormOp.norm", offsetof(GroupNormOp, norm), sizeof(GroupNormOp::norm)},
    {"GroupNormOp.eps", offsetof(GroupNormOp, eps), sizeof(GroupNormOp::eps)},
    {"GroupNormOp.weight", offsetof(GroupNormOp, weight), sizeof(GroupNormOp::weight)},
    {"GroupNormOp.bias", offsetof(GroupNormOp, bias), sizeof(GroupNormOp::bias)},
    {"GroupNormOp.gate", offsetof(GroupNormOp, gate), sizeof(GroupNormOp::gate)},
    {"GroupNormOp.gate_stride", offsetof(GroupNormOp, gate_stride), sizeof(GroupNormOp::gate_stride)},
    {"GroupNormOp.gate_first", offsetof(GroupNormOp, gate_first), sizeof(GroupNormOp::gate_first)},
    {"CausalConvSpansOp", 0, sizeof(CausalConvSpansOp)},
    {"CausalConvSpansOp.kind", offsetof(CausalConvSpansOp, kind), sizeof(CausalConvSpansOp::kind)},
    {"CausalConvSpansOp.late", offsetof(CausalConvSpansOp, late), sizeof(CausalConvSpansOp::late)},
    {"CausalConvSpansOp.n", offsetof(CausalConvSpansOp, n), sizeof(CausalConvSpansOp::n)},
    {"CausalConvSpansOp.taps", offsetof(CausalConvSpansOp, taps), sizeof(CausalConvSpansOp::taps)},
    {"CausalConvSpansOp.weight", offsetof(CausalConvSpansOp, weight), sizeof(CausalConvSpansOp::weight)},
    {"CausalConvSpansOp.bias", offsetof(CausalConvSpansOp, bias), sizeof(CausalConvSpansOp::bias)},
    {"CausalConvSpansOp.activation", offsetof(CausalConvSpansOp, activation), sizeof(CausalConvSpansOp::activation)},
    {"CausalConvSpansOp.in", offsetof(CausalConvSpansOp, in), sizeof(CausalConvSpansOp::in)},
    {"CausalConvSpansOp.stride", offsetof(CausalConvSpansOp, stride), sizeof(CausalConvSpansOp::stride)},
    {"CausalConvSpansOp.in_factors", offsetof(CausalConvSpansOp, in_factors), sizeof(CausalConvSpansOp::in_factors)},
    {"CausalConvSpansOp.out_factors", offsetof(CausalConvSpansOp, out_factors), sizeof(CausalConvSpansOp::out_factors)},
    {"CausalConvSpansOp.out", offsetof(CausalConvSpansOp, out), sizeof(CausalConvSpansOp::out)},
    {"CausalConvSpansOp.states", offsetof(CausalConvSpansOp, states), sizeof(CausalConvSpansOp::states)},
    {"DeltaRatesOp", 0, sizeof(DeltaRatesOp)},
    {"DeltaRatesOp.kind", offsetof(DeltaRatesOp, kind), sizeof(DeltaRatesOp::kind)},
    {"DeltaRatesOp.late", offsetof(DeltaRatesOp, late), sizeof(DeltaRatesOp::late)},
    {"DeltaRatesOp.heads", offsetof(DeltaRatesOp, heads), sizeof(DeltaRatesOp::heads)},
    {"DeltaRatesOp.in", offsetof(DeltaRatesOp, in), sizeof(DeltaRatesOp::in)},
    {"DeltaRatesOp.input_rates", offsetof(DeltaRatesOp, input_rates), sizeof(DeltaRatesOp::input_rates)},
    {"DeltaRatesOp.stride", offsetof(DeltaRatesOp, stride), sizeof(DeltaRatesOp::stride)},
    {"DeltaRatesOp.decay", offsetof(DeltaRatesOp, decay), sizeof(DeltaRatesOp::decay)},
    {"DeltaRatesOp.bias", offsetof(DeltaRatesOp, bias), sizeof(DeltaRatesOp::bias)},
    {"DeltaRatesOp.max_beta", offsetof(DeltaRatesOp, max_beta), sizeof(DeltaRatesOp::max_beta)},
    {"DeltaRatesOp.out", offsetof(DeltaRatesOp, out), sizeof(DeltaRatesOp::out)},
    {"GateOp", 0, sizeof(GateOp)},
    {"GateOp.kind", offsetof(GateOp, kind), sizeof(GateOp::kind)},
    {"GateOp.late", offsetof(GateOp, late), sizeof(GateOp::late)},
    {"GateOp.n", offsetof(GateOp, n), sizeof(GateOp::n)},
    {"GateOp.in", offsetof(GateOp, in), sizeof(GateOp::in)},
    {"GateOp.stride", offsetof(GateOp, stride), sizeof(GateOp::stride)},
    {"GateOp.out", offsetof(GateOp, out), sizeof(GateOp::out)},
    {"GateOp.pitch", offsetof(GateOp, pitch), sizeof(GateOp::pitch)},
    {"GateOp.plain", offsetof(GateOp, plain), sizeof(GateOp::plain)},
    {"StepSizesOp", 0, sizeof(StepSizesOp)},
    {"StepSizesOp.kind", offsetof(StepSizesOp, kind), sizeof(StepSizesOp::kind)},
    {"StepSizesOp.late", offsetof(StepSizesOp, late), sizeof(StepSizesOp::late)},
    {"StepSizesOp.heads", offsetof(StepSizesOp, heads), sizeof(StepSizesOp::heads)},
    {"StepSizesOp.in", offsetof(StepSizesOp, in), sizeof(StepSizesOp::in)},
    {"StepSizesOp.stride", offsetof(StepSizesOp, stride), sizeof(StepSizesOp::stride)},
    {"StepSizesOp.bias", offsetof(StepSizesOp, bias), sizeof(StepSizesOp::bias)},
    {"StepSizesOp.least_step", offsetof(StepSizesOp, least_step), sizeof(StepSizesOp::least_step)},
    {"StepSizesOp.greatest_step", offsetof(StepSizesOp, greatest_step), sizeof(StepSizesOp::greatest_step)},
    {"StepSizesOp.out", offsetof(StepSizesOp, out), sizeof(StepSizesOp::out)},
    {"Mamba1ScanOp", 0, sizeof(Mamba1ScanOp)},
    {"Mamba1ScanOp.kind", offsetof(Mamba1ScanOp, kind), sizeof(Mamba1ScanOp::kind)},
    {"Mamba1ScanOp.late", offsetof(Mamba1ScanOp, late), sizeof(Mamba1ScanOp::late)},
    {"Mamba1ScanOp.channels", offsetof(Mamba1ScanOp, channels), sizeof(Mamba1ScanOp::channels)},
    {"Mamba1ScanOp.state_size", offsetof(Mamba1ScanOp, state_size), sizeof(Mamba1ScanOp::state_size)},
    {"Mamba1ScanOp.in", offsetof(Mamba1ScanOp, in), sizeof(Mamba1ScanOp::in)},
    {"Mamba1ScanOp.B", offsetof(Mamba1ScanOp, B), sizeof(Mamba1ScanOp::B)},
    {"Mamba1ScanOp.C", offsetof(Mamba1ScanOp, C), sizeof(Mamba1ScanOp::C)},
    {"Mamba1ScanOp.shared_stride", offsetof(Mamba1ScanOp, shared_stride), sizeof(Mamba1ScanOp::shared_stride)},
    {"Mamba1ScanOp.dt", offsetof(Mamba1ScanOp, dt), sizeof(Mamba1ScanOp::dt)},
    {"Mamba1ScanOp.dt_bias", offsetof(Mamba1ScanOp, dt_bias), sizeof(Mamba1ScanOp::dt_bias)},
    {"Mamba1ScanOp.A", offsetof(Mamba1ScanOp, A), sizeof(Mamba1ScanOp::A)},
    {"Mamba1ScanOp.D", offsetof(Mamba1ScanOp, D), sizeof(Mamba1ScanOp::D)},
    {"Mamba1ScanOp.out", offsetof(Mamba1ScanOp, out), sizeof(Mamba1ScanOp::out)},
    {"Mamba1ScanOp.states", offsetof(Mamba1ScanOp, states), sizeof(Mamba1ScanOp::states)},
    {"LatentsOp", 0, sizeof(LatentsOp)},
    {"LatentsOp.kind", offsetof(LatentsOp, kind), sizeof(LatentsOp::kind)},
    {"LatentsOp.late", offsetof(LatentsOp, late), sizeof(LatentsOp::late)},
    {"LatentsOp.in", offsetof(LatentsOp, in), sizeof(LatentsOp::in)},
    {"LatentsOp.out", offsetof(LatentsOp, out), sizeof(LatentsOp::out)},
    {"LatentsOp.rank", offsetof(LatentsOp, rank), sizeof(LatentsOp::rank)},
    {"LatentsOp.rotary", offsetof(LatentsOp, rotary), sizeof(LatentsOp::rotary)},
    {"LatentsOp.norm", offsetof(LatentsOp, norm), sizeof(LatentsOp::norm)},
    {"LatentsOp.eps", offsetof(LatentsOp, eps), sizeof(LatentsOp::eps)},
    {"LatentsOp.query_rotary", offsetof(LatentsOp, query_rotary), sizeof(LatentsOp::query_rotary)},
    {"LatentsOp.stride", offsetof(LatentsOp, stride), sizeof(LatentsOp::stride)},
    {"LatentsOp.heads", offsetof(LatentsOp, heads), sizeof(LatentsOp::heads)},
    {"LatentsOp.dim", offsetof(LatentsOp, dim), sizeof(LatentsOp::dim)},
    {"RescoreOp", 0, sizeof(RescoreOp)},
    {"RescoreOp.kind", offsetof(RescoreOp, kind), sizeof(RescoreOp::kind)},
    {"RescoreOp.late", offsetof(RescoreOp, late), sizeof(RescoreOp::late)},
    {"RescoreOp.head", offsetof(RescoreOp, head), sizeof(RescoreOp::head)},
    {"RescoreOp.codes", offsetof(RescoreOp, codes), sizeof(RescoreOp::codes)},
    {"RescoreOp.weight_squares", offsetof(RescoreOp, weight_squares), sizeof(RescoreOp::weight_squares)},
    {"RescoreOp.error_squares", offsetof(RescoreOp, error_squares), sizeof(RescoreOp::error_squares)},
    {"RescoreOp.statistics", offsetof(RescoreOp, statistics), sizeof(RescoreOp::statistics)},
    {"RescoreOp.alternatives", offsetof(RescoreOp, alternatives), sizeof(RescoreOp::alternatives)},
    {"RoundWeightsOp", 0, sizeof(RoundWeightsOp)},
    {"RoundWeightsOp.kind", offsetof(RoundWeightsOp, kind), sizeof(RoundWeightsOp::kind)},
    {"RoundWeightsOp.late", offsetof(RoundWeightsOp, late), sizeof(RoundWeightsOp::late)},
    {"RoundWeightsOp.n", offsetof(RoundWeightsOp, n), sizeof(RoundWeightsOp::n)},
    {"RoundWeightsOp.k", offsetof(RoundWeightsOp, k), sizeof(RoundWeightsOp::k)},
    {"RoundWeightsOp.in", offsetof(RoundWeightsOp, in), sizeof(RoundWeightsOp::in)},
    {"RoundWeightsOp.out", offsetof(RoundWeightsOp, out), sizeof(RoundWeightsOp::out)},
    {"RoundWeightsOp.scales", offsetof(RoundWeightsOp, scales), sizeof(RoundWeightsOp::scales)},
    {"RoundWeightsOp.weight_squares", offsetof(RoundWeightsOp, weight_squares), sizeof(RoundWeightsOp::weight_squares)},
    {"RoundWeightsOp.error_squares", offsetof(RoundWeightsOp, error_squares), sizeof(RoundWeightsOp::error_squares)},
    {"EmbedTextOp", 0, sizeof(EmbedTextOp)},
    {"EmbedTextOp.kind", offsetof(EmbedTextOp, kind), sizeof(EmbedTextOp::kind)},
    {"EmbedTextOp.late", offsetof(EmbedTextOp, late), sizeof(EmbedTextOp::late)},
    {"EmbedTextOp.n", offsetof(EmbedTextOp, n), sizeof(EmbedTextOp::n)},
    {"EmbedTextOp.out", offsetof(EmbedTextOp, out), sizeof(EmbedTextOp::out)},
    {"EmbedTextOp.table", offsetof(EmbedTextOp, table), sizeof(EmbedTextOp::table)},
    {"EmbedTextOp.scale", offsetof(EmbedTextOp, scale), sizeof(EmbedTextOp::scale)},
    {"EmbedTextOp.position_table", offsetof(EmbedTextOp, position_table), sizeof(EmbedTextOp::position_table)},
    {"EmbedTextOp.type_table", offsetof(EmbedTextOp, type_table), sizeof(EmbedTextOp::type_table)},
    {"LowRankOp", 0, sizeof(LowRankOp)},
    {"LowRankOp.kind", offsetof(LowRankOp, kind), sizeof(LowRankOp::kind)},
    {"LowRankOp.late", offsetof(LowRankOp, late), sizeof(LowRankOp::late)},
    {"LowRankOp.k", offsetof(LowRankOp, k), sizeof(LowRankOp::k)},
    {"LowRankOp.in", offsetof(LowRankOp, in), sizeof(LowRankOp::in)},
    {"LowRankOp.stride", offsetof(LowRankOp, stride), sizeof(LowRankOp::stride)},
    {"LowRankOp.out", offsetof(LowRankOp, out), sizeof(LowRankOp::out)},
    {"LowRankOp.pitch", offsetof(LowRankOp, pitch), sizeof(LowRankOp::pitch)},
    {"LowRankOp.vectors", offsetof(LowRankOp, vectors), sizeof(LowRankOp::vectors)},
    {"LowRankOp.parts", offsetof(LowRankOp, parts), sizeof(LowRankOp::parts)},
    {"LowRankEmbedOp", 0, sizeof(LowRankEmbedOp)},
    {"LowRankEmbedOp.kind", offsetof(LowRankEmbedOp, kind), sizeof(LowRankEmbedOp::kind)},
    {"LowRankEmbedOp.late", offsetof(LowRankEmbedOp, late), sizeof(LowRankEmbedOp::late)},
    {"LowRankEmbedOp.n", offsetof(LowRankEmbedOp, n), sizeof(LowRankEmbedOp::n)},
    {"LowRankEmbedOp.out", offsetof(LowRankEmbedOp, out), sizeof(LowRankEmbedOp::out)},
    {"LowRankEmbedOp.scale", offsetof(LowRankEmbedOp, scale), sizeof(LowRankEmbedOp::scale)},
    {"LowRankEmbedOp.parts", offsetof(LowRankEmbedOp, parts), sizeof(LowRankEmbedOp::parts)},
    {"PackBlocksOp", 0, sizeof(PackBlocksOp)},
    {"PackBlocksOp.kind", offsetof(PackBlocksOp, kind), sizeof(PackBlocksOp::kind)},
    {"PackBlocksOp.late", offsetof(PackBlocksOp, late), sizeof(PackBlocksOp::late)},
    {"PackBlocksOp.n", offsetof(PackBlocksOp, n), sizeof(PackBlocksOp::n)},
    {"PackBlocksOp.k", offsetof(PackBlocksOp, k), sizeof(PackBlocksOp::k)},
    {"PackBlocksOp.in", offsetof(PackBlocksOp, in), sizeof(PackBlocksOp::in)},
    {"PackBlocksOp.second", offsetof(PackBlocksOp, second), sizeof(PackBlocksOp::second)},
    {"PackBlocksOp.type", offsetof(PackBlocksOp, type), sizeof(PackBlocksOp::type)},
    {"PackBlocksOp.out", offsetof(PackBlocksOp, out), sizeof(PackBlocksOp::out)},
    {"PackBlocksOp.scales", offsetof(PackBlocksOp, scales), sizeof(PackBlocksOp::scales)},
    {"PackBlocksOp.format", offsetof(PackBlocksOp, format), sizeof(PackBlocksOp::format)},
    {"PackBlocksOp.scaling", offsetof(PackBlocksOp, scaling), sizeof(PackBlocksOp::scaling)},
    {"UnpackBlocksOp", 0, sizeof(UnpackBlocksOp)},
    {"UnpackBlocksOp.kind", offsetof(UnpackBlocksOp, kind), sizeof(UnpackBlocksOp::kind)},
    {"UnpackBlocksOp.late", offsetof(UnpackBlocksOp, late), sizeof(UnpackBlocksOp::late)},
    {"UnpackBlocksOp.n", offsetof(UnpackBlocksOp, n), sizeof(UnpackBlocksOp::n)},
    {"UnpackBlocksOp.k", offsetof(UnpackBlocksOp, k), sizeof(UnpackBlocksOp::k)},
    {"UnpackBlocksOp.in", offsetof(UnpackBlocksOp, in), sizeof(UnpackBlocksOp::in)},
    {"UnpackBlocksOp.type", offsetof(UnpackBlocksOp, type), sizeof(UnpackBlocksOp::type)},
    {"UnpackBlocksOp.form", offsetof(UnpackBlocksOp, form), sizeof(UnpackBlocksOp::form)},
    {"UnpackBlocksOp.out", offsetof(UnpackBlocksOp, out), sizeof(UnpackBlocksOp::out)},
    {"RoundBlocksOp", 0, sizeof(RoundBlocksOp)},
    {"RoundBlocksOp.kind", offsetof(RoundBlocksOp, kind), sizeof(RoundBlocksOp::kind)},
    {"RoundBlocksOp.late", offsetof(RoundBlocksOp, late), sizeof(RoundBlocksOp::late)},
    {"RoundBlocksOp.n", offsetof(RoundBlocksOp, n), sizeof(RoundBlocksOp::n)},
    {"RoundBlocksOp.k", offsetof(RoundBlocksOp, k), sizeof(RoundBlocksOp::k)},
    {"RoundBlocksOp.in", offsetof(RoundBlocksOp, in), sizeof(RoundBlocksOp::in)},
    {"RoundBlocksOp.second", offsetof(RoundBlocksOp, second), sizeof(RoundBlocksOp::second)},
    {"RoundBlocksOp.out", offsetof(RoundBlocksOp, out), sizeof(RoundBlocksOp::out)},
    {"RoundBlocksOp.scales", offsetof(RoundBlocksOp, scales), sizeof(RoundBlocksOp::scales)},
    {"RoundBlocksOp.format", offsetof(RoundBlocksOp, format), sizeof(RoundBlocksOp::format)},
    {"Op", 0, sizeof(Op)},
    {"Kind.kEmbed", kEmbed, sizeof(Kind)},
    {"Kind.kNorm", kNorm, sizeof(Kind)},
    {"Kind.kLinear", kLinear, sizeof(Kind)},
    {"Kind.kRopeKvCache", kRopeKvCache, sizeof(Kind)},
    {"Kind.kAttention", kAttention, sizeof(Kind)},
    {"Kind.kGather", kGather, sizeof(Kind)},
    {"Kind.kQuantize", kQuantize, sizeof(Kind)},
    {"Kind.kSample", kSample, sizeof(Kind)},
    {"Kind.kPack", kPack, sizeof(Kind)},
    {"Kind.kRoute", kRoute, sizeof(Kind)},
    {"Kind.kSort", kSort, sizeof(Kind)},
    {"Kind.kDispatch", kDispatch, sizeof(Kind)},
    {"Kind.kCombine", kCombine, sizeof(Kind)},
    {"Kind.kDeltaRule", kDeltaRule, sizeof(Kind)},
    {"Kind.kClearValues", kClearValues, sizeof(Kind)},
    {"Kind.kCausalConv", kCausalConv, sizeof(Kind)},
    {"Kind.kMamba2Scan", kMamba2Scan, sizeof(Kind)},
    {"Kind.kGroupNorm", kGroupNorm, sizeof(Kind)},
    {"Kind.kCausalConvSpans", kCausalConvSpans, sizeof(Kind)},
    {"Kind.kDeltaRates", kDeltaRates, sizeof(Kind)},
    {"Kind.kGate", kGate, sizeof(Kind)},
    {"Kind.kStepSizes", kStepSizes, sizeof(Kind)},
    {"Kind.kMamba1Scan", kMamba1Scan, sizeof(Kind)},
    {"Kind.kLatents", kLatents, sizeof(Kind)},
    {"Kind.kRescore", kRescore, sizeof(Kind)},
    {"Kind.kRoundWeights", kRoundWeights, sizeof(Kind)},
    {"Kind.kEmbedText", kEmbedText, sizeof(Kind)},
    {"Kind.kLowRank", kLowRank, sizeof(Kind)},
    {"Kind.kLowRankEmbed", kLowRankEmbed, sizeof(Kind)},
    {"Kind.kPackBlocks", kPackBlocks, sizeof(Kind)},
    {"Kind.kUnpackBlocks", kUnpackBlocks, sizeof(Kind)},
    {"Kind.kRoundBlocks", kRoundBlocks, sizeof(Kind)},
    {"WeightFormat.kPlain", kPlain, sizeof(WeightFormat)},
    {"WeightFormat.kTwelveBit", kTwelveBit, sizeof(WeightFormat)},
    {"WeightFormat.kInt8", kInt8, sizeof(WeightFormat)},
    {"WeightFormat.kInt4ByGroup", kInt4ByGroup, sizeof(WeightFormat)},
    {"WeightFormat.kInt8ByGroup", kInt8ByGroup, sizeof(WeightFormat)},
    {"WeightFormat.kBlocks2", kBlocks2, sizeof(WeightFormat)},
    {"WeightFormat.kBlocks3", kBlocks3, sizeof(WeightFormat)},
    {"WeightFormat.kBlocks4", kBlocks4, sizeof(WeightFormat)},
    {"WeightFormat.kBlocks5", kBlocks5, sizeof(WeightFormat)},
    {"WeightFormat.kBlocks6", kBlocks6, sizeof(WeightFormat)},
    {"WeightFormat.kBlocks8", kBlocks8, sizeof(WeightFormat)},
    {"WeightFormat.kBlocksTable", kBlocksTable, sizeof(WeightFormat)},
    {"BlockScaling.kHalves", kHalves, sizeof(BlockScaling)},
    {"BlockScaling.kHalvesAndLeast", kHalvesAndLeast, sizeof(BlockScaling)},
    {"BlockScaling.kSteps", kSteps, sizeof(BlockScaling)},
    {"BlockScaling.kStepsAndLeast", kStepsAndLeast, sizeof(BlockScaling)},
    {"BlockScaling.kNibbles", kNibbles, sizeof(BlockScaling)},
    {"BlockScaling.kExponents", kExponents, sizeof(BlockScaling)},
    {"BlockType.kQ40", kQ40, sizeof(BlockType)},
    {"BlockType.kQ41", kQ41, sizeof(BlockType)},
    {"BlockType.kQ50", kQ50, sizeof(BlockType)},
    {"BlockType.kQ51", kQ51, sizeof(BlockType)},
    {"BlockType.kQ80", kQ80, sizeof(BlockType)},
    {"BlockType.kQ2K", kQ2K, sizeof(BlockType)},
    {"BlockType.kQ3K", kQ3K, sizeof(BlockType)},
    {"BlockType.kQ4K", kQ4K, sizeof(BlockType)},
    {"BlockType.kQ5K", kQ5K, sizeof(BlockType)},
    {"BlockType.kQ6K", kQ6K, sizeof(BlockType)},
    {"BlockType.kIq4Nl", kIq4Nl, sizeof(BlockType)},
    {"BlockType.kIq4Xs", kIq4Xs, sizeof(BlockType)},
    {"BlockType.kMxfp4", kMxfp4, sizeof(BlockType)},
    {"Activation.kNone", kNone, sizeof(Activation)},
    {"Activation.kSilu", kSilu, sizeof(Activation)},
    {"Activation.kGeluTanh", kGeluTanh, sizeof(Activation)},
    {"Activation.kGelu", kGelu, sizeof(Activation)},
    {"Activation.kRelu", kRelu, sizeof(Activation)},
    {"Activation.kReluSquared", kReluSquared, sizeof(Activation)},
    {"Activation.kClampedSwiglu", kClampedSwiglu, sizeof(Activation)},
    {"Activation.kQuickGelu", kQuickGelu, sizeof(Activation)},
    {"Activation.kXielu", kXielu, sizeof(Activation)},
    {"NormKind.kRms", kRms, sizeof(NormKind)},
    {"NormKind.kLayer", kLayer, sizeof(NormKind)},
    {"NormKind.kCopy", kCopy, sizeof(NormKind)},
    {"Mode.kStore", kStore, sizeof(Mode)},
    {"Mode.kAdd", kAdd, sizeof(Mode)},
    {"Mode.kStoreFp32", kStoreFp32, sizeof(Mode)},
    {"Mode.kStatistics", kStatistics, sizeof(Mode)},
    {"SamplingMode.kGiven", kGiven, sizeof(SamplingMode)},
    {"SamplingMode.kBest", kBest, sizeof(SamplingMode)},
    {"SamplingMode.kDraw", kDraw, sizeof(SamplingMode)},
};

}  // namespace djl
