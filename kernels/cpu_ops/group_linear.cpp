// out [M, N] = x [M, K] . w [N, K]^T + bias for weights in codes, and rows of such weights: fp32 sums, codes exact.
#include "group_amx.h"
#include "group_integers.h"
#include "group_tiles.h"
#include "group_vector.h"
#include "packed.h"
#include "pool.h"

namespace {

template <typename T, typename Out>
void group_linear(Out* out, const T* x, const GroupWeight* weight, const T* bias, int rows, int ldx, int ldo) {
    constexpr bool kHalves = sizeof(T) == sizeof(bf16);
    const GroupProduct product{
        out, x, bias, sizeof(Out) == sizeof(bf16), kHalves, *weight, rows, size_t(ldx), size_t(ldo)};
#ifdef PIZARRA_AMX
    if (kHalves && amx::granted()) return group_amx::multiply(product);
#endif
    if (kHalves) return group_integers::multiply(product);
    group_vector::multiply(product);
}

// The code of one input of one output of a panel.
inline int code_at(const GroupWeight& weight, const uint8_t* panel_codes, int lane, int input) {
    if (weight.bits == 8) return panel_codes[(size_t(input / 2) * kPanel + lane) * 2 + input % 2];
    uint32_t word;
    std::memcpy(&word, panel_codes + (size_t(input / 8) * kPanel + lane) * sizeof word, sizeof word);
    return word >> shift_of<4>(input % 8) & 15;
}

template <typename Out>
void group_embedding(Out* out, const int64_t* ids, const GroupWeight* table, int count, int ldo) {
    const GroupWeight& weight = *table;
    Pool::instance().run(count, [&](int i) {
        const int panel = int(ids[i] / kPanel), lane = int(ids[i] % kPanel);
        const uint8_t* codes = weight.codes + panel * weight.panel_bytes();
        const ScaleReader scales(weight, 0.0f);
        Out* row = out + size_t(i) * ldo;
        for (int g = 0, k = 0; g < weight.groups(); ++g) {
            const PanelScale group = scales.read(panel, g);
            const int part = lane / kLanes, place = lane % kLanes;
            const float scale = group.scale[part][place], minimum = group.minimum[part][place];
            for (int end = int(std::min<int64_t>(weight.inputs, int64_t(k) + weight.group_size)); k < end; ++k)
                narrow(scale * float(code_at(weight, codes, lane, k)) + minimum, row + (weight.perm ? weight.perm[k] : k));
        }
    });
}

}  // namespace

extern "C" {
// Whether products of bf16 activations with codes of so many bits can take them as integers of 8 bits here.
int32_t pz_multiplies_bytes(int32_t bits) {
#ifdef PIZARRA_AMX
    if (amx::granted()) return 0;  // matrix tiles take them as they are, and are faster yet
#endif
    return group_integers::multiplies(group_integers::Bytes{}, bits);
}

PACKED(pz_group_linear_bf16, group_linear<bf16, bf16>)
PACKED(pz_group_linear_bf16_fp32, group_linear<bf16, float>)
PACKED(pz_group_linear_fp32, group_linear<float, float>)
PACKED(pz_group_embedding_bf16, group_embedding<bf16>)
PACKED(pz_group_embedding_fp32, group_embedding<float>)
}
