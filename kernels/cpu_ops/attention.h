// What attention works on, and the part of it that does not depend on how its products are made. See kernels/ops.py,
// PagedAttention.
// An entry is one query: a row's position and one of its heads. The entries of neighbouring rows that share keys are worked
// on together, against chunks of keys that begin at fixed positions. A chunk that an entry does not see leaves it as it was,
// so an entry's bits do not depend on those beside it. Sums begin anew at every split, likewise at fixed positions, and are
// added to those of the splits before: that can be done as they come, or later when several threads had a split each.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "codes.h"
#include "exponential.h"
#include "scratch.h"

constexpr int kChunkKeys = 64;      // keys whose scores are held at once; fixed, so that sums run in one order
constexpr int kSplitKeys = 256;     // keys whose sums begin anew; fixed too, and a multiple of a chunk
constexpr int kGroupEntries = 96;   // entries that share one reading of keys and values
constexpr int kChunkVectors = kChunkKeys / kLanes;

inline int rounded_up(int count, int multiple) { return (count + multiple - 1) / multiple * multiple; }

// Asks for a cache line, so that it is near when it comes to be read: in the cache of this level. Spelled out: gcc takes a
// function that does nothing else for one without effects, and leaves its calls away.
template <int kLevel>
inline void fetch_line(const void* p) {
#if defined(__x86_64__)
    if constexpr (kLevel == 1)
        asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(p)));
    else
        asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(p)));
#else
    __builtin_prefetch(p, 0, 4 - kLevel);
#endif
}

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

    // Of those that are there, keys i .. i + count - 1 of the chunk.
    KeyRange part(int i, int count) const {
        return {table, head, first, std::max(low, first + i), std::min(high, first + i + count - 1)};
    }

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

// The keys and values that come next, asked for a few lines of the cache at a time while others are worked on. A core waits
// for some two dozen lines at once: if all were asked for in one go, whatever stands behind would wait for them too, and
// afterwards memory would be idle.
template <int kLevel>
class ReadAhead {
  public:
    // In `times` parts of about the same size.
    template <typename Inputs>
    void begin(const Inputs& inputs, const KeyRange& range, const AttentionShape& shape, int times) {
        count_ = part_ = 0;
        int lines = 0;
        for (const auto* vectors : {inputs.keys, inputs.values}) {
            range.for_blocks(shape, [&](int, int count, size_t index) {
                const char* at = reinterpret_cast<const char*>(vectors + index * shape.head_dim);
                const char* end = reinterpret_cast<const char*>(vectors + (index + count) * shape.head_dim);
                parts_[count_++] = {at, end};
                lines += int((end - at + kLine - 1) / kLine);
            });
        }
        share_ = (lines + times - 1) / times;
    }

    void ask() {
        for (int left = share_; left > 0 && part_ < count_; ++part_) {
            Part& part = parts_[part_];
            for (; left > 0 && part.at < part.end; part.at += kLine, --left) fetch_line<kLevel>(part.at);
            if (part.at < part.end) return;
        }
    }

  private:
    static constexpr int kLine = 64;
    struct Part {
        const char *at, *end;
    };

    Part parts_[2 * kChunkKeys];
    int count_ = 0, part_ = 0, share_ = 0;
};

// Rows first .. first + rows - 1 belong to one request and stand at consecutive positions.
struct RowGroup {
    int first, rows;
};

// The first chunk of a split, of which the keys that any of the rows sees are there, up to the split's end.
template <typename Inputs>
inline KeyRange chunks_of(const Inputs& inputs, const AttentionShape& shape, const RowGroup& rows, int head, int split) {
    const int position = int(inputs.positions[rows.first]);
    const int low = std::max(shape.first_key(position), split * kSplitKeys);
    const int high = std::min(position + rows.rows, (split + 1) * kSplitKeys) - 1;
    const int32_t* table = inputs.tables + size_t(inputs.owners[rows.first]) * shape.table_stride;
    return {table, head, low / kChunkKeys * kChunkKeys, low, high};
}

// What stands between products and softmax, and between weights and values, where the cache holds numbers: a factor.
struct Unscaled {
    Vec factor;

    template <typename Inputs>
    void read(const Inputs&, const KeyRange&, const AttentionShape&, float score_factor) {
        factor = splat(score_factor);
    }

    // Of the keys that lanes of vector v of a chunk stand for.
    Vec score(int, Vec product) const { return product * factor; }

    // Keeps what values are multiplied by; `sum` gets the weight.
    template <typename Weight, typename Keep>
    void weigh(int v, Vec weight, Weight* weights, Vec& sum, const Keep& keep) const {
        sum += keep(weights + v * kLanes, weight);
    }
};

// The same where it holds codes: the scales of a chunk's keys and values, 0 for those that are not there.
struct Scaled {
    float keys[kChunkKeys], values[kChunkKeys];

    template <typename Inputs>
    void read(const Inputs& inputs, const KeyRange& range, const AttentionShape& shape, float score_factor) {
        std::fill_n(keys, kChunkKeys, 0.0f);
        std::fill_n(values, kChunkKeys, 0.0f);
        range.for_blocks(shape, [&](int i, int count, size_t index) {
            std::copy_n(inputs.key_scales + index, count, keys + i);
            std::copy_n(inputs.value_scales + index, count, values + i);
        });
        for (float& scale : keys) scale *= score_factor;
    }

    Vec score(int v, Vec product) const { return product * load(keys + v * kLanes); }

    template <typename Weight, typename Keep>
    void weigh(int v, Vec weight, Weight* weights, Vec& sum, const Keep& keep) const {
        sum += weight;
        keep(weights + v * kLanes, weight * load(values + v * kLanes));
    }
};

// Sums over the keys of a split, or of all splits up to one, for each entry of a group: those of weights e^(score - peak),
// and of values times weights. An entry that saw no key has the total 0.
struct Sums {
    float *peaks, *totals;
    float* mixed;  // [entry][width]

    // In whole lines of the cache: threads that work on two of them side by side then share none.
    static size_t floats(int entries, int width) { return (size_t(entries) * (2 + width) + 15) / 16 * 16; }
    static Sums at(float* memory, int entries, int width) {
        float* scalars = memory + size_t(entries) * width;
        return {scalars, scalars + entries, memory};
    }
};

// Adds the sums of the next split to those of the splits before.
inline void add_split(const Sums& sums, const Sums& next, int entries, int width) {
    for (int entry = 0; entry < entries; ++entry) {
        if (next.totals[entry] == 0.0f) continue;
        float *mixed = sums.mixed + size_t(entry) * width, &total = sums.totals[entry], &peak = sums.peaks[entry];
        const float *next_mixed = next.mixed + size_t(entry) * width, next_total = next.totals[entry];
        if (total == 0.0f) {
            std::copy_n(next_mixed, width, mixed);
            total = next_total, peak = next.peaks[entry];
            continue;
        }
        const bool higher = next.peaks[entry] > peak;
        const Vec shrink = exp2(splat(higher ? peak - next.peaks[entry] : next.peaks[entry] - peak));
        total = higher ? total * shrink[0] + next_total : next_total * shrink[0] + total;
        peak = higher ? next.peaks[entry] : peak;
        for (int d = 0; d < width; d += kLanes) {
            const Vec before = load(mixed + d), added = load(next_mixed + d);
            store(mixed + d, higher ? fma(before, shrink, added) : fma(added, shrink, before));
        }
    }
}
