// Weights in codes of 4 or 8 bits as `group_tiles.py` lays them out, and how their scales are read.
// A panel is 16 outputs. Its codes lie as the rows of a matrix tile want them, pairs of inputs as [output][2]: of 8 bits, two
// bytes an output; of 4 bits, two words of 16 bits an output, whose four codes belong to four rows of the tile. Scales, minima
// and zeros lie [panel][group][output]. Outputs are padded to whole panels and inputs to whole tiles.
#pragma once
#include <algorithm>

#include "simd.h"

constexpr int kPanel = 16;               // outputs
constexpr int kParts = kPanel / kLanes;  // vectors that hold a number for each of them

constexpr int kGroupSlicesPerThread = 2;  // what a thread claims at once is long: what it reads ahead is its own

enum ScaleType : int32_t { kScaleFp32 = 0, kScaleFp16 = 1, kScaleBf16 = 2 };

// Filled by `group_tiles.py`, field by field in this order.
struct GroupWeight {
    const uint8_t* codes;
    const void* scale;
    const void* minimum;         // null: a group's minimum is -scale * zero
    const uint8_t* zero;         // null: the same one everywhere, constant_zero
    const int8_t* sub_scale;     // null, or what a group multiplies its scale by
    const uint8_t* sub_minimum;  // null, or what a group multiplies its minimum by
    const int32_t* perm;         // null, or where among the activations each input is found
    int32_t outputs, inputs, bits, group_size;  // groups of 16, or of a multiple of 32; the last may be shorter
    int32_t sub_groups, constant_zero, scale_type;
    int32_t activation_bits;  // of bf16 activations in products: 16, or 8 where pz_multiplies_bytes

    int panels() const { return (outputs + kPanel - 1) / kPanel; }
    int groups() const { return (inputs + group_size - 1) / group_size; }
    int tile_inputs() const { return group_size == 16 ? 16 : 32; }
    int tiles() const { return (inputs + tile_inputs() - 1) / tile_inputs(); }
    int padded_inputs() const { return tiles() * tile_inputs(); }
    size_t tile_bytes() const { return size_t(tile_inputs()) * kPanel * bits / 8; }
    size_t panel_bytes() const { return tiles() * tile_bytes(); }
    int outputs_of(int panel) const { return std::min(kPanel, outputs - panel * kPanel); }
};

// Where the bits of input i begin among those of an output: eight inputs of 4 bits in 32, or two of 8 bits in 16.
template <int Bits>
constexpr int shift_of(int i) {
    return Bits == 4 ? i % 2 * 16 + i / 2 * 4 : i * 8;
}

struct PanelScale {
    Vec scale[kParts], minimum[kParts];
};

inline Vec widen_fp16(VecH half) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec>(_mm512_cvtph_ps(reinterpret_cast<__m256i>(half)));
#elif defined(__F16C__)
    return reinterpret_cast<Vec>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(half)));
#else
    const VecU word = __builtin_convertvector(half, VecU);
    const Vec magnitude = reinterpret_cast<Vec>((word & 0x7fffu) << 13) * splat(0x1p112f);  // subnormal ones come out exact
    return reinterpret_cast<Vec>(reinterpret_cast<VecU>(magnitude) | ((word & 0x8000u) << 16));
#endif
}
inline Vec load_fp16(const uint16_t* p) {
    VecH half;
    std::memcpy(&half, p, sizeof half);
    return widen_fp16(half);
}

#if defined(__AVX512F__)  // spelled out: gcc widens bytes one by one
inline Vec load_bytes(const int8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return reinterpret_cast<Vec>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
}
inline Vec load_bytes(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return reinterpret_cast<Vec>(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)));
}
#else
template <typename Byte>
inline Vec load_bytes(const Byte* p) {
    Vec wide;
    for (int i = 0; i < kLanes; ++i) wide[i] = float(p[i]);
    return wide;
}
#endif

// Reads scales and minima as fp32. `excess` is what the codes are too large by when they are multiplied: it is taken back
// through the minimum.
class ScaleReader {
  public:
    ScaleReader(const GroupWeight& weight, float excess)
        : weight_(weight), groups_(weight.groups()), scales_((groups_ + weight.sub_groups - 1) / weight.sub_groups),
          excess_(excess) {}

    // Those of all groups of a panel; asks for those of panel `next`.
    __attribute__((noinline)) void read(int panel, PanelScale* to, int next) const {
        for (int g = 0; g < groups_; ++g) {
            fetch(next, g);
            to[g] = read(panel, g);
        }
    }

    PanelScale read(int panel, int g) const {
        const GroupWeight& w = weight_;
        const size_t own = (size_t(panel) * groups_ + g) * kPanel;
        const size_t shared = w.sub_groups == 1 ? own : (size_t(panel) * scales_ + g / w.sub_groups) * kPanel;
        PanelScale found;
        for (int p = 0; p < kParts; ++p) {
            const size_t at = own + size_t(p) * kLanes, shared_at = shared + size_t(p) * kLanes;
            Vec scale = load_scale(w.scale, shared_at), minimum;
            if (w.sub_scale) scale *= load_bytes(w.sub_scale + at);
            if (w.minimum) {
                minimum = load_scale(w.minimum, shared_at);
                if (w.sub_minimum) minimum *= load_bytes(w.sub_minimum + at);
                minimum = fma(scale, splat(-excess_), minimum);
            } else {
                const Vec zero = w.zero ? load_bytes(w.zero + at) : splat(float(w.constant_zero));
                minimum = scale * (-excess_ - zero);
            }
            found.scale[p] = scale, found.minimum[p] = minimum;
        }
        return found;
    }

  private:
    // Asks for the scales of a group that is read later; past the end of all this does nothing.
    void fetch(int panel, int g) const {
        const size_t scale = weight_.sub_groups == 1 ? g : g / weight_.sub_groups;
        const size_t at = (size_t(panel) * scales_ + scale) * kPanel * (weight_.scale_type == kScaleFp32 ? 4 : 2);
        __builtin_prefetch(static_cast<const char*>(weight_.scale) + at);
        if (weight_.minimum) __builtin_prefetch(static_cast<const char*>(weight_.minimum) + at);
    }

    Vec load_scale(const void* values, size_t at) const {
        if (weight_.scale_type == kScaleFp32) return load(static_cast<const float*>(values) + at);
        if (weight_.scale_type == kScaleBf16) return load(static_cast<const bf16*>(values) + at);
        return load_fp16(static_cast<const uint16_t*>(values) + at);
    }

    const GroupWeight& weight_;
    int groups_, scales_;
    float excess_;
};

// A result's sixteen numbers or fewer, rounded to the nearest; by one instruction where there is one for it.
inline void store_result(float* p, Vec v) { store(p, v); }
inline void store_result(bf16* p, Vec v) {
#if defined(__AVX512BF16__)
    const __m256bh halves = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(v));
    std::memcpy(p, &halves, sizeof halves);
#else
    store(p, v);
#endif
}

// What a call multiplies. `ldx` and `ldo` count elements from row to row. Activations and results are bf16 or fp32; that is
// no template argument, since it would compile everything thrice for a choice made once a panel.
struct GroupProduct {
    void* out;
    const void *x, *bias;  // bias: null, or one an output, of the activations' type
    bool out_halves, x_halves;
    const GroupWeight& weight;
    int rows;
    size_t ldx, ldo;

    GroupProduct part(int first, int count) const {
        GroupProduct result = *this;
        result.out = static_cast<char*>(out) + first * ldo * (out_halves ? sizeof(bf16) : sizeof(float));
        result.x = static_cast<const char*>(x) + first * ldx * (x_halves ? sizeof(bf16) : sizeof(float));
        result.rows = count;
        return result;
    }

    // Sums of a panel, `apart` vectors from row to row, bias added, to rows of the result.
    void finish(int row, int count, int panel, const Vec* sums, int apart = kParts) const {
        Vec shift[kParts] = {};
        if (bias) add_bias(panel, shift);
        const size_t first = row * ldo + size_t(panel) * kPanel;
        if (out_halves)
            store_rows(static_cast<bf16*>(out) + first, count, weight.outputs_of(panel), sums, apart, shift);
        else
            store_rows(static_cast<float*>(out) + first, count, weight.outputs_of(panel), sums, apart, shift);
    }

  private:
    void add_bias(int panel, Vec* shift) const {
        const int first = panel * kPanel, outputs = weight.outputs_of(panel);
        for (int p = 0; p < kParts; ++p) {
            const int left = std::clamp(outputs - p * kLanes, 0, kLanes), at = first + p * kLanes;
            if (x_halves)
                shift[p] = load_part(static_cast<const bf16*>(bias) + at, left);
            else
                shift[p] = load_part(static_cast<const float*>(bias) + at, left);
        }
    }

    template <typename Out>
    void store_rows(Out* target, int count, int outputs, const Vec* sums, int apart, const Vec* shift) const {
        for (int m = 0; m < count; ++m, target += ldo, sums += apart) {
            for (int p = 0; p < kParts; ++p) {
                if (outputs == kPanel)
                    store_result(target + p * kLanes, sums[p] + shift[p]);
                else if (outputs > p * kLanes)
                    store_part(target + p * kLanes, sums[p] + shift[p], std::min(kLanes, outputs - p * kLanes));
            }
        }
    }
};

// Activations as the codes want them: in their order, as `To`, zeros behind them up to whole tiles.
template <typename To, typename T>
inline void arrange_row(To* to, const T* row, const GroupWeight& weight) {
    const int inputs = weight.inputs;
    if (weight.perm) {
        for (int k = 0; k < inputs; ++k) {
            if constexpr (sizeof(To) == sizeof(T))
                to[k] = row[weight.perm[k]];
            else
                to[k] = widen(row[weight.perm[k]]);
        }
    } else if constexpr (sizeof(To) == sizeof(T)) {
        std::memcpy(to, row, sizeof(T) * inputs);
    } else {
        for_lanes(inputs, [&](int i, auto load_at, auto store_at) { store_at(to + i, load_at(row + i)); });
    }
    std::fill(to + inputs, to + weight.padded_inputs(), To{});
}
