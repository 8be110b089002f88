// Causal attention of each row over its request's paged keys and values.
#include "attention.h"

#include "attention_amx.h"
#include "attention_vector.h"
#include "pool.h"

namespace {

// One request's rows and one head of its keys.
template <typename Products>
class GroupAttention {
  public:
    using T = typename Products::Element;
    using E = typename Products::Stored;

    GroupAttention(const AttentionInputs<T, E>& inputs, const AttentionShape& shape, const RowGroup& rows, int head)
        : inputs_(inputs), shape_(shape), rows_(rows), head_(head), products_(shape) {}

    void run(T* out) {
        const int count = rows_.rows * shape_.group();
        std::vector<Tile> tiles((count + Products::kEntries - 1) / Products::kEntries);
        for (size_t t = 0; t < tiles.size(); ++t) begin(tiles[t], int(t) * Products::kEntries, count);
        const int low = tiles.front().softmax.lowest, high = tiles.back().softmax.highest;
        const int32_t* table = inputs_.tables + size_t(inputs_.owners[rows_.first]) * shape_.table_stride;
        Vec scores[kChunkKeys] = {};
        for (int first = low / kChunkKeys * kChunkKeys; first <= high; first += kChunkKeys) {
            const KeyRange range{table, head_, first, low, high};
            products_.read(inputs_, range);
            scales_.read(inputs_, range, shape_);
            for (Tile& tile : tiles) {
                if (!tile.softmax.sees(first)) continue;
                products_.scores(tile.entries, scores);
                const Vec shrink = tile.softmax.weigh(scores, first, shape_, scales_, Products::round);
                products_.add_values(tile.entries, scores, shrink);
            }
        }
        for (size_t t = 0; t < tiles.size(); ++t) finish(tiles[t], int(t) * Products::kEntries, count, out);
    }

  private:
    struct Tile {
        Softmax softmax;
        typename Products::Entries entries;
    };

    int row_of(int entry) const { return rows_.first + entry / shape_.group(); }
    size_t column_of(int entry) const {
        return size_t(head_ * shape_.group() + entry % shape_.group()) * shape_.head_dim;
    }

    void begin(Tile& tile, int first, int count) const {
        const T* rows[Products::kEntries];
        const int last = std::min(count, first + Products::kEntries);
        for (int entry = first; entry < last; ++entry) {
            const int row = row_of(entry), position = int(inputs_.positions[row]);
            rows[entry - first] = inputs_.qkv + size_t(row) * shape_.qkv_stride + column_of(entry);
            tile.softmax.add(entry - first, shape_.first_key(position), position);
        }
        products_.begin(tile.entries, rows, last - first);
    }

    void finish(const Tile& tile, int first, int count, T* out) const {
        for (int entry = first; entry < std::min(count, first + Products::kEntries); ++entry) {
            T* target = out + size_t(row_of(entry)) * shape_.num_heads * shape_.head_dim + column_of(entry);
            products_.finish(tile.entries, entry - first, tile.softmax.total[entry - first], target);
        }
    }

    const AttentionInputs<T, E>& inputs_;
    const AttentionShape& shape_;
    RowGroup rows_;
    int head_;
    Products products_;
    std::conditional_t<std::is_same_v<E, Code>, Scaled, Unscaled> scales_;
};

template <typename Products, typename Inputs>
void attention(typename Products::Element* out, const Inputs& inputs, const AttentionShape& shape) {
    using T = typename Products::Element;
    const std::vector<RowGroup> groups = group_rows(inputs.owners, inputs.positions, shape);
    Pool::instance().run(int(groups.size()) * shape.num_kv_heads, [&](int slice) {
        const RowGroup& rows = groups[slice / shape.num_kv_heads];
        const int head = slice % shape.num_kv_heads;
        if (inputs.owners[rows.first] < 0) {  // padding: a group of one row
            const int width = shape.group() * shape.head_dim;
            std::fill_n(out + (size_t(rows.first) * shape.num_kv_heads + head) * width, width, T{});
            return;
        }
        [[maybe_unused]] const typename Products::Session session;
        GroupAttention<Products>(inputs, shape, rows, head).run(out);
    });
}

template <typename E>
void serve(bf16* out, const AttentionInputs<bf16, E>& inputs, const AttentionShape& shape) {
#ifdef PIZARRA_AMX
    if (amx::granted()) return attention<amx::AttentionProducts<E>>(out, inputs, shape);
#endif
    attention<VectorProducts<bf16, E>>(out, inputs, shape);
}

template <typename E>
void serve(float* out, const AttentionInputs<float, E>& inputs, const AttentionShape& shape) {
    attention<VectorProducts<float, E>>(out, inputs, shape);
}

// The cache holds codes where there are scales, else the model's own numbers.
template <typename T>
void serve(
    T* out, const T* qkv, const void* keys, const void* values, const float* key_scales, const float* value_scales,
    const int32_t* tables, const int32_t* owners, const int64_t* positions, const AttentionShape& shape) {
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
void pz_attention_bf16(
    bf16* out, const bf16* qkv, const void* keys, const void* values, const float* key_scales, const float* value_scales,
    const int32_t* tables, const int32_t* owners, const int64_t* positions, int rows, int num_heads, int num_kv_heads,
    int block_size, int head_dim, int table_stride, int qkv_stride, int window, float scale, float soft_cap) {
    const AttentionShape shape{rows,         num_heads,  num_kv_heads, block_size, head_dim,
                               table_stride, qkv_stride, window,       scale,      soft_cap};
    serve(out, qkv, keys, values, key_scales, value_scales, tables, owners, positions, shape);
}
void pz_attention_fp32(
    float* out, const float* qkv, const void* keys, const void* values, const float* key_scales, const float* value_scales,
    const int32_t* tables, const int32_t* owners, const int64_t* positions, int rows, int num_heads, int num_kv_heads,
    int block_size, int head_dim, int table_stride, int qkv_stride, int window, float scale, float soft_cap) {
    const AttentionShape shape{rows,         num_heads,  num_kv_heads, block_size, head_dim,
                               table_stride, qkv_stride, window,       scale,      soft_cap};
    serve(out, qkv, keys, values, key_scales, value_scales, tables, owners, positions, shape);
}
}
