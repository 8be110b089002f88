// AMX in plain C++, slow, for tests on processors without it: with PIZARRA_EMULATE_AMX the code for tiles runs there, its
// loads, strides and edges included. The sums follow Intel's manual (TDPBF16PS): even and odd inputs apart, then onto the tile;
// that denormal numbers count as zero is left out. Never part of a build that serves.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "simd.h"

namespace amx_emulated {

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

struct State {
    int rows[kTiles] = {}, row_bytes[kTiles] = {};
    alignas(64) uint8_t data[kTiles][kRows][kRowBytes];
};

inline State& state() {
    static thread_local State own;
    return own;
}

// A processor faults where a tile is used that was not set up; so does this.
inline int ready(int tile) {
    if (state().rows[tile] == 0) std::abort();
    return tile;
}

inline void load_config(const void* config) {
    const auto* bytes = static_cast<const uint8_t*>(config);
    for (int tile = 0; tile < kTiles; ++tile) {
        uint16_t row_bytes;
        std::memcpy(&row_bytes, bytes + 16 + 2 * tile, sizeof row_bytes);
        state().row_bytes[tile] = row_bytes;
        state().rows[tile] = bytes[48 + tile];
    }
    std::memset(state().data, 0, sizeof state().data);
}

inline void release() { std::fill_n(state().rows, kTiles, 0); }

inline void zero(int tile) { std::memset(state().data[ready(tile)], 0, sizeof state().data[tile]); }

inline void load(int tile, const void* from, size_t stride) {
    zero(tile);
    for (int row = 0; row < state().rows[tile]; ++row)
        std::memcpy(state().data[tile][row], static_cast<const uint8_t*>(from) + row * stride, state().row_bytes[tile]);
}

inline void store(int tile, void* to, size_t stride) {
    for (int row = 0; row < state().rows[ready(tile)]; ++row)
        std::memcpy(static_cast<uint8_t*>(to) + row * stride, state().data[tile][row], state().row_bytes[tile]);
}

inline float number(int tile, int row, int place) {
    bf16 value;
    std::memcpy(&value, state().data[tile][row] + 2 * place, sizeof value);
    return widen(value);
}

inline void multiply(int sums, int left, int right) {
    State& own = state();
    if (own.row_bytes[ready(left)] / 4 != own.rows[ready(right)] || own.rows[ready(sums)] != own.rows[left]) std::abort();
    for (int m = 0; m < own.rows[sums]; ++m) {
        for (int n = 0; n < own.row_bytes[sums] / 4; ++n) {
            float even = 0.0f, odd = 0.0f, total;
            for (int k = 0; k < own.rows[right]; ++k) {
                even = __builtin_fmaf(number(left, m, 2 * k), number(right, k, 2 * n), even);
                odd = __builtin_fmaf(number(left, m, 2 * k + 1), number(right, k, 2 * n + 1), odd);
            }
            std::memcpy(&total, own.data[sums][m] + 4 * n, sizeof total);
            total += even + odd;
            std::memcpy(own.data[sums][m] + 4 * n, &total, sizeof total);
        }
    }
}

}  // namespace amx_emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig amx_emulated::load_config
#define _tile_release amx_emulated::release
#define _tile_zero amx_emulated::zero
#define _tile_loadd amx_emulated::load
#define _tile_stored amx_emulated::store
#define _tile_dpbf16ps amx_emulated::multiply
