// Products of codes with activations as integers (group_encode.h), a lane for each output: as many as the processor sums at once.
#pragma once
#include "group_encode.h"

namespace group_integers {

// sums + codes . numbers, products of the two 16-bit integers in each lane.
inline VecI dot(Words, VecI sums, VecI words, VecI pair) {
#if defined(__AVX512VNNI__)
    return reinterpret_cast<VecI>(_mm512_dpwssd_epi32(
        reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(words), reinterpret_cast<__m512i>(pair)));
#elif defined(__AVX512BW__)
    return sums + reinterpret_cast<VecI>(_mm512_madd_epi16(reinterpret_cast<__m512i>(words), reinterpret_cast<__m512i>(pair)));
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return reinterpret_cast<VecI>(_mm256_dpwssd_avx_epi32(
        reinterpret_cast<__m256i>(sums), reinterpret_cast<__m256i>(words), reinterpret_cast<__m256i>(pair)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return sums + reinterpret_cast<VecI>(_mm256_madd_epi16(reinterpret_cast<__m256i>(words), reinterpret_cast<__m256i>(pair)));
#elif defined(__SSE2__) && !defined(__AVX512F__)
    __m128i a[2], b[2];
    std::memcpy(a, &words, sizeof a);
    std::memcpy(b, &pair, sizeof b);
    for (int i = 0; i < 2; ++i) a[i] = _mm_madd_epi16(a[i], b[i]);
    VecI products;
    std::memcpy(&products, a, sizeof products);
    return sums + products;
#else
    return sums + ((words << 16) >> 16) * ((pair << 16) >> 16) + (words >> 16) * (pair >> 16);
#endif
}

// Products of 8-bit integers that one instruction sums: four in 32 bits, which serves all codes; before there was that one, two
// in 16 bits, which hold a piece's products with codes of 4 bits (eight times two of 15 * 127 at most), but not of 8.
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
#define PIZARRA_BYTES 4
#elif defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__))
#define PIZARRA_BYTES 2
#else
#define PIZARRA_BYTES 0  // nothing here is worth what rounding to 8 bits loses
#endif

// Whether codes of so many bits are multiplied with such integers.
constexpr bool multiplies(Words, int) { return true; }
constexpr bool multiplies(Bytes, int bits) { return PIZARRA_BYTES == 4 || (PIZARRA_BYTES == 2 && bits == 4); }

#if PIZARRA_BYTES > 0
// sums + codes . numbers, products of the four 8-bit integers in each lane. What the sums are in, only `whole` knows.
inline VecI dot(Bytes, VecI sums, VecI codes, VecI four) {
#if defined(__AVX512VNNI__)
    return reinterpret_cast<VecI>(_mm512_dpbusd_epi32(
        reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(codes), reinterpret_cast<__m512i>(four)));
#elif defined(__AVX512BW__)
    const __m512i twos = _mm512_maddubs_epi16(reinterpret_cast<__m512i>(codes), reinterpret_cast<__m512i>(four));
    return reinterpret_cast<VecI>(_mm512_add_epi16(reinterpret_cast<__m512i>(sums), twos));
#elif defined(__AVXVNNI__)
    return reinterpret_cast<VecI>(_mm256_dpbusd_avx_epi32(
        reinterpret_cast<__m256i>(sums), reinterpret_cast<__m256i>(codes), reinterpret_cast<__m256i>(four)));
#else
    const __m256i twos = _mm256_maddubs_epi16(reinterpret_cast<__m256i>(codes), reinterpret_cast<__m256i>(four));
    return reinterpret_cast<VecI>(_mm256_add_epi16(reinterpret_cast<__m256i>(sums), twos));
#endif
}
#endif

// A piece's sums in 32 bits.
inline VecI whole(Words, VecI sums) { return sums; }
inline VecI whole(Bytes, VecI sums) {
#if PIZARRA_BYTES == 2 && defined(__AVX512BW__)
    return reinterpret_cast<VecI>(_mm512_madd_epi16(reinterpret_cast<__m512i>(sums), _mm512_set1_epi16(1)));
#elif PIZARRA_BYTES == 2
    return reinterpret_cast<VecI>(_mm256_madd_epi16(reinterpret_cast<__m256i>(sums), _mm256_set1_epi16(1)));
#else
    return sums;
#endif
}

}  // namespace group_integers
