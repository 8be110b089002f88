// out = x . codes for bf16 activations, by products of integers: of 16 bits they take half the instructions that fp32 takes, of
// 8 bits a quarter, and codes need no more than a mask on their way.
// Each piece of a row, a group of the weight or a part of one, becomes integers with a scale of its own (group_encode.h).
// Integer sums are exact; a piece's scale, and its minimum times the sum of its activations, follow in fp32, piece by piece. A
// row goes through the same operations in the same order wherever it stands.
#pragma once
#include <array>
#include <atomic>
#include <type_traits>
#include <utility>
#include <vector>

#include "group_dot.h"
#include "pool.h"

namespace group_integers {

constexpr int kVectors = 2;                  // of sums a row: two panels with AVX-512, otherwise one
constexpr int kPanels = kVectors / kParts;   // that are worked on together
constexpr int kStep = 8;                     // inputs
constexpr int kRows = kLanes == 16 ? 8 : 4;  // most that are multiplied together: their sums stay in registers
constexpr int kLongRows = 32;                // from which on a slice takes so long that more of them share it out better
constexpr int kSlicesOfLong = 8;             // a thread
constexpr int kOwnRows = 16;                 // up to which each thread encodes all rows for itself: that is done sooner than
                                             // lines of the cache move from one core to the other
constexpr size_t kBlockBytes = 384 << 10;    // of activations that stay in the second-level cache
constexpr size_t kNearBytes = 64 << 10;      // of the next panel that are asked for while the present one is worked on
constexpr size_t kAheadBytes = 2048;         // along a panel that is too long for that
constexpr size_t kFetchedFirst = 4096;       // bytes of a panel

// The inputs of some panels as integers, straight from the codes.
template <int Bits>
struct FromCodes {
    const uint8_t* codes;
    size_t panel_bytes;
    ptrdiff_t ahead;  // the distance of what is asked for meanwhile

    // Vector v of pair j of a step, each code in 16 bits.
    VecI lanes(Words, int v, int j) const {
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

    // Vector v of four inputs of a step, each code in 8 bits.
    VecI lanes(Bytes, int v, int j) const {
        const uint8_t* panel = codes + size_t(v / kParts) * panel_bytes;
        if constexpr (Bits == 4) {
            VecU word;
            std::memcpy(&word, panel + sizeof(uint32_t) * kLanes * (v % kParts), sizeof word);
            return reinterpret_cast<VecI>((word >> (4 * j)) & 0x0f0f0f0fu);
        } else {
            const uint8_t* pairs = panel + 4 * kPanel * j + 2 * kLanes * (v % kParts);  // of each output, then the next ones
#if defined(__AVX512VNNI__)
            const __m512i side_by_side = _mm512_loadu_si512(pairs);
            return reinterpret_cast<VecI>(_mm512_permutexvar_epi16(_mm512_load_si512(kInterleaved.places), side_by_side));
#elif PIZARRA_BYTES == 4
            const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pairs));
            const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pairs + 2 * kPanel));
            return reinterpret_cast<VecI>(
                _mm256_set_m128i(_mm_unpackhi_epi16(first, second), _mm_unpacklo_epi16(first, second)));
#endif
        }
    }
    struct alignas(64) Interleaved {
        int16_t places[32] = {};
        constexpr Interleaved() {
            for (int i = 0; i < 32; ++i) places[i] = int16_t(i / 2 + i % 2 * 16);
        }
    };
    static constexpr Interleaved kInterleaved{};

    void next() {
        constexpr int kBytes = kStep * kPanel * Bits / 8;
        for (int i = 0; i < kPanels; ++i)
            for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(codes + i * panel_bytes + line + ahead);
        codes += kBytes;
    }
};

// Scales and minima of some panels, group by group, as they were read into memory, [panel][group].
struct ReadScales {
    const PanelScale* group;
    size_t groups;

    void get(Vec* scale, Vec* minimum) const {
        for (int v = 0; v < kVectors; ++v) {
            const PanelScale& read = group[v / kParts * groups];
            scale[v] = read.scale[v % kParts], minimum[v] = read.minimum[v % kParts];
        }
    }
    void next() { ++group; }
};

// The same straight from the weight, where they are fp16 and there is no more to them than minima, or one zero.
struct HalfScales {
    const uint16_t *scales, *minima;
    size_t panel;     // how far one lies from the next
    ptrdiff_t ahead;  // the distance of what is asked for meanwhile
    float zero;

    static bool fit(const GroupWeight& weight) {
        return weight.scale_type == kScaleFp16 && !weight.zero && !weight.sub_scale && weight.sub_groups == 1;
    }
    HalfScales(const GroupWeight& weight, int first, int next, bool both)
        : scales(static_cast<const uint16_t*>(weight.scale)), minima(static_cast<const uint16_t*>(weight.minimum)),
          panel(size_t(weight.groups()) * kPanel), ahead((next - first) * ptrdiff_t(panel)),
          zero(-float(weight.constant_zero)) {
        scales += first * panel;
        if (minima) minima += first * panel;
        if (!both) panel = 0;
    }

    // Asks for those of the next panels too: a few at a time, between the codes, hold nothing up.
    void get(Vec* scale, Vec* minimum) const {
        for (int v = 0; v < kVectors; ++v) {
            const size_t at = v / kParts * panel + v % kParts * kLanes;
            scale[v] = load_fp16(scales + at);
            minimum[v] = minima ? load_fp16(minima + at) : scale[v] * zero;
        }
        for (int i = 0; i < kPanels; ++i) {
            __builtin_prefetch(scales + i * panel + ahead);
            if (minima) __builtin_prefetch(minima + i * panel + ahead);
        }
    }
    void next() {
        scales += kPanel;
        if (minima) minima += kPanel;
    }
};

// Where rows that lie `apart` bytes from each other are, in few registers: a row's place is the sum of two of them, one times
// 2 or not, which an instruction makes on its own.
struct RowPlaces {
    const char *low, *high;  // the first row and the fifth
    ptrdiff_t apart, thrice;

    template <typename T>
    RowPlaces(const T* first, size_t distance, int rows)
        : low(reinterpret_cast<const char*>(first)), apart(ptrdiff_t(distance * sizeof(T))), thrice(3 * apart) {
#if defined(__GNUC__)
        asm("" : "+r"(thrice));  // or else it works out every row's place for itself
#endif
        high = low + (rows > 4 ? 4 * apart : 0);
    }

    template <typename T>
    T at(int row) const {
        const char* base = row < 4 ? low : high;
        const int rest = row % 4;
        T value;
        std::memcpy(&value, base + (rest == 3 ? thrice : rest * apart), sizeof value);
        return value;
    }
    void forward(ptrdiff_t bytes) { low += bytes, high += bytes; }
};

// totals[m][v] += the product of R rows with some panels.
template <typename Kind, int R, int Bits, typename Scales>
__attribute__((noinline)) void add_pieces(
    const Pieces& pieces, FromCodes<Bits> codes, Scales scales, Encoded rows, Vec* totals) {
    const int inputs = pieces.inputs, group_size = pieces.group_size;
    constexpr int kLoads = kStep / kTogether<Kind>;  // of a row in a step
    RowPlaces numbers(rows.numbers, rows.row_numbers, R), factors(rows.factors, rows.row_factors, R);
    for (int end = group_size, begin = 0; begin < inputs; begin = end, end = std::min(end + group_size, inputs)) {
        for (int left = end - begin; left > 0; left -= Kind::kPiece) {
            VecI sums[R][kVectors] = {};
            for (int inside = std::min(left, Kind::kPiece); inside > 0; inside -= kStep, codes.next()) {
#pragma GCC unroll 4
                for (int j = 0; j < kLoads; ++j, numbers.forward(sizeof(int32_t))) {
                    VecI lanes[kVectors];
#pragma GCC unroll 2
                    for (int v = 0; v < kVectors; ++v) lanes[v] = codes.lanes(Kind{}, v, j);
#pragma GCC unroll 8
                    for (int m = 0; m < R; ++m) {
                        const VecI own = VecI{} + numbers.at<int32_t>(m);
#pragma GCC unroll 2
                        for (int v = 0; v < kVectors; ++v) sums[m][v] = dot(Kind{}, sums[m][v], lanes[v], own);
                    }
                }
            }
            Vec scale[kVectors], minimum[kVectors];
            scales.get(scale, minimum);
#pragma GCC unroll 8
            for (int m = 0; m < R; ++m) {
                const auto [power, added] = factors.at<std::array<float, 2>>(m);
                const Vec factor = splat(power), own = splat(added);
#pragma GCC unroll 2
                for (int v = 0; v < kVectors; ++v) {
                    Vec& sum = totals[m * kVectors + v];
                    const Vec with_minimum = fma(own, minimum[v], sum);
                    sum = fma(__builtin_convertvector(whole(Kind{}, sums[m][v]), Vec) * factor, scale[v], with_minimum);
                }
            }
            factors.forward(2 * sizeof(float));
            asm volatile("" ::: "memory");  // else totals are kept in registers that the sums need
        }
        scales.next();
    }
}

// What a thread works in.
struct Workspace {
    std::vector<PanelScale> scales;
    std::vector<Vec> totals;
};

// What one block of rows multiplies.
template <typename Kind>
class Product {
  public:
    Product(const GroupProduct& part, const Pieces& pieces, const Encoded& rows)
        : part_(part), weight_(part.weight), pieces_(pieces), rows_(rows), groups_(part.weight.groups()) {}

    // Panels `first` to `last`. What this thread goes on with is likely to begin at panel `then`.
    void multiply(int first, int last, int then) const {
        if (weight_.bits == 4)
            multiply_codes<4>(first, last, then);
        else if constexpr (multiplies(Kind{}, 8))
            multiply_codes<8>(first, last, then);
    }

  private:
    template <int Bits>
    void multiply_codes(int first, int last, int then) const {
        if (HalfScales::fit(weight_))
            multiply_by<Bits, HalfScales>(first, last, then);
        else
            multiply_by<Bits, ReadScales>(first, last, then);
    }

    template <int Bits, typename Scales>
    void multiply_by(int first, int last, int then) const {
        static thread_local Workspace work;
        work.totals.resize(size_t(part_.rows) * kVectors);
        const size_t bytes = weight_.panel_bytes();
        for (int panel = first; panel < last; panel += kPanels) {
            const bool both = panel + kPanels <= last;
            const int next = panel + kPanels < last ? panel + kPanels : then;
            std::fill(work.totals.begin(), work.totals.end(), Vec{});
            const uint8_t* codes = weight_.codes + panel * bytes;
            const FromCodes<Bits> source{
                codes, both ? bytes : 0, bytes > kNearBytes ? ptrdiff_t(kAheadBytes) : (next - panel) * ptrdiff_t(bytes)};
            if constexpr (std::is_same_v<Scales, HalfScales>)
                all_rows(source, HalfScales(weight_, panel, next, both), work.totals.data());
            else
                all_rows(source, read_scales(panel, next, both, work), work.totals.data());
            for (int i = 0; i < (both ? kPanels : 1); ++i)
                part_.finish(0, part_.rows, panel + i, work.totals.data() + i * kParts, kVectors);
        }
    }

    ReadScales read_scales(int panel, int next, bool both, Workspace& work) const {
        const ScaleReader scales(weight_, 0.0f);
        work.scales.resize(kPanels * groups_);
        for (int i = 0; i < kPanels; ++i)
            scales.read(both ? panel + i : panel, work.scales.data() + i * groups_, next + i);
        return {work.scales.data(), groups_};
    }

    // In tiles of about the same number of rows. Codes are expanded anew for each: that costs less than keeping them expanded.
    template <int Bits, typename Scales>
    void all_rows(const FromCodes<Bits>& codes, const Scales& scales, Vec* totals) const {
        using Add = void (*)(const Pieces&, FromCodes<Bits>, Scales, Encoded, Vec*);
        static constexpr auto kAdd = []<int... R>(std::integer_sequence<int, R...>) {
            return std::array<Add, kRows>{add_pieces<Kind, R + 1, Bits, Scales>...};
        }(std::make_integer_sequence<int, kRows>());
        const int tiles = (part_.rows + kRows - 1) / kRows;
        for (int tile = 0; tile < tiles; ++tile) {
            const int begin = part_.rows * tile / tiles, end = part_.rows * (tile + 1) / tiles;
            kAdd[end - begin - 1](pieces_, codes, scales, rows_.from(begin), totals + begin * kVectors);
        }
    }

    const GroupProduct& part_;
    const GroupWeight& weight_;
    const Pieces& pieces_;
    const Encoded rows_;
    const size_t groups_;
};

// Asks for the beginning of what a thread multiplies first: nobody did while it worked on something else.
inline void fetch(const GroupWeight& weight, int panel) {
    const size_t bytes = weight.panel_bytes();
    const uint8_t* codes = weight.codes + panel * bytes;
    for (size_t line = 0; line < std::min(bytes, kFetchedFirst); line += 64)
        for (int i = 0; i < kPanels; ++i) __builtin_prefetch(codes + i * bytes + line);
}

// Rows of activations as integers, in a thread's memory, which holds those of one product at a time.
template <typename Kind>
class EncodedRows {
  public:
    // Room for the rows of a product.
    const Encoded& place(int rows, const Pieces& pieces) {
        const size_t row_numbers = lines_apart(pieces.inputs / kTogether<Kind>), row_factors = lines_apart(2 * pieces.count);
        rows_ = {numbers_.at_least(rows * row_numbers), factors_.at_least(rows * row_factors), row_numbers, row_factors};
        return rows_;
    }

    // All rows of the product with that number, unless they are there.
    const Encoded& own(uint64_t number, const GroupProduct& part, const Pieces& pieces) {
        if (number == number_) return rows_;
        place(part.rows, pieces);
        for (int m = 0; m < part.rows; ++m) encode_row<Kind>(part, pieces, m, rows_);
        number_ = number;
        return rows_;
    }

  private:
    // The distance of rows of `count` numbers of 32 bits: an odd number of lines of the cache, so that rows do not fall upon
    // the same place of it.
    static size_t lines_apart(size_t count) { return ((count + 15) / 16 | 1) * 16; }

    Scratch<int32_t> numbers_;
    Scratch<float> factors_;
    Encoded rows_{};
    uint64_t number_ = 0;
};

template <typename Kind>
inline void multiply_as(const GroupProduct& product) {
    static std::atomic<uint64_t> products{0};
    static thread_local EncodedRows<Kind> shared;
    const GroupWeight& weight = product.weight;
    const Pieces pieces(weight, Kind::kPiece);
    const int padded = weight.padded_inputs(), panels = weight.panels();
    const int steps = (panels + kPanels - 1) / kPanels;
    const int threads = Pool::instance().size();
    const int per_thread = product.rows > kLongRows ? kSlicesOfLong : kGroupSlicesPerThread;
    const int slices = std::min(steps, threads * per_thread);
    const int block = std::max(64, int(kBlockBytes / sizeof(typename Kind::Number)) / padded / kRows * kRows);
    for (int first = 0; first < product.rows; first += block) {
        const GroupProduct part = product.part(first, std::min(block, product.rows - first));
        const uint64_t number = products.fetch_add(1) + 1;
        const bool each = part.rows <= kOwnRows;
        const Encoded* all = each ? nullptr : &shared.place(part.rows, pieces);
        const int shares = each ? 0 : std::min(part.rows, kSlicesOfLong * threads);
        Pool::instance().run(shares, [&](int share) {
            const int last = part.rows * (share + 1) / shares;
            for (int m = part.rows * share / shares; m < last; ++m) encode_row<Kind>(part, pieces, m, *all);
        });
        Pool::instance().run(slices, [&](int slice) {
            static thread_local EncodedRows<Kind> own;
            const auto edge = [&](int i) {  // the longer ones first: threads then have as much of them in all
                return std::min(panels, kPanels * int((int64_t(steps) * i + slices - 1) / slices));
            };
            const int begin = edge(slice), end = edge(slice + 1);
            const int then = slice + threads < slices ? edge(slice + threads) : begin;
            if (slice < threads) fetch(weight, begin);
            Product<Kind>(part, pieces, each ? own.own(number, part, pieces) : *all).multiply(begin, end, then);
        });
    }
}

inline void multiply(const GroupProduct& product) {
    const GroupWeight& weight = product.weight;
    if constexpr (multiplies(Bytes{}, 4))  // else they multiply no codes at all
        if (weight.activation_bits == 8 && multiplies(Bytes{}, weight.bits)) return multiply_as<Bytes>(product);
    multiply_as<Words>(product);
}

}  // namespace group_integers
