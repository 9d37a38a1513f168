// Packed weights: the layouts that the kernels read, and the blocks of activations that they are multiplied with.
//
// Weights lie in groups of 16 rows (output values), so that one vector has 16 rows side by side. A unit is 32 values of
// each row of a group, as eight vectors of 64 bytes: byte 4 * r + k of vector i is value 4 * i + k of row r. Values are
// unsigned (the true one plus an offset), for the dot products of x86 multiply unsigned with signed bytes. Nothing is
// widened: each group has as many bytes as its 16 rows have in the file.
#pragma once
#include <cstddef>
#include <cstdint>

#include "adapters.h"
#include "attention.h"

constexpr int ROWS = 16;    // of a group
constexpr int UNIT = 32;    // values of a row in a unit, and in a block of activations
constexpr int VECTOR = 64;  // bytes: four values of each row of a group

// 32 activations in signed bytes; the true ones are `scale` times that.
struct Block {
    float scale;        // NaN if one of them is not finite
    int32_t minus_sum;  // of the bytes; below, of their halves: what the offset of the weights is taken off with
    int32_t minus_low;
    int32_t minus_high;
    int8_t bytes[UNIT];
};

// The first 16 values of a unit are in the low halves of the bytes, the others in the high ones (4 vectors).
struct PackedQ8_0 {
    uint16_t scale[ROWS];  // F16, as all scales where nothing else is said
    uint8_t values[8][VECTOR];
};
struct PackedQ4_0 {
    uint16_t scale[ROWS];
    uint8_t values[4][VECTOR];
};
struct PackedMXFP4 {
    uint8_t exponent[ROWS];  // of the scale
    uint8_t values[4][VECTOR];
};
// K-quants: eight units. Byte j of each row's 12 with the 6-bit scales and minimums is at [j].
struct PackedQ4_K {
    uint16_t scale[ROWS], minimum[ROWS];
    uint8_t scales[12][ROWS];
    uint8_t values[8][4][VECTOR];
};
struct PackedQ5_K {
    uint16_t scale[ROWS], minimum[ROWS];
    uint8_t scales[12][ROWS];
    uint8_t fifth[8][VECTOR];  // bit i of a byte is the fifth of that byte in vector i
    uint8_t values[8][4][VECTOR];
};
struct PackedQ6_K {
    uint16_t scale[ROWS];
    int8_t scales[16][ROWS];          // one for each half of a unit
    uint8_t upper[8][2][VECTOR];      // bits 2 * i of [h] are the upper two of that byte in vector 4 * h + i
    uint8_t values[8][4][VECTOR];
};

// Computes columns of `count` groups that lie one after another: outputs[c][0..16 * count - 1] = their rows times inputs[c].
using Tile = void (*)(const void * groups, int count, const Block * const * inputs, int blocks, float * const * outputs, int columns);

// A type of weights: how many values a packed struct has of each row, its bytes, and the kernel for it.
enum Type { Q8_0, Q4_0, IQ4_NL, MXFP4, Q4_K, Q5_K, Q6_K, TYPES };

// The kernels of one instruction set. All give the same bits.
struct Kernels {
    const char * name;
    bool (*runs)();  // whether this CPU has the instructions
    Tile tiles[TYPES];
    void (*quantize)(const float * values, Block * blocks, int count);
    AttentionKernels attention;
    AdapterKernels adapters;
};
extern const Kernels KERNELS_AVX512VNNI, KERNELS_AVXVNNI, KERNELS_AVX2, KERNELS_PLAIN;
