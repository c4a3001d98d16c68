// Heads on their way into the cache, and attention over it.

#pragma once

#include <algorithm>

#include "formats.h"
#include "program.h"

namespace {

constexpr int kQueries = 24;     // (query, head) pairs that share one walk over the keys
constexpr int kChunkKeys = 512;  // keys between two rescalings of the softmax

// Where a group's keys or values lie in a block: (layers, keys then values, kv_heads, group of 16 keys, dim, 16, pair).
template <class F>
inline typename F::T* key_group(const Op& op, const Step& step, int64_t block, int head, int group) {
    const int64_t groups = step.block_size / kKeys;
    auto of_layer = (typename F::T*)((char*)op.keys + block * step.block_bytes);
    return of_layer + (head * groups + group) * op.dim * kKeys;
}

template <class F>
inline typename F::T* value_group(const Op& op, const Step& step, int64_t block, int head, int group) {
    const int64_t groups = step.block_size / kKeys;
    auto of_layer = (typename F::T*)((char*)op.values + block * step.block_bytes);
    return of_layer + (head * groups + group) * op.value_dim * kKeys;
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

// Scores of R (query, head) pairs against G groups of keys; fetches their values, and the keys of the G groups after them.
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
            _mm_prefetch((const char*)keys[G + g] + p * 64, _MM_HINT_T0);
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
    // Scores are powers of two of the weights; a soft cap still has to see them as they are.
    const __m512 scale = _mm512_set1_ps(op.softcap > 0 ? op.scale : op.scale * kLog2e);
    auto position_of = [&](int pair) { return step.positions[first + pair / shared]; };
    for (int q = 0; q < count; ++q) {
        const int head = kv_head * shared + q % shared;
        const float* x = (const float*)op.in + (first + q / shared) * width + head * op.dim;
        T* to = (T*)(s.queries.data() + (size_t)q * pairs);
        for (int i = 0; i < op.dim; i += 16) {
            const __mmask16 mask = op.dim - i >= 16 ? 0xffff : (__mmask16)((1 << (op.dim - i)) - 1);
            F::store(to + i, _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), scale), mask);
        }
        s.most[q] = op.sinks ? op.sinks[head] * kLog2e : -INFINITY;
        s.total[q] = op.sinks ? 1.0f : 0.0f;
    }
    const int64_t end = position_of(count - 1) + 1;
    int64_t begin = op.window > 0 ? std::max<int64_t>(0, position_of(0) - op.window + 1) : 0;
    begin -= begin % kKeys;
    const int per_block = step.block_size / kKeys;
    const T* keys[kChunkKeys / kKeys + 2];
    const T* values[kChunkKeys / kKeys];
    for (int64_t chunk = begin; chunk < end; chunk += kChunkKeys) {
        const int groups = (int)((std::min<int64_t>(end - chunk, kChunkKeys) + kKeys - 1) / kKeys);
        for (int g = 0; g < groups; ++g) {
            const int64_t group = chunk / kKeys + g, block = table[group / per_block];
            keys[g] = key_group<F>(op, step, block, kv_head, (int)(group % per_block));
            values[g] = value_group<F>(op, step, block, kv_head, (int)(group % per_block));
        }
        keys[groups] = keys[groups + 1] = keys[groups - 1];  // what is fetched after the last
        int g = 0;
        for (; g + 2 <= groups; g += 2)
            score_all<F, 2>(s.queries.data(), count, pairs, keys + g, values + g, s.scores.data() + g * kKeys);
        if (g < groups) score_all<F, 1>(s.queries.data(), count, pairs, keys + g, values + g, s.scores.data() + g * kKeys);
        for (int q = 0; q < count; ++q) {
            float* row = s.scores.data() + (size_t)q * kChunkKeys;
            const int64_t position = position_of(q);
            __m512 top = _mm512_set1_ps(-INFINITY);
            // Groups that the query sees whole come as they are; the others, at the ends, lose what it doesn't see.
            const int64_t first_key = op.window > 0 ? position - op.window + 1 : 0;
            const int whole_from = (int)std::max<int64_t>(0, (first_key - chunk + kKeys - 1) / kKeys);
            const int whole_to = (int)std::min<int64_t>(groups, (position + 1 - chunk) / kKeys);
            for (int g = 0; g < groups; ++g) {
                __m512 x = _mm512_loadu_ps(row + g * kKeys);
                const bool whole = g >= whole_from && g < whole_to;
                if (op.softcap > 0) {
                    x = tanh_ps(_mm512_div_ps(x, _mm512_set1_ps(op.softcap)));
                    x = _mm512_mul_ps(x, _mm512_set1_ps(op.softcap * kLog2e));
                }
                if (!whole) {
                    const int64_t key = chunk + g * kKeys, visible = position - key + 1, gone = first_key - key;
                    __mmask16 mask = visible >= 16 ? 0xffff : visible <= 0 ? 0 : (__mmask16)((1 << visible) - 1);
                    if (gone > 0) mask &= gone >= 16 ? 0 : (__mmask16)(0xffff << gone);
                    x = _mm512_mask_blend_ps(mask, _mm512_set1_ps(-INFINITY), x);
                }
                if (!whole || op.softcap > 0) _mm512_storeu_ps(row + g * kKeys, x);
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
                const __m512 e = exp2_ps(_mm512_sub_ps(_mm512_loadu_ps(row + g * kKeys), _mm512_set1_ps(most)));
                total = _mm512_add_ps(total, e);
                F::store(weights + g * kKeys, e);
            }
            const float old = s.most[q] == -INFINITY ? 0.0f : exp2f(s.most[q] - most);
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

}  // namespace
