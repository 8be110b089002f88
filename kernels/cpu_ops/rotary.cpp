// Rotary embedding of queries and keys in place, and the write of keys and values into the cache.
#include <type_traits>

#include "codes.h"
#include "packed.h"
#include "rows.h"

namespace {

template <typename T>
void rotate(T* head, const float* cos, const float* sin, int half) {
    for_lanes(half, [&](int i, auto load_at, auto store_at) {
        const Vec first = load_at(head + i), second = load_at(head + half + i), c = load_at(cos + i), s = load_at(sin + i);
        store_at(head + i, first * c - second * s);
        store_at(head + half + i, second * c + first * s);
    });
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
    const int row_ns = 1 + (num_heads + 2 * num_kv_heads) * head_dim / kLanes * 2;
    for_rows(rows, row_ns, [&](int row) {
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
template <typename T>
void rotary(
    T* qkv, const float* cos, const float* sin, void* keys, void* values, float* key_scales, float* value_scales,
    const int64_t* positions, const int64_t* slots, int rows, int num_heads, int num_kv_heads, int block_size, int head_dim) {
    const auto write = [&]<typename E>(E* typed_keys) {
        E* typed_values = static_cast<E*>(values);
        rotary_kv_write<T, E>(
            qkv, cos, sin, {typed_keys, key_scales}, {typed_values, value_scales}, positions, slots, rows, num_heads,
            num_kv_heads, block_size, head_dim);
    };
    if (key_scales != nullptr)
        write(static_cast<Code*>(keys));
    else
        write(static_cast<T*>(keys));
}

}  // namespace

extern "C" {
PACKED(pz_rotary_bf16, rotary<bf16>)
PACKED(pz_rotary_fp32, rotary<float>)
}
