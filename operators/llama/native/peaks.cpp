// What a run's share of the machine's limit is held against: products of bytes in registers, and reading of memory, as
// fast as a thread can. operators/llama/limits.py has the threads and the clock.
#include <immintrin.h>
#include "packed.h"

namespace {

constexpr int CHAINS = 12;  // independent sums, so that a product need not wait for the one before
constexpr int64_t PRODUCTS = CHAINS << 17;  // vectors of a round

// Multiplies PRODUCTS vectors as the fastest kernels do: AVX2 has to add in 32 bits, too, but not each product. The
// empty statements keep the compiler from computing equal products once.
#define ROUND(NAME, TARGET, VECTOR, ZERO, PRODUCT)                                       \
    __attribute__((target(TARGET), noinline)) void NAME() {                              \
        VECTOR sums[CHAINS], weights = ZERO, inputs = ZERO;                              \
        asm volatile("" : "+v"(inputs));                                                 \
        for (auto & sum : sums) sum = ZERO;                                              \
        for (int64_t i = 0; i < PRODUCTS / CHAINS; i++) {                                \
            _Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++) {                  \
                asm volatile("" : "+v"(weights));                                        \
                sums[c] = PRODUCT;                                                       \
            }                                                                            \
        }                                                                                \
        for (auto & sum : sums) asm volatile("" : : "v"(sum));                           \
    }
ROUND(vnni_512, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(), _mm512_dpbusd_epi32(sums[c], weights, inputs))
ROUND(vnni_256, "avx2,avxvnni", __m256i, _mm256_setzero_si256(), _mm256_dpbusd_avx_epi32(sums[c], weights, inputs))
ROUND(avx2, "avx2", __m256i, _mm256_setzero_si256(), _mm256_add_epi16(sums[c], _mm256_maddubs_epi16(weights, inputs)))

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Computes `times` rounds of products of two bytes that are added to 32 bits, by the best instruction of this CPU. Returns
// how many products that were; 0: it has not even AVX2.
EXPORT int64_t kernels_products(int64_t times) {
    if (!KERNELS_AVX2.runs()) return 0;
    void (*const round)() = KERNELS_AVX512VNNI.runs() ? vnni_512 : KERNELS_AVXVNNI.runs() ? vnni_256 : avx2;
    for (int64_t i = 0; i < times; i++) round();
    return times * PRODUCTS * (round == vnni_512 ? 64 : 32);
}

// Reads `bytes` bytes, `times` times. Returns how many that were. (memchr reads a third slower.)
EXPORT int64_t kernels_read(const uint64_t * from, int64_t bytes, int64_t times) {
    uint64_t sum = 0;
    for (int64_t time = 0; time < times; time++) {
        for (int64_t i = 0; i < bytes / 8; i++) sum += from[i];
        asm volatile("" : "+r"(sum) : : "memory");
    }
    return times * bytes;
}
