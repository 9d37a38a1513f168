// Eight rows in vectors of 256 bits: all but the dot products, which AVX2 and AVX-VNNI have in unlike ways.
#include <cpuid.h>
#include <immintrin.h>
#include "packed.h"
#include "wide_256.h"

namespace {
bool has_avx2() {  // clang 16 has no name for F16C: leaf 1, ECX bit 29
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}

struct Lanes256 {
    static constexpr int COUNT = 8, WIDEST = 16;
    static constexpr bool PAIRS = false;
    using Bytes = __m256i;
    using Floats = __m256;
    using Small = __m128i;  // eight bytes

    static Bytes bytes(const uint8_t * from) { return _mm256_loadu_si256((const __m256i *) from); }
    static Bytes low(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
    static Bytes high(Bytes x) { return low(_mm256_srli_epi16(x, 4)); }
    template <int LEFT, int MASK> static Bytes with_bits(Bytes x, Bytes bits) {
        const auto moved = LEFT < 0 ? _mm256_srli_epi16(bits, -LEFT & 15) : _mm256_slli_epi16(bits, LEFT & 15);
        return _mm256_or_si256(x, _mm256_and_si256(moved, _mm256_set1_epi8(MASK)));
    }
    static Bytes table(const int8_t * values, int offset) {
        const auto shifted = _mm_add_epi8(_mm_loadu_si128((const __m128i *) values), _mm_set1_epi8((char) offset));
        return _mm256_broadcastsi128_si256(shifted);
    }
    static Bytes look_up(Bytes table, Bytes x) { return _mm256_shuffle_epi8(table, x); }
    static Floats halves(const uint16_t * from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) from)); }
    static Floats half_powers(const uint8_t * from) {  // 2 ** (byte - 128): denormal below 2
        const auto x = _mm256_cvtepu8_epi32(small(from));
        const auto normal = _mm256_slli_epi32(_mm256_sub_epi32(x, _mm256_set1_epi32(1)), 23);
        const auto denormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), x);
        const auto is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), x);
        return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, denormal, is_small));
    }
    static Small small(const void * from) { return _mm_loadl_epi64((const __m128i *) from); }
    static Small small_and(Small x, int mask) { return _mm_and_si128(x, _mm_set1_epi8((char) mask)); }
    static Small small_or(Small x, Small y) { return _mm_or_si128(x, y); }
    static Small small_shifted(Small x, int right, int mask) { return small_and(_mm_srli_epi16(x, right), mask); }
    static Floats from_small(Small x) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)); }
    static Floats from_signed(const int8_t * from) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(small(from))); }
    static Floats from_integer(const int32_t * from) { return _mm256_cvtepi32_ps(_mm256_set1_epi32(*from)); }
    static Floats all(const float * from) { return _mm256_broadcast_ss(from); }
    static Floats zero() { return _mm256_setzero_ps(); }
    static Floats multiply(Floats x, Floats y) { return _mm256_mul_ps(x, y); }
    static Floats add_product(Floats x, Floats y, Floats z) { return _mm256_fmadd_ps(x, y, z); }
    static void store(float * to, Floats x) { _mm256_storeu_ps(to, x); }
    template <int SHIFT> static __m256i start(const int32_t * minus_sum) {
        return SHIFT < 0 ? _mm256_setzero_si256() : _mm256_slli_epi32(_mm256_set1_epi32(*minus_sum), SHIFT & 31);
    }
};
}  // namespace
