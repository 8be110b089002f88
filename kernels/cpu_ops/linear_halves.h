// out [M, N] = x [M, K] . weight [N, K] + bias in bf16 by AVX-512's dot products of bf16 pairs, where there is no AMX.
// Both operands are read as they lie. An output sums K in the lanes of one accumulator, in order, and the lanes at the end as
// halves onto halves, in whatever tile it stands: a row's bits do not depend on the rows beside it. Subnormal numbers count as
// zero, as these instructions take them.
#pragma once
#include "simd.h"

#if defined(__AVX512BF16__) && defined(__AVX512F__)
#define PIZARRA_HALVES 1
#include <algorithm>
#include <vector>

#include "pool.h"

namespace halves {

constexpr int kGroup = 16;                   // outputs that lie together in a tile, and sums in a tile
constexpr int kPairs = 32;                   // inputs in a vector
constexpr int kSlicesPerThread = 2;          // what a thread claims at once is long, so that what it reads ahead is its own
constexpr size_t kNearBytes = 128 << 10;     // of the next outputs that are asked for while the present ones are worked on
constexpr size_t kAheadBytes = 1024;         // along each output where its inputs are too many for that
constexpr size_t kBlockBytes = 256 << 10;    // of x that stay in the second-level cache

inline __m512bh load_pairs(const bf16* p, __mmask32 present) {
    return (__m512bh)_mm512_maskz_loadu_epi16(present, p);
}

// One step of adding up lanes: of 16 / D numbers in x and as many in y the upper halves, D lanes each, onto the lower ones.
template <int D>
inline __m512 fold(__m512 x, __m512 y) {
    alignas(64) int32_t low[kGroup], high[kGroup];
    for (int i = 0; i < kGroup; ++i) {
        low[i] = i / 8 * 16 + i % 8 / D * 2 * D + i % D;
        high[i] = low[i] + D;
    }
    return _mm512_add_ps(
        _mm512_permutex2var_ps(x, _mm512_load_si512(low), y), _mm512_permutex2var_ps(x, _mm512_load_si512(high), y));
}

// The sums of the lanes of 16 vectors.
inline __m512 sum_lanes(__m512* v) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) v[i] = fold<8>(v[2 * i], v[2 * i + 1]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) v[i] = fold<4>(v[2 * i], v[2 * i + 1]);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) v[i] = fold<2>(v[2 * i], v[2 * i + 1]);
    return fold<1>(v[0], v[1]);
}

// MR rows of x times 16 / MR outputs, as [row][output]. `ahead` is the distance of what is asked for meanwhile, or 0.
template <int MR>
inline Vec tile(const bf16* x, size_t ldx, const bf16* w, int K, ptrdiff_t ahead) {
    constexpr int NR = kGroup / MR;
    __m512 sums[kGroup];
#pragma GCC unroll 16
    for (int i = 0; i < kGroup; ++i) sums[i] = _mm512_setzero_ps();
    const auto step = [&](int k, __mmask32 present) __attribute__((always_inline)) {
        __m512bh rows[MR];
#pragma GCC unroll 4
        for (int m = 0; m < MR; ++m) rows[m] = load_pairs(x + m * ldx + k, present);
#pragma GCC unroll 16
        for (int n = 0; n < NR; ++n) {
            const bf16* own = w + size_t(n) * K + k;
            const __m512bh weights = load_pairs(own, present);
            if (ahead) __builtin_prefetch(reinterpret_cast<const char*>(own) + ahead);
#pragma GCC unroll 4
            for (int m = 0; m < MR; ++m) sums[m * NR + n] = _mm512_dpbf16_ps(sums[m * NR + n], weights, rows[m]);
        }
    };
    int k = 0;
    for (; k + kPairs <= K; k += kPairs) step(k, ~__mmask32{0});
    if (k < K) step(k, (__mmask32{1} << (K - k)) - 1);
    return reinterpret_cast<Vec>(sum_lanes(sums));
}

inline void narrow_all(const Vec v, float* to) { store(to, v); }
inline void narrow_all(const Vec v, bf16* to) {
    const __m256bh rounded = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(v));
    std::memcpy(to, &rounded, sizeof rounded);
}

// What a call multiplies.
template <typename Out>
struct Product {
    Out* out;
    const bf16 *x, *weight;
    const float* bias;
    int M, N, K;
    size_t ldx, ldo;

    // Rows m to m + MR times the 16 outputs or fewer from `first` on, whose weights lie at w.
    template <int MR>
    void rows(int m, const bf16* w, int first, ptrdiff_t ahead) const {
        constexpr int NR = kGroup / MR;
        for (int n = first; n < std::min(first + kGroup, N); n += NR) {
            Vec sums = tile<MR>(x + m * ldx, ldx, w + size_t(n - first) * K, K, ahead);
            const int count = std::min(NR, N - n);
            if (bias) {
                float shift[kGroup] = {};
                for (int row = 0; row < MR; ++row) std::copy_n(bias + n, count, shift + row * NR);
                sums += load(shift);
            }
            Out results[kGroup];
            narrow_all(sums, results);
            for (int row = 0; row < MR; ++row) {
                Out* target = out + (m + row) * ldo + n;
                if (count == NR)
                    std::memcpy(target, results + row * NR, sizeof(Out) * NR);  // of a size that the compiler knows
                else
                    std::copy_n(results + row * NR, count, target);
            }
        }
    }

    // 16 outputs or fewer times all rows. What lies `ahead` of the weights is asked for with the first rows.
    void group(int first, ptrdiff_t ahead) const {
        const bf16* w = weight + size_t(first) * K;
        if (first + kGroup > N) {  // tiles read 16 outputs
            static thread_local std::vector<bf16> copy;
            copy.assign(size_t(kGroup) * K, bf16{0});
            std::copy_n(w, size_t(N - first) * K, copy.data());
            w = copy.data(), ahead = 0;
        }
        int m = 0;
        for (; m + 4 <= M; m += 4, ahead = 0) rows<4>(m, w, first, ahead);
        if (m + 2 <= M) rows<2>(m, w, first, ahead), m += 2, ahead = 0;
        if (m < M) rows<1>(m, w, first, ahead);
    }
};

template <typename Out>
void linear(Out* out, const bf16* x, const bf16* weight, const float* bias, int M, int N, int K, size_t ldx, size_t ldo) {
    const int groups = (N + kGroup - 1) / kGroup, threads = Pool::instance().size();
    const int slices = std::min(groups, threads * kSlicesPerThread);
    const size_t group_bytes = sizeof(bf16) * kGroup * K;
    const int block = std::max<int>(64, kBlockBytes / sizeof(bf16) / K / 4 * 4);
    for (int first = 0; first < M; first += block) {
        const Product<Out> part{
            out + first * ldo, x + first * ldx, weight, bias, std::min(block, M - first), N, K, ldx, ldo};
        Pool::instance().run(slices, [&](int slice) {
            const auto edge = [&](int i) { return int(int64_t(groups) * i / slices); };
            const int end = edge(slice + 1), then = slice + threads < slices ? edge(slice + threads) : end;
            for (int group = edge(slice); group < end; ++group) {
                const ptrdiff_t next = (group + 1 < end ? 1 : then - group) * ptrdiff_t(group_bytes);
                part.group(group * kGroup, group_bytes > kNearBytes ? ptrdiff_t(kAheadBytes) : next);
            }
        });
    }
}

}  // namespace halves
#endif
