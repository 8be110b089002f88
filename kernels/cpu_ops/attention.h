// What attention works on: the paged cache, the step's inputs, the model's shape. See kernels/ops.py, PagedAttention.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

constexpr int kChunkKeys = 64;  // keys whose scores are held at once; fixed, so that sums run in one order

template <typename T>
struct Cache {
    const T* keys;
    const T* values;
    int num_kv_heads, block_size, head_dim;

    size_t offset(int block, int head, int slot) const {
        return ((size_t(block) * num_kv_heads + head) * block_size + slot) * head_dim;
    }
};

template <typename T>
struct AttentionInputs {
    const T *qkv, *keys, *values;
    const int32_t *tables, *owners;
    const int64_t* positions;
};

struct AttentionShape {
    int rows, num_heads, num_kv_heads, block_size, head_dim, table_stride, qkv_stride, window;
    float scale, soft_cap;

    int group() const { return num_heads / num_kv_heads; }  // query heads to a head of keys
    int first_key(int position) const { return window > 0 ? std::max(0, position + 1 - window) : 0; }
};
