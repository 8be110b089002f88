// One token a row: the largest sum of score and Gumbel noise, without computing most of the noise.
// With x a Philox word, v = (x + 0.5) / 2^32 and noise -log(-log(1 - v)) <= -log(v), a word with z leading zeros yields at most
// (z + 1) ln 2, and none more than 33 ln 2. What cannot beat the best sum so far under that bound is passed over.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "pool.h"

namespace {

constexpr int kPhiloxLanes = 4, kRounds = 10;
constexpr double kLn2 = 0.6931471805599453, kMostNoise = 33 * kLn2, kSlack = 1e-9;

struct Words {
    uint32_t lane[kPhiloxLanes];
};

inline Words philox(uint32_t block, uint32_t position, uint32_t sample, uint32_t stream, uint64_t seed) {
    uint32_t c0 = block, c1 = position, c2 = sample, c3 = stream;
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (int round = 0; round < kRounds; ++round) {
        const uint64_t product0 = uint64_t(c0) * 0xD2511F53u, product1 = uint64_t(c2) * 0xCD9E8D57u;
        c0 = uint32_t(product1 >> 32) ^ c1 ^ k0;
        c1 = uint32_t(product1);
        c2 = uint32_t(product0 >> 32) ^ c3 ^ k1;
        c3 = uint32_t(product0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

inline double gumbel(uint32_t word) { return -std::log(-std::log1p(-(double(word) + 0.5) / 4294967296.0)); }

struct Best {
    double sum = -std::numeric_limits<double>::infinity();
    int64_t token = 0;

    void take(int64_t other, double total) {
        if (total > sum || (total == sum && other < token)) sum = total, token = other;
    }
};

int64_t draw_row(const float* scores, int V, const int64_t* address) {
    const auto words_of = [&](int block) {
        return philox(
            uint32_t(block), uint32_t(address[1]), uint32_t(address[2]), uint32_t(address[3]), uint64_t(address[0]));
    };
    int peak = 0;
    for (int v = 1; v < V; ++v)
        if (scores[v] > scores[peak]) peak = v;
    Best best;
    best.take(peak, scores[peak] + gumbel(words_of(peak / kPhiloxLanes).lane[peak % kPhiloxLanes]));
    for (int first = 0; first < V; first += kPhiloxLanes) {
        const int lanes = V - first < kPhiloxLanes ? V - first : kPhiloxLanes;
        float most = scores[first];
        for (int lane = 1; lane < lanes; ++lane)
            if (scores[first + lane] > most) most = scores[first + lane];
        if (most + kMostNoise + kSlack < best.sum) continue;
        const Words words = words_of(first / kPhiloxLanes);
        for (int lane = 0; lane < lanes; ++lane) {
            const double bound = (std::countl_zero(words.lane[lane]) + 1) * kLn2 + kSlack;
            if (scores[first + lane] + bound >= best.sum)
                best.take(first + lane, scores[first + lane] + gumbel(words.lane[lane]));
        }
    }
    return best.token;
}

}  // namespace

extern "C" void pz_draw(int64_t* out, const float* scores, const int64_t* addresses, int rows, int V) {
    Pool::instance().run(
        rows, [&](int row) { out[row] = draw_row(scores + size_t(row) * V, V, addresses + size_t(row) * 4); });
}
