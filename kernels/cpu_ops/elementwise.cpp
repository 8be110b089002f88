// The ops between the products: norms, gated activations, scales and caps. One row at a time.
#include <cmath>

#include "exponential.h"
#include "packed.h"
#include "rows.h"

namespace {

// Roughly, of a row of `count` numbers where every vector of them takes that many nanoseconds.
inline int row_ns(int count, int vector_ns) { return 1 + count / kLanes * vector_ns; }

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
    for_rows(rows, row_ns(H, 3), [&](int row) {
        T* line = residual + size_t(row) * H;
        if (x != nullptr) add_row(line, x + size_t(row) * H, H);
        norm_row(out + size_t(row) * H, line, weight, H, eps, offset);
    });
}

template <typename T>
void group_norm(
    T* x, const T* weight, int rows, int width, int first, int groups, int size, float eps, float offset) {
    for_rows(rows, row_ns(groups * size, 4), [&](int row) {
        T* line = x + size_t(row) * width + first;
        for (int g = 0; g < groups; ++g) norm_row(line + g * size, line + g * size, weight, size, eps, offset);
    });
}

template <typename T>
void add(T* residual, const T* x, int rows, int H) {
    for_rows(rows, row_ns(H, 2), [&](int row) { add_row(residual + size_t(row) * H, x + size_t(row) * H, H); });
}

// x = function(x), element by element.
template <typename T, typename Function>
void map_rows(T* x, int rows, int H, int vector_ns, const Function& function) {
    for_rows(rows, row_ns(H, vector_ns), [&](int row) {
        T* line = x + size_t(row) * H;
        for_lanes(H, [&](int h, auto load_at, auto store_at) { store_at(line + h, function(load_at(line + h))); });
    });
}

template <typename T>
void scale(T* x, int rows, int H, float factor) {
    map_rows(x, rows, H, 1, [=](Vec v) { return v * factor; });
}

template <typename T>
void soft_cap(T* x, int rows, int H, float cap) {
    map_rows(x, rows, H, 8, [=](Vec v) { return tanh(v / cap) * cap; });
}

inline Vec silu(Vec x) { return x / (1.0f + exp(-x)); }

// x / 2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3): no cancellation.
inline Vec gelu(Vec x) {
    const Vec inner = fma(x * x * x, splat(0.044715f), x);
    return x / (1.0f + exp(inner * -1.5957691216057308f));
}

template <typename T, typename Activation>
void gated(T* out, const T* gate_up, int rows, int inner, const Activation& activation) {
    for_rows(rows, row_ns(inner, 5), [&](int row) {
        const T *gate = gate_up + size_t(row) * 2 * inner, *up = gate + inner;
        T* target = out + size_t(row) * inner;
        for_lanes(inner, [&](int i, auto load_at, auto store_at) {
            store_at(target + i, activation(load_at(gate + i)) * load_at(up + i));
        });
    });
}

template <typename T>
void silu_mul(T* out, const T* gate_up, int rows, int inner) {
    gated(out, gate_up, rows, inner, [](Vec x) { return silu(x); });
}

template <typename T>
void gelu_mul(T* out, const T* gate_up, int rows, int inner) {
    gated(out, gate_up, rows, inner, [](Vec x) { return gelu(x); });
}

}  // namespace

extern "C" {
PACKED(pz_add_norm_bf16, add_norm<bf16>)
PACKED(pz_group_norm_bf16, group_norm<bf16>)
PACKED(pz_add_bf16, add<bf16>)
PACKED(pz_scale_bf16, scale<bf16>)
PACKED(pz_soft_cap_bf16, soft_cap<bf16>)
PACKED(pz_silu_mul_bf16, silu_mul<bf16>)
PACKED(pz_gelu_mul_bf16, gelu_mul<bf16>)
PACKED(pz_add_norm_fp32, add_norm<float>)
PACKED(pz_group_norm_fp32, group_norm<float>)
PACKED(pz_add_fp32, add<float>)
PACKED(pz_scale_fp32, scale<float>)
PACKED(pz_soft_cap_fp32, soft_cap<float>)
PACKED(pz_silu_mul_fp32, silu_mul<float>)
PACKED(pz_gelu_mul_fp32, gelu_mul<float>)
}
