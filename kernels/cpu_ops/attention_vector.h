// The products of attention by vector instructions. Both are rows of words times a matrix of words: queries times keys, a
// lane for each key, and weights times values, a lane for each column. A word is what a lane multiplies at once: a pair of
// bf16 where that is faster, else a number in fp32. Keys and values are brought into that form once per chunk; every sum
// runs along its row of words, whoever else is in the tile.
#pragma once
#include "attention.h"
#include "transpose.h"

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
// either, and there pairs are twice as much. A newer Intel without AMX, as in a virtual machine, is a Cooper Lake to gcc.
#if defined(__AVX512BF16__) && defined(__AVX512F__) && !defined(__cooperlake__) && !defined(__sapphirerapids__)
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

// Rows [row][step] times columns [step][column].
struct Factors {
    const Word *rows, *columns;
    size_t row_stride, column_stride;
    int steps;
};

// R rows times V vectors of columns from vector `first` on.
template <typename Unit, int R, int V, typename Target>
inline void multiply_tile(const Factors factors, int first, const Target target) {
    Vec sums[R][V] = {};
    const Word* columns = factors.columns + size_t(first) * kLanes;
    for (int step = 0; step < factors.steps; ++step) {
        VecU right[V];
        for (int v = 0; v < V; ++v) right[v] = load_words(columns + step * factors.column_stride + v * kLanes);
        for (int r = 0; r < R; ++r) {
            const VecU left = splat_word(factors.rows + r * factors.row_stride + step);
            for (int v = 0; v < V; ++v) sums[r][v] = Unit::dot(sums[r][v], left, right[v]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) target(r, first + v, sums[r][v]);
}

constexpr int kTileRowsTogether = 4, kTileVectors = kLanes == 16 ? 4 : 2;  // what fits the registers

template <typename Unit, int R, typename Target>
inline void multiply_rows(const Factors& factors, int vectors, const Target& target) {
    int v = 0;
    for (; v + kTileVectors <= vectors; v += kTileVectors) multiply_tile<Unit, R, kTileVectors>(factors, v, target);
    if constexpr (kTileVectors > 2)
        for (; v + 2 <= vectors; v += 2) multiply_tile<Unit, R, 2>(factors, v, target);
    for (; v < vectors; ++v) multiply_tile<Unit, R, 1>(factors, v, target);
}

// The same for 1 to kTileRowsTogether rows and any number of vectors.
template <typename Unit, typename Target>
inline void multiply(const Factors& factors, int rows, int vectors, const Target& target) {
    if (rows == 4) return multiply_rows<Unit, 4>(factors, vectors, target);
    if (rows == 3) return multiply_rows<Unit, 3>(factors, vectors, target);
    if (rows == 2) return multiply_rows<Unit, 2>(factors, vectors, target);
    multiply_rows<Unit, 1>(factors, vectors, target);
}

template <typename T, typename E>
class VectorProducts {
    using Unit = typename WordOf<T>::Type;

  public:
    using Element = T;
    using Stored = E;
    using Weight = typename Unit::Number;
    struct Session {
        Session() {}
    };
    static constexpr int kEntries = kTileRowsTogether;
    static constexpr int kPauses = 2 * kChunkKeys / kLanes;  // of `read`, in which what comes next is asked for

    // rows: the queries of `count` entries.
    void begin(const AttentionShape& shape, const T* const* rows, int count) {
        shape_ = &shape;
        steps_ = (shape.head_dim + Unit::kNumbers - 1) / Unit::kNumbers;
        width_ = rounded_up(shape.head_dim, Unit::kNumbers * kLanes);
        keys_.at_least(size_t(kChunkKeys) * rounded_up(shape.head_dim, 4));
        values_.at_least(size_t(kChunkKeys / Unit::kNumbers) * width_);
        std::fill_n(nothing_.at_least(shape.head_dim), shape.head_dim, E{});
        Weight* queries = reinterpret_cast<Weight*>(queries_.at_least(size_t(rounded_up(count, kEntries)) * steps_));
        const int numbers = steps_ * Unit::kNumbers;
        for (int i = 0; i < count; ++i, queries += numbers) {
            for (int d = 0; d < shape.head_dim; ++d) copy(rows[i][d], queries + d);
            if (shape.head_dim < numbers) queries[shape.head_dim] = Weight{};
        }
    }

    // Values that are not there are zeros; what is held for keys that are not there may be anything.
    void read(const AttentionInputs<T, E>& inputs, const KeyRange& range, ReadAhead& ahead) {
        const char *keys[kChunkKeys], *values[kChunkKeys];
        locate(inputs, range, keys, values);
        begin_ = range.begin(), end_ = range.end();
        const int bytes = shape_->head_dim * int(sizeof(E));
        for (int i = begin_ / kLanes * kLanes; i < end_; i += kLanes) {
            ahead.ask();
            Word* target = keys_.data() + i;
            for_transposed(keys + i, bytes, [=](int w, VecU words) { put_keys(target, w, words); });
        }
        const int end = end_, width = width_, head_dim = shape_->head_dim;
        Word* target = values_.data() + size_t(begin_ / kLanes * kLanes / Unit::kNumbers) * width;
        for (int i = begin_ / kLanes * kLanes; i < end; i += kLanes) {
            ahead.ask();
            for (int j = i; j < i + kLanes; j += Unit::kNumbers, target += width) put_values(target, values + j, head_dim);
        }
    }

    // Products [entry][key] of `count` entries from number `first` on with a chunk's keys.
    void scores(int first, int count, float* out) const {
        const Factors factors{queries_.data() + size_t(first) * steps_, keys_.data(), size_t(steps_), kChunkKeys, steps_};
        multiply<Unit>(factors, count, kChunkVectors, Replace{out, kChunkKeys});
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

    // mixed [entry][width] = mixed * shrink + weights [entry][key] times values.
    void add_values(int, int count, const Weight* weights, const float* shrink, float* mixed, int width) const {
        const int low = begin_ / Unit::kNumbers, high = (end_ + Unit::kNumbers - 1) / Unit::kNumbers;
        const Factors factors{
            reinterpret_cast<const Word*>(weights) + low, values_.data() + size_t(low) * width_, kChunkKeys / Unit::kNumbers,
            size_t(width_), high - low};
        multiply<Unit>(factors, count, (shape_->head_dim + kLanes - 1) / kLanes, AddShrunk{mixed, size_t(width), shrink});
    }

  private:
    static void copy(T x, T* target) { *target = x; }
    template <typename N>
    static void copy(T x, N* target) {
        *target = widen(x);
    }

    void locate(
        const AttentionInputs<T, E>& inputs, const KeyRange& range, const char* keys[kChunkKeys],
        const char* values[kChunkKeys]) const {
        const char* nothing = reinterpret_cast<const char*>(nothing_.data());
        if (range.begin() > 0 || range.end() < kChunkKeys) {
            std::fill_n(keys, kChunkKeys, nothing);
            std::fill_n(values, kChunkKeys, nothing);
        }
        range.for_blocks(*shape_, [&](int first, int count, size_t index) {
            const size_t bytes = shape_->head_dim * sizeof(E);
            const char* key = reinterpret_cast<const char*>(inputs.keys) + index * bytes;
            const char* value = reinterpret_cast<const char*>(inputs.values) + index * bytes;
            for (int i = 0; i < count; ++i) keys[first + i] = key + i * bytes, values[first + i] = value + i * bytes;
        });
    }

    // Word w of kLanes keys, as it stands in memory, to as many words as it makes here.
    static void put_keys(Word* target, int w, VecU words) {
        const auto put = [=](int step, VecU made) { store_words(target + size_t(step) * kChunkKeys, made); };
        if constexpr (std::is_same_v<E, Code>) {
            VecU numbers[4];
            for (int i = 0; i < 4; ++i) {
                const VecI code = reinterpret_cast<VecI>(words << (24 - 8 * i)) >> 24;
                numbers[i] = reinterpret_cast<VecU>(__builtin_convertvector(code, Vec));
            }
            if constexpr (Unit::kNumbers == 2) {
                put(2 * w, (numbers[0] >> 16) | numbers[1]);
                put(2 * w + 1, (numbers[2] >> 16) | numbers[3]);
            } else {
                for (int i = 0; i < 4; ++i) put(4 * w + i, numbers[i]);
            }
        } else if constexpr (sizeof(E) == sizeof(Weight)) {
            put(w, words);
        } else {
            put(2 * w, words << 16);
            put(2 * w + 1, words & 0xffff0000u);
        }
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

    const AttentionShape* shape_ = nullptr;
    int steps_ = 0, width_ = 0, begin_ = 0, end_ = 0;
    Scratch<E> nothing_;  // zeros
    Scratch<Word> queries_, keys_, values_;  // [entry][step], [step][key], [step][column]
};
