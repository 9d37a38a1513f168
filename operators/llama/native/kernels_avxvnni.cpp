// AVX-VNNI: 256 bits wide, with four products of unsigned and signed bytes added to 32 bits in one instruction.
#include "lanes_256.h"

namespace {
struct Lanes : Lanes256 {
    template <int MOST, int SHIFT, int FROM, int TO>
    static Floats dot(const Bytes * weights, const int32_t * inputs, const int32_t * minus_sum) {
        auto sum = start<SHIFT>(minus_sum);
#pragma GCC unroll 8
        for (int i = FROM; i < TO; i++) sum = _mm256_dpbusd_avx_epi32(sum, weights[i], _mm256_set1_epi32(inputs[i]));
        return _mm256_cvtepi32_ps(sum);
    }
};
bool runs() {  // GCC 12 has no name for the bit: leaf 7, subleaf 1, EAX bit 4
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
}  // namespace

#include "line.h"
#include "adapt.h"
#include "attend.h"
#include "tile.h"

extern const Kernels KERNELS_AVXVNNI = {"AVX-VNNI", runs, ALL_TILES, quantize, ATTENTION, ADAPTERS};
