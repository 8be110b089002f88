// Causal attention of each row over its request's paged keys and values.
#include "attention.h"

#include <atomic>

#include "attention_amx.h"
#include "attention_few.h"
#include "attention_plan.h"
#include "attention_vector.h"
#include "packed.h"
#include "pool.h"

namespace {

constexpr float kLog2E = 1.44269504088896341f;

// One request's rows and one head of its keys. What it needs of memory, its thread keeps.
template <typename Products>
class GroupAttention {
  public:
    using T = typename Products::Element;
    using E = typename Products::Stored;
    using Weight = typename Products::Weight;

    void begin(const AttentionInputs<T, E>& inputs, const AttentionShape& shape, const RowGroup& rows, int head) {
        inputs_ = &inputs, shape_ = &shape, rows_ = rows, head_ = head;
        group_ = shape.group(), width_ = rounded_up(shape.head_dim, kLanes);
        entries_ = rows.rows * group_;
        position_ = int(inputs.positions[rows.first]);
        const T** queries = queries_.at_least(entries_);
        for (int entry = 0; entry < entries_; ++entry)
            queries[entry] = inputs.qkv + size_t(rows.first + entry / group_) * shape.qkv_stride + column_of(entry);
        products_.begin(shape, queries, entries_);
        lanes_.at_least(entries_);
        scores_.at_least(size_t(Products::kEntries) * kChunkKeys);
        weights_.at_least(size_t(Products::kEntries) * kChunkKeys);
    }

    // Every split one after the other; `then` is what the thread will read afterwards.
    void run(T* out, int first_split, int last_split, const KeyRange& then) {
        const size_t floats = Sums::floats(entries_, width_);
        float* memory = sums_.at_least(2 * floats);
        const Sums sums = Sums::at(memory, entries_, width_), next = Sums::at(memory + floats, entries_, width_);
        for (int split = first_split; split <= last_split; ++split) {
            accumulate(split, split == first_split ? sums : next, split == last_split ? then : chunks(split + 1));
            if (split > first_split) add_split(sums, next, entries_, width_);
        }
        finish(sums, out);
    }

    // Sums of one split.
    void accumulate(int split, const Sums& sums, const KeyRange& then) {
        std::fill_n(sums.peaks, entries_, -INFINITY);
        std::fill_n(sums.mixed, size_t(entries_) * width_, 0.0f);
        std::fill_n(lanes_.data(), entries_, Vec{});
        const bool capped = shape_->soft_cap > 0.0f;
        for (KeyRange range = chunks(split); range.first <= range.high; range = range.next()) {
            const int first = range.first;
            scales_.read(*inputs_, range, *shape_, capped ? shape_->scale / shape_->soft_cap : shape_->scale * kLog2E);
            const int first_row = std::max(0, first - position_);
            int last_row = rows_.rows - 1;
            if (shape_->window > 0) last_row = std::min(last_row, first + kChunkKeys - 2 + shape_->window - position_);
            const int begin = first_row * group_ / Products::kEntries * Products::kEntries, end = (last_row + 1) * group_;
            const int blocks = (end - begin + Products::kEntries - 1) / Products::kEntries;
            const KeyRange next = first + kChunkKeys <= range.high ? range.next() : then;
            ahead_.begin(*inputs_, next, *shape_, Products::kPauses + kPausesOfBlock * blocks);
            products_.read(*inputs_, range, ahead_);
            for (int entry = begin; entry < end; entry += Products::kEntries) {
                const int count = std::min(Products::kEntries, end - entry);
                float shrink[kBlock] = {};
                ahead_.ask();
                products_.scores(entry, count, scores_.data());
                ahead_.ask();
                weigh(entry, count, first, sums, shrink);
                ahead_.ask();
                products_.add_values(entry, count, weights_.data(), shrink, sums.mixed + size_t(entry) * width_, width_);
            }
        }
        for (int entry = 0; entry < entries_; ++entry) sums.totals[entry] = sum(lanes_.data()[entry]);
    }

    void finish(const Sums& sums, T* out) const {
        for (int entry = 0; entry < entries_; ++entry) {
            T* target = out + size_t(rows_.first + entry / group_) * shape_->num_heads * shape_->head_dim + column_of(entry);
            const float *mixed = sums.mixed + size_t(entry) * width_, total = sums.totals[entry];
            for_lanes(shape_->head_dim, [&](int d, auto load_at, auto store_at) {
                store_at(target + d, load_at(mixed + d) / total);
            });
        }
    }

  private:
    static constexpr int kPausesOfBlock = 3;  // in which keys and values are asked for
    static constexpr int kBlock = (Products::kEntries + kLanes - 1) / kLanes * kLanes;

    KeyRange chunks(int split) const { return chunks_of(*inputs_, *shape_, rows_, head_, split); }
    size_t column_of(int entry) const { return size_t(head_ * group_ + entry % group_) * shape_->head_dim; }

    // Products of a block of entries with a chunk's keys to weights, and what their sums so far shrink by.
    void weigh(int first_entry, int count, int first, const Sums& sums, float shrink[kBlock]) {
        float* peaks = sums.peaks + first_entry;
        float bases[Products::kEntries];
        for (int i = 0; i < count; ++i) {
            const float peak = score(first_entry + i, first, scores_.data() + i * kChunkKeys, peaks[i]);
            bases[i] = peak == -INFINITY ? 0.0f : peak;  // where no key was seen yet
            shrink[i] = peaks[i] - bases[i];
            peaks[i] = peak;
        }
        for (int i = 0; i < kBlock; i += kLanes) store(shrink + i, exp2(load(shrink + i)));
        for (int i = 0; i < count; ++i) {
            Weight* weights = weights_.data() + i * kChunkKeys;
            Vec total{};
            for (int v = 0; v < kChunkVectors; ++v) {
                const Vec weight = exp2(load(scores_.data() + i * kChunkKeys + v * kLanes) - bases[i]);
                scales_.weigh(v, weight, weights, total, [](Weight* target, Vec w) { return Products::keep(target, w); });
            }
            Vec& lanes = lanes_.data()[first_entry + i];
            lanes = fma(lanes, splat(shrink[i]), total);
        }
    }

    // Products of an entry with a chunk's keys to scores, as exponents of 2; returns the highest of them and of `before`.
    float score(int entry, int first, float* products, float before) const {
        const int position = position_ + entry / group_;
        const int low = shape_->first_key(position) - first, high = position - first;
        Vec scores[kChunkVectors];
        for (int v = 0; v < kChunkVectors; ++v) scores[v] = scales_.score(v, load(products + v * kLanes));
        if (shape_->soft_cap > 0.0f)
            for (Vec& score : scores) score = tanh(score) * (shape_->soft_cap * kLog2E);
        if (low > 0 || high < kChunkKeys - 1) {
            VecI key;
            for (int lane = 0; lane < kLanes; ++lane) key[lane] = lane;
            for (Vec& score : scores) {
                score = ((key >= low) & (key <= high)) ? score : splat(-INFINITY);
                key += kLanes;
            }
        }
        Vec tops = splat(before);
        for (int v = 0; v < kChunkVectors; ++v) {
            tops = larger(scores[v], tops);
            store(products + v * kLanes, scores[v]);
        }
        return highest(tops);
    }

    const AttentionInputs<T, E>* inputs_ = nullptr;
    const AttentionShape* shape_ = nullptr;
    RowGroup rows_{};
    int head_ = 0, group_ = 0, width_ = 0, entries_ = 0, position_ = 0;
    Products products_;
    typename Products::Ahead ahead_;
    std::conditional_t<std::is_same_v<E, Code>, Scaled, Unscaled> scales_;
    Scratch<const T*> queries_;
    Scratch<Vec> lanes_;  // of each entry's total
    Scratch<float> scores_, sums_;
    Scratch<Weight> weights_;
};

// The same address, of which the compiler does not know what it is: of an object of the thread it asks anew at every use.
template <typename T>
inline T* hidden(T* object) {
#if defined(__GNUC__)
    asm("" : "+r"(object));
#endif
    return object;
}

// The work of one slice; `then` is what the thread will read afterwards.
template <typename Products, typename Inputs>
void attend(
    typename Products::Element* out, const Inputs& inputs, const AttentionShape& shape, AttentionPlan& plan,
    const AttentionSlice& slice, const KeyRange& then) {
    [[maybe_unused]] const typename Products::Session session;
    static thread_local GroupAttention<Products> own;
    GroupAttention<Products>& group = *hidden(&own);
    group.begin(inputs, shape, slice.rows, slice.head);
    if (slice.joint < 0) return group.run(out, slice.first, slice.last, then);
    const Joint& joint = plan.joints[slice.joint];
    group.accumulate(slice.first, plan.part(joint, slice.first), then);
    if (std::atomic_ref(plan.waiting[slice.joint]).fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    const Sums sums = plan.part(joint, joint.first);  // the last to come adds all up, in their order
    for (int split = joint.first + 1; split <= joint.last; ++split)
        add_split(sums, plan.part(joint, split), joint.entries, joint.width);
    group.finish(sums, out);
}

// Few: the products of groups that it serves, with the same bits.
template <typename Products, typename Few, typename Inputs>
void attention(typename Products::Element* out, const Inputs& inputs, const AttentionShape& shape) {
    using T = typename Products::Element;
    static thread_local AttentionPlan kept;
    AttentionPlan& plan = kept;  // the caller's, whichever thread runs a slice
    const int threads = Pool::instance().size();
    plan.make(inputs.owners, inputs.positions, shape, threads);
    const size_t columns = size_t(shape.num_heads) * shape.head_dim;
    for (int row = 0; row < shape.rows; ++row)
        if (inputs.owners[row] < 0) std::fill_n(out + row * columns, columns, T{});  // padding
    const auto body = [&](int index) {
        const AttentionSlice& slice = plan.slices[index];
        const AttentionSlice& next = plan.slices[std::min(index + threads, int(plan.slices.size()) - 1)];  // most likely
        const KeyRange then = chunks_of(inputs, shape, next.rows, next.head, next.first);
        if (Few::serves(shape, slice.rows.rows * shape.group()))
            attend<Few>(out, inputs, shape, plan, slice, then);
        else
            attend<Products>(out, inputs, shape, plan, slice, then);
    };
    const int count = int(plan.slices.size());
    if (plan.small)
        for (int index = 0; index < count; ++index) body(index);
    else
        Pool::instance().run(count, body);
}

template <typename E>
void serve(bf16* out, const AttentionInputs<bf16, E>& inputs, const AttentionShape& shape) {
#ifdef PIZARRA_AMX
    if (amx::granted()) return attention<amx::AttentionProducts<E>, amx::AttentionProducts<E>>(out, inputs, shape);
#endif
    attention<VectorProducts<bf16, E>, FewProducts<bf16, E>>(out, inputs, shape);
}

template <typename E>
void serve(float* out, const AttentionInputs<float, E>& inputs, const AttentionShape& shape) {
    attention<VectorProducts<float, E>, FewProducts<float, E>>(out, inputs, shape);
}

// The cache holds codes where there are scales, else the model's own numbers.
template <typename T>
void paged_attention(
    T* out, const T* qkv, const void* keys, const void* values, const float* key_scales, const float* value_scales,
    const int32_t* tables, const int32_t* owners, const int64_t* positions, int rows, int num_heads, int num_kv_heads,
    int block_size, int head_dim, int table_stride, int qkv_stride, int window, float scale, float soft_cap) {
    const AttentionShape shape{rows,         num_heads,  num_kv_heads, block_size, head_dim,
                               table_stride, qkv_stride, window,       scale,      soft_cap};
    const auto run = [&]<typename E>(const E* typed_keys) {
        const E* typed_values = static_cast<const E*>(values);
        const AttentionInputs<T, E> inputs{qkv,          typed_keys, typed_values, key_scales,
                                           value_scales, tables,     owners,       positions};
        serve(out, inputs, shape);
    };
    if (key_scales != nullptr)
        run(static_cast<const Code*>(keys));
    else
        run(static_cast<const T*>(keys));
}

}  // namespace

extern "C" {
PACKED(pz_attention_bf16, paged_attention<bf16>)
PACKED(pz_attention_fp32, paged_attention<float>)
}
