// How the work of one call of attention is cut into slices. Nothing here has a say in the bits of a result.
#pragma once
#include "attention.h"

// A group's rows and a head of keys, and its splits from first to last: all it has, or one of those of a joint.
struct AttentionSlice {
    RowGroup rows;
    int head, first, last;
    int joint;  // -1: none
};

// A group and a head whose splits are slices of their own, since it would keep one thread busy after the others are done.
struct Joint {
    int first, last;  // splits
    int entries, width;
    size_t begin;  // of its sums
};

// Kept by the calling thread, so that a step asks the system for no memory.
struct AttentionPlan {
    std::vector<AttentionSlice> slices;
    std::vector<Joint> joints;
    std::vector<int> waiting;  // of each joint, how many splits are not done
    bool small = false;        // not worth a second thread

    // The sums of one of a joint's splits.
    Sums part(const Joint& joint, int split) const {
        const size_t floats = Sums::floats(joint.entries, joint.width);
        return Sums::at(sums_.data() + joint.begin + size_t(split - joint.first) * floats, joint.entries, joint.width);
    }

    void make(const int32_t* owners, const int64_t* positions, const AttentionShape& shape, int threads) {
        slices.clear(), joints.clear(), waiting.clear();
        group_rows(owners, positions, shape);
        double total = 0.0;
        for (const RowGroup& rows : groups_) total += cost(rows, positions, shape) * shape.num_kv_heads;
        small = total < kSmall;
        const double most = threads > 1 && !small ? total / (8 * threads) : total;
        size_t floats = 0;
        for (int head = 0; head < shape.num_kv_heads; ++head) {  // outside: what is next then reads the same keys
            for (auto rows = groups_.rbegin(); rows != groups_.rend(); ++rows) {  // long ones first: a prompt's last rows
                const int position = int(positions[rows->first]);
                const int first = shape.first_key(position) / kSplitKeys, last = (position + rows->rows - 1) / kSplitKeys;
                if (first == last || cost(*rows, positions, shape) <= most) {
                    slices.push_back({*rows, head, first, last, -1});
                    continue;
                }
                const Joint joint{first, last, rows->rows * shape.group(), rounded_up(shape.head_dim, kLanes), floats};
                const int parts = last - first + 1;
                for (int split = first; split <= last; ++split)
                    slices.push_back({*rows, head, split, split, int(joints.size())});
                floats += parts * Sums::floats(joint.entries, joint.width);
                joints.push_back(joint);
                waiting.push_back(parts);
            }
        }
        sums_.at_least(floats);
        if (int(slices.size()) <= kFewSlices * threads) {  // the longest first, so that threads end together
            const auto length = [&](const AttentionSlice& slice) { return keys(slice, positions, shape); };
            std::sort(slices.begin(), slices.end(), [&](const AttentionSlice& a, const AttentionSlice& b) {
                return length(a) > length(b);
            });
        }
    }

  private:
    static constexpr double kSmall = 1500.0;  // some microseconds
    static constexpr int kFewSlices = 8;      // a thread

    static int keys(const AttentionSlice& slice, const int64_t* positions, const AttentionShape& shape) {
        const int position = int(positions[slice.rows.first]), end = position + slice.rows.rows;
        return std::min(end, (slice.last + 1) * kSplitKeys) - std::max(shape.first_key(position), slice.first * kSplitKeys);
    }

    // In products of one entry with one key; reading a key counts as four.
    static double cost(const RowGroup& rows, const int64_t* positions, const AttentionShape& shape) {
        const int position = int(positions[rows.first]);
        return double(position + rows.rows - shape.first_key(position)) * (4 + rows.rows * shape.group());
    }

    // Rows of one request at consecutive positions; padding is left out.
    void group_rows(const int32_t* owners, const int64_t* positions, const AttentionShape& shape) {
        const int most = std::max(1, kGroupEntries / shape.group());
        groups_.clear();
        for (int row = 0; row < shape.rows; ++row) {
            if (owners[row] < 0) continue;
            const bool follows = row > 0 && owners[row] == owners[row - 1] && positions[row] == positions[row - 1] + 1 &&
                                 groups_.back().rows < most;
            if (follows)
                ++groups_.back().rows;
            else
                groups_.push_back({row, 1});
        }
    }

    std::vector<RowGroup> groups_;
    Scratch<float> sums_;
};
