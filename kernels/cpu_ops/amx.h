// Intel's AMX: tiles of 16 rows by 64 bytes, and their bf16 products with fp32 sums.
// A tile product adds to every output, for k in order, one pair of products: an output depends on its own row and column
// alone, so rows keep their bits wherever they stand.
#pragma once
#include "simd.h"

#if defined(PIZARRA_EMULATE_AMX)
#define PIZARRA_AMX 1
#include "amx_emulated.h"
#elif defined(__AVX512F__) && defined(__linux__)
#if (defined(__AMX_TILE__) && defined(__AMX_BF16__)) || (defined(__AMXTILE__) && defined(__AMXBF16__))  // so clang called them
#define PIZARRA_AMX 1
#endif
#endif

#ifdef PIZARRA_AMX
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

constexpr int kTileRows = 16;                      // of every tile, and fp32 columns of a tile of sums
constexpr int kTileInputs = 32;                    // bf16 values in a tile's row
constexpr int kTileWords = kTileRows * kTileRows;  // 32-bit words in a tile

typedef uint32_t Words __attribute__((vector_size(64)));

namespace amx {

// Asks the kernel for the tiles' registers, once per process. False: this system does not give them.
inline bool granted() {
#ifdef PIZARRA_EMULATE_AMX
    return PIZARRA_EMULATE_AMX;  // 0: as where they are refused
#else
    constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool given = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    return given;
#endif
}

// All eight tiles while it lives. Set up anew wherever work begins: torch configures and releases tiles on the same threads.
class Tiles {
  public:
    // All of them whole.
    Tiles() : Tiles(kTileRows, kTileInputs) {}

    // Tiles 0 and 1 for sums of `rows` rows, 2 and 3 for left operands of those rows by `inputs` bf16 values, the others for
    // right operands of as many inputs.
    Tiles(int rows, int inputs) {
        struct alignas(64) Config {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t column_bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        for (int tile = 0; tile < 8; ++tile) {
            config.column_bytes[tile] = uint16_t(tile == 2 || tile == 3 ? sizeof(bf16) * inputs : 64);
            config.rows[tile] = uint8_t(tile < 4 ? rows : inputs / 2);
        }
        asm volatile("" : : "r"(&config) : "memory");  // gcc takes the intrinsic to read less than it does
        _tile_loadconfig(&config);
    }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles&) = delete;
};

template <int D>
inline void exchange(Words rows[kTileRows]) {
    constexpr auto kLow = [](int i) { return i & D ? i - D + kTileRows : i; };
    constexpr auto kHigh = [](int i) { return i & D ? i + kTileRows : i + D; };
    for (int i = 0; i < kTileRows; ++i) {
        if (i & D) continue;
        const Words a = rows[i], b = rows[i + D];
        rows[i] = shuffle<kLow>(a, b);
        rows[i + D] = shuffle<kHigh>(a, b);
    }
}

// Transposes 16 x 16 words, by exchanging ever smaller parts.
inline void transpose(Words rows[kTileRows]) {
    exchange<8>(rows);
    exchange<4>(rows);
    exchange<2>(rows);
    exchange<1>(rows);
}

// A tile's row of bf16, of which `count` are there, the others zero.
inline Words load_words(const bf16* p, int count) {
    Words words{};
    if (count >= kTileInputs)
        std::memcpy(&words, p, sizeof words);  // of a size that the compiler knows: one instruction
    else
        std::memcpy(&words, p, sizeof(bf16) * count);
    return words;
}

// Up to sixteen rows of bf16 as right operands of tile products, zeros where there is nothing: [K tile][pair of k][row].
inline void pack_rows(uint32_t* packed, const bf16* x, int rows, int K, size_t ldx) {
    for (int k = 0; k < K; k += kTileInputs, packed += kTileWords) {
        Words words[kTileRows] = {};
        for (int m = 0; m < rows; ++m) words[m] = load_words(x + m * ldx + k, K - k);
        transpose(words);
        std::memcpy(packed, words, sizeof words);
    }
}

}  // namespace amx
#endif
