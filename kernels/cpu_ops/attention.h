// What attention works on, and the part of it that does not depend on how its products are made. See kernels/ops.py,
// PagedAttention.
// An entry is one query: a row's position and one of its heads. The entries of neighbouring rows that share keys are worked
// on together, a lane each, against chunks of keys that begin at fixed positions. A chunk that an entry does not see leaves
// it as it was, so an entry's bits do not depend on those beside it.
#pragma once
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "codes.h"

constexpr int kChunkKeys = 64;      // keys whose scores are held at once; fixed, so that sums run in one order
constexpr int kGroupEntries = 64;   // entries that share one reading of keys and values

inline int rounded_up(int count, int multiple) { return (count + multiple - 1) / multiple * multiple; }

// E: what the cache holds, the model's own T or codes, which have scales.
template <typename T, typename E>
struct AttentionInputs {
    const T* qkv;
    const E *keys, *values;
    const float *key_scales, *value_scales;
    const int32_t *tables, *owners;
    const int64_t* positions;
};

struct AttentionShape {
    int rows, num_heads, num_kv_heads, block_size, head_dim, table_stride, qkv_stride, window;
    float scale, soft_cap;

    int group() const { return num_heads / num_kv_heads; }  // query heads to a head of keys
    int first_key(int position) const { return window > 0 ? std::max(0, position + 1 - window) : 0; }
};

// The keys of one request and one head, first .. first + kChunkKeys - 1, of which those from low to high are there.
struct KeyRange {
    const int32_t* table;
    int head, first, low, high;

    int begin() const { return std::max(low - first, 0); }  // of those that are there, within the chunk
    int end() const { return std::min(high - first + 1, kChunkKeys); }
    KeyRange next() const { return {table, head, first + kChunkKeys, low, high}; }

    // body(i, count, index) for each block's part of those that are there: keys i .. i + count - 1 of the chunk are the
    // cache's vectors from number `index` on.
    template <typename Body>
    void for_blocks(const AttentionShape& shape, const Body& body) const {
        for (int i = begin(); i < end();) {
            const int key = first + i, block = key / shape.block_size, place = key % shape.block_size;
            const int count = std::min(shape.block_size - place, end() - i);
            body(i, count, (size_t(table[block]) * shape.num_kv_heads + head) * shape.block_size + place);
            i += count;
        }
    }
};

// What stands between products and softmax, and between weights and values, where the cache holds numbers: nothing.
struct Unscaled {
    template <typename Inputs>
    void read(const Inputs&, const KeyRange&, const AttentionShape&) {}

    Vec score(int, Vec product, float scale) const { return product * scale; }

    // What the value of key i is multiplied by; `sum` gets the weight.
    template <typename Round>
    Vec weight(int, Vec weight, Vec& sum, const Round& round) const {
        const Vec rounded = round(weight);
        sum += rounded;
        return rounded;
    }
};

// The same where it holds codes: the scales of a chunk's keys and values, 0 for those that are not there.
struct Scaled {
    float keys[kChunkKeys], values[kChunkKeys];

    template <typename Inputs>
    void read(const Inputs& inputs, const KeyRange& range, const AttentionShape& shape) {
        std::fill_n(keys, kChunkKeys, 0.0f);
        std::fill_n(values, kChunkKeys, 0.0f);
        range.for_blocks(shape, [&](int i, int count, size_t index) {
            std::copy_n(inputs.key_scales + index, count, keys + i);
            std::copy_n(inputs.value_scales + index, count, values + i);
        });
    }

    Vec score(int i, Vec product, float scale) const { return product * (keys[i] * scale); }

    template <typename Round>
    Vec weight(int i, Vec weight, Vec& sum, const Round& round) const {
        sum += weight;
        return round(weight * values[i]);
    }
};

// Rows first .. first + rows - 1 belong to one request and stand at consecutive positions.
struct RowGroup {
    int first, rows;
};

inline std::vector<RowGroup> group_rows(const int32_t* owners, const int64_t* positions, const AttentionShape& shape) {
    const int most = std::max(1, kGroupEntries / shape.group());
    std::vector<RowGroup> groups;
    for (int row = 0; row < shape.rows; ++row) {
        const bool follows = row > 0 && owners[row] >= 0 && owners[row] == owners[row - 1] &&
                             positions[row] == positions[row - 1] + 1 && groups.back().rows < most;
        if (follows)
            ++groups.back().rows;
        else
            groups.push_back({row, 1});
    }
    return groups;
}

// As many entries as there are lanes, on their way over the keys: an online softmax each.
struct Softmax {
    Vec peak = splat(-INFINITY), total{};
    VecI first_key = VecI{} + 1, last_key{};  // what each entry sees; a lane without an entry sees nothing
    int lowest = 0, highest = -1;             // over the entries

    void add(int lane, int first, int last) {
        first_key[lane] = first, last_key[lane] = last;
        lowest = highest < 0 ? first : std::min(lowest, first);
        highest = std::max(highest, last);
    }

    bool sees(int first) const { return highest >= first && lowest < first + kChunkKeys; }

    // Products of a chunk's keys with the entries to weights, each passed through `round`; returns what the sums so far
    // shrink by.
    template <typename Scales, typename Round>
    Vec weigh(Vec scores[kChunkKeys], int first, const AttentionShape& shape, const Scales& scales, const Round& round) {
        Vec highest_score = peak;
        for (int i = 0; i < kChunkKeys; ++i) {
            Vec score = scales.score(i, scores[i], shape.scale);
            if (shape.soft_cap > 0.0f) score = tanh(score / shape.soft_cap) * shape.soft_cap;
            const VecI key = VecI{} + (first + i);
            scores[i] = (key >= first_key) & (key <= last_key) ? score : splat(-INFINITY);
            highest_score = scores[i] > highest_score ? scores[i] : highest_score;
        }
        const Vec base = highest_score == splat(-INFINITY) ? Vec{} : highest_score;  // where no key was seen yet
        const Vec shrink = exp(peak - base);
        Vec sums[2] = {};
        for (int i = 0; i < kChunkKeys; i += 2) {
            for (int j = 0; j < 2; ++j) scores[i + j] = scales.weight(i + j, exp(scores[i + j] - base), sums[j], round);
        }
        total = total * shrink + (sums[0] + sums[1]);
        peak = highest_score;
        return shrink;
    }
};
