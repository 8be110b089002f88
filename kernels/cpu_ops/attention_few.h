// Attention's products by vector instructions (attention_words.h) for so few entries that each word is multiplied once: values
// are taken from where they lie, and keys, which have to be turned, become words in the registers. Steps run in the same
// order as in VectorProducts, so an entry has the same bits from either.
#pragma once
#include "attention_vector.h"

// Such work waits for memory more than it computes. So it asks for what comes next at every loading, a few lines at a time, and
// has them brought to the second cache: on their way to the first they would hold the places of those that are needed now.
using AheadOfFew = ReadAhead<2>;

// Keys as they stand in memory, turned: [word of memory][key].
template <typename Unit, typename E>
struct TurnedKeys {
    using Words = WordsOf<Unit, E>;
    static constexpr int kSteps = Words::kWords;
    const Word* memory;
    AheadOfFew& ahead;

    template <int V>
    void load(int loading, int first, VecU (&raw)[V]) const {
        ahead.ask();
        for (int v = 0; v < V; ++v) raw[v] = load_words(memory + size_t(loading) * kChunkKeys + (first + v) * kLanes);
    }
    static VecU step(VecU raw, int i) { return Words::word(raw, i); }
};

// Values where they lie, a row for each key.
template <typename Unit, typename E>
struct LyingValues {
    static constexpr int kSteps = 1;
    const char* const* rows;
    AheadOfFew& ahead;

    template <int V>
    void load(int loading, int first, VecU (&words)[V]) const {
        ahead.ask();
        for (int v = 0; v < V; ++v) {
            const int column = (first + v) * kLanes;
            if constexpr (Unit::kNumbers == 1)
                words[v] = bits(rows[loading], column);
            else
                words[v] = (bits(rows[2 * loading], column) >> 16) | bits(rows[2 * loading + 1], column);
        }
    }
    static VecU step(VecU word, int) { return word; }

  private:
    static VecU bits(const char* row, int column) {
        return reinterpret_cast<VecU>(::load(reinterpret_cast<const E*>(row) + column));
    }
};

template <typename T, typename E>
class FewProducts : public WordProducts<T, E> {
    using Base = WordProducts<T, E>;
    using Base::shape_, Base::end_;
    using typename Base::Unit;

  public:
    using typename Base::Weight;
    using Ahead = AheadOfFew;
    static constexpr int kPauses = kChunkKeys + 32;  // about the loadings of a chunk

    // Whether it is for so many entries: one tile of rows, and vectors of keys and values that are whole.
    static bool serves(const AttentionShape& shape, int entries) {
        return entries <= Base::kEntries && shape.head_dim * sizeof(E) % (sizeof(Word) * kLanes) == 0;
    }

    void read(const AttentionInputs<T, E>& inputs, const KeyRange& range, Ahead& ahead) {
        Base::locate(inputs, range, places_);
        ahead_ = &ahead;
        const int bytes = shape_->head_dim * int(sizeof(E));
        Word* keys = keys_.at_least(size_t(kChunkKeys) * bytes / sizeof(Word));
        for (int i = Base::first_key(); i < end_; i += kLanes)
            for_transposed(places_.keys + i, bytes, [=](int w, VecU memory) {
                store_words(keys + size_t(w) * kChunkKeys + i, memory);
            });
    }

    // Products [entry][key] of the entries with a chunk's keys.
    void scores(int first, int count, float* out) const {
        const TurnedKeys<Unit, E> keys{keys_.data(), *ahead_};
        const int loadings = shape_->head_dim * int(sizeof(E)) / int(sizeof(Word));
        multiply<Unit>(Base::queries(first), count, keys, loadings, kChunkVectors, Replace{out, kChunkKeys});
    }

    // mixed [entry][width] = mixed * shrink + weights [entry][key] times values.
    void add_values(int, int count, const Weight* weights, const float* shrink, float* mixed, int width) const {
        const LyingValues<Unit, E> values{places_.values + Base::first_word() * Unit::kNumbers, *ahead_};
        multiply<Unit>(
            Base::weights(weights), count, values, Base::last_word() - Base::first_word(), shape_->head_dim / kLanes,
            AddShrunk{mixed, size_t(width), shrink});
    }

  private:
    typename Base::Places places_;
    Ahead* ahead_ = nullptr;
    Scratch<Word> keys_;  // [word of memory][key]
};
