// A decoder's forward pass on the CPU: one call runs a list of operations over a flat batch of tokens.
//
// Built at first use by build.py and called through ctypes by program.py; no torch headers, plain pointers. The calling
// thread and the pool's threads walk the list together: within an operation they take tasks from a shared counter (so
// that a core lent to another process only slows its own task down), between operations they meet at a barrier.
//
// Activations between matrix products are stored as T (bf16 or fp32, the weights' format), sums and the residual stream
// in fp32. A "pair" is what one 32-bit lane multiplies at once: two bf16 or one fp32.

#include <algorithm>
#include <chrono>
#include <cstring>

#include "attention.h"
#include "formats.h"
#include "linear.h"
#include "program.h"
#include "quantized.h"
#include "routing.h"
#include "rows.h"
#include "scan.h"

namespace {

template <class F>
void walk(Pool& pool) {
    // Read once: after its last barrier this thread may still be here when the next run is being set up.
    const Op* ops = pool.ops;
    const int count = pool.count;
    const Step& step = *pool.step;
    auto then = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) {
        const Op& op = ops[i];
        switch (op.kind) {
            case kEmbed: embed<F>(pool, i, op, step); break;
            case kNorm: norm<F>(pool, i, op, step); break;
            case kLinear:
                switch (op.format) {
                    case kEight: integer_linear<F, Eight>(pool, i, op, step); break;
                    case kFour: integer_linear<F, Four>(pool, i, op, step); break;
                    case kTwelve: linear<BF16, TwelvePanel>(pool, i, op, step); break;
                    default: linear<F, PlainPanel<F>>(pool, i, op, step);
                }
                break;
            case kQuantize: quantize<F>(pool, i, op, step); break;
            case kHeads: heads<F>(pool, i, op, step); break;
            case kAttend: attend<F>(pool, i, op, step); break;
            case kGather: gather(pool, i, op, step); break;
            case kScan: scan(pool, i, op, step); break;
            case kBest: best(pool, i, op, step); break;
            case kDraw: draw(pool, i, op, step); break;
            case kPack: pack_twelve(pool, i, op, step); break;
            case kRoute: route(pool, i, op, step); break;
            case kSort: sort(pool, i, op, step); break;
            case kDispatch: dispatch(pool, i, op, step); break;
            case kCombine: combine(pool, i, op, step); break;
        }
        pool.meet();
        if (number) continue;
        const auto now = std::chrono::steady_clock::now();
        pool.seconds[op.kind] += std::chrono::duration<double>(now - then).count();
        then = now;
    }
}

void walk_any(Pool& pool) { pool.bf16 ? walk<BF16>(pool) : walk<F32>(pool); }

void work(Pool* pool, int thread) {
    number = thread;
    uint32_t seen = 0;
    while (true) {
        for (int spins = 0; pool->generation.load(std::memory_order_acquire) == seen; ++spins) {
            if (spins < 200) _mm_pause();
            else sleep_while(pool->generation, seen);
        }
        seen = pool->generation.load(std::memory_order_acquire);
        if (pool->stopping) return;
        walk_any(*pool);
    }
}

}  // namespace

extern "C" {

int djl_op_size() { return sizeof(Op); }
int djl_step_size() { return sizeof(Step); }

void* djl_pool(int threads) {
    auto* pool = new Pool(threads);
    for (int i = 1; i < threads; ++i) pool->others.emplace_back(work, pool, i);
    return pool;
}

void djl_pool_close(void* handle) {
    auto* pool = (Pool*)handle;
    pool->stopping = true;
    pool->generation.fetch_add(1, std::memory_order_release);
    wake_all(pool->generation);
    for (auto& other : pool->others) other.join();
    delete pool;
}

// Seconds by kind of operation since the pool was made, into `out` (kKinds,).
void djl_seconds(void* handle, double* out) { memcpy(out, ((Pool*)handle)->seconds, sizeof(Pool::seconds)); }

// Runs the program; returns when it is done. Not reentrant.
int djl_run(void* handle, const Op* ops, int count, const Step* step, int bf16) {
    auto* pool = (Pool*)handle;
    if (count * pool->threads > (int)pool->counters.size()) return -1;
    pool->ops = ops;
    pool->count = count;
    pool->step = step;
    pool->bf16 = bf16;
    for (int i = 0; i < count * pool->threads; ++i) pool->counters[i].store(0, std::memory_order_relaxed);
    for (int i = 0; i < count; ++i)
        if (ops[i].kind == kAttend) make_room(*pool, ops[i], *step);
    if (pool->threads > 1) {
        pool->generation.fetch_add(1, std::memory_order_release);
        wake_all(pool->generation);
    }
    walk_any(*pool);
    return 0;
}

}  // extern "C"
