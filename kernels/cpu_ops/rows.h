// Rows of an op that is small beside a product: in slices that are worth a thread's while.
#pragma once
#include <algorithm>
#include <cstdint>

#include "pool.h"

// body(row) for all rows, each of which takes some row_ns nanoseconds.
template <typename Body>
inline void for_rows(int rows, int row_ns, const Body& body) {
    constexpr int64_t kAloneNs = 1500, kSliceNs = 4000;  // handing rows over takes some 200
    const int64_t all_ns = int64_t(rows) * row_ns;
    const int threads = Pool::instance().size(), share = (rows + threads - 1) / threads;
    const int most = int(std::max<int64_t>(1, kSliceNs / row_ns));
    const int together = all_ns <= kAloneNs ? std::max(rows, 1) : std::min(most, share);
    Pool::instance().run((rows + together - 1) / together, [&](int slice) {
        const int last = std::min(rows, (slice + 1) * together);
        for (int row = slice * together; row < last; ++row) body(row);
    });
}
