// What a program is made of, and the threads that walk it.

#pragma once

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

constexpr int kPanel = 64;  // columns of a packed weight panel: four vectors
constexpr int kSteps = 64;  // steps along k (a 32-bit lane of each column) that a panel is multiplied at a time: 16 KiB
constexpr int kKeys = 16;   // keys of a cache group: one vector of scores

enum Kind : int32_t {
    kEmbed, kNorm, kLinear, kHeads, kAttend, kGather, kQuantize, kScan, kBest, kDraw, kPack, kRoute, kSort, kDispatch,
    kCombine
};
constexpr int kKinds = 15;
// kSame: the activations' format; kTwelve: bf16 in 12 bits; kEight, kFour: integer codes of so many bits.
enum WeightFormat : int32_t { kSame, kTwelve, kEight, kFour };
enum Activation : int32_t { kNone, kSilu, kGeluTanh, kGeluErf, kRelu, kReluSquared, kClampedSwiglu };
enum NormKind : int32_t { kRms, kLayer, kCopy };  // kCopy: no norm, only the format changes

}  // namespace

extern "C" {

// One operation. Fields mean what the operation makes of them; see the functions below. Mirrored in program.py.
struct Op {
    int32_t kind;
    int32_t rows_from;  // 0: all tokens, 1: only the rows whose logits are wanted, 2: those of the chosen experts
    int32_t n, k;       // width out, width in
    int32_t mode;       // kNorm: NormKind; kLinear: 0 store T, 1 add to fp32, 2 store fp32; kEmbed: 1 packed table;
                        // kHeads: 1 norms are over all heads at once
    int32_t activation;
    int32_t gated;      // kLinear: columns come in halves of a panel, activation(first) * second is stored
    int32_t heads, kv_heads, dim, value_dim, rotary, interleaved, window;
    int32_t format;     // kLinear, kEmbed: WeightFormat
    int32_t experts;    // kLinear: 0, or weights of so many experts, panel after panel; see routing.h
    int32_t chosen;     // experts of each token
    float eps, scale, softcap;
    const void* in;
    void* out;
    const void* weight;   // kLinear: packed panels; else fp32
    const float* bias;
    const float* weight2; // kHeads: norms of queries and keys; integer weights: their scales; kTwelve: see twelve.h
    const float* weight3;
    const float* cosines;  // kHeads: (positions, rotary / 2) tables
    const float* sines;
    const float* sinks;    // kAttend: (heads,)
    void* keys;            // this layer's part of the cache's first block
    void* values;
    void* routed;          // see routing.h
};

// What changes from step to step.
struct Step {
    int32_t tokens;
    int32_t wanted;             // rows whose logits are wanted
    const int64_t* ids;         // (tokens,)
    const int64_t* positions;   // (tokens,)
    const int64_t* slots;       // (tokens,)
    const int64_t* rows;        // (wanted,)
    int32_t tiles;              // attention: runs of tokens of one sequence
    const int32_t* tile_start;  // (tiles,)
    const int32_t* tile_size;   // (tiles,)
    const int64_t* tile_table;  // (tiles,) offset of the sequence's blocks in `blocks`
    const int64_t* blocks;
    int32_t block_size;
    int64_t block_bytes;        // of a block, with all layers' keys and values
};

}  // extern "C"

namespace {

constexpr int kPatience = 20000;  // spins before a waiting thread sleeps: most of a millisecond
constexpr int kShares = 4;        // walks for each thread from which on attention is not cut finer

thread_local int number = 0;  // of the pool's thread that this is

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
}

struct Pool {
    int threads;
    std::vector<std::thread> others;
    std::atomic<uint32_t> generation{0};  // bumped to start a run
    std::atomic<int> arrived{0};
    std::atomic<uint32_t> phase{0};
    std::atomic<int> sleeping{0};  // at the barrier
    std::atomic<bool> stopping{false};
    std::vector<std::atomic<int>> counters;
    const Op* ops = nullptr;
    int count = 0;
    const Step* step = nullptr;
    bool bf16 = false;
    std::vector<float> parts;               // of the attention that is shared out: see attention.h
    std::vector<std::atomic<int>> parts_done;
    double seconds[kKinds] = {};  // spent by kind of operation, over all runs; the calling thread's clock

    explicit Pool(int n) : threads(n), counters(4096 * n), parts_done(kShares * n) {}

    // Everybody arrives, everybody goes on. Spins first: operations are microseconds apart. Who waits much longer waits
    // for a thread that lost its processor, which can go on here if this one sleeps.
    void meet() {
        if (threads == 1) return;
        uint32_t now = phase.load(std::memory_order_acquire);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
            arrived.store(0, std::memory_order_relaxed);
            phase.store(now + 1, std::memory_order_seq_cst);
            if (sleeping.load(std::memory_order_seq_cst)) wake_all(phase);
            return;
        }
        for (int spins = 0; phase.load(std::memory_order_acquire) == now; ++spins) {
            _mm_pause();
            if (spins < kPatience) continue;
            sleeping.fetch_add(1, std::memory_order_seq_cst);
            sleep_while(phase, now);
            sleeping.fetch_sub(1, std::memory_order_relaxed);
        }
    }

    // The next of an operation's tasks, whoever asks.
    int take(int op) { return counters[op * threads].fetch_add(1, std::memory_order_relaxed); }

    // The next of an operation's `count` tasks in this thread's own stretch of them, then in the others'; -1: none left.
    // Who walks through memory in order is served better by it.
    int take_in_order(int op, int count) {
        for (int i = 0; i < threads; ++i) {
            const int stretch = (number + i) % threads;
            const int first = (int64_t)count * stretch / threads, end = (int64_t)count * (stretch + 1) / threads;
            auto& counter = counters[op * threads + stretch];
            if (counter.load(std::memory_order_relaxed) >= end - first) continue;
            const int task = first + counter.fetch_add(1, std::memory_order_relaxed);
            if (task < end) return task;
        }
        return -1;
    }
};

}  // namespace
