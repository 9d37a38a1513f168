// Packing: the weights of a file in the layouts of packed.h.
#pragma once
#include "packed.h"

// A type of weights in llama.cpp's numbers, and the sizes of its blocks; `type` is TYPES if the kernels do not know it.
struct Format {
    Type type;
    int values;           // of a row in a block of the file, and in a packed struct
    size_t file_bytes;    // of a block
    size_t packed_bytes;  // of a packed struct: that of 16 blocks of the file
};
Format format_of(int ggml_type);

// Whether a matrix of such rows can be packed.
bool can_be_packed(const Format & format, int64_t values, int64_t rows);

// Packs `rows` rows of `values` values (as can_be_packed allows), by up to `threads` threads. The two do not overlap.
void pack(const Format & format, const void * file, void * packed, int64_t values, int64_t rows, int threads);
