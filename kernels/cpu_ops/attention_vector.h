// Attention's products by vector instructions (attention_words.h), and those for any number of entries: keys and values are
// brought into words once per chunk, for all entries of a group.
#pragma once
#include "attention.h"
#include "attention_words.h"
#include "transpose.h"

// What all products by vector instructions have in common: the words of queries and weights, and where keys and values lie.
template <typename T, typename E>
class WordProducts {
  public:
    using Unit = typename WordOf<T>::Type;
    using Element = T;
    using Stored = E;
    using Weight = typename Unit::Number;
    struct Session {
        Session() {}
    };
    static constexpr int kEntries = kTileRowsTogether;

    // rows: the queries of `count` entries.
    void begin(const AttentionShape& shape, const T* const* rows, int count) {
        shape_ = &shape;
        steps_ = (shape.head_dim + Unit::kNumbers - 1) / Unit::kNumbers;
        std::fill_n(nothing_.at_least(shape.head_dim), shape.head_dim, E{});
        Weight* queries = reinterpret_cast<Weight*>(queries_.at_least(size_t(rounded_up(count, kEntries)) * steps_));
        const int numbers = steps_ * Unit::kNumbers;
        for (int i = 0; i < count; ++i, queries += numbers) {
            for (int d = 0; d < shape.head_dim; ++d) copy(rows[i][d], queries + d);
            if (shape.head_dim < numbers) queries[shape.head_dim] = Weight{};
        }
    }

    // Keeps weights as the product with values wants them; returns what they became.
    static Vec keep(float* target, Vec weight) {
        store(target, weight);
        return weight;
    }
#ifdef PIZARRA_PAIRS
    static Vec keep(bf16* target, Vec weight) {
        const auto half = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(weight)));
        std::memcpy(target, &half, sizeof half);
        return reinterpret_cast<Vec>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    }
#endif

  protected:
    // Of a chunk's keys; zeros stand for those that are not there.
    struct Places {
        const char *keys[kChunkKeys], *values[kChunkKeys];
    };

    void locate(const AttentionInputs<T, E>& inputs, const KeyRange& range, Places& places) {
        begin_ = range.begin(), end_ = range.end();
        const char* nothing = reinterpret_cast<const char*>(nothing_.data());
        if (begin_ > 0 || end_ < kChunkKeys) {
            std::fill_n(places.keys, kChunkKeys, nothing);
            std::fill_n(places.values, kChunkKeys, nothing);
        }
        range.for_blocks(*shape_, [&](int first, int count, size_t index) {
            const size_t bytes = shape_->head_dim * sizeof(E);
            const char* key = reinterpret_cast<const char*>(inputs.keys) + index * bytes;
            const char* value = reinterpret_cast<const char*>(inputs.values) + index * bytes;
            for (int i = 0; i < count; ++i) {
                places.keys[first + i] = key + i * bytes;
                places.values[first + i] = value + i * bytes;
            }
        });
    }

    // The first of kLanes keys together, the others of which may not be there.
    int first_key() const { return begin_ / kLanes * kLanes; }
    // The words of a chunk's keys that are there.
    int first_word() const { return begin_ / Unit::kNumbers; }
    int last_word() const { return (end_ + Unit::kNumbers - 1) / Unit::kNumbers; }

    Rows queries(int first) const { return {queries_.data() + size_t(first) * steps_, size_t(steps_)}; }
    Rows weights(const Weight* weights) const {
        return {reinterpret_cast<const Word*>(weights) + first_word(), kChunkKeys / Unit::kNumbers};
    }

    const AttentionShape* shape_ = nullptr;
    int steps_ = 0, begin_ = 0, end_ = 0;  // words of a query; keys of the chunk

  private:
    static void copy(T x, T* target) { *target = x; }
    template <typename N>
    static void copy(T x, N* target) {
        *target = widen(x);
    }

    Scratch<E> nothing_;     // zeros
    Scratch<Word> queries_;  // [entry][step]
};

template <typename T, typename E>
class VectorProducts : public WordProducts<T, E> {
    using Base = WordProducts<T, E>;
    using Base::shape_, Base::steps_, Base::begin_, Base::end_;
    using typename Base::Unit;

  public:
    using typename Base::Weight;
    using Ahead = ReadAhead<1>;
    static constexpr int kPauses = 2 * kChunkKeys / kLanes;  // of `read`, in which what comes next is asked for

    void begin(const AttentionShape& shape, const T* const* rows, int count) {
        Base::begin(shape, rows, count);
        width_ = rounded_up(shape.head_dim, Unit::kNumbers * kLanes);
        keys_.at_least(size_t(kChunkKeys) * rounded_up(shape.head_dim, 4));
        values_.at_least(size_t(kChunkKeys / Unit::kNumbers) * width_);
    }

    // Values that are not there are zeros; what is held for keys that are not there may be anything.
    void read(const AttentionInputs<T, E>& inputs, const KeyRange& range, Ahead& ahead) {
        typename Base::Places places;
        Base::locate(inputs, range, places);
        const int bytes = shape_->head_dim * int(sizeof(E));
        for (int i = Base::first_key(); i < end_; i += kLanes) {
            ahead.ask();
            Word* target = keys_.data() + i;
            for_transposed(places.keys + i, bytes, [=](int w, VecU memory) { put_keys(target, w, memory); });
        }
        const int end = end_, width = width_, head_dim = shape_->head_dim;
        Word* target = values_.data() + size_t(Base::first_key() / Unit::kNumbers) * width;
        for (int i = Base::first_key(); i < end; i += kLanes) {
            ahead.ask();
            for (int j = i; j < i + kLanes; j += Unit::kNumbers, target += width)
                put_values(target, places.values + j, head_dim);
        }
    }

    // Products [entry][key] of `count` entries from number `first` on with a chunk's keys.
    void scores(int first, int count, float* out) const {
        const ReadyColumns keys{keys_.data(), kChunkKeys};
        multiply<Unit>(Base::queries(first), count, keys, steps_, kChunkVectors, Replace{out, kChunkKeys});
    }

    // mixed [entry][width] = mixed * shrink + weights [entry][key] times values.
    void add_values(int, int count, const Weight* weights, const float* shrink, float* mixed, int width) const {
        const ReadyColumns values{values_.data() + size_t(Base::first_word()) * width_, size_t(width_)};
        multiply<Unit>(
            Base::weights(weights), count, values, Base::last_word() - Base::first_word(),
            (shape_->head_dim + kLanes - 1) / kLanes, AddShrunk{mixed, size_t(width), shrink});
    }

  private:
    // Word w of kLanes keys, as it stands in memory, as many words as it makes here.
    static void put_keys(Word* target, int w, VecU memory) {
        using Words = WordsOf<Unit, E>;
        for (int i = 0; i < Words::kWords; ++i)
            store_words(target + size_t(Words::kWords * w + i) * kChunkKeys, Words::word(memory, i));
    }

    // The values of one key, or of two in turns.
    static void put_values(Word* target, const char* const* rows, int head_dim) {
        const E* even = reinterpret_cast<const E*>(rows[0]);
        if constexpr (Unit::kNumbers == 1) {
            for_lanes(head_dim, [&](int d, auto load_at, auto) {
                store_words(target + d, reinterpret_cast<VecU>(load_at(even + d)));
            });
        } else {
            put_pairs(target, even, reinterpret_cast<const E*>(rows[1]), head_dim);
        }
    }

#ifdef PIZARRA_PAIRS
    static void put_pairs(Word* target, const Code* even, const Code* odd, int head_dim) {
        for_lanes(head_dim, [&](int d, auto load_at, auto) {
            const VecU low = reinterpret_cast<VecU>(load_at(even + d)), high = reinterpret_cast<VecU>(load_at(odd + d));
            store_words(target + d, (low >> 16) | high);
        });
    }

    static void put_pairs(Word* target, const bf16* even, const bf16* odd, int head_dim) {
        __m512i first_half, second_half;  // of two rows, their values in turns
        {
            alignas(64) uint16_t order[2][2 * kLanes];
            for (int i = 0; i < 2 * kLanes; ++i) {
                order[0][i] = uint16_t(i / 2 + i % 2 * 2 * kLanes);
                order[1][i] = uint16_t(order[0][i] + kLanes);
            }
            first_half = _mm512_load_si512(order[0]), second_half = _mm512_load_si512(order[1]);
        }
        for (int d = 0; d < head_dim; d += 2 * kLanes) {
            const int rest = head_dim - d;
            const __mmask32 there = rest < 2 * kLanes ? (__mmask32(1) << rest) - 1 : ~__mmask32(0);
            const __m512i low = _mm512_maskz_loadu_epi16(there, even + d), high = _mm512_maskz_loadu_epi16(there, odd + d);
            _mm512_storeu_si512(target + d, _mm512_permutex2var_epi16(low, first_half, high));
            _mm512_storeu_si512(target + d + kLanes, _mm512_permutex2var_epi16(low, second_half, high));
        }
    }
#endif

    int width_ = 0;
    Scratch<Word> keys_, values_;  // [step][key], [step][column]
};
