// Paged attention in bf16 on AMX.
// An entry is one query: a row's position and one of its heads. The entries of neighbouring rows that share keys are worked
// on sixteen at a time, against chunks of keys that begin at fixed positions: scores = K . Q^T with an entry per lane, so
// that the softmax has no sums across lanes, then mixed = P . V. A chunk that an entry does not see leaves it as it was,
// so an entry's bits do not depend on those beside it.
#pragma once
#include "amx.h"

#ifdef PIZARRA_AMX
#include <cmath>
#include <vector>

#include "attention.h"
#include "pool.h"

namespace amx {

constexpr int kChunkTiles = kChunkKeys / kTileRows;     // of keys, in scores
constexpr int kChunkSteps = kChunkKeys / kTileInputs;   // of keys, in P . V
constexpr int kGroupEntries = 64;                       // entries that share one reading of keys and values

inline int rounded_up(int count, int multiple) { return (count + multiple - 1) / multiple * multiple; }

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

// The keys and values of one chunk, as the tile loads want them. Of what lies outside low .. high, no value is read, and a
// key only where it shares a block with one inside: its scores are masked.
class Chunk {
  public:
    explicit Chunk(const AttentionShape& shape)
        : shape_(shape),
          key_width_(rounded_up(shape.head_dim, kTileInputs)),
          value_width_(rounded_up(shape.head_dim, kTileInputs)),
          in_place_(shape.block_size % kTileRows == 0 && shape.head_dim % kTileInputs == 0),
          nothing_(size_t(value_width_), bf16{0}),
          key_copy_(in_place_ ? 0 : size_t(kChunkKeys) * key_width_, bf16{0}),
          values_(size_t(kChunkKeys) / 2 * value_width_ + kTileRows) {}

    void read(const Cache<bf16>& cache, const int32_t* table, int head, int first, int low, int high) {
        const bf16* values[kChunkKeys];
        for (int i = 0; i < kChunkKeys; ++i) {
            const int key = first + i;
            const bool there = key >= low && key <= high;
            const size_t offset = there ? cache.offset(table[key / cache.block_size], head, key % cache.block_size) : 0;
            values[i] = there ? cache.values + offset : nothing_.data();
            if (in_place_) {
                if (i % kTileRows == 0) keys_[i / kTileRows] = nullptr;
                if (there && keys_[i / kTileRows] == nullptr)
                    keys_[i / kTileRows] = cache.keys + offset - size_t(i % kTileRows) * shape_.head_dim;
            } else if (there) {
                std::memcpy(key_copy_.data() + size_t(i) * key_width_, cache.keys + offset, sizeof(bf16) * shape_.head_dim);
            }
        }
        if (!in_place_)
            for (int t = 0; t < kChunkTiles; ++t) keys_[t] = key_copy_.data() + size_t(t) * kTileRows * key_width_;
        pack_values(values);
    }

    // Sixteen keys, row-major; null where none of them is there.
    const bf16* keys(int tile) const { return keys_[tile]; }
    size_t key_stride() const { return sizeof(bf16) * key_width_; }
    int key_steps() const { return key_width_ / kTileInputs; }

    // Thirty-two keys by sixteen columns as a right operand.
    const uint32_t* values(int step, int tile) const {
        return aligned_values() + (size_t(step) * value_tiles() + tile) * kTileWords;
    }
    int value_tiles() const { return value_width_ / kTileRows; }

  private:
    uint32_t* aligned_values() const {
        return reinterpret_cast<uint32_t*>((reinterpret_cast<uintptr_t>(values_.data()) + 63) & ~uintptr_t(63));
    }

    void pack_values(const bf16* const values[kChunkKeys]) {
        typedef uint16_t Halves __attribute__((vector_size(64)));
        Halves first_half, second_half;
        for (uint16_t i = 0; i < kTileInputs; ++i) {
            first_half[i] = i / 2 + (i % 2) * kTileInputs;
            second_half[i] = first_half[i] + kTileRows;
        }
        const int columns = shape_.head_dim;
        for (int pair = 0; pair < kChunkKeys / 2; ++pair) {
            uint32_t* target = aligned_values() + size_t(pair / kTileRows) * value_tiles() * kTileWords +
                               size_t(pair % kTileRows) * kTileRows;
            for (int column = 0; column < columns; column += kTileInputs) {
                Halves even{}, odd{};
                const size_t bytes = sizeof(bf16) * std::min(kTileInputs, columns - column);
                std::memcpy(&even, values[2 * pair] + column, bytes);
                std::memcpy(&odd, values[2 * pair + 1] + column, bytes);
                const Halves low = __builtin_shuffle(even, odd, first_half);
                const Halves high = __builtin_shuffle(even, odd, second_half);
                std::memcpy(target, &low, sizeof low);
                std::memcpy(target + kTileWords, &high, sizeof high);
                target += 2 * kTileWords;
            }
        }
    }

    const AttentionShape& shape_;
    int key_width_, value_width_;
    bool in_place_;
    std::vector<bf16> nothing_, key_copy_;
    mutable std::vector<uint32_t> values_;
    const bf16* keys_[kChunkTiles] = {};
};

// Sixteen entries on their way over the keys: an online softmax each, a lane each.
struct EntryTile {
    Vec peak, total;
    VecI first_key, last_key;  // what each entry sees
    int lowest, highest;       // over the entries
    std::vector<uint32_t> queries;
    std::vector<float> mixed;  // [entry][column]
};

inline bool sees(const EntryTile& tile, int first_key) {
    return tile.highest >= first_key && tile.lowest < first_key + kChunkKeys;
}

// bf16 in the upper half of each word, to nearest, ties to even; the values are finite.
inline VecU rounded(Vec v) {
    const VecU word = reinterpret_cast<VecU>(v);
    return (word + 0x7fffu + ((word >> 16) & 1u)) & 0xffff0000u;
}

// The scores of a chunk, masked: an entry per lane.
inline void chunk_scores(const EntryTile& tile, const Chunk& chunk, int first_key, const AttentionShape& shape, Vec scores[kChunkKeys]) {
    for (int t = 0; t < kChunkTiles; ++t) {
        if (chunk.keys(t) == nullptr) {
            for (int i = 0; i < kTileRows; ++i) scores[t * kTileRows + i] = Vec{};
            continue;
        }
        _tile_zero(0);
        for (int k = 0; k < chunk.key_steps(); ++k) {
            _tile_loadd(4, chunk.keys(t) + size_t(k) * kTileInputs, chunk.key_stride());
            _tile_loadd(6, tile.queries.data() + size_t(k) * kTileWords, 64);
            _tile_dpbf16ps(0, 4, 6);
        }
        _tile_stored(0, scores + t * kTileRows, 64);
    }
    const Vec hidden = splat(-INFINITY);
    for (int i = 0; i < kChunkKeys; ++i) {
        Vec score = scores[i] * shape.scale;
        if (shape.soft_cap > 0.0f) score = tanh(score / shape.soft_cap) * shape.soft_cap;
        const VecI key = VecI{} + (first_key + i);
        scores[i] = (key >= tile.first_key) & (key <= tile.last_key) ? score : hidden;
    }
}

// Scores to weights in bf16, [step][entry][key] in tiles; returns what the sums so far shrink by.
inline Vec chunk_weights(EntryTile& tile, Vec scores[kChunkKeys], Words weights[kChunkSteps * kTileRows]) {
    Vec peak = tile.peak;
    for (int i = 0; i < kChunkKeys; ++i) peak = scores[i] > peak ? scores[i] : peak;
    const Vec base = peak == splat(-INFINITY) ? Vec{} : peak;  // an entry that has seen no key yet
    const Vec shrink = exp(tile.peak - base);
    Vec sums[2] = {};
    for (int pair = 0; pair < kChunkKeys / 2; ++pair) {
        const VecU even = rounded(exp(scores[2 * pair] - base)), odd = rounded(exp(scores[2 * pair + 1] - base));
        sums[0] += reinterpret_cast<Vec>(even);
        sums[1] += reinterpret_cast<Vec>(odd);
        weights[pair] = reinterpret_cast<Words>((even >> 16) | odd);
    }
    for (int step = 0; step < kChunkSteps; ++step) transpose(weights + step * kTileRows);
    tile.total = tile.total * shrink + (sums[0] + sums[1]);
    tile.peak = peak;
    return shrink;
}

inline void add_values(EntryTile& tile, const Chunk& chunk, const Words* weights, Vec shrink) {
    alignas(64) float sums[kTileWords];
    const int width = chunk.value_tiles() * kTileRows;
    for (int column = 0; column < chunk.value_tiles(); ++column) {
        _tile_zero(1);
        for (int step = 0; step < kChunkSteps; ++step) {
            _tile_loadd(5, weights + step * kTileRows, 64);
            _tile_loadd(7, chunk.values(step, column), 64);
            _tile_dpbf16ps(1, 5, 7);
        }
        _tile_stored(1, sums, 64);
        for (int entry = 0; entry < kTileRows; ++entry) {
            float* mixed = tile.mixed.data() + size_t(entry) * width + size_t(column) * kTileRows;
            store(mixed, fma(load(mixed), splat(shrink[entry]), load(sums + entry * kTileRows)));
        }
    }
}

// One request's rows and one head of its keys.
class GroupAttention {
  public:
    GroupAttention(const AttentionInputs<bf16>& inputs, const AttentionShape& shape, const RowGroup& rows, int head)
        : inputs_(inputs), shape_(shape), rows_(rows), head_(head) {}

    void run(bf16* out) {
        const Cache<bf16> cache{inputs_.keys, inputs_.values, shape_.num_kv_heads, shape_.block_size, shape_.head_dim};
        const int32_t* table = inputs_.tables + size_t(inputs_.owners[rows_.first]) * shape_.table_stride;
        Chunk chunk(shape_);
        const int entries = rows_.rows * shape_.group();
        std::vector<EntryTile> tiles((entries + kTileRows - 1) / kTileRows);
        for (size_t t = 0; t < tiles.size(); ++t) begin(tiles[t], int(t) * kTileRows, entries, chunk);
        const int low = tiles.front().lowest, high = tiles.back().highest;
        Vec scores[kChunkKeys];
        Words weights[kChunkSteps * kTileRows];
        for (int first = low / kChunkKeys * kChunkKeys; first <= high; first += kChunkKeys) {
            chunk.read(cache, table, head_, first, low, high);
            for (EntryTile& tile : tiles) {
                if (!sees(tile, first)) continue;
                chunk_scores(tile, chunk, first, shape_, scores);
                const Vec shrink = chunk_weights(tile, scores, weights);
                add_values(tile, chunk, weights, shrink);
            }
        }
        for (size_t t = 0; t < tiles.size(); ++t) finish(tiles[t], int(t) * kTileRows, entries, chunk, out);
    }

  private:
    int row_of(int entry) const { return rows_.first + entry / shape_.group(); }
    size_t column_of(int entry) const {
        return size_t(head_ * shape_.group() + entry % shape_.group()) * shape_.head_dim;
    }

    void begin(EntryTile& tile, int first, int entries, const Chunk& chunk) {
        const int D = shape_.head_dim, count = std::min(kTileRows, entries - first);
        std::vector<bf16> rows(size_t(kTileRows) * D, bf16{0});
        tile.peak = splat(-INFINITY), tile.total = Vec{};
        tile.first_key = VecI{} + 1, tile.last_key = VecI{};  // a lane without an entry sees nothing
        for (int i = 0; i < count; ++i) {
            const int row = row_of(first + i), position = int(inputs_.positions[row]);
            tile.first_key[i] = shape_.first_key(position);
            tile.last_key[i] = position;
            std::memcpy(
                rows.data() + size_t(i) * D, inputs_.qkv + size_t(row) * shape_.qkv_stride + column_of(first + i),
                sizeof(bf16) * D);
        }
        tile.lowest = tile.first_key[0], tile.highest = tile.last_key[count - 1];
        tile.queries.resize(size_t(chunk.key_steps()) * kTileWords);
        pack_rows(tile.queries.data(), rows.data(), count, D, size_t(D));
        tile.mixed.assign(size_t(kTileRows) * chunk.value_tiles() * kTileRows, 0.0f);
    }

    void finish(const EntryTile& tile, int first, int entries, const Chunk& chunk, bf16* out) {
        const int D = shape_.head_dim, width = chunk.value_tiles() * kTileRows;
        for (int i = 0; i < std::min(kTileRows, entries - first); ++i) {
            const float* mixed = tile.mixed.data() + size_t(i) * width;
            bf16* target = out + size_t(row_of(first + i)) * shape_.num_heads * D + column_of(first + i);
            const Vec total = splat(tile.total[i]);
            for_lanes(D, [&](int d, auto load_at, auto store_at) { store_at(target + d, load_at(mixed + d) / total); });
        }
    }

    const AttentionInputs<bf16>& inputs_;
    const AttentionShape& shape_;
    RowGroup rows_;
    int head_;
};

inline void attention(bf16* out, const AttentionInputs<bf16>& inputs, const AttentionShape& shape) {
    const std::vector<RowGroup> groups = group_rows(inputs.owners, inputs.positions, shape);
    Pool::instance().run(int(groups.size()) * shape.num_kv_heads, [&](int slice) {
        const RowGroup& rows = groups[slice / shape.num_kv_heads];
        const int head = slice % shape.num_kv_heads;
        if (inputs.owners[rows.first] < 0) {  // padding: one row a group
            const size_t width = size_t(shape.group()) * shape.head_dim;
            std::fill_n(out + size_t(rows.first) * shape.num_heads * shape.head_dim + head * width, width, bf16{0});
            return;
        }
        amx_configure();
        GroupAttention(inputs, shape, rows, head).run(out);
        _tile_release();
    });
}

}  // namespace amx
#endif
