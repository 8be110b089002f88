// The products of attention in bf16 on AMX, sixteen entries a tile: scores = K . Q^T, turned afterwards so that an entry's
// lie together, and mixed = P . V with weights rounded to bf16. Keys are tiles as they lie in the cache, where its shape
// allows. Codes become bf16, which holds them exactly, a chunk at a time.
#pragma once
#include "amx.h"

#ifdef PIZARRA_AMX
#include "attention.h"

namespace amx {

template <typename E>
class AttentionProducts {
  public:
    using Element = bf16;
    using Stored = E;
    using Weight = bf16;
    using Session = Tiles;
    using Ahead = ReadAhead<1>;
    static constexpr int kEntries = kTileRows;
    static constexpr int kPauseKeys = 16;                        // that are read between two of
    static constexpr int kPauses = kChunkKeys / kPauseKeys + 1;  // the pauses of `read`, in which what comes next is asked for

    static bool serves(const AttentionShape&, int) { return true; }

    // rows: the queries of `count` entries.
    void begin(const AttentionShape& shape, const bf16* const* rows, int count) {
        shape_ = &shape;
        width_ = rounded_up(shape.head_dim, kTileInputs);
        in_place_ = !kCodes && shape.block_size % kTileRows == 0 && shape.head_dim % kTileInputs == 0;
        std::fill_n(nothing_.at_least(width_), width_, E{});
        key_copy_.at_least(size_t(kChunkKeys) * width_);
        values_.at_least(size_t(kChunkKeys) / 2 * width_);
        bf16* gathered = gathered_.at_least(size_t(kEntries) * width_);
        uint32_t* packed = queries_.at_least(size_t(rounded_up(count, kEntries)) * width_ / 2);
        for (int first = 0; first < count; first += kEntries, packed += size_t(kEntries) * width_ / 2) {
            const int together = std::min(kEntries, count - first);
            for (int i = 0; i < together; ++i) copy_query(gathered + size_t(i) * width_, rows[first + i]);
            pack_rows(packed, gathered, together, width_, size_t(width_));
        }
    }

    // Values that are not there are zeros. A key that is not there may be read where it shares a block with one that is: its
    // scores are hidden.
    void read(const AttentionInputs<bf16, E>& inputs, const KeyRange& range, Ahead& ahead) {
        const E* values[kChunkKeys];
        std::fill_n(values, kChunkKeys, nothing_.data());
        std::fill_n(keys_, kKeyTiles, nullptr);
        range.for_blocks(*shape_, [&](int first, int count, size_t index) {
            for (int i = first; i < first + count; ++i, ++index) {
                if (i % kPauseKeys == 0) ahead.ask();
                values[i] = inputs.values + index * shape_->head_dim;
                read_key(i, inputs.keys + index * shape_->head_dim);
            }
        });
        ahead.ask();
        pack_values(values);
    }

    // Products [entry][key] of `count` entries from number `first`, a multiple of kEntries, on with a chunk's keys; those with
    // keys that are not there may be anything.
    void scores(int first, int count, float* out) const {
        const uint32_t* queries = queries_.data() + size_t(first) * width_ / 2;
        for (int t = 0; t < kKeyTiles; ++t) {
            if (keys_[t] == nullptr) continue;
            alignas(64) Words products[kTileRows];  // [key][entry]
            written();
            _tile_zero(0);
            for (int k = 0; k < width_ / kTileInputs; ++k) {
                _tile_loadd(4, keys_[t] + size_t(k) * kTileInputs, sizeof(bf16) * width_);
                _tile_loadd(6, queries + size_t(k) * kTileWords, 64);
                _tile_dpbf16ps(0, 4, 6);
            }
            _tile_stored(0, products, 64);
            written();
            transpose(products);
            for (int i = 0; i < count; ++i) std::memcpy(out + i * kChunkKeys + t * kTileRows, &products[i], sizeof products[i]);
        }
    }

    // Keeps weights, which are finite, to the nearest bf16, ties to even; returns what they became.
    static Vec keep(bf16* target, Vec weight) {
        const VecU word = reinterpret_cast<VecU>(weight);
        const VecU upper = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
        const VecH half = __builtin_convertvector(upper, VecH);
        std::memcpy(target, &half, sizeof half);
        return reinterpret_cast<Vec>(upper << 16);
    }

    // mixed [entry][width] = mixed * shrink + weights [entry][key] times values.
    void add_values(int, int count, const bf16* weights, const float* shrink, float* mixed, int width) const {
        written();
        for (int column = 0; column < width; column += kTileRows) {
            alignas(64) float sums[kTileWords];
            _tile_zero(1);
            for (int step = 0; step < kSteps; ++step) {
                _tile_loadd(5, weights + step * kTileInputs, sizeof(bf16) * kChunkKeys);
                _tile_loadd(7, value_tile(step, column / kTileRows), 64);
                _tile_dpbf16ps(1, 5, 7);
            }
            _tile_stored(1, sums, 64);
            written();
            for (int entry = 0; entry < count; ++entry) {
                float* place = mixed + size_t(entry) * width + column;
                store(place, fma(load(place), splat(shrink[entry]), load(sums + entry * kTileRows)));
            }
        }
    }

  private:
    static constexpr bool kCodes = std::is_same_v<E, Code>;
    static constexpr int kKeyTiles = kChunkKeys / kTileRows;  // in scores
    static constexpr int kSteps = kChunkKeys / kTileInputs;   // in P . V

    typedef uint16_t Halves __attribute__((vector_size(64)));

    // gcc does not know that the instructions on tiles read and write memory.
    static void written() { asm volatile("" : : : "memory"); }

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
        constexpr auto kOrder = [](int i) { return kCodes ? i / 2 + i % 2 * kTileRows : i; };
        for (int column = 0; column < shape_->head_dim; column += kTileInputs) {
            const Halves plain = Halves(load_words(row + column, shape_->head_dim - column));
            const Halves words = shuffle<kOrder>(plain, plain);
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
        for (int column = 0; column < shape_->head_dim; column += kTileInputs) {
            const Words words = load_words(key + column, shape_->head_dim - column);
            std::memcpy(key_copy_.data() + size_t(i) * width_ + column, &words, sizeof words);
        }
    }

    // Of each thirty-two columns the halves in turns, which is how they come out of widening: 0, 16, 1, 17, ...
    void read_key(int i, const Code* key) {
        keys_[i / kTileRows] = key_copy_.data() + size_t(i / kTileRows) * kTileRows * width_;
        bf16* target = key_copy_.data() + size_t(i) * width_;
        const int whole = shape_->head_dim / kTileInputs * kTileInputs, rest = shape_->head_dim - whole;
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
        constexpr auto kFirst = [](int i) { return i / 2 + i % 2 * kTileInputs; };  // of two rows, their values in turns
        constexpr auto kSecond = [](int i) { return i / 2 + i % 2 * kTileInputs + kTileRows; };
        for (int pair = 0; pair < kChunkKeys / 2; ++pair) {
            for (int column = 0; column < shape_->head_dim; column += kTileInputs) {
                uint32_t* target = value_tile(pair / kTileRows, column / kTileRows) + size_t(pair % kTileRows) * kTileRows;
                const Words even = load_words(rows[2 * pair] + column, shape_->head_dim - column);
                const Words odd = load_words(rows[2 * pair + 1] + column, shape_->head_dim - column);
                const Halves low = shuffle<kFirst>(Halves(even), Halves(odd));
                const Halves high = shuffle<kSecond>(Halves(even), Halves(odd));
                std::memcpy(target, &low, sizeof low);
                std::memcpy(target + kTileWords, &high, sizeof high);
            }
        }
    }

    void pack_values(const Code* const rows[kChunkKeys]) {
        const int whole = shape_->head_dim / kTileRows * kTileRows, rest = shape_->head_dim - whole;
        for (int pair = 0; pair < kChunkKeys / 2; ++pair) {
            const Code *even = rows[2 * pair], *odd = rows[2 * pair + 1];
            uint32_t* target = value_tile(pair / kTileRows, 0) + size_t(pair % kTileRows) * kTileRows;
            for (int column = 0; column < whole; column += kTileRows, target += kTileWords)
                store_in_turns(target, code_bits(even + column), code_bits(odd + column));
            if (rest > 0) store_in_turns(target, code_bits(even + whole, rest), code_bits(odd + whole, rest));
        }
    }

    const AttentionShape* shape_ = nullptr;
    int width_ = 0;
    bool in_place_ = false;
    Scratch<E> nothing_;  // zeros
    Scratch<bf16> gathered_, key_copy_;
    Scratch<uint32_t> queries_, values_;  // right operands
    const bf16* keys_[kKeyTiles] = {};    // row-major tiles; null where none of the keys is there
};

}  // namespace amx
#endif
