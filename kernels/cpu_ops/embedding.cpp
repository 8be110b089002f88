// Rows picked from a table, of an embedding or of the hidden states whose tokens are wanted; and rows placed in a wider one.
#include <cstring>

#include "packed.h"
#include "pool.h"
#include "simd.h"

namespace {

constexpr size_t kSliceBytes = 32 << 10;  // of rows that one claimed slice copies, one row at least

// body(i) for `count` rows of `bytes` bytes.
template <typename Body>
void for_copies(int count, size_t bytes, const Body& body) {
    const int together = int(kSliceBytes / (bytes + 1)) + 1;
    Pool::instance().run((count + together - 1) / together, [&](int slice) {
        for (int i = slice * together; i < count && i < (slice + 1) * together; ++i) body(i);
    });
}

template <typename T>
void gather(T* out, const T* table, const int64_t* rows, int count, int width, int ldo, int ldt) {
    for_copies(count, sizeof(T) * width, [&](int i) {
        std::memcpy(out + size_t(i) * ldo, table + size_t(rows[i]) * ldt, sizeof(T) * width);
    });
}

// out: from the column on.
template <typename T>
void scatter(T* out, const T* x, const int64_t* rows, int count, int width, int ldo, int ldx) {
    for_copies(count, sizeof(T) * width, [&](int i) {
        if (rows[i] >= 0) std::memcpy(out + size_t(rows[i]) * ldo, x + size_t(i) * ldx, sizeof(T) * width);
    });
}

}  // namespace

extern "C" {
PACKED(pz_gather_bf16, gather<bf16>)
PACKED(pz_gather_fp32, gather<float>)
PACKED(pz_scatter_bf16, scatter<bf16>)
PACKED(pz_scatter_fp32, scatter<float>)
}
