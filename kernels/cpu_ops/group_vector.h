// out = x . codes for fp32 activations by vector instructions, an output per lane: a group's codes are expanded to fp32 once for
// all rows. Every output of a row sums its group in two chains (even and odd inputs), then the groups in order, whatever the
// rows are.
#pragma once
#include <type_traits>
#include <vector>

#include "group_tiles.h"
#include "pool.h"

namespace group_vector {

constexpr int kRowsTogether = kLanes / 4;  // whose chains stay in registers
constexpr int kBlockRows = 64;             // of activations that stay near while a panel is worked on

// Codes of `inputs` inputs as fp32 [input][output].
template <int Bits>
inline void expand(const uint8_t* codes, int inputs, float* to) {
    constexpr int kPerWord = Bits == 4 ? 8 : 2;  // 32 bits, or 16, hold so many inputs of an output
    for (int k = 0; k < inputs; k += kPerWord, codes += kPerWord * kPanel * Bits / 8) {
        for (int lane = 0; lane < kPanel; lane += kLanes) {
            VecU word;
            if constexpr (Bits == 4) {
                std::memcpy(&word, codes + sizeof(uint32_t) * lane, sizeof word);
            } else {
                VecH half;
                std::memcpy(&half, codes + sizeof(uint16_t) * lane, sizeof half);
                word = __builtin_convertvector(half, VecU);
            }
            for (int i = 0; i < kPerWord; ++i) {
                const VecU code = (word >> shift_of<Bits>(i)) & ((1u << Bits) - 1);
                store(to + (k + i) * kPanel + lane, __builtin_convertvector(reinterpret_cast<VecI>(code), Vec));
            }
        }
    }
}

// totals[m] += scale * (x[m] . codes) + minimum * sums[m] for R rows and one group of `inputs`, an even number.
template <int R>
inline void add_group(
    const float* x, size_t ldx, const float* codes, int inputs, const PanelScale& group, const float* sums, size_t groups,
    Vec* totals) {
    Vec even[R][kParts] = {}, odd[R][kParts] = {};
    for (int k = 0; k < inputs; k += 2) {
        for (int p = 0; p < kParts; ++p) {
            const Vec one = load(codes + k * kPanel + p * kLanes), two = load(codes + (k + 1) * kPanel + p * kLanes);
            for (int m = 0; m < R; ++m) {
                even[m][p] = fma(splat(x[m * ldx + k]), one, even[m][p]);
                odd[m][p] = fma(splat(x[m * ldx + k + 1]), two, odd[m][p]);
            }
        }
    }
    for (int m = 0; m < R; ++m) {
        for (int p = 0; p < kParts; ++p) {
            Vec& total = totals[m * kParts + p];
            total = fma(splat(sums[m * groups]), group.minimum[p], total);
            total = fma(even[m][p] + odd[m][p], group.scale[p], total);
        }
    }
}

// One panel times some rows of x, already fp32 and padded; sums [row][group].
template <int Bits>
void panel_times(const GroupProduct& product, int panel, const float* x, const float* sums) {
    static thread_local std::vector<float> codes;
    static thread_local std::vector<Vec> totals;
    const GroupWeight& weight = product.weight;
    const int groups = weight.groups(), rows = product.rows;
    const ScaleReader scales(weight, 0.0f);
    const size_t ldx = weight.padded_inputs();
    codes.resize(size_t(std::min<int64_t>(weight.group_size, weight.padded_inputs())) * kPanel);
    totals.assign(size_t(rows) * kParts, Vec{});
    const uint8_t* source = weight.codes + panel * weight.panel_bytes();
    for (int g = 0; g < groups; ++g) {
        const int begin = g * weight.group_size, inputs = std::min(weight.group_size, weight.padded_inputs() - begin);
        expand<Bits>(source + size_t(begin) * kPanel * Bits / 8, inputs, codes.data());
        const PanelScale group = scales.read(panel, g);
        int m = 0;
        const auto add = [&](auto count) {
            constexpr int R = decltype(count)::value;
            const float* own = sums + size_t(m) * groups + g;
            add_group<R>(x + m * ldx + begin, ldx, codes.data(), inputs, group, own, groups, totals.data() + m * kParts);
            m += R;
        };
        while (m + kRowsTogether <= rows) add(std::integral_constant<int, kRowsTogether>{});
        while (m < rows) add(std::integral_constant<int, 1>{});
    }
    product.finish(0, rows, panel, totals.data());
}

// Sums of a row's activations, group by group.
inline void sum_groups(const float* row, const GroupWeight& weight, float* sums) {
    for (int begin = 0, g = 0; begin < weight.padded_inputs(); begin += weight.group_size, ++g) {
        const int end = std::min(begin + weight.group_size, weight.padded_inputs());
        Vec total{};
        for (int k = begin; k < end; k += kLanes) total += load(row + k);
        sums[g] = sum(total);
    }
}

inline void multiply(const GroupProduct& product) {
    static thread_local std::vector<float> wide, sums;
    const GroupWeight& weight = product.weight;
    const int padded = weight.padded_inputs(), groups = weight.groups(), panels = weight.panels();
    const int slices = std::min(panels, Pool::instance().size() * kGroupSlicesPerThread);
    for (int first = 0; first < product.rows; first += kBlockRows) {
        const GroupProduct part = product.part(first, std::min(kBlockRows, product.rows - first));
        wide.resize(size_t(part.rows) * padded);
        sums.resize(size_t(part.rows) * groups);
        float *x = wide.data(), *group_sums = sums.data();  // of this thread, for all
        Pool::instance().run(part.rows, [&](int m) {
            float* row = x + size_t(m) * padded;
            arrange_row(row, static_cast<const float*>(part.x) + m * part.ldx, weight);
            sum_groups(row, weight, group_sums + size_t(m) * groups);
        });
        Pool::instance().run(slices, [&](int slice) {
            const auto edge = [&](int i) { return int(int64_t(panels) * i / slices); };
            for (int panel = edge(slice); panel < edge(slice + 1); ++panel) {
                if (weight.bits == 4)
                    panel_times<4>(part, panel, x, group_sums);
                else
                    panel_times<8>(part, panel, x, group_sums);
            }
        });
    }
}

}  // namespace group_vector
