// Heads of queries, keys and values: norms, rotary embedding, and storing keys and values in the KV cache.

#pragma once

#include <algorithm>
#include <cstring>

#include "program.h"
#include "thread_pool.h"
#include "vectors/formats.h"

namespace djl {
namespace {

// The address of a group's keys, which its values follow, in a block: (layers, kv_heads, group of 16 keys, keys then values).
// Keys are (dim / pair, 16, pair), values (16 / pair, value_dim, pair).
template <class F>
inline typename F::T* key_group(const HeadRows& rows, const StepInputs& step, int64_t block, int head, int group) {
    const int64_t groups = step.block_size / kKeysPerGroup;
    auto of_layer = (typename F::T*)((char*)rows.cache + block * step.block_bytes);
    return of_layer + (head * groups + group) * (rows.dim + rows.value_dim) * kKeysPerGroup;
}

template <class T>
inline T* values_after(const HeadRows& rows, T* keys) {
    return keys + rows.dim * kKeysPerGroup;
}

template <class F>
inline typename F::T* value_group(const HeadRows& rows, const StepInputs& step, int64_t block, int head, int group) {
    return values_after(rows, key_group<F>(rows, step, block, head, group));
}

inline void norm_statistics(const float* x, int n, NormKind kind, float eps, float& mean, float& inverse) {
    if (kind == kCopy) {
        mean = 0;
        inverse = 1;
        return;
    }
    Floats sum = Floats{}, squares = Floats{};
    int i = 0;
    mean = 0;
    float tail = 0;
    if (kind == kLayer) {
        for (; i + 16 <= n; i += 16) sum = sum + load_floats(x + i);
        for (; i < n; ++i) tail += x[i];
        mean = (sum_of_lanes(sum) + tail) / n;
    }
    const Floats shift = floats(mean);
    tail = 0;
    for (i = 0; i + 16 <= n; i += 16) {
        Floats v = load_floats(x + i) - shift;
        squares = fma(v, v, squares);
    }
    for (; i < n; ++i) tail += (x[i] - mean) * (x[i] - mean);
    inverse = 1.0f / sqrtf((sum_of_lanes(squares) + tail) / n + eps);
}

inline void rotate(float* x, const Rotation& rotation, int64_t position) {
    const int half = rotation.dims / 2;
    const float* c = rotation.cosines + position * half;
    const float* s = rotation.sines + position * half;
    int done = 0;
    if (!rotation.interleaved)
        for (; done + 16 <= half; done += 16) {
            const Floats u = load_floats(x + done), v = load_floats(x + done + half);
            const Floats cosine = load_floats(c + done), sine = load_floats(s + done);
            store_floats(x + done, fma(u, cosine, -(v * sine)));
            store_floats(x + done + half, fma(v, cosine, u * sine));
        }
    for (int i = done; i < half; ++i) {
        const int a = rotation.interleaved ? 2 * i : i, b = rotation.interleaved ? 2 * i + 1 : i + half;
        const float u = x[a], v = x[b];
        x[a] = u * c[i] - v * s[i];
        x[b] = v * c[i] + u * s[i];
    }
}

// A key or a query is what is rotated and then the normed latent, which also is the value.
template <class F>
void latents(Run& run, int index, const LatentsOp& op, const StepInputs& step) {
    using T = typename F::T;
    run.parallel_for(index, step.tokens, [&](int t) {
        const T* latent = (const T*)op.in + (int64_t)t * (op.rank + op.rotary);
        const T* query_rotary = (const T*)op.query_rotary + (int64_t)t * op.stride;
        float* queries = op.out + (int64_t)t * ((op.heads + 1) * op.dim + op.rank);
        float *key = queries + op.heads * op.dim, *value = key + op.dim;
        for (int i = 0; i < op.rank; ++i) value[i] = F::to(latent[i]);
        float mean, inverse;
        norm_statistics(value, op.rank, kRms, op.eps, mean, inverse);
        for (int i = 0; i < op.rank; ++i) key[op.rotary + i] = value[i] *= inverse * op.norm[i];
        for (int i = 0; i < op.rotary; ++i) key[i] = F::to(latent[op.rank + i]);
        for (int h = 0; h < op.heads; ++h)
            for (int i = 0; i < op.rotary; ++i) queries[h * op.dim + i] = F::to(query_rotary[h * op.rotary + i]);
    });
}

template <class F>
void rope_kv_cache(Run& run, int index, const RopeKvCacheOp& op, const StepInputs& step) {
    using T = typename F::T;
    const HeadRows& rows = op.rows;
    const int queries = rows.heads * rows.dim, keys = rows.kv_heads * rows.dim;
    auto normalize_and_rotate = [&](float* x, int count, const float* weight, int64_t position) {
        const int width = op.norms_across ? count * rows.dim : rows.dim;  // of one norm
        for (int from = 0; weight && from < count * rows.dim; from += width) {
            float mean, inverse;
            norm_statistics(x + from, width, kRms, op.eps, mean, inverse);
            for (int i = 0; i < width; ++i) x[from + i] *= inverse * weight[i];
        }
        for (int h = 0; op.rotation.dims && h < count; ++h) rotate(x + h * rows.dim, op.rotation, position);
    };
    // In order: consecutive tokens write to the same cache lines.
    run.parallel_for_rows(index, step.tokens, [&](int t) {
        float* row = (float*)op.in + (int64_t)t * rows.stride;
        const int64_t position = step.rotary_rows[t];
        normalize_and_rotate(row, rows.heads, op.query_norm, position);
        if (!rows.cache) return;
        normalize_and_rotate(row + queries, rows.kv_heads, op.key_norm, position);
        const int64_t block = step.slots[t] / step.block_size;
        const int offset = (int)(step.slots[t] % step.block_size);
        const int group = offset / kKeysPerGroup, lane = offset % kKeysPerGroup;
        for (int h = 0; h < rows.kv_heads; ++h) {
            const float* key = row + queries + h * rows.dim;
            T* to = key_group<F>(rows, step, block, h, group);
            T rounded[16];
            for (int i = 0; i < rows.dim; i += 16) {
                const Lanes mask = lanes_of(rows.dim - i);
                F::store(rounded, load_floats(key + i, mask));
                for (int d = i; d < std::min(i + 16, rows.dim); d += F::pair)
                    memcpy(to + (d / F::pair * kKeysPerGroup + lane) * F::pair, rounded + d - i, sizeof(T) * F::pair);
            }
            float* value = row + queries + keys + h * rows.value_dim;
            if (op.value_norm) {
                float mean, inverse;
                norm_statistics(value, rows.value_dim, kRms, op.value_eps, mean, inverse);
                for (int i = 0; i < rows.value_dim; ++i) value[i] *= inverse * op.value_norm[i];
            }
            T* into = value_group<F>(rows, step, block, h, group) + (lane / F::pair * rows.value_dim) * F::pair;
            for (int i = 0; i < rows.value_dim; i += 16)
                F::store_in_pairs(into + i * F::pair, load_floats(value + i), lane % F::pair);
        }
    });
}

}  // namespace
}  // namespace djl
