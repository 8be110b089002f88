// out = x . codes for bf16 activations, by products of 16-bit integers: they take half the instructions that fp32 takes, and
// codes need no more than a mask on their way.
// Each piece of a row, a group of the weight or 128 inputs of it, becomes integers of 16 bits times a power of two: exact for
// numbers of at least 1/128 of the piece's largest, and off by 2^-16 of the largest at most for the others, far less than bf16
// rounded off before. Integer sums are exact; a piece's scale, and its minimum times the sum of its activations, follow in
// fp32, piece by piece. A row goes through the same operations in the same order wherever it stands.
#pragma once
#include <vector>

#include "group_encode.h"
#include "pool.h"

namespace group_words {

constexpr int kVectors = 2;                  // of sums a row: two panels with AVX-512, otherwise one
constexpr int kPanels = kVectors / kParts;   // that are worked on together
constexpr int kStep = 8;                     // inputs
constexpr int kLongRows = 32;                // from which on a slice takes so long that more of them share it out better
constexpr int kSlicesOfLong = 8;             // a thread
constexpr size_t kBlockBytes = 384 << 10;    // of activations that stay in the second-level cache
constexpr size_t kNearBytes = 64 << 10;      // of the next panel that are asked for while the present one is worked on
constexpr size_t kAheadBytes = 2048;         // along a panel that is too long for that
constexpr size_t kFetchedFirst = 4096;       // bytes of a panel

// sums + words . pair, products of the two 16-bit integers in each lane.
inline VecI dot(VecI sums, VecI words, VecI pair) {
#if defined(__AVX512VNNI__)
    return reinterpret_cast<VecI>(_mm512_dpwssd_epi32(
        reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(words), reinterpret_cast<__m512i>(pair)));
#elif defined(__AVX512BW__)
    return sums + reinterpret_cast<VecI>(_mm512_madd_epi16(reinterpret_cast<__m512i>(words), reinterpret_cast<__m512i>(pair)));
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return reinterpret_cast<VecI>(_mm256_dpwssd_avx_epi32(
        reinterpret_cast<__m256i>(sums), reinterpret_cast<__m256i>(words), reinterpret_cast<__m256i>(pair)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return sums + reinterpret_cast<VecI>(_mm256_madd_epi16(reinterpret_cast<__m256i>(words), reinterpret_cast<__m256i>(pair)));
#elif defined(__SSE2__) && !defined(__AVX512F__)
    __m128i a[2], b[2];
    std::memcpy(a, &words, sizeof a);
    std::memcpy(b, &pair, sizeof b);
    for (int i = 0; i < 2; ++i) a[i] = _mm_madd_epi16(a[i], b[i]);
    VecI products;
    std::memcpy(&products, a, sizeof products);
    return sums + products;
#else
    return sums + ((words << 16) >> 16) * ((pair << 16) >> 16) + (words >> 16) * (pair >> 16);
#endif
}

// The pairs of inputs of some panels as 16-bit integers, straight from the codes.
template <int Bits>
struct FromCodes {
    const uint8_t* codes;
    size_t panel_bytes;
    ptrdiff_t ahead;  // the distance of what is asked for meanwhile

    // Vector v of pair j of a step.
    VecI words(int v, int j) const {
        const uint8_t* panel = codes + size_t(v / kParts) * panel_bytes;
        if constexpr (Bits == 4) {
            VecU word;
            std::memcpy(&word, panel + sizeof(uint32_t) * kLanes * (v % kParts), sizeof word);
            return reinterpret_cast<VecI>((word >> (4 * j)) & 0x000f000fu);
        } else {
            const uint8_t* bytes = panel + 2 * kPanel * j + 2 * kLanes * (v % kParts);
#if defined(__AVX512BW__)
            return reinterpret_cast<VecI>(_mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes))));
#elif defined(__AVX2__) && !defined(__AVX512F__)
            return reinterpret_cast<VecI>(_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))));
#else
            VecH pairs;
            std::memcpy(&pairs, bytes, sizeof pairs);
            const VecU wide = __builtin_convertvector(pairs, VecU);
            return reinterpret_cast<VecI>((wide & 0xffu) | ((wide & 0xff00u) << 8));
#endif
        }
    }
    void next() {
        constexpr int kBytes = kStep * kPanel * Bits / 8;
        for (int i = 0; i < kPanels; ++i)
            for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(codes + i * panel_bytes + line + ahead);
        codes += kBytes;
    }
};

// totals[m][v] += the product of R rows with some panels. scales: of the panels, [panel][group].
template <int R, int Bits>
__attribute__((noinline)) void add_pieces(
    const Pieces& pieces, FromCodes<Bits> codes, const PanelScale* scales, size_t groups, Encoded rows, Vec* totals) {
    const int inputs = pieces.inputs, group_size = pieces.group_size;
    for (int end = group_size, begin = 0; begin < inputs; begin = end, end = std::min(end + group_size, inputs), ++scales) {
        for (int left = end - begin; left > 0; left -= kPiece) {
            VecI sums[R][kVectors] = {};
            for (int inside = std::min(left, kPiece); inside > 0; inside -= kStep, codes.next()) {
#pragma GCC unroll 4
                for (int j = 0; j < kStep / 2; ++j, rows.pairs += rows.apart) {
                    VecI words[kVectors];
#pragma GCC unroll 2
                    for (int v = 0; v < kVectors; ++v) words[v] = codes.words(v, j);
#pragma GCC unroll 8
                    for (int m = 0; m < R; ++m) {
                        const VecI pair = VecI{} + rows.pairs[m];
#pragma GCC unroll 2
                        for (int v = 0; v < kVectors; ++v) sums[m][v] = dot(sums[m][v], words[v], pair);
                    }
                }
            }
#pragma GCC unroll 8
            for (int m = 0; m < R; ++m) {
                const Vec factor = splat(rows.factors[m]), own = splat(rows.factors[rows.apart + m]);
#pragma GCC unroll 2
                for (int v = 0; v < kVectors; ++v) {
                    const PanelScale& group = scales[v / kParts * groups];
                    Vec& sum = totals[m * kVectors + v];
                    const Vec with_minimum = fma(own, group.minimum[v % kParts], sum);
                    sum = fma(__builtin_convertvector(sums[m][v], Vec) * factor, group.scale[v % kParts], with_minimum);
                }
            }
            rows.factors += 2 * rows.apart;
        }
    }
}

// What a thread works in.
struct Workspace {
    std::vector<PanelScale> scales;
    std::vector<Vec> totals, results;
};

// What one block of rows multiplies.
class Product {
  public:
    Product(const GroupProduct& part, const Encoded& rows)
        : part_(part), weight_(part.weight), pieces_(part.weight), rows_(rows), groups_(part.weight.groups()) {}

    // Panels `first` to `last`. What this thread goes on with is likely to begin at panel `then`.
    template <int Bits>
    void multiply(int first, int last, int then) const {
        static thread_local Workspace work;
        work.scales.resize(kPanels * groups_);
        work.totals.resize(size_t(part_.rows + kRows) * kVectors);
        work.results.resize(size_t(part_.rows) * kParts);
        const ScaleReader scales(weight_, 0.0f);
        const size_t bytes = weight_.panel_bytes();
        for (int panel = first; panel < last; panel += kPanels) {
            const bool both = panel + kPanels <= last;
            const int next = panel + kPanels < last ? panel + kPanels : then;
            for (int i = 0; i < kPanels; ++i)
                scales.read(both ? panel + i : panel, work.scales.data() + i * groups_, next + i);
            std::fill(work.totals.begin(), work.totals.end(), Vec{});
            const uint8_t* codes = weight_.codes + panel * bytes;
            const FromCodes<Bits> source{
                codes, both ? bytes : 0, bytes > kNearBytes ? ptrdiff_t(kAheadBytes) : (next - panel) * ptrdiff_t(bytes)};
            all_rows(source, work);
            for (int i = 0; i < (both ? kPanels : 1); ++i) finish(panel + i, i, work);
        }
    }

  private:
    // Codes are expanded anew for each tile of rows: that costs less than keeping them expanded.
    template <int Bits>
    void all_rows(const FromCodes<Bits>& codes, Workspace& work) const {
        int m = 0;
        for (; m + kRows <= part_.rows; m += kRows) add<kRows>(codes, m, work);
        const int left = part_.rows - m;
        if (left > 4)
            add<kRows>(codes, m, work);
        else if (left > 2)
            add<4>(codes, m, work);
        else if (left == 2)
            add<2>(codes, m, work);
        else if (left == 1)
            add<1>(codes, m, work);
    }

    template <int R, int Bits>
    void add(const FromCodes<Bits>& codes, int row, Workspace& work) const {
        Vec* totals = work.totals.data() + row * kVectors;
        add_pieces<R>(pieces_, codes, work.scales.data(), groups_, rows_.tile(row / kRows), totals);
    }

    void finish(int panel, int which, Workspace& work) const {
        for (int m = 0; m < part_.rows; ++m)
            for (int p = 0; p < kParts; ++p) work.results[m * kParts + p] = work.totals[m * kVectors + which * kParts + p];
        part_.finish(0, part_.rows, panel, work.results.data());
    }

    const GroupProduct& part_;
    const GroupWeight& weight_;
    const Pieces pieces_;
    const Encoded& rows_;
    const size_t groups_;
};

// Asks for the beginning of what a thread multiplies first: nobody did while it worked on something else.
inline void fetch(const GroupWeight& weight, int panel) {
    const size_t bytes = weight.panel_bytes();
    const uint8_t* codes = weight.codes + panel * bytes;
    for (size_t line = 0; line < std::min(bytes, kFetchedFirst); line += 64)
        for (int i = 0; i < kPanels; ++i) __builtin_prefetch(codes + i * bytes + line);
}

inline void multiply(const GroupProduct& product) {
    static thread_local std::vector<int32_t> pairs;
    static thread_local std::vector<float> factors;
    const GroupWeight& weight = product.weight;
    const Pieces pieces(weight);
    const int padded = weight.padded_inputs(), panels = weight.panels();
    const int steps = (panels + kPanels - 1) / kPanels;
    const int threads = Pool::instance().size();
    const int per_thread = product.rows > kLongRows ? kSlicesOfLong : kGroupSlicesPerThread;
    const int slices = std::min(steps, threads * per_thread);
    const int block = std::max(64, int(kBlockBytes / sizeof(int16_t)) / padded / kRows * kRows);
    for (int first = 0; first < product.rows; first += block) {
        const GroupProduct part = product.part(first, std::min(block, product.rows - first));
        const size_t tiles = (part.rows + kRows - 1) / kRows;
        const size_t apart = part.rows <= 2 ? part.rows : part.rows <= 4 ? 4 : kRows;
        const size_t tile_pairs = padded / 2 * apart, tile_factors = 2 * pieces.count * apart;
        pairs.resize(tiles * tile_pairs);
        factors.resize(tiles * tile_factors);
        const Encoded rows{pairs.data(), factors.data(), apart, tile_pairs, tile_factors};
        Pool::instance().run(int(tiles), [&](int tile) {  // whole ones: its rows share lines of the cache
            for (int m = tile * kRows; m < std::min(part.rows, (tile + 1) * kRows); ++m) encode_row(part, pieces, m, rows);
        });
        const Product block_product(part, rows);
        Pool::instance().run(slices, [&](int slice) {
            const auto edge = [&](int i) { return std::min(panels, kPanels * int(int64_t(steps) * i / slices)); };
            const int begin = edge(slice), end = edge(slice + 1);
            const int then = slice + threads < slices ? edge(slice + threads) : begin;
            if (slice < threads) fetch(weight, begin);
            if (weight.bits == 4)
                block_product.multiply<4>(begin, end, then);
            else
                block_product.multiply<8>(begin, end, then);
        });
    }
}

}  // namespace group_words
