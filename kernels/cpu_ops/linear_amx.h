// out [M, N] = x [M, K] . weight [N, K] + bias in bf16 on AMX.
// Weights are the left operand as they lie in the checkpoint, 16 rows a tile; x is the right one and is laid out for it
// once per call. A panel is 16 outputs; every output sums over K in one accumulator, in order, whatever M is.
#pragma once
#include "amx.h"

#ifdef PIZARRA_AMX
#include <algorithm>
#include <vector>

#include "pool.h"

namespace amx {

constexpr int kSlicesPerThread = 4;  // what a thread claims at once is long, so that what it reads ahead is its own

// One panel's sums [output][row], in `sums`, to rows of out.
template <typename Out>
inline void store_sums(const float* sums, int outputs, int rows, const float* bias, Out* out, size_t ldo) {
    Words words[16];
    std::memcpy(words, sums, sizeof words);
    transpose(words);
    Vec shift{};
    if (bias) shift = load_part(bias, outputs);
    for (int m = 0; m < rows; ++m) {
        const Vec row = reinterpret_cast<Vec>(words[m]) + shift;
        if (outputs == kTileRows)
            store(out + m * ldo, row);
        else
            store_part(out + m * ldo, row, outputs);
    }
}

// What a call multiplies; row_tiles counts tiles of 16 rows of x.
template <typename Out>
struct Product {
    Out* out;
    const bf16* weight;
    const float* bias;
    const uint32_t* packed;
    int M, N, K, row_tiles, k_tiles;
    size_t ldo;

    int panels() const { return (N + kTileRows - 1) / kTileRows; }
    int outputs(int panel) const { return std::min(kTileRows, N - panel * kTileRows); }
    const uint32_t* rows_at(int row_tile) const { return packed + size_t(row_tile) * k_tiles * kTileWords; }
};

// A panel as the tile loads want it: whole tiles. One that ends early in N or K is copied with zeros behind it.
struct Panel {
    const bf16* first;
    size_t stride;
    size_t step;  // from one K tile to the next

    template <typename Out>
    Panel(const Product<Out>& product, int panel, std::vector<bf16>& copy) {
        const int K = product.K, outputs = product.outputs(panel), whole = product.k_tiles * kTileInputs;
        const bf16* rows = product.weight + size_t(panel) * kTileRows * K;
        if (outputs == kTileRows && whole == K) {
            first = rows, stride = sizeof(bf16) * K;
        } else {
            copy.assign(size_t(kTileRows) * whole, bf16{0});
            for (int n = 0; n < outputs; ++n) std::memcpy(copy.data() + size_t(n) * whole, rows + size_t(n) * K, sizeof(bf16) * K);
            first = copy.data(), stride = sizeof(bf16) * whole;
        }
    }
    const bf16* at(int k_tile) const { return first + size_t(k_tile) * kTileInputs; }
};

// Two panels times one or two tiles of rows: accumulators 0 to 3, weights in 4 and 5, rows in 6 and 7.
template <bool TwoPanels, bool TwoRowTiles, typename Out>
inline void multiply(
    const Product<Out>& product, const Panel& a, const Panel& b, int panel, int row_tile, const char* ahead) {
    _tile_zero(0);
    if (TwoPanels) _tile_zero(1);
    if (TwoRowTiles) _tile_zero(2);
    if (TwoPanels && TwoRowTiles) _tile_zero(3);
    const uint32_t* rows = product.rows_at(row_tile);
    const uint32_t* more = product.rows_at(row_tile + (TwoRowTiles ? 1 : 0));
    for (int k = 0; k < product.k_tiles; ++k) {
        _tile_loadd(6, rows + size_t(k) * kTileWords, 64);
        _tile_loadd(4, a.at(k), a.stride);
        _tile_dpbf16ps(0, 4, 6);
        if (TwoPanels) {
            _tile_loadd(5, b.at(k), b.stride);
            _tile_dpbf16ps(1, 5, 6);
        }
        if (TwoRowTiles) {
            _tile_loadd(7, more + size_t(k) * kTileWords, 64);
            _tile_dpbf16ps(2, 4, 7);
            if (TwoPanels) _tile_dpbf16ps(3, 5, 7);
        }
        if (ahead) {
            for (int line = 0; line < 2 * kTileRows; ++line) _mm_prefetch(ahead + 64 * line, _MM_HINT_T1);
            ahead += 2 * kTileRows * 64;
        }
    }
    alignas(64) float sums[kTileWords];
    const auto finish = [&](int which, int row_offset) {
        const int first = (row_tile + row_offset) * kTileRows, n = (panel + which) * kTileRows;
        store_sums(
            sums, product.outputs(panel + which), std::min(kTileRows, product.M - first),
            product.bias ? product.bias + n : nullptr, product.out + size_t(first) * product.ldo + n, product.ldo);
    };
    _tile_stored(0, sums, 64);
    finish(0, 0);
    if (TwoPanels) {
        _tile_stored(1, sums, 64);
        finish(1, 0);
    }
    if (TwoRowTiles) {
        _tile_stored(2, sums, 64);
        finish(0, 1);
    }
    if (TwoPanels && TwoRowTiles) {
        _tile_stored(3, sums, 64);
        finish(1, 1);
    }
}

template <bool TwoPanels, typename Out>
inline void all_rows(const Product<Out>& product, const Panel& a, const Panel& b, int panel, const char* ahead) {
    int row_tile = 0;
    for (; row_tile + 2 <= product.row_tiles; row_tile += 2, ahead = nullptr)
        multiply<TwoPanels, true>(product, a, b, panel, row_tile, ahead);
    if (row_tile < product.row_tiles) multiply<TwoPanels, false>(product, a, b, panel, row_tile, ahead);
}

template <typename Out>
void some_panels(const Product<Out>& product, int first, int last) {
    static thread_local std::vector<bf16> copy_a, copy_b;
    const Tiles tiles;
    for (int panel = first; panel < last; panel += 2) {
        const Panel a(product, panel, copy_a);
        const char* ahead =
            panel + 4 <= last ? reinterpret_cast<const char*>(product.weight + size_t(panel + 2) * kTileRows * product.K) : nullptr;
        if (panel + 1 < last) {
            const Panel b(product, panel + 1, copy_b);
            all_rows<true>(product, a, b, panel, ahead);
        } else {
            all_rows<false>(product, a, a, panel, nullptr);
        }
    }
}

template <typename Out>
void linear(Out* out, const bf16* x, const bf16* weight, const float* bias, int M, int N, int K, size_t ldx, size_t ldo) {
    static thread_local std::vector<uint32_t> storage;
    const int row_tiles = (M + kTileRows - 1) / kTileRows, k_tiles = (K + kTileInputs - 1) / kTileInputs;
    storage.resize(size_t(row_tiles) * k_tiles * kTileWords + 16);
    auto* packed = reinterpret_cast<uint32_t*>((reinterpret_cast<uintptr_t>(storage.data()) + 63) & ~uintptr_t(63));
    Pool::instance().run(row_tiles, [&](int tile) {
        pack_rows(
            packed + size_t(tile) * k_tiles * kTileWords, x + size_t(tile) * kTileRows * ldx,
            std::min(kTileRows, M - tile * kTileRows), K, ldx);
    });
    const Product<Out> product{out, weight, bias, packed, M, N, K, row_tiles, k_tiles, ldo};
    const int pairs = (product.panels() + 1) / 2;
    const int slices = std::min(pairs, Pool::instance().size() * kSlicesPerThread);
    Pool::instance().run(slices, [&](int slice) {
        const auto edge = [&](int i) { return std::min(product.panels(), 2 * int(int64_t(pairs) * i / slices)); };
        some_panels(product, edge(slice), edge(slice + 1));
    });
}

}  // namespace amx
#endif
