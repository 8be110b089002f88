// Rows of activations as integers of 16 bits times powers of two, for products of codes (group_words.h).
#pragma once
#include <vector>

#include "group_tiles.h"

namespace group_words {

constexpr int kPiece = 128;                  // inputs at most: so many products of 16 bits and 8-bit codes fit 32 bits
constexpr int kRows = kLanes == 16 ? 8 : 4;  // that are multiplied together: their sums stay in registers

typedef int16_t VecS __attribute__((vector_size(2 * kLanes)));

// Activations as integers times a power of two. kRows rows lie together, or so many as there are, `apart` of them:
// numbers [pair of inputs][row][2], and for each piece [its scale, its sum][row].
struct Encoded {
    int32_t* pairs;
    float* factors;
    size_t apart, tile_pairs, tile_factors;

    Encoded tile(int number) const {
        return {pairs + number * tile_pairs, factors + number * tile_factors, apart, tile_pairs, tile_factors};
    }
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

    // Numbers below 2^15 to `pairs`, the power of two that each piece lacks and the sum of its activations to `factors`. A NaN
    // or an infinity spoils its whole piece.
    int32_t* encode(int32_t* pairs, float* factors, size_t apart) const {
        VecI tops[kLanes] = {}, sums[kLanes] = {};
        for (int i = 0; i < count_; ++i) tops[reversed(i)] = largest(begins_[i], sizes_[i]);
        VecI exponents = fold_lanes(tops, [](VecI a, VecI b) { return a > b ? a : b; }) >> 23;
        exponents = exponents > 15 ? exponents : VecI{} + 15;
        const Vec up = reinterpret_cast<Vec>((254 + 14 - exponents) << 23);
        const VecI nan = VecI{} + 0x7fc00000;
        const Vec down = reinterpret_cast<Vec>(exponents < 255 ? (exponents - 14) << 23 : nan);
        for (int i = 0; i < count_; ++i) {
            int32_t numbers[kPiece / 2] = {};
            if (exponents[i] < 255)
                sums[reversed(i)] = round(begins_[i], sizes_[i], up[i], reinterpret_cast<int16_t*>(numbers));
            for (int k = 0; k < sizes_[i] / 2; ++k, pairs += apart) *pairs = numbers[k];
        }
        const VecI added = fold_lanes(sums, [](VecI a, VecI b) { return a + b; });
        const Vec own = __builtin_convertvector(added, Vec) * down;
        for (int i = 0; i < count_; ++i, factors += 2 * apart) factors[0] = down[i], factors[apart] = own[i];
        return pairs;
    }

  private:
    static VecI largest(const bf16* x, int count) {
        VecI top{};
        for (int i = 0; i < count; i += kLanes) {
            const VecI magnitude = reinterpret_cast<VecI>(load(x + i)) & 0x7fffffff;
            top = magnitude > top ? magnitude : top;
        }
        return top;
    }

    static VecI round(const bf16* x, int count, float factor, int16_t* to) {
        const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
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
    const Encoded tile = to.tile(m / kRows);
    int32_t* pairs = tile.pairs + m % kRows;
    float* factors = tile.factors + m % kRows;
    for (int piece = 0; piece < pieces.count; piece += kLanes, factors += 2 * kLanes * to.apart) {
        const PieceBlock block(row, pieces, piece);
        pairs = block.encode(pairs, factors, to.apart);
        row = block.end();
    }
}

}  // namespace group_words
