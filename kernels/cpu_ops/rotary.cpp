// Rotary embedding of queries and keys in place, and the write of keys and values into the cache.
#include <type_traits>

#include "codes.h"
#include "pool.h"

namespace {

template <typename T>
void rotate(T* head, const float* cos, const float* sin, int half) {
    for (int i = 0; i < half; ++i) {
        const float first = widen(head[i]), second = widen(head[half + i]);
        narrow(first * cos[i] - second * sin[i], head + i);
        narrow(second * cos[i] + first * sin[i], head + half + i);
    }
}

// A cache's keys, or its values: vectors of head_dim elements one after the other.
template <typename E>
struct Vectors {
    E* elements;
    float* scales;  // of codes alone

    template <typename T>
    void put(size_t index, const T* x, int head_dim) const {
        E* target = elements + index * head_dim;
        if constexpr (std::is_same_v<E, Code>)
            scales[index] = encode(x, head_dim, target);
        else
            std::memcpy(target, x, head_dim * sizeof(T));
    }
};

template <typename T, typename E>
void rotary_kv_write(
    T* qkv, const float* cos, const float* sin, const Vectors<E>& keys, const Vectors<E>& values, const int64_t* positions,
    const int64_t* slots, int rows, int num_heads, int num_kv_heads, int block_size, int head_dim) {
    const int half = head_dim / 2;
    Pool::instance().run(rows, [&](int row) {
        if (slots[row] < 0) return;
        T* line = qkv + size_t(row) * (num_heads + 2 * num_kv_heads) * head_dim;
        const float *cos_row = cos + size_t(positions[row]) * half, *sin_row = sin + size_t(positions[row]) * half;
        for (int head = 0; head < num_heads + num_kv_heads; ++head)
            rotate(line + size_t(head) * head_dim, cos_row, sin_row, half);
        const int64_t block = slots[row] / block_size, slot = slots[row] % block_size;
        for (int head = 0; head < num_kv_heads; ++head) {
            const size_t index = (size_t(block) * num_kv_heads + head) * block_size + slot;
            const T* key = line + size_t(num_heads + head) * head_dim;
            keys.put(index, key, head_dim);
            values.put(index, key + size_t(num_kv_heads) * head_dim, head_dim);
        }
    });
}

// The cache holds codes where there are scales, else the model's own numbers.
template <typename T, typename... Rest>
void serve(
    T* qkv, const float* cos, const float* sin, void* keys, void* values, float* key_scales, float* value_scales,
    Rest... rest) {
    if (key_scales != nullptr)
        rotary_kv_write<T, Code>(
            qkv, cos, sin, {static_cast<Code*>(keys), key_scales}, {static_cast<Code*>(values), value_scales}, rest...);
    else
        rotary_kv_write<T, T>(qkv, cos, sin, {static_cast<T*>(keys), nullptr}, {static_cast<T*>(values), nullptr}, rest...);
}

}  // namespace

extern "C" {
void pz_rotary_bf16(
    bf16* qkv, const float* cos, const float* sin, void* keys, void* values, float* key_scales, float* value_scales,
    const int64_t* positions, const int64_t* slots, int rows, int num_heads, int num_kv_heads, int block_size, int head_dim) {
    serve(
        qkv, cos, sin, keys, values, key_scales, value_scales, positions, slots, rows, num_heads, num_kv_heads, block_size,
        head_dim);
}
void pz_rotary_fp32(
    float* qkv, const float* cos, const float* sin, void* keys, void* values, float* key_scales, float* value_scales,
    const int64_t* positions, const int64_t* slots, int rows, int num_heads, int num_kv_heads, int block_size, int head_dim) {
    serve(
        qkv, cos, sin, keys, values, key_scales, value_scales, positions, slots, rows, num_heads, num_kv_heads, block_size,
        head_dim);
}
}
