// What is asked of scores beside the draw: their peaks, which of them the filters leave, log probabilities.
// Nothing is sorted but short lists. A pass over the row keeps the largest score of every kLanes-th token of a block; the n-th
// largest of these is no more than the n-th largest score, and what lies below it is not looked at again.
#include <cmath>
#include <cstdint>
#include <vector>

#include "packed.h"
#include "pool.h"
#include "scores.h"

namespace {

constexpr int kVectors = 16, kBlock = kVectors * kLanes;  // vectors and tokens of a block
constexpr int kShort = 32;                                // a list that may as well be sorted
constexpr int kSettings = 4;                              // temperature, top_k, top_p, min_p
constexpr int kLikely = 256;                              // a set of tokens that often holds the share of top_p
constexpr double kUnits = 1099511627776.0;                // of probability mass, in the weight of the likeliest token: 2^40
constexpr double kWeightless = 28.5;                      // so far below the peak a token has no unit: ln 2^41 is 28.42

// What a thread works with, kept between rows.
struct Scratch {
    std::vector<float> maxima, list, other;
    std::vector<int> ids;
};
thread_local Scratch scratch;

// Makes room for `count` floats and a vector behind them.
float* room(std::vector<float>& buffer, size_t count) {
    if (buffer.size() < count + kLanes) buffer.resize(count + kLanes);
    return buffer.data();
}

int blocks_of(int V) { return (V + kBlock - 1) / kBlock; }

// ---- a pass over a row --------------------------------------------------------------------------------------------------

// maxima[b] = lane by lane the largest of block b's vectors: of source(x[v]), which goes to `out` where there is one. Whether
// a score is not a number comes back.
template <typename Source>
bool block_maxima(float* maxima, float* out, const float* x, int V, const Source& source) {
    uint32_t nan = 0;
    for (int first = 0; first < V; first += kBlock) {
        const int count = std::min(kBlock, V - first);
        Vec most = splat(kNone);
        for_scores(x + first, count, [&](int i, Vec v, int lanes) {
            v = source(v);
            nan |= unordered(v, v);
            most = larger(v, most);
            if (out == nullptr) return;
            if (lanes == kLanes) store(out + first + i, v);
            else store_part(out + first + i, v, lanes);
        });
        store(maxima + first / kBlock * kLanes, most);
    }
    return nan != 0;
}

float peak_of(const float* maxima, int blocks) {
    Vec most = splat(kNone);
    for (int b = 0; b < blocks; ++b) most = larger(load(maxima + b * kLanes), most);
    return largest(most);
}

// body(first, count) for every block with a score that reaches `least`.
template <typename Body>
void blocks_that_reach(const float* maxima, float least, int V, const Body& body) {
    const Vec bar = splat(least);
    for (int b = 0; b < blocks_of(V); ++b)
        if (at_least(load(maxima + b * kLanes), bar)) body(b * kBlock, std::min(kBlock, V - b * kBlock));
}

// ---- peaks --------------------------------------------------------------------------------------------------------------

// The first token that `wanted` finds in a vector: as bits.
template <typename Wanted>
int first_of(const float* x, int first, int V, const Wanted& wanted) {
    for (int i = first; i < V; i += kLanes) {
        const uint32_t bits = wanted(V - i < kLanes ? load_scores(x + i, V - i) : load(x + i));
        if (bits) return i + __builtin_ctz(bits);
    }
    return 0;
}

void peak_row(float* value, int64_t* id, const float* x, int V) {
    float* maxima = room(scratch.maxima, size_t(blocks_of(V)) * kLanes);
    int token;
    if (block_maxima(maxima, nullptr, x, V, [](Vec v) { return v; })) {
        token = first_of(x, 0, V, [](Vec v) { return unordered(v, v); });
    } else {
        const Vec peak = splat(peak_of(maxima, blocks_of(V)));
        int block = 0;
        while (!at_least(load(maxima + block * kLanes), peak)) ++block;
        token = first_of(x, block * kBlock, V, [=](Vec v) { return at_least(v, peak); });
    }
    *value = x[token], *id = token;
}

void peaks(float* values, int64_t* ids, const float* scores, int rows, int V) {
    Pool::instance().run(rows, [&](int row) { peak_row(values + row, ids + row, scores + size_t(row) * V, V); });
}

// ---- selection ----------------------------------------------------------------------------------------------------------

// How much each of some scores counts: one,
struct Count {
    uint64_t operator()(const float*, int count) const { return uint64_t(count); }
};

// or its share of probability in whole units, so that sums are the same in any order.
struct Mass {
    double peak;

    uint64_t operator()(const float* scores, int count) const {
        const VecD magic = splat_double(6755399441055744.0);  // 1.5 * 2^52: adding it rounds to an integer
        VecL sum{};
        for_weights(scores, count, peak, [&](const VecD* weights) {
            for (int i = 0; i < kSeries; ++i)
                sum += reinterpret_cast<VecL>(weights[i] * kUnits + magic) - reinterpret_cast<VecL>(magic);
        });
        uint64_t all = 0;
        for (int i = 0; i < kHalf; ++i) all += uint64_t(sum[i]);
        return all;
    }
};

// The scores of `list` that `choose` picks come to its front, the others to `rest`. How many were picked.
template <typename Choose>
int split(float* list, float* rest, int count, const Choose& choose) {
    int picked = 0, passed = 0;
    for_scores(list, count, [&](int, Vec v, int lanes) {
        const uint32_t there = lanes == kLanes ? (1ull << kLanes) - 1 : (1u << lanes) - 1, bits = choose(v) & there;
        picked += compress(list + picked, v, bits);
        passed += compress(rest + passed, v, ~bits & there);
    });
    return picked;
}

float median(float a, float b, float c) { return std::max(std::min(a, b), std::min(std::max(a, b), c)); }

// The largest score of which it holds that all scores from it up, in `list`, count for `need` or more; all together do.
// Both buffers are overwritten.
template <typename Measure>
float select(float* list, float* other, int count, uint64_t need, const Measure& measure) {
    while (count > kShort) {
        const auto at = [=](int ninth) { return list[int64_t(count) * ninth / 9]; };
        const float pivot = median(median(at(0), at(1), at(2)), median(at(3), at(4), at(5)), median(at(6), at(7), at(8)));
        const Vec bar = splat(pivot);
        int above = split(list, other, count, [=](Vec v) { return at_least(v, bar); });
        if (above == count) {  // the pivot is the least of them
            above = split(list, other, count, [=](Vec v) { return ~at_least(bar, v); });
            if (above == 0 || measure(list, above) < need) return pivot;
            count = above;
            continue;
        }
        const uint64_t held = measure(list, above);
        if (held >= need) {
            count = above;
        } else {
            need -= held;
            count -= above;
            std::swap(list, other);
        }
    }
    std::sort(list, list + count, std::greater<float>());
    int last = 0;
    for (uint64_t held = measure(list, 1); held < need && last + 1 < count; held += measure(list + last, 1)) ++last;
    return list[last];
}

// Scores of a row from `least` up, and above -inf, in `list`. How many.
int gather(float* list, const float* x, const float* maxima, float least, int V) {
    int count = 0;
    const Vec bar = splat(std::max(least, std::numeric_limits<float>::lowest()));
    blocks_that_reach(maxima, bar[0], V, [&](int first, int tokens) {
        for_scores(x + first, tokens, [&](int, Vec v, int) { count += compress(list + count, v, at_least(v, bar)); });
    });
    return count;
}

// No more than the n-th largest score of the row.
float below_largest(const float* maxima, int V, int n) {
    const int count = blocks_of(V) * kLanes;
    if (n > count) return kNone;
    float *list = room(scratch.list, size_t(count)), *other = room(scratch.other, size_t(count));
    std::memcpy(list, maxima, sizeof(float) * size_t(count));
    return select(list, other, count, uint64_t(n), Count());
}

// ---- filters ------------------------------------------------------------------------------------------------------------

// The k-th largest score; -inf where there are fewer.
float top_k_limit(const float* x, const float* maxima, int V, int k) {
    const float least = below_largest(maxima, V, k);
    float *list = room(scratch.list, size_t(V)), *other = room(scratch.other, size_t(V));
    const int count = gather(list, x, maxima, least, V);
    return count < k ? kNone : select(list, other, count, uint64_t(k), Count());
}

// The score of the last token of the smallest set, largest first, that holds the share of those from `least` up.
float top_p_limit(const float* x, const float* maxima, int V, float least, float peak, double share) {
    const Mass mass{double(peak)};
    float *list = room(scratch.list, size_t(V)), *other = room(scratch.other, size_t(V));
    uint64_t total = 0;
    int count = -1;
    if (least > kNone) {
        count = gather(list, x, maxima, least, V);
        total = mass(list, count);
    } else {
        least = float(double(peak) - kWeightless);
        blocks_that_reach(maxima, least, V, [&](int first, int tokens) { total += mass(x + first, tokens); });
    }
    const uint64_t need = std::min(uint64_t(std::ceil(share * double(total))), total);
    int likely = kLikely;
    while (double(likely) < double(need) / kUnits) likely *= 8;  // no token has more than kUnits
    for (; count < 0 && likely <= blocks_of(V) * kLanes; likely *= 8) {
        count = gather(list, x, maxima, below_largest(maxima, V, likely), V);
        if (mass(list, count) < need) count = -1;
    }
    if (count < 0) count = gather(list, x, maxima, least, V);
    return select(list, other, count, need, mass);
}

void drop_below(float* x, const float* maxima, int V, float limit) {
    const Vec bar = splat(limit), none = splat(kNone);
    for (int first = 0; first < V; first += kBlock) {
        const int count = std::min(kBlock, V - first);
        if (!at_least(load(maxima + first / kBlock * kLanes), bar)) {
            std::fill(x + first, x + first + count, kNone);
            continue;
        }
        for_scores(x + first, count, [&](int i, Vec v, int lanes) {
            v = v >= bar ? v : none;
            if (lanes == kLanes) store(x + first + i, v);
            else store_part(x + first + i, v, lanes);
        });
    }
}

void filter_row(float* out, const float* logits, int V, const double* settings) {
    const float temperature = float(settings[0]);
    const double top_k = settings[1], top_p = settings[2], min_p = settings[3];
    const bool filtered = (top_k > 0 && top_k < V) || top_p < 1 || min_p > 0;
    if (!filtered && temperature == 1.0f) {
        if (out != logits) std::memcpy(out, logits, sizeof(float) * size_t(V));
        return;
    }
    float* maxima = room(scratch.maxima, size_t(blocks_of(V)) * kLanes);
    if (temperature == 1.0f) {
        block_maxima(maxima, out == logits ? nullptr : out, logits, V, [](Vec v) { return v; });
    } else {
        const Vec divisor = splat(temperature);
        block_maxima(maxima, out, logits, V, [=](Vec v) { return v / divisor; });
    }
    const float peak = peak_of(maxima, blocks_of(V));
    if (!filtered || peak == kNone) return;
    float limit = kNone;
    if (top_k > 0 && top_k < V) limit = top_k_limit(out, maxima, V, int(top_k));
    if (top_p < 1) limit = std::max(limit, top_p_limit(out, maxima, V, limit, peak, top_p));
    if (min_p > 0) limit = std::max(limit, float(double(peak) + std::log(min_p)));
    if (limit > kNone) drop_below(out, maxima, V, limit);
}

void filter_scores(float* out, const float* logits, const double* settings, int rows, int V) {
    Pool::instance().run(rows, [&](int row) {
        const double* of_row = settings + size_t(row) * kSettings;
        if (of_row[0] != 0.0) filter_row(out + size_t(row) * V, logits + size_t(row) * V, V, of_row);
    });
}

// ---- log probabilities --------------------------------------------------------------------------------------------------

void log_probabilities_row(float* out, float* top_values, int64_t* top_ids, const float* x, int64_t token, int V, int n) {
    float* maxima = room(scratch.maxima, size_t(blocks_of(V)) * kLanes);
    const bool nan = block_maxima(maxima, nullptr, x, V, [](Vec v) { return v; });
    const float peak = nan ? std::numeric_limits<float>::quiet_NaN() : peak_of(maxima, blocks_of(V));
    const double total = double(peak) + std::log(sum_of_weights(x, V, double(peak)));
    *out = float(double(x[token]) - total);
    if (n == 0) return;
    const Vec bar = splat(std::max(below_largest(maxima, V, n), std::numeric_limits<float>::lowest()));
    std::vector<int>& ids = scratch.ids;
    ids.clear();
    blocks_that_reach(maxima, bar[0], V, [&](int first, int tokens) {
        for_scores(x + first, tokens, [&](int i, Vec v, int) {
            for (uint32_t bits = at_least(v, bar); bits != 0; bits &= bits - 1) ids.push_back(first + i + __builtin_ctz(bits));
        });
    });
    const int found = std::min(n, int(ids.size()));
    std::partial_sort(ids.begin(), ids.begin() + found, ids.end(), [=](int a, int b) {
        return x[a] > x[b] || (x[a] == x[b] && a < b);
    });
    for (int i = 0; i < n; ++i) {
        top_ids[i] = i < found ? ids[size_t(i)] : -1;
        top_values[i] = i < found ? float(double(x[ids[size_t(i)]]) - total) : kNone;
    }
}

void log_probabilities(
    float* out, float* top_values, int64_t* top_ids, const float* scores, const int64_t* tokens, int rows, int V, int n) {
    Pool::instance().run(rows, [&](int row) {
        if (tokens[row] < 0) return;
        const size_t top = size_t(row) * size_t(n);
        log_probabilities_row(out + row, top_values + top, top_ids + top, scores + size_t(row) * V, tokens[row], V, n);
    });
}

}  // namespace

extern "C" {
PACKED(pz_peaks, peaks)
PACKED(pz_filter_scores, filter_scores)
PACKED(pz_log_probabilities, log_probabilities)
}
