// Rows of 32-bit words in memory, as many as there are lanes, turned into columns.
#pragma once
#include <cstdint>
#include <cstring>

#include "simd.h"

// out[w] = word w of each row; rows are kLanes words long.
inline void transpose_rows(const char* const rows[kLanes], VecU out[kLanes]) {
#if defined(__AVX512F__)
    // A quarter of the words at a time: lane quarters come from memory, so that only the shuffles within them are left.
    for (int quarter = 0; quarter < 4; ++quarter) {
        __m512i four[4];
        for (int i = 0; i < 4; ++i) {
            const auto part = [&](int row) {
                return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + 16 * quarter));
            };
            four[i] = _mm512_castsi128_si512(part(i));
            four[i] = _mm512_inserti32x4(four[i], part(4 + i), 1);
            four[i] = _mm512_inserti32x4(four[i], part(8 + i), 2);
            four[i] = _mm512_inserti32x4(four[i], part(12 + i), 3);
        }
        const __m512i low01 = _mm512_unpacklo_epi32(four[0], four[1]), high01 = _mm512_unpackhi_epi32(four[0], four[1]);
        const __m512i low23 = _mm512_unpacklo_epi32(four[2], four[3]), high23 = _mm512_unpackhi_epi32(four[2], four[3]);
        out[4 * quarter] = reinterpret_cast<VecU>(_mm512_unpacklo_epi64(low01, low23));
        out[4 * quarter + 1] = reinterpret_cast<VecU>(_mm512_unpackhi_epi64(low01, low23));
        out[4 * quarter + 2] = reinterpret_cast<VecU>(_mm512_unpacklo_epi64(high01, high23));
        out[4 * quarter + 3] = reinterpret_cast<VecU>(_mm512_unpackhi_epi64(high01, high23));
    }
#elif defined(__AVX2__) && defined(__FMA__)
    for (int half = 0; half < 2; ++half) {
        __m256i four[4];
        for (int i = 0; i < 4; ++i) {
            const auto part = [&](int row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + 16 * half)); };
            four[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(part(i)), part(4 + i), 1);
        }
        const __m256i low01 = _mm256_unpacklo_epi32(four[0], four[1]), high01 = _mm256_unpackhi_epi32(four[0], four[1]);
        const __m256i low23 = _mm256_unpacklo_epi32(four[2], four[3]), high23 = _mm256_unpackhi_epi32(four[2], four[3]);
        out[4 * half] = reinterpret_cast<VecU>(_mm256_unpacklo_epi64(low01, low23));
        out[4 * half + 1] = reinterpret_cast<VecU>(_mm256_unpackhi_epi64(low01, low23));
        out[4 * half + 2] = reinterpret_cast<VecU>(_mm256_unpacklo_epi64(high01, high23));
        out[4 * half + 3] = reinterpret_cast<VecU>(_mm256_unpackhi_epi64(high01, high23));
    }
#else
    for (int row = 0; row < kLanes; ++row) {
        for (int w = 0; w < kLanes; ++w) {
            uint32_t word;
            std::memcpy(&word, rows[row] + 4 * w, 4);
            out[w][row] = word;
        }
    }
#endif
}

// body(w, word w of each row) for all words of rows of `bytes` bytes, of which the last word may be short: zeros fill it.
template <typename Body>
inline void for_transposed(const char* const rows[kLanes], int bytes, const Body& body) {
    constexpr int kBytes = 4 * kLanes;
    VecU words[kLanes];
    int at = 0;
    for (; at + kBytes <= bytes; at += kBytes) {
        const char* parts[kLanes];
        for (int row = 0; row < kLanes; ++row) parts[row] = rows[row] + at;
        transpose_rows(parts, words);
        for (int w = 0; w < kLanes; ++w) body(at / 4 + w, words[w]);
    }
    if (at == bytes) return;
    char copies[kLanes][kBytes] = {};
    const char* parts[kLanes];
    for (int row = 0; row < kLanes; ++row) parts[row] = copies[row], std::memcpy(copies[row], rows[row] + at, bytes - at);
    transpose_rows(parts, words);
    for (int w = 0; at + 4 * w < bytes; ++w) body(at / 4 + w, words[w]);
}
