// Vectors of floats in the compiler's own vector types, and bf16 on top of them. AVX-512, AVX2, NEON or plain C++ alike:
// the width follows what the compiler was told the processor has.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t VecI __attribute__((vector_size(4 * kLanes)));
typedef uint32_t VecU __attribute__((vector_size(4 * kLanes)));
typedef uint16_t VecH __attribute__((vector_size(2 * kLanes)));
typedef int8_t VecB __attribute__((vector_size(kLanes)));

// Every lane by its number, as the pack that `body` takes.
template <typename V, typename Body>
__attribute__((always_inline)) inline auto for_lane_numbers(const Body& body) {
    return body(std::make_integer_sequence<int, sizeof(V) / sizeof(V{}[0])>{});
}

// Lane i of the result: lane kOrder(i) of a; where that counts on from the last of a, one of b. Spelled as each compiler
// knows it: clang has no __builtin_shuffle, and gcc before 12 no __builtin_shufflevector.
template <auto kOrder, typename V>
__attribute__((always_inline)) inline V shuffle(V a, V b) {
    return for_lane_numbers<V>([&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
#if defined(__clang__)
        return __builtin_shufflevector(a, b, kOrder(I)...);
#else
        return __builtin_shuffle(a, b, decltype(a < b){kOrder(I)...});
#endif
    });
}

// The same of one vector, where `shuffled`; else it as it is.
template <auto kOrder, typename V>
__attribute__((always_inline)) inline V shuffle_if(bool shuffled, V v) {
#if defined(__clang__)
    return shuffled ? shuffle<kOrder>(v, v) : v;
#else
    decltype(v < v) order;
    for (int i = 0; i < int(sizeof(V) / sizeof(v[0])); ++i) order[i] = shuffled ? kOrder(i) : i;
    return __builtin_shuffle(v, order);
#endif
}

// Half of a vector: the lower one is 0, the upper one 1.
template <int kWhich, typename Half, typename V>
__attribute__((always_inline)) inline Half half(V v) {
#if defined(__clang__) || __GNUC__ >= 12
    return for_lane_numbers<Half>([&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
        return __builtin_shufflevector(v, v, I + int(sizeof...(I)) * kWhich...);
    });
#else
    Half lanes;
    std::memcpy(&lanes, reinterpret_cast<const char*>(&v) + kWhich * sizeof lanes, sizeof lanes);
    return lanes;
#endif
}

struct bf16 {
    uint16_t bits;
};

inline float widen(float x) { return x; }
inline float widen(bf16 x) {
    uint32_t word = static_cast<uint32_t>(x.bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}

// Round to nearest, ties to even; a NaN stays a NaN.
inline void narrow(float value, float* out) { *out = value; }
inline void narrow(float value, bf16* out) {
    uint32_t word;
    std::memcpy(&word, &value, 4);
    if ((word & 0x7fffffffu) > 0x7f800000u) {
        out->bits = static_cast<uint16_t>((word >> 16) | 0x40u);
        return;
    }
    out->bits = static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
}

inline Vec load(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline Vec load(const bf16* p) {
    VecH half;
    std::memcpy(&half, p, sizeof half);
#if defined(__AVX512F__)  // spelled out: gcc widens 16 bits in several steps
    return reinterpret_cast<Vec>(reinterpret_cast<VecU>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(half))) << 16);
#elif defined(__AVX2__)
    return reinterpret_cast<Vec>(reinterpret_cast<VecU>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(half))) << 16);
#else
    return reinterpret_cast<Vec>(__builtin_convertvector(half, VecU) << 16);
#endif
}
inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
inline void store(bf16* p, Vec v) {
    const VecU word = reinterpret_cast<VecU>(v);
    const VecU rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    const VecU quiet = (word >> 16) | 0x40u;
    const VecH half = __builtin_convertvector((word & 0x7fffffffu) > 0x7f800000u ? quiet : rounded, VecH);
    std::memcpy(p, &half, sizeof half);
}

// The first `count` lanes from memory, the others zero.
template <typename T>
inline Vec load_part(const T* p, int count) {
    float lanes[kLanes] = {};
    for (int i = 0; i < count; ++i) lanes[i] = widen(p[i]);
    return load(lanes);
}

template <typename T>
inline void store_part(T* p, Vec v, int count) {
    for (int i = 0; i < count; ++i) narrow(v[i], p + i);
}

// body(offset, load, store) over `count` elements in steps of the vector width, the last step partial.
template <typename Body>
inline void for_lanes(int count, const Body& body) {
    const int whole = count - count % kLanes;
    for (int i = 0; i < whole; i += kLanes)
        body(i, [](const auto* p) { return load(p); }, [](auto* p, Vec v) { store(p, v); });
    const int rest = count - whole;
    if (rest > 0)
        body(whole, [=](const auto* p) { return load_part(p, rest); }, [=](auto* p, Vec v) { store_part(p, v, rest); });
}

inline Vec splat(float x) { return x - Vec{}; }  // minus zero changes nothing, and the compiler knows it

// a * b + c in one rounding where the processor has it. Spelled out, and contraction is off for the rest: left to itself the
// compiler fuses in one tile and not in another, and a row's bits would depend on the tile it falls into.
inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec>(_mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__FMA__)
    return reinterpret_cast<Vec>(_mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#elif defined(__aarch64__)
    Vec result;
    for (int i = 0; i < kLanes; ++i) result[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return result;
#else
    return a * b + c;
#endif
}

typedef float Vec8 __attribute__((vector_size(32)));
typedef float Vec4 __attribute__((vector_size(16)));

// Sum of the lanes in one fixed order: halves onto halves.
inline float sum(Vec v) {
#if defined(__AVX512F__)
    const Vec8 eight = half<0, Vec8>(v) + half<1, Vec8>(v);
#else
    const Vec8 eight = v;
#endif
    const Vec4 four = half<0, Vec4>(eight) + half<1, Vec4>(eight);
    return (four[0] + four[2]) + (four[1] + four[3]);
}
