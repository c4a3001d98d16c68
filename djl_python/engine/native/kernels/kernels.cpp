// A decoder's forward pass on the CPU: one call runs a list of operations over a flat batch of tokens.
//
// Built with the wheel or at first use (compiling.py) and called through ctypes by pool.py; no torch headers, plain pointers.
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

#include "amx_tiles.h"
#include "attention.h"
#include "causal_conv.h"
#include "delta_rule.h"
#include "expert_routing.h"
#include "formats.h"
#include "products.h"
#include "program.h"
#include "rope_kv_cache.h"
#include "round_weights.h"
#include "rowwise.h"
#include "sample.h"
#include "state_space.h"
#include "thread_pool.h"

namespace djl {
namespace {

template <class F>
void operate(Run& run, int i) {
    const Op& op = run.ops[i];
    const Step& step = run.step_of(op);
    switch (op.kind) {
        case kEmbed: embed<F>(run, i, op, step); break;
        case kNorm: norm<F>(run, i, op, step); break;
        case kLinear: of_integers(op) ? multiply_integers(run, i) : multiply_floats(run, i); break;
        case kQuantize: quantize<F>(run, i, op, step); break;
        case kHeads: heads<F>(run, i, op, step); break;
        case kAttend: attend<F>(run, i, op, step); break;
        case kGather: gather(run, i, op, step); break;
        case kChoose: choose(run, i, op, step); break;
        case kPack: pack_twelve(run, i, op, step); break;
        case kRoute: route(run, i, op, step); break;
        case kSort: sort(run, i, op, step); break;
        case kDispatch: dispatch(run, i, op, step); break;
        case kCombine: combine(run, i, op, step); break;
        case kDelta: delta_rule<F>(run, i, op, step); break;
        case kClearValues: clear_values<F>(run, i, step); break;
        case kConvolve: convolution<F>(run, i, op, step); break;
        case kScan: scan<F>(run, i, op, step); break;
        case kNormRows: norm_rows<F>(run, i, op, step); break;
        case kConvolveRows: convolve_rows<F>(run, i, op, step); break;
        case kDecay: decay<F>(run, i, op, step); break;
        case kGate: gate<F>(run, i, op, step); break;
        case kStepSizes: step_sizes<F>(run, i, op, step); break;
        case kSelectiveScan: selective_scan<F>(run, i, op, step); break;
        case kLatents: latents<F>(run, i, op, step); break;
        case kPick: pick_tokens(run, i); break;
        case kRound: round_weights(run, i, op, step); break;
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
        pool.seconds[run.ops[i].kind] += std::chrono::duration<double>(now - then).count();
        then = now;
    }
}

void walk_any(Pool& pool, Run& run) { run.bf16 ? walk<BF16>(pool, run) : walk<F32>(pool, run); }

// A product's slots for prefetching what attention reads, see prefetch.h.
template <class F>
PrefetchSlots prefetch_slots_of(const Op& op, const Step& step) {
    return with_format<F>(op, [&](auto panel) { return decltype(panel)::type::cut(op, step).slots(); });
}

template <class F>
void plan(Run& run) {
    plan_kv_prefetches(run.ops, run.step, sizeof(typename F::T), run.threads,
                       [&](const Op& op) { return prefetch_slots_of<F>(op, run.step_of(op)); }, run.kv_prefetches);
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
int djl_op_size() { return sizeof(Op); }
int djl_step_size() { return sizeof(Step); }
int djl_choice_size() { return sizeof(Choice); }

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
int64_t djl_codes_bytes(int k) { return integer_row_bytes((k + kGroup - 1) / kGroup); }

// Seconds by kind of operation since the pool was made, into `out` (kKinds,).
void djl_seconds(void* handle, double* out) { memcpy(out, ((Pool*)handle)->seconds, sizeof(Pool::seconds)); }

// Runs the program; returns when it is done. `late` is the step of late operations, null if there are none. Not reentrant.
void djl_run(void* handle, const Op* ops, int count, const Step* step, const Step* late, int bf16) {
    auto* pool = (Pool*)handle;
    Run& run = pool->prepare();
    run.begin(ops, count, *step, late ? *late : *step, bf16);
    for (int i = 0; i < count; ++i)
        if (ops[i].kind == kAttend) make_room(run, i, ops[i], run.step_of(ops[i]));
    bf16 ? plan<BF16>(run) : plan<F32>(run);
    pool->begin(run);
    walk_any(*pool, run);
}

}  // extern "C"
