// Which drafts the target accepts: kernels/ops.py says by which rule. A request is one slice: its rows wait for each other.
#include <cmath>
#include <cstdint>

#include "draw.h"
#include "packed.h"
#include "pool.h"

namespace {

constexpr int kTarget = 0, kAccept = 1, kResidual = 2;  // kernels.noise.Stream

void verify_match(
    int64_t* out,
    int32_t* num_accepted,
    const int64_t* drawn,
    const int64_t* drafts,
    const int32_t* starts,
    int requests,
    int rows) {
    std::fill(out, out + rows, -1);
    for (int r = 0; r < requests; ++r) {
        const int first = starts[r], end = starts[r + 1];
        int row = first;
        for (; row < end - 1 && drawn[row] == drafts[row]; ++row) out[row] = drawn[row];
        if (row < end) out[row] = drawn[row];
        num_accepted[r] = row - first;
    }
}

// A softmax that is computed where it is needed.
class Distribution {
  public:
    Distribution(const float* scores, int V) : scores_(scores) {
        Vec most = splat(kNone);
        for_scores(scores, V, [&](int, Vec v, int) { most = larger(v, most); });
        peak_ = double(largest(most));
        sum_ = sum_of_weights(scores, V, peak_);
    }

    // The probabilities of the tokens from `first` on, `count` of at most kTokens: more are written, without a meaning.
    void probabilities(double* out, int first, int count) const {
        for_weights(scores_ + first, count, peak_, [&](const VecD* weights) {
            for (int i = 0; i < kSeries; ++i, out += kHalf) {
                const VecD shares = weights[i] / sum_;
                std::memcpy(out, &shares, sizeof shares);
            }
        });
    }

    double probability(int64_t token) const {
        double few[kTokens];
        probabilities(few, int(token), 1);
        return few[0];
    }

  private:
    const float* scores_;
    double peak_, sum_;
};

// A draw from the positive part of p - q: the largest log(p - q) + noise. With the noise at most -log(v), v = (x + 0.5) / 2^32,
// a token matters only where p - q is at least v times e to the best sum so far.
int64_t draw_residual(const Distribution& p, const Distribution& q, int V, const Address& address) {
    double best = -std::numeric_limits<double>::infinity(), bar = 0;
    int64_t token = 0;
    double target[kTokens], draft[kTokens];
    Words words[kRun];
    for (int first = 0; first < V; first += kTokens) {
        const int count = std::min(kTokens, V - first);
        p.probabilities(target, first, count);
        q.probabilities(draft, first, count);
        philox(words, uint32_t(first), address);
        uint32_t word[kTokens];
        std::memcpy(word, words, sizeof word);
        for (int i = 0; i < count; ++i) {
            const double left = target[i] - draft[i];
            if (!(left > 0) || left < (double(word[i]) + 0.5) * bar) continue;
            const double sum = std::log(left) + gumbel(word[i]);
            if (sum > best) best = sum, token = first + i, bar = std::exp(best) * (1 - 1e-9) / 4294967296.0;
        }
    }
    return token;
}

double uniform(const Address& address) {
    Words words[kRun];
    philox(words, 0, address);
    return (double(words[0].low[0]) + 0.5) / 4294967296.0;
}

Address with_stream(const int64_t* address, int stream) {
    Address changed(address);
    changed.stream = uint32_t(stream);
    return changed;
}

void verify_rejection(
    int64_t* out,
    int32_t* num_accepted,
    const float* scores,
    const float* draft_scores,
    const int64_t* drafts,
    const int32_t* starts,
    const int64_t* addresses,
    int requests,
    int rows,
    int V) {
    std::fill(out, out + rows, -1);
    Pool::instance().run(requests, [&](int r) {
        const int first = starts[r], end = starts[r + 1];
        num_accepted[r] = std::max(end - first - 1, 0);
        for (int row = first; row < end; ++row) {
            const float* target = scores + size_t(row) * V;
            const int64_t* address = addresses + size_t(row) * 4;
            if (row == end - 1) {
                out[row] = draw_part(target, 0, V, with_stream(address, kTarget)).token;
                return;
            }
            const Distribution p(target, V), q(draft_scores + size_t(row) * V, V);
            const int64_t draft = drafts[row];
            if (uniform(with_stream(address, kAccept)) < p.probability(draft) / q.probability(draft)) {
                out[row] = draft;
                continue;
            }
            out[row] = draw_residual(p, q, V, with_stream(address, kResidual));
            num_accepted[r] = row - first;
            return;
        }
    });
}

}  // namespace

extern "C" {
PACKED(pz_verify_match, verify_match)
PACKED(pz_verify_rejection, verify_rejection)
}
