// AVX2. Its product of unsigned with signed bytes adds two of them in 16 bits and saturates. Weights of up to 6 bits
// fit, and small ones are added in 16 bits for as long as they do; of weights of 8 bits the sign goes to the activation.
#include "lanes_256.h"

namespace {
struct Lanes : Lanes256 {
    template <int MOST, int SHIFT, int FROM, int TO>
    static Floats dot(const Bytes * weights, const int32_t * inputs, const int32_t * minus_sum) {
        constexpr int FIT = MOST > 63 ? 1 : 32767 / (2 * 127 * MOST);  // products of two that 16 bits hold
        const auto ones = _mm256_set1_epi16(1);
        auto sum = start<MOST == 255 ? -1 : SHIFT>(minus_sum);
#pragma GCC unroll 8
        for (int i = FROM; i < TO; i += FIT) {
            auto pairs = _mm256_setzero_si256();
            for (int j = i; j < i + FIT && j < TO; j++) pairs = _mm256_add_epi16(pairs, two<MOST>(weights[j], inputs[j]));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        }
        return _mm256_cvtepi32_ps(sum);
    }
    template <int MOST> static __m256i two(Bytes weights, int32_t inputs) {
        const auto four = _mm256_set1_epi32(inputs);
        if (MOST <= 63) return _mm256_maddubs_epi16(weights, four);
        const auto values = _mm256_xor_si256(weights, _mm256_set1_epi8((char) 128));  // without the offset
        return _mm256_maddubs_epi16(_mm256_abs_epi8(values), _mm256_sign_epi8(four, values));
    }
};
}  // namespace

#include "line.h"
#include "adapt.h"
#include "attend.h"
#include "tile.h"

extern const Kernels KERNELS_AVX2 = {"AVX2", has_avx2, ALL_TILES, quantize, ATTENTION, ADAPTERS};
