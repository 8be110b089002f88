// Rows picked from a table: of an embedding, or of the hidden states whose tokens are wanted.
#include <cstring>

#include "packed.h"
#include "pool.h"
#include "simd.h"

namespace {

constexpr size_t kSliceBytes = 32 << 10;  // of rows that one claimed slice copies, one row at least

template <typename T>
void gather(T* out, const T* table, const int64_t* rows, int count, int width, int ldo, int ldt) {
    const int together = int(kSliceBytes / (sizeof(T) * width + 1)) + 1;
    Pool::instance().run((count + together - 1) / together, [&](int slice) {
        for (int i = slice * together; i < count && i < (slice + 1) * together; ++i)
            std::memcpy(out + size_t(i) * ldo, table + size_t(rows[i]) * ldt, sizeof(T) * width);
    });
}

}  // namespace

extern "C" {
PACKED(pz_gather_bf16, gather<bf16>)
PACKED(pz_gather_fp32, gather<float>)
}
