// The products of attention by vector instructions, an entry per lane: keys and values are widened to fp32 once per chunk.
#pragma once
#include "attention.h"

template <typename T, typename E>
class VectorProducts {
  public:
    using Element = T;
    using Stored = E;
    struct Session {
        Session() {}
    };
    static constexpr int kEntries = kLanes;

    struct Entries {
        std::vector<float> queries, mixed;  // [column][entry]
    };

    explicit VectorProducts(const AttentionShape& shape)
        : shape_(shape), width_(rounded_up(shape.head_dim, kTogether)), keys_(size_t(kChunkKeys) * width_), values_(keys_.size()) {}

    void begin(Entries& entries, const T* const rows[kEntries], int count) const {
        entries.queries.assign(size_t(width_) * kEntries, 0.0f);
        entries.mixed.assign(entries.queries.size(), 0.0f);
        for (int i = 0; i < count; ++i)
            for (int d = 0; d < shape_.head_dim; ++d) entries.queries[size_t(d) * kEntries + i] = widen(rows[i][d]);
    }

    // What is not there keeps what it held: it is hidden from the scores, and its weight is never used.
    void read(const AttentionInputs<T, E>& inputs, const KeyRange& range) {
        begin_ = range.begin(), end_ = range.end();
        range.for_blocks(shape_, [&](int first, int count, size_t index) {
            for (int i = 0; i < count; ++i) {
                const size_t source = (index + i) * shape_.head_dim, target = size_t(first + i) * width_;
                widen_to(keys_.data() + target, inputs.keys + source);
                widen_to(values_.data() + target, inputs.values + source);
            }
        });
    }

    void scores(const Entries& entries, Vec out[kChunkKeys]) const {
        for (int i = begin_ / kTogether * kTogether; i < end_; i += kTogether) {
            Vec sums[kTogether] = {};
            const float* keys = keys_.data() + size_t(i) * width_;
            for (int d = 0; d < shape_.head_dim; ++d) {
                const Vec query = load(entries.queries.data() + size_t(d) * kEntries);
                for (int j = 0; j < kTogether; ++j) sums[j] = fma(splat(keys[size_t(j) * width_ + d]), query, sums[j]);
            }
            for (int j = 0; j < kTogether; ++j) out[i + j] = sums[j];
        }
    }

    static Vec round(Vec weight) { return weight; }

    void add_values(Entries& entries, const Vec weights[kChunkKeys], Vec shrink) const {
        for (int d = 0; d < width_; d += kTogether) {
            float* mixed = entries.mixed.data() + size_t(d) * kEntries;
            Vec sums[kTogether];
            for (int j = 0; j < kTogether; ++j) sums[j] = load(mixed + j * kEntries) * shrink;
            for (int i = begin_; i < end_; ++i) {
                const float* value = values_.data() + size_t(i) * width_ + d;
                for (int j = 0; j < kTogether; ++j) sums[j] = fma(splat(value[j]), weights[i], sums[j]);
            }
            for (int j = 0; j < kTogether; ++j) store(mixed + j * kEntries, sums[j]);
        }
    }

    void finish(const Entries& entries, int entry, float total, T* out) const {
        for (int d = 0; d < shape_.head_dim; ++d) narrow(entries.mixed[size_t(d) * kEntries + entry] / total, out + d);
    }

  private:
    static constexpr int kTogether = 8;  // keys, or columns, whose sums stay in registers

    void widen_to(float* out, const E* row) const {
        for_lanes(shape_.head_dim, [&](int i, auto load_at, auto store_at) { store_at(out + i, load_at(row + i)); });
    }

    const AttentionShape& shape_;
    int width_, begin_ = 0, end_ = 0;
    std::vector<float> keys_, values_;
};
