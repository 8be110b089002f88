// out [M, N] = x [M, K] . weight [N, K] + bias: bf16 or fp32 weights as they lie in the checkpoint, fp32 sums.
#include <algorithm>
#include <vector>

#include "dot.h"
#include "linear_amx.h"
#include "linear_halves.h"
#include "packed.h"
#include "pool.h"

namespace {

// 12 sums, 3 weights and a row fill the 16 registers of AVX2; 24, 4 and a row those of AVX-512.
constexpr int kDotRows = kLanes == 16 ? 6 : 4, kDotOutputs = kLanes == 16 ? 4 : 3;
constexpr int kBlockRows = 64;                  // rows of x that stay in the second-level cache
constexpr int kAloneRows = 4;                   // so few are widened by the caller: waking the others takes longer
constexpr int kSliceOutputs = 48;               // weight rows that one claimed slice covers

template <typename T>
void widen_row(float* out, const T* row, int count) {
    for_lanes(count, [&](int i, auto load_at, auto store_at) { store_at(out + i, load_at(row + i)); });
}

template <int MR, int NR, typename W, typename Out>
inline void store_tile(
    const float* x, int K, const W* w, size_t ldw, const float* bias, Out* out, size_t ldo) {
    float tile[MR][NR];
    dot_tile<MR, NR>(x, K, w, ldw, K, tile);
    for (int m = 0; m < MR; ++m)
        for (int n = 0; n < NR; ++n) narrow(tile[m][n] + (bias ? bias[n] : 0.0f), out + m * ldo + n);
}

template <int NR, typename W, typename Out>
void rows_times(
    const float* x, int M, int K, const W* w, size_t ldw, const float* bias, Out* out, size_t ldo) {
    int m = 0;
    for (; m + kDotRows <= M; m += kDotRows)
        store_tile<kDotRows, NR>(x + size_t(m) * K, K, w, ldw, bias, out + m * ldo, ldo);
    if (kDotRows > 4 && m + 4 <= M) {
        store_tile<4, NR>(x + size_t(m) * K, K, w, ldw, bias, out + m * ldo, ldo);
        m += 4;
    }
    for (; m + 2 <= M; m += 2) store_tile<2, NR>(x + size_t(m) * K, K, w, ldw, bias, out + m * ldo, ldo);
    if (m < M) store_tile<1, NR>(x + size_t(m) * K, K, w, ldw, bias, out + m * ldo, ldo);
}

// `widened` holds kDotOutputs rows of fp32: with several tiles of rows it pays to expand bf16 weights once.
template <int NR, typename W, typename Out>
void outputs_tile(
    const float* x, int M, int K, const W* w, const float* bias, Out* out, size_t ldo, float* widened) {
    if (sizeof(W) == 4 || M <= kDotRows) {
        rows_times<NR>(x, M, K, w, size_t(K), bias, out, ldo);
        return;
    }
    for (int n = 0; n < NR; ++n) widen_row(widened + size_t(n) * K, w + size_t(n) * K, K);
    rows_times<NR>(x, M, K, widened, size_t(K), bias, out, ldo);
}

template <typename T, typename Out>
void linear_by_vectors(Out* out, const T* x, const T* weight, const float* bias, int M, int N, int K, int ldx, int ldo) {
    static thread_local std::vector<float> storage;
    storage.resize(size_t(M) * K);
    float* wide = storage.data();  // of this thread, for all
    const auto widen_one = [&](int m) { widen_row(wide + size_t(m) * K, x + size_t(m) * ldx, K); };
    if (M <= kAloneRows)
        for (int m = 0; m < M; ++m) widen_one(m);
    else
        Pool::instance().run(M, widen_one);
    const int slices = (N + kSliceOutputs - 1) / kSliceOutputs;
    for (int first = 0; first < M; first += kBlockRows) {
        const int rows = std::min(kBlockRows, M - first);
        const float* block = wide + size_t(first) * K;
        Out* target = out + size_t(first) * ldo;
        Pool::instance().run(slices, [&](int slice) {
            static thread_local std::vector<float> widened;
            widened.resize(size_t(kDotOutputs) * K);
            const int end = std::min(N, (slice + 1) * kSliceOutputs);
            int n = slice * kSliceOutputs;
            for (; n + kDotOutputs <= end; n += kDotOutputs)
                outputs_tile<kDotOutputs>(
                    block, rows, K, weight + size_t(n) * K, bias ? bias + n : nullptr, target + n, ldo, widened.data());
            for (; n < end; ++n)
                outputs_tile<1>(
                    block, rows, K, weight + size_t(n) * K, bias ? bias + n : nullptr, target + n, ldo, widened.data());
        });
    }
}

template <typename T, typename Out>
void linear(Out* out, const T* x, const T* weight, const T* bias, int M, int N, int K, int ldx, int ldo) {
    std::vector<float> wide_bias(bias ? N : 0);
    for (size_t n = 0; n < wide_bias.size(); ++n) wide_bias[n] = widen(bias[n]);
    const float* shift = bias ? wide_bias.data() : nullptr;
#ifdef PIZARRA_AMX
    if constexpr (sizeof(T) == 2) {
        if (amx::granted()) return amx::linear(out, x, weight, shift, M, N, K, size_t(ldx), size_t(ldo));
    }
#endif
#ifdef PIZARRA_HALVES
    if constexpr (sizeof(T) == 2) return halves::linear(out, x, weight, shift, M, N, K, size_t(ldx), size_t(ldo));
#endif
    linear_by_vectors(out, x, weight, shift, M, N, K, ldx, ldo);
}

}  // namespace

extern "C" {
// Whether the system gives matrix tiles; -1 where the code has no use for them.
int32_t pz_matrix_tiles() {
#ifdef PIZARRA_AMX
    return amx::granted();
#else
    return -1;
#endif
}

PACKED(pz_linear_bf16, linear<bf16, bf16>)
PACKED(pz_linear_bf16_fp32, linear<bf16, float>)
PACKED(pz_linear_fp32, linear<float, float>)
}
