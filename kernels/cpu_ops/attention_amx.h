// The products of attention in bf16 on AMX, sixteen entries a tile: scores = K . Q^T, so that an entry is a lane, and
// mixed = P . V with weights rounded to bf16. Keys are tiles as they lie in the cache, where its shape allows.
#pragma once
#include "amx.h"

#ifdef PIZARRA_AMX
#include "attention.h"

namespace amx {

class AttentionProducts {
  public:
    using Element = bf16;
    using Session = Tiles;
    static constexpr int kEntries = kTileRows;

    struct Entries {
        std::vector<uint32_t> queries;  // right operands
        std::vector<float> mixed;       // [entry][column]
    };

    explicit AttentionProducts(const AttentionShape& shape)
        : shape_(shape),
          width_(rounded_up(shape.head_dim, kTileInputs)),
          in_place_(shape.block_size % kTileRows == 0 && shape.head_dim % kTileInputs == 0),
          nothing_(width_, bf16{0}),
          key_copy_(in_place_ ? 0 : size_t(kChunkKeys) * width_, bf16{0}),
          value_storage_(size_t(kChunkKeys) / 2 * width_ + kTileRows),
          values_(reinterpret_cast<uint32_t*>((reinterpret_cast<uintptr_t>(value_storage_.data()) + 63) & ~uintptr_t(63))) {}

    void begin(Entries& entries, const bf16* const rows[kEntries], int count) const {
        entries.queries.resize(size_t(width_) / kTileInputs * kTileWords);
        entries.mixed.assign(size_t(kEntries) * width_, 0.0f);
        std::vector<bf16> gathered(size_t(count) * shape_.head_dim);
        for (int i = 0; i < count; ++i) std::copy_n(rows[i], shape_.head_dim, gathered.data() + size_t(i) * shape_.head_dim);
        pack_rows(entries.queries.data(), gathered.data(), count, shape_.head_dim, size_t(shape_.head_dim));
    }

    // Values that are not there are zeros. A key that is not there may be read where it shares a block with one that is: its
    // scores are hidden.
    void read(const AttentionInputs<bf16>& inputs, const KeyRange& range) {
        fetch(inputs, range.next());
        const bf16* values[kChunkKeys];
        std::fill_n(values, kChunkKeys, nothing_.data());
        std::fill_n(keys_, kKeyTiles, nullptr);
        for (int i = range.begin(); i < range.end(); ++i) {
            const size_t offset = shape_.offset(range.table, range.head, range.first + i);
            const bf16*& tile = keys_[i / kTileRows];
            values[i] = inputs.values + offset;
            if (!in_place_) {
                tile = key_copy_.data() + size_t(i / kTileRows) * kTileRows * width_;
                std::copy_n(inputs.keys + offset, shape_.head_dim, key_copy_.data() + size_t(i) * width_);
            } else if (tile == nullptr) {
                tile = inputs.keys + offset - size_t(i % kTileRows) * width_;
            }
        }
        pack_values(values);
    }

    // Asks for a chunk's keys and values, so that they are near when it comes to be read.
    void fetch(const AttentionInputs<bf16>& inputs, const KeyRange& range) const {
        for (int i = range.begin(); i < range.end(); ++i) {
            const size_t offset = shape_.offset(range.table, range.head, range.first + i);
            for (int d = 0; d < shape_.head_dim; d += kTileInputs) {
                _mm_prefetch(reinterpret_cast<const char*>(inputs.keys + offset + d), _MM_HINT_T1);
                _mm_prefetch(reinterpret_cast<const char*>(inputs.values + offset + d), _MM_HINT_T1);
            }
        }
    }

    void scores(const Entries& entries, Vec out[kChunkKeys]) const {
        for (int t = 0; t < kKeyTiles; ++t) {
            if (keys_[t] == nullptr) continue;
            _tile_zero(0);
            for (int k = 0; k < width_ / kTileInputs; ++k) {
                _tile_loadd(4, keys_[t] + size_t(k) * kTileInputs, sizeof(bf16) * width_);
                _tile_loadd(6, entries.queries.data() + size_t(k) * kTileWords, 64);
                _tile_dpbf16ps(0, 4, 6);
            }
            _tile_stored(0, out + t * kTileRows, 64);
        }
    }

    // To the nearest bf16, ties to even; weights are finite.
    static Vec round(Vec weight) {
        const VecU word = reinterpret_cast<VecU>(weight);
        return reinterpret_cast<Vec>((word + 0x7fffu + ((word >> 16) & 1u)) & 0xffff0000u);
    }

    void add_values(Entries& entries, const Vec weights[kChunkKeys], Vec shrink) const {
        Words left[kSteps * kTileRows];  // [step][entry][key]
        for (int pair = 0; pair < kChunkKeys / 2; ++pair) {
            const VecU even = reinterpret_cast<VecU>(weights[2 * pair]), odd = reinterpret_cast<VecU>(weights[2 * pair + 1]);
            left[pair] = reinterpret_cast<Words>((even >> 16) | odd);
        }
        for (int step = 0; step < kSteps; ++step) transpose(left + step * kTileRows);
        alignas(64) float sums[kTileWords];
        for (int column = 0; column < width_; column += kTileRows) {
            _tile_zero(1);
            for (int step = 0; step < kSteps; ++step) {
                _tile_loadd(5, left + step * kTileRows, 64);
                _tile_loadd(7, value_tile(step, column / kTileRows), 64);
                _tile_dpbf16ps(1, 5, 7);
            }
            _tile_stored(1, sums, 64);
            for (int entry = 0; entry < kEntries; ++entry) {
                float* mixed = entries.mixed.data() + size_t(entry) * width_ + column;
                store(mixed, fma(load(mixed), splat(shrink[entry]), load(sums + entry * kTileRows)));
            }
        }
    }

    void finish(const Entries& entries, int entry, float total, bf16* out) const {
        const float* mixed = entries.mixed.data() + size_t(entry) * width_;
        for_lanes(shape_.head_dim, [&](int d, auto load_at, auto store_at) { store_at(out + d, load_at(mixed + d) / total); });
    }

  private:
    static constexpr int kKeyTiles = kChunkKeys / kTileRows;  // in scores
    static constexpr int kSteps = kChunkKeys / kTileInputs;   // in P . V

    // Thirty-two keys by sixteen columns as a right operand: [pair of keys][column].
    uint32_t* value_tile(int step, int tile) const { return values_ + (size_t(step) * (width_ / kTileRows) + tile) * kTileWords; }

    void pack_values(const bf16* const rows[kChunkKeys]) {
        typedef uint16_t Halves __attribute__((vector_size(64)));
        Halves first_half, second_half;  // of two rows, their values in turns
        for (uint16_t i = 0; i < kTileInputs; ++i) {
            first_half[i] = i / 2 + (i % 2) * kTileInputs;
            second_half[i] = first_half[i] + kTileRows;
        }
        for (int pair = 0; pair < kChunkKeys / 2; ++pair) {
            for (int column = 0; column < shape_.head_dim; column += kTileInputs) {
                uint32_t* target = value_tile(pair / kTileRows, column / kTileRows) + size_t(pair % kTileRows) * kTileRows;
                const Words even = load_words(rows[2 * pair] + column, shape_.head_dim - column);
                const Words odd = load_words(rows[2 * pair + 1] + column, shape_.head_dim - column);
                const Halves low = __builtin_shuffle(Halves(even), Halves(odd), first_half);
                const Halves high = __builtin_shuffle(Halves(even), Halves(odd), second_half);
                std::memcpy(target, &low, sizeof low);
                std::memcpy(target + kTileWords, &high, sizeof high);
            }
        }
    }

    const AttentionShape& shape_;
    int width_;
    bool in_place_;
    std::vector<bf16> nothing_, key_copy_;
    std::vector<uint32_t> value_storage_;
    uint32_t* values_;
    const bf16* keys_[kKeyTiles] = {};  // row-major tiles; null where none of the keys is there
};

}  // namespace amx
#endif
