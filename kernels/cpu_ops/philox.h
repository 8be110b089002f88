// Philox4x32-10 (Salmon et al., SC 2011) for the tokens of one row, a vector at a time: kernels/noise.py says what is drawn
// with which address.
#pragma once
#include <cstdint>

#include "simd.h"

constexpr int kPhiloxLanes = 4, kRounds = 10;  // words of a block, given to four neighbouring tokens
constexpr int kWords = 2 * kLanes;             // tokens that kLanes / 2 blocks serve
constexpr int kRun = 4;                        // vectors of blocks at once

typedef uint64_t Wide __attribute__((vector_size(4 * kLanes)));

struct Address {
    uint64_t seed;
    uint32_t position, sample, stream;

    explicit Address(const int64_t* address)
        : seed(uint64_t(address[0])),
          position(uint32_t(address[1])),
          sample(uint32_t(address[2])),
          stream(uint32_t(address[3])) {}
};

struct Words {
    VecU low, high;  // of the first kLanes tokens and of those behind
};

// Words 0 and 1 of each block, and words 2 and 3, in the order of their tokens.
inline Words in_order(Wide first, Wide second) {
    constexpr int kHalf = kLanes / 2;  // lanes of each
    return {
        reinterpret_cast<VecU>(shuffle<[](int lane) { return lane / 2 + lane % 2 * kHalf; }>(first, second)),
        reinterpret_cast<VecU>(shuffle<[](int lane) { return lane / 2 + lane % 2 * kHalf + kHalf / 2; }>(first, second)),
    };
}

inline Wide splat_wide(uint64_t x) { return x - Wide{}; }

// Products of the low halves, 64 bits each.
inline Wide multiply(Wide a, Wide b) {
#if defined(__AVX512F__)
    return reinterpret_cast<Wide>(_mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
    return reinterpret_cast<Wide>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
    return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

// The words of kRun * kWords tokens from `token` on, a multiple of kPhiloxLanes. Each lane is one block; of its numbers only
// the low halves count until the end, so a product serves as its own low word. The rounds of kRun vectors take turns: each
// waits for the one before it, and between them there is time for others.
inline void philox(Words* words, uint32_t token, const Address& address) {
    Wide lanes{}, c0[kRun], c1[kRun], c2[kRun], c3[kRun];
    for (int i = 0; i < kLanes / 2; ++i) lanes[i] = uint64_t(i);
    for (int n = 0; n < kRun; ++n) {
        c0[n] = splat_wide(token / kPhiloxLanes + uint32_t(n * kLanes / 2)) + lanes;
        c1[n] = splat_wide(address.position), c2[n] = splat_wide(address.sample), c3[n] = splat_wide(address.stream);
    }
    uint32_t k0 = uint32_t(address.seed), k1 = uint32_t(address.seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < kRounds; ++round) {
        const Wide key0 = splat_wide(k0), key1 = splat_wide(k1);
#pragma GCC unroll 4
        for (int n = 0; n < kRun; ++n) {
            const Wide product0 = multiply(c0[n], splat_wide(0xD2511F53u));
            const Wide product1 = multiply(c2[n], splat_wide(0xCD9E8D57u));
            c0[n] = (product1 >> 32) ^ c1[n] ^ key0;
            c1[n] = product1;
            c2[n] = (product0 >> 32) ^ c3[n] ^ key1;
            c3[n] = product0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int n = 0; n < kRun; ++n)
        words[n] = in_order((c0[n] & 0xffffffffu) | (c1[n] << 32), (c2[n] & 0xffffffffu) | (c3[n] << 32));
}
