// What this machine can do at most: products of bytes in registers, and reading of memory. docs/metrics.md says of a
// run how near it came.
#include <immintrin.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "packed.h"

namespace {

constexpr int CHAINS = 12;  // independent sums, so that a product need not wait for the one before
constexpr int64_t PRODUCTS = CHAINS << 17;  // vectors that a thread multiplies in a round
constexpr std::chrono::duration<double> LONG_ENOUGH(0.25);
constexpr int64_t LEAST_BYTES = 128 << 20, MOST_BYTES = 1 << 30, PAGE = 4096;
constexpr int PARTS = 4;  // of the memory, one for a round: short ones are less often disturbed

// Multiplies PRODUCTS vectors as the fastest kernels do: AVX2 has to add in 32 bits, too, but not each product. The empty
// statements keep the compiler from computing equal products once.
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

// Returns the most of many rounds, by second: all threads begin a round together, and it ends with the last of them. The
// first, number 0, is not timed.
template <class Round> double most_a_second(int threads, double work_of_round, Round round) {
    pthread_barrier_t together;
    pthread_barrier_init(&together, nullptr, threads);
    double most = 0;
    bool goes_on = true;
    const auto run = [&](int thread) {
        round(thread, 0);
        const auto began = std::chrono::steady_clock::now();
        for (int number = 1; goes_on; number++) {
            pthread_barrier_wait(&together);
            const auto start = std::chrono::steady_clock::now();
            round(thread, number);
            pthread_barrier_wait(&together);
            const auto end = std::chrono::steady_clock::now();
            if (thread == 0) {
                most = std::max(most, work_of_round / std::chrono::duration<double>(end - start).count());
                goes_on = end - began < LONG_ENOUGH;
            }
            pthread_barrier_wait(&together);  // and with it the others see whether it goes on
        }
    };
    std::vector<std::thread> team;
    for (int thread = 1; thread < threads; thread++) team.emplace_back(run, thread);
    run(0);
    for (auto & each : team) each.join();
    pthread_barrier_destroy(&together);
    return most;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Products of two bytes that are added to 32 bits, a second, by the best instruction of this CPU; 0: it has not even AVX2.
EXPORT double kernels_peak_products(int threads) {
    void (*const round)() = KERNELS_AVX512VNNI.runs() ? vnni_512 : KERNELS_AVXVNNI.runs() ? vnni_256 : avx2;
    if (!KERNELS_AVX2.runs()) return 0;
    const double a_vector = round == vnni_512 ? 64 : 32;
    return most_a_second(threads, a_vector * PRODUCTS * threads, [round](int, int) { round(); });
}

// Bytes that all threads together read from memory a second, from a buffer that no cache can hold; 0: no room for one.
EXPORT double kernels_peak_bytes(int threads) {
    const int64_t cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const int64_t part = std::clamp(4 * cache, LEAST_BYTES, MOST_BYTES) / threads / PARTS / PAGE * PAGE;
    const int64_t each = part * PARTS, all = each * threads;
    void * memory = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 0;
    madvise(memory, all, MADV_HUGEPAGE);
    const double most = most_a_second(threads, (double) part * threads, [=](int thread, int number) {
        auto * mine = (char *) memory + thread * each;
        if (number == 0) std::fill_n(mine, each, 1);  // what was never written to is one page of zeros
        const auto * from = (const uint64_t *) (mine + number % PARTS * part);
        uint64_t sum = 0;
        for (int64_t i = 0; i < part / 8; i++) sum += from[i];
        asm volatile("" : : "r"(sum));
    });
    munmap(memory, all);
    return most;
}
