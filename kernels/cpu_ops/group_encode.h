// Rows of activations as integers of 16 or 8 bits, each piece of a row with a scale of its own, for products of codes
// (group_integers.h).
#pragma once
#include <vector>

#include "group_tiles.h"
#include "scratch.h"

namespace group_integers {

// Integers of 16 bits times the power of two that the largest of a piece needs: exact for bf16 numbers of at least 1/128 of
// the largest, and off by 2^-16 of it at most for the others.
struct Words {
    using Number = int16_t;
    static constexpr int kPiece = 128;  // inputs at most: so many products with 8-bit codes fit 32 bits
};

// Integers of 8 bits, 127 for the largest of a piece: off by 1/254 of it at most.
struct Bytes {
    using Number = int8_t;
    static constexpr int kPiece = 32;  // inputs at most: the fewer share a scale, the less is lost
};

template <typename Kind>
constexpr int kTogether = 4 / sizeof(typename Kind::Number);  // inputs in 32 bits

typedef int16_t VecS __attribute__((vector_size(2 * kLanes)));

// Activations as integers: each row's numbers, as many inputs in 32 bits as fit, and for each of its pieces the scale and the
// sum of the piece's activations.
struct Encoded {
    int32_t* numbers;
    float* factors;
    size_t row_numbers, row_factors;  // from row to row

    Encoded from(int row) const {
        return {numbers + row * row_numbers, factors + row * row_factors, row_numbers, row_factors};
    }
};

// How a weight's inputs fall into pieces of at most so many. Each belongs to one group.
struct Pieces {
    int inputs, group_size, most, group_pieces, count;

    Pieces(const GroupWeight& weight, int most)
        : inputs(weight.padded_inputs()), group_size(std::min(weight.group_size, inputs)), most(most),
          group_pieces((group_size + most - 1) / most),
          count((inputs / group_size) * group_pieces + (inputs % group_size + most - 1) / most) {}

    int group(int piece) const { return piece / group_pieces; }
    int size(int piece) const {
        const int begin = group(piece) * group_size + piece % group_pieces * most;
        return std::min({most, inputs - begin, (group(piece) + 1) * group_size - begin});
    }
};

// One level of `fold_lanes`: of each run of 2 D lanes the halves are folded, and those of `a` lie before those of `b`.
template <int D, typename Two>
inline VecI fold_halves(VecI a, VecI b, const Two& two) {
    constexpr auto kLow = [](int lane) { return lane / D * 2 * D + lane % D; };  // of `a`, then of `b`
    constexpr auto kHigh = [](int lane) { return lane / D * 2 * D + lane % D + D; };
    return two(shuffle<kLow>(a, b), shuffle<kHigh>(a, b));
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

    // The pieces' numbers to `numbers`, in the order that codes of so many bits are multiplied in; the scale of each and the
    // sum of its activations to `factors`. A NaN or an infinity spoils its whole piece, through that scale. Returns where the
    // numbers end.
    template <typename Kind, typename Number = typename Kind::Number>
    Number* encode(Number* numbers, float* factors, int bits) const {
        VecI tops[kLanes] = {}, sums[kLanes] = {};
        for (int i = 0; i < count_; ++i) tops[reversed(i)] = largest(begins_[i], sizes_[i]);
        Vec up, down;
        find_scales(Kind{}, fold_lanes(tops, [](VecI a, VecI b) { return a > b ? a : b; }), &up, &down);
        float ups[kLanes], downs[kLanes], owns[kLanes];
        store(ups, up);
        for (int i = 0; i < count_; numbers += sizes_[i++])
            sums[reversed(i)] = round(begins_[i], sizes_[i], ups[i], numbers, bits);
        const VecI added = fold_lanes(sums, [](VecI a, VecI b) { return a + b; });
        store(downs, down);
        store(owns, __builtin_convertvector(added, Vec) * down);
        for (int i = 0; i < count_; ++i, factors += 2) factors[0] = downs[i], factors[1] = owns[i];
        return numbers;
    }

  private:
    static constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which the lowest bits then hold

    // What makes numbers below 2^15, and its inverse, of the largest magnitudes of pieces, which are fp32 in integers.
    static void find_scales(Words, VecI tops, Vec* up, Vec* down) {
        VecI exponents = tops >> 23;
        exponents = exponents > 15 ? exponents : VecI{} + 15;
        *up = reinterpret_cast<Vec>((254 + 14 - exponents) << 23);
        *down = reinterpret_cast<Vec>(exponents < 255 ? (exponents - 14) << 23 : VecI{} + kNan);
    }

    // The same for numbers of at most 127.
    static void find_scales(Bytes, VecI tops, Vec* up, Vec* down) {
        constexpr int32_t kInfinity = 0x7f800000, kLeast = 0x0d000000;  // some 4e-31: below it all is zero
        const Vec largest = reinterpret_cast<Vec>(tops > kLeast ? tops : VecI{} + kLeast);
        *up = 127.0f / largest;
        *down = reinterpret_cast<Vec>(tops < kInfinity ? reinterpret_cast<VecI>(largest / 127.0f) : VecI{} + kNan);
    }

    static constexpr int32_t kNan = 0x7fc00000;

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

    static VecI round(const bf16* x, int count, float factor, int16_t* to, int) {
        const Vec magic = splat(kMagic);
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

    // Of four bits, codes come as a word's eight inputs 0 4 1 5 2 6 3 7; of eight bits, in their order.
    static VecI round(const bf16* x, int count, float factor, int8_t* to, int bits) {
        constexpr auto kOrder = [](int i) { return i / 8 * 8 + i % 8 / 2 + i % 2 * 4; };
        const Vec magic = splat(kMagic);
        VecI added{};
        for (int i = 0; i < count; i += kLanes) {
            const VecI whole = reinterpret_cast<VecI>(fma(load(x + i), splat(factor), magic)) - reinterpret_cast<VecI>(magic);
            added += whole;
            const VecB narrow = shuffle_if<kOrder>(bits == 4, __builtin_convertvector(whole, VecB));
            std::memcpy(to + i, &narrow, sizeof narrow);
        }
        return added;
    }

    int count_;
    const bf16 *begins_[kLanes], *end_;
    int sizes_[kLanes];
};

// Row m of a product as integers, in the codes' order.
template <typename Kind>
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
    auto* numbers = reinterpret_cast<typename Kind::Number*>(own.numbers);
    for (int piece = 0; piece < pieces.count; piece += kLanes) {
        const PieceBlock block(row, pieces, piece);
        numbers = block.encode<Kind>(numbers, own.factors + 2 * piece, weight.bits);
        row = block.end();
    }
}

}  // namespace group_integers
