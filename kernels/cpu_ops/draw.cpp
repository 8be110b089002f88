// One token a row: see draw.h. Where rows alone would leave threads idle, a row is cut into parts; which is best of all does
// not depend on how it was cut.
#include "draw.h"
#include "packed.h"
#include "pool.h"

namespace {

constexpr int kPart = 16384;  // tokens of a part, a multiple of kTokens
constexpr int kMostParts = 64;

void draw(int64_t* out, const float* scores, const int64_t* addresses, int rows, int V) {
    const auto part_of = [&](int row, int first, int end) {
        return draw_part(scores + size_t(row) * V, first, end, Address(addresses + size_t(row) * 4));
    };
    const auto wanted = [&](int row) { return addresses[size_t(row) * 4 + 3] >= 0; };
    const int parts = (V + kPart - 1) / kPart;
    if (rows >= 2 * Pool::instance().size() || rows * parts > kMostParts) {
        Pool::instance().run(rows, [&](int row) {
            if (wanted(row)) out[row] = part_of(row, 0, V).token;
        });
        return;
    }
    Best best[kMostParts];
    Pool::instance().run(rows * parts, [&](int slice) {
        const int row = slice / parts, first = slice % parts * kPart;
        if (wanted(row)) best[slice] = part_of(row, first, std::min(first + kPart, V));
    });
    for (int row = 0; row < rows; ++row) {
        Best all = best[row * parts];
        for (int part = 1; part < parts; ++part) {
            const Best& other = best[row * parts + part];
            if (other.sum > all.sum) all = other;  // the tokens of an earlier part have lower ids
        }
        if (wanted(row)) out[row] = all.token;
    }
}

}  // namespace

extern "C" {
PACKED(pz_draw, draw)
}
