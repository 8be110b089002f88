// The ops between the products: norms, rotary embedding with the cache write, the gated activation. One row at a time.
#include <cmath>

#include "pool.h"
#include "simd.h"

namespace {

template <typename T>
void norm_row(T* out, const T* x, const T* weight, int H, float eps) {
    Vec squares{};
    for_lanes(H, [&](int h, auto load_at, auto) {
        const Vec v = load_at(x + h);
        squares = fma(v, v, squares);
    });
    const Vec inverse = splat(1.0f / std::sqrt(sum(squares) / float(H) + eps));
    for_lanes(H, [&](int h, auto load_at, auto store_at) {
        store_at(out + h, load_at(x + h) * inverse * load_at(weight + h));
    });
}

template <typename T>
void add_norm(T* out, T* residual, const T* x, const T* weight, int rows, int H, float eps) {
    Pool::instance().run(rows, [&](int row) {
        T* line = residual + size_t(row) * H;
        if (x != nullptr)
            for_lanes(H, [&](int h, auto load_at, auto store_at) {
                store_at(line + h, load_at(line + h) + load_at(x + size_t(row) * H + h));
            });
        norm_row(out + size_t(row) * H, line, weight, H, eps);
    });
}

template <typename T>
void rotate(T* head, const float* cos, const float* sin, int half) {
    for (int i = 0; i < half; ++i) {
        const float first = widen(head[i]), second = widen(head[half + i]);
        narrow(first * cos[i] - second * sin[i], head + i);
        narrow(second * cos[i] + first * sin[i], head + half + i);
    }
}

template <typename T>
void rotary_kv_write(
    T* qkv, const float* cos, const float* sin, T* keys, T* values, const int64_t* positions, const int64_t* slots,
    int rows, int num_heads, int num_kv_heads, int block_size, int head_dim) {
    const int half = head_dim / 2;
    Pool::instance().run(rows, [&](int row) {
        if (slots[row] < 0) return;
        T* line = qkv + size_t(row) * (num_heads + 2 * num_kv_heads) * head_dim;
        const float *cos_row = cos + size_t(positions[row]) * half, *sin_row = sin + size_t(positions[row]) * half;
        for (int head = 0; head < num_heads + num_kv_heads; ++head)
            rotate(line + size_t(head) * head_dim, cos_row, sin_row, half);
        const int64_t block = slots[row] / block_size, slot = slots[row] % block_size;
        for (int head = 0; head < num_kv_heads; ++head) {
            const size_t target = ((size_t(block) * num_kv_heads + head) * block_size + slot) * head_dim;
            const T* key = line + size_t(num_heads + head) * head_dim;
            std::memcpy(keys + target, key, head_dim * sizeof(T));
            std::memcpy(values + target, key + size_t(num_kv_heads) * head_dim, head_dim * sizeof(T));
        }
    });
}

template <typename T>
void silu_mul(T* out, const T* gate_up, int rows, int inner) {
    Pool::instance().run(rows, [&](int row) {
        const T *gate = gate_up + size_t(row) * 2 * inner, *up = gate + inner;
        T* target = out + size_t(row) * inner;
        for_lanes(inner, [&](int i, auto load_at, auto store_at) {
            const Vec g = load_at(gate + i);
            store_at(target + i, g / (1.0f + exp(-g)) * load_at(up + i));
        });
    });
}

}  // namespace

extern "C" {
void pz_add_norm_bf16(bf16* out, bf16* residual, const bf16* x, const bf16* weight, int rows, int H, float eps) {
    add_norm(out, residual, x, weight, rows, H, eps);
}
void pz_add_norm_fp32(float* out, float* residual, const float* x, const float* weight, int rows, int H, float eps) {
    add_norm(out, residual, x, weight, rows, H, eps);
}
void pz_rotary_bf16(
    bf16* qkv, const float* cos, const float* sin, bf16* keys, bf16* values, const int64_t* positions,
    const int64_t* slots, int rows, int num_heads, int num_kv_heads, int block_size, int head_dim) {
    rotary_kv_write(
        qkv, cos, sin, keys, values, positions, slots, rows, num_heads, num_kv_heads, block_size, head_dim);
}
void pz_rotary_fp32(
    float* qkv, const float* cos, const float* sin, float* keys, float* values, const int64_t* positions,
    const int64_t* slots, int rows, int num_heads, int num_kv_heads, int block_size, int head_dim) {
    rotary_kv_write(
        qkv, cos, sin, keys, values, positions, slots, rows, num_heads, num_kv_heads, block_size, head_dim);
}
void pz_silu_mul_bf16(bf16* out, const bf16* gate_up, int rows, int inner) { silu_mul(out, gate_up, rows, inner); }
void pz_silu_mul_fp32(float* out, const float* gate_up, int rows, int inner) { silu_mul(out, gate_up, rows, inner); }
}
