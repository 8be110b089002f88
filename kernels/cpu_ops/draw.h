// The token of the largest sum of score and Gumbel noise, without computing most of the noise.
// With x a Philox word, v = (x + 0.5) / 2^32 and noise -log(-log(1 - v)) <= -log(v), no token has more than 33 ln 2, and a
// word's exponent and mantissa bound its logarithm from below: log2((1 + m) 2^e) >= e + m. What cannot beat the best sum so
// far under these bounds is passed over. The bounds are floats, so they leave some slack; the sums themselves are doubles.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "philox.h"
#include "scores.h"

constexpr float kLn2 = 0.693147181f, kMostNoise = 33 * kLn2;
constexpr int kTokens = kRun * kWords;  // looked at together

inline double gumbel(uint32_t word) { return -std::log(-std::log1p(-(double(word) + 0.5) / 4294967296.0)); }

// At least the noise of each word, but for rounding.
inline Vec most_noise(VecU words) {
    const VecI bits = reinterpret_cast<VecI>(__builtin_convertvector(words, Vec));
    return (159.0f - __builtin_convertvector(bits, Vec) * 0x1p-23f) * kLn2;  // 159 = 32 and the exponent's bias
}

// The best of some tokens, and what another one must reach to matter.
class Best {
  public:
    double sum = -std::numeric_limits<double>::infinity();
    int64_t token = 0;

    void take(int64_t other, double total) {
        if (!(total > sum || (total == sum && other < token))) return;
        sum = total, token = other;
        const float nearest = float(sum);
        with_noise_ = nearest - (1e-4f + 1e-6f * std::fabs(nearest));
        without_ = with_noise_ - kMostNoise;
    }

    // kTokens scores from `first` on.
    void look(const float* scores, int64_t first, const Address& address) {
        const Vec bar = splat(without_);
        uint32_t near = 0;
        for (int i = 0; i < kTokens; i += kLanes) near |= at_least(load(scores + i), bar);
        if (near == 0) return;
        Words words[kRun];
        philox(words, uint32_t(first), address);
        for (int n = 0; n < kRun; ++n) {
            look_closely(scores + n * kWords, words[n].low, first + n * kWords);
            look_closely(scores + n * kWords + kLanes, words[n].high, first + n * kWords + kLanes);
        }
    }

  private:
    void look_closely(const float* scores, VecU words, int64_t first) {
        for (uint32_t bits = at_least(load(scores) + most_noise(words), splat(with_noise_)); bits != 0; bits &= bits - 1) {
            const int lane = __builtin_ctz(bits);
            take(first + lane, scores[lane] + gumbel(words[lane]));
        }
    }

    float with_noise_ = std::numeric_limits<float>::lowest(), without_ = std::numeric_limits<float>::lowest();
};

// The best of the tokens from `first`, a multiple of kTokens, up to `end`.
inline Best draw_part(const float* scores, int first, int end, const Address& address) {
    Best best;
    int v = first;
    for (; v + kTokens <= end; v += kTokens) best.look(scores + v, v, address);
    if (v < end) {
        float rest[kTokens];
        std::fill(rest, rest + kTokens, kNone);
        std::copy(scores + v, scores + end, rest);
        best.look(rest, v, address);
    }
    return best;
}
