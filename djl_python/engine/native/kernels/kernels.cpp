// A decoder's forward pass on the CPU: one call runs a list of operations over a flat batch of tokens.
//
// Built with the wheel or at first use (compiling.py) and called through ctypes by thread_pool.py; no torch headers, plain pointers.
// The calling thread and the pool's threads walk the list together: within an operation they take tasks from shared counters,
// so that a core lent to another process only delays its own task (thread_pool.h).
//
// Activations between matrix products are stored as T (bf16 or fp32, the model's format), sums and the residual stream
// in fp32. A "pair" is what one 32-bit lane multiplies at once: two bf16 or one fp32.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <system_error>

#include "attention/attention.h"
#include "attention/rope_kv_cache.h"
#include "linear/low_rank.h"
#include "linear/products.h"
#include "linear/round_weights.h"
#include "program.h"
#include "rows/embed_text.h"
#include "rows/expert_routing.h"
#include "rows/rowwise.h"
#include "sampling/sample.h"
#include "states/causal_conv.h"
#include "states/delta_rule.h"
#include "states/state_space.h"
#include "thread_pool.h"
#include "vectors/amx_tiles.h"
#include "vectors/formats.h"

namespace djl {
namespace {

void multiply(Run& run, int i, WeightFormat format) {
    if (of_blocks(format)) multiply_blocks(run, i);
    else if (of_integers(format)) multiply_integers(run, i);
    else multiply_floats(run, i);
}

template <class F>
void operate(Run& run, int i) {
    const Op& op = run.ops[i];
    const StepInputs& step = run.step_of(op);
    switch (op.head.kind) {
        case kEmbed: embed<F>(run, i, op.embed, step); break;
        case kNorm: norm<F>(run, i, op.norm, step); break;
        case kLinear: multiply(run, i, op.linear.weight.format); break;
        case kRopeKvCache: rope_kv_cache<F>(run, i, op.rope_kv_cache, step); break;
        case kAttention: attend<F>(run, i, op.attention, step); break;
        case kGather: gather(run, i, op.gather, step); break;
        case kQuantize: quantize<F>(run, i, op.quantize, step); break;
        case kSample: sample(run, i, op.sample, step); break;
        case kPack: pack_twelve_bit(run, i, op.pack); break;
        case kRoute: route(run, i, op.route, step); break;
        case kSort: sort(run, i, op.sort, step); break;
        case kDispatch: dispatch(run, i, op.dispatch, step); break;
        case kCombine: combine(run, i, op.combine, step); break;
        case kDeltaRule: delta_rule<F>(run, i, op.delta_rule, step); break;
        case kClearValues: clear_values<F>(run, i, step); break;
        case kCausalConv: causal_conv<F>(run, i, op.causal_conv, step); break;
        case kMamba2Scan: mamba2_scan<F>(run, i, op.mamba2_scan, step); break;
        case kGroupNorm: group_norm<F>(run, i, op.group_norm, step); break;
        case kCausalConvSpans: causal_conv_spans<F>(run, i, op.causal_conv_spans, step); break;
        case kDeltaRates: delta_rates<F>(run, i, op.delta_rates, step); break;
        case kGate: gate<F>(run, i, op.gate, step); break;
        case kStepSizes: step_sizes<F>(run, i, op.step_sizes, step); break;
        case kMamba1Scan: mamba1_scan<F>(run, i, op.mamba1_scan, step); break;
        case kLatents: latents<F>(run, i, op.latents, step); break;
        case kRescore: rescore_tokens(run, i); break;
        case kPackBlocks: pack_any_blocks(run, i); break;
        case kUnpackBlocks: unpack_any_blocks(run, i); break;
        case kRoundBlocks: round_any_blocks(run, i); break;
        case kRoundWeights: round_weights(run, i, op.round_weights); break;
        case kEmbedText: embed_text<F>(run, i, op.embed_text, step); break;
        case kLowRank: low_rank<F>(run, i, op.low_rank, step); break;
        case kLowRankEmbed: low_rank_embed<F>(run, i, op.low_rank_embed, step); break;
    }
}

template <class F>
void walk(Pool& pool, Run& run) {
    TilesGuard guard;
    auto then = std::chrono::steady_clock::now();
    for (int i = 0; i < (int)run.ops.size(); ++i) {
        if (!run.has_passed(i)) operate<F>(run, i);
        if (thread_index) continue;
        const auto now = std::chrono::steady_clock::now();
        pool.seconds[run.ops[i].head.kind] += std::chrono::duration<double>(now - then).count();
        then = now;
    }
}

void walk_any(Pool& pool, Run& run) { run.bf16 ? walk<BF16>(pool, run) : walk<F32>(pool, run); }

// A product's slots for prefetching what attention reads, see prefetch.h.
template <class F>
PrefetchSlots prefetch_slots_of(const LinearOp& op, const StepInputs& step) {
    return with_format<F>(op.weight.format, [&](auto panel) { return decltype(panel)::type::cut(op, step).slots(); });
}

template <class F>
void plan(Run& run) {
    plan_kv_prefetches(run.ops, run.step, sizeof(typename F::T), run.threads,
                       [&](const Op& op) { return prefetch_slots_of<F>(op.linear, run.step_of(op)); }, run.kv_prefetches);
}

void work(Pool* pool, int thread) {
    thread_index = thread;
    pool->follow([&](Run& run) { walk_any(*pool, run); });
}

}  // namespace
}  // namespace djl

using namespace djl;

extern "C" {

const char* djl_vectors() { return kHasAmx ? "AVX-512 and AMX" : kVectors; }
const char* djl_fingerprint() { return DJL_FINGERPRINT; }

// Where everything lies in the structures that Python fills in, and how many places these are.
const AbiPlace* djl_abi(int* count) {
    *count = sizeof kAbiPlaces / sizeof *kAbiPlaces;
    return kAbiPlaces;
}

// Null if the system gives no more threads.
void* djl_pool(int threads, int follow_spins) {
    auto pool = std::make_unique<Pool>(threads, follow_spins);
    try {
        for (int i = 1; i < threads; ++i) pool->others.emplace_back(work, pool.get(), i);
    } catch (const std::system_error&) {
        pool->stop();
        return nullptr;
    }
    return pool.release();
}

void djl_pool_close(void* handle) {
    auto* pool = (Pool*)handle;
    pool->stop();
    delete pool;
}

// How many parts a panel of so many steps has.
int djl_parts(int steps) { return parts_of(steps); }

// Bytes of a row of k activations that are rounded to integers.
int64_t djl_codes_bytes(int k, int for_blocks) {
    return for_blocks ? block_row_bytes(block_count(k)) : integer_row_bytes(group_count(k));
}

// Seconds by kind of operation since the pool was made, into `out` (kKinds,).
void djl_seconds(void* handle, double* out) { memcpy(out, ((Pool*)handle)->seconds, sizeof(Pool::seconds)); }

// Runs the program; returns when it is done. `late` is the step of late operations, null if there are none. Not reentrant.
void djl_run(void* handle, const Op* ops, int count, const StepInputs* step, const StepInputs* late, int bf16) {
    auto* pool = (Pool*)handle;
    Run& run = pool->prepare();
    run.begin(ops, count, *step, late ? *late : *step, bf16);
    for (int i = 0; i < count; ++i)
        if (ops[i].head.kind == kAttention) make_room(run, i, ops[i].attention, run.step_of(ops[i]));
    bf16 ? plan<BF16>(run) : plan<F32>(run);
    pool->begin(run);
    walk_any(*pool, run);
}

}  // extern "C"
