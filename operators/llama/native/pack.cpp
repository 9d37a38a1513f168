// Packing: four values of a row are one word of a packed vector, so words are moved, not bytes.
#include "pack.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "ggml.h"
#define GGML_COMMON_DECL_C
#include "ggml-common.h"

namespace {

constexpr int64_t LEAST_BYTES = 1 << 20;  // that a thread is worth
constexpr uint32_t LOW = 0x0f0f0f0f;

uint32_t word(const void * from, int i) {
    uint32_t out;
    memcpy(&out, (const char *) from + 4 * i, 4);
    return out;
}

void put(uint8_t * vector, int row, uint32_t value) { memcpy(vector + 4 * row, &value, 4); }

void pack_row(const block_q8_0 & file, PackedQ8_0 & packed, int row) {
    packed.scale[row] = file.d;
    for (int i = 0; i < 8; i++) put(packed.values[i], row, word(file.qs, i) ^ 0x80808080);
}

template <class B> void pack_nibbles(const B & file, PackedQ4_0 & packed, int row) {
    packed.scale[row] = file.d;
    for (int i = 0; i < 4; i++) put(packed.values[i], row, word(file.qs, i));
}
void pack_row(const block_q4_0 & file, PackedQ4_0 & packed, int row) { pack_nibbles(file, packed, row); }
void pack_row(const block_iq4_nl & file, PackedQ4_0 & packed, int row) { pack_nibbles(file, packed, row); }

void pack_row(const block_mxfp4 & file, PackedMXFP4 & packed, int row) {
    packed.exponent[row] = file.e;
    for (int i = 0; i < 4; i++) put(packed.values[i], row, word(file.qs, i));
}

// What Q4_K and Q5_K share. Their file has two units in 32 bytes: one in the low halves, one in the high ones.
template <class B, class P> void pack_k(const B & file, P & packed, int row) {
    packed.scale[row] = file.d;
    packed.minimum[row] = file.dmin;
    for (int j = 0; j < 12; j++) packed.scales[j][row] = file.scales[j];
    for (int u = 0; u < 8; u++) {
        const uint8_t * two = file.qs + u / 2 * 32;
        const int right = u % 2 * 4;
        for (int i = 0; i < 4; i++) {
            put(packed.values[u][i], row, (word(two, i) >> right & LOW) | (word(two, i + 4) >> right & LOW) << 4);
        }
    }
}
void pack_row(const block_q4_K & file, PackedQ4_K & packed, int row) { pack_k(file, packed, row); }
void pack_row(const block_q5_K & file, PackedQ5_K & packed, int row) {
    pack_k(file, packed, row);
    for (int u = 0; u < 8; u++) {
        uint32_t fifth = 0;
        for (int i = 0; i < 8; i++) fifth |= (word(file.qh, i) >> u & 0x01010101) << i;
        put(packed.fifth[u], row, fifth);
    }
}

// Four units in 64 bytes of lower bits and 32 of upper ones.
void pack_row(const block_q6_K & file, PackedQ6_K & packed, int row) {
    packed.scale[row] = file.d;
    for (int j = 0; j < 16; j++) packed.scales[j][row] = file.scales[j];
    for (int u = 0; u < 8; u++) {
        const int z = u % 4, right = z / 2 * 4;
        const uint8_t * lower = file.ql + u / 4 * 64 + z % 2 * 32;
        const uint8_t * upper = file.qh + u / 4 * 32;
        for (int i = 0; i < 4; i++) {
            put(packed.values[u][i], row, (word(lower, i) >> right & LOW) | (word(lower, i + 4) >> right & LOW) << 4);
        }
        for (int h = 0; h < 2; h++) {
            uint32_t bits = 0;
            for (int i = 0; i < 4; i++) bits |= (word(upper, 4 * h + i) >> 2 * z & 0x03030303) << 2 * i;
            put(packed.upper[u][h], row, bits);
        }
    }
}

template <class B, class P>
void pack_groups(const void * file, void * packed, int64_t blocks, int64_t first, int64_t last) {
    for (int64_t group = first; group < last; group++) {
        for (int64_t b = 0; b < blocks; b++) {
            P & to = ((P *) packed)[group * blocks + b];
            for (int row = 0; row < ROWS; row++) pack_row(((const B *) file)[(group * ROWS + row) * blocks + b], to, row);
        }
    }
}

template <class B, class P> constexpr Format format(Type type, int values) {
    static_assert(sizeof(P) == ROWS * sizeof(B), "packed weights take what they take in the file");
    return {type, values, sizeof(B), sizeof(P)};
}

using PackGroups = void (*)(const void *, void *, int64_t, int64_t, int64_t);
constexpr PackGroups PACKS[TYPES] = {
    pack_groups<block_q8_0, PackedQ8_0>, pack_groups<block_q4_0, PackedQ4_0>, pack_groups<block_iq4_nl, PackedQ4_0>,
    pack_groups<block_mxfp4, PackedMXFP4>, pack_groups<block_q4_K, PackedQ4_K>, pack_groups<block_q5_K, PackedQ5_K>,
    pack_groups<block_q6_K, PackedQ6_K>};

}  // namespace

Format format_of(int ggml_type) {
    switch (ggml_type) {
        case GGML_TYPE_Q8_0: return format<block_q8_0, PackedQ8_0>(Q8_0, 32);
        case GGML_TYPE_Q4_0: return format<block_q4_0, PackedQ4_0>(Q4_0, 32);
        case GGML_TYPE_IQ4_NL: return format<block_iq4_nl, PackedQ4_0>(IQ4_NL, 32);
        case GGML_TYPE_MXFP4: return format<block_mxfp4, PackedMXFP4>(MXFP4, 32);
        case GGML_TYPE_Q4_K: return format<block_q4_K, PackedQ4_K>(Q4_K, 256);
        case GGML_TYPE_Q5_K: return format<block_q5_K, PackedQ5_K>(Q5_K, 256);
        case GGML_TYPE_Q6_K: return format<block_q6_K, PackedQ6_K>(Q6_K, 256);
        default: return {TYPES, 1, 0, 0};
    }
}

bool can_be_packed(const Format & format, int64_t values, int64_t rows) {
    return format.type != TYPES && values > 0 && rows > 0 && values % format.values == 0 && rows % ROWS == 0;
}

void pack(const Format & format, const void * file, void * packed, int64_t values, int64_t rows, int threads) {
    const int64_t groups = rows / ROWS, blocks = values / format.values;
    const int64_t worth = groups * blocks * (int64_t) format.packed_bytes / LEAST_BYTES;
    const int64_t team = std::max<int64_t>(1, std::min<int64_t>({threads, worth, groups}));
    std::vector<std::thread> others;
    for (int64_t t = 1; t < team; t++) {
        others.emplace_back(PACKS[format.type], file, packed, blocks, groups * t / team, groups * (t + 1) / team);
    }
    PACKS[format.type](file, packed, blocks, 0, groups / team);
    for (auto & other : others) other.join();
}
