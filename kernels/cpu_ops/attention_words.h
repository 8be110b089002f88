// The products of attention by vector instructions. Both are rows of words times a matrix of words: queries times keys, a
// lane for each key, and weights times values, a lane for each column. A word is what a lane multiplies at once: a pair of
// bf16 where that is faster, else a number in fp32. Every sum runs along its row of words, whoever else is in the tile.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "codes.h"
#include "simd.h"

using Word = uint32_t;

inline VecU load_words(const Word* p) {
    VecU words;
    std::memcpy(&words, p, sizeof words);
    return words;
}
inline VecU splat_word(const Word* p) {
    Word word;
    std::memcpy(&word, p, sizeof word);  // it may have been written as numbers
    return word - VecU{};
}
inline void store_words(Word* p, VecU words) { std::memcpy(p, &words, sizeof words); }

struct SingleWord {
    using Number = float;
    static constexpr int kNumbers = 1;
    static Vec dot(Vec sum, VecU a, VecU b) { return fma(reinterpret_cast<Vec>(a), reinterpret_cast<Vec>(b), sum); }
};

// Intel starts a product of pairs every other cycle, but two of numbers in fp32 in each, which is twice as much; AMD one of
// either, and there pairs are twice as much. build.py says which it is: compilers know only the models of their own time.
#if defined(__AVX512BF16__) && defined(__AVX512F__) && !defined(PIZARRA_INTEL)
#define PIZARRA_PAIRS 1
struct PairWord {
    using Number = bf16;
    static constexpr int kNumbers = 2;
    static Vec dot(Vec sum, VecU a, VecU b) {
        return reinterpret_cast<Vec>(_mm512_dpbf16_ps(
            reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)));
    }
};
#endif

template <typename T>
struct WordOf {
    using Type = SingleWord;
};
#ifdef PIZARRA_PAIRS
template <>
struct WordOf<bf16> {
    using Type = PairWord;
};
#endif

// What the cache holds, a word of memory at a time, as words to multiply.
template <typename Unit, typename E>
struct WordsOf {
    static constexpr int kWords = 4 / int(sizeof(E)) / Unit::kNumbers;  // of one word of memory

    static VecU word(VecU memory, int i) {
        if constexpr (std::is_same_v<E, Code>) {
            if constexpr (Unit::kNumbers == 1) return number(memory, i);
            return (number(memory, 2 * i) >> 16) | number(memory, 2 * i + 1);
        } else if constexpr (kWords == 1) {
            return memory;
        } else {
            return i == 0 ? memory << 16 : memory & 0xffff0000u;
        }
    }

  private:
    static VecU number(VecU memory, int i) {
        const VecI code = reinterpret_cast<VecI>(memory << (24 - 8 * i)) >> 24;
        return reinterpret_cast<VecU>(__builtin_convertvector(code, Vec));
    }
};

// Where a product goes: it replaces what is there, or is added to it.
struct Replace {
    float* out;
    size_t stride;
    void operator()(int row, int vector, Vec sum) const { store(out + row * stride + vector * kLanes, sum); }
};
struct AddShrunk {
    float* out;
    size_t stride;
    const float* shrink;  // of each row, what was there before
    void operator()(int row, int vector, Vec sum) const {
        float* place = out + row * stride + vector * kLanes;
        store(place, fma(load(place), splat(shrink[row]), sum));
    }
};

// Rows of words [row][step].
struct Rows {
    const Word* words;
    size_t stride;
};

// Columns that stand ready [step][column]. What else is a matrix of columns: a loading brings some steps of V vectors.
struct ReadyColumns {
    static constexpr int kSteps = 1;  // of a loading
    const Word* words;
    size_t stride;

    template <int V>
    void load(int loading, int first, VecU (&raw)[V]) const {
        for (int v = 0; v < V; ++v) raw[v] = load_words(words + loading * stride + size_t(first + v) * kLanes);
    }
    static VecU step(VecU raw, int) { return raw; }
};

// R rows times V vectors of columns from vector `first` on, in so many loadings of them.
template <typename Unit, int R, int V, typename Columns, typename Target>
inline void multiply_tile(const Rows rows, const Columns& columns, int loadings, int first, const Target target) {
    Vec sums[R][V] = {};
    for (int loading = 0; loading < loadings; ++loading) {
        VecU raw[V];
        columns.load(loading, first, raw);
        for (int i = 0; i < Columns::kSteps; ++i) {
            VecU right[V];
            for (int v = 0; v < V; ++v) right[v] = Columns::step(raw[v], i);
            for (int r = 0; r < R; ++r) {
                const VecU left = splat_word(rows.words + r * rows.stride + loading * Columns::kSteps + i);
                for (int v = 0; v < V; ++v) sums[r][v] = Unit::dot(sums[r][v], left, right[v]);
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) target(r, first + v, sums[r][v]);
}

constexpr int kTileRowsTogether = 4, kTileVectors = kLanes == 16 ? 4 : 2;  // what fits the registers

template <typename Unit, int R, typename Columns, typename Target>
inline void multiply_rows(const Rows& rows, const Columns& columns, int loadings, int vectors, const Target& target) {
    int v = 0;
    for (; v + kTileVectors <= vectors; v += kTileVectors)
        multiply_tile<Unit, R, kTileVectors>(rows, columns, loadings, v, target);
    if constexpr (kTileVectors > 2)
        for (; v + 2 <= vectors; v += 2) multiply_tile<Unit, R, 2>(rows, columns, loadings, v, target);
    for (; v < vectors; ++v) multiply_tile<Unit, R, 1>(rows, columns, loadings, v, target);
}

// The same for 1 to kTileRowsTogether rows and any number of vectors.
template <typename Unit, typename Columns, typename Target>
inline void multiply(const Rows& rows, int count, const Columns& columns, int loadings, int vectors, const Target& target) {
    if (count == 4) return multiply_rows<Unit, 4>(rows, columns, loadings, vectors, target);
    if (count == 3) return multiply_rows<Unit, 3>(rows, columns, loadings, vectors, target);
    if (count == 2) return multiply_rows<Unit, 2>(rows, columns, loadings, vectors, target);
    multiply_rows<Unit, 1>(rows, columns, loadings, vectors, target);
}
