// Eight floats, for attention.
#include <immintrin.h>
#include "attention.h"

namespace {
struct Wide {
    __m256 x;
#ifdef __AVX512VL__
    static constexpr int QUERIES_AT_ONCE = 4, PARTS = 4;  // with four cells at once, what 32 registers hold
#else
    static constexpr int QUERIES_AT_ONCE = 2, PARTS = 4;  // and 16
#endif
    static Wide load(const float * from) { return {_mm256_loadu_ps(from)}; }
    static Wide load(const uint16_t * from) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) from))}; }
    void store(float * to) const { _mm256_storeu_ps(to, x); }
    Wide kept() {  // in a register, where compilers would read it again
        asm("" : "+v"(x));
        return *this;
    }
    static Wide all(float value) { return {_mm256_set1_ps(value)}; }
    float first() const { return _mm256_cvtss_f32(x); }
    static Wide add(Wide a, Wide b) { return {_mm256_add_ps(a.x, b.x)}; }
    static Wide multiply(Wide a, Wide b) { return {_mm256_mul_ps(a.x, b.x)}; }
    static Wide divide(Wide a, Wide b) { return {_mm256_div_ps(a.x, b.x)}; }
    static Wide larger(Wide a, Wide b) { return {_mm256_max_ps(a.x, b.x)}; }  // b if one is NaN, as below
    static Wide smaller(Wide a, Wide b) { return {_mm256_min_ps(a.x, b.x)}; }
    static Wide add_product(Wide a, Wide b, Wide c) { return {_mm256_fmadd_ps(a.x, b.x, c.x)}; }
    static Wide zero_below(Wide a, float limit, Wide b) {
        return {_mm256_and_ps(b.x, _mm256_cmp_ps(a.x, _mm256_set1_ps(limit), _CMP_NLT_UQ))};
    }
    static Wide two_to(Wide a) {  // the power that the last bits say
        const auto moved = _mm256_slli_epi32(_mm256_castps_si256(a.x), 23);
        return {_mm256_castsi256_ps(_mm256_add_epi32(moved, _mm256_set1_epi32(127 << 23)))};
    }
    float largest() const {
        auto y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        y = _mm_max_ps(y, _mm_movehl_ps(y, y));
        return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
    }
    static __m256 neighbours(Wide a, Wide b) {
        return _mm256_add_ps(_mm256_shuffle_ps(a.x, b.x, 0x88), _mm256_shuffle_ps(a.x, b.x, 0xdd));
    }
    static __m128 totals(const Wide (&of)[4]) {
        const auto sums = neighbours({neighbours(of[0], of[1])}, {neighbours(of[2], of[3])});
        return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
    }
    static void store_totals(const Wide (&of)[4], float * to) { _mm_storeu_ps(to, totals(of)); }
    float total() const { return _mm_cvtss_f32(totals({*this, *this, *this, *this})); }
};
}  // namespace
