// Causal attention of each row over its request's paged keys and values, in chunks of a fixed number of keys.
#include <algorithm>
#include <cmath>
#include <vector>

#include "attention.h"
#include "attention_amx.h"
#include "dot.h"
#include "pool.h"

namespace {

constexpr int kKeyTile = 4;     // keys scored together

// The online softmax of one query: a running peak, the sum of weights, the weighted sum of values.
struct Running {
    float peak = -INFINITY, total = 0.0f;
};

template <typename T>
void chunk_scores(
    const Cache<T>& cache, const int32_t* table, int head, const float* query, int first, int count, float* scores) {
    const int D = cache.head_dim;
    int i = 0;
    while (i < count) {
        const int slot = (first + i) % cache.block_size;
        const T* key = cache.keys + cache.offset(table[(first + i) / cache.block_size], head, slot);
        const int together = std::min({kKeyTile, count - i, cache.block_size - slot});
        float tile[1][kKeyTile];
        if (together == kKeyTile) {
            dot_tile<1, kKeyTile>(query, D, key, D, D, tile);
            for (int n = 0; n < kKeyTile; ++n) scores[i + n] = tile[0][n];
        } else {
            for (int n = 0; n < together; ++n) {
                float one[1][1];
                dot_tile<1, 1>(query, D, key + size_t(n) * D, D, D, one);
                scores[i + n] = one[0][0];
            }
        }
        i += together;
    }
}

template <typename T>
void add_values(
    const Cache<T>& cache, const int32_t* table, int head, const float* weights, int first, int count, float* mixed) {
    const int D = cache.head_dim, whole = D - D % kLanes;
    for (int i = 0; i < count; ++i) {
        const T* value =
            cache.values +
            cache.offset(table[(first + i) / cache.block_size], head, (first + i) % cache.block_size);
        const Vec weight = splat(weights[i]);
        for (int d = 0; d < whole; d += kLanes) store(mixed + d, fma(weight, load(value + d), load(mixed + d)));
        for (int d = whole; d < D; ++d) mixed[d] += weights[i] * widen(value[d]);
    }
}

// One query over keys start..position; scores are capped where soft_cap is above 0.
template <typename T>
void attend(
    const Cache<T>& cache, const int32_t* table, int head, const float* query, int start, int position, float soft_cap,
    float* mixed) {
    Running running;
    const int D = cache.head_dim;
    std::fill(mixed, mixed + D, 0.0f);
    for (int first = start; first <= position; first += kChunkKeys) {
        const int count = std::min(kChunkKeys, position + 1 - first);
        float scores[kChunkKeys];
        chunk_scores(cache, table, head, query, first, count, scores);
        if (soft_cap > 0.0f)
            for_lanes(count, [&](int i, auto load_at, auto store_at) {
                store_at(scores + i, tanh(load_at(scores + i) / soft_cap) * soft_cap);
            });
        std::fill(scores + count, scores + kChunkKeys, -INFINITY);
        const float peak = std::max(running.peak, *std::max_element(scores, scores + count));
        const float shrink = running.peak == -INFINITY ? 0.0f : std::exp(running.peak - peak);
        Vec total{};
        for (int i = 0; i < kChunkKeys; i += kLanes) {
            const Vec weight = exp(load(scores + i) - peak);
            store(scores + i, weight);
            total += weight;
        }
        running.total = running.total * shrink + sum(total);
        running.peak = peak;
        for (int d = 0; d < D; ++d) mixed[d] *= shrink;
        add_values(cache, table, head, scores, first, count, mixed);
    }
    for (int d = 0; d < D; ++d) mixed[d] /= running.total;
}

template <typename T>
void attention_by_vectors(T* out, const AttentionInputs<T>& inputs, const AttentionShape& shape) {
    const Cache<T> cache{inputs.keys, inputs.values, shape.num_kv_heads, shape.block_size, shape.head_dim};
    const int group = shape.group(), D = shape.head_dim;
    Pool::instance().run(shape.rows * shape.num_kv_heads, [&](int slice) {
        const int row = slice / shape.num_kv_heads, head = slice % shape.num_kv_heads;
        static thread_local std::vector<float> scratch;
        scratch.resize(size_t(2) * D);
        float *query = scratch.data(), *mixed = query + D;
        for (int g = 0; g < group; ++g) {
            const size_t column = size_t(head * group + g) * D;
            T* target = out + size_t(row) * shape.num_heads * D + column;
            if (inputs.owners[row] < 0) {
                for (int d = 0; d < D; ++d) narrow(0.0f, target + d);
                continue;
            }
            const T* source = inputs.qkv + size_t(row) * shape.qkv_stride + column;
            for (int d = 0; d < D; ++d) query[d] = widen(source[d]) * shape.scale;
            const int32_t* table = inputs.tables + size_t(inputs.owners[row]) * shape.table_stride;
            const int position = int(inputs.positions[row]);
            attend(cache, table, head, query, shape.first_key(position), position, shape.soft_cap, mixed);
            for (int d = 0; d < D; ++d) narrow(mixed[d], target + d);
        }
    });
}

}  // namespace

extern "C" {
void pz_attention_bf16(
    bf16* out, const bf16* qkv, const bf16* keys, const bf16* values, const int32_t* tables, const int32_t* owners,
    const int64_t* positions, int rows, int num_heads, int num_kv_heads, int block_size, int head_dim, int table_stride,
    int qkv_stride, int window, float scale, float soft_cap) {
    const AttentionInputs<bf16> inputs{qkv, keys, values, tables, owners, positions};
    const AttentionShape shape{rows,         num_heads,  num_kv_heads, block_size, head_dim,
                               table_stride, qkv_stride, window,       scale,      soft_cap};
#ifdef PIZARRA_AMX
    if (amx_granted()) return amx::attention(out, inputs, shape);
#endif
    attention_by_vectors(out, inputs, shape);
}
void pz_attention_fp32(
    float* out, const float* qkv, const float* keys, const float* values, const int32_t* tables, const int32_t* owners,
    const int64_t* positions, int rows, int num_heads, int num_kv_heads, int block_size, int head_dim, int table_stride,
    int qkv_stride, int window, float scale, float soft_cap) {
    const AttentionInputs<float> inputs{qkv, keys, values, tables, owners, positions};
    const AttentionShape shape{rows,         num_heads,  num_kv_heads, block_size, head_dim,
                               table_stride, qkv_stride, window,       scale,      soft_cap};
    attention_by_vectors(out, inputs, shape);
}
}
