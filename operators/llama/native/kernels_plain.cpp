// Plain C++, one row at a time: the reference that the other kernels are held against, to the bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include "packed.h"

namespace {
struct Lanes {
    static constexpr int COUNT = 1, WIDEST = 1;
    static constexpr bool PAIRS = false;
    struct Bytes { uint8_t at[4]; };
    using Floats = float;
    using Small = uint8_t;
    using Table = const int8_t *;

    static Bytes bytes(const uint8_t * from) { return {{from[0], from[1], from[2], from[3]}}; }
    template <class F> static Bytes each(Bytes x, F f) { return {{f(x.at[0]), f(x.at[1]), f(x.at[2]), f(x.at[3])}}; }
    static Bytes low(Bytes x) { return each(x, [](uint8_t v) { return (uint8_t) (v & 15); }); }
    static Bytes high(Bytes x) { return each(x, [](uint8_t v) { return (uint8_t) (v >> 4); }); }
    template <int LEFT, int MASK> static Bytes with_bits(Bytes x, Bytes bits) {
        Bytes out;
        for (int k = 0; k < 4; k++) out.at[k] = x.at[k] | ((LEFT < 0 ? bits.at[k] >> (-LEFT & 7) : bits.at[k] << (LEFT & 7)) & MASK);
        return out;
    }
    struct Values { const int8_t * values; int offset; };
    static Values table(const int8_t * values, int offset) { return {values, offset}; }
    static Bytes look_up(Values table, Bytes x) {
        return each(x, [table](uint8_t v) { return (uint8_t) (table.values[v] + table.offset); });
    }
    static float halves(const uint16_t * from) {
        const uint32_t sign = (*from & 0x8000u) << 16, exponent = *from >> 10 & 31, rest = *from & 1023;
        if (exponent == 0) return (sign ? -1.0f : 1.0f) * std::ldexp((float) rest, -24);
        const uint32_t bits = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | rest << 13;
        float out;
        memcpy(&out, &bits, 4);
        return out;
    }
    static float half_powers(const uint8_t * from) { return std::ldexp(1.0f, (int) *from - 128); }
    static Small small(const uint8_t * from) { return *from; }
    static Small small_and(Small x, int mask) { return x & mask; }
    static Small small_or(Small x, Small y) { return x | y; }
    static Small small_shifted(Small x, int right, int mask) { return x >> right & mask; }
    static float from_small(Small x) { return x; }
    static float from_signed(const int8_t * from) { return *from; }
    static float from_integer(const int32_t * from) { return (float) *from; }
    static float all(const float * from) { return *from; }
    static float zero() { return 0; }
    static float multiply(float x, float y) { return x * y; }
    static float add_product(float x, float y, float z) { return std::fma(x, y, z); }
    static void store(float * to, float x) { *to = x; }
    template <int MOST, int SHIFT, int FROM, int TO>
    static float dot(const Bytes * weights, const int32_t * inputs, const int32_t * minus_sum) {
        int32_t sum = SHIFT < 0 ? 0 : *minus_sum * (1 << (SHIFT & 31));
        for (int i = FROM; i < TO; i++) {
            for (int k = 0; k < 4; k++) sum += weights[i].at[k] * ((const int8_t *) (inputs + i))[k];
        }
        return (float) sum;
    }
};

// Eight floats, for attention.
struct Wide {
    static constexpr int QUERIES_AT_ONCE = 1, PARTS = 1;
    float at[LANES];

    template <class F> static Wide each(F f) {
        Wide out;
        for (int i = 0; i < LANES; i++) out.at[i] = f(i);
        return out;
    }
    static Wide load(const float * from) { return each([=](int i) { return from[i]; }); }
    static Wide load(const uint16_t * from) { return each([=](int i) { return Lanes::halves(from + i); }); }
    void store(float * to) const { memcpy(to, at, sizeof at); }
    Wide kept() { return *this; }
    static Wide all(float x) { return each([=](int) { return x; }); }
    float first() const { return at[0]; }
    static Wide add(Wide a, Wide b) { return each([&](int i) { return a.at[i] + b.at[i]; }); }
    static Wide multiply(Wide a, Wide b) { return each([&](int i) { return a.at[i] * b.at[i]; }); }
    static Wide divide(Wide a, Wide b) { return each([&](int i) { return a.at[i] / b.at[i]; }); }
    static Wide larger(Wide a, Wide b) { return each([&](int i) { return a.at[i] > b.at[i] ? a.at[i] : b.at[i]; }); }
    static Wide smaller(Wide a, Wide b) { return each([&](int i) { return a.at[i] < b.at[i] ? a.at[i] : b.at[i]; }); }
    static Wide add_product(Wide a, Wide b, Wide c) { return each([&](int i) { return std::fma(a.at[i], b.at[i], c.at[i]); }); }
    static Wide zero_below(Wide a, float limit, Wide b) { return each([&](int i) { return a.at[i] < limit ? 0 : b.at[i]; }); }
    static Wide two_to(Wide a) {
        uint32_t bits[LANES];
        memcpy(bits, a.at, sizeof bits);
        for (auto & each : bits) each = (each << 23) + (127u << 23);
        memcpy(a.at, bits, sizeof bits);
        return a;
    }
    float largest() const { return *std::max_element(at, at + LANES); }
    float total() const {  // of neighbours, and theirs, and theirs
        return ((at[0] + at[1]) + (at[2] + at[3])) + ((at[4] + at[5]) + (at[6] + at[7]));
    }
    static void store_totals(const Wide (&of)[4], float * to) {
        for (int i = 0; i < 4; i++) to[i] = of[i].total();
    }
};
bool runs() { return true; }
}  // namespace

#include "line.h"
#include "adapt.h"
#include "attend.h"
#include "tile.h"

extern const Kernels KERNELS_PLAIN = {"plain C++", runs, ALL_TILES, quantize, ATTENTION, ADAPTERS};
