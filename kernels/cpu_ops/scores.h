// A row of scores as peaks, filters, draws and log probabilities see it: compared in vectors of floats, exponentials in
// doubles. Every loop is over one row, in an order that depends on nothing but its length.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "simd.h"

constexpr float kNone = -std::numeric_limits<float>::infinity();  // the score of a token that is out
constexpr int kHalf = kLanes / 2;

typedef double VecD __attribute__((vector_size(8 * kHalf)));
typedef int64_t VecL __attribute__((vector_size(8 * kHalf)));
typedef float VecF __attribute__((vector_size(4 * kHalf)));

// One bit a lane, lowest first: a >= b; and a or b is not a number.
inline uint32_t at_least(Vec a, Vec b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), _CMP_GE_OQ);
#elif defined(__FMA__)
    return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), _CMP_GE_OQ)));
#else
    uint32_t bits = 0;
    for (int i = 0; i < kLanes; ++i) bits |= uint32_t(a[i] >= b[i]) << i;
    return bits;
#endif
}
inline uint32_t unordered(Vec a, Vec b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), _CMP_UNORD_Q);
#elif defined(__FMA__)
    return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), _CMP_UNORD_Q)));
#else
    uint32_t bits = 0;
    for (int i = 0; i < kLanes; ++i) bits |= uint32_t(a[i] != a[i] || b[i] != b[i]) << i;
    return bits;
#endif
}

// The larger of two numbers; of a number in `most` and what is not one, the number.
inline Vec larger(Vec x, Vec most) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec>(_mm512_max_ps(reinterpret_cast<__m512>(x), reinterpret_cast<__m512>(most)));
#elif defined(__FMA__)
    return reinterpret_cast<Vec>(_mm256_max_ps(reinterpret_cast<__m256>(x), reinterpret_cast<__m256>(most)));
#else
    return x > most ? x : most;
#endif
}

inline float largest(Vec v) {
    float most = v[0];
    for (int i = 1; i < kLanes; ++i) most = v[i] > most ? v[i] : most;
    return most;
}

// The first `count` scores, then tokens that are out.
inline Vec load_scores(const float* p, int count) {
    float lanes[kLanes];
    std::fill(lanes, lanes + kLanes, kNone);
    std::memcpy(lanes, p, sizeof(float) * size_t(count));
    return load(lanes);
}

// body(offset, scores, count) over `count` scores, a vector at a time.
template <typename Body>
inline void for_scores(const float* p, int count, const Body& body) {
    int i = 0;
    for (; i + kLanes <= count; i += kLanes) body(i, load(p + i), kLanes);
    if (i < count) body(i, load_scores(p + i, count - i), count - i);
}

inline VecD splat_double(double x) { return x - VecD{}; }

inline VecD fma(VecD a, VecD b, VecD c) {
#if defined(__AVX512F__)
    typedef __m512d D;
    return reinterpret_cast<VecD>(_mm512_fmadd_pd(reinterpret_cast<D>(a), reinterpret_cast<D>(b), reinterpret_cast<D>(c)));
#elif defined(__FMA__)
    typedef __m256d D;
    return reinterpret_cast<VecD>(_mm256_fmadd_pd(reinterpret_cast<D>(a), reinterpret_cast<D>(b), reinterpret_cast<D>(c)));
#else
    return a * b + c;
#endif
}

// e^x for x from -700 to 0, relative error below 1e-15; what is less counts as -700. Range reduction by ln 2 in two parts,
// then the Taylor series to the 12th power. The series of kSeries vectors take turns: each waits for its last product, and
// between them there is time for others.
constexpr int kSeries = 4;
inline void exp(VecD* x) {
    const VecD low = splat_double(-700.0), magic = splat_double(6755399441055744.0);  // 1.5 * 2^52: adding it rounds
    VecD shifted[kSeries], r[kSeries], p[kSeries];
    for (int i = 0; i < kSeries; ++i) {
        x[i] = x[i] > low ? x[i] : low;
        shifted[i] = x[i] * 1.4426950408889634 + magic;
        const VecD n = shifted[i] - magic;
        r[i] = fma(n, splat_double(-6.93147180369123816490e-1), x[i]);
        r[i] = fma(n, splat_double(-1.90821492927058770002e-10), r[i]);
        p[i] = splat_double(1.0 / 479001600);
    }
    for (double factorial : {39916800., 3628800., 362880., 40320., 5040., 720., 120., 24., 6., 2., 1., 1.})
#pragma GCC unroll 4
        for (int i = 0; i < kSeries; ++i) p[i] = fma(p[i], r[i], splat_double(1.0 / factorial));
    for (int i = 0; i < kSeries; ++i) {
        const VecL exponent = reinterpret_cast<VecL>(shifted[i]) << 52;  // n stands in the lowest bits
        x[i] = reinterpret_cast<VecD>(reinterpret_cast<VecL>(p[i]) + exponent);
    }
}

// body(weights) for e^(score - largest) of `count` scores, kSeries vectors at a time; behind the last score they are as
// good as 0.
template <typename Body>
inline void for_weights(const float* p, int count, double largest, const Body& body) {
    constexpr int kTaken = kSeries * kHalf;
    float rest[kTaken];
    for (int first = 0; first < count; first += kTaken) {
        const float* scores = p + first;
        if (count - first < kTaken) {
            std::fill(rest, rest + kTaken, kNone);
            scores = std::copy(scores, p + count, rest) - (count - first);
        }
        VecD weights[kSeries];
        for (int i = 0; i < kSeries; ++i) {
            VecF half;
            std::memcpy(&half, scores + i * kHalf, sizeof half);
            weights[i] = __builtin_convertvector(half, VecD) - largest;
        }
        exp(weights);
        body(weights);
    }
}

// The sum of e^(score - largest), in one order for rows of one length.
inline double sum_of_weights(const float* scores, int count, double largest) {
    VecD sums[kSeries] = {};
    for_weights(scores, count, largest, [&](const VecD* weights) {
        for (int i = 0; i < kSeries; ++i) sums[i] += weights[i];
    });
    const VecD both = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    double sum = 0;
    for (int i = 0; i < kHalf; ++i) sum += both[i];
    return sum;
}

// The lanes of `scores` that `bits` names, from left to right, at `out`, where there is room for a whole vector. How many.
inline int compress(float* out, Vec scores, uint32_t bits) {
#if defined(__AVX512F__)
    store(out, reinterpret_cast<Vec>(_mm512_maskz_compress_ps(__mmask16(bits), reinterpret_cast<__m512>(scores))));
    return __builtin_popcount(bits);
#else
    int count = 0;
    for (int i = 0; i < kLanes; ++i) {
        out[count] = scores[i];
        count += int(bits >> i & 1);
    }
    return count;
#endif
}
