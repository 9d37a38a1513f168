// AVX2. Its product of unsigned with signed bytes adds two of them in 16 bits and saturates. Weights of up to 6 bits
// fit, and small ones are added in 16 bits for as long as they do; of weights of 8 bits the sign goes to the activation.
//
// From three columns up both halves of a group are multiplied at once (`in_blocks`), four columns at a time: an activation
// that is loaded is used twice, a vector of weights four times, where `tile` waits for loads, one of each a product.
#include <algorithm>

#include "lanes_256.h"

namespace {
struct Lanes : Lanes256 {
    static constexpr int WIDEST = 2;

    // Sums of two products, of at most MOST times 127 each, that 16 bits hold.
    template <int MOST> static constexpr int FIT = MOST > 63 ? 1 : 32767 / (2 * 127 * MOST);

    template <int MOST, int SHIFT, int FROM, int TO>
    static Floats dot(const Bytes * weights, const int32_t * inputs, const int32_t * minus_sum) {
        const auto ones = _mm256_set1_epi16(1);
        auto sum = start<MOST == 255 ? -1 : SHIFT>(minus_sum);
#pragma GCC unroll 8
        for (int i = FROM; i < TO; i += FIT<MOST>) {
            auto pairs = _mm256_setzero_si256();
            for (int j = i; j < i + FIT<MOST> && j < TO; j++) pairs = _mm256_add_epi16(pairs, two<MOST>(weights[j], inputs[j]));
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

namespace {
constexpr int AT_ONCE = 4;        // columns: their sums, and the weights of both halves, are what 16 registers hold
constexpr int MOST_COLUMNS = 32;  // for which a unit is opened once
constexpr int HALVES = 2;         // of a group, of eight rows each

// A unit of weights as products take it: opened, and of eight bits sizes and signs apart.
template <class Format> struct Unit {
    static constexpr bool IS_SIGNED = Format::MOST > 63;
    static constexpr int SUMS = Format::SCALES;
    Lanes::Bytes sizes[HALVES][8], signs[HALVES][IS_SIGNED ? 8 : 1];
    Lanes::Floats scales[HALVES][SUMS], minimums[HALVES];

    Unit(const typename Format::Packed & packed, int u, const char * ahead) {
        for (int half = 0; half < HALVES; half++) {
            const Format format{packed, half, ahead};
            if (half == 0) format.template fetch<1>(0);
            format.open(u, sizes[half]);
            for (int sum = 0; sum < SUMS; sum++) scales[half][sum] = format.scale(SUMS * u + sum);
            if (Format::SHIFT < 0) minimums[half] = format.minimum(u);
            if constexpr (IS_SIGNED) {
                for (int i = 0; i < 8; i++) {
                    signs[half][i] = _mm256_xor_si256(sizes[half][i], _mm256_set1_epi8((char) 128));  // without the offset
                    sizes[half][i] = _mm256_abs_epi8(signs[half][i]);
                }
            }
        }
    }

    // Sets `out` to the sums of vectors FROM to TO, less the offset. The empty statements keep compilers from adding in
    // another order, for which they would need more registers.
    template <int FROM, int TO, int COLUMNS>
    void dots(const Block * const * inputs, int at, int32_t Block::*minus, Lanes::Floats (&out)[COLUMNS][HALVES]) const {
        constexpr int EACH = std::min(Lanes::FIT<Format::MOST>, TO - FROM);  // vectors whose products are added in 16 bits
        const auto ones = _mm256_set1_epi16(1);
        __m256i sums[COLUMNS][HALVES];
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; c++) sums[c][0] = sums[c][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int begin = FROM; begin < TO; begin += EACH) {
            __m256i pairs[COLUMNS][HALVES];
#pragma GCC unroll 4
            for (int c = 0; c < COLUMNS; c++) pairs[c][0] = pairs[c][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
            for (int i = begin; i < begin + EACH; i++) {
#pragma GCC unroll 4
                for (int c = 0; c < COLUMNS; c++) {
                    const auto four = _mm256_set1_epi32(fours(inputs[c][at])[i]);
                    for (int half = 0; half < HALVES; half++) {
                        const auto theirs = IS_SIGNED ? _mm256_sign_epi8(four, signs[half][i * IS_SIGNED]) : four;
                        const auto two = _mm256_maddubs_epi16(sizes[half][i], theirs);
                        if constexpr (EACH == 1) {
                            auto sum = _mm256_add_epi32(sums[c][half], _mm256_madd_epi16(two, ones));
                            asm("" : "+x"(sum));
                            sums[c][half] = sum;
                        } else {
                            auto pair = _mm256_add_epi16(pairs[c][half], two);
                            asm("" : "+x"(pair));
                            pairs[c][half] = pair;
                        }
                    }
                }
            }
            if (EACH == 1) continue;
#pragma GCC unroll 4
            for (int c = 0; c < COLUMNS; c++) {
                for (int half = 0; half < HALVES; half++) {
                    sums[c][half] = _mm256_add_epi32(sums[c][half], _mm256_madd_epi16(pairs[c][half], ones));
                }
            }
        }
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; c++) {
            const auto first = Lanes::start<IS_SIGNED ? -1 : Format::SHIFT>(&(inputs[c][at].*minus));
            for (int half = 0; half < HALVES; half++) {
                out[c][half] = _mm256_cvtepi32_ps(IS_SIGNED ? sums[c][half] : _mm256_add_epi32(sums[c][half], first));
            }
        }
    }

    // Adds the unit to `totals` of some columns, by the chain of `add` in tile.h.
    template <int COLUMNS> void add(const Block * const * inputs, int at, Lanes::Floats (*totals)[HALVES]) const {
        asm volatile("" : : "r"(this) : "memory");  // it stays in memory: registers are for sums
        Lanes::Floats sums[COLUMNS][HALVES], others[COLUMNS][HALVES];
        if constexpr (SUMS == 1) {
            dots<0, 8>(inputs, at, &Block::minus_sum, sums);
        } else {
            dots<0, 4>(inputs, at, &Block::minus_low, sums), dots<4, 8>(inputs, at, &Block::minus_high, others);
        }
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; c++) {
            const auto theirs = Lanes::all(&inputs[c][at].scale);
            for (int half = 0; half < HALVES; half++) {
                auto & total = totals[c][half];
                const auto sum = sums[c][half], scale = scales[half][0];
                if constexpr (SUMS == 2) {
                    const auto both = Lanes::add_product(scales[half][1], others[c][half], Lanes::multiply(scale, sum));
                    total = Lanes::add_product(both, theirs, total);
                } else if constexpr (Format::SHIFT < 0) {
                    const auto less = Lanes::multiply(minimums[half], Lanes::from_integer(&inputs[c][at].minus_sum));
                    total = Lanes::add_product(Lanes::add_product(scale, sum, less), theirs, total);
                } else {
                    total = Lanes::add_product(sum, Lanes::multiply(scale, theirs), total);
                }
            }
        }
    }
};

template <class Format>
void in_blocks(const void * groups, int count, const Block * const * inputs, int blocks, float * const * outputs, int columns) {
    const int in_group = blocks / Format::UNITS;
    for (int begin = 0; begin < columns; begin += MOST_COLUMNS) {
        const int end = std::min(begin + MOST_COLUMNS, columns);
        for (int i = 0; i < count; i++) {
            const auto * group = (const typename Format::Packed *) groups + i * in_group;
            Lanes::Floats totals[MOST_COLUMNS][HALVES] = {};
            for (int at = 0; at < blocks; at++) {
                const char * ahead = (const char *) group + at * (sizeof(*group) / Format::UNITS) + AHEAD;
                const Unit<Format> unit(group[at / Format::UNITS], at % Format::UNITS, ahead);
                int c = begin;
                for (; c + AT_ONCE <= end; c += AT_ONCE) unit.template add<AT_ONCE>(inputs + c, at, totals + c - begin);
                if (end - c == 3) unit.template add<3>(inputs + c, at, totals + c - begin);
                if (end - c == 2) unit.template add<2>(inputs + c, at, totals + c - begin);
                if (end - c == 1) unit.template add<1>(inputs + c, at, totals + c - begin);
            }
            for (int c = begin; c < end; c++) {
                for (int half = 0; half < HALVES; half++) Lanes::store(outputs[c] + i * ROWS + half * 8, totals[c - begin][half]);
            }
        }
    }
}
}  // namespace

extern const Kernels KERNELS_AVX2 = {"AVX2", has_avx2, ALL_TILES, quantize, ATTENTION, ADAPTERS};
