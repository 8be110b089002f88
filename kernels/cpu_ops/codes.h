// Eight-bit codes with an fp32 scale a vector: number = code * scale, codes from -127 to 127. See kernels/ops.py, KVCache.
#pragma once
#include <algorithm>
#include <cmath>

#include "simd.h"

struct Code {
    int8_t value;
};

inline float widen(Code code) { return static_cast<float>(code.value); }
inline void narrow(float whole, Code* out) { out->value = static_cast<int8_t>(whole); }

inline Vec load(const Code* p) {
#if defined(__AVX512F__)  // spelled out: gcc widens bytes in several steps
    return reinterpret_cast<Vec>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))));
#elif defined(__AVX2__) && defined(__FMA__)
    return reinterpret_cast<Vec>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))));
#else
    VecB bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return __builtin_convertvector(__builtin_convertvector(bytes, VecI), Vec);
#endif
}
inline void store(Code* p, Vec whole) {
    const VecB bytes = __builtin_convertvector(__builtin_convertvector(whole, VecI), VecB);
    std::memcpy(p, &bytes, sizeof bytes);
}

// Codes of x, rounded to nearest, ties to even; returns their scale, the largest magnitude by 127. Zeros have scale 0; where
// a NaN or an infinity is among the numbers, the scale is one too and spoils them all.
template <typename T>
inline float encode(const T* x, int count, Code* codes) {
    VecI peaks{};
    for_lanes(count, [&](int i, auto load_at, auto) {
        const VecI magnitude = reinterpret_cast<VecI>(load_at(x + i)) & 0x7fffffff;
        peaks = magnitude > peaks ? magnitude : peaks;  // as integers, where a NaN is the largest
    });
    int32_t word = 0;
    for (int lane = 0; lane < kLanes; ++lane) word = std::max(word, peaks[lane]);
    float peak;
    std::memcpy(&peak, &word, 4);
    const float scale = peak / 127.0f;
    if (!(scale > 0.0f && scale < INFINITY)) {
        std::fill_n(codes, count, Code{0});
        return scale;
    }
    for_lanes(count, [&](int i, auto load_at, auto store_at) {
        const Vec ratio = load_at(x + i) / scale, magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
        const Vec whole = (ratio + magic) - magic, most = splat(127.0f);  // beyond it where the scale is subnormal
        store_at(codes + i, whole > most ? most : (whole < -most ? -most : whole));
    });
    return scale;
}
