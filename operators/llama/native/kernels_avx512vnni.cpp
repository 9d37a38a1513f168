// AVX-512 with VNNI: all 16 rows of a group in one vector, 27 of the 32 registers in use at 16 columns.
#include <immintrin.h>
#include "packed.h"
#include "wide_256.h"

namespace {
struct Lanes {
    static constexpr int COUNT = 16, WIDEST = 16;
    static constexpr bool PAIRS = true;
    using Bytes = __m512i;
    using Floats = __m512;
    using Small = __m128i;  // 16 bytes

    static Bytes bytes(const uint8_t * from) { return _mm512_loadu_si512(from); }
    static Bytes low(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
    static Bytes high(Bytes x) { return low(_mm512_srli_epi16(x, 4)); }
    template <int LEFT, int MASK> static Bytes with_bits(Bytes x, Bytes bits) {
        const auto moved = LEFT < 0 ? _mm512_srli_epi16(bits, -LEFT & 15) : _mm512_slli_epi16(bits, LEFT & 15);
        return _mm512_or_si512(x, _mm512_and_si512(moved, _mm512_set1_epi8(MASK)));
    }
    static Bytes table(const int8_t * values, int offset) {
        const auto shifted = _mm_add_epi8(_mm_loadu_si128((const __m128i *) values), _mm_set1_epi8((char) offset));
        return _mm512_broadcast_i32x4(shifted);
    }
    static Bytes look_up(Bytes table, Bytes x) { return _mm512_shuffle_epi8(table, x); }
    static Floats halves(const uint16_t * from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) from)); }
    static Floats half_powers(const uint8_t * from) {  // 2 ** (byte - 128): denormal below 2
        const auto x = _mm512_cvtepu8_epi32(small(from));
        const auto normal = _mm512_slli_epi32(_mm512_sub_epi32(x, _mm512_set1_epi32(1)), 23);
        const auto denormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), x);
        const auto is_small = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(2));
        return _mm512_castsi512_ps(_mm512_mask_blend_epi32(is_small, normal, denormal));
    }
    static Small small(const void * from) { return _mm_loadu_si128((const __m128i *) from); }
    static Small small_and(Small x, int mask) { return _mm_and_si128(x, _mm_set1_epi8((char) mask)); }
    static Small small_or(Small x, Small y) { return _mm_or_si128(x, y); }
    static Small small_shifted(Small x, int right, int mask) { return small_and(_mm_srli_epi16(x, right), mask); }
    static Floats from_small(Small x) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x)); }
    static Floats from_signed(const int8_t * from) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(small(from))); }
    static Floats from_integer(const int32_t * from) { return _mm512_cvtepi32_ps(_mm512_set1_epi32(*from)); }
    static Bytes all(const int32_t * from) { return _mm512_set1_epi32(*from); }
    static Floats all(const float * from) { return _mm512_set1_ps(*from); }
    static Floats zero() { return _mm512_setzero_ps(); }
    static Floats multiply(Floats x, Floats y) { return _mm512_mul_ps(x, y); }
    static Floats add_product(Floats x, Floats y, Floats z) { return _mm512_fmadd_ps(x, y, z); }
    static void store(float * to, Floats x) { _mm512_storeu_ps(to, x); }
    // Four products of each row, with activations that are broadcast from memory as a part of the instruction: compilers
    // make two of it. With that and two sums at once, which wait less for each other, it was up to twice as fast.
    static void add_fours(__m512i & sum, Bytes weights, const int32_t * inputs) {
        asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*inputs));
    }
    template <int SHIFT> static Bytes start(int minus_sum) { return _mm512_slli_epi32(_mm512_set1_epi32(minus_sum), SHIFT); }
    static Bytes add_fours(Bytes sum, Bytes weights, Bytes inputs) { return _mm512_dpbusd_epi32(sum, weights, inputs); }
    static Floats floats(Bytes sums) { return _mm512_cvtepi32_ps(sums); }
    template <int MOST, int SHIFT, int FROM, int TO>
    static Floats dot(const Bytes * weights, const int32_t * inputs, const int32_t * minus_sum) {
        auto sum = SHIFT < 0 ? _mm512_setzero_si512() : _mm512_slli_epi32(_mm512_set1_epi32(*minus_sum), SHIFT & 31);
        auto other = _mm512_setzero_si512();
        constexpr int MIDDLE = (FROM + TO) / 2;
#pragma GCC unroll 4
        for (int i = FROM; i < MIDDLE; i++) {
            add_fours(sum, weights[i], inputs + i);
            add_fours(other, weights[i + MIDDLE - FROM], inputs + i + MIDDLE - FROM);
        }
        return _mm512_cvtepi32_ps(_mm512_add_epi32(sum, other));
    }
};

// Sixteen floats, for adapters.
struct Line {
    static constexpr int TOKENS = 4, LINES = 4;  // with what is loaded, 24 of 32 registers
    __m512 x;

    static Line load(const float * from) { return {_mm512_loadu_ps(from)}; }
    static Line all(float value) { return {_mm512_set1_ps(value)}; }
    static Line add(Line a, Line b) { return {_mm512_add_ps(a.x, b.x)}; }
    static Line add_product(Line a, Line b, Line c) { return {_mm512_fmadd_ps(a.x, b.x, c.x)}; }
    void store(float * to) const { _mm512_storeu_ps(to, x); }
    Wide halves() const {
        const auto high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
        return {_mm256_add_ps(_mm512_castps512_ps256(x), high)};
    }
};
bool runs() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}
}  // namespace

#include "adapt.h"
#include "attend.h"
#include "tile.h"

extern const Kernels KERNELS_AVX512VNNI = {"AVX-512 VNNI", runs, ALL_TILES, quantize, ATTENTION, ADAPTERS};
