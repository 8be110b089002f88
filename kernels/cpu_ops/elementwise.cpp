// The ops between the products: norms, rotary embedding with the cache write, gated activations, scales and caps. One row
// at a time.
#include <cmath>

#include "pool.h"
#include "simd.h"

namespace {

template <typename T>
void norm_row(T* out, const T* x, const T* weight, int H, float eps, float offset) {
    Vec squares{};
    for_lanes(H, [&](int h, auto load_at, auto) {
        const Vec v = load_at(x + h);
        squares = fma(v, v, squares);
    });
    const Vec inverse = splat(1.0f / std::sqrt(sum(squares) / float(H) + eps));
    for_lanes(H, [&](int h, auto load_at, auto store_at) {
        store_at(out + h, load_at(x + h) * inverse * (load_at(weight + h) + offset));
    });
}

template <typename T>
void add_row(T* residual, const T* x, int H) {
    for_lanes(H, [&](int h, auto load_at, auto store_at) {
        store_at(residual + h, load_at(residual + h) + load_at(x + h));
    });
}

template <typename T>
void add_norm(T* out, T* residual, const T* x, const T* weight, int rows, int H, float eps, float offset) {
    Pool::instance().run(rows, [&](int row) {
        T* line = residual + size_t(row) * H;
        if (x != nullptr) add_row(line, x + size_t(row) * H, H);
        norm_row(out + size_t(row) * H, line, weight, H, eps, offset);
    });
}

template <typename T>
void group_norm(
    T* x, const T* weight, int rows, int width, int first, int groups, int size, float eps, float offset) {
    Pool::instance().run(rows, [&](int row) {
        T* line = x + size_t(row) * width + first;
        for (int g = 0; g < groups; ++g) norm_row(line + g * size, line + g * size, weight, size, eps, offset);
    });
}

template <typename T>
void add(T* residual, const T* x, int rows, int H) {
    Pool::instance().run(rows, [&](int row) { add_row(residual + size_t(row) * H, x + size_t(row) * H, H); });
}

// x = function(x), element by element.
template <typename T, typename Function>
void map_rows(T* x, int rows, int H, const Function& function) {
    Pool::instance().run(rows, [&](int row) {
        T* line = x + size_t(row) * H;
        for_lanes(H, [&](int h, auto load_at, auto store_at) { store_at(line + h, function(load_at(line + h))); });
    });
}

template <typename T>
void scale(T* x, int rows, int H, float factor) {
    map_rows(x, rows, H, [=](Vec v) { return v * factor; });
}

template <typename T>
void soft_cap(T* x, int rows, int H, float cap) {
    map_rows(x, rows, H, [=](Vec v) { return tanh(v / cap) * cap; });
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

inline Vec silu(Vec x) { return x / (1.0f + exp(-x)); }

// x / 2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3): no cancellation.
inline Vec gelu(Vec x) {
    const Vec inner = fma(x * x * x, splat(0.044715f), x);
    return x / (1.0f + exp(inner * -1.5957691216057308f));
}

template <typename T, typename Activation>
void gated(T* out, const T* gate_up, int rows, int inner, const Activation& activation) {
    Pool::instance().run(rows, [&](int row) {
        const T *gate = gate_up + size_t(row) * 2 * inner, *up = gate + inner;
        T* target = out + size_t(row) * inner;
        for_lanes(inner, [&](int i, auto load_at, auto store_at) {
            store_at(target + i, activation(load_at(gate + i)) * load_at(up + i));
        });
    });
}

}  // namespace

extern "C" {
void pz_add_norm_bf16(
    bf16* out, bf16* residual, const bf16* x, const bf16* weight, int rows, int H, float eps, float offset) {
    add_norm(out, residual, x, weight, rows, H, eps, offset);
}
void pz_group_norm_bf16(
    bf16* x, const bf16* weight, int rows, int width, int first, int groups, int size, float eps, float offset) {
    group_norm(x, weight, rows, width, first, groups, size, eps, offset);
}
void pz_add_bf16(bf16* residual, const bf16* x, int rows, int H) { add(residual, x, rows, H); }
void pz_scale_bf16(bf16* x, int rows, int H, float factor) { scale(x, rows, H, factor); }
void pz_soft_cap_bf16(bf16* x, int rows, int H, float cap) { soft_cap(x, rows, H, cap); }
void pz_silu_mul_bf16(bf16* out, const bf16* gate_up, int rows, int inner) { gated(out, gate_up, rows, inner, silu); }
void pz_gelu_mul_bf16(bf16* out, const bf16* gate_up, int rows, int inner) { gated(out, gate_up, rows, inner, gelu); }
void pz_add_norm_fp32(
    float* out, float* residual, const float* x, const float* weight, int rows, int H, float eps, float offset) {
    add_norm(out, residual, x, weight, rows, H, eps, offset);
}
void pz_group_norm_fp32(
    float* x, const float* weight, int rows, int width, int first, int groups, int size, float eps, float offset) {
    group_norm(x, weight, rows, width, first, groups, size, eps, offset);
}
void pz_add_fp32(float* residual, const float* x, int rows, int H) { add(residual, x, rows, H); }
void pz_scale_fp32(float* x, int rows, int H, float factor) { scale(x, rows, H, factor); }
void pz_soft_cap_fp32(float* x, int rows, int H, float cap) { soft_cap(x, rows, H, cap); }
void pz_silu_mul_fp32(float* out, const float* gate_up, int rows, int inner) { gated(out, gate_up, rows, inner, silu); }
void pz_gelu_mul_fp32(float* out, const float* gate_up, int rows, int inner) { gated(out, gate_up, rows, inner, gelu); }
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
}
