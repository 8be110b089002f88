// Products of rows with rows: the heart of linear layers without AMX.
// Every output sums over K in the same lanes and the same order, whatever tile it falls into: that is what makes a row's
// result independent of the rows beside it.
#pragma once
#include "simd.h"

// out[m][n] = x[m] . w[n] for a tile of MR rows of x (fp32, stride ldx) and NR rows of w (stride ldw).
template <int MR, int NR, typename W>
inline void dot_tile(const float* x, size_t ldx, const W* w, size_t ldw, int K, float out[MR][NR]) {
    Vec acc[MR][NR] = {};
    const int whole = K - K % kLanes;
    for (int k = 0; k < whole; k += kLanes) {
        Vec wide[NR];
        for (int n = 0; n < NR; ++n) {
            wide[n] = load(w + n * ldw + k);
            if (sizeof(W) == sizeof(bf16)) __builtin_prefetch(w + (n + NR) * ldw + k);  // straight from memory: the next rows
        }
        for (int m = 0; m < MR; ++m) {
            const Vec row = load(x + m * ldx + k);
            for (int n = 0; n < NR; ++n) acc[m][n] = fma(row, wide[n], acc[m][n]);
        }
    }
    if (whole < K) {
        for (int m = 0; m < MR; ++m) {
            const Vec row = load_part(x + m * ldx + whole, K - whole);
            for (int n = 0; n < NR; ++n) acc[m][n] = fma(row, load_part(w + n * ldw + whole, K - whole), acc[m][n]);
        }
    }
    for (int m = 0; m < MR; ++m)
        for (int n = 0; n < NR; ++n) out[m][n] = sum(acc[m][n]);
}
