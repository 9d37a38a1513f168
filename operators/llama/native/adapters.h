// Products with adapters, of which a row of a call has its own: what the kernels of an instruction set compute of them.
//
// A **bank** is the adapters of a job side by side in one: A has their ranks one below the other, each a row of as many
// values as the matrix has inputs; B lies transposed, for each rank a row of as many values as the matrix has outputs.
#pragma once
#include <cstddef>
#include <cstdint>

constexpr int LINE = 16;       // floats of a `Line`
constexpr int RANKS = 4;       // rows of A that share what is loaded of a token; ranks of an adapter are a multiple of it
constexpr int MOST_ADAPTERS = 64;  // of a bank: bits of a mask

// Ranks of a bank that belong to an adapter.
struct Ranks { int first, end; };

// All instruction sets give the same bits: a number is one chain of operations, whatever tokens are computed beside it.
struct AdapterKernels {
    // outputs[t][0..3] = RANKS rows of A, `apart` floats from each other, times token `t`; `next` is fetched meanwhile.
    void (*lower)(const float * rows, int64_t apart, const float * next, const float * const * inputs, int tokens, int size,
                  float * const * outputs);
    // outputs[t][0..width - 1] = the sum over `count` adapters, and over their ranks, of inputs[t][rank] times that row
    // of B; -0 with no adapter, which added to any number leaves it. `adds`: it is added to what is there. `next`: where
    // rank 0 of what comes next is.
    void (*raise)(const float * rows, int64_t apart, const float * next, const Ranks * ranks, int count,
                  const float * const * inputs, int tokens, int width, bool adds, float * const * outputs);
};
