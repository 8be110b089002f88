// out = x . codes on AMX, for bf16 activations: they are the left operand as they lie, up to 16 rows a tile; codes are the
// right one, 16 outputs by a tile's inputs, expanded to bf16 without rounding.
// A group's products sum in one accumulator; its scale, and its minimum times the sum of its activations, follow in fp32,
// group by group. A row goes through the same operations in the same order wherever it stands.
#pragma once
#include "amx.h"
#include "group_tiles.h"

#if defined(PIZARRA_AMX)
#include <utility>
#include <vector>

#include "pool.h"

namespace group_amx {

constexpr int kAhead = 2;                    // tiles expanded before they are multiplied: a store takes time to reach a load
constexpr int kRing = 8;                     // expanded tiles that are kept where only one tile of rows wants them
constexpr int kFewTiles = 4;                 // of rows: so many stay near by themselves, and panels come one by one
constexpr size_t kTogetherBytes = 96 << 10;  // of expanded codes that each of many tiles of rows meets in turn
constexpr size_t kBlockBytes = 768 << 10;    // of activations that stay in the second-level cache
constexpr size_t kFetchAhead = 4096;         // bytes of codes that are asked for before they are expanded

// How much an expanded code is too large by.
#ifdef __AVX512FP16__
constexpr float kByteExcess = 1.0f;
#else
constexpr float kByteExcess = 0.0f;
#endif
template <int Bits>
constexpr float kExcess = Bits == 4 ? 128.0f : kByteExcess;

// 32 codes of 8 bits as bf16: plus one, so that none is zero, they become fp16 exactly, and that bf16 by dropping three empty
// bits and moving the exponent; without fp16 arithmetic, fp32, of which bf16 is the upper half.
inline __m512i halves_of_bytes(__m512i code) {
#ifdef __AVX512FP16__
    const __m512i one = _mm512_set1_epi16(1), exponent = _mm512_set1_epi16((127 - 15) << 7);
    const __m512i half = _mm512_castph_si512(_mm512_cvtepu16_ph(_mm512_add_epi16(code, one)));
    return _mm512_add_epi16(_mm512_srli_epi16(half, 3), exponent);
#else
    constexpr __mmask32 kOdd = 0xaaaaaaaa;
    const __m512i even = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_and_si512(code, _mm512_set1_epi32(0xffff))));
    const __m512i odd = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_srli_epi32(code, 16)));
    return _mm512_mask_mov_epi16(_mm512_srli_epi32(even, 16), kOdd, odd);
#endif
}

// The codes of `Inputs` inputs as bf16. Bits 0x4300 with a code of 4 bits are the number 128 + code.
template <int Bits, int Inputs>
inline void expand(const uint8_t* codes, uint32_t* tile) {
    for (int line = 0; line < Inputs * kPanel * Bits / 8; line += 64)
        _mm_prefetch(reinterpret_cast<const char*>(codes + kFetchAhead + line), _MM_HINT_T0);
    if constexpr (Bits == 4) {
        constexpr int kAndOr = 0xea;  // (first & second) | third
        const __m512i lowest = _mm512_set1_epi16(0x000f), number = _mm512_set1_epi16(0x4300);
#pragma GCC unroll 4
        for (int row = 0; row < Inputs / 2; row += 4, codes += 64, tile += 4 * kPanel) {
            const __m512i four = _mm512_loadu_si512(codes), high = _mm512_srli_epi16(four, 8);
            _mm512_store_si512(tile, _mm512_ternarylogic_epi32(four, lowest, number, kAndOr));
            const __m512i second = _mm512_srli_epi16(four, 4);
            _mm512_store_si512(tile + kPanel, _mm512_ternarylogic_epi32(second, lowest, number, kAndOr));
            _mm512_store_si512(tile + 2 * kPanel, _mm512_ternarylogic_epi32(high, lowest, number, kAndOr));
            _mm512_store_si512(tile + 3 * kPanel, _mm512_or_si512(_mm512_srli_epi16(four, 12), number));
        }
    } else {
#pragma GCC unroll 16
        for (int row = 0; row < Inputs / 2; ++row, codes += 32, tile += kPanel) {
            const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
            _mm512_store_si512(tile, halves_of_bytes(_mm512_cvtepu8_epi16(bytes)));
        }
    }
}

// What one call multiplies; activations are whole tiles by now.
struct Activations {
    const bf16* x;
    size_t ldx;
    int rows, tile_rows;  // tile_rows: of every tile; the last one overlaps the one before where they do not divide

    int row_tiles() const { return (rows + tile_rows - 1) / tile_rows; }
    int first_row(int row_tile) const { return std::min(row_tile * tile_rows, rows - tile_rows); }
};

// The sums of up to sixteen rows over each group, [group][row], as products with ones in one column for each group.
inline void sum_groups(const Activations& activations, int row_tile, const GroupWeight& weight, float* sums) {
    static const struct alignas(64) Window {
        uint32_t words[2 * kPanel] = {};
        Window() { words[kPanel - 1] = 0x3f803f80; }
    } window;
    const bf16* x = activations.x + size_t(activations.first_row(row_tile)) * activations.ldx;
    const int groups = weight.groups(), tiles = weight.tiles(), inputs = weight.tile_inputs();
    const int per_group = weight.group_size / inputs;
    for (int first = 0, t = 0; first < groups; first += kPanel, sums += kPanel * kTileRows) {
        Words columns[kTileRows] = {};
        _tile_zero(0);
        for (int g = first; g < std::min(groups, first + kPanel); ++g) {
            _tile_loadd(4, window.words + kPanel - 1 - (g - first), 0);
            for (const int end = std::min(tiles, t + per_group); t < end; ++t) {
                _tile_loadd(2, x + size_t(t) * inputs, sizeof(bf16) * activations.ldx);
                _tile_dpbf16ps(0, 2, 4);
            }
        }
        _tile_stored(0, columns, 64);
        amx::transpose(columns);
        std::memcpy(sums, columns, sizeof columns);
    }
}

// body(m) for every row, m known to the compiler: what it indexes then stays in registers.
template <int R, typename Body>
__attribute__((always_inline)) inline void for_rows(const Body& body) {
    const auto all = [&]<int... M>(std::integer_sequence<int, M...>) __attribute__((always_inline)) {
        (body(std::integral_constant<int, M>{}), ...);
    };
    all(std::make_integer_sequence<int, R>{});
}

// A panel's expanded codes: tile t is kept at place t & mask.
struct Expanded {
    uint32_t* tiles;
    int mask;

    uint32_t* at(int t) const { return tiles + size_t(t & mask) * kTileWords; }
    void next() {}
};

// The same while they are still to be expanded, a tile at each call of next().
template <int Bits>
struct Expanding : Expanded {
    const uint8_t* codes;
    int left, place = 0;
    bool whole;  // tiles of 32 inputs

    Expanding(const GroupWeight& weight, int panel, Expanded to)
        : Expanded(to), codes(weight.codes + panel * weight.panel_bytes()), left(weight.tiles()),
          whole(weight.tile_inputs() == kTileInputs) {}

    __attribute__((always_inline)) void next() {
        if (left == 0) return;
        --left;
        if (whole)
            expand<Bits, kTileInputs>(codes, at(place));
        else
            expand<Bits, kTileInputs / 2>(codes, at(place));
        codes += (whole ? kTileInputs : kTileInputs / 2) * kPanel * Bits / 8;
        ++place;
    }
};

// A panel times a tile of R rows or fewer: result [row]. sums [group][row]. `products` is room for two tiles, zero where a tile
// of rows ends early. While a group's codes are multiplied the one before is scaled and later ones are expanded.
template <int R, typename Codes>
__attribute__((noinline)) void panel_times(
    const GroupWeight& weight, Codes codes, const PanelScale* scales, const bf16* x, size_t ldx, const float* sums,
    float* products, Vec* result) {
    const int groups = weight.groups(), tiles = weight.tiles(), inputs = weight.tile_inputs();
    const int per_group = weight.group_size / inputs;
    const size_t stride = sizeof(bf16) * ldx;
    Vec totals[R] = {};  // in registers
    int t = 0;
    const auto multiply = [&](auto accumulator) __attribute__((always_inline)) {
        constexpr int kWhich = decltype(accumulator)::value;
        if (kWhich == 0)
            _tile_zero(0);
        else
            _tile_zero(1);
        for (const int end = std::min(tiles, t + per_group); t < end; ++t, x += inputs) {
            if (kWhich == 0) {
                _tile_loadd(2, x, stride);
                _tile_loadd(4, codes.at(t), 64);
                _tile_dpbf16ps(0, 2, 4);
            } else {
                _tile_loadd(3, x, stride);
                _tile_loadd(5, codes.at(t), 64);
                _tile_dpbf16ps(1, 3, 5);
            }
            codes.next();
        }
    };
    const auto scale = [&](const float* product, int g) __attribute__((always_inline)) {
        const Vec factor = scales[g].scale[0], minimum = scales[g].minimum[0];
        const float* own = sums + size_t(g) * kTileRows;
        for_rows<R>([&](auto m) __attribute__((always_inline)) {
            totals[m] = fma(splat(own[m]), minimum, totals[m]);
            totals[m] = fma(load(product + m * kPanel), factor, totals[m]);
        });
    };
    constexpr std::integral_constant<int, 0> first;
    constexpr std::integral_constant<int, 1> second;
    for (int i = 0; i < kAhead; ++i) codes.next();
    multiply(first);
    if (groups > 1) multiply(second);
    int g = 2;
    for (; g + 2 <= groups; g += 2) {
        _tile_stored(0, products, 64);
        _tile_stored(1, products + kTileWords, 64);
        multiply(first);
        multiply(second);
        scale(products, g - 2);
        scale(products + kTileWords, g - 1);
    }
    _tile_stored(0, products, 64);
    if (groups > 1) _tile_stored(1, products + kTileWords, 64);
    if (g < groups) multiply(first);
    scale(products, g - 2);
    if (groups > 1) scale(products + kTileWords, g - 1);
    if (g < groups) {
        _tile_stored(0, products, 64);
        scale(products, g);
    }
    for_rows<R>([&](auto m) { result[m] = totals[m]; });
}

// What a thread works in, whole tiles at whole lines of the cache.
struct Workspace {
    uint32_t* tiles;
    PanelScale* scales;
    alignas(64) float products[2 * kTileWords] = {};

    Workspace(size_t num_tiles, size_t num_scales) {
        static thread_local std::vector<uint32_t> storage;
        static thread_local std::vector<PanelScale> scale_storage;
        storage.resize(num_tiles * kTileWords + kPanel);
        scale_storage.resize(num_scales);
        tiles = reinterpret_cast<uint32_t*>((reinterpret_cast<uintptr_t>(storage.data()) + 63) & ~uintptr_t(63));
        scales = scale_storage.data();
    }
};

// One tile of rows: codes are expanded as they are wanted.
template <int Bits, int R>
void few_rows(const GroupProduct& product, const Activations& activations, const float* sums, int first, int last) {
    const GroupWeight& weight = product.weight;
    const amx::Tiles tiles(activations.tile_rows, weight.tile_inputs());
    const ScaleReader scales(weight, kExcess<Bits>);
    Workspace work(kRing, weight.groups());
    for (int panel = first; panel < last; ++panel) {
        const Expanding<Bits> codes(weight, panel, {work.tiles, kRing - 1});
        scales.read(panel, work.scales, panel + 1);
        Vec result[R];
        panel_times<R>(weight, codes, work.scales, activations.x, activations.ldx, sums, work.products, result);
        product.finish(0, activations.tile_rows, panel, result);
    }
}

// Several tiles of rows: some panels are expanded while the first one meets them, and each later one stays near for them all.
template <int Bits>
void many_rows(
    const GroupProduct& product, const Activations& activations, const float* sums, size_t tile_sums, int first, int last) {
    const GroupWeight& weight = product.weight;
    const amx::Tiles tiles(activations.tile_rows, weight.tile_inputs());
    const ScaleReader scales(weight, kExcess<Bits>);
    const int groups = weight.groups();
    const size_t panel_words = size_t(weight.tiles()) * kTileWords, ldx = activations.ldx;
    const int fitting = activations.row_tiles() <= kFewTiles ? 1 : int(kTogetherBytes / (panel_words * sizeof(uint32_t)));
    const int together = std::clamp(fitting, 1, last - first);
    Workspace work(size_t(together) * weight.tiles(), size_t(together) * groups);
    Vec result[kTileRows];
    for (int begin = first; begin < last; begin += together) {
        const int count = std::min(together, last - begin);
        for (int tile = 0; tile < activations.row_tiles(); ++tile) {
            const int row = activations.first_row(tile);
            const bf16* x = activations.x + row * ldx;
            const float* own = sums + tile * tile_sums;
            for (int i = 0; i < count; ++i) {
                const Expanded codes{work.tiles + i * panel_words, -1};
                PanelScale* panel_scales = work.scales + size_t(i) * groups;
                if (tile == 0) {
                    scales.read(begin + i, panel_scales, begin + i + 1);
                    const Expanding<Bits> fresh(weight, begin + i, codes);
                    panel_times<kTileRows>(weight, fresh, panel_scales, x, ldx, own, work.products, result);
                } else {
                    panel_times<kTileRows>(weight, codes, panel_scales, x, ldx, own, work.products, result);
                }
                product.finish(row, kTileRows, begin + i, result);
            }
        }
    }
}

template <int Bits>
void any_rows(
    const GroupProduct& product, const Activations& activations, const float* sums, size_t tile_sums, int first, int last) {
    const int rows = activations.tile_rows;
    if (activations.row_tiles() > 1)
        many_rows<Bits>(product, activations, sums, tile_sums, first, last);
    else if (rows == 1)
        few_rows<Bits, 1>(product, activations, sums, first, last);
    else if (rows <= 4)
        few_rows<Bits, 4>(product, activations, sums, first, last);
    else if (rows <= 8)
        few_rows<Bits, 8>(product, activations, sums, first, last);
    else
        few_rows<Bits, 16>(product, activations, sums, first, last);
}

// The activations as they lie where that will do, else in `copy`: gathered by perm, or padded to whole tiles.
inline Activations arrange(const GroupProduct& product, std::vector<bf16>& copy) {
    const GroupWeight& weight = product.weight;
    const int padded = weight.padded_inputs(), rows = product.rows;
    const auto* x = static_cast<const bf16*>(product.x);
    const Activations as_they_lie{x, product.ldx, rows, std::min(rows, kTileRows)};
    if (!weight.perm && padded == weight.inputs) return as_they_lie;
    copy.resize(size_t(rows) * padded);
    bf16* target = copy.data();
    Pool::instance().run(as_they_lie.row_tiles(), [&](int tile) {
        for (int m = tile * kTileRows; m < std::min(rows, (tile + 1) * kTileRows); ++m)
            arrange_row(target + size_t(m) * padded, x + size_t(m) * product.ldx, weight);
    });
    return {target, size_t(padded), rows, as_they_lie.tile_rows};
}

inline void multiply(const GroupProduct& product) {
    static thread_local std::vector<bf16> copy;
    static thread_local std::vector<float> sums;
    const GroupWeight& weight = product.weight;
    const int panels = weight.panels();
    const size_t tile_sums = size_t(weight.groups() + kPanel - 1) / kPanel * kPanel * kTileRows;
    const int block = std::max(64, int(kBlockBytes / sizeof(bf16)) / weight.padded_inputs() / kTileRows * kTileRows);
    const int slices = std::min(panels, Pool::instance().size() * kGroupSlicesPerThread);
    for (int first = 0; first < product.rows; first += block) {
        const GroupProduct part = product.part(first, std::min(block, product.rows - first));
        const Activations activations = arrange(part, copy);
        sums.resize(tile_sums * activations.row_tiles());
        float* group_sums = sums.data();  // of this thread, for all
        Pool::instance().run(activations.row_tiles(), [&](int tile) {
            const amx::Tiles tiles(activations.tile_rows, weight.tile_inputs());
            sum_groups(activations, tile, weight, group_sums + tile * tile_sums);
        });
        Pool::instance().run(slices, [&](int slice) {
            const auto edge = [&](int i) { return int(int64_t(panels) * i / slices); };
            if (weight.bits == 4)
                any_rows<4>(part, activations, group_sums, tile_sums, edge(slice), edge(slice + 1));
            else
                any_rows<8>(part, activations, group_sums, tile_sums, edge(slice), edge(slice + 1));
        });
    }
}

}  // namespace group_amx
#endif
