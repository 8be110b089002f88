// Powers of 2 and of e for softmax and activations, and the tangent made of them. Polynomials: least relative error, with 1 at
// 0 exactly.
#pragma once
#include <initializer_list>

#include "simd.h"

// p * 2^n for whole numbers n from -127 on, 0 where n is -127 (with AVX-512, n may be anything).
inline Vec times_power(Vec p, Vec n) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec>(_mm512_scalef_ps(reinterpret_cast<__m512>(p), reinterpret_cast<__m512>(n)));
#else
    return p * reinterpret_cast<Vec>((__builtin_convertvector(n, VecI) + 127) << 23);
#endif
}

// To the nearest whole number, ties to even; |x| below 2^22.
inline Vec nearest(Vec x) {
#if defined(__AVX512F__)
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return reinterpret_cast<Vec>(_mm512_roundscale_ps(reinterpret_cast<__m512>(x), kNearest));
#elif defined(__AVX2__) && defined(__FMA__)
    return reinterpret_cast<Vec>(_mm256_round_ps(reinterpret_cast<__m256>(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
    const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    return (x + magic) - magic;
#endif
}

// The larger of both; y where either is a NaN.
inline Vec larger(Vec x, Vec y) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec>(_mm512_max_ps(reinterpret_cast<__m512>(x), reinterpret_cast<__m512>(y)));
#elif defined(__AVX2__) && defined(__FMA__)
    return reinterpret_cast<Vec>(_mm256_max_ps(reinterpret_cast<__m256>(x), reinterpret_cast<__m256>(y)));
#else
    return x > y ? x : y;
#endif
}

// The smaller of both; y where either is a NaN.
inline Vec smaller(Vec x, Vec y) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec>(_mm512_min_ps(reinterpret_cast<__m512>(x), reinterpret_cast<__m512>(y)));
#elif defined(__AVX2__) && defined(__FMA__)
    return reinterpret_cast<Vec>(_mm256_min_ps(reinterpret_cast<__m256>(x), reinterpret_cast<__m256>(y)));
#else
    return x < y ? x : y;
#endif
}

// The largest lane.
inline float highest(Vec v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(reinterpret_cast<__m512>(v));
#else
    const Vec four = larger(v, shuffle<[](int lane) { return lane ^ 4; }>(v, v));
    const Vec two = larger(four, shuffle<[](int lane) { return lane ^ 2; }>(four, four));
    return two[0] > two[1] ? two[0] : two[1];
#endif
}

// 2^x for x up to 127, relative error below 2e-7; exactly 1 for 0, and exactly 0 from some -150 down (-127 without AVX-512).
inline Vec exp2(Vec x) {
#if defined(__AVX512F__)
    x = larger(splat(-200.0f), x);
#else
    x = larger(splat(-127.0f), x);
#endif
    const Vec n = nearest(x), r = x - n;
    Vec p = splat(1.3264727065e-3f);
    for (float coefficient : {9.6715126489e-3f, 5.5507337437e-2f, 2.4022242085e-1f, 6.9314697760e-1f, 1.0f})
        p = fma(p, r, splat(coefficient));
    return times_power(p, n);
}

// e^x, relative error below 2e-7 for x from -87 to 88, and beyond these what it is there.
inline Vec exp(Vec x) {
    x = smaller(splat(88.0f), larger(splat(-87.0f), x));
    const Vec n = nearest(x * 1.44269504088896341f);
    const Vec r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), x));
    Vec p = splat(1.3814613095e-3f);
    for (float coefficient : {8.3687098318e-3f, 4.1668387365e-2f, 1.6666520690e-1f, 4.9999993452e-1f, 1.0f, 1.0f})
        p = fma(p, r, splat(coefficient));
    return times_power(p, n);
}

// tanh x, relative error below 3e-7: an odd polynomial near 0, where 1 - e^-2x would cancel, and that quotient elsewhere.
inline Vec tanh(Vec x) {
    const Vec magnitude = x < Vec{} ? -x : x;
    const Vec square = x * x;
    Vec p = splat(-5.70498872745e-3f);
    for (float coefficient : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f})
        p = fma(p, square, splat(coefficient));
    const Vec near = fma(x * square, p, x);
    const Vec decay = exp(magnitude * -2.0f);
    const Vec far = (1.0f - decay) / (1.0f + decay);
    return magnitude < splat(0.625f) ? near : (x < Vec{} ? -far : far);
}
