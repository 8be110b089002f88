// Rows of activations as integers of 16 bits times powers of two, for products of codes (group_words.h).
#pragma once
#include <vector>

#include "group_tiles.h"
#include "scratch.h"

namespace group_words {

constexpr int kPiece = 128;  // inputs at most: so many products of 16 bits and 8-bit codes fit 32 bits

typedef int16_t VecS __attribute__((vector_size(2 * kLanes)));

// Activations as integers times a power of two: each row's numbers, a pair of inputs in 32 bits, and for each of its pieces
// the power and the sum of the piece's activations.
struct Encoded {
    int32_t* pairs;
    float* factors;
    size_t row_pairs, row_factors;  // from row to row

    Encoded from(int row) const { return {pairs + row * row_pairs, factors + row * row_factors, row_pairs, row_factors}; }
};

// How a weight's inputs fall into pieces. Each belongs to one group.
struct Pieces {
    int inputs, group_size, group_pieces, count;

    explicit Pieces(const GroupWeight& weight)
        : inputs(weight.padded_inputs()), group_size(std::min(weight.group_size, inputs)),
          group_pieces((group_size + kPiece - 1) / kPiece),
          count((inputs / group_size) * group_pieces + (inputs % group_size + kPiece - 1) / kPiece) {}

    int group(int piece) const { return piece / group_pieces; }
    int size(int piece) const {
        const int begin = group(piece) * group_size + piece % group_pieces * kPiece;
        return std::min({kPiece, inputs - begin, (group(piece) + 1) * group_size - begin});
    }
};

// One level of `fold_lanes`: of each run of 2 D lanes the halves are folded, and those of `a` lie before those of `b`.
template <int D, typename Two>
inline VecI fold_halves(VecI a, VecI b, const Two& two) {
    VecI low{}, high{};
    for (int lane = 0; lane < kLanes; ++lane) {
        const int from = lane / D * 2 * D + lane % D;  // of `a`, then of `b`
        low[lane] = from, high[lane] = from + D;
    }
    return two(__builtin_shuffle(a, b, low), __builtin_shuffle(a, b, high));
}

constexpr int reversed(int lane) {
    int result = 0;
    for (int bit = 1; bit < kLanes; bit *= 2) result = result * 2 + (lane & bit ? 1 : 0);
    return result;
}

// Lane i of the result: all lanes of v[reversed(i)] as one number, by a function of two vectors.
template <int D = kLanes / 2, typename Two>
inline VecI fold_lanes(VecI v[kLanes], const Two& two) {
    for (int i = 0; i < D; ++i) v[i] = fold_halves<D>(v[i], v[i + D], two);
    if constexpr (D > 1)
        return fold_lanes<D / 2>(v, two);
    else
        return v[0];
}

// As many pieces of a row as there are lanes, or fewer: what they share instructions for.
class PieceBlock {
  public:
    PieceBlock(const bf16* x, const Pieces& pieces, int first) : count_(std::min(kLanes, pieces.count - first)) {
        for (int i = 0; i < count_; ++i) {
            begins_[i] = x, sizes_[i] = pieces.size(first + i);
            x += sizes_[i];
        }
        end_ = x;
    }
    const bf16* end() const { return end_; }

    // Numbers below 2^15 to `numbers`, the power of two that each piece lacks and the sum of its activations to `factors`. A
    // NaN or an infinity spoils its whole piece, through that power. Returns where the numbers end.
    int16_t* encode(int16_t* numbers, float* factors) const {
        VecI tops[kLanes] = {}, sums[kLanes] = {};
        for (int i = 0; i < count_; ++i) tops[reversed(i)] = largest(begins_[i], sizes_[i]);
        VecI exponents = fold_lanes(tops, [](VecI a, VecI b) { return a > b ? a : b; }) >> 23;
        exponents = exponents > 15 ? exponents : VecI{} + 15;
        const Vec up = reinterpret_cast<Vec>((254 + 14 - exponents) << 23);
        const VecI nan = VecI{} + 0x7fc00000;
        const Vec down = reinterpret_cast<Vec>(exponents < 255 ? (exponents - 14) << 23 : nan);
        float ups[kLanes], downs[kLanes], owns[kLanes];
        store(ups, up);
        for (int i = 0; i < count_; numbers += sizes_[i++]) sums[reversed(i)] = round(begins_[i], sizes_[i], ups[i], numbers);
        const VecI added = fold_lanes(sums, [](VecI a, VecI b) { return a + b; });
        store(downs, down);
        store(owns, __builtin_convertvector(added, Vec) * down);
        for (int i = 0; i < count_; ++i, factors += 2) factors[0] = downs[i], factors[1] = owns[i];
        return numbers;
    }

  private:
    static VecI largest(const bf16* x, int count) {
#if defined(__AVX512BW__)
        if (count % (2 * kLanes) == 0) {
            __m512i top = _mm512_setzero_si512();
            for (int i = 0; i < count; i += 2 * kLanes)
                top = _mm512_max_epu16(top, _mm512_and_si512(_mm512_loadu_si512(x + i), _mm512_set1_epi16(0x7fff)));
            const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(0x7fff0000));
            return reinterpret_cast<VecI>(_mm512_max_epi32(_mm512_slli_epi32(top, 16), odd));
        }
#endif
        VecI top{};
        for (int i = 0; i < count; i += kLanes) {
            const VecI magnitude = reinterpret_cast<VecI>(load(x + i)) & 0x7fffffff;
            top = magnitude > top ? magnitude : top;
        }
        return top;
    }

    static VecI round(const bf16* x, int count, float factor, int16_t* to) {
        const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, which the lowest bits then hold
#if defined(__AVX512BW__)
        if (count % (2 * kLanes) == 0) {
            __m512i sums = _mm512_setzero_si512();
            for (int i = 0; i < count; i += 2 * kLanes) {
                const __m512i both = _mm512_loadu_si512(x + i);
                const Vec low = reinterpret_cast<Vec>(_mm512_slli_epi32(both, 16));
                const Vec high = reinterpret_cast<Vec>(_mm512_and_si512(both, _mm512_set1_epi32(int(0xffff0000))));
                const auto even = reinterpret_cast<__m512i>(fma(low, splat(factor), magic));
                const auto odd = reinterpret_cast<__m512i>(fma(high, splat(factor), magic));
                const __m512i numbers = _mm512_mask_blend_epi16(0xaaaaaaaa, even, _mm512_slli_epi32(odd, 16));
                _mm512_storeu_si512(to + i, numbers);
                sums = _mm512_add_epi32(sums, _mm512_madd_epi16(numbers, _mm512_set1_epi16(1)));
            }
            return reinterpret_cast<VecI>(sums);
        }
#endif
        VecI added{};
        for (int i = 0; i < count; i += kLanes) {
            const VecI whole = reinterpret_cast<VecI>(load(x + i) * factor + magic) - reinterpret_cast<VecI>(magic);
            added += whole;
            const VecS narrow = __builtin_convertvector(whole, VecS);
            std::memcpy(to + i, &narrow, sizeof narrow);
        }
        return added;
    }

    int count_;
    const bf16 *begins_[kLanes], *end_;
    int sizes_[kLanes];
};

// Row m of a product as integers, in the codes' order.
inline void encode_row(const GroupProduct& product, const Pieces& pieces, int m, const Encoded& to) {
    static thread_local std::vector<bf16> copy;
    const GroupWeight& weight = product.weight;
    const bf16* row = static_cast<const bf16*>(product.x) + m * product.ldx;
    if (weight.perm || weight.padded_inputs() != weight.inputs) {
        copy.resize(weight.padded_inputs());
        arrange_row(copy.data(), row, weight);
        row = copy.data();
    }
    const Encoded own = to.from(m);
    int16_t* numbers = reinterpret_cast<int16_t*>(own.pairs);
    for (int piece = 0; piece < pieces.count; piece += kLanes) {
        const PieceBlock block(row, pieces, piece);
        numbers = block.encode(numbers, own.factors + 2 * piece);
        row = block.end();
    }
}

}  // namespace group_words
