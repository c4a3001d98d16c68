// A decoder's forward pass on the CPU: one call runs a list of operations over a flat batch of tokens.
//
// Built at first use by build.py and called through ctypes by program.py; no torch headers, plain pointers. The calling
// thread and the pool's threads walk the list together: within an operation they take tasks from a shared counter (so
// that a core lent to another process only slows its own task down), between operations they meet at a barrier.
//
// Activations between matrix products are stored as T (bf16 or fp32, the weights' format), sums and the residual stream
// in fp32. A "pair" is what one 32-bit lane multiplies at once: two bf16 or one fp32.

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int kPanel = 64;       // columns of a packed weight panel: four vectors
constexpr int kRows = 6;         // rows of the register tile of a matrix product
constexpr int kAhead = 8192;     // bytes of a panel fetched before they are needed
constexpr int kKeys = 16;        // keys of a cache group: one vector of scores
constexpr int kQueries = 24;     // (query, head) pairs that share one walk over the keys
constexpr int kChunkKeys = 512;  // keys between two rescalings of the softmax

// ---------------------------------------------------------------------------------------------------- number formats

struct BF16 {
    using T = uint16_t;
    static constexpr int pair = 2;
    static __m512 fma(__m512 sum, __m512i b, int32_t a) {
        return _mm512_dpbf16_ps(sum, (__m512bh)b, (__m512bh)_mm512_set1_epi32(a));
    }
    static T from(float x) { return (T)((uint32_t)_mm_cvtsi128_si32((__m128i)_mm_cvtneps_pbh(_mm_set_ss(x))) & 0xffff); }
    static float to(T x) {
        uint32_t bits = (uint32_t)x << 16;
        float out;
        memcpy(&out, &bits, 4);
        return out;
    }
    static void store(T* to, __m512 x) { _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(x)); }
    static void store(T* to, __m512 x, __mmask16 mask) {
        _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(x));
    }
};

struct F32 {
    using T = float;
    static constexpr int pair = 1;
    static __m512 fma(__m512 sum, __m512i b, int32_t a) {
        return _mm512_fmadd_ps(_mm512_castsi512_ps(b), _mm512_castsi512_ps(_mm512_set1_epi32(a)), sum);
    }
    static T from(float x) { return x; }
    static float to(T x) { return x; }
    static void store(T* to, __m512 x) { _mm512_storeu_ps(to, x); }
    static void store(T* to, __m512 x, __mmask16 mask) { _mm512_mask_storeu_ps(to, mask, x); }
};

inline __m512 exp_ps(__m512 x) {
    // exp(x) = 2^n * exp(r), |r| <= ln(2)/2; a polynomial of degree 6 is good to the last bits of fp32.
    const __m512 log2e = _mm512_set1_ps(1.44269504f);
    x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
    x = _mm512_min_ps(x, _mm512_set1_ps(88.0f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, log2e), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
    __m512 p = _mm512_set1_ps(1.3888889e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3333333e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1666667e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666667e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

inline __m512 tanh_ps(__m512 x) {
    __m512 e = exp_ps(_mm512_mul_ps(x, _mm512_set1_ps(2.0f)));
    return _mm512_sub_ps(_mm512_set1_ps(1.0f),
                         _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(e, _mm512_set1_ps(1.0f))));
}

inline __m512 erf_ps(__m512 x) {
    alignas(64) float v[16];
    _mm512_store_ps(v, x);
    for (float& one : v) one = erff(one);
    return _mm512_load_ps(v);
}

// ---------------------------------------------------------------------------------------------------- the program

enum Kind : int32_t { kEmbed, kNorm, kLinear, kHeads, kAttend, kGather };
enum Activation : int32_t { kNone, kSilu, kGeluTanh, kGeluErf, kRelu };
enum NormKind : int32_t { kRms, kLayer, kCopy };  // kCopy: no norm, only the format changes

}  // namespace

extern "C" {

// One operation. Fields mean what the operation makes of them; see the functions below. Mirrored in program.py.
struct Op {
    int32_t kind;
    int32_t rows_from;  // 0: all tokens, 1: only the rows whose logits are wanted
    int32_t n, k;       // width out, width in
    int32_t mode;       // kNorm: NormKind; kLinear: 0 store T, 1 add to fp32, 2 store fp32; kEmbed: 1 packed table
    int32_t activation;
    int32_t gated;      // kLinear: columns come in halves of a panel, activation(first) * second is stored
    int32_t heads, kv_heads, dim, value_dim, rotary, interleaved, window;
    int32_t layer;
    float eps, scale, softcap;
    const void* in;
    void* out;
    const void* weight;   // kLinear: packed panels; else fp32
    const float* bias;
    const float* weight2; // kHeads: norms of queries and keys
    const float* weight3;
    const float* cosines;  // kHeads: (positions, rotary / 2) tables
    const float* sines;
    const float* sinks;    // kAttend: (heads,)
    void* keys;            // this layer's cache
    void* values;
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
};

}  // extern "C"

namespace {

// ---------------------------------------------------------------------------------------------------- threads

struct Pool {
    int threads;
    std::vector<std::thread> others;
    std::atomic<uint32_t> generation{0};  // bumped to start a run
    std::atomic<int> arrived{0};
    std::atomic<uint32_t> phase{0};
    std::atomic<bool> stopping{false};
    std::vector<std::atomic<int>> counters;
    const Op* ops = nullptr;
    int count = 0;
    const Step* step = nullptr;
    bool bf16 = false;

    explicit Pool(int n) : threads(n), counters(4096) {}

    // Everybody arrives, everybody goes on. Spins first: operations are microseconds apart.
    void meet() {
        if (threads == 1) return;
        uint32_t now = phase.load(std::memory_order_acquire);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
            arrived.store(0, std::memory_order_relaxed);
            phase.store(now + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; phase.load(std::memory_order_acquire) == now; ++spins) {
            _mm_pause();
            if (spins > 4000) std::this_thread::yield();
        }
    }

    int take(int op) { return counters[op].fetch_add(1, std::memory_order_relaxed); }
};

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
}

// ---------------------------------------------------------------------------------------------------- operations

// Where a key's or value's numbers lie in a layer's cache; (blocks, kv_heads, group of 16 keys, dim, 16, pair).
template <class F>
inline typename F::T* key_group(const Op& op, const Step& step, int64_t block, int head, int group) {
    const int64_t groups = step.block_size / kKeys;
    return (typename F::T*)op.keys + (((block * op.kv_heads + head) * groups + group) * op.dim) * kKeys;
}

template <class F>
inline typename F::T* value_group(const Op& op, const Step& step, int64_t block, int head, int group) {
    const int64_t groups = step.block_size / kKeys;
    return (typename F::T*)op.values + (((block * op.kv_heads + head) * groups + group) * op.value_dim) * kKeys;
}

// A token that begins a group of keys finds a former owner's values in the rest of it. Their weights are zero, but zero
// times that owner's infinity or NaN is not: in all layers, the group starts empty.
template <class F>
void empty_groups(const Pool& pool, const Step& step, int64_t slot) {
    if (slot % kKeys) return;
    for (int i = 0; i < pool.count; ++i) {
        const Op& op = pool.ops[i];
        if (op.kind != kHeads) continue;
        const int group = (int)(slot % step.block_size) / kKeys;
        for (int h = 0; h < op.kv_heads; ++h)
            memset(value_group<F>(op, step, slot / step.block_size, h, group), 0,
                   (size_t)op.value_dim * kKeys * sizeof(typename F::T));
    }
}

// out (tokens, n) fp32 = weight[id] * scale (+ bias[position]: learned positions). The first operation of a step.
template <class F>
void embed(Pool& pool, int index, const Op& op, const Step& step) {
    auto table = (const typename F::T*)op.weight;
    auto positions = (const typename F::T*)op.bias;
    for (int t; (t = pool.take(index)) < step.tokens;) {
        empty_groups<F>(pool, step, step.slots[t]);
        float* out = (float*)op.out + (int64_t)t * op.n;
        if (op.mode == 1) {  // the table is the head's packed weight
            const auto* column = table + step.ids[t] / kPanel * kPanel * op.n + step.ids[t] % kPanel * F::pair;
            for (int i = 0; i < op.n; ++i)
                out[i] = F::to(column[(int64_t)(i / F::pair) * kPanel * F::pair + i % F::pair]) * op.scale;
        } else {
            const auto* row = table + step.ids[t] * op.n;
            for (int i = 0; i < op.n; ++i) out[i] = F::to(row[i]) * op.scale;
        }
        if (positions) {
            const auto* more = positions + (step.positions[t] + op.k) * op.n;
            for (int i = 0; i < op.n; ++i) out[i] += F::to(more[i]);
        }
    }
}

inline void normalize(const float* x, int n, int mode, float eps, float& mean, float& inverse) {
    if (mode == kCopy) {
        mean = 0;
        inverse = 1;
        return;
    }
    __m512 sum = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
    int i = 0;
    mean = 0;
    float tail = 0;
    if (mode == kLayer) {
        for (; i + 16 <= n; i += 16) sum = _mm512_add_ps(sum, _mm512_loadu_ps(x + i));
        for (; i < n; ++i) tail += x[i];
        mean = (_mm512_reduce_add_ps(sum) + tail) / n;
    }
    const __m512 shift = _mm512_set1_ps(mean);
    tail = 0;
    for (i = 0; i + 16 <= n; i += 16) {
        __m512 v = _mm512_sub_ps(_mm512_loadu_ps(x + i), shift);
        squares = _mm512_fmadd_ps(v, v, squares);
    }
    for (; i < n; ++i) tail += (x[i] - mean) * (x[i] - mean);
    inverse = 1.0f / sqrtf((_mm512_reduce_add_ps(squares) + tail) / n + eps);
}

// mode's norm of in (rows, n) fp32; out T, or (scale != 0) fp32 out += scale * norm
template <class F>
void norm(Pool& pool, int index, const Op& op, const Step& step) {
    const int rows = op.rows_from ? step.wanted : step.tokens;
    const auto* weight = (const float*)op.weight;
    for (int t; (t = pool.take(index)) < rows;) {
        const float* x = (const float*)op.in + (int64_t)t * op.n;
        float mean, inverse;
        normalize(x, op.n, op.mode, op.eps, mean, inverse);
        auto value = [&](int i, __mmask16 mask) {
            __m512 v = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), _mm512_set1_ps(mean));
            v = _mm512_mul_ps(v, _mm512_set1_ps(inverse));
            if (weight) v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, weight + i));
            if (op.bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, op.bias + i));
            return v;
        };
        for (int i = 0; i < op.n; i += 16) {
            const __mmask16 mask = op.n - i >= 16 ? 0xffff : (__mmask16)((1 << (op.n - i)) - 1);
            if (op.scale != 0) {
                float* out = (float*)op.out + (int64_t)t * op.n + i;
                __m512 sum = _mm512_fmadd_ps(value(i, mask), _mm512_set1_ps(op.scale), _mm512_maskz_loadu_ps(mask, out));
                _mm512_mask_storeu_ps(out, mask, sum);
            } else {
                F::store((typename F::T*)op.out + (int64_t)t * op.n + i, value(i, mask), mask);
            }
        }
    }
}

inline __m512 activate(__m512 x, int activation) {
    const __m512 half = _mm512_set1_ps(0.5f), one = _mm512_set1_ps(1.0f);
    switch (activation) {
        case kSilu:
            return _mm512_div_ps(x, _mm512_add_ps(one, exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), x))));
        case kGeluTanh: {
            __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
            __m512 inner = _mm512_mul_ps(_mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), x), _mm512_set1_ps(0.79788456f));
            return _mm512_mul_ps(_mm512_mul_ps(half, x), _mm512_add_ps(one, tanh_ps(inner)));
        }
        case kGeluErf:
            return _mm512_mul_ps(_mm512_mul_ps(half, x),
                                 _mm512_add_ps(one, erf_ps(_mm512_mul_ps(x, _mm512_set1_ps(0.70710678f)))));
        case kRelu:
            return _mm512_max_ps(x, _mm512_setzero_ps());
        default:
            return x;
    }
}

// R rows times one panel. `ahead` is fetched along the way: the panel itself some lines on while it comes from memory, the
// next panel while this one comes from the cache.
template <class F, int R>
inline void tile(const typename F::T* a, int64_t stride, const typename F::T* panel, int pairs, const char* ahead,
                 __m512 (&sum)[R][4]) {
    const auto* b = (const __m512i*)panel;
    for (int p = 0; p < pairs; ++p, b += 4, ahead += 256) {
        const __m512i b0 = _mm512_loadu_si512(b), b1 = _mm512_loadu_si512(b + 1);
        const __m512i b2 = _mm512_loadu_si512(b + 2), b3 = _mm512_loadu_si512(b + 3);
        for (int r = 0; r < R; ++r) {
            int32_t x;
            memcpy(&x, a + r * stride + (int64_t)p * F::pair, 4);
            sum[r][0] = F::fma(sum[r][0], b0, x);
            sum[r][1] = F::fma(sum[r][1], b1, x);
            sum[r][2] = F::fma(sum[r][2], b2, x);
            sum[r][3] = F::fma(sum[r][3], b3, x);
        }
        for (int line = 0; line < 4; ++line) _mm_prefetch(ahead + line * 64, _MM_HINT_T1);
    }
}

// What becomes of a finished row of a panel: bias, activation, gate, soft cap; then where it goes.
template <class F>
inline void finish_row(const Op& op, int64_t row, int panel, __m512 (&sum)[4]) {
    if (op.bias)  // padded to whole panels
        for (int v = 0; v < 4; ++v) sum[v] = _mm512_add_ps(sum[v], _mm512_loadu_ps(op.bias + panel * kPanel + v * 16));
    int vectors = 4, first = panel * kPanel;
    if (op.gated) {
        sum[0] = _mm512_mul_ps(activate(sum[0], op.activation), sum[2]);
        sum[1] = _mm512_mul_ps(activate(sum[1], op.activation), sum[3]);
        vectors = 2;
        first = panel * (kPanel / 2);
    } else if (op.activation) {
        for (int v = 0; v < 4; ++v) sum[v] = activate(sum[v], op.activation);
    }
    for (int v = 0; v < vectors; ++v) {
        const int c = first + v * 16;
        if (c >= op.n) break;
        const __mmask16 mask = op.n - c >= 16 ? 0xffff : (__mmask16)((1 << (op.n - c)) - 1);
        if (op.mode == 0) {
            F::store((typename F::T*)op.out + row * op.n + c, sum[v], mask);
            continue;
        }
        float* out = (float*)op.out + row * op.n + c;
        __m512 x = _mm512_mul_ps(sum[v], _mm512_set1_ps(op.scale));
        if (op.mode == 1) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(mask, out));
        if (op.softcap > 0) {
            const __m512 cap = _mm512_set1_ps(op.softcap);
            x = _mm512_mul_ps(tanh_ps(_mm512_div_ps(x, cap)), cap);
        }
        _mm512_mask_storeu_ps(out, mask, x);
    }
}

template <class F, int R>
inline void rows_of_panel(const Op& op, int64_t row, int panel, const typename F::T* weights, int pairs, const char* ahead) {
    __m512 sum[R][4];
    for (auto& one : sum)
        for (auto& lane : one) lane = _mm512_setzero_ps();
    tile<F, R>((const typename F::T*)op.in + row * op.k, op.k, weights, pairs, ahead, sum);
    for (int r = 0; r < R; ++r) finish_row<F>(op, row + r, panel, sum[r]);
}

// out (rows, n) = in (rows, k) T times the packed weight; see `mode`. `k` is a multiple of a pair.
template <class F>
void linear(Pool& pool, int index, const Op& op, const Step& step) {
    using T = typename F::T;
    const int rows = op.rows_from ? step.wanted : step.tokens;
    const int columns = op.gated ? op.n * 2 : op.n;
    const int panels = (columns + kPanel - 1) / kPanel, pairs = op.k / F::pair;
    // Tall products are cut into bands of rows too, so that there is work for everybody and a band stays in the cache.
    const int band = rows > 192 ? 96 : rows, bands = band ? (rows + band - 1) / band : 0;
    for (int task; (task = pool.take(index)) < panels * bands;) {
        const int panel = task / bands;
        const int first = task % bands * band, last = std::min(rows, first + band);
        const T* weights = (const T*)op.weight + (int64_t)panel * kPanel * op.k;
        // Its next panel is probably the one after those that the other threads have.
        const int following = bands == 1 ? std::min(panel + pool.threads, panels - 1) : panel;
        const char* next = (const char*)((const T*)op.weight + (int64_t)following * kPanel * op.k);
        // Tiles of nearly the same height: a low last one would wait for its own additions.
        const int tiles = (last - first + kRows - 1) / kRows;
        int row = first;
        for (int t = 0; t < tiles; ++t) {
            const int height = (last - row + tiles - t - 1) / (tiles - t);
            const char* ahead = t == 0 ? (const char*)weights + kAhead : t == 1 ? next : (const char*)weights;
            switch (height) {
                case 6: rows_of_panel<F, 6>(op, row, panel, weights, pairs, ahead); break;
                case 5: rows_of_panel<F, 5>(op, row, panel, weights, pairs, ahead); break;
                case 4: rows_of_panel<F, 4>(op, row, panel, weights, pairs, ahead); break;
                case 3: rows_of_panel<F, 3>(op, row, panel, weights, pairs, ahead); break;
                case 2: rows_of_panel<F, 2>(op, row, panel, weights, pairs, ahead); break;
                case 1: rows_of_panel<F, 1>(op, row, panel, weights, pairs, ahead); break;
            }
            row += height;
        }
    }
}

inline void rotate(float* x, const Op& op, int64_t position) {
    const int half = op.rotary / 2;
    const float* c = op.cosines + position * half;
    const float* s = op.sines + position * half;
    for (int i = 0; i < half; ++i) {
        const int a = op.interleaved ? 2 * i : i, b = op.interleaved ? 2 * i + 1 : i + half;
        const float u = x[a], v = x[b];
        x[a] = u * c[i] - v * s[i];
        x[b] = v * c[i] + u * s[i];
    }
}

// in (tokens, q + k + v columns) fp32: norms and rotates queries (back into `in`) and keys, stores keys and values.
template <class F>
void heads(Pool& pool, int index, const Op& op, const Step& step) {
    using T = typename F::T;
    const int queries = op.heads * op.dim, keys = op.kv_heads * op.dim;
    const int64_t width = queries + keys + (int64_t)op.kv_heads * op.value_dim;
    auto head = [&](float* x, const float* weight, int64_t position) {
        if (weight) {
            float mean, inverse;
            normalize(x, op.dim, kRms, op.eps, mean, inverse);
            for (int i = 0; i < op.dim; ++i) x[i] *= inverse * weight[i];
        }
        if (op.rotary) rotate(x, op, position);
    };
    for (int t; (t = pool.take(index)) < step.tokens;) {
        float* row = (float*)op.in + t * width;
        const int64_t position = step.positions[t];
        for (int h = 0; h < op.heads; ++h) head(row + h * op.dim, op.weight2, position);
        const int64_t block = step.slots[t] / step.block_size;
        const int offset = (int)(step.slots[t] % step.block_size), group = offset / kKeys, lane = offset % kKeys;
        for (int h = 0; h < op.kv_heads; ++h) {
            float* key = row + queries + h * op.dim;
            head(key, op.weight3, position);
            T* to = key_group<F>(op, step, block, h, group);
            for (int i = 0; i < op.dim; i += F::pair)
                for (int p = 0; p < F::pair; ++p) to[(i / F::pair * kKeys + lane) * F::pair + p] = F::from(key[i + p]);
            const float* value = row + queries + keys + h * op.value_dim;
            T* into = value_group<F>(op, step, block, h, group) + (lane / F::pair * op.value_dim) * F::pair + lane % F::pair;
            for (int i = 0; i < op.value_dim; ++i) into[i * F::pair] = F::from(value[i]);
        }
    }
}

// Scratch of one thread, for one walk over the keys.
struct Scratch {
    std::vector<int32_t> queries;   // packed pairs
    std::vector<float> scores;      // (pairs of query and head, kChunkKeys)
    std::vector<int32_t> weights;   // the same as packed pairs of keys
    std::vector<float> sums;        // (pairs, value_dim)
    float most[kQueries], total[kQueries];
};

// Scores of R (query, head) pairs against G groups of keys; fetches their values, which are needed next.
template <class F, int R, int G>
inline void score(const int32_t* queries, int pairs, const typename F::T* const* keys, const typename F::T* const* values,
                  float* out) {
    __m512 sum[R][G];
    for (auto& one : sum)
        for (auto& group : one) group = _mm512_setzero_ps();
    for (int p = 0; p < pairs; ++p) {
        __m512i key[G];
        for (int g = 0; g < G; ++g) {
            key[g] = _mm512_loadu_si512((const __m512i*)keys[g] + p);
            _mm_prefetch((const char*)values[g] + p * 64, _MM_HINT_T0);
        }
        for (int r = 0; r < R; ++r)
            for (int g = 0; g < G; ++g) sum[r][g] = F::fma(sum[r][g], key[g], queries[r * pairs + p]);
    }
    for (int r = 0; r < R; ++r)
        for (int g = 0; g < G; ++g) _mm512_storeu_ps(out + r * kChunkKeys + g * kKeys, sum[r][g]);
}

template <class F, int G>
inline void score_all(const int32_t* queries, int count, int pairs, const typename F::T* const* keys,
                      const typename F::T* const* values, float* out) {
    int q = 0;
    auto of = [&](int from) { return queries + (size_t)from * pairs; };
    for (; q + 6 <= count; q += 6) score<F, 6, G>(of(q), pairs, keys, values, out + q * kChunkKeys);
    for (; q + 3 <= count; q += 3) score<F, 3, G>(of(q), pairs, keys, values, out + q * kChunkKeys);
    for (; q < count; ++q) score<F, 1, G>(of(q), pairs, keys, values, out + q * kChunkKeys);
}

// Adds weights times values of `groups` groups, V vectors of the value at a time, for R pairs.
template <class F, int R, int V>
inline void mix(const int32_t* weights, const typename F::T* const* values, int groups, int dim, int vector, float* sums) {
    constexpr int steps = kKeys / F::pair;
    __m512 sum[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sum[r][v] = _mm512_loadu_ps(sums + r * dim + (vector + v) * 16);
    for (int g = 0; g < groups; ++g)
        for (int s = 0; s < steps; ++s) {
            const auto* base = (const __m512i*)(values[g] + (int64_t)s * dim * F::pair) + vector;
            for (int v = 0; v < V; ++v) {
                const __m512i value = _mm512_loadu_si512(base + v);
                for (int r = 0; r < R; ++r)
                    sum[r][v] = F::fma(sum[r][v], value, weights[r * (kChunkKeys / F::pair) + g * steps + s]);
            }
        }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) _mm512_storeu_ps(sums + r * dim + (vector + v) * 16, sum[r][v]);
}

template <class F, int R>
inline void mix_rows(const int32_t* weights, const typename F::T* const* values, int groups, int dim, float* sums) {
    const int vectors = dim / 16;
    int v = 0;
    for (; v + 4 <= vectors; v += 4) mix<F, R, 4>(weights, values, groups, dim, v, sums);
    for (; v < vectors; ++v) mix<F, R, 1>(weights, values, groups, dim, v, sums);
}

// Causal attention of the tokens of a tile, for one key head. in: `heads`' output; out (tokens, heads * value_dim) T.
template <class F>
void attend_tile(const Op& op, const Step& step, int first, int size, const int64_t* table, int kv_head, Scratch& s) {
    using T = typename F::T;
    const int shared = op.heads / op.kv_heads, count = size * shared, pairs = op.dim / F::pair;
    const int64_t width = (int64_t)(op.heads + op.kv_heads) * op.dim + (int64_t)op.kv_heads * op.value_dim;
    s.queries.resize((size_t)kQueries * pairs);
    s.scores.resize((size_t)kQueries * kChunkKeys);
    s.weights.resize((size_t)kQueries * kChunkKeys / F::pair);
    s.sums.resize((size_t)kQueries * op.value_dim);
    memset(s.sums.data(), 0, (size_t)count * op.value_dim * sizeof(float));
    auto position_of = [&](int pair) { return step.positions[first + pair / shared]; };
    for (int q = 0; q < count; ++q) {
        const int head = kv_head * shared + q % shared;
        const float* x = (const float*)op.in + (first + q / shared) * width + head * op.dim;
        T* to = (T*)(s.queries.data() + (size_t)q * pairs);
        for (int i = 0; i < op.dim; i += 16) {
            const __mmask16 mask = op.dim - i >= 16 ? 0xffff : (__mmask16)((1 << (op.dim - i)) - 1);
            F::store(to + i, _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), _mm512_set1_ps(op.scale)), mask);
        }
        s.most[q] = op.sinks ? op.sinks[head] : -INFINITY;
        s.total[q] = op.sinks ? 1.0f : 0.0f;
    }
    const int64_t end = position_of(count - 1) + 1;
    int64_t begin = op.window > 0 ? std::max<int64_t>(0, position_of(0) - op.window + 1) : 0;
    begin -= begin % kKeys;
    const int per_block = step.block_size / kKeys;
    const T* keys[kChunkKeys / kKeys];
    const T* values[kChunkKeys / kKeys];
    for (int64_t chunk = begin; chunk < end; chunk += kChunkKeys) {
        const int groups = (int)((std::min<int64_t>(end - chunk, kChunkKeys) + kKeys - 1) / kKeys);
        for (int g = 0; g < groups; ++g) {
            const int64_t group = chunk / kKeys + g, block = table[group / per_block];
            keys[g] = key_group<F>(op, step, block, kv_head, (int)(group % per_block));
            values[g] = value_group<F>(op, step, block, kv_head, (int)(group % per_block));
        }
        int g = 0;
        for (; g + 2 <= groups; g += 2)
            score_all<F, 2>(s.queries.data(), count, pairs, keys + g, values + g, s.scores.data() + g * kKeys);
        if (g < groups) score_all<F, 1>(s.queries.data(), count, pairs, keys + g, values + g, s.scores.data() + g * kKeys);
        for (int q = 0; q < count; ++q) {
            float* row = s.scores.data() + (size_t)q * kChunkKeys;
            const int64_t position = position_of(q);
            __m512 top = _mm512_set1_ps(-INFINITY);
            for (int g = 0; g < groups; ++g) {
                __m512 x = _mm512_loadu_ps(row + g * kKeys);
                if (op.softcap > 0) {
                    const __m512 cap = _mm512_set1_ps(op.softcap);
                    x = _mm512_mul_ps(tanh_ps(_mm512_div_ps(x, cap)), cap);
                }
                const int64_t key = chunk + g * kKeys;
                const int64_t visible = position - key + 1;  // lanes below it are not in the future
                __mmask16 mask = visible >= 16 ? 0xffff : visible <= 0 ? 0 : (__mmask16)((1 << visible) - 1);
                if (op.window > 0) {
                    const int64_t gone = position - op.window + 1 - key;  // lanes below it have left the window
                    if (gone > 0) mask &= gone >= 16 ? 0 : (__mmask16)(0xffff << gone);
                }
                x = _mm512_mask_blend_ps(mask, _mm512_set1_ps(-INFINITY), x);
                _mm512_storeu_ps(row + g * kKeys, x);
                top = _mm512_max_ps(top, x);
            }
            const float most = std::max(s.most[q], _mm512_reduce_max_ps(top));
            T* weights = (T*)(s.weights.data() + (size_t)q * (kChunkKeys / F::pair));
            if (most == -INFINITY) {  // nothing of this chunk is visible
                memset(weights, 0, (size_t)groups * kKeys * sizeof(T));
                continue;
            }
            __m512 total = _mm512_setzero_ps();
            for (int g = 0; g < groups; ++g) {
                const __m512 x = _mm512_loadu_ps(row + g * kKeys);
                const __mmask16 seen = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-INFINITY), _CMP_GT_OQ);
                const __m512 e = _mm512_maskz_mov_ps(seen, exp_ps(_mm512_sub_ps(x, _mm512_set1_ps(most))));
                total = _mm512_add_ps(total, e);
                F::store(weights + g * kKeys, e);
            }
            const float old = s.most[q] == -INFINITY ? 0.0f : expf(s.most[q] - most);
            s.total[q] = s.total[q] * old + _mm512_reduce_add_ps(total);
            if (s.most[q] != most && s.most[q] != -INFINITY)
                for (int i = 0; i < op.value_dim; ++i) s.sums[(size_t)q * op.value_dim + i] *= old;
            s.most[q] = most;
        }
        int q = 0;
        auto weights = [&](int from) { return s.weights.data() + (size_t)from * (kChunkKeys / F::pair); };
        auto sums = [&](int from) { return s.sums.data() + (size_t)from * op.value_dim; };
        for (; q + 6 <= count; q += 6) mix_rows<F, 6>(weights(q), values, groups, op.value_dim, sums(q));
        for (; q + 3 <= count; q += 3) mix_rows<F, 3>(weights(q), values, groups, op.value_dim, sums(q));
        for (; q < count; ++q) mix_rows<F, 1>(weights(q), values, groups, op.value_dim, sums(q));
    }
    for (int q = 0; q < count; ++q) {
        const int head = kv_head * shared + q % shared;
        T* out = (T*)op.out + ((int64_t)(first + q / shared) * op.heads + head) * op.value_dim;
        const float inverse = s.total[q] > 0 ? 1.0f / s.total[q] : 0.0f;
        const float* sums = s.sums.data() + (size_t)q * op.value_dim;
        for (int i = 0; i < op.value_dim; i += 16)
            F::store(out + i, _mm512_mul_ps(_mm512_loadu_ps(sums + i), _mm512_set1_ps(inverse)));
    }
}

template <class F>
void attend(Pool& pool, int index, const Op& op, const Step& step) {
    thread_local Scratch scratch;
    // The runs of tokens come cut to at most kQueries; many heads to a key head need shorter ones.
    const int most = std::max(1, kQueries / (op.heads / op.kv_heads));
    for (int task; (task = pool.take(index)) < step.tiles * op.kv_heads;) {
        const int tile = step.tiles - 1 - task / op.kv_heads, kv_head = task % op.kv_heads;  // prompts, at the end, first
        const int start = step.tile_start[tile], size = step.tile_size[tile];
        for (int done = 0; done < size; done += most)
            attend_tile<F>(op, step, start + done, std::min(most, size - done), step.blocks + step.tile_table[tile],
                           kv_head, scratch);
    }
}

// out (wanted, n) fp32 = in[rows]
void gather(Pool& pool, int index, const Op& op, const Step& step) {
    for (int t; (t = pool.take(index)) < step.wanted;)
        memcpy((float*)op.out + (int64_t)t * op.n, (const float*)op.in + step.rows[t] * op.n, (size_t)op.n * 4);
}

template <class F>
void walk(Pool& pool) {
    // Read once: after its last barrier this thread may still be here when the next run is being set up.
    const Op* ops = pool.ops;
    const int count = pool.count;
    const Step& step = *pool.step;
    for (int i = 0; i < count; ++i) {
        const Op& op = ops[i];
        switch (op.kind) {
            case kEmbed: embed<F>(pool, i, op, step); break;
            case kNorm: norm<F>(pool, i, op, step); break;
            case kLinear: linear<F>(pool, i, op, step); break;
            case kHeads: heads<F>(pool, i, op, step); break;
            case kAttend: attend<F>(pool, i, op, step); break;
            case kGather: gather(pool, i, op, step); break;
        }
        pool.meet();
    }
}

void walk_any(Pool& pool) { pool.bf16 ? walk<BF16>(pool) : walk<F32>(pool); }

void work(Pool* pool) {
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

int djl_supported() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bf16");
}

int djl_op_size() { return sizeof(Op); }
int djl_step_size() { return sizeof(Step); }

void* djl_pool(int threads) {
    auto* pool = new Pool(threads);
    for (int i = 1; i < threads; ++i) pool->others.emplace_back(work, pool);
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

// Runs the program; returns when it is done. Not reentrant.
int djl_run(void* handle, const Op* ops, int count, const Step* step, int bf16) {
    auto* pool = (Pool*)handle;
    if (count > (int)pool->counters.size()) return -1;
    pool->ops = ops;
    pool->count = count;
    pool->step = step;
    pool->bf16 = bf16;
    for (int i = 0; i < count; ++i) pool->counters[i].store(0, std::memory_order_relaxed);
    if (pool->threads > 1) {
        pool->generation.fetch_add(1, std::memory_order_release);
        wake_all(pool->generation);
    }
    walk_any(*pool);
    return 0;
}

// weight (n, k) row-major, 16 or 32 bits a number -> panels (n / 64, k / pair, 64, pair), zeros beyond n.
// gate: a second weight (n, k); each panel is then 32 columns of the first and 32 of the second.
void djl_pack(const void* weight, const void* gate, void* out, int64_t n, int64_t k, int bf16) {
    const int pair = bf16 ? 2 : 1, size = bf16 ? 2 : 4;
    const int64_t columns = gate ? 2 * ((n + 31) / 32 * 32) : n, panels = (columns + kPanel - 1) / kPanel;
    for (int64_t panel = 0; panel < panels; ++panel)
        for (int64_t p = 0; p < k / pair; ++p)
            for (int c = 0; c < kPanel; ++c) {
                char* to = (char*)out + (((panel * (k / pair) + p) * kPanel) + c) * pair * size;
                const bool second = gate && c >= kPanel / 2;
                const int64_t column = gate ? panel * (kPanel / 2) + c % (kPanel / 2) : panel * kPanel + c;
                const char* from = (const char*)(second ? gate : weight) + (column * k + p * pair) * size;
                if (column < n) memcpy(to, from, (size_t)pair * size);
                else memset(to, 0, (size_t)pair * size);
            }
}

}  // extern "C"
