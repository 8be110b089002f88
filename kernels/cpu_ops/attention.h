// What attention works on, and the part of it that does not depend on how its products are made. See kernels/ops.py,
// PagedAttention.
// An entry is one query: a row's position and one of its heads. The entries of neighbouring rows that share keys are worked
// on together, a lane each, against chunks of keys that begin at fixed positions. A chunk that an entry does not see leaves
// it as it was, so an entry's bits do not depend on those beside it.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "simd.h"

constexpr int kChunkKeys = 64;      // keys whose scores are held at once; fixed, so that sums run in one order
constexpr int kGroupEntries = 64;   // entries that share one reading of keys and values

inline int rounded_up(int count, int multiple) { return (count + multiple - 1) / multiple * multiple; }

template <typename T>
struct AttentionInputs {
    const T *qkv, *keys, *values;
    const int32_t *tables, *owners;
    const int64_t* positions;
};

struct AttentionShape {
    int rows, num_heads, num_kv_heads, block_size, head_dim, table_stride, qkv_stride, window;
    float scale, soft_cap;

    int group() const { return num_heads / num_kv_heads; }  // query heads to a head of keys
    int first_key(int position) const { return window > 0 ? std::max(0, position + 1 - window) : 0; }
    // Where in the cache a request's key (or value) number `key` of a head begins.
    size_t offset(const int32_t* table, int head, int key) const {
        const size_t block = table[key / block_size];
        return ((block * num_kv_heads + head) * block_size + key % block_size) * head_dim;
    }
};

// The keys of one request and one head, first .. first + kChunkKeys - 1, of which those from low to high are there.
struct KeyRange {
    const int32_t* table;
    int head, first, low, high;

    int begin() const { return std::max(low - first, 0); }  // of those that are there, within the chunk
    int end() const { return std::min(high - first + 1, kChunkKeys); }
    KeyRange next() const { return {table, head, first + kChunkKeys, low, high}; }
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
    template <typename Round>
    Vec weigh(Vec scores[kChunkKeys], int first, const AttentionShape& shape, const Round& round) {
        Vec highest_score = peak;
        for (int i = 0; i < kChunkKeys; ++i) {
            Vec score = scores[i] * shape.scale;
            if (shape.soft_cap > 0.0f) score = tanh(score / shape.soft_cap) * shape.soft_cap;
            const VecI key = VecI{} + (first + i);
            scores[i] = (key >= first_key) & (key <= last_key) ? score : splat(-INFINITY);
            highest_score = scores[i] > highest_score ? scores[i] : highest_score;
        }
        const Vec base = highest_score == splat(-INFINITY) ? Vec{} : highest_score;  // where no key was seen yet
        const Vec shrink = exp(peak - base);
        Vec sums[2] = {};
        for (int i = 0; i < kChunkKeys; i += 2) {
            for (int j = 0; j < 2; ++j) {
                scores[i + j] = round(exp(scores[i + j] - base));
                sums[j] += scores[i + j];
            }
        }
        total = total * shrink + (sums[0] + sums[1]);
        peak = highest_score;
        return shrink;
    }
};
