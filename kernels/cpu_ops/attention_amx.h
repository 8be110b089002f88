// The products of attention in bf16 on AMX, sixteen entries a tile: scores = K . Q^T, so that an entry is a lane, and
// mixed = P . V with weights rounded to bf16. Keys are tiles as they lie in the cache, where its shape allows. Codes become
// bf16, which holds them exactly, a chunk at a time.
#pragma once
#include "amx.h"

#ifdef PIZARRA_AMX
#include "attention.h"

namespace amx {

template <typename T>
class Aligned {
  public:
    explicit Aligned(size_t count)
        : storage_(count + 64 / sizeof(T)),
          begin_(reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(storage_.data()) + 63) & ~uintptr_t(63))) {}
    Aligned(const Aligned&) = delete;
    T* data() const { return begin_; }

  private:
    std::vector<T> storage_;  // zeros at first
    T* begin_;
};

template <typename E>
class AttentionProducts {
  public:
    using Element = bf16;
    using Stored = E;
    using Session = Tiles;
    static constexpr int kEntries = kTileRows;

    struct Entries {
        std::vector<uint32_t> queries;  // right operands
        std::vector<float> mixed;       // [entry][column]
    };

    explicit AttentionProducts(const AttentionShape& shape)
        : shape_(shape),
          width_(rounded_up(shape.head_dim, kTileInputs)),
          in_place_(!kCodes && shape.block_size % kTileRows == 0 && shape.head_dim % kTileInputs == 0),
          nothing_(width_),
          key_copy_(in_place_ ? 0 : size_t(kChunkKeys) * width_),
          values_(size_t(kChunkKeys) / 2 * width_) {}

    void begin(Entries& entries, const bf16* const rows[kEntries], int count) const {
        entries.queries.resize(size_t(width_) / kTileInputs * kTileWords);
        entries.mixed.assign(size_t(kEntries) * width_, 0.0f);
        std::vector<bf16> gathered(size_t(count) * width_);
        for (int i = 0; i < count; ++i) copy_query(gathered.data() + size_t(i) * width_, rows[i]);
        pack_rows(entries.queries.data(), gathered.data(), count, width_, size_t(width_));
    }

    // Values that are not there are zeros. A key that is not there may be read where it shares a block with one that is: its
    // scores are hidden.
    void read(const AttentionInputs<bf16, E>& inputs, const KeyRange& range) {
        fetch(inputs, range.next());
        const E* values[kChunkKeys];
        std::fill_n(values, kChunkKeys, nothing_.data());
        std::fill_n(keys_, kKeyTiles, nullptr);
        range.for_blocks(shape_, [&](int first, int count, size_t index) {
            for (int i = first; i < first + count; ++i, ++index) {
                values[i] = inputs.values + index * shape_.head_dim;
                read_key(i, inputs.keys + index * shape_.head_dim);
            }
        });
        pack_values(values);
    }

    // Asks for a chunk's keys and values, so that they are near when it comes to be read.
    void fetch(const AttentionInputs<bf16, E>& inputs, const KeyRange& range) const {
        range.for_blocks(shape_, [&](int, int count, size_t index) {
            const char* keys = reinterpret_cast<const char*>(inputs.keys + index * shape_.head_dim);
            const char* values = reinterpret_cast<const char*>(inputs.values + index * shape_.head_dim);
            const size_t bytes = size_t(count) * shape_.head_dim * sizeof(E);
            for (size_t at = 0; at < bytes; at += 64) {
                _mm_prefetch(keys + at, _MM_HINT_T1);
                _mm_prefetch(values + at, _MM_HINT_T1);
            }
        });
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
    static constexpr bool kCodes = std::is_same_v<E, Code>;
    static constexpr int kKeyTiles = kChunkKeys / kTileRows;  // in scores
    static constexpr int kSteps = kChunkKeys / kTileInputs;   // in P . V

    typedef uint16_t Halves __attribute__((vector_size(64)));

    // Sixteen codes, of which `count` are there, the others zero, as fp32 bits: their upper halves are bf16.
    static VecU code_bits(const Code* codes) { return reinterpret_cast<VecU>(load(codes)); }
    static VecU code_bits(const Code* codes, int count) {
        if (count >= kTileRows) return code_bits(codes);
        return count > 0 ? reinterpret_cast<VecU>(load_part(codes, count)) : VecU{};
    }

    // Codes of two vectors in turns, as bf16.
    static void store_in_turns(void* target, VecU even, VecU odd) {
        const VecU words = (even >> 16) | odd;
        std::memcpy(target, &words, sizeof words);
    }

    // Beside codes a query's columns stand as `read_key` puts those of a key.
    void copy_query(bf16* target, const bf16* row) const {
        Halves order;
        for (uint16_t i = 0; i < kTileInputs; ++i) order[i] = kCodes ? i / 2 + (i % 2) * kTileRows : i;
        for (int column = 0; column < shape_.head_dim; column += kTileInputs) {
            const Halves words = __builtin_shuffle(Halves(load_words(row + column, shape_.head_dim - column)), order);
            std::memcpy(target + column, &words, sizeof words);
        }
    }

    void read_key(int i, const bf16* key) {
        const bf16*& tile = keys_[i / kTileRows];
        if (in_place_) {
            if (tile == nullptr) tile = key - size_t(i % kTileRows) * width_;
            return;
        }
        tile = key_copy_.data() + size_t(i / kTileRows) * kTileRows * width_;
        std::copy_n(key, shape_.head_dim, key_copy_.data() + size_t(i) * width_);
    }

    // Of each thirty-two columns the halves in turns, which is how they come out of widening: 0, 16, 1, 17, ...
    void read_key(int i, const Code* key) {
        keys_[i / kTileRows] = key_copy_.data() + size_t(i / kTileRows) * kTileRows * width_;
        bf16* target = key_copy_.data() + size_t(i) * width_;
        const int whole = shape_.head_dim / kTileInputs * kTileInputs, rest = shape_.head_dim - whole;
        for (int column = 0; column < whole; column += kTileInputs)
            store_in_turns(target + column, code_bits(key + column), code_bits(key + column + kTileRows));
        if (rest > 0)
            store_in_turns(target + whole, code_bits(key + whole, rest), code_bits(key + whole + kTileRows, rest - kTileRows));
    }

    // Thirty-two keys by sixteen columns as a right operand: [pair of keys][column].
    uint32_t* value_tile(int step, int tile) const {
        return values_.data() + (size_t(step) * (width_ / kTileRows) + tile) * kTileWords;
    }

    void pack_values(const bf16* const rows[kChunkKeys]) {
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

    void pack_values(const Code* const rows[kChunkKeys]) {
        const int whole = shape_.head_dim / kTileRows * kTileRows, rest = shape_.head_dim - whole;
        for (int pair = 0; pair < kChunkKeys / 2; ++pair) {
            const Code *even = rows[2 * pair], *odd = rows[2 * pair + 1];
            uint32_t* target = value_tile(pair / kTileRows, 0) + size_t(pair % kTileRows) * kTileRows;
            for (int column = 0; column < whole; column += kTileRows, target += kTileWords)
                store_in_turns(target, code_bits(even + column), code_bits(odd + column));
            if (rest > 0) store_in_turns(target, code_bits(even + whole, rest), code_bits(odd + whole, rest));
        }
    }

    const AttentionShape& shape_;
    int width_;
    bool in_place_;
    std::vector<E> nothing_;  // zeros
    Aligned<bf16> key_copy_;
    Aligned<uint32_t> values_;
    const bf16* keys_[kKeyTiles] = {};  // row-major tiles; null where none of the keys is there
};

}  // namespace amx
#endif
