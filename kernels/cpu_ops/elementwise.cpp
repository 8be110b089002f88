// The ops between the products: norms, gated activations, scales and caps. One row at a time.
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
}
