// The products of a group of 16 rows with up to 16 columns, written once for all instruction sets.
//
// Included by kernels_*.cpp, each of which has a class `Lanes` with its vectors. Each output is one chain of operations
// in one order, whatever the number of columns, and each operation is one that IEEE 754 defines (product, fused
// multiply-add, conversion of an integer): so the bits depend on neither the company of a row nor the instructions.
// The sums of 32 products are integers, and exact.
#include <cstring>
#include "packed.h"

namespace {  // of its own in each file: the linker must not take one instruction set's code for another's

constexpr int8_t NL_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t FP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice the numbers

// What the formats share: UNITS of a packed struct, largest stored value (MOST), log2 of the offset (SHIFT; -1: none
// but a minimum), SCALES of a unit. Each says how to `open` unit `u` into eight vectors, and its scales.
template <class P, int UNITS_OF, int MOST_OF, int SHIFT_OF> struct Stored {
    using Packed = P;
    static constexpr int UNITS = UNITS_OF, MOST = MOST_OF, SHIFT = SHIFT_OF, SCALES = 1;
    static constexpr bool IS_OPEN = false;
    const Packed & packed;
    const int part;  // of the rows of the group, so many as a vector has
    const char * const ahead;  // the weights that will be needed soon
    // Fetches the lines ahead that are column `c`'s: spread over all columns, they wait less for each other than at once.
    template <int COLUMNS> void fetch(int c) const {
        constexpr int LINES = (sizeof(P) / UNITS_OF + 63) / 64;
        if (part > 0) return;  // they are here since part 0
        for (int line = c * LINES / COLUMNS; line < (c + 1) * LINES / COLUMNS; line++) {
            asm volatile("prefetcht0 %0" : : "m"(ahead[64 * line]));  // compilers would move a __builtin_prefetch
        }
    }
    Lanes::Bytes bytes(const uint8_t * vector) const { return Lanes::bytes(vector + part * 4 * Lanes::COUNT); }
    Lanes::Small small(const uint8_t * of_rows) const { return Lanes::small(of_rows + part * Lanes::COUNT); }
    Lanes::Floats halves(const uint16_t * of_rows) const { return Lanes::halves(of_rows + part * Lanes::COUNT); }
    Lanes::Floats minimum(int) const { return Lanes::zero(); }
    void nibbles(const uint8_t (*vectors)[VECTOR], Lanes::Bytes * out) const {  // of bytes with two values each
        for (int i = 0; i < 4; i++) {
            const auto both = bytes(vectors[i]);
            out[i] = Lanes::low(both), out[i + 4] = Lanes::high(both);
        }
    }
    void look_up(const uint8_t (*vectors)[VECTOR], const int8_t * values, Lanes::Bytes * out) const {
        nibbles(vectors, out);
        const auto table = Lanes::table(values, 1 << SHIFT);
        for (int i = 0; i < 8; i++) out[i] = Lanes::look_up(table, out[i]);
    }
};

struct FormatQ8_0 : Stored<PackedQ8_0, 1, 255, 7> {
    static constexpr bool IS_OPEN = true;
    void open(int, Lanes::Bytes * out) const {
        for (int i = 0; i < 8; i++) out[i] = bytes(packed.values[i]);
    }
    Lanes::Floats scale(int) const { return halves(packed.scale); }
};

struct FormatQ4_0 : Stored<PackedQ4_0, 1, 15, 3> {
    void open(int, Lanes::Bytes * out) const { nibbles(packed.values, out); }
    Lanes::Floats scale(int) const { return halves(packed.scale); }
};

struct FormatIQ4_NL : Stored<PackedQ4_0, 1, 255, 7> {
    void open(int, Lanes::Bytes * out) const { look_up(packed.values, NL_VALUES, out); }
    Lanes::Floats scale(int) const { return halves(packed.scale); }
};

struct FormatMXFP4 : Stored<PackedMXFP4, 1, 31, 4> {
    void open(int, Lanes::Bytes * out) const { look_up(packed.values, FP4_VALUES, out); }
    Lanes::Floats scale(int) const { return Lanes::half_powers(packed.exponent + part * Lanes::COUNT); }
};

template <class P, int MOST> struct FormatK : Stored<P, 8, MOST, -1> {  // Q4_K, and what Q5_K shares with it
    using L = Lanes;
    Lanes::Small byte(int j) const { return this->small(this->packed.scales[j]); }
    Lanes::Floats scale(int u) const {
        const auto six = u < 4 ? L::small_and(byte(u), 63)
                               : L::small_or(L::small_and(byte(u + 4), 15), L::small_shifted(byte(u - 4), 2, 48));
        return Lanes::multiply(this->halves(this->packed.scale), Lanes::from_small(six));
    }
    Lanes::Floats minimum(int u) const {
        const auto six = u < 4 ? L::small_and(byte(u + 4), 63)
                               : L::small_or(L::small_shifted(byte(u + 4), 4, 15), L::small_shifted(byte(u), 2, 48));
        return Lanes::multiply(this->halves(this->packed.minimum), Lanes::from_small(six));
    }
};

struct FormatQ4_K : FormatK<PackedQ4_K, 15> {
    void open(int u, Lanes::Bytes * out) const { nibbles(packed.values[u], out); }
};

struct FormatQ5_K : FormatK<PackedQ5_K, 31> {
    void open(int u, Lanes::Bytes * out) const {
        nibbles(packed.values[u], out);
        const auto fifth = bytes(packed.fifth[u]);
        out[0] = Lanes::with_bits<4, 16>(out[0], fifth), out[1] = Lanes::with_bits<3, 16>(out[1], fifth);
        out[2] = Lanes::with_bits<2, 16>(out[2], fifth), out[3] = Lanes::with_bits<1, 16>(out[3], fifth);
        out[4] = Lanes::with_bits<0, 16>(out[4], fifth), out[5] = Lanes::with_bits<-1, 16>(out[5], fifth);
        out[6] = Lanes::with_bits<-2, 16>(out[6], fifth), out[7] = Lanes::with_bits<-3, 16>(out[7], fifth);
    }
};

struct FormatQ6_K : Stored<PackedQ6_K, 8, 63, 5> {
    static constexpr int SCALES = 2;  // of a unit
    void open(int u, Lanes::Bytes * out) const {
        nibbles(packed.values[u], out);
        for (int h = 0; h < 2; h++) {
            const auto upper = bytes(packed.upper[u][h]);
            auto * four = out + 4 * h;
            four[0] = Lanes::with_bits<4, 48>(four[0], upper), four[1] = Lanes::with_bits<2, 48>(four[1], upper);
            four[2] = Lanes::with_bits<0, 48>(four[2], upper), four[3] = Lanes::with_bits<-2, 48>(four[3], upper);
        }
    }
    Lanes::Floats scale(int half) const {
        return Lanes::multiply(halves(packed.scale), Lanes::from_signed(packed.scales[half] + part * Lanes::COUNT));
    }
};

inline const int32_t * fours(const Block & block) { return (const int32_t *) block.bytes; }

// One unit: total += (sum of products) * (scale * scale of the activations), or with a minimum
// total += (scale * (sum of products) - minimum * (sum of activations)) * scale of the activations
template <int COLUMNS, class Format>
inline void add(const Format & format, int u, int at, const Block * const * inputs, Lanes::Floats * totals) {
    Lanes::Bytes values[8];
    format.open(u, values);
    const auto scale = format.scale(u), minimum = format.minimum(u);
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; c++) {
        format.template fetch<COLUMNS>(c);
        const Block & block = inputs[c][at];
        const auto sum = Lanes::dot<Format::MOST, Format::SHIFT, 0, 8>(values, fours(block), &block.minus_sum);
        if (Format::SHIFT < 0) {
            const auto less = Lanes::multiply(minimum, Lanes::from_integer(&block.minus_sum));
            totals[c] = Lanes::add_product(Lanes::add_product(scale, sum, less), Lanes::all(&block.scale), totals[c]);
        } else {
            totals[c] = Lanes::add_product(sum, Lanes::multiply(scale, Lanes::all(&block.scale)), totals[c]);
        }
    }
}
// Two scales a unit: total += (scale 0 * (sum of the first 16) + scale 1 * (sum of the others)) * theirs
template <int COLUMNS>
inline void add(const FormatQ6_K & f, int u, int at, const Block * const * inputs, Lanes::Floats * totals) {
    Lanes::Bytes values[8];
    f.open(u, values);
    const auto first = f.scale(2 * u), second = f.scale(2 * u + 1);
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; c++) {
        f.template fetch<COLUMNS>(c);
        const Block & block = inputs[c][at];
        const auto low = Lanes::dot<63, 5, 0, 4>(values, fours(block), &block.minus_low);
        const auto high = Lanes::dot<63, 5, 4, 8>(values, fours(block), &block.minus_high);
        const auto both = Lanes::add_product(second, high, Lanes::multiply(first, low));
        totals[c] = Lanes::add_product(both, Lanes::all(&block.scale), totals[c]);
    }
}

constexpr int AHEAD = 8 * 544;  // bytes of weights that are fetched before they are needed

template <class Format, int COLUMNS>
void tile(const typename Format::Packed * group, const Block * const * inputs, int blocks, float * const * outputs, int row) {
    for (int part = 0; part < ROWS / Lanes::COUNT; part++) {
        Lanes::Floats totals[COLUMNS];
        for (int c = 0; c < COLUMNS; c++) totals[c] = Lanes::zero();
        for (int at = 0; at < blocks; at++) {
            const int u = at % Format::UNITS;
            const char * ahead = (const char *) group + at * (sizeof(*group) / Format::UNITS) + AHEAD;
            const Format format{group[at / Format::UNITS], part, ahead};
            add<COLUMNS>(format, u, at, inputs, totals);
        }
        for (int c = 0; c < COLUMNS; c++) Lanes::store(outputs[c] + row + part * Lanes::COUNT, totals[c]);
    }
}

constexpr int LINES = 4;  // that a pair fetches ahead, each unit

// Two groups at once, whose products share each activation that is loaded: loads are what `tile` waits for in prompts. For formats
// that need not be opened, and sets of instructions with registers for it. It fetches `ahead` into the second cache.
template <class Format, int COLUMNS, class L = Lanes>
void pair(const typename Format::Packed * group, const Block * const * inputs, int blocks, float * const * outputs, int row,
          const char * ahead) {
    typename L::Floats totals[2][COLUMNS];
    for (auto & of_group : totals) for (auto & total : of_group) total = L::zero();
    for (int at = 0; at < blocks; at++) {
        const Format first{group[at], 0, nullptr}, second{group[blocks + at], 0, nullptr};
        typename L::Bytes sums[2][COLUMNS];
#pragma GCC unroll 8
        for (int c = 0; c < COLUMNS; c++) sums[0][c] = sums[1][c] = L::template start<Format::SHIFT>(inputs[c][at].minus_sum);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            const auto values = first.bytes(first.packed.values[i]), others = second.bytes(second.packed.values[i]);
            if (i < LINES) asm volatile("prefetcht1 %0" : : "m"(ahead[64 * (at * LINES + i)]));
#pragma GCC unroll 8
            for (int c = 0; c < COLUMNS; c++) {
                const auto four = L::all(fours(inputs[c][at]) + i);
                sums[0][c] = L::add_fours(sums[0][c], values, four), sums[1][c] = L::add_fours(sums[1][c], others, four);
            }
        }
        const auto scale = first.scale(0), other = second.scale(0);
#pragma GCC unroll 8
        for (int c = 0; c < COLUMNS; c++) {
            const auto theirs = L::all(&inputs[c][at].scale);
            totals[0][c] = L::add_product(L::floats(sums[0][c]), L::multiply(scale, theirs), totals[0][c]);
            totals[1][c] = L::add_product(L::floats(sums[1][c]), L::multiply(other, theirs), totals[1][c]);
        }
    }
    for (int c = 0; c < COLUMNS; c++) {
        L::store(outputs[c] + row, totals[0][c]), L::store(outputs[c] + row + ROWS, totals[1][c]);
    }
}

// Computes more than two columns, where a class Lanes says that its tiles are of WIDEST 2: its file defines it.
template <class Format>
void in_blocks(const void * groups, int count, const Block * const * inputs, int blocks, float * const * outputs, int columns);

// Takes as many columns at once as there is a kernel for.
template <class Format>
void columns_of(const void * groups, int count, const Block * const * inputs, int blocks, float * const * outputs, int columns) {
    if constexpr (Lanes::WIDEST == 2) {
        if (columns > 2) return in_blocks<Format>(groups, count, inputs, blocks, outputs, columns);
    }
    const auto * group = (const typename Format::Packed *) groups;
    const int in_group = blocks / Format::UNITS;
    int paired = 0, taken;
#define TAKE(n, KERNEL) if (columns - c >= n) kernel = KERNEL<Format, n>, taken = n;
    if constexpr (Lanes::PAIRS && Format::IS_OPEN) {
        for (; columns > 16 && paired + 2 <= count; paired += 2) {  // up to 16 wait for memory, which tiles read faster
            const char * ahead = (const char *) (group + (paired + 2) * in_group);
            for (int c = 0; c < columns; c += taken, ahead += 64 * LINES * blocks) {
                auto * kernel = pair<Format, 1>;
                taken = 1;
                TAKE(6, pair) else TAKE(4, pair) else TAKE(2, pair)
                kernel(group + paired * in_group, inputs + c, blocks, outputs + c, paired * ROWS, ahead);
            }
        }
    }
    for (int c = 0; c < columns && paired < count; c += taken) {
        auto * kernel = tile<Format, 1>;
        taken = 1;
        if constexpr (Lanes::WIDEST == 16) {
            TAKE(16, tile) else TAKE(12, tile) else TAKE(8, tile) else TAKE(6, tile) else TAKE(4, tile) else TAKE(3, tile)
            else TAKE(2, tile)
        } else if constexpr (Lanes::WIDEST == 2) {
            TAKE(2, tile)
        }
        for (int i = paired; i < count; i++) kernel(group + i * in_group, inputs + c, blocks, outputs + c, i * ROWS);
    }
#undef TAKE
}

// Rounds to the nearest, ties to even, in blocks of 32; a block of less than 1e-30 is zero. In loops that compilers make
// vectors of.
void quantize(const float * values, Block * blocks, int count) {
    constexpr int32_t SIZE = 0x7fffffff, INFINITE = 0x7f800000;  // the bits of a size, which are in its order
    for (int b = 0; b < count; b++, values += UNIT) {
        int32_t bits[UNIT], whole[UNIT], largest = 0, sum = 0, low = 0;
        memcpy(bits, values, sizeof bits);
        for (int32_t each : bits) largest = (each & SIZE) > largest ? each & SIZE : largest;
        float most;
        memcpy(&most, &largest, sizeof most);
        const bool is_sound = largest < INFINITE && most >= 1e-30f;
        Block & block = blocks[b];
        block.scale = is_sound ? most / 127.0f : largest < INFINITE ? 0.0f : __builtin_nanf("");
        const float by = is_sound ? 127.0f / most : 0.0f;
        for (int i = 0; i < UNIT; i++) {
            const float scaled = values[i] * by + 12582912.0f;  // 1.5 * 2 ** 23: no fraction is left
            memcpy(whole + i, &scaled, sizeof scaled);
            whole[i] = is_sound ? whole[i] - 0x4b400000 : 0;  // its bits
        }
        for (int i = 0; i < UNIT; i++) block.bytes[i] = (int8_t) whole[i];
        for (int i = 0; i < UNIT; i++) sum += whole[i], low += i < UNIT / 2 ? whole[i] : 0;
        block.minus_low = -low, block.minus_high = low - sum, block.minus_sum = -sum;
    }
}

}  // namespace

#define ALL_TILES                                                                                            \
    {columns_of<FormatQ8_0>, columns_of<FormatQ4_0>, columns_of<FormatIQ4_NL>, columns_of<FormatMXFP4>,      \
     columns_of<FormatQ4_K>, columns_of<FormatQ5_K>, columns_of<FormatQ6_K>}
